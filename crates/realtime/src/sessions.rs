//! Sessions: ONNX networks that HTTP clients run.
//!
//! Owns which networks stay prepared and on which device, and how a run is cancelled. `onnx`
//! interprets the files, the engine decides which devices are allowed, and the server translates
//! requests and errors and limits how many run at once.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use config::Backend;
use device::{Canceller, Device};
use files::{Identity, RegularFile};
use nn::{Failure, SessionOptions};
use onnx::{Array, Limits, Links, Model, Network};
use parking_lot::Mutex;
use plan::Plan;

/// Number of prepared networks; the least recently used is dropped.
const MAX_SESSIONS: usize = 4;

/// Most values of all outputs of a run.
pub const MAX_OUTPUT_VALUES: usize = 16 << 20;

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
    /// Folder below which networks may lie.
    pub root: &'a Path,
    /// System memory that a GPU must leave free, in bytes.
    pub reserve: u64,
    /// Directory of tuned kernel choices.
    pub tuned: Option<&'a Path>,
    /// Processor time, and bytes beyond its weights, in which a network must be prepared.
    pub time: Duration,
    pub memory: u64,
}

/// Reason why a network could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend cannot be used.
    #[error("{0}")]
    Backend(String),
    #[error("the run was cancelled")]
    Cancelled,
    #[error("is outside of {}, the folder of networks that clients may name", root.display())]
    OutsideRoot { root: PathBuf },
    #[error("the outputs have {values} values, more than {MAX_OUTPUT_VALUES}")]
    TooManyValues { values: usize },
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
    files: Vec<NamedFile>,
    /// True if every change of the files since they were read is visible in their identities.
    settled: bool,
    /// The requested backend.
    backend: Backend,
    /// Description of the device that was used.
    device: String,
    network: Network,
}

impl Session {
    /// Returns true if it was read from `path` and no file has changed.
    fn is_current(&self, path: &Path) -> bool {
        let unchanged = |file: &NamedFile| {
            Identity::of(&file.path).is_ok_and(|identity| identity == file.identity)
        };
        self.settled
            && self.files.first().is_some_and(|file| file.path == path)
            && self.files.iter().all(unchanged)
    }
}

/// A file, as it was read.
#[derive(PartialEq, Eq)]
struct NamedFile {
    path: PathBuf,
    identity: Identity,
}

/// Cancels a run from another thread.
#[derive(Default)]
pub struct Cancellation(Mutex<Cancelled>);

#[derive(Default)]
struct Cancelled {
    /// Shared with the preparation of the network.
    cancelled: Arc<AtomicBool>,
    /// Canceller of the running network.
    running: Option<Canceller>,
}

