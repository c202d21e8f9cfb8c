//! The daemon's configuration: one TOML file, one struct, every default in one place.
//!
//! `docs/configuration.md` describes every key; a test holds the two together.

use std::collections::{BTreeMap, BTreeSet};
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

use errors::invalid;
use model::synthetic;

/// Settings of the daemon. A key that a file leaves out has the value of [`Config::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub socket: PathBuf,
    pub socket_mode: SocketMode,
    /// Address and port to listen on as well, such as `127.0.0.1:8080`; empty: none.
    pub listen: String,
    /// File of the token that clients of the port must show; empty: none.
    pub token_file: PathBuf,
    /// Model to load at start: a GGUF file, `synthetic:NAME`, or nothing.
    pub model: String,
    pub models_dir: PathBuf,
    /// Device: one of [`BACKENDS`].
    pub backend: String,
    /// How an Orin's GPU is used at most.
    pub gpu_mode: GpuMode,
    /// Memory that a model leaves to the rest of the system, where its device shares that.
    pub memory_reserve_mib: u64,
    /// Worker threads; 0 takes the cores allowed.
    pub threads: usize,
    /// Instruction set of the CPU device: `auto`, or one that the machine has.
    pub cpu_isa: String,
    pub slots: usize,
    /// Tokens a slot holds; 0 takes the model's own, at most 4096.
    pub context: usize,
    /// Rows of one prefill chunk.
    pub prefill_chunk: usize,
    /// The most tokens that are guessed; 0 for none.
    pub draft_tokens: usize,
    /// Model that guesses what the served one will say, or nothing.
    pub draft_model: String,
    /// LoRA adapters beside the model, each `PATH` or `PATH=SCALE`.
    pub lora: Vec<String>,
    /// Milliseconds that a chunk may hold up those who decode; 0 for no bound.
    pub stall_ms: u64,
    /// What keys and values are stored in: one of [`KV_TYPES`].
    pub kv_type: String,
    /// What GPUs multiply prompts in: in attention, and where weights are F16 or BF16.
    pub prompt_precision: PromptPrecision,
    /// MiB of disk for beginnings of conversations; 0 for none.
    pub prefix_cache_mib: u64,
    /// Directory of these.
    pub prefix_cache_dir: PathBuf,
    /// Whether what tuning found is used, and whether it is looked for.
    pub tune: Tune,
    pub tune_dir: PathBuf,
    /// Directory of what the daemon remembers of the machine.
    pub state_dir: PathBuf,
    pub queue_limit: usize,
    pub max_connections: usize,
    /// Bytes of a request's body at most.
    pub max_body_bytes: usize,
    /// Seconds a client may take to send a request's head, and again for its body, and that one may be idle.
    pub request_timeout_s: u64,
    /// Seconds that requests in flight get to finish when the daemon stops.
    pub shutdown_deadline_s: u64,
    pub ioctl_filter: IoctlFilter,
    /// What is logged: a level, or directives as `RUST_LOG` has them.
    pub log: String,
    pub log_format: LogFormat,
    /// Models beside [`Self::model`].
    pub resident: Vec<Resident>,
    /// Control loops beside the model.
    pub lane: Vec<Lane>,
}

/// A model beside the first one, which requests call by its name. What it leaves out is as for that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resident {
    /// A GGUF file, a name in the models directory, or `synthetic:NAME`.
    pub model: String,
    /// What requests call it, where that is not the file's stem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it is loaded.
    #[serde(default)]
    pub load: LoadAt,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_chunk: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_type: Option<String>,
}

/// When a model beside the first one is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadAt {
    /// With the daemon's start; it stays.
    Start,
    /// With the first request for it; it goes where another such model needs its memory.
    #[default]
    Request,
}

impl Resident {
    /// What requests call it.
    #[must_use]
    pub fn id(&self, models_dir: &Path) -> String {
        let id = || synthetic::id_of(&self.model, models_dir);
        self.name.clone().unwrap_or_else(id)
    }

