//! Arguments of `orinctl verify`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl verify
      the records of bench --save
  orinctl verify before.json

Exit code: 0 if every number follows from its samples and nothing is missing, 1 if one does not or a \
line is damaged, 2 if a fact is missing that is needed to repeat the measurement.")]
pub(crate) struct Verify {
    /// Record file, or a report of bench --json [default: bench.jsonl in the state directory]
    pub(crate) file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
