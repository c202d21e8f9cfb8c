//! Arguments of `orinctl bench`.

use std::path::PathBuf;
use std::time::Duration;

use super::{Format, ModelChoice, RecordsFile};
use analysis::serving::Lengths;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl bench
      tests chosen to fit into two minutes
  orinctl bench -p 512 -n 128 -r 5
      llama-bench's defaults
  orinctl bench -n 64 -d 0,1024,4096 -p 0
      decode against depth, no prefill
  orinctl bench -n 64 -b 1,2,4,8 -p 0
      several sequences at once
  orinctl bench --json > before.json
  orinctl bench --save
      append the result to the record file
  orinctl bench --against last --threshold 5%
      is this build slower than the last record?
  orinctl bench --against old/orinctl --pairs 20
      compare with another build in alternating runs; suits a noisy machine
  orinctl bench --serve --rate 2 --seconds 60 --ttft-limit 500ms --itl-limit 50ms
      a server under load: Poisson arrivals, mixed lengths, goodput
  orinctl bench --serve --clients 8 --server localhost:8000
      an OpenAI-compatible server under 8 clients

If a daemon listens on the socket, its loaded model is measured and requests wait. Otherwise a \
private daemon is started and stopped at the end.

Exit code: 3 if the run is INVALID because the machine changed during it. With --against: 0 same or \
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
    /// Time limit in seconds for a run whose tests are chosen automatically
    #[arg(long, value_name = "SECONDS", default_value_t = 110.0)]
    pub(crate) budget: f64,
    /// Seed of the random prompts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Append a complete record to the record file
    #[arg(long)]
    pub(crate) save: bool,
    /// Compare the run with a record (`last`, a commit, a file), or alternate with another build's
    /// orinctl
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["csv", "markdown"])]
    pub(crate) against: Option<String>,
    /// Largest slowdown of a test that still counts as the same
    #[arg(long, value_name = "PERCENT", default_value = "5%", requires = "against", value_parser = percent)]
    pub(crate) threshold: f64,
    /// Pairs of alternating runs with the other build; a verdict needs at least 6
    #[arg(long, value_name = "N", default_value_t = 10, requires = "against", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) pairs: u32,
    #[command(flatten)]
    pub(crate) records: RecordsFile,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

/// Load test of a server, instead of measuring the engine alone.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Serving")]
pub(crate) struct Serve {
    /// Measure serving: clients send requests of mixed lengths at planned times. Ctrl-C prints what
    /// was measured
    #[arg(long, conflicts_with_all = [
        "prompts", "generate", "depths", "batches", "repetitions", "warmup", "budget", "save", "against", "csv", "markdown",
    ])]
    pub(crate) serve: bool,
    /// Maximum number of concurrent requests [default: 4; 256 with --rate]
    #[arg(long, value_name = "N", requires = "serve", value_parser = crate::serve::clients)]
    pub(crate) clients: Option<usize>,
    /// Requests per second, as a Poisson process [default: each client sends its next request after
    /// its answer]
    #[arg(long, value_name = "R", requires = "serve", value_parser = crate::serve::rate)]
    pub(crate) rate: Option<f64>,
    /// Duration of sending
    #[arg(long, value_name = "TIME", requires = "serve", default_value = "30s", value_parser = crate::serve::time)]
    pub(crate) seconds: Duration,
    /// Prompt lengths in tokens, drawn log-uniformly
    #[arg(
        long,
        visible_alias = "lengths",
        value_name = "N-M",
        requires = "serve",
        default_value = "32-512"
    )]
    pub(crate) prompt_lengths: Lengths,
    /// Answer lengths in tokens, drawn log-uniformly
    #[arg(long, value_name = "N-M", requires = "serve", default_value = "16-128")]
    pub(crate) answer_lengths: Lengths,
    /// Send one more prompt of N tokens after a third of the time, and report how it delays the
    /// running answers
    #[arg(long, value_name = "N", requires = "serve", value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    pub(crate) long_prompt: Option<u32>,
    /// Goodput: maximum time to first token
    #[arg(long, value_name = "TIME", requires = "serve", default_value = "500ms", value_parser = crate::serve::time)]
    pub(crate) ttft_limit: Duration,
    /// Goodput: maximum mean time between tokens
    #[arg(long, value_name = "TIME", requires = "serve", default_value = "50ms", value_parser = crate::serve::time)]
    pub(crate) itl_limit: Duration,
    /// OpenAI-compatible server to measure instead of the daemon; it must accept token ids as
    /// prompts
    #[arg(long, value_name = "HOST:PORT", requires = "serve", conflicts_with_all = [
        "private", "backend", "threads", "cpu_isa",
    ])]
    pub(crate) server: Option<String>,
    /// File with the API key for --server [default: $ORIND_TOKEN]
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(crate) server_token_file: Option<PathBuf>,
    /// Vocabulary size of that server; prompts are drawn from the middle of the vocabulary
    #[arg(long, value_name = "N", requires = "server", default_value_t = 32000, value_parser = clap::value_parser!(u32).range(16..))]
    pub(crate) vocabulary: u32,
    /// Write every request in the format of NVIDIA AIPerf (profile_export.jsonl)
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub(crate) aiperf: Option<PathBuf>,
}

/// Parses `5%` or `5` as a fraction.
fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 100.0 => Ok(percent / 100.0),
        _ => Err("expected a percentage between 0 and 100, such as 5%".into()),
    }
}