    /// Checks its values.
    fn check(&self) -> Result<(), Error> {
        if self.model.is_empty() {
            return Err(Error::range("resident.model", "empty", "a model is needed"));
        }
        let shown = invalid::shown(&self.model);
        let place = |value: String| format!("{value} in resident `{shown}`");
        if let Some(name) = &self.name {
            check_name(name).map_err(|allowed| {
                let value = place(format!("`{}`", invalid::shown(name)));
                Error::range("resident.name", value, allowed)
            })?;
        }
        let one_of = |key, value: Option<&String>, possible: &[&str]| match value {
            Some(value) if !possible.contains(&value.as_str()) => {
                let allowed = format!("allowed are {}", possible.join(", "));
                Err(Error::range(key, place(format!("`{}`", invalid::shown(value))), allowed))
            }
            _ => Ok(()),
        };
        one_of("resident.backend", self.backend.as_ref(), &BACKENDS)?;
        one_of("resident.kv_type", self.kv_type.as_ref(), &KV_TYPES)?;
        let count = |own: &'static str, value: Option<usize>| {
            let key = own.split_once('.').map_or(own, |(_, key)| key);
            match (value.map(|value| value as u64), allowed(key)) {
                (Some(value), Some(allowed)) if !allowed.contains(&value) => {
                    let allowed = format!("{} to {} are allowed", allowed.start(), allowed.end());
                    Err(Error::range(own, place(value.to_string()), allowed))
                }
                _ => Ok(()),
            }
        };
        count("resident.threads", self.threads)?;
        count("resident.slots", self.slots)?;
        count("resident.context", self.context)?;
        count("resident.prefill_chunk", self.prefill_chunk)
    }
}

/// Why a text is no name of a lane or a model.
fn check_name(name: &str) -> Result<(), &'static str> {
    let named = !name.is_empty() && name.len() <= 64;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match named && name.chars().all(plain) {
        true => Ok(()),
        false => Err("1 to 64 letters, digits, `-`, `_` and `.` are allowed"),
    }
}

/// A control loop beside the model: a network that a client starts at a rate, through shared memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    pub name: String,
    /// ONNX file: a path, or a name in the models directory.
    pub network: String,
    /// Steps a second that a client starts.
    #[serde(default = "Lane::default_rate")]
    pub rate_hz: u32,
    /// Microseconds from a start to its answer; 0 for a period.
    #[serde(default)]
    pub deadline_us: u32,
    /// Device: one of [`BACKENDS`] but `auto`.
    #[serde(default = "Lane::default_backend")]
    pub backend: String,
    /// Core that its thread stays on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<usize>,
    /// Real-time priority of its thread; 0 for none.
    #[serde(default)]
    pub priority: u8,
    /// Microseconds that its thread looks for the next start before it sleeps.
    #[serde(default)]
    pub spin_us: u32,
    /// Shapes of inputs whose extents the file leaves open.
    #[serde(default)]
    pub shapes: BTreeMap<String, Vec<usize>>,
}

impl Lane {
    const fn default_rate() -> u32 {
        1000
    }

    fn default_backend() -> String {
        "cpu".into()
    }

