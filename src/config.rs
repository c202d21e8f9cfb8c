//! The daemon's configuration: one TOML file, one struct, every default in one place.
//!
//! `docs/configuration.md` describes every key; a test holds the two together.

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::de::DeTable;

/// Settings of the daemon. A key that a file leaves out has the value of [`Config::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Unix socket to listen on.
    pub socket: PathBuf,
    /// Permissions of the socket.
    pub socket_mode: SocketMode,
    /// Address and port to listen on as well, such as `127.0.0.1:8080`; empty: none.
    pub listen: String,
    /// File of the token that clients of the port must show; empty: none.
    pub token_file: PathBuf,
    /// Model to load at start: a GGUF file, `synthetic:NAME`, or nothing.
    pub model: String,
    /// Directory of models that can be loaded by name.
    pub models_dir: PathBuf,
    /// Device: one of [`BACKENDS`].
    pub backend: String,
    /// Worker threads; 0 takes the cores allowed.
    pub threads: usize,
    /// Instruction set of the CPU device: `auto`, or one that the machine has.
    pub cpu_isa: String,
    /// Sequences served at once.
    pub slots: usize,
    /// Tokens a slot holds; 0 takes the model's own, at most 4096.
    pub context: usize,
    /// Rows of one prefill chunk.
    pub prefill_chunk: usize,
    /// Whether what tuning found is used, and whether it is looked for.
    pub tune: Tune,
    /// Directory in which that is remembered.
    pub tune_dir: PathBuf,
    /// Requests that may wait for a slot.
    pub queue_limit: usize,
    /// Connections served at once.
    pub max_connections: usize,
    /// Bytes of a request's body at most.
    pub max_body_bytes: usize,
    /// Seconds a client may take to send a request's head, and again for its body; also how long
    /// an idle connection is kept.
    pub request_timeout_s: u64,
    /// Seconds that requests in flight get to finish when the daemon stops.
    pub shutdown_deadline_s: u64,
    /// Whether the daemon limits its own ioctls.
    pub ioctl_filter: IoctlFilter,
    /// What is logged: a level, or directives as `RUST_LOG` has them.
    pub log: String,
    pub log_format: LogFormat,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: default_socket(),
            socket_mode: SocketMode(0o660),
            listen: String::new(),
            token_file: PathBuf::new(),
            model: String::new(),
            models_dir: default_models_dir(),
            backend: "auto".into(),
            threads: 0,
            cpu_isa: "auto".into(),
            slots: 4,
            context: 0,
            prefill_chunk: 256,
            tune: Tune::Load,
            tune_dir: default_tune_dir(),
            queue_limit: 64,
            max_connections: 256,
            max_body_bytes: 8 << 20,
            request_timeout_s: 30,
            shutdown_deadline_s: 10,
            ioctl_filter: IoctlFilter::Auto,
            log: "info".into(),
            log_format: LogFormat::Text,
        }
    }
}

/// Values of `backend`.
pub const BACKENDS: [&str; 5] = ["auto", "nv", "cuda", "cpu", "reference"];

/// Values of `cpu_isa`. Which of them a machine has is found out when a model is loaded.
pub const CPU_ISAS: [&str; 5] = ["auto", "avx512", "avx2", "neon", "scalar"];

/// Permission bits of the socket, written as in `chmod`: `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(pub u32);

impl TryFrom<String> for SocketMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match u32::from_str_radix(&text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(format!("`{text}` is not a mode in octal digits, such as \"0660\"")),
        }
    }
}

impl From<SocketMode> for String {
    fn from(mode: SocketMode) -> Self {
        mode.to_string()
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// Whether the daemon installs its filter of ioctl requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoctlFilter {
    /// Unless models run through CUDA.
    Auto,
    /// Always; the start fails where there can be none.
    On,
    Off,
}

impl FromStr for IoctlFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err("allowed are auto, on, off".into()),
        }
    }
}

/// Shape of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    /// One JSON object per line.
    Json,
}

/// What is done with tuned choices of kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tune {
    /// Nothing: every kernel runs as its heuristic says.
    Off,
    /// Those that are remembered are used.
    #[default]
    Load,
    /// As `load`; and while nothing is asked of the daemon it looks for better ones.
    Auto,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A key that does not exist.
    #[error("{place}: unknown key `{key}`{}", nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownKey { place: String, key: String, nearest: Option<&'static str> },
    /// Not TOML, or a value of the wrong type.
    #[error("{place}: {reason}")]
    Invalid {
        /// File, line, and the key if one is at fault.
        place: String,
        reason: String,
    },
    /// A value out of its range.
    #[error("{key} is {value}; {allowed}")]
    Range { key: &'static str, value: String, allowed: String },
}

