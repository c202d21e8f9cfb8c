//! Configuration of the simulator from environment variables, and injection of failures.
//!
//! | variable | value | default |
//! |---|---|---|
//! | `TEGRA_SIM_SEED` | a number: seed of everything that hardware leaves undefined | 0 |
//! | `TEGRA_SIM_FAULTS` | failures to inject, see below | none |
//! | `TEGRA_SIM_TRACE` | trace file to write | none |
//! | `TEGRA_SIM_LINT` | `abort`, `warn`, `NAME=abort\|warn\|off`: action on a finding, see [`Policy`] | `abort` |
//! | `TEGRA_SIM_SUPPRESS` | file of known findings to suppress, see [`Suppressions`] | none |
//! | `TEGRA_SIM_CHECKS` | `timing`, `fast`, `strict` or `race`: checks of shader code, see [`Checks`] | `strict` |
//! | `TEGRA_SIM_BUNDLES` | directory for fault bundles of failed launches | none |
//! | `TEGRA_SIM_PROFILE` | profile of a real Orin, see [`crate::profile`] | none |
//! | `TEGRA_SIM_MACHINE` | defects of the simulated machine, see [`crate::quirks`] | none |
//! | `TEGRA_SIM_RELEASE` | the drivers' release: `r35.4`, `r36.2`, `r36.4`, `r39`, `r39:REQUEST` | `r36.4` |
//! | `TEGRA_SIM_DESKTOP` | `1`: a desktop uses the compute engine every 16 ms; `0`: no desktop | `0` |
//!
//! `TEGRA_SIM_FAULTS` is a comma-separated list of failures. `WHEN` is `@N` for the N-th occasion,
//! counted from 1, or `@1/N` for each occasion with probability 1/N, drawn from the seed.
//!
//! | failure | effect |
//! |---|---|
//! | `ioctl:REQUEST:ERRNO WHEN` | the request (such as `MAP_BUFFER_EX`) fails with the errno (such as `ENOMEM`); `*` is any request |
//! | `mmu-fault WHEN` | work of an engine faults; a launch faults after some of its blocks |
//! | `bit-error WHEN` | before a launch a bit of memory flips: bit 38 of the first address among its parameters |
//! | `lost-event WHEN` | an interrupt fails to wake its waiters |
//! | `channel-timeout WHEN` | a ring entry exceeds the channel's time limit |
//! | `stuck-semaphore WHEN` | a semaphore release of the host unit is dropped |
//! | `memory-full=SIZE` | RAM for buffers ends after SIZE bytes; `K`, `M` and `G` are allowed |
//!
//! For example `ioctl:MAP_BUFFER_EX:ENOMEM@3,mmu-fault@1/100,memory-full=1G`.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::finding::{Policy, PolicyError, SuppressionError, Suppressions};
use crate::gpu::Random;
use crate::quirks::{Quirks, Release};

/// Checks of shader code beyond those of hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// No checks. A launch with the same code, grid, block and constant bank sizes as an earlier
    /// one is not executed and takes the same time. Results are meaningless; times and stream rules
    /// are valid.
    Timing,
    Fast,
    /// Uninitialised registers and shared memory used in an address, a branch or a store.
    #[default]
    Strict,
    /// `Strict`, and races on shared memory.
    Race,
}

impl Checks {
    const ALL: [Self; 4] = [Self::Timing, Self::Fast, Self::Strict, Self::Race];

    /// Returns the name of the level.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Timing => "timing",
            Self::Fast => "fast",
            Self::Strict => "strict",
            Self::Race => "race",
        }
    }

    /// Parses the name of a level.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|checks| checks.name() == name)
    }
}

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Seed for everything that hardware leaves undefined.
    pub seed: u64,
    pub faults: Vec<FaultRequest>,
    /// RAM for buffers in bytes, if limited.
    pub memory: Option<u64>,
    /// Trace file.
    pub trace: Option<PathBuf>,
    /// Action for each finding.
    pub lint: Policy,
    /// Suppressed findings.
    pub known: Suppressions,
    /// Checks of shader code.
    pub checks: Checks,
    /// Directory for bundles of failed launches.
    pub bundles: Option<PathBuf>,
    /// Profile of a real Orin.
    pub profile: Option<PathBuf>,
    /// Defects of the simulated machine.
    pub quirks: Quirks,
    /// Release of the simulated drivers.
    pub release: Release,
    /// Simulates a desktop that uses the compute engine.
    pub desktop: bool,
}

/// A failure to inject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRequest {
    pub what: Occasion,
    pub when: When,
}

/// An event that can be made to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// An ioctl: name of the request, none for any, and the errno.
    Ioctl { request: Option<String>, errno: i32 },
    /// Work of an engine.
    MmuFault,
    /// Memory read by a launch.
    BitError,
    /// An interrupt that wakes waiters.
    LostEvent,
    /// A ring entry.
    ChannelTimeout,
    /// A semaphore release of the host unit.
    StuckSemaphore,
}

