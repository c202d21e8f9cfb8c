//! Networks out of ONNX files for the daemon's clients, beside whatever model is loaded.
//!
//! Owns which of them stay prepared, on which device, and that one runs at a time. What a file means is `onnx`'s, which
//! devices may be used the engine's, what HTTP says of it `control`'s.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use device::Device;
use nn::{Failure, Terms};
use onnx::{Array, Model, Network};
use parking_lot::Mutex;
use plan::Plan;

/// Networks that stay prepared, the last used ones.
const KEPT: usize = 4;

/// Memory that a file's network takes, in bytes of the file: its weights as they arrive, as they lie, and its values.
const TIMES: u64 = 4;

/// What takes a network that the device of [`AUTO`] does not.
const LAST: &str = "cpu";
const AUTO: &str = "auto";

/// The networks of a daemon.
#[derive(Default)]
pub struct Networks(Mutex<Vec<Kept>>);

/// Gives the device of a backend, or says why it cannot be used.
type Open<'a> = dyn Fn(&str) -> Result<Arc<dyn Device>, String> + 'a;

/// Where a network is to run.
pub struct Place<'a> {
    /// A backend, or `auto`.
    pub backend: &'a str,
    pub device: &'a Open<'a>,
    /// Bytes of the system's memory that a GPU must not take.
    pub reserve: u64,
    /// Where tuned choices are kept.
    pub tuned: Option<&'a Path>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend cannot be used.
    #[error("{0}")]
    Backend(String),
    #[error(transparent)]
    Network(#[from] onnx::Error),
}

impl Error {
    /// What the device says, where it is its error.
    #[must_use]
    pub const fn of_device(&self) -> Option<&device::Error> {
        match self {
            Self::Network(onnx::Error::Run(Failure::Device(error))) => Some(error),
            _ => None,
        }
    }

    const fn lacks_memory(&self) -> bool {
        matches!(self.of_device(), Some(device::Error::OutOfMemory { .. }))
    }

    /// Whether another device may take the network.
    const fn refused(&self) -> bool {
        self.lacks_memory() || matches!(self.of_device(), Some(device::Error::Unsupported { .. }))
    }
}

/// A network, and the files that it was read from, the model's first.
struct Kept {
    files: Vec<File>,
    /// As it was asked for.
    backend: String,
    /// The device that this came to, in a line.
    device: String,
    network: Network,
}

impl Kept {
    /// Whether it is what the file of that path says now.
    fn is(&self, path: &Path) -> bool {
        let unchanged = |file: &File| File::of(&file.path).is_ok_and(|now| now == *file);
        self.files.first().is_some_and(|file| file.path == path) && self.files.iter().all(unchanged)
    }
}

#[derive(PartialEq, Eq)]
struct File {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

/// What a run gives.
pub struct Answer {
    pub outputs: BTreeMap<String, Array>,
    /// What ran it, in a line.
    pub device: String,
    /// Of the run alone.
    pub took: Duration,
    /// Whether the network was there already.
    pub prepared: bool,
}

impl Networks {
    /// What the network in a file answers. One runs at a time.
    ///
    /// # Errors
    /// The file is no network that can be run there, an input does not fit, or there is not the memory.
    pub fn run(
        &self,
        path: &Path,
        mut inputs: BTreeMap<String, Array>,
        place: &Place<'_>,
    ) -> Result<Answer, Error> {
        let mut all = self.0.lock();
        let known = all.iter().position(|kept| {
            kept.backend == place.backend && kept.is(path) && kept.network.fits(&inputs)
        });
        let (mut kept, prepared) = match known {
            Some(at) => (all.remove(at), true),
            None => {
                let made = match Kept::new(path, &mut inputs, place) {
                    Err(error) if error.lacks_memory() && !all.is_empty() => {
                        all.clear();
                        Kept::new(path, &mut inputs, place)
                    }
                    made => made,
                };
                (made?, false)
            }
        };
        let start = Instant::now();
        let outputs = kept.network.run(&inputs);
        let took = start.elapsed();
        let device = kept.device.clone();
        // One whose device has failed may be lost.
        if !matches!(&outputs, Err(onnx::Error::Run(_))) {
            all.insert(0, kept);
            all.truncate(KEPT);
        }
        Ok(Answer { outputs: outputs?, device, took, prepared })
    }