impl Config {
    /// Reads a file. Values are not yet checked: flags may override them; then call
    /// [`Self::check`].
    ///
    /// # Errors
    /// [`Error`] with file and line.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads TOML; `origin` names it in errors.
    ///
    /// # Errors
    /// [`Error`] with `origin` and line.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Error> {
        let place = |at: usize| {
            let line = 1 + text.bytes().take(at).filter(|&b| b == b'\n').count();
            format!("{origin}:{line}")
        };
        let refuse = |key: Option<&str>, error: &toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            let place = place(start);
            let place = key.map_or_else(|| place.clone(), |key| format!("{place}: {key}"));
            Error::Invalid { place, reason: error.message().to_owned() }
        };
        let table = DeTable::parse(text).map_err(|e| refuse(None, &e))?;
        for key in table.get_ref().keys() {
            let name: &str = key.get_ref();
            if !KEYS.contains(&name) {
                let nearest = nearest(name);
                let place = place(key.span().start);
                return Err(Error::UnknownKey { place, key: name.to_owned(), nearest });
            }
        }
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let key = table.get_ref().iter().find(|(_, value)| value.span().contains(&at));
            refuse(key.map(|(key, _)| key.get_ref().as_ref()), &error)
        })
    }

    /// Checks every value's range.
    ///
    /// # Errors
    /// [`Error::Range`] with key, value and limits.
    pub fn check(&self) -> Result<(), Error> {
        let range = |key, value: usize, allowed: RangeInclusive<usize>| {
            if allowed.contains(&value) {
                return Ok(());
            }
            let allowed = format!("{} to {} are allowed", allowed.start(), allowed.end());
            Err(Error::Range { key, value: value.to_string(), allowed })
        };
        let one_of = |key, value: &str, allowed: &[&str]| {
            if allowed.contains(&value) {
                return Ok(());
            }
            let allowed = format!("allowed are {}", allowed.join(", "));
            Err(Error::Range { key, value: format!("`{value}`"), allowed })
        };
        let seconds = |key, value: u64, allowed: RangeInclusive<usize>| {
            range(key, usize::try_from(value).unwrap_or(usize::MAX), allowed)
        };
        if self.socket.as_os_str().is_empty() {
            let allowed = "a path is needed".into();
            return Err(Error::Range { key: "socket", value: "empty".into(), allowed });
        }
        self.port()?;
        one_of("backend", &self.backend, &BACKENDS)?;
        if self.tune != Tune::Off && !self.tune_dir.is_absolute() {
            let value = format!("`{}`", self.tune_dir.display());
            let allowed = "an absolute path is needed, or tune = \"off\"".into();
            return Err(Error::Range { key: "tune_dir", value, allowed });
        }
        range("threads", self.threads, 0..=1024)?;
        one_of("cpu_isa", &self.cpu_isa, &CPU_ISAS)?;
        range("slots", self.slots, 1..=256)?;
        range("context", self.context, 0..=16 << 20)?;
        range("prefill_chunk", self.prefill_chunk, 1..=8192)?;
        range("queue_limit", self.queue_limit, 0..=65_536)?;
        range("max_connections", self.max_connections, 1..=65_536)?;
        range("max_body_bytes", self.max_body_bytes, 1024..=1 << 30)?;
        seconds("request_timeout_s", self.request_timeout_s, 1..=86_400)?;
        seconds("shutdown_deadline_s", self.shutdown_deadline_s, 0..=3600)?;
        if self.ioctl_filter == IoctlFilter::On && self.backend == "cuda" {
            let allowed =
                "the CUDA driver's requests are not known: `off` or `auto` with the backend `cuda`";
            let (value, allowed) = ("`on`".into(), allowed.into());
            return Err(Error::Range { key: "ioctl_filter", value, allowed });
        }
        tracing_subscriber::EnvFilter::builder().parse(&self.log).map_err(|error| {
            let allowed = format!("{error}; a level is error, warn, info, debug or trace");
            Error::Range { key: "log", value: format!("`{}`", self.log), allowed }
        })?;
        Ok(())
    }

    /// The file or name that a model's name stands for: `synthetic:NAME` and paths as they are, a
    /// bare name is looked up in `models_dir`, with `.gguf` added where that finds a file.
    #[must_use]
    pub fn resolve_model(&self, name: &str) -> String {
        if name.starts_with("synthetic:") || name.contains('/') {
            return name.to_owned();
        }
        [name.to_owned(), format!("{name}.gguf")]
            .iter()
            .map(|file| self.models_dir.join(file))
            .find(|path| path.is_file())
            .map_or_else(|| name.to_owned(), |path| path.display().to_string())
    }

    /// The address of [`Self::listen`], if there is one.
    ///
    /// # Errors
    /// [`Error::Range`] when it is not an address, or off loopback and without a token.
    pub fn port(&self) -> Result<Option<SocketAddr>, Error> {
        if self.listen.is_empty() {
            return Ok(None);
        }
        let refuse = |allowed: &str| {
            let value = format!("`{}`", self.listen);
            Error::Range { key: "listen", value, allowed: allowed.into() }
        };
        let address: SocketAddr = self
            .listen
            .parse()
            .map_err(|_| refuse("an address and a port are needed, such as 127.0.0.1:8080"))?;
        if !address.ip().is_loopback() && self.token_file.as_os_str().is_empty() {
            return Err(refuse("other machines may reach it, so a token_file is needed"));
        }
        Ok(Some(address))
    }

    /// What differs in `new`, and when it would take effect.
    #[must_use]
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let (old, new) = (self.table(), new.table());
        let shown =
            |value: Option<&toml::Value>| value.map(ToString::to_string).unwrap_or_default();
        KEYS.into_iter()
            .filter(|key| old.get(*key) != new.get(*key))
            .map(|key| Change {
                key,
                from: shown(old.get(key)),
                to: shown(new.get(key)),
                effect: Effect::of(key),
            })
            .collect()
    }

    /// `new`, but for what cannot change while the daemon runs.
    #[must_use]
    pub fn reloaded(&self, new: Self) -> Self {
        let (old, mut table) = (self.table(), new.table());
        for key in AT_RESTART {
            if let Some(value) = old.get(key) {
                table.insert(key.to_owned(), value.clone());
            }
        }
        // Made of two configurations, so it is one.
        table.try_into().unwrap_or(new)
    }

    /// Keys and values.
    fn table(&self) -> toml::Table {
        toml::Table::try_from(self).unwrap_or_default()
    }

    /// [`Self::request_timeout_s`].
    #[must_use]
    pub const fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.request_timeout_s)
    }

    /// [`Self::shutdown_deadline_s`].
    #[must_use]
    pub const fn shutdown_deadline(&self) -> Duration {
        Duration::from_secs(self.shutdown_deadline_s)
    }
}

