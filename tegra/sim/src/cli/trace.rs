//! `tegra-sim decode` and `tegra-sim stats`: print and summarise a trace.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::ExitCode;

use tegra_sim::trace::{self, TraceError};

use super::output;

/// Arguments of `decode`.
#[derive(Debug, clap::Args)]
pub(super) struct Decode {
    /// Trace file of `run --trace`
    file: PathBuf,
}

impl Decode {
    /// Prints the trace.
    pub(super) fn print(&self) -> Result<ExitCode, Box<dyn Error>> {
        let mut out = output::Escaped::new(io::BufWriter::new(io::stdout().lock()));
        let result = trace::decode(&self.file, &mut out);
        match result.and_then(|()| flush(&mut out, &self.file)) {
            // `tegra-sim decode FILE | head` succeeds.
            Err(TraceError::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => {
                Ok(ExitCode::SUCCESS)
            }
            result => Ok(result.map(|()| ExitCode::SUCCESS)?),
        }
    }
}

fn flush(out: &mut impl io::Write, file: &std::path::Path) -> Result<(), TraceError> {
    out.flush().map_err(|source| TraceError::Io { path: file.display().to_string(), source })
}

/// Arguments of `stats`.
#[derive(Debug, clap::Args)]
pub(super) struct Stats {
    /// Trace file of `run --trace`
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Stats {
    /// Prints the statistics.
    pub(super) fn print(&self) -> Result<ExitCode, Box<dyn Error>> {
        let stats = trace::stats(&self.file)?;
        let text = if self.json {
            serde_json::to_string_pretty(&stats)? + "\n"
        } else {
            stats.to_string()
        };
        output::write(&text, &mut io::stdout());
        Ok(ExitCode::SUCCESS)
    }
}
