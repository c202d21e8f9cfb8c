//! `tegra-sim replay`: replays a failed launch.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use tegra_bundle::Bundle;
use tegra_sim::config::Checks;
use tegra_sim::engine::Replay as Run;

/// Arguments of `replay`.
#[derive(Debug, clap::Args)]
pub(super) struct Replay {
    /// Bundle that orind wrote to `faults` in its state directory, or the simulator to the
    /// directory of TEGRA_SIM_BUNDLES
    file: PathBuf,
    /// Checks of shader code [default: those of the original run, `fast` for a real GPU]
    #[arg(long, value_enum)]
    checks: Option<Level>,
}

/// Checks of shader code.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Level {
    /// None; repeated launches are timed and not executed
    Timing,
    /// Faults that hardware raises
    Fast,
    /// Also uninitialised registers and shared memory
    Strict,
    /// Also races on shared memory
    Race,
}

impl Level {
    pub(super) fn checks(self) -> Checks {
        match self {
            Self::Timing => Checks::Timing,
            Self::Fast => Checks::Fast,
            Self::Strict => Checks::Strict,
            Self::Race => Checks::Race,
        }
    }
}

impl Replay {
    /// Replays the launches; fails if the fault is not reproduced.
    pub(super) fn print(&self) -> Result<ExitCode, Box<dyn Error>> {
        let replay = Run::run(&Bundle::read(&self.file)?, self.checks.map(Level::checks))?;
        let verdict = if replay.is_same() { "the same fault" } else { "NOT the same fault" };
        super::output::write(&format!("{replay}{verdict}\n"), &mut io::stdout());
        Ok(if replay.is_same() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