/// Occasions that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The N-th occasion, counted from 1.
    Count(u64),
    /// Each occasion, with probability one in N.
    OneIn(u64),
}

/// Error of a configuration variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A variable has an invalid value.
    #[error("{variable}={value}: expected {expected}")]
    Value { variable: &'static str, value: String, expected: &'static str },
    /// The policy for findings is invalid.
    #[error("TEGRA_SIM_LINT: {0}")]
    Lint(PolicyError),
    /// The file of suppressions is invalid.
    #[error("TEGRA_SIM_SUPPRESS: {0}")]
    Suppress(String),
    /// The failure does not exist.
    #[error(
        "TEGRA_SIM_FAULTS: no failure {word:?}; there are ioctl:REQUEST:ERRNO@WHEN, \
         mmu-fault@WHEN, bit-error@WHEN, lost-event@WHEN, channel-timeout@WHEN, stuck-semaphore@WHEN and \
         memory-full=SIZE"
    )]
    Fault { word: String },
    /// The occasion is invalid.
    #[error("TEGRA_SIM_FAULTS: {word:?} does not say when: add @N for the N-th, or @1/N")]
    When { word: String },
    /// The size is invalid.
    #[error("TEGRA_SIM_FAULTS: {word:?} is no size: a number, with K, M or G behind it")]
    Size { word: String },
    /// The quirk does not exist.
    #[error(
        "TEGRA_SIM_MACHINE: no word {word:?}; there are no-event, no-qmd-release, lost-atomics, \
         chain-cut=N, local-memory-refused, read-only-maps-fault, nan=INSTRUCTION, freeze=open-channel, \
         freeze=object, freeze=doorbell, freeze=launch, short-range-refused, no-heap-query and \
         stale-handover"
    )]
    Machine { word: String },
    /// The request does not exist.
    #[error("TEGRA_SIM_FAULTS: no request {word:?}; `tegra-sim errnos` lists them, and * is any")]
    Request { word: String },
    /// An error and the position of its word in the list, counted from 1.
    #[error("{error} (word {number} of the list)")]
    At { number: usize, error: Box<ConfigError> },
    /// The errno does not exist.
    #[error("TEGRA_SIM_FAULTS: no errno {word:?}; there are {}", names())]
    Errno { word: String },
}

/// Errnos that can be injected.
const ERRNOS: [(&str, i32); 14] = [
    ("EPERM", libc::EPERM),
    ("EINTR", libc::EINTR),
    ("EIO", libc::EIO),
    ("EBADF", libc::EBADF),
    ("EAGAIN", libc::EAGAIN),
    ("ENOMEM", libc::ENOMEM),
    ("EACCES", libc::EACCES),
    ("EFAULT", libc::EFAULT),
    ("EBUSY", libc::EBUSY),
    ("ENODEV", libc::ENODEV),
    ("EINVAL", libc::EINVAL),
    ("EMFILE", libc::EMFILE),
    ("ENOTTY", libc::ENOTTY),
    ("ETIMEDOUT", libc::ETIMEDOUT),
];

fn names() -> String {
    ERRNOS.map(|(name, _)| name).join(", ")
}

impl Config {
    /// Reads the environment. [`ConfigError`] if a variable is invalid.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })
    }

    /// Reads variables through `get`. [`ConfigError`] if one is invalid.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let set = |name| get(name).filter(|value| !value.is_empty());
        let mut config = Self {
            trace: set("TEGRA_SIM_TRACE").map(Into::into),
            bundles: set("TEGRA_SIM_BUNDLES").map(Into::into),
            profile: set("TEGRA_SIM_PROFILE").map(Into::into),
            ..Self::default()
        };
        if let Some(value) = set("TEGRA_SIM_SEED") {
            config.seed = value.parse().map_err(|_| ConfigError::Value {
                variable: "TEGRA_SIM_SEED",
                value,
                expected: "a number from 0 to 18446744073709551615",
            })?;
        }
        if let Some(list) = set("TEGRA_SIM_LINT") {
            config.lint = Policy::parse(&list).map_err(ConfigError::Lint)?;
        }
        if let Some(path) = set("TEGRA_SIM_SUPPRESS") {
            let unfit = |error: SuppressionError| ConfigError::Suppress(error.to_string());
            config.known = Suppressions::read(Path::new(&path)).map_err(unfit)?;
        }
        if let Some(value) = set("TEGRA_SIM_CHECKS") {
            config.checks = Checks::named(&value).ok_or(ConfigError::Value {
                variable: "TEGRA_SIM_CHECKS",
                value,
                expected: "race, strict, fast or timing",
            })?;
        }
        config.desktop = match set("TEGRA_SIM_DESKTOP").as_deref() {
            None | Some("0") => false,
            Some("1") => true,
            Some(value) => {
                let (variable, value) = ("TEGRA_SIM_DESKTOP", value.to_owned());
                return Err(ConfigError::Value { variable, value, expected: "0 or 1" });
            }
        };
        if let Some(list) = set("TEGRA_SIM_MACHINE") {
            config.quirks = Quirks::parse(&list).map_err(|word| ConfigError::Machine { word })?;
        }
        if let Some(value) = set("TEGRA_SIM_RELEASE") {
            let release = Release::parse(&value);
            config.release = release.ok_or(ConfigError::Value {
                variable: "TEGRA_SIM_RELEASE",
                value,
                expected: "r35.4, r36.2, r36.4, r39, or r39:REQUEST with a name as SETUP_BIND",
            })?;
        }
        if let Some(list) = set("TEGRA_SIM_FAULTS") {
            for (number, word) in (1..).zip(list.split(',').map(str::trim)) {
                let at = |error| ConfigError::At { number, error: Box::new(error) };
                match word.strip_prefix("memory-full=") {
                    _ if word.is_empty() => {}
                    Some(size) => config.memory = Some(parse_size(size).map_err(at)?),
                    None => config.faults.push(parse_fault(word).map_err(at)?),
                }
            }
        }
        Ok(config)
    }
}

