//! Arguments of `orinctl verify`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl verify
      the records that bench --save made
  orinctl verify before.json

Exit code: 0 when every number follows from its samples and nothing is missing, 1 when one does not or a \
line is damaged, 2 when something is missing that another needs to measure it again.")]
pub(crate) struct Verify {
    /// File of records, or a report of bench --json [default: bench.jsonl in the state directory]
    pub(crate) file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
