//! `tegra-sim replay`: a failed launch, run again.

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
    /// What orind wrote to `faults` in its state directory when a GPU faulted, or the simulator to the
    /// directory of TEGRA_SIM_BUNDLES
    file: PathBuf,
    /// What shader code is checked for: by default what it was checked for then, `fast` on a real GPU
    #[arg(long, value_enum)]
    checks: Option<Level>,
}

/// What shader code is checked for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Level {
    /// Nothing, and what was launched before alike is only timed
    Timing,
    /// What hardware refuses
    Fast,
    /// Values that nobody gave to a register or to shared memory, too
    Strict,
    /// Races on shared memory, too
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
    /// Runs the launches. Fails if none fails as before.
    pub(super) fn print(&self) -> Result<ExitCode, Box<dyn Error>> {
        let replay = Run::run(&Bundle::read(&self.file)?, self.checks.map(Level::checks))?;
        let verdict = if replay.is_same() { "the same fault" } else { "NOT the same fault" };
        super::output::write(&format!("{replay}{verdict}\n"), &mut io::stdout());
        Ok(if replay.is_same() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