fn parse_size(word: &str) -> Result<u64, ConfigError> {
    let error = || ConfigError::Size { word: word.to_owned() };
    let (digits, unit) = match word.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&word[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&word[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&word[..at], 1 << 30),
        _ => (word, 1),
    };
    digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).ok_or_else(error)
}

fn parse_fault(word: &str) -> Result<FaultRequest, ConfigError> {
    let (what, when) = match word.split_once('@') {
        Some((what, when)) => (what, Some(when)),
        None => (word, None),
    };
    let what = match what {
        "mmu-fault" => Occasion::MmuFault,
        "bit-error" => Occasion::BitError,
        "lost-event" => Occasion::LostEvent,
        "channel-timeout" => Occasion::ChannelTimeout,
        "stuck-semaphore" => Occasion::StuckSemaphore,
        _ => {
            let error = || ConfigError::Fault { word: word.to_owned() };
            let rest = what.strip_prefix("ioctl:").ok_or_else(error)?;
            let (request, errno) = rest.split_once(':').ok_or_else(error)?;
            if request.is_empty() {
                return Err(error());
            }
            if request != "*" && crate::driver::requests().all(|(_, known)| known.name != request) {
                return Err(ConfigError::Request { word: request.to_owned() });
            }
            let request = (request != "*").then(|| request.to_owned());
            let found = ERRNOS.into_iter().find(|(name, _)| *name == errno);
            let error = || ConfigError::Errno { word: errno.to_owned() };
            let (_, errno) = found.ok_or_else(error)?;
            Occasion::Ioctl { request, errno }
        }
    };
    let error = || ConfigError::When { word: word.to_owned() };
    let when = when.ok_or_else(error)?;
    let (number, make): (_, fn(u64) -> When) = match when.strip_prefix("1/") {
        Some(chance) => (chance, When::OneIn),
        None => (when, When::Count),
    };
    let number = number.parse().ok().filter(|number| *number > 0).ok_or_else(error)?;
    Ok(FaultRequest { what, when: make(number) })
}

/// Decides for each occasion whether to inject a failure.
#[derive(Debug, Default)]
pub struct Injection {
    requests: Vec<FaultRequest>,
    state: Mutex<InjectionState>,
}

#[derive(Debug, Default)]
struct InjectionState {
    seen: Vec<u64>,
    random: Random,
}

impl Injection {
    /// Creates the injection that a configuration describes.
    pub fn new(config: &Config) -> Self {
        Self {
            requests: config.faults.clone(),
            state: Mutex::new(InjectionState {
                seen: vec![0; config.faults.len()],
                random: Random::new(config.seed ^ 0x696e_6a65_6374),
            }),
        }
    }

    /// Returns whether to fail this occasion, of a kind without arguments.
    #[must_use]
    pub fn fires(&self, occasion: &Occasion) -> bool {
        self.draw(|what| what == occasion).is_some()
    }

    /// Returns the errno with which to fail this ioctl, if any.
    #[must_use]
    pub fn ioctl(&self, name: &str) -> Option<i32> {
        let matches = |what: &Occasion| match what {
            Occasion::Ioctl { request, .. } => request.as_deref().is_none_or(|want| want == name),
            _ => false,
        };
        match self.draw(matches) {
            Some(Occasion::Ioctl { errno, .. }) => Some(*errno),
            _ => None,
        }
    }

    fn draw(&self, matches: impl Fn(&Occasion) -> bool) -> Option<&Occasion> {
        if self.requests.is_empty() {
            return None;
        }
        let mut state = self.state.lock();
        let InjectionState { seen, random } = &mut *state;
        let mut fired = None;
        for (request, seen) in self.requests.iter().zip(seen) {
            if matches(&request.what) {
                *seen += 1;
                let fires = match request.when {
                    When::Count(number) => *seen == number,
                    When::OneIn(chance) => random.below(chance) == 0,
                };
                if fires && fired.is_none() {
                    fired = Some(&request.what);
                }
            }
        }
        fired
    }
}
