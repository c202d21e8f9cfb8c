//! Arguments of `orinctl bench`.

use std::path::PathBuf;
use std::time::Duration;

use super::{Format, ModelChoice, RecordsFile};
use analysis::serving::Lengths;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl bench
      choose tests that fit into two minutes
  orinctl bench -p 512 -n 128 -r 5
      llama-bench's defaults
  orinctl bench -n 64 -d 0,1024,4096 -p 0
      decode against depth, no prefill
  orinctl bench -n 64 -b 1,2,4,8 -p 0
      several sequences at once
  orinctl bench --json > before.json
  orinctl bench --save
      keep a complete record
  orinctl bench --against last --threshold 5%
      did it become slower since the last record?
  orinctl bench --against old/orinctl --pairs 20
      the same, measured in turn with another build: finds less on a machine that is not quiet
  orinctl bench --serve --rate 2 --seconds 60 --ttft-limit 500ms --itl-limit 50ms
      a server under load: Poisson arrivals, mixed lengths, goodput
  orinctl bench --serve --clients 8 --server localhost:8000
      a server of OpenAI's routes under 8 clients

With a daemon on the socket its loaded model is measured; requests wait meanwhile. Without one a \
private daemon is started, and stopped at the end.

Exit code: 3 when the run is INVALID, since the machine changed during it. With --against: 0 same or \
faster, 1 slower, 2 cannot tell, 3 INVALID or not measured. docs/benchmarking.md explains the verdicts.")]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) model: ModelChoice,
    /// Prompt lengths [default: some of 32,128,256,512 that fit the budget; 0: none]
    #[arg(short, long = "prompt-tokens", value_name = "N,..", value_delimiter = ',')]
    pub(crate) prompts: Option<Vec<u32>>,
    /// Tokens to generate [default: one of 128,64,32 that fits the budget; 0: none]
    #[arg(short = 'n', long = "gen-tokens", value_name = "N,..", value_delimiter = ',')]
    pub(crate) generate: Option<Vec<u32>>,
    /// Tokens already in the context when timing starts
    #[arg(short, long = "depth", value_name = "N,..", value_delimiter = ',', default_value = "0")]
    pub(crate) depths: Vec<u32>,
    /// Sequences generated at once
    #[arg(short, long = "batch", value_name = "N,..", value_delimiter = ',', default_value = "1")]
    pub(crate) batches: Vec<u32>,
    /// Repetitions of each test [default: as many as fit the budget, 3 to 10]
    #[arg(short, long, value_name = "N")]
    pub(crate) repetitions: Option<u32>,
    /// Untimed rounds before the first timed one
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) warmup: u32,
    /// Seconds that the whole run may take where tests are chosen automatically
    #[arg(long, value_name = "SECONDS", default_value_t = 110.0)]
    pub(crate) budget: f64,
    /// Seed of the random prompts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Append a complete record to the file of records
    #[arg(long)]
    pub(crate) save: bool,
    /// Hold the run against a record: `last`, a commit, a file; or measure in turn with another build: its orinctl
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["csv", "markdown"])]
    pub(crate) against: Option<String>,
    /// How much slower a test may become
    #[arg(long, value_name = "PERCENT", default_value = "5%", requires = "against", value_parser = percent)]
    pub(crate) threshold: f64,
    /// Turns with another build, in pairs; at least 6 for a verdict
    #[arg(long, value_name = "N", default_value_t = 10, requires = "against", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) pairs: u32,
    #[command(flatten)]
    pub(crate) records: RecordsFile,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

/// A server under load, in place of the engine by itself.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Serving")]
pub(crate) struct Serve {
    /// Measure serving: clients send requests of mixed lengths at planned times. Ctrl-C keeps what was
    /// measured
    #[arg(long, conflicts_with_all = [
        "prompts", "generate", "depths", "batches", "repetitions", "warmup", "budget", "save", "against", "csv", "markdown",
    ])]
    pub(crate) serve: bool,
    /// Requests under way at once, at most [default: 4; 256 with --rate]
    #[arg(long, value_name = "N", requires = "serve", value_parser = crate::serve::clients)]
    pub(crate) clients: Option<usize>,
    /// Requests a second, as a Poisson process [default: each client sends when it has its answer]
    #[arg(long, value_name = "R", requires = "serve", value_parser = crate::serve::rate)]
    pub(crate) rate: Option<f64>,
    /// For how long requests are sent
    #[arg(long, value_name = "TIME", requires = "serve", default_value = "30s", value_parser = crate::serve::time)]
    pub(crate) seconds: Duration,
    /// Tokens of prompts, drawn log-uniformly
    #[arg(
        long,
        visible_alias = "lengths",
        value_name = "N-M",
        requires = "serve",
        default_value = "32-512"
    )]
    pub(crate) prompt_lengths: Lengths,
    /// Tokens of answers, drawn log-uniformly
    #[arg(long, value_name = "N-M", requires = "serve", default_value = "16-128")]
    pub(crate) answer_lengths: Lengths,
    /// A prompt of so many tokens comes beside all others after a third of the time: what it does to those that are
    /// being answered
    #[arg(long, value_name = "N", requires = "serve", value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    pub(crate) long_prompt: Option<u32>,
    /// Goodput: time to first token of a good answer
    #[arg(long, value_name = "TIME", requires = "serve", default_value = "500ms", value_parser = crate::serve::time)]
    pub(crate) ttft_limit: Duration,
    /// Goodput: mean time between the tokens of a good answer
    #[arg(long, value_name = "TIME", requires = "serve", default_value = "50ms", value_parser = crate::serve::time)]
    pub(crate) itl_limit: Duration,
    /// A server of OpenAI's routes instead of the daemon; it has to take token ids
    #[arg(long, value_name = "HOST:PORT", requires = "serve", conflicts_with_all = [
        "private", "backend", "threads", "cpu_isa",
    ])]
    pub(crate) server: Option<String>,
    /// File of the token for --server [default: $ORIND_TOKEN]
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(crate) server_token_file: Option<PathBuf>,
    /// Entries of that server's vocabulary, from whose middle prompts are drawn
    #[arg(long, value_name = "N", requires = "server", default_value_t = 32000, value_parser = clap::value_parser!(u32).range(16..))]
    pub(crate) vocabulary: u32,
    /// Write every request for NVIDIA's AIPerf: its profile_export.jsonl
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub(crate) aiperf: Option<PathBuf>,
}

/// `5%` or `5`, as a fraction.
fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 100.0 => Ok(percent / 100.0),
        _ => Err("a percentage between 0 and 100 is needed, such as 5%".into()),
    }
}