/// Every key.
pub const KEYS: [&str; 22] = [
    "socket",
    "socket_mode",
    "listen",
    "token_file",
    "model",
    "models_dir",
    "backend",
    "threads",
    "cpu_isa",
    "slots",
    "context",
    "prefill_chunk",
    "tune",
    "tune_dir",
    "queue_limit",
    "max_connections",
    "max_body_bytes",
    "request_timeout_s",
    "shutdown_deadline_s",
    "ioctl_filter",
    "log",
    "log_format",
];

/// Keys that only a restart changes.
const AT_RESTART: [&str; 7] =
    ["socket", "socket_mode", "listen", "token_file", "model", "ioctl_filter", "log_format"];

/// Keys that are what a load asks for when the request for it says nothing else.
const AT_LOAD: [&str; 8] =
    ["backend", "threads", "cpu_isa", "slots", "context", "prefill_chunk", "tune", "tune_dir"];

/// When a changed key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Now,
    /// When the next model is loaded.
    NextLoad,
    /// When the daemon is started again.
    Restart,
}

impl Effect {
    fn of(key: &str) -> Self {
        if AT_RESTART.contains(&key) {
            Self::Restart
        } else if AT_LOAD.contains(&key) {
            Self::NextLoad
        } else {
            Self::Now
        }
    }
}

/// A key whose value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: &'static str,
    /// Its value until now, as TOML.
    pub from: String,
    /// Its value in the file.
    pub to: String,
    /// When it would take effect.
    pub effect: Effect,
}

/// The key that a misspelt one most likely means.
fn nearest(key: &str) -> Option<&'static str> {
    let alike = |known: &str| strsim::jaro_winkler(known, &key.to_lowercase());
    KEYS.into_iter()
        .max_by(|a, b| alike(a).total_cmp(&alike(b)))
        .filter(|known| alike(known) > 0.75)
}

/// The socket that the daemon and its client use when none is named: `$ORIND_SOCKET`; the service's
/// `/run/orind/orind.sock` for the service and for root; `orind.sock` in the user's run-time directory.
#[must_use]
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
    variable("XDG_RUNTIME_DIR")
        .or_else(system)
        .unwrap_or_else(|| format!("/tmp/orind-{user}").into())
        .join("orind.sock")
}