    /// [`Self::deadline_us`], or the period.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        match self.deadline_us {
            0 => Duration::from_secs(1) / self.rate_hz.max(1),
            us => Duration::from_micros(us.into()),
        }
    }

    /// Checks its values.
    fn check(&self) -> Result<(), Error> {
        check_name(&self.name).map_err(|allowed| {
            Error::range("lane.name", format!("`{}`", invalid::shown(&self.name)), allowed)
        })?;
        let refuse = |key, value: String, allowed: &str| {
            Err(Error::range(key, format!("{value} in lane `{}`", self.name), allowed))
        };
        if self.network.is_empty() {
            return refuse("lane.network", "empty".into(), "an ONNX file is needed");
        }
        if !(1..=100_000).contains(&self.rate_hz) {
            return refuse("lane.rate_hz", self.rate_hz.to_string(), "1 to 100000 are allowed");
        }
        if self.deadline_us > 60_000_000 {
            let allowed = "0 to 60000000 are allowed";
            return refuse("lane.deadline_us", self.deadline_us.to_string(), allowed);
        }
        if self.backend == "auto" || !BACKENDS.contains(&self.backend.as_str()) {
            let value = format!("`{}`", invalid::shown(&self.backend));
            let allowed = format!("allowed are {}", BACKENDS[1..].join(", "));
            return refuse("lane.backend", value, &allowed);
        }
        if self.spin_us > 1_000_000 {
            let allowed = "0 to 1000000 are allowed";
            return refuse("lane.spin_us", self.spin_us.to_string(), allowed);
        }
        if self.priority > 99 {
            return refuse("lane.priority", self.priority.to_string(), "0 to 99 are allowed");
        }
        Ok(())
    }
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
            gpu_mode: GpuMode::Auto,
            memory_reserve_mib: 1024,
            threads: 0,
            cpu_isa: "auto".into(),
            slots: 4,
            context: 0,
            prefill_chunk: 256,
            draft_tokens: 7,
            draft_model: String::new(),
            lora: Vec::new(),
            stall_ms: 200,
            kv_type: "f16".into(),
            prompt_precision: PromptPrecision::Single,
            prefix_cache_mib: 0,
            prefix_cache_dir: default_prefix_cache_dir(),
            tune: Tune::Load,
            tune_dir: default_tune_dir(),
            state_dir: default_state_dir(),
            queue_limit: 64,
            max_connections: 256,
            max_body_bytes: 8 << 20,
            request_timeout_s: 30,
            shutdown_deadline_s: 10,
            ioctl_filter: IoctlFilter::Auto,
            log: "info".into(),
            log_format: LogFormat::Text,
            resident: Vec::new(),
            lane: Vec::new(),
        }
    }
}

/// Values of `backend`.
pub const BACKENDS: [&str; 5] = ["auto", "nv", "cuda", "cpu", "reference"];

/// Values of `cpu_isa`. Which of them a machine has is found out when a model is loaded.
pub const CPU_ISAS: [&str; 6] = ["auto", "amx", "avx512", "avx2", "neon", "scalar"];

/// Values of `kv_type`.
pub const KV_TYPES: [&str; 3] = ["f16", "q8_0", "q4_0"];

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

/// How many launches an Orin's GPU is given at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuMode {
    /// What is right unless somebody knows better.
    #[default]
    Auto,
    /// A whole step, as far as such chains have been proven.
    Full,
    /// Chains of 32, between which other programs get their turn.
    Split,
    /// One.
    Serial,
}

/// What GPUs multiply prompts in: in attention, and where weights are F16 or BF16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptPrecision {
    /// Single precision: the same numbers on all devices.
    #[default]
    Single,
    /// Half precision, on tensor cores: faster, with numbers of its own.
    Half,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{place}: unknown key `{key}`{}", nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownKey { place: String, key: String, nearest: Option<&'static str> },
    /// Not TOML, or a value of the wrong type.
    #[error("{place}: {reason}")]
    Invalid {
        /// File, line, and the key if one is at fault.
        place: String,
        reason: String,
    },
    #[error("{key} is {value}; {allowed}")]
    Range { key: &'static str, value: String, allowed: String },
}

impl Error {
    fn range(key: &'static str, value: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self::Range { key, value: value.into(), allowed: allowed.into() }
    }
}

