//! Arguments of `orinctl doctor`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl doctor
  orinctl doctor --config /etc/orind/orind.toml
      for the model in that configuration
  orinctl doctor --report report.json
      a file to share

Exit code: 0 if nothing needs fixing, 3 with warnings, 4 with failures. Nothing is changed.")]
pub(crate) struct Doctor {
    /// Configuration of the daemon [default: the daemon's defaults]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write findings and machine state to a file, without names of users, hosts or paths
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Allow a GPU to be tried again after it took the machine down: clear the records that disable
    /// devices
    #[arg(long)]
    pub(crate) retry_gpu: bool,
}
