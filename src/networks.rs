//! Networks out of ONNX files for the daemon's clients: on the CPU, whatever model is loaded beside them.
//!
//! Owns which of them stay prepared, and that one runs at a time. What a file means is `onnx`'s, what HTTP says of it
//! `control`'s.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use device::Device;
use onnx::{Array, Error, Model, Network};
use parking_lot::Mutex;
use telemetry::memory;

/// Networks that stay prepared, the last used ones.
const KEPT: usize = 4;

/// Memory that a file's network takes, in bytes of the file: its weights as they arrive, as they lie, and its values.
const TIMES: u64 = 4;

/// The networks of a daemon.
#[derive(Default)]
pub struct Networks(Mutex<Vec<Kept>>);

/// A network, and the files that it was read from, the model's first.
struct Kept {
    files: Vec<File>,
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
    /// Of the run alone.
    pub took: Duration,
    /// Whether the network was there already.
    pub prepared: bool,
}

impl Networks {
    /// What the network in a file answers. One runs at a time, on the device that is given.
    ///
    /// # Errors
    /// The file is no network that can be run, an input does not fit, or there is not the memory.
    pub fn run(
        &self,
        path: &Path,
        mut inputs: BTreeMap<String, Array>,
        device: &Arc<dyn Device>,
    ) -> Result<Answer, Error> {
        let mut all = self.0.lock();
        let known = all.iter().position(|kept| kept.is(path) && kept.network.fits(&inputs));
        let (mut kept, prepared) = match known {
            Some(at) => (all.remove(at), true),
            None => {
                let file = File::of(path)?;
                let need = file.bytes.saturating_mul(TIMES);
                let free = memory::available().unwrap_or(u64::MAX);
                if free < need {
                    let what = format!("its network may need {need} bytes, and {free} are free");
                    return Err(Error::Model { what });
                }
                let model = Model::read_within(path, (free - need) / TIMES)?;
                let beside = model.beside().iter().map(|path| File::of(path));
                let files = std::iter::once(Ok(file)).chain(beside).collect::<Result<_, _>>()?;
                for declared in model.inputs() {
                    if let Some(array) = inputs.get_mut(&declared.name) {
                        array.elem = declared.elem;
                    }
                }
                let network = Network::of(&model, &**device, &inputs)?;
                (Kept { files, network }, false)
            }
        };
        let start = Instant::now();
        let outputs = kept.network.run(&inputs);
        let took = start.elapsed();
        all.insert(0, kept);
        all.truncate(KEPT);
        Ok(Answer { outputs: outputs?, took, prepared })
    }
}

impl File {
    fn of(path: &Path) -> Result<Self, Error> {
        let told = fs::metadata(path).and_then(|told| Ok((told.len(), told.modified()?)));
        let (bytes, modified) =
            told.map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), bytes, modified })
    }
}