impl Config {
    /// Reads a file. Values are checked later ([`Self::check`]): flags may override them.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads TOML; `origin` names it in errors.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Error> {
        let place = |at: usize| {
            let line = 1 + text.bytes().take(at).filter(|&b| b == b'\n').count();
            format!("{origin}:{line}")
        };
        let refuse = |key: Option<&str>, error: &toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            let place = place(start);
            let place = key.map_or_else(|| place.clone(), |key| format!("{place}: {key}"));
            let reason = invalid::plain(error.message());
            let number = key.and_then(allowed).zip(reason.rsplit_once(", a whole number from "));
            let reason = match number {
                Some((allowed, (value, _))) => {
                    let (from, to) = (allowed.start(), allowed.end());
                    format!("{value}, a whole number from {from} to {to} is needed")
                }
                None => reason,
            };
            Error::Invalid { place, reason }
        };
        let table = DeTable::parse(text).map_err(|e| refuse(None, &e))?;
        for key in table.get_ref().keys() {
            let name: &str = key.get_ref();
            if keys().all(|key| key != name) {
                let nearest = nearest(name);
                let place = place(key.span().start);
                return Err(Error::UnknownKey { place, key: invalid::shown(name), nearest });
            }
        }
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let key = table.get_ref().iter().find(|(_, value)| value.span().contains(&at));
            // A table of an array spans its header alone: the line has the key.
            let line = text.get(..at).and_then(|before| before.lines().last());
            let own = line.and_then(|line| line.split_once('=')).map(|(key, _)| key.trim());
            refuse(key.map(|(key, _)| key.get_ref().as_ref()).or(own), &error)
        })
    }

    /// Checks every value's range.
    pub fn check(&self) -> Result<(), Error> {
        let number = |key, value: u64| match allowed(key) {
            Some(allowed) if !allowed.contains(&value) => {
                let allowed = format!("{} to {} are allowed", allowed.start(), allowed.end());
                Err(Error::range(key, value.to_string(), allowed))
            }
            _ => Ok(()),
        };
        let count = |key, value: usize| number(key, value.try_into().unwrap_or(u64::MAX));
        let one_of = |key, value: &str, allowed: &[&str]| {
            if allowed.contains(&value) {
                return Ok(());
            }
            let allowed = format!("allowed are {}", allowed.join(", "));
            Err(Error::range(key, format!("`{}`", invalid::shown(value)), allowed))
        };
        if self.socket.as_os_str().is_empty() {
            let allowed = "a path is needed";
            return Err(Error::range("socket", "empty", allowed));
        }
        self.port()?;
        one_of("backend", &self.backend, &BACKENDS)?;
        if self.tune != Tune::Off && !self.tune_dir.is_absolute() {
            let value = format!("`{}`", self.tune_dir.display());
            let allowed = "an absolute path is needed, or tune = \"off\"";
            return Err(Error::range("tune_dir", value, allowed));
        }
        if self.prefix_cache_mib > 0 && !self.prefix_cache_dir.is_absolute() {
            let value = format!("`{}`", self.prefix_cache_dir.display());
            let allowed = "an absolute path is needed, or prefix_cache_mib = 0";
            return Err(Error::range("prefix_cache_dir", value, allowed));
        }
        if !self.state_dir.is_absolute() {
            let value = format!("`{}`", self.state_dir.display());
            return Err(Error::range("state_dir", value, "an absolute path is needed"));
        }
        one_of("cpu_isa", &self.cpu_isa, &CPU_ISAS)?;
        one_of("kv_type", &self.kv_type, &KV_TYPES)?;
        number("memory_reserve_mib", self.memory_reserve_mib)?;
        count("threads", self.threads)?;
        count("slots", self.slots)?;
        count("context", self.context)?;
        count("prefill_chunk", self.prefill_chunk)?;
        count("draft_tokens", self.draft_tokens)?;
        number("stall_ms", self.stall_ms)?;
        number("prefix_cache_mib", self.prefix_cache_mib)?;
        count("queue_limit", self.queue_limit)?;
        count("max_connections", self.max_connections)?;
        count("max_body_bytes", self.max_body_bytes)?;
        number("request_timeout_s", self.request_timeout_s)?;
        number("shutdown_deadline_s", self.shutdown_deadline_s)?;
        if self.ioctl_filter == IoctlFilter::On && self.backend == "cuda" {
            let allowed =
                "the CUDA driver's requests are not known: `off` or `auto` with the backend `cuda`";
            return Err(Error::range("ioctl_filter", "`on`", allowed));
        }
        let mut ids = BTreeSet::new();
        if !self.model.is_empty() {
            ids.insert(synthetic::id_of(&self.model, &self.models_dir));
        }
        for resident in &self.resident {
            resident.check()?;
            let id = resident.id(&self.models_dir);
            let value = format!("`{}`", invalid::shown(&id));
            if !ids.insert(id) {
                let allowed = "two models cannot have one name; give it another `name`";
                return Err(Error::range("resident.name", value, allowed));
            }
        }
        let mut names = BTreeSet::new();
        for lane in &self.lane {
            lane.check()?;
            if !names.insert(&lane.name) {
                let value = format!("`{}`", lane.name);
                return Err(Error::range("lane.name", value, "two lanes cannot have one name"));
            }
        }
        tracing_subscriber::EnvFilter::builder().parse(&self.log).map_err(|error| {
            let allowed = format!("{error}; a level is error, warn, info, debug or trace");
            Error::range("log", format!("`{}`", self.log), allowed)
        })?;
        Ok(())
    }

    /// The address of [`Self::listen`]; an error when it is not one, or off loopback and without a token.
    pub fn port(&self) -> Result<Option<SocketAddr>, Error> {
        if self.listen.is_empty() {
            return Ok(None);
        }
        let refuse = |allowed: &str| Error::range("listen", format!("`{}`", self.listen), allowed);
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
            .map(|(key, effect)| (key, effect, old.get(key), new.get(key)))
            .filter(|(_, _, from, to)| from != to)
            .map(|(key, effect, from, to)| Change { key, from: shown(from), to: shown(to), effect })
            .collect()
    }

    /// `new`, but for what cannot change while the daemon runs.
    #[must_use]
    pub fn reloaded(&self, new: Self) -> Self {
        let (old, mut table) = (self.table(), new.table());
        for (key, effect) in KEYS {
            if let (Effect::Restart, Some(value)) = (effect, old.get(key)) {
                table.insert(key.to_owned(), value.clone());
            }
        }
        // Made of two configurations, so it is one.
        table.try_into().unwrap_or(new)
    }

    fn table(&self) -> toml::Table {
        toml::Table::try_from(self).unwrap_or_default()
    }

    /// Where tuned choices are kept that are used.
    pub fn tuned(&self) -> Option<&Path> {
        (self.tune != Tune::Off).then_some(&*self.tune_dir)
    }

    /// The ONNX file of that name: itself, or in the models directory, with or without its ending.
    pub fn network(&self, name: &str) -> PathBuf {
        if name.contains('/') {
            return name.into();
        }
        [name.to_owned(), format!("{name}.onnx")]
            .iter()
            .map(|file| self.models_dir.join(file))
            .find(|path| path.is_file())
            .unwrap_or_else(|| name.into())
    }

    /// [`Self::request_timeout_s`].
    pub const fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.request_timeout_s)
    }
}

