//! `tegra-sim run`: starts a program with the interposed symbols in front of libc's.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use tegra_sim::config::Config;
use tegra_sim::profile::{Calibration, ProfileError};

use super::carried::{self, CarriedError};
use super::elf::{self, Kind};
use super::replay::Level;

/// Names the preload library, if it does not lie beside this program.
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
    /// Seed of the order in which the simulated GPU does what nothing orders
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Failures to inject, as `mmu-fault@3,memory-full=1G`; see below
    #[arg(long, value_name = "SPEC")]
    faults: Option<String>,
    /// Write what happens to FILE, one JSON object a line
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// What follows a finding: `abort`, which is the default, or `warn` for all, or by name, as
    /// `uninitialised-read=warn,stale-l2=off`; may be given several times, and the last word wins
    #[arg(long, value_name = "WORDS")]
    lint: Vec<String>,
    /// Do not count or tell of the findings that FILE knows: lines as the summary at the end has them, with reasons
    #[arg(long, value_name = "FILE")]
    suppress: Option<PathBuf>,
    /// What shader code is checked for: strict by default
    #[arg(long, value_enum)]
    checks: Option<Level>,
    /// Write a bundle of every launch that fails to DIR, for `tegra-sim replay`
    #[arg(long, value_name = "DIR")]
    bundles: Option<PathBuf>,
    /// Behave as the Orin of which `orinctl first-contact` wrote FILE, as far as that is modelled
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Be a machine on which something fails, as `no-event,chain-cut=64`; see below
    #[arg(long, value_name = "WORDS")]
    machine: Option<String>,
    /// Answer as the drivers of a release do: r35.4, r36.2, r36.4, r39 or r39:REQUEST
    #[arg(long, value_name = "NAME")]
    release: Option<String>,
    /// Have a desktop, which wants the GPU every 16 ms
    #[arg(long)]
    desktop: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    /// It is in no directory of `PATH`.
    #[error("{0:?} is not found as a program; give its path or put it into PATH")]
    NotFound(OsString),
    /// It cannot be looked at.
    #[error("{path:?} cannot be read: {error}")]
    Unreadable { path: PathBuf, error: io::Error },
    /// Nothing can stand in front of its libc.
    #[error(
        "{0:?} is statically linked: it calls the kernel without a libc that the simulator could \
         stand in front of; link it dynamically"
    )]
    Static(PathBuf),
    /// It is for another processor.
    #[error(
        "{path:?} is for another processor (ELF machine {machine}); run it with a tegra-sim that is \
         built for it, under user-mode emulation"
    )]
    Foreign { path: PathBuf, machine: u16 },
    /// The library is not where it should be.
    #[error(
        "{LIBRARY} is in none of {searched:?}; build it with `cargo build -p tegra-sim-preload`, \
         or name it in {PRELOAD}"
    )]
    NoLibrary { searched: Vec<PathBuf> },
    /// The one that the program carries does not get to where the dynamic linker finds it.
    #[error(transparent)]
    Carried(#[from] CarriedError),
    /// The dynamic linker separates names by spaces and colons.
    #[error("{0:?}: the dynamic linker cannot preload a path with a space or a colon; move it")]
    UnfitPath(PathBuf),
    /// An option or a variable says what nothing understands.
    #[error("{0}")]
    Config(String),
    /// The profile is none.
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
    /// Becomes the program. Comes back only if that fails: the exit status is the program's own.
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
            // The program may change its directory before it opens a node.
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

/// Reads what the program's simulator will read, to say now what it would not understand, and of an option in
/// the option's name.
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

/// The file that a shell would start.
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

/// Whether the dynamic linker will load the program.
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

/// Beside this program, where cargo puts what tests need, or in the `lib` of an installation; else the one that
/// the program carries.
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
    match carried::library() {
        Some(library) if env::var_os(PRELOAD).is_none() => Ok(library?),
        _ => Err(RunError::NoLibrary { searched }),
    }
}

/// The library in front of what is preloaded already.
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
