//! First light: tests a device before it runs its first model since the machine was started. The device then
//! runs in the mode that passed.
//!
//! The device performs bring-up steps 1 to 7 ([`device::first_light`]), `model` the last one. Each step is written
//! to the bring-up state file before it begins, so that the next start detects a crash in it.

mod measured;
mod model;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::sync::Arc;

use super::shared::Shared;
use super::{Light, State};
use device::Device;
use device::bring_up::{self, Admission, Begun, Key, Page, Passed, Record};
use device::first_light::{Mode, Note, Stage};
use errors::one_line;

/// Fallback device, which cannot crash the machine.
const LAST: &str = "cpu";

/// Device that first contact measures.
const MEASURED: &str = "nv";

/// Returns the device in the mode that has passed first light, or why it must not be used.
pub(super) fn pass(
    device: &Arc<dyn Device>,
    light: &Light,
    shared: &Shared,
) -> Result<Arc<dyn Device>, String> {
    let name = device.info().name;
    let (wanted, told) = wanted(&**device, light);
    let passed = match &light.dir {
        // Needs no first light: other devices are compared with the reference.
        _ if name == "reference" => return Ok(Arc::clone(device)),
        None => Ok((wanted, Vec::new())),
        Some(_) if name == LAST => last(device, shared).map(|()| (None, Vec::new())),
        Some(dir) => Page::open(dir, name)
            .map_err(|error| error.to_string())
            .and_then(|page| admit(page, device, wanted, shared)),
    };
    match passed {
        Ok((mode, mut notes)) => {
            notes.extend(told);
            shared.devices.admitted(name, mode, notes);
            Ok(in_mode(device, mode))
        }
        Err(reason) => {
            shared.devices.refused(name, &reason);
            Err(reason)
        }
    }
}

/// Returns the device in the wanted mode if nothing disables it, without running tests.
pub(super) fn may_be_used(
    device: &Arc<dyn Device>,
    light: &Light,
) -> Result<Arc<dyn Device>, String> {
    let withheld = light.dir.as_ref().and_then(|dir| bring_up::withheld(dir, device.info().name));
    let (mode, _) = wanted(&**device, light);
    withheld.map_or_else(|| Ok(in_mode(device, mode)), Err)
}

/// Wanted mode of a device that has modes, limited by the results of first contact.
fn wanted(device: &dyn Device, light: &Light) -> (Option<Mode>, Option<String>) {
    match (device.first_light(), &light.dir) {
        (Some(_), Some(dir)) if device.info().name == MEASURED => {
            let here = tegra_probe::runner::this_machine();
            let (mode, told) = measured::within(dir, light.wanted, &here);
            (Some(mode), told)
        }
        (proofs, _) => (proofs.map(|_| light.wanted), None),
    }
}

/// Tests the fallback device once per instruction set. Stores nothing, because the test takes milliseconds.
fn last(device: &Arc<dyn Device>, shared: &Shared) -> Result<(), String> {
    let what = device.info().description;
    if shared.devices.has_passed(&what) {
        return Ok(());
    }
    if let Some(told) = model::check(device, shared).map_err(failed)? {
        tracing::warn!(device = LAST, told, "not as wanted");
    }
    shared.devices.passed(what);
    Ok(())
}

/// Records that a device has lowered its mode by itself.
pub(super) fn lowered(device: &'static str, mode: Mode, light: &Light, shared: &Shared) {
    let Some(note) = shared.devices.lowered(device, mode) else { return };
    tracing::warn!(device, %mode, "{note}");
    let Some(dir) = &light.dir else { return };
    if let Err(error) = Page::open(dir, device).and_then(|mut page| page.lowered(mode, note)) {
        tracing::warn!(device, %error, "the mode is not remembered");
    }
}

fn in_mode(device: &Arc<dyn Device>, mode: Option<Mode>) -> Arc<dyn Device> {
    match device.first_light().zip(mode) {
        Some((proofs, mode)) => proofs.in_mode(mode),
        None => Arc::clone(device),
    }
}

