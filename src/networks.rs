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

/// A network, and the file that it was read from.
struct Kept {
    file: File,
    network: Network,
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
        let file = File::of(path)?;
        let known = all.iter().position(|kept| kept.file == file && kept.network.fits(&inputs));
        let (mut kept, prepared) = match known {
            Some(at) => (all.remove(at), true),
            None => {
                let need = file.bytes.saturating_mul(TIMES);
                if let Some(free) = memory::available().filter(|free| *free < need) {
                    let what = format!("its network may need {need} bytes, and {free} are free");
                    return Err(Error::Model { what });
                }
                let model = Model::read(path)?;
                for declared in model.inputs() {
                    if let Some(array) = inputs.get_mut(&declared.name) {
                        array.elem = declared.elem;
                    }
                }
                let network = Network::of(&model, &**device, &inputs)?;
                (Kept { file, network }, false)
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