/// Keys in the order of the documentation, and when a change of one takes effect.
const KEYS: [(&str, Effect); 35] = [
    ("socket", Effect::Restart),
    ("socket_mode", Effect::Restart),
    ("listen", Effect::Restart),
    ("token_file", Effect::Restart),
    ("model", Effect::Restart),
    ("models_dir", Effect::Now),
    ("backend", Effect::NextLoad),
    ("gpu_mode", Effect::NextLoad),
    ("memory_reserve_mib", Effect::NextLoad),
    ("threads", Effect::NextLoad),
    ("cpu_isa", Effect::NextLoad),
    ("slots", Effect::NextLoad),
    ("context", Effect::NextLoad),
    ("prefill_chunk", Effect::NextLoad),
    ("draft_tokens", Effect::NextLoad),
    ("draft_model", Effect::NextLoad),
    ("lora", Effect::NextLoad),
    ("stall_ms", Effect::NextLoad),
    ("kv_type", Effect::NextLoad),
    ("prompt_precision", Effect::NextLoad),
    ("prefix_cache_mib", Effect::NextLoad),
    ("prefix_cache_dir", Effect::NextLoad),
    ("tune", Effect::NextLoad),
    ("tune_dir", Effect::NextLoad),
    ("state_dir", Effect::NextLoad),
    ("queue_limit", Effect::Now),
    ("max_connections", Effect::Now),
    ("max_body_bytes", Effect::Now),
    ("request_timeout_s", Effect::Now),
    ("shutdown_deadline_s", Effect::Now),
    ("ioctl_filter", Effect::Restart),
    ("log", Effect::Now),
    ("log_format", Effect::Restart),
    ("resident", Effect::Restart),
    ("lane", Effect::Restart),
];

