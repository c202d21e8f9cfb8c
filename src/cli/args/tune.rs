//! Arguments of `orinctl tune` and what it does besides.

use std::path::PathBuf;

use clap::Subcommand;

use super::ModelChoice;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  orinctl tune
      search for two minutes, store what was found
  orinctl tune -m model.gguf --beam 4 --budget 600
  orinctl tune --kernel 'gate Q6_K'
      one family and type
  orinctl tune --network policy.onnx --shape observation=1,12
      the kernels that are made for a network's groups
  orinctl tune verify
      do the winners still win?
  orinctl tune sweep --param threads_per_row=4,8,16
  orinctl tune show
      what is stored, and whether it is used

With a daemon on the socket its loaded model is tuned; requests wait meanwhile. Without one a private \
daemon is started. Ctrl-C keeps what was found; the next call continues from there.")]
pub(crate) struct Tune {
    #[command(subcommand)]
    pub(crate) command: Option<TuneCommand>,
    #[command(flatten)]
    pub(crate) search: TuneSearch,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TuneCommand {
    /// Measure the winners once more and say which no longer win
    Verify(TuneSearch),
    /// Measure a model end to end for each value of a parameter
    Sweep(TuneSweep),
    /// Show what was found, and whether it is used; needs no daemon
    Show(TuneShow),
    /// Write what was found on one device to a file
    Export(TuneExport),
    /// Import what was found on another machine with the same device
    Import(TuneImport),
    /// Show what changed between two files, or between two days
    Diff(TuneDiff),
}

/// Where the store is.
#[derive(Debug, clap::Args)]
pub(crate) struct TunePlace {
    /// Directory of what was found [default: the daemon's own default]
    #[arg(long, value_name = "DIR")]
    pub(crate) tune_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneShow {
    #[command(flatten)]
    pub(crate) place: TunePlace,
    /// Print JSON: everything, used or not
    #[arg(long)]
    pub(crate) json: bool,
    /// Show also what is not used, and why
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneExport {
    #[command(flatten)]
    pub(crate) place: TunePlace,
    /// The file; - writes to standard output
    pub(crate) file: PathBuf,
    /// The device, as `orinctl tune show` names its file [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneImport {
    #[command(flatten)]
    pub(crate) place: TunePlace,
    /// A file that `orinctl tune export` wrote
    pub(crate) file: PathBuf,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl tune diff before.toml after.toml
  orinctl tune diff 2026-11-01 2026-11-20

Of a file only what is still in it counts: an entry that a later one of the same kernels replaced is \
gone.")]
pub(crate) struct TuneDiff {
    #[command(flatten)]
    pub(crate) place: TunePlace,
    /// A file, or a day (UTC): what was known at its end
    pub(crate) before: String,
    /// Another file or day
    pub(crate) after: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneSearch {
    #[command(flatten)]
    pub(crate) model: ModelChoice,
    /// An ONNX file, whose groups of tensor operations are tuned and not the model
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub(crate) network: Option<PathBuf>,
    /// An input's shape, where the network leaves extents open
    #[arg(long, value_name = "NAME=N,N,..", value_parser = super::run::pair, requires = "network")]
    pub(crate) shape: Vec<(String, String)>,
    /// Choices that go on to the next level, 1 to 8
    #[arg(long, value_name = "WIDTH", default_value_t = 3)]
    pub(crate) beam: usize,
    /// Seconds of measuring
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    pub(crate) budget: f64,
    /// Only cases whose name contains this: a family, a type, a shape
    #[arg(long, value_name = "TEXT")]
    pub(crate) kernel: Option<String>,
    /// Measure known cases again
    #[arg(long)]
    pub(crate) again: bool,
    /// Count what a simulated Orin does instead of measuring time: under `tegra-sim run --trace FILE`
    #[arg(long)]
    pub(crate) counted: bool,
    /// Samples for one case at most
    #[arg(long, value_name = "N", default_value_t = 4000)]
    pub(crate) samples: u64,
    /// Sequences at once of a private daemon: its batch sizes are tuned
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) slots: usize,
    /// Bytes of weights that take turns so that they come from memory [default: twice the caches]
    #[arg(long, value_name = "BYTES", hide = true)]
    pub(crate) cold_bytes: Option<u64>,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl tune sweep --param threads_per_row=4,8,16,32
      on a GPU
  orinctl tune sweep --param prefetch_bytes=1024,8192,32768
      on a CPU
  orinctl tune sweep --param tile_rows=16,32,64 --prefill 512
  orinctl tune sweep
      what is stored, end to end

A private daemon loads the model once for each setting and round. Values are compared with the \
heuristic: what is stored is not used beside them.")]
pub(crate) struct TuneSweep {
    #[command(flatten)]
    pub(crate) model: ModelChoice,
    /// The parameter and its values [default: what is stored, compared with the heuristic]
    #[arg(long, value_name = "NAME=VALUE,..")]
    pub(crate) param: Option<String>,
    /// Tokens to generate
    #[arg(short = 'n', long = "gen-tokens", value_name = "N", default_value_t = 64)]
    pub(crate) tokens: u32,
    /// Evaluate a prompt of N tokens instead
    #[arg(long, value_name = "N")]
    pub(crate) prefill: Option<u32>,
    /// Sequences at once
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    pub(crate) batch: u32,
    /// Repetitions in a round
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    pub(crate) repetitions: u32,
    /// Rounds over all values
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