/// The socket for a client: [`default_socket`], or the service's when only that one exists.
#[must_use]
pub fn client_socket() -> PathBuf {
    let own = default_socket();
    let service = PathBuf::from(SERVICE_SOCKET);
    if variable("ORIND_SOCKET").is_none() && !own.exists() && service.exists() {
        return service;
    }
    own
}

const SERVICE_SOCKET: &str = "/run/orind/orind.sock";

/// `/var/lib/orind/models` for the service and for root, `orind/models` in the user's data directory
/// otherwise.
fn default_models_dir() -> PathBuf {
    if let Some(directory) = service_directory("STATE_DIRECTORY") {
        return directory.join("models");
    }
    let base = if nix::unistd::Uid::effective().is_root() { None } else { data_dir() };
    base.unwrap_or_else(|| SERVICE_DATA.into()).join("models")
}

/// Where tuned choices are remembered when nothing else is said: `tune` in `$STATE_DIRECTORY`, which
/// systemd sets for the service; in the user's data directory; in the service's where root has none.
#[must_use]
pub fn default_tune_dir() -> PathBuf {
    let state = service_directory("STATE_DIRECTORY");
    let root = nix::unistd::Uid::effective().is_root() && variable("XDG_DATA_HOME").is_none();
    let own = || if root { None } else { data_dir() };
    state.or_else(own).unwrap_or_else(|| SERVICE_DATA.into()).join("tune")
}

/// The directory of tuned choices for a client: [`default_tune_dir`], or the service's when only
/// that one exists.
#[must_use]
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

/// The directory that systemd has made for this service, the first when there are several.
fn service_directory(name: &str) -> Option<PathBuf> {
    let list = env::var(name).ok()?;
    list.split(':').next().map(PathBuf::from).filter(|path| path.is_absolute())
}