/// Hardware and driver that a result is valid for.
fn key(device: &dyn Device) -> String {
    let description = device.info().description;
    match (device.first_light(), device.tunable()) {
        (Some(proofs), _) => proofs.key(),
        (None, Some(tunable)) => format!("{}, {description}", tunable.key().stem()),
        (None, None) => description,
    }
}

type Mark = (Option<Mode>, Vec<String>);

fn admit(
    mut page: Page,
    device: &Arc<dyn Device>,
    wanted: Option<Mode>,
    shared: &Shared,
) -> Result<Mark, String> {
    let name = device.info().name;
    let mut record = match page.admit(Key::here(key(&**device)), wanted) {
        Admission::Withheld(reason) => return Err(reason),
        Admission::Known { mode, notes } => return Ok((mode, notes)),
        Admission::Prove(record) => record,
    };
    let result = prove(&mut page, &mut record, device, shared);
    record.under_way = None;
    match &result {
        Ok(mode) => record.passed = Some(Passed { mode: *mode }),
        Err(why) => record.failed = Some(why.clone()),
    }
    let written = page.write(&record);
    match result {
        Ok(mode) => {
            written.map_err(|error| error.to_string())?;
            let shown = mode.map_or_else(String::new, |mode| mode.to_string());
            tracing::info!(device = name, mode = shown, "first light passed");
            Ok((mode, record.notes))
        }
        Err(why) => Err(why),
    }
}

/// Error of the last bring-up step, in the form of the errors of the other steps.
fn failed(why: impl Display) -> String {
    format!("first light, stage {}: {why}", Stage::Model)
}

/// Runs all bring-up steps. Returns the highest mode that passed.
fn prove(
    page: &mut Page,
    record: &mut Record,
    device: &Arc<dyn Device>,
    shared: &Shared,
) -> Result<Option<Mode>, String> {
    let name = device.info().name;
    let wanted = record.wanted;
    let mut unwritten = None;
    let mut note = |note: Note<'_>| {
        shared.load_beats.beat();
        match note {
            // The device is idle between two steps, so the next start does not blame the device.
            Note::Begins(_) if shared.state() == State::Stopping => {
                let reason = "the daemon was stopped in first light".to_owned();
                unwritten = Some(reason.clone());
                return Err(device::Error::Invalid(reason));
            }
            Note::Begins(stage) => {
                record.under_way = Some(Begun::now(stage));
                if let Err(error) = page.write(record) {
                    let reason = error.to_string();
                    unwritten = Some(reason.clone());
                    // Ends the tests; `unwritten` is the reported error.
                    return Err(device::Error::Invalid(reason));
                }
            }
            Note::Passed(stage) => tracing::debug!(device = name, %stage, "passed"),
            Note::Degraded(stage, why) => {
                tracing::warn!(device = name, %stage, why, "not as wanted");
                record.notes.push(format!("{stage}: {why}"));
            }
        }
        Ok(())
    };
    let proven = match device.first_light().zip(wanted) {
        Some((proofs, wanted)) => proofs.prove(wanted, &mut note),
        None => Ok(None),
    };
    let mut mode = match proven.and_then(|mode| note(Note::Begins(Stage::Model)).map(|()| mode)) {
        Ok(mode) => mode,
        Err(device::Error::Lost { reason, .. }) => return Err(reason),
        Err(error) => return Err(unwritten.unwrap_or_else(|| one_line(&error))),
    };
    loop {
        let why = match model::check(&in_mode(device, mode), shared) {
            Ok(told) => {
                if let Some(told) = told {
                    // A degraded step writes no file.
                    let _ = note(Note::Degraded(Stage::Model, &told));
                }
                // The end of the step is written with the result.
                return Ok(mode);
            }
            Err(why) => why,
        };
        let lower = mode.and_then(|mode| Some(Mode { chains: mode.chains.lower()?, ..mode }));
        let Some(lower) = lower else { return Err(failed(why)) };
        mode = Some(lower);
        let what = format!("{why}; going on as {}", lower.chains.name());
        // A degraded step writes no file.
        let _ = note(Note::Degraded(Stage::Model, &what));
    }
}
