//! Sessions: ONNX networks that HTTP clients run.
//!
//! Owns which networks stay prepared and on which device. One runs at a time. `onnx` interprets the
//! files, the engine decides which devices are allowed, and the server translates requests and
//! errors.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use config::Backend;
use device::Device;
use nn::{Failure, SessionOptions};
use onnx::{Array, Model, Network};
use parking_lot::Mutex;
use plan::Plan;

/// Number of prepared networks; the least recently used is dropped.
const MAX_SESSIONS: usize = 4;

/// Estimated memory of a network per byte of its file: weights as read, weights as stored, and
/// values.
const MEMORY_PER_BYTE: u64 = 4;

/// Backend for networks that the device of [`Backend::Auto`] does not support.
const FALLBACK: Backend = Backend::Cpu;

/// The prepared networks of a daemon, most recently used first.
#[derive(Default)]
pub struct Sessions(Mutex<Vec<Session>>);

/// Opens the device of a backend, or returns why it cannot be used.
type OpenDevice<'a> = dyn Fn(Backend) -> Result<Arc<dyn Device>, String> + 'a;

/// Backend and limits for a network.
pub struct Target<'a> {
    pub backend: Backend,
    pub device: &'a OpenDevice<'a>,
    /// System memory that a GPU must leave free, in bytes.
    pub reserve: u64,
    /// Directory of tuned kernel choices.
    pub tuned: Option<&'a Path>,
}

/// Reason why a network could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend cannot be used.
    #[error("{0}")]
    Backend(String),
    #[error(transparent)]
    Network(#[from] onnx::Error),
}

impl Error {
    /// Returns the device's error, if it is one.
    #[must_use]
    pub const fn device_error(&self) -> Option<&device::Error> {
        match self {
            Self::Network(onnx::Error::Run(Failure::Device(error))) => Some(error),
            _ => None,
        }
    }

    const fn is_out_of_memory(&self) -> bool {
        matches!(self.device_error(), Some(device::Error::OutOfMemory { .. }))
    }

    /// Returns true if another device may support the network.
    const fn may_run_elsewhere(&self) -> bool {
        self.is_out_of_memory()
            || matches!(self.device_error(), Some(device::Error::Unsupported { .. }))
    }
}

/// A prepared network, and the files it was read from, the model's first.
struct Session {
    files: Vec<File>,
    /// The requested backend.
    backend: Backend,
    /// Description of the device that was used.
    device: String,
    network: Network,
}

impl Session {
    /// Returns true if it was read from `path` and no file has changed.
    fn is_current(&self, path: &Path) -> bool {
        let unchanged = |file: &File| File::stat(&file.path).is_ok_and(|now| now == *file);
        self.files.first().is_some_and(|file| file.path == path) && self.files.iter().all(unchanged)
    }
}

#[derive(PartialEq, Eq)]
struct File {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

/// Result of a run.
pub struct Answer {
    pub outputs: BTreeMap<String, Array>,
    /// Description of the device that ran it.
    pub device: String,
    /// Duration of the run without preparation.
    pub took: Duration,
    /// True if the network had been prepared before.
    pub prepared: bool,
}

impl Sessions {
    /// Runs the network in a file. One runs at a time.
    ///
    /// # Errors
    /// The device does not support the network, an input does not fit, or memory is short.
    pub fn run(
        &self,
        path: &Path,
        mut inputs: BTreeMap<String, Array>,
        target: &Target<'_>,
    ) -> Result<Answer, Error> {
        let mut all = self.0.lock();
        let known = all.iter().position(|session| {
            session.backend == target.backend
                && session.is_current(path)
                && session.network.fits(&inputs)
        });
        let (mut session, prepared) = match known {
            Some(at) => (all.remove(at), true),
            None => {
                let result = match Session::new(path, &mut inputs, target) {
                    Err(error) if error.is_out_of_memory() && !all.is_empty() => {
                        all.clear();
                        Session::new(path, &mut inputs, target)
                    }
                    result => result,
                };
                (result?, false)
            }
        };
        let start = Instant::now();
        let outputs = session.network.run(&inputs);
        let took = start.elapsed();
        let device = session.device.clone();
        // After a device error the network is dropped: its device may be lost.
        if !matches!(&outputs, Err(onnx::Error::Run(_))) {
            all.insert(0, session);
            all.truncate(MAX_SESSIONS);
        }
        Ok(Answer { outputs: outputs?, device, took, prepared })
    }