/// An absolute path from the environment.
fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Config::parse(text, "orind.toml").unwrap_err().to_string()
    }

    #[test]
    fn the_list_of_keys_is_the_struct() {
        let keys: Vec<String> = Config::default().table().keys().cloned().collect();
        let mut known = KEYS.to_vec();
        known.sort_unstable();
        let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, known);
    }

    #[test]
    fn defaults_are_within_their_own_limits() {
        Config::default().check().unwrap();
        assert_eq!(Config::parse("", "x").unwrap(), Config::default());
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_the_nearest_name() {
        assert_eq!(
            refused("slots = 2\n\n# more\nprefil_chunk = 8\n"),
            "orind.toml:4: unknown key `prefil_chunk`; did you mean `prefill_chunk`?"
        );
        assert_eq!(
            refused("queue-limit = 2"),
            "orind.toml:1: unknown key `queue-limit`; did you mean `queue_limit`?"
        );
        assert_eq!(
            refused("Model = 'x'"),
            "orind.toml:1: unknown key `Model`; did you mean `model`?"
        );
        assert_eq!(refused("[zzz]\na = 1"), "orind.toml:1: unknown key `zzz`");
    }

    #[test]
    fn wrong_types_and_syntax_name_key_and_line() {
        let message = refused("model = 'a'\nslots = 'two'\n");
        assert!(message.starts_with("orind.toml:2: slots: "), "{message}");
        let message = refused("slots = -1\n");
        assert!(message.starts_with("orind.toml:1: slots: "), "{message}");
        let message = refused("model = 'a'\nslots = \n");
        assert!(message.starts_with("orind.toml:2: "), "{message}");
        let message = refused("slots = 1\nslots = 2\n");
        assert!(
            message.starts_with("orind.toml:2: ") && message.contains("duplicate"),
            "{message}"
        );
        let message = refused("socket_mode = '0999'");
        assert!(message.contains("socket_mode") && message.contains("octal"), "{message}");
        let message = refused("log_format = 'xml'");
        assert!(message.contains("log_format") && message.contains("json"), "{message}");
    }

    #[test]
    fn a_value_out_of_range_names_key_value_and_limits() {
        let check = |text: &str| Config::parse(text, "x").unwrap().check().unwrap_err().to_string();
        assert_eq!(check("slots = 0"), "slots is 0; 1 to 256 are allowed");
        assert_eq!(
            check("max_body_bytes = 10"),
            "max_body_bytes is 10; 1024 to 1073741824 are allowed"
        );
        assert_eq!(
            check("backend = 'tpu'"),
            "backend is `tpu`; allowed are auto, nv, cuda, cpu, reference"
        );
        assert_eq!(check("socket = ''"), "socket is empty; a path is needed");
        assert_eq!(
            check("tune_dir = 'tune'"),
            "tune_dir is `tune`; an absolute path is needed, or tune = \"off\""
        );
        assert_eq!(
            check("listen = 'localhost'"),
            "listen is `localhost`; an address and a port are needed, such as 127.0.0.1:8080"
        );
        for far in ["0.0.0.0:80", "[::]:80", "192.168.7.1:80"] {
            let refused = check(&format!("listen = '{far}'"));
            assert!(refused.ends_with("so a token_file is needed"), "{refused}");
            let text = format!("listen = '{far}'\ntoken_file = '/t'");
            Config::parse(&text, "x").unwrap().check().unwrap();
        }
        assert!(check("log = 'loud=loudest'").starts_with("log is `loud=loudest`; "));
    }

    /// The table in `docs/configuration.md` has every key, with its default.
    #[test]
    fn the_documentation_has_every_key_and_its_default() {
        let text = include_str!("../docs/configuration.md");
        let rows: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
                let key = cells.next()?.strip_suffix('`')?;
                Some((key, cells.next()?.trim_matches('`')))
            })
            .collect();
        let keys: Vec<&str> = rows.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, KEYS);
        let defaults = Config::default().table();
        for (key, value) in rows {
            if value != "see below" {
                assert_eq!(value, defaults[key].to_string(), "{key}");
            }
        }
    }

    /// `docs/orind.toml` shows every key in a comment, each with its default.
    #[test]
    fn the_example_is_the_default() {
        let example = include_str!("../docs/orind.toml");
        assert_eq!(Config::parse(example, "docs/orind.toml").unwrap(), Config::default());
        let shown = example.lines().filter_map(|line| line.strip_prefix("#"));
        let shown: Vec<&str> = shown.filter(|line| !line.starts_with(' ')).collect();
        let keys: Vec<&str> =
            shown.iter().filter_map(|line| Some(line.split_once(" =")?.0)).collect();
        assert_eq!(keys, KEYS);
        let config = Config::parse(&shown.join("\n"), "docs/orind.toml").unwrap();
        let paths = Config::default();
        let Config { socket, models_dir, tune_dir, .. } = paths;
        let config = Config { socket, models_dir, tune_dir, ..config };
        assert_eq!(config, Config::default());
    }

    /// The lists of `docs/configuration.md`, and what a reload does.
    #[test]
    fn a_reload_changes_what_the_documentation_says() {
        let text = include_str!("../docs/configuration.md");
        for (marker, keys) in
            [("from the next load on: ", &AT_LOAD[..]), ("with a restart only: ", &AT_RESTART[..])]
        {
            let (_, rest) = text.split_once(marker).unwrap();
            let (list, _) = rest.split_once('.').unwrap();
            let listed: Vec<&str> =
                list.split(',').map(|key| key.trim().trim_matches('`')).collect();
            assert_eq!(listed, keys);
            assert!(keys.iter().all(|key| KEYS.contains(key)));
        }
        let old = Config::default();
        let new = Config { slots: 9, queue_limit: 1, socket: "/x".into(), ..old.clone() };
        let effects: Vec<_> = old.changes(&new).into_iter().map(|c| (c.key, c.effect)).collect();
        assert_eq!(
            effects,
            [
                ("socket", Effect::Restart),
                ("slots", Effect::NextLoad),
                ("queue_limit", Effect::Now)
            ]
        );
        let now = old.reloaded(new.clone());
        assert_eq!(now, Config { socket: old.socket.clone(), ..new });
        assert!(now.changes(&now).is_empty());
    }

    proptest::proptest! {
        /// Whatever a file holds, it is a configuration or an error with a line.
        #[test]
        fn any_text_is_answered(text in "[a-z_=\\[\\]'\"0-9#\\n .-]{0,80}") {
            if let Err(error) = Config::parse(&text, "f") {
                proptest::prop_assert!(error.to_string().starts_with("f:"), "{error}");
            }
        }
    }

    #[test]
    fn a_bare_model_name_is_looked_up_in_the_models_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.gguf");
        fs::write(&file, b"").unwrap();
        let config = Config { models_dir: dir.path().to_owned(), ..Config::default() };
        let found = file.display().to_string();
        assert_eq!(config.resolve_model("a"), found);
        assert_eq!(config.resolve_model("a.gguf"), found);
        for same in ["b", "./a", "/x/a.gguf", "synthetic:a"] {
            assert_eq!(config.resolve_model(same), same);
        }
    }
}
