//! `tegra-sim replay`: a failed launch, run again.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use tegra_sim::bundle::Bundle;
use tegra_sim::config::Checks;
use tegra_sim::engine::Replay as Run;

/// Arguments of `replay`.
#[derive(Debug, clap::Args)]
pub(super) struct Replay {
    /// What the simulator wrote to the directory of TEGRA_SIM_BUNDLES
    file: PathBuf,
    /// What shader code is checked for: what it was checked for then, by default
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
    /// As the environment says it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Timing => "timing",
            Self::Fast => "fast",
            Self::Strict => "strict",
            Self::Race => "race",
        }
    }
}

impl Replay {
    /// Runs the launch. Fails if it does not fail as before.
    pub(super) fn print(&self) -> Result<ExitCode, Box<dyn Error>> {
        let checks = self.checks.map(|level| match level {
            Level::Timing => Checks::Timing,
            Level::Fast => Checks::Fast,
            Level::Strict => Checks::Strict,
            Level::Race => Checks::Race,
        });
        let replay = Run::run(&Bundle::read(&self.file)?, checks)?;
        let verdict = if replay.is_same() { "the same fault" } else { "NOT the same fault" };
        super::tell(&format!("{replay}{verdict}\n"), &mut io::stdout());
        Ok(if replay.is_same() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