    /// Drops all networks that are not running, to free memory for a model.
    pub fn drop_idle(&self) {
        if let Some(mut all) = self.0.try_lock() {
            all.clear();
        }
    }
}

impl Session {
    /// Reads and prepares a network. Converts the inputs to the types that the file declares.
    fn new(
        path: &Path,
        inputs: &mut BTreeMap<String, Array>,
        target: &Target<'_>,
    ) -> Result<Self, Error> {
        let file = File::stat(path)?;
        let need = file.bytes.saturating_mul(MEMORY_PER_BYTE);
        let free = device::available().unwrap_or(u64::MAX);
        if free < need {
            return Err(out_of_memory(format!("the network of {} bytes", file.bytes), need, free));
        }
        let model = Model::read_within(path, (free - need) / MEMORY_PER_BYTE)?;
        let external = model.beside().iter().map(|path| File::stat(path));
        let files = std::iter::once(Ok(file)).chain(external).collect::<Result<_, _>>()?;
        for declared in model.inputs() {
            if let Some(array) = inputs.get_mut(&declared.name) {
                array.elem = declared.elem;
            }
        }
        let on = |backend| -> Result<_, Error> {
            let device = (target.device)(backend).map_err(Error::Backend)?;
            let network = prepare(&model, &*device, inputs, target)?;
            Ok((device.info(), network))
        };
        let (info, network) = match on(target.backend) {
            Err(error) if target.backend == Backend::Auto && error.may_run_elsewhere() => {
                tracing::info!(network = %path.display(), %error, "the network runs on the {FALLBACK} backend instead");
                on(FALLBACK)?
            }
            result => result?,
        };
        Ok(Self { files, backend: target.backend, device: info.description, network })
    }
}

/// Returns a network's plan for inputs of these shapes, and its device.
///
/// # Errors
/// As for [`Sessions::run`].
pub fn plan(
    path: &Path,
    shapes: &BTreeMap<String, Vec<usize>>,
    target: &Target<'_>,
) -> Result<(Arc<dyn Device>, Plan), Error> {
    let model = Model::read(path)?;
    let device = (target.device)(target.backend).map_err(Error::Backend)?;
    let network = Network::new(&model, &*device, shapes, &BTreeMap::new())?;
    let plan = network.plan().clone();
    Ok((device, plan))
}

/// Prepares the network on a device. Leaves the reserve free on a GPU that shares memory with the
/// system.
fn prepare(
    model: &Model,
    device: &dyn Device,
    inputs: &BTreeMap<String, Array>,
    target: &Target<'_>,
) -> Result<Network, Error> {
    let free = device.gpu_memory().filter(|free| *free > 0 && device.shares_memory());
    let left =
        |free: u64| free.saturating_sub(device::cpu::promised()).saturating_sub(target.reserve);
    let options = SessionOptions { memory_limit: free.map(left), tuned: target.tuned };
    let result = Network::of_with(model, device, options, inputs);
    result.map_err(|error| match error {
        onnx::Error::Run(Failure::Device(device::Error::OutOfMemory { what, need, have }))
            if free.is_some() =>
        {
            let what = format!("{what}, with memory_reserve_mib = {}", target.reserve >> 20);
            out_of_memory(what, need, have)
        }
        error => error.into(),
    })
}

fn out_of_memory(what: String, need: u64, have: u64) -> Error {
    onnx::Error::Run(device::Error::OutOfMemory { what, need, have }.into()).into()
}

impl File {
    fn stat(path: &Path) -> Result<Self, onnx::Error> {
        let metadata =
            fs::metadata(path).and_then(|metadata| Ok((metadata.len(), metadata.modified()?)));
        let (bytes, modified) =
            metadata.map_err(|source| onnx::Error::Io { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), bytes, modified })
    }
}
