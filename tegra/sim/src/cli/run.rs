//! `tegra-sim run`: starts a program with the preload library.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use tegra_sim::config::Config;
use tegra_sim::profile::{Calibration, ProfileError};

use super::elf::{self, Kind};
use super::embedded::{self, EmbeddedError};
use super::replay::Level;

/// Variable with the path of the preload library, if it is not next to this program.
const PRELOAD: &str = "TEGRA_SIM_PRELOAD";
const LIBRARY: &str = "libtegra_sim_preload.so";

const GRAMMAR: &str = "\
SPEC of --faults is a list of failures with commas between them:
  ioctl:REQUEST:ERRNO@WHEN
      the request fails, as ioctl:MAP_BUFFER_EX:ENOMEM@3; * is any
  mmu-fault@WHEN
      an engine's work faults
  lost-event@WHEN
      an interrupt that wakes waiters does not
  channel-timeout@WHEN
      a ring entry runs into the channel's time limit
  stuck-semaphore@WHEN
      a semaphore release of the host unit is not done
  memory-full=SIZE
      RAM for buffers ends after SIZE bytes, as 512M or 1G
WHEN is N for the N-th occasion, counted from 1, or 1/N for each with a chance of one in N, \
drawn from --seed. `tegra-sim errnos` lists requests and errnos.

WORDS of --machine are explained in docs/simulator.md: no-event, no-qmd-release, lost-atomics, \
chain-cut=N, local-memory-refused, read-only-maps-fault, nan=INSTRUCTION, freeze=POINT, \
short-range-refused, no-heap-query, stale-handover.

What these and the TEGRA_SIM_ variables say is checked before the program is started.";

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = GRAMMAR)]
pub(super) struct Run {
    /// Seed for everything that hardware leaves undefined
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Failures to inject, such as `mmu-fault@3,memory-full=1G`; see docs/simulator.md
    #[arg(long, value_name = "SPEC")]
    faults: Option<String>,
    /// Write a trace to FILE, one JSON object per line
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Action on a finding: `abort` (default) or `warn` for all, or by name, such as
    /// `uninitialised-read=warn,stale-l2=off`; may be repeated, the last one wins
    #[arg(long, value_name = "WORDS")]
    lint: Vec<String>,
    /// Ignore the findings listed in FILE: lines as the summary prints them, with reasons
    #[arg(long, value_name = "FILE")]
    suppress: Option<PathBuf>,
    /// Checks of shader code [default: strict]
    #[arg(long, value_enum)]
    checks: Option<Level>,
    /// Write a bundle of every failing launch to DIR, for `tegra-sim replay`
    #[arg(long, value_name = "DIR")]
    bundles: Option<PathBuf>,
    /// Use the profile FILE that `orinctl first-contact` wrote on an Orin, as far as it is modelled
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Simulate a machine with defects, such as `no-event,chain-cut=64`; see docs/simulator.md
    #[arg(long, value_name = "WORDS")]
    machine: Option<String>,
    /// Drivers of this L4T release: r35.4, r36.2, r36.4, r39 or r39:REQUEST
    #[arg(long, value_name = "NAME")]
    release: Option<String>,
    /// Simulate a desktop that uses the GPU every 16 ms
    #[arg(long)]
    desktop: bool,
    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Error of starting a program.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    /// The program is in no directory of `PATH`.
    #[error("{0:?} is not found as a program; give its path or put it into PATH")]
    NotFound(OsString),
    /// The program cannot be read.
    #[error("{path:?} cannot be read: {error}")]
    Unreadable { path: PathBuf, error: io::Error },
    /// The program is statically linked.
    #[error(
        "{0:?} is statically linked: it calls the kernel without a libc that the simulator could \
         stand in front of; link it dynamically"
    )]
    Static(PathBuf),
    /// The program is for another architecture.
    #[error(
        "{path:?} is for another processor (ELF machine {machine}); run it with a tegra-sim that is \
         built for it, under user-mode emulation"
    )]
    Foreign { path: PathBuf, machine: u16 },
    /// The preload library was not found.
    #[error(
        "{LIBRARY} is in none of {searched:?}; build it with `cargo build -p tegra-sim-preload`, \
         or name it in {PRELOAD}"
    )]
    NoLibrary { searched: Vec<PathBuf> },
    /// The embedded library cannot be written to a file.
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    /// The path contains a space or colon, which separate names in `LD_PRELOAD`.
    #[error("{0:?}: the dynamic linker cannot preload a path with a space or a colon; move it")]
    UnfitPath(PathBuf),
    /// An option or variable is invalid.
    #[error("{0}")]
    Config(String),
    /// The profile is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// `exec` failed.
    #[error("{path:?} cannot be started: {error}")]
    Exec { path: PathBuf, error: io::Error },
    /// A path has no absolute form.
    #[error("the path {path:?}: {error}")]
    Output { path: PathBuf, error: io::Error },
}

impl Run {
    /// Replaces this process by the program; returns only on failure.
    pub(super) fn start(&self) -> Result<ExitCode, Box<dyn std::error::Error>> {
        Err(self.replace_process().into())
    }

    fn replace_process(&self) -> RunError {
        let mut command = match self.prepare() {
            Ok(command) => command,
            Err(error) => return error,
        };
        let path = PathBuf::from(command.get_program());
        RunError::Exec { path, error: command.exec() }
    }

