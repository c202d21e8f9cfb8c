//! Default paths of the daemon and its clients, from the environment.

use std::env;
use std::path::{Path, PathBuf};

/// Default socket of daemon and client: `$ORIND_SOCKET`; `/run/orind/orind.sock` for the service
/// and root; `orind.sock` in the user's run-time directory.
pub fn default_socket() -> PathBuf {
    if let Some(socket) = variable("ORIND_SOCKET") {
        return socket;
    }
    if let Some(directory) = service_directory("RUNTIME_DIRECTORY") {
        return directory.join("orind.sock");
    }
    let user = nix::unistd::Uid::effective();
    if user.is_root() {
        return SERVICE_SOCKET.into();
    }
    let system = || Some(PathBuf::from(format!("/run/user/{user}"))).filter(|dir| dir.is_dir());
    variable("XDG_RUNTIME_DIR").or_else(system).unwrap_or_else(fallback_folder).join("orind.sock")
}

/// Folder of [`default_socket`] for a user without a run-time directory. Another user may have
/// created it.
pub fn fallback_folder() -> PathBuf {
    format!("/tmp/orind-{}", nix::unistd::Uid::effective()).into()
}

/// Socket of a client: [`default_socket`], or the service's if only that one exists.
pub fn client_socket() -> PathBuf {
    let own = default_socket();
    let service = PathBuf::from(SERVICE_SOCKET);
    if variable("ORIND_SOCKET").is_none() && !own.exists() && service.exists() {
        return service;
    }
    own
}

const SERVICE_SOCKET: &str = "/run/orind/orind.sock";

/// Default models directory: `/var/lib/orind/models` for the service and root, else `orind/models`
/// in the user's data directory.
pub(super) fn default_models_dir() -> PathBuf {
    if let Some(directory) = service_directory("STATE_DIRECTORY") {
        return directory.join("models");
    }
    let base = if nix::unistd::Uid::effective().is_root() { None } else { data_dir() };
    base.unwrap_or_else(|| SERVICE_DATA.into()).join("models")
}

/// Default state directory: `$STATE_DIRECTORY` (set by systemd for the service), the user's data
/// directory, or the service's for root.
pub(super) fn default_state_dir() -> PathBuf {
    let state = service_directory("STATE_DIRECTORY");
    let root = nix::unistd::Uid::effective().is_root() && variable("XDG_DATA_HOME").is_none();
    let own = || if root { None } else { data_dir() };
    state.or_else(own).unwrap_or_else(|| SERVICE_DATA.into())
}

/// State directory of a client: the default, or the service's if only that one has the `file`.
pub fn client_state_dir(file: &str) -> PathBuf {
    let own = default_state_dir();
    let service = Path::new(SERVICE_DATA);
    if !own.join(file).exists() && service.join(file).exists() { service.into() } else { own }
}

/// Default prefix cache: `prefixes` in `$CACHE_DIRECTORY` (set by systemd for the service), in the
/// service's directory for root, else in the user's cache directory.
pub(super) fn default_prefix_cache_dir() -> PathBuf {
    let own = || {
        let home = || variable("HOME").map(|home| home.join(".cache"));
        variable("XDG_CACHE_HOME").or_else(home).map(|cache| cache.join("orind"))
    };
    let root = nix::unistd::Uid::effective().is_root();
    service_directory("CACHE_DIRECTORY")
        .or_else(|| if root { None } else { own() })
        .unwrap_or_else(|| SERVICE_CACHE.into())
        .join("prefixes")
}

/// Subdirectory of the tuning directory with kernels that were compiled on this machine.
pub const COMPILED: &str = "compiled";

/// Default tuning directory.
pub fn default_tune_dir() -> PathBuf {
    default_state_dir().join("tune")
}

/// Tuning directory of a client: [`default_tune_dir`], or the service's if only that one exists.
pub fn client_tune_dir() -> PathBuf {
    let own = default_tune_dir();
    let service = Path::new(SERVICE_DATA).join("tune");
    if !own.exists() && service.exists() { service } else { own }
}

/// `orind` in the user's data directory.
fn data_dir() -> Option<PathBuf> {
    let home = || variable("HOME").map(|home| home.join(".local/share"));
    variable("XDG_DATA_HOME").or_else(home).map(|data| data.join("orind"))
}

const SERVICE_DATA: &str = "/var/lib/orind";
const SERVICE_CACHE: &str = "/var/cache/orind";

/// Returns the directory that systemd created for this service; the first if there are several.
fn service_directory(name: &str) -> Option<PathBuf> {
    let list = env::var(name).ok()?;
    list.split(':').next().map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Returns an absolute path from the environment.
fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
