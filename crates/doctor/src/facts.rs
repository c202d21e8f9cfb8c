//! Facts that the checks use, gathered from the machine, the configuration and the state directory.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, Gid, Group, Uid, access};

use config::Config;
use device::Device;
use device::bring_up::{self, Book};
use device::cpu::Cpu;
use device::tune::{Declared, DeviceKey, Store, store};
use model::{KvLayout, Model, synthetic};
use tegra_bundle::{Directory, Header};
use telemetry::{Probe, State, Users};

/// Device nodes that the NV device opens. Source: `tegra::error::Node`.
const NODES: [&str; 2] = ["/dev/nvmap", "/dev/nvgpu/igpu0/ctrl"];

/// Tokens per slot if the configuration leaves the context to the model.
const DEFAULT_CONTEXT: usize = 4096;

#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    pub state: State,
    /// CPU model, and the best instruction set of the CPU device for it.
    pub processor: String,
    /// Processes that have the GPU open.
    pub users: Users,
    pub nodes: Vec<Node>,
    /// Configuration, or the reason why it is invalid.
    pub config: Result<Config, String>,
    /// Memory needs of the configured model, or the reason why they are unknown; `None` without a
    /// model.
    pub need: Option<Result<Need, String>>,
    pub disk: Option<Disk>,
    pub tuned: Vec<Tuned>,
    pub socket: Socket,
    /// Model of a running daemon, whose memory is already reserved.
    pub loaded: Option<String>,
    /// Bring-up state of the devices, or the reason why it cannot be read.
    pub light: Result<Book, String>,
    /// Devices that a running daemon has stopped using, with the reason.
    pub left: Vec<(String, String)>,
    /// Newest fault bundle of a GPU, or the reason why it cannot be read.
    pub fault: Result<Option<Fault>, String>,
}

/// A GPU fault bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub file: PathBuf,
    /// Number of bundles, including this one.
    pub kept: usize,
    /// Header of the bundle, or the reason why it cannot be read.
    pub header: Result<Box<Header>, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub path: String,
    pub exists: bool,
    /// True if this user may read and write it.
    pub permitted: bool,
    /// Owning group, by name or number.
    pub group: Option<String>,
}

/// Memory needs of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the KV cache.
    pub kv: u64,
}

/// Tuned choices for a device's kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned {
    /// Device, by the name of its file.
    pub device: String,
    /// Number of valid entries, and of entries whose kernels have changed; `None` if the device is
    /// not known to be this machine's.
    pub entries: Option<(usize, usize)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub directory: PathBuf,
    /// Bytes free for this user.
    pub free: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    pub path: PathBuf,
    /// Permissions, if the socket exists.
    pub mode: Option<u32>,
    pub group: Option<String>,
    pub permitted: bool,
}

impl Facts {
    /// Gathers facts for a daemon with this configuration and a client with this socket.
    pub fn gather(
        probe: &Probe,
        config: Result<Config, String>,
        socket: &Path,
        loaded: Option<String>,
    ) -> Self {
        let need = config.as_ref().ok().filter(|config| !config.model.is_empty());
        Self {
            state: probe.state(),
            processor: Cpu::detect().info().description,
            users: probe.gpu_users(&[std::process::id()]),
            nodes: NODES.iter().map(|path| node(path, &probe.root().path(path))).collect(),
            need: need.map(need_of),
            disk: config.as_ref().ok().and_then(|config| disk(&config.models_dir)),
            tuned: Vec::new(),
            socket: self::socket(socket),
            light: match &config {
                Ok(config) => bring_up::read(&config.state_dir).map_err(|error| error.to_string()),
                Err(_) => Ok(Book::default()),
            },
            left: Vec::new(),
            fault: config.as_ref().map_or(Ok(None), |config| fault(&config.state_dir)),
            config,
            loaded,
        }
    }

    /// Checks the stored tuning choices against the kernels of this machine's devices, which
    /// `kernels` returns.
    pub fn check_tuning(&mut self, kernels: &dyn Fn(&DeviceKey) -> Option<Box<dyn Declared>>) {
        let Ok(config) = &self.config else { return };
        let listed = Store::new(&config.tune_dir).list().unwrap_or_default();
        let held = listed.into_iter().filter_map(|file| {
            let content = file.content.ok()?;
            let entries = kernels(&content.key).map(|kernels| {
                let hold = |state: &store::State| *state == store::State::Current;
                let states: Vec<store::State> = content
                    .records
                    .iter()
                    .map(|record| store::state(record, record.cost.clock(), &*kernels))
                    .collect();
                let current = states.iter().filter(|state| hold(state)).count();
                (current, states.len() - current)
            });
            Some(Tuned { device: content.key.stem(), entries })
        });
        self.tuned = held.collect();
    }
}

fn fault(state: &Path) -> Result<Option<Fault>, String> {
    let directory = Directory::of_state(state);
    let located = |error| format!("{}: {error}", directory.path().display());
    let mut kept = directory.list().map_err(located)?;
    let count = kept.len();
    Ok(kept.pop().map(|file| {
        let header = Header::read(&file).map(Box::new).map_err(|error| error.to_string());
        Fault { file, kept: count, header }
    }))
}

fn node(name: &str, path: &Path) -> Node {
    let meta = fs::metadata(path).ok();
    Node {
        path: name.to_owned(),
        exists: meta.is_some(),
        permitted: access(path, AccessFlags::R_OK | AccessFlags::W_OK).is_ok(),
        group: meta.map(|meta| group(meta.gid())),
    }
}

fn group(gid: u32) -> String {
    let known = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    known.map_or_else(|| gid.to_string(), |group| group.name)
}

fn need_of(config: &Config) -> Result<Need, String> {
    let name = synthetic::resolve(&config.model, &config.models_dir);
    let path = if synthetic::is_synthetic(&name) {
        let spec = synthetic::Spec::parse(&name).map_err(|error| error.to_string())?;
        let cached = synthetic::default_cache_dir().join(spec.file_name());
        if !cached.is_file() {
            return Err(format!("{name} does not exist yet; it is created on the first load"));
        }
        cached
    } else {
        name.into()
    };
    let model = Model::open(&path).map_err(|error| error.to_string())?;
    let model = model.with_cache_type(config.kv_type.into()).map_err(|error| error.to_string())?;
    let trained = model.hyperparameters().context;
    let context = match config.context {
        0 => trained.min(DEFAULT_CONTEXT),
        context => context,
    };
    let ring = Some(config.prefill_chunk.min(context));
    let kv = model.state_bytes(KvLayout { slots: config.slots, context, ring });
    let kv = kv.ok_or("the size of the KV cache overflows")?;
    Ok(Need { weights: model.weight_bytes(), kv })
}

/// File system of a directory, or of its nearest existing parent.
fn disk(directory: &Path) -> Option<Disk> {
    let existing = directory.ancestors().find(|path| path.is_dir())?;
    let system = statvfs(existing).ok()?;
    let free = system.blocks_available().saturating_mul(system.fragment_size());
    Some(Disk { directory: directory.to_owned(), free })
}

fn socket(path: &Path) -> Socket {
    let meta = fs::metadata(path).ok().filter(|meta| meta.file_type().is_socket());
    Socket {
        path: path.to_owned(),
        mode: meta.as_ref().map(|meta| meta.permissions().mode() & 0o777),
        group: meta.map(|meta| group(meta.gid())),
        permitted: access(path, AccessFlags::W_OK).is_ok(),
    }
}

/// Returns whether this process runs as root.
pub(super) fn is_root() -> bool {
    Uid::effective().is_root()
}
