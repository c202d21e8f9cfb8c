//! Reference answers: the answer of an undisturbed daemon to each request, computed once for each device, model and
//! request.

use parking_lot::Mutex;
use std::collections::HashMap;

use crate::answer::{Answer, End};
use crate::clients;
use crate::plan::{Device, File, Settings};
use crate::request::{self, catalogue};
use crate::run::{Place, load};

/// Answers by device and model, in the catalogue's order.
#[derive(Default)]
pub(crate) struct Reference(Mutex<HashMap<&'static str, HashMap<String, Vec<Answer>>>>);

impl Reference {
    /// Checks that `answer` is the reference answer on this device, or on either device if the CPU may have taken over.
    pub(crate) fn expects(
        &self,
        device: Device,
        request: usize,
        answer: &Answer,
        excused: bool,
    ) -> Result<(), String> {
        // The template of this model inserts the date, and tests change the clock.
        if catalogue()[request].is_chat()
            && answer.model == "llama"
            && (excused || answer.end == End::Whole)
        {
            return Ok(());
        }
        let devices: &[Device] = match device {
            Device::Auto => &[Device::Nv, Device::Cpu],
            Device::Nv => &[Device::Nv],
            Device::Cpu => &[Device::Cpu],
        };
        // An answer that moved between devices differs from both by at most the devices' tolerance.
        let tolerance = if device == Device::Auto { 0.05 } else { 0.0 };
        let mut wanted = Vec::new();
        for device in devices {
            self.with(*device, |models| {
                for (name, answers) in models {
                    let model = answer.model.as_str();
                    if model.is_empty() || model == name {
                        wanted.push(answers[request].clone());
                    }
                }
            });
        }
        let same = |reference: &Answer| match (&answer.end, &reference.end) {
            (End::Error(..), End::Error(..)) => answer.end == reference.end,
            (End::Error(..) | End::Cut, _) => excused && answer.is_like(reference, tolerance),
            (End::Whole, _) => answer.is_like(reference, tolerance),
        };
        match wanted.iter().any(same) {
            true => Ok(()),
            false => Err(format!("{answer:?}, alone {wanted:?}")),
        }
    }

    fn with(&self, device: Device, look: impl FnOnce(&HashMap<String, Vec<Answer>>)) {
        let mut all = self.0.lock();
        look(all.entry(device.name()).or_insert_with(|| ask_all(device)));
    }
}

/// Answers of all models on a device.
fn ask_all(device: Device) -> HashMap<String, Vec<Answer>> {
    let settings = Settings::quiet(device);
    let place = Place::new(&settings);
    let subject = place.start(&settings, &[]);
    let models = [File::Llama, File::Qwen].map(|file| {
        let loaded = load(&subject, file, settings.slots);
        assert_eq!(loaded.end, End::Whole, "{loaded:?}");
        let ask = |request| clients::ask(&subject, request, false).unwrap();
        let answers: Vec<Answer> = catalogue()[..request::known(device)].iter().map(ask).collect();
        let name = answers[0].model.clone();
        assert!(answers.iter().all(|answer| answer.end != End::Cut), "{answers:?}");
        (name, answers)
    });
    subject.stop();
    models.into()
}