    fn prepare(&self) -> Result<Command, RunError> {
        let (name, arguments) =
            self.command.split_first().ok_or_else(|| RunError::NotFound(OsString::new()))?;
        let path = find_program(name).ok_or_else(|| RunError::NotFound(name.clone()))?;
        check(&path)?;
        let library = find_library()?;
        if let Some(profile) = &self.profile {
            for line in super::profile::summary(&Calibration::read(profile)?) {
                super::output::write(&format!("tegra-sim: {line}\n"), &mut io::stderr());
            }
        }
        let mut command = Command::new(&path);
        command.arg0(name).args(arguments).env("LD_PRELOAD", preload_list(&library)?);
        if let Some(seed) = self.seed {
            command.env("TEGRA_SIM_SEED", seed.to_string());
        }
        for (variable, value) in [
            ("TEGRA_SIM_FAULTS", &self.faults),
            ("TEGRA_SIM_MACHINE", &self.machine),
            ("TEGRA_SIM_RELEASE", &self.release),
        ] {
            if let Some(value) = value {
                command.env(variable, value);
            }
        }
        for (variable, path) in [
            ("TEGRA_SIM_TRACE", &self.trace),
            ("TEGRA_SIM_BUNDLES", &self.bundles),
            ("TEGRA_SIM_PROFILE", &self.profile),
            ("TEGRA_SIM_SUPPRESS", &self.suppress),
        ] {
            let Some(path) = path else { continue };
            // Paths become absolute, because the program may change its working directory.
            let path = std::path::absolute(path)
                .map_err(|error| RunError::Output { path: path.clone(), error })?;
            command.env(variable, path);
        }
        if self.desktop {
            command.env("TEGRA_SIM_DESKTOP", "1");
        }
        if let Some(checks) = self.checks {
            command.env("TEGRA_SIM_CHECKS", checks.checks().name());
        }
        if !self.lint.is_empty() {
            command.env("TEGRA_SIM_LINT", self.lint.join(","));
        }
        understand(&command)?;
        Ok(command)
    }
}

/// Validates options and variables before the program starts; errors name the option if one was
/// given.
fn understand(command: &Command) -> Result<(), RunError> {
    let option = |name: &str| {
        let (_, value) = command.get_envs().find(|(variable, _)| *variable == name)?;
        Some(value?.to_string_lossy().into_owned())
    };
    let variable = |name: &str| Some(env::var_os(name)?.to_string_lossy().into_owned());
    let config = Config::from_variables(|name| option(name).or_else(|| variable(name)));
    let config = config.map_err(|error| {
        let said = error.to_string();
        let end = said.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(0);
        let (name, rest) = said.split_at(end);
        RunError::Config(match (option(name), name.strip_prefix("TEGRA_SIM_")) {
            (Some(_), Some(word)) => format!("--{}{rest}", word.to_lowercase()),
            _ => said,
        })
    })?;
    let folder = config.trace.as_deref().and_then(Path::parent);
    match folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => {
            let path = folder.to_owned();
            Err(RunError::Output { path, error: io::ErrorKind::NotADirectory.into() })
        }
        None => Ok(()),
    }
}

/// Finds the file that a shell would start.
fn find_program(name: &OsString) -> Option<PathBuf> {
    let given = Path::new(name);
    if given.components().count() > 1 || given.is_absolute() {
        return given.exists().then(|| given.to_owned());
    }
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(name)).find(is_program)
}

/// Checks that the dynamic linker loads the program.
fn check(path: &Path) -> Result<(), RunError> {
    let look = |path: &Path| {
        elf::kind(path).map_err(|error| RunError::Unreadable { path: path.to_owned(), error })
    };
    let mut path = path.to_owned();
    let mut kind = look(&path)?;
    if let Kind::Script(interpreter) = kind {
        kind = look(&interpreter)?;
        path = interpreter;
    }
    match kind {
        Kind::Static => Err(RunError::Static(path)),
        Kind::Foreign { machine } => Err(RunError::Foreign { path, machine }),
        Kind::Dynamic | Kind::Script(_) | Kind::Unknown => Ok(()),
    }
}

/// Finds the library next to this program, where cargo puts it, or in the `lib` of an installation;
/// otherwise the embedded one.
fn find_library() -> Result<PathBuf, RunError> {
    let mut searched = Vec::new();
    if let Some(named) = env::var_os(PRELOAD) {
        searched.push(PathBuf::from(named));
    } else if let Some(dir) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        let folders = [dir.to_owned(), dir.join("deps"), dir.with_file_name("lib")];
        searched.extend(folders.map(|folder| folder.join(LIBRARY)));
    }
    if let Some(Ok(path)) = searched.iter().find(|path| path.is_file()).map(std::path::absolute) {
        return Ok(path);
    }
    match embedded::library() {
        Some(library) if env::var_os(PRELOAD).is_none() => Ok(library?),
        _ => Err(RunError::NoLibrary { searched }),
    }
}

/// Prepends the library to the existing `LD_PRELOAD`.
fn preload_list(library: &Path) -> Result<OsString, RunError> {
    let text = library.to_string_lossy();
    if text.contains([' ', ':']) {
        return Err(RunError::UnfitPath(library.to_owned()));
    }
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    Ok(list)
}