/// The keys that are whole numbers, and what is allowed of each.
const NUMBERS: [(&str, RangeInclusive<u64>); 13] = [
    // More is more than any Orin has.
    ("memory_reserve_mib", 0..=65_536),
    ("threads", 0..=1024),
    ("slots", 1..=256),
    ("context", 0..=16 << 20),
    ("prefill_chunk", 1..=8192),
    ("draft_tokens", 0..=7),
    ("stall_ms", 0..=60_000),
    ("prefix_cache_mib", 0..=1 << 20),
    ("queue_limit", 0..=65_536),
    ("max_connections", 1..=65_536),
    ("max_body_bytes", 1024..=1 << 30),
    ("request_timeout_s", 1..=86_400),
    ("shutdown_deadline_s", 0..=3600),
];

fn allowed(key: &str) -> Option<&'static RangeInclusive<u64>> {
    NUMBERS.iter().find(|(name, _)| *name == key).map(|(_, allowed)| allowed)
}

pub fn keys() -> impl Iterator<Item = &'static str> {
    KEYS.into_iter().map(|(key, _)| key)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Now,
    /// It is what a load asks for when the request for it says nothing else.
    NextLoad,
    Restart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: &'static str,
    /// Its value until now, as TOML.
    pub from: String,
    pub to: String,
    pub effect: Effect,
}

/// The key that a misspelt one most likely means.
fn nearest(key: &str) -> Option<&'static str> {
    let alike = |known: &str| strsim::jaro_winkler(known, &key.to_lowercase());
    keys().max_by(|a, b| alike(a).total_cmp(&alike(b))).filter(|known| alike(known) > 0.75)
}

/// The socket that the daemon and its client use when none is named: `$ORIND_SOCKET`; the service's
/// `/run/orind/orind.sock` for the service and for root; `orind.sock` in the user's run-time directory.
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

/// The folder of [`default_socket`] for a user without a run-time directory. Any user can make it first.
pub fn fallback_folder() -> PathBuf {
    format!("/tmp/orind-{}", nix::unistd::Uid::effective()).into()
}

/// The socket for a client: [`default_socket`], or the service's when only that one exists.
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

/// Where the daemon remembers things when nothing else is said: `$STATE_DIRECTORY`, which systemd sets for the
/// service; the user's data directory; the service's where root has none.
fn default_state_dir() -> PathBuf {
    let state = service_directory("STATE_DIRECTORY");
    let root = nix::unistd::Uid::effective().is_root() && variable("XDG_DATA_HOME").is_none();
    let own = || if root { None } else { data_dir() };
    state.or_else(own).unwrap_or_else(|| SERVICE_DATA.into())
}

/// The state directory for a client: the default, or the service's when only that one has the `file`.
pub fn client_state_dir(file: &str) -> PathBuf {
    let own = default_state_dir();
    let service = Path::new(SERVICE_DATA);
    if !own.join(file).exists() && service.join(file).exists() { service.into() } else { own }
}

