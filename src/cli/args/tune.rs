//! Arguments of `orinctl tune` and its subcommands.

use std::path::PathBuf;

use clap::Subcommand;

use super::ModelChoice;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  orinctl tune
      search for two minutes and store the results
  orinctl tune -m model.gguf --beam 4 --budget 600
  orinctl tune --kernel 'gate Q6_K'
      one kernel family and type
  orinctl tune --network policy.onnx --shape observation=1,12
      the generated kernels of an ONNX network
  orinctl tune verify
      check that the stored choices are still fastest
  orinctl tune sweep --param threads_per_row=4,8,16
  orinctl tune show
      list the stored choices and whether they are used

If a daemon listens on the socket, its loaded model is tuned and requests wait. Otherwise a private \
daemon is started. Ctrl-C keeps the results so far; the next call continues from there.")]
pub(crate) struct Tune {
    #[command(subcommand)]
    pub(crate) command: Option<TuneCommand>,
    #[command(flatten)]
    pub(crate) search: TuneSearch,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TuneCommand {
    /// Measure the stored choices again and report which are no longer fastest
    Verify(TuneSearch),
    /// Measure a model end to end for each value of a parameter
    Sweep(TuneSweep),
    /// Show the stored choices and whether they are used; needs no daemon
    Show(TuneShow),
    /// Write the choices for one device to a file
    Export(TuneExport),
    /// Import choices that were measured on another machine with the same device
    Import(TuneImport),
    /// Show the changes between two files or between two days
    Diff(TuneDiff),
}

/// Location of the store.
#[derive(Debug, clap::Args)]
pub(crate) struct TunePlace {
    /// Directory of the store [default: the daemon's default]
    #[arg(long, value_name = "DIR")]
    pub(crate) tune_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneShow {
    #[command(flatten)]
    pub(crate) place: TunePlace,
    /// Print JSON with all entries, used or not
    #[arg(long)]
    pub(crate) json: bool,
    /// Also show unused entries, with the reason
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneExport {
    #[command(flatten)]
    pub(crate) place: TunePlace,
    /// File to write; - writes to standard output
    pub(crate) file: PathBuf,
    /// Device, by the name in `orinctl tune show` [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneImport {
    #[command(flatten)]
    pub(crate) place: TunePlace,
    /// File written by `orinctl tune export`
    pub(crate) file: PathBuf,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl tune diff before.toml after.toml
  orinctl tune diff 2026-11-01 2026-11-20

Only the current entries of a file are compared; an entry that a later one of the same kernels replaced \
is gone.")]
pub(crate) struct TuneDiff {
    #[command(flatten)]
    pub(crate) place: TunePlace,
    /// File, or day (UTC): the state at the end of that day
    pub(crate) before: String,
    /// Another file or day
    pub(crate) after: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneSearch {
    #[command(flatten)]
    pub(crate) model: ModelChoice,
    /// Tune the generated kernels of this ONNX file instead of the model
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub(crate) network: Option<PathBuf>,
    /// Shape of an input whose dimensions the network leaves open
    #[arg(long, value_name = "NAME=N,N,..", value_parser = super::run::pair, requires = "network")]
    pub(crate) shape: Vec<(String, String)>,
    /// Candidates kept at each level of the search, 1 to 8
    #[arg(long, value_name = "WIDTH", default_value_t = 3)]
    pub(crate) beam: usize,
    /// Time limit for measuring, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    pub(crate) budget: f64,
    /// Tune only cases whose name contains this: a family, a type, a shape
    #[arg(long, value_name = "TEXT")]
    pub(crate) kernel: Option<String>,
    /// Measure known cases again
    #[arg(long)]
    pub(crate) again: bool,
    /// Count the work of a simulated Orin instead of measuring time: under `tegra-sim run --trace
    /// FILE`
    #[arg(long)]
    pub(crate) counted: bool,
    /// Maximum number of samples per case
    #[arg(long, value_name = "N", default_value_t = 4000)]
    pub(crate) samples: u64,
    /// Slots of a private daemon: its batch sizes are tuned
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) slots: usize,
    /// Bytes of weights to rotate through so that they come from memory [default: twice the caches]
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
      a GPU parameter
  orinctl tune sweep --param prefetch_bytes=1024,8192,32768
      a CPU parameter
  orinctl tune sweep --param tile_rows=16,32,64 --prefill 512
  orinctl tune sweep
      stored choices against the heuristic, end to end

A private daemon loads the model once per setting and round. Values are compared with the \
heuristic; stored choices are not used.")]
pub(crate) struct TuneSweep {
    #[command(flatten)]
    pub(crate) model: ModelChoice,
    /// Parameter and its values [default: compare the stored choices with the heuristic]
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
    /// Repetitions per round
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    pub(crate) repetitions: u32,
    /// Rounds over all values
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