    /// Lets go of what no run needs now: a model comes, which may need the memory.
    pub fn make_room(&self) {
        if let Some(mut all) = self.0.try_lock() {
            all.clear();
        }
    }
}

impl Kept {
    /// Reads and prepares it. Inputs are of the types that the file says from then on.
    fn new(
        path: &Path,
        inputs: &mut BTreeMap<String, Array>,
        place: &Place<'_>,
    ) -> Result<Self, Error> {
        let file = File::of(path)?;
        let need = file.bytes.saturating_mul(TIMES);
        let free = device::available().unwrap_or(u64::MAX);
        if free < need {
            return Err(no_room(format!("the network of {} bytes", file.bytes), need, free));
        }
        let model = Model::read_within(path, (free - need) / TIMES)?;
        let beside = model.beside().iter().map(|path| File::of(path));
        let files = std::iter::once(Ok(file)).chain(beside).collect::<Result<_, _>>()?;
        for declared in model.inputs() {
            if let Some(array) = inputs.get_mut(&declared.name) {
                array.elem = declared.elem;
            }
        }
        let on = |backend: &str| -> Result<_, Error> {
            let device = (place.device)(backend).map_err(Error::Backend)?;
            let network = prepared(&model, &*device, inputs, place)?;
            Ok((device.info(), network))
        };
        let (info, network) = match on(place.backend) {
            Err(error) if place.backend == AUTO && error.refused() => {
                tracing::info!(network = %path.display(), %error, "taken to the {LAST}");
                on(LAST)?
            }
            made => made?,
        };
        Ok(Self { files, backend: place.backend.to_owned(), device: info.description, network })
    }
}

/// A network's plan for inputs of these shapes, and the device that it is for.
///
/// # Errors
/// As for [`Networks::run`].
pub fn plan(
    path: &Path,
    shapes: &BTreeMap<String, Vec<usize>>,
    place: &Place<'_>,
) -> Result<(Arc<dyn Device>, Plan), Error> {
    let model = Model::read(path)?;
    let device = (place.device)(place.backend).map_err(Error::Backend)?;
    let network = Network::new(&model, &*device, shapes, &BTreeMap::new())?;
    let plan = network.plan().clone();
    Ok((device, plan))
}

/// The network on a device. Of memory that a GPU shares with the system the reserve is left.
fn prepared(
    model: &Model,
    device: &dyn Device,
    inputs: &BTreeMap<String, Array>,
    place: &Place<'_>,
) -> Result<Network, Error> {
    let free = device.gpu_memory().filter(|free| *free > 0 && device.shares_memory());
    let left =
        |free: u64| free.saturating_sub(device::cpu::promised()).saturating_sub(place.reserve);
    let terms = Terms { room: free.map(left), tuned: place.tuned };
    let made = Network::of_with(model, device, terms, inputs);
    made.map_err(|error| match error {
        onnx::Error::Run(Failure::Device(device::Error::OutOfMemory { what, need, have }))
            if free.is_some() =>
        {
            let what = format!("{what}, beside memory_reserve_mib = {}", place.reserve >> 20);
            no_room(what, need, have)
        }
        error => error.into(),
    })
}

fn no_room(what: String, need: u64, have: u64) -> Error {
    onnx::Error::Run(device::Error::OutOfMemory { what, need, have }.into()).into()
}

impl File {
    fn of(path: &Path) -> Result<Self, onnx::Error> {
        let told = fs::metadata(path).and_then(|told| Ok((told.len(), told.modified()?)));
        let (bytes, modified) =
            told.map_err(|source| onnx::Error::Io { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), bytes, modified })
    }
}