/// Where beginnings of conversations are kept when nothing else is said: `prefixes` in `$CACHE_DIRECTORY`, which
/// systemd sets for the service, and in the same place for root; in the user's cache directory otherwise.
fn default_prefix_cache_dir() -> PathBuf {
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

/// The folder beside tuned choices in which kernels are kept that were compiled here.
pub const COMPILED: &str = "compiled";

/// Where tuned choices are remembered when nothing else is said.
pub fn default_tune_dir() -> PathBuf {
    default_state_dir().join("tune")
}

/// The directory of tuned choices for a client: [`default_tune_dir`], or the service's when only
/// that one exists.
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
        let mut known: Vec<&str> = keys().collect();
        known.sort_unstable();
        let table = Config::default().table();
        let mut found: Vec<&String> = table.keys().collect();
        found.sort_unstable();
        assert_eq!(found, known);
    }

    #[test]
    fn defaults_are_within_their_own_limits() {
        Config::default().check().unwrap();
        assert_eq!(Config::parse("", "x").unwrap(), Config::default());
    }

    #[test]
    fn a_lane_that_cannot_be_is_refused_by_key_and_name() {
        let lane = |more: &str| {
            let text = format!("[[lane]]\nname = 'a'\nnetwork = 'b.onnx'\n{more}");
            Config::parse(&text, "x").map_err(|error| error.to_string()).and_then(|config| {
                config.check().map_err(|error| error.to_string()).map(|()| config.lane)
            })
        };
        let whole = lane("rate_hz = 500\ncore = 3\nshapes = { x = [1, 12] }").unwrap();
        assert_eq!(whole[0].deadline(), Duration::from_millis(2));
        for (more, key) in [
            ("rate_hz = 0", "lane.rate_hz is 0 in lane `a`; 1 to 100000"),
            ("rate_hz = -1", "x:4: rate_hz: is -1"),
            ("deadline_us = 60000001", "lane.deadline_us is 60000001"),
            ("backend = 'auto'", "lane.backend is `auto` in lane `a`; allowed are nv, cuda"),
            ("priority = 100", "lane.priority is 100"),
            ("spin_us = 1000001", "lane.spin_us is 1000001"),
            ("rate = 5", "`rate` is not known; possible: name, network"),
            ("[[lane]]\nname = 'a'\nnetwork = 'c'", "two lanes cannot have one name"),
            ("[[lane]]\nname = '../a'\nnetwork = 'c'", "lane.name is `../a`"),
            ("[[lane]]\nname = 'b'\nnetwork = ''", "lane.network is empty in lane `b`"),
            ("[[lane]]\nname = 'b'", "network"),
        ] {
            let error = lane(more).unwrap_err();
            assert!(error.contains(key), "{more}: {error}");
        }
    }

    #[test]
    fn a_model_beside_the_first_that_cannot_be_is_refused_by_key_and_name() {
        let residents = |more: &str| {
            let text = format!("model = 'a'\n[[resident]]\nmodel = 'b.gguf'\n{more}");
            Config::parse(&text, "x").map_err(|error| error.to_string()).and_then(|config| {
                config.check().map_err(|error| error.to_string()).map(|()| config.resident)
            })
        };
        let whole =
            residents("slots = 1\n[[resident]]\nmodel = 'b.gguf'\nname = 'c'\nload = 'start'")
                .unwrap();
        let ids: Vec<String> = whole.iter().map(|one| one.id(Path::new("/m"))).collect();
        assert_eq!(ids, ["b", "c"]);
        assert_eq!((whole[0].load, whole[1].load), (LoadAt::Request, LoadAt::Start));
        for (more, key) in [
            ("slots = 0", "resident.slots is 0 in resident `b.gguf`; 1 to 256"),
            ("slots = -1", "x:4: slots: is -1"),
            ("backend = 'tpu'", "resident.backend is `tpu` in resident `b.gguf`; allowed are auto"),
            ("kv_type = 'f32'", "resident.kv_type is `f32`"),
            ("load = 'never'", "`never` is not possible; possible: start or request"),
            ("name = 'x:y'", "resident.name is `x:y` in resident `b.gguf`; 1 to 64 letters"),
            ("name = 'a'", "resident.name is `a`; two models cannot have one name"),
            ("[[resident]]\nmodel = '/else/b.gguf'", "two models cannot have one name"),
            ("[[resident]]\nmodel = ''", "resident.model is empty"),
            ("socket = 'x'", "`socket` is not known; possible: model, name"),
        ] {
            let error = residents(more).unwrap_err();
            assert!(error.contains(key), "{more}: {error}");
        }
    }

    #[test]
    fn every_number_has_its_range() {
        let table = Config::default().table();
        let numbers = keys().filter(|key| table[*key].is_integer());
        let ranges: Vec<&str> = NUMBERS.iter().map(|(key, _)| *key).collect();
        assert!(numbers.eq(ranges.iter().copied()), "{ranges:?}");
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_the_nearest_name() {
        for (text, message) in [
            (
                "slots = 2\n\n# more\nprefil_chunk = 8\n",
                "4: unknown key `prefil_chunk`; did you mean `prefill_chunk`?",
            ),
            ("queue-limit = 2", "1: unknown key `queue-limit`; did you mean `queue_limit`?"),
            ("Model = 'x'", "1: unknown key `Model`; did you mean `model`?"),
            ("[zzz]\na = 1", "1: unknown key `zzz`"),
        ] {
            assert_eq!(refused(text), format!("orind.toml:{message}"));
        }
    }

    #[test]
    fn wrong_types_and_syntax_name_key_and_line() {
        for (text, start, word) in [
            (
                "model = 'a'\nslots = 'two'\n",
                "2: slots: ",
                "is \"two\", a whole number from 1 to 256 is needed",
            ),
            ("slots = -1\n", "1: slots: ", "is -1, a whole number from 1 to 256 is needed"),
            ("model = 1\n", "1: model: ", "is 1, a text is needed"),
            ("model = 'a'\nslots = \n", "2: ", ""),
            ("slots = 1\nslots = 2\n", "2: ", "duplicate"),
            ("socket_mode = '0999'", "1: socket_mode: ", "octal"),
            (
                "log_format = 'xml'",
                "1: log_format: ",
                "`xml` is not possible; possible: text or json",
            ),
        ] {
            let message = refused(text);
            let starts = message.starts_with(&format!("orind.toml:{start}"));
            assert!(starts && message.contains(word), "{message}");
        }
    }

    #[test]
    fn a_value_out_of_range_names_key_value_and_limits() {
        let check = |text: &str| Config::parse(text, "x").unwrap().check().unwrap_err().to_string();
        for (text, message) in [
            ("slots = 0", "slots is 0; 1 to 256 are allowed"),
            ("max_body_bytes = 10", "max_body_bytes is 10; 1024 to 1073741824 are allowed"),
            ("backend = 'tpu'", "backend is `tpu`; allowed are auto, nv, cuda, cpu, reference"),
            ("socket = ''", "socket is empty; a path is needed"),
            (
                "tune_dir = 'tune'",
                "tune_dir is `tune`; an absolute path is needed, or tune = \"off\"",
            ),
            (
                "prefix_cache_mib = 1\nprefix_cache_dir = 'p'",
                "prefix_cache_dir is `p`; an absolute path is needed, or prefix_cache_mib = 0",
            ),
            ("state_dir = ''", "state_dir is ``; an absolute path is needed"),
            (
                "listen = 'localhost'",
                "listen is `localhost`; an address and a port are needed, such as 127.0.0.1:8080",
            ),
        ] {
            assert_eq!(check(text), message);
        }
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
        let text = include_str!("../../../docs/configuration.md");
        let rows: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
                let key = cells.next()?.strip_suffix('`')?;
                Some((key, cells.next()?.trim_matches('`')))
            })
            .collect();
        assert!(rows.iter().map(|(key, _)| *key).eq(keys()), "{rows:?}");
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
        let example = include_str!("../../../docs/orind.toml");
        assert_eq!(Config::parse(example, "docs/orind.toml").unwrap(), Config::default());
        let shown = example.lines().filter_map(|line| line.strip_prefix("#"));
        let shown: Vec<&str> = shown.filter(|line| !line.starts_with(' ')).collect();
        let found = shown.iter().filter_map(|line| Some(line.split_once(" =")?.0));
        assert!(found.eq(keys()), "{shown:?}");
        let config = Config::parse(&shown.join("\n"), "docs/orind.toml").unwrap();
        let paths = Config::default();
        let Config { socket, models_dir, prefix_cache_dir, tune_dir, state_dir, .. } = paths;
        let config = Config { socket, models_dir, prefix_cache_dir, tune_dir, state_dir, ..config };
        assert_eq!(config, Config::default());
    }

    /// The lists of `docs/configuration.md`, and what a reload does.
    #[test]
    fn a_reload_changes_what_the_documentation_says() {
        let text = include_str!("../../../docs/configuration.md");
        for (marker, effect) in [
            ("from the next load on: ", Effect::NextLoad),
            ("with a restart only: ", Effect::Restart),
        ] {
            let keys = KEYS.iter().filter(|(_, at)| *at == effect).map(|(key, _)| *key);
            let (_, rest) = text.split_once(marker).unwrap();
            let (list, _) = rest.split_once('.').unwrap();
            assert!(list.split(',').map(|key| key.trim().trim_matches('`')).eq(keys), "{list}");
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
}
