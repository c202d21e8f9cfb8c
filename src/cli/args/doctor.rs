//! Arguments of `orinctl doctor`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl doctor
  orinctl doctor --config /etc/orind/orind.toml
      for the model that is configured there
  orinctl doctor --report report.json
      a file to show to others

Exit code: 0 when nothing needs to be fixed, 3 with warnings, 4 with failures. Nothing is changed.")]
pub(crate) struct Doctor {
    /// Configuration of the daemon [default: what a daemon without one uses]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write findings and the machine's state to a file without names of users, hosts or paths
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Let a GPU be tried again that the machine went down with: forget what stands against devices
    #[arg(long)]
    pub(crate) retry_gpu: bool,
}