impl Cancellation {
    /// Cancels the run before its next stage, and between two kernels on a device that supports it.
    pub fn cancel(&self) {
        let state = self.0.lock();
        state.cancelled.store(true, Ordering::Relaxed);
        if let Some(running) = &state.running {
            running.cancel();
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn is_cancelled(&self) -> bool {
        self.0.lock().cancelled.load(Ordering::Relaxed)
    }

    /// Limits of preparing a network for this run.
    fn limits(&self, target: &Target<'_>) -> Limits {
        let cancelled = Arc::clone(&self.0.lock().cancelled);
        Limits { time: target.time, memory: target.memory, cancelled }
    }

    /// Calls `run`, during which [`Self::cancel`] ends the network's step.
    fn during<T>(&self, canceller: Option<Canceller>, run: impl FnOnce() -> T) -> T {
        {
            let mut state = self.0.lock();
            if let (true, Some(canceller)) = (state.cancelled.load(Ordering::Relaxed), &canceller) {
                canceller.cancel();
            }
            state.running = canceller;
        }
        let result = run();
        self.0.lock().running = None;
        result
    }
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
    /// Runs the network in a file. Holds no lock while it reads, prepares or runs.
    ///
    /// # Errors
    /// The file may not be named, the device does not support the network, an input does not fit,
    /// memory is short, or the run was cancelled.
    pub fn run(
        &self,
        path: &Path,
        mut inputs: BTreeMap<String, Array>,
        target: &Target<'_>,
        cancellation: &Cancellation,
    ) -> Result<Answer, Error> {
        // Checks the permission again each time: the file may be another one by now.
        let file = open(path, target.root)?;
        let known = {
            let mut all = self.0.lock();
            let known = all.iter().position(|session| {
                session.backend == target.backend
                    && session.is_current(path)
                    && session.network.fits(&inputs)
            });
            known.map(|at| all.remove(at))
        };
        let prepared = known.is_some();
        let mut session = match known {
            Some(session) => session,
            None => match Session::new(&file, path, &mut inputs, target, cancellation) {
                Err(error) if error.is_out_of_memory() && self.clear() => {
                    Session::new(&file, path, &mut inputs, target, cancellation)?
                }
                result => result?,
            },
        };
        let values = session.network.outputs().map(|(_, _, shape)| shape.iter().product::<usize>());
        let values = values.fold(0, usize::saturating_add);
        if values > MAX_OUTPUT_VALUES {
            return Err(Error::TooManyValues { values });
        }
        let start = Instant::now();
        let canceller = session.network.canceller();
        let mut outputs = cancellation.during(canceller, || session.network.run(&inputs));
        let took = start.elapsed();
        if matches!(outputs, Err(onnx::Error::Changed)) {
            // A shape follows from the data: prepares the network for these.
            session = Session::new(&file, path, &mut inputs, target, cancellation)?;
            let canceller = session.network.canceller();
            outputs = cancellation.during(canceller, || session.network.run(&inputs));
        }
        cancellation.check()?;
        let device = session.device.clone();
        // After a device error the network is dropped: its device may be lost.
        if session.settled && !matches!(&outputs, Err(onnx::Error::Run(_))) {
            let mut all = self.0.lock();
            all.insert(0, session);
            all.truncate(MAX_SESSIONS);
        }
        Ok(Answer { outputs: outputs?, device, took, prepared })
    }

    /// Drops all prepared networks. Returns whether there were any.
    fn clear(&self) -> bool {
        let all = std::mem::take(&mut *self.0.lock());
        !all.is_empty()
    }

    /// Drops all networks that are not running, to free memory for a model.
    pub fn drop_idle(&self) {
        self.clear();
    }
}

impl Session {
    /// Reads and prepares a network. Converts the inputs to the types that the file declares.
    fn new(
        file: &RegularFile,
        path: &Path,
        inputs: &mut BTreeMap<String, Array>,
        target: &Target<'_>,
        cancellation: &Cancellation,
    ) -> Result<Self, Error> {
        let need = file.len().saturating_mul(MEMORY_PER_BYTE);
        let free = device::available().unwrap_or(u64::MAX);
        if free < need {
            return Err(out_of_memory(format!("the network of {} bytes", file.len()), need, free));
        }
        cancellation.check()?;
        let model = Model::read_from(file, path, Links::Inside, (free - need) / MEMORY_PER_BYTE)?;
        let model = model.limited(cancellation.limits(target));
        let own = NamedFile { path: path.to_owned(), identity: file.identity() };
        let external = model.external().iter();
        let external =
            external.map(|one| NamedFile { path: one.path.clone(), identity: one.identity });
        let files: Vec<_> = std::iter::once(own).chain(external).collect();
        let settled = files.iter().all(|file| file.identity.is_settled());
        cancellation.check()?;
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
        let device = info.description;
        Ok(Self { files, settled, backend: target.backend, device, network })
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
    cancellation: &Cancellation,
) -> Result<(Arc<dyn Device>, Plan), Error> {
    let file = open(path, target.root)?;
    let model = Model::read_from(&file, path, Links::Inside, u64::MAX)?;
    let model = model.limited(cancellation.limits(target));
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

/// Opens a network's file, if clients may name it.
fn open(path: &Path, root: &Path) -> Result<RegularFile, Error> {
    let outside = || Error::OutsideRoot { root: root.to_owned() };
    let opened = if root == Path::new("/") {
        RegularFile::open(path)
    } else {
        let below = path.strip_prefix(root).map_err(|_| outside())?;
        RegularFile::open_beneath(root, below)
    };
    opened.map_err(|source| match source.kind() {
        io::ErrorKind::CrossesDevices => outside(),
        _ => onnx::Error::Io { path: path.to_owned(), source }.into(),
    })
}
