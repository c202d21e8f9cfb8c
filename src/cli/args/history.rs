//! Arguments of `orinctl history`.

use super::RecordsFile;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl history --plot
  orinctl history --model llama-3.2-1b-q6_k --test tg128

A change is marked if it is larger than the spreads of both records.")]
pub(crate) struct History {
    /// Plot the interval of each record
    #[arg(long, conflicts_with = "json")]
    pub(crate) plot: bool,
    /// Only models whose name contains this
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) model: Option<String>,
    /// Only this device
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Only this test, such as tg128
    #[arg(long, value_name = "NAME")]
    pub(crate) test: Option<String>,
    #[command(flatten)]
    pub(crate) records: RecordsFile,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
