//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::bench::serving::Lengths;
use crate::parity::fingerprint::LONGEST;
use crate::wording;

/// Control orind, the daemon that runs GGUF language models, and measure with it.
#[derive(Debug, Parser)]
#[command(name = "orinctl", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  orinctl bench
      measure; needs no daemon and no model file
  orinctl bench -m model.gguf -p 512 -n 128
      the tests that llama-bench runs
  orinctl generate -m model.gguf 'The capital of France is'
  orinctl status
      what the daemon is doing
  orinctl plan synthetic:llama-3.2-1b:q6_k
      what one token costs, step by step

A MODEL is a GGUF file, a name that `orinctl models` lists, or synthetic:NAME: seeded random \
weights in the shape of a real model.")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) connection: Connection,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Subcommands that ask no daemon, and those of `tune`.
const ALONE: [&str; 13] = [
    "sweep",
    "compare",
    "plan",
    "profile",
    "parity",
    "perplexity",
    "kld",
    "quantize",
    "first-contact",
    "install",
    "uninstall",
    "verify",
    "history",
];
const ALONE_IN_TUNE: [&str; 4] = ["show", "export", "import", "diff"];

impl Args {
    /// The definition, in which only those who ask a daemon tell how to reach one.
    pub(super) fn definition() -> clap::Command {
        let mut command = Self::command();
        let global = command.get_arguments().filter(|option| option.is_global_set());
        let hidden: Vec<clap::Arg> = global.map(|option| option.clone().hide(true)).collect();
        // What a subcommand has of its own it does not get from above.
        let hide = |command: clap::Command| command.args(hidden.clone());
        for name in ALONE {
            command = command.mut_subcommand(name, hide);
        }
        for name in ALONE_IN_TUNE {
            command = command.mut_subcommand("tune", |tune| tune.mut_subcommand(name, hide));
        }
        command
    }

    /// What the command line says; help, and what is wrong with it, ends the program.
    pub(super) fn read() -> Self {
        let mut definition = Self::definition();
        let matches = definition.try_get_matches_from_mut(std::env::args_os());
        matches
            .and_then(|matches| Self::from_arg_matches(&matches))
            .unwrap_or_else(|error| wording::command_line(error, &definition).exit())
    }
}

/// Where the daemon is.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "The daemon")]
pub(super) struct Connection {
    /// Socket of the daemon [default: the daemon's own default]
    #[arg(long, global = true, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Port of the daemon instead, here or on another machine; where it needs a token, $ORIND_TOKEN is
    /// shown
    #[arg(long, global = true, value_name = "HOST:PORT", conflicts_with = "socket")]
    pub(super) tcp: Option<String>,
    /// File of the token for --tcp
    #[arg(long, global = true, value_name = "FILE", requires = "tcp")]
    pub(super) token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Measure prefill and decode, and compare them with the machine's memory bandwidth
    Bench(Bench),
    /// Hold other engines against this one on the same model: speed, times, memory, and whether they
    /// compute the same; needs no daemon
    Compare(Compare),
    /// Measure every combination of models, types, threads, depths and more, into a file that the same
    /// command goes on with; needs no daemon
    Sweep(Sweep),
    /// Hold records against their samples, and say what is missing; needs no daemon
    Verify(Verify),
    /// Show how speeds changed from record to record; needs no daemon
    History(History),
    /// Continue a text, or answer a message
    Generate(Generate),
    /// Show what the daemon is doing
    Status(Json),
    /// Watch daemon and machine live: speed, queue, KV cache, clocks, power, heat
    Top(Top),
    /// Find what keeps models from running, or from running fast, on this machine, and how to fix it
    Doctor(Doctor),
    /// List the models that can be loaded
    Models(Json),
    /// Load a model in place of the loaded one
    Load(Load),
    /// Unload the model
    Unload,
    /// Print the path of the daemon's socket, for curl and others
    #[command(after_help = "\
Example:
  curl --unix-socket \"$(orinctl socket)\" http://localhost/v1/models")]
    Socket,
    /// Show the plan of one step before and after fusion, and what it costs; needs no daemon
    Plan(Plan),
    /// Time every step of decoding a token on a device and compare it with the memory bandwidth;
    /// needs no daemon
    Profile(Profile),
    /// Compare devices with the reference: single steps, and a model's logits; needs no daemon
    Parity(Parity),
    /// Make one hash of what a model answers on a device, the same on every other; needs no daemon
    Fingerprint(Fingerprint),
    /// Measure how well models predict a text; needs no daemon
    Perplexity(Perplexity),
    /// Measure what quantising has cost models: divergence from their F16 over a text; needs no daemon
    Kld(Kld),
    /// Write a model anew in another type of weights; needs no daemon
    Quantize(Quantize),
    /// Run experiments on a real Orin and write the results to a file; needs no daemon
    FirstContact(FirstContact),
    /// Run one experiment of first-contact
    #[command(hide = true, name = tegra_probe::runner::CHILD_COMMAND)]
    Experiment(Experiment),
    /// Install the programs and the systemd service on this machine; needs no daemon
    #[command(after_help = "\
Examples:
  orinctl install --dry-run
      what would be done
  sudo orinctl install
      into /usr/local
  orinctl install --root stage --prefix /usr
      for a package

An existing configuration is kept. docs/service.md describes the service.")]
    Install(Place),
    /// Remove what `install` has installed; models and configuration stay
    Uninstall(Uninstall),
    /// Find the fastest settings of the kernels on this machine, and store them
    Tune(Tune),
    /// Run as the daemon
    #[command(hide = true)]
    Daemon(Daemon),
}

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
faster, 1 slower, 2 cannot tell, 3 INVALID or not measured. docs/bench.md says how that is found.")]
pub(super) struct Bench {
    #[command(flatten)]
    pub(super) model: ModelChoice,
    /// Prompt lengths [default: some of 32,128,256,512 that fit the budget; 0: none]
    #[arg(short, long = "prompt-tokens", value_name = "N,..", value_delimiter = ',')]
    pub(super) prompts: Option<Vec<u32>>,
    /// Tokens to generate [default: one of 128,64,32 that fits the budget; 0: none]
    #[arg(short = 'n', long = "gen-tokens", value_name = "N,..", value_delimiter = ',')]
    pub(super) generate: Option<Vec<u32>>,
    /// Tokens already in the context when timing starts
    #[arg(short, long = "depth", value_name = "N,..", value_delimiter = ',', default_value = "0")]
    pub(super) depths: Vec<u32>,
    /// Sequences generated at once
    #[arg(short, long = "batch", value_name = "N,..", value_delimiter = ',', default_value = "1")]
    pub(super) batches: Vec<u32>,
    /// Repetitions of each test [default: as many as fit the budget, 3 to 10]
    #[arg(short, long, value_name = "N")]
    pub(super) repetitions: Option<u32>,
    /// Untimed rounds before the first timed one
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) warmup: u32,
    /// Seconds that the whole run may take where tests are chosen automatically
    #[arg(long, value_name = "SECONDS", default_value_t = 110.0)]
    pub(super) budget: f64,
    /// Seed of the random prompts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Append a complete record to the file of records
    #[arg(long)]
    pub(super) save: bool,
    /// Hold the run against a record: `last`, a commit, a file; or measure in turn with another build: its orinctl
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["csv", "markdown"])]
    pub(super) against: Option<String>,
    /// How much slower a test may become
    #[arg(long, value_name = "PERCENT", default_value = "5%", requires = "against", value_parser = percent)]
    pub(super) threshold: f64,
    /// Turns with another build, in pairs; at least 6 for a verdict
    #[arg(long, value_name = "N", default_value_t = 10, requires = "against", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) pairs: u32,
    #[command(flatten)]
    pub(super) records: RecordsFile,
    #[command(flatten)]
    pub(super) format: Format,
    #[command(flatten)]
    pub(super) serve: Serve,
}

/// A server under load, in place of the engine by itself.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Serving")]
pub(super) struct Serve {
    /// Measure serving: clients send requests of mixed lengths at planned times. Ctrl-C keeps what was
    /// measured
    #[arg(long, conflicts_with_all = [
        "prompts", "generate", "depths", "batches", "repetitions", "warmup", "budget", "save", "against", "csv", "markdown",
    ])]
    pub(super) serve: bool,
    /// Requests under way at once, at most [default: 4; 256 with --rate]
    #[arg(long, value_name = "N", requires = "serve", value_parser = super::serve::clients)]
    pub(super) clients: Option<usize>,
    /// Requests a second, as a Poisson process [default: each client sends when it has its answer]
    #[arg(long, value_name = "R", requires = "serve", value_parser = super::serve::rate)]
    pub(super) rate: Option<f64>,
    /// For how long requests are sent
    #[arg(long, value_name = "TIME", requires = "serve", default_value = "30s", value_parser = super::serve::time)]
    pub(super) seconds: Duration,
    /// Tokens of prompts, drawn log-uniformly
    #[arg(
        long,
        visible_alias = "lengths",
        value_name = "N-M",
        requires = "serve",
        default_value = "32-512"
    )]
    pub(super) prompt_lengths: Lengths,
    /// Tokens of answers, drawn log-uniformly
    #[arg(long, value_name = "N-M", requires = "serve", default_value = "16-128")]
    pub(super) answer_lengths: Lengths,
    /// Goodput: time to first token of a good answer
    #[arg(long, value_name = "TIME", requires = "serve", default_value = "500ms", value_parser = super::serve::time)]
    pub(super) ttft_limit: Duration,
    /// Goodput: mean time between the tokens of a good answer
    #[arg(long, value_name = "TIME", requires = "serve", default_value = "50ms", value_parser = super::serve::time)]
    pub(super) itl_limit: Duration,
    /// A server of OpenAI's routes instead of the daemon; it has to take token ids
    #[arg(long, value_name = "HOST:PORT", requires = "serve", conflicts_with_all = [
        "private", "backend", "threads", "cpu_isa",
    ])]
    pub(super) server: Option<String>,
    /// File of the token for --server [default: $ORIND_TOKEN]
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(super) server_token_file: Option<PathBuf>,
    /// Entries of that server's vocabulary, from whose middle prompts are drawn
    #[arg(long, value_name = "N", requires = "server", default_value_t = 32000, value_parser = clap::value_parser!(u32).range(16..))]
    pub(super) vocabulary: u32,
    /// Write every request for NVIDIA's AIPerf: its profile_export.jsonl
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub(super) aiperf: Option<PathBuf>,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl compare -m model.gguf --with llama.cpp --llama-cpp ~/llama.cpp/build/bin
  orinctl compare -m model.gguf --with pytorch,tinygrad --python venv/bin/python --allow weights,activations,kv
  orinctl compare -m model.gguf --with orind:before/orinctl --rounds 10
      another build
  orinctl compare -m model.gguf --with openai:localhost:8000 --allow clock
      a server that runs already, with the same model
  orinctl compare -m model.gguf -d 0,1024,4096 --html report.html
      decode and prefill against depth, and a page with plots beside the table
  orinctl compare --from saved.json --html report.html
      what an earlier comparison printed with --json, as a table and a page

Every round runs each engine once, one process at a time, in an order drawn anew. A peer that is not there \
is named with the command that installs it; one that fails is reported and the others go on. An engine whose \
answers are not the model's never wins. Where something differs that changes the verdict the comparison \
stops, unless that is allowed by name. Ctrl-C ends it with what was measured.

Exit code: 3 when the run is INVALID, since the machine changed during it.")]
pub(super) struct Compare {
    /// GGUF file or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", default_value = super::session::DEFAULT_MODEL)]
    pub(super) model: String,
    /// The other engines: llama.cpp, tinygrad, pytorch, orind:PATH (another build's orinctl),
    /// openai:HOST:PORT (a server of OpenAI's routes)
    #[arg(long, value_name = "PEER,..", value_delimiter = ',', default_value = "llama.cpp")]
    pub(super) with: Vec<String>,
    /// Prompt lengths; 0: none
    #[arg(
        short,
        long = "prompt-tokens",
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "512"
    )]
    pub(super) prompts: Vec<u32>,
    /// Tokens to generate; 0: none
    #[arg(
        short = 'n',
        long = "gen-tokens",
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "128"
    )]
    pub(super) generate: Vec<u32>,
    /// Tokens already in the context when timing starts
    #[arg(short, long = "depth", value_name = "N,..", value_delimiter = ',', default_value = "0")]
    pub(super) depths: Vec<u32>,
    /// Sequences generated at once
    #[arg(short, long = "batch", value_name = "N,..", value_delimiter = ',', default_value = "1")]
    pub(super) batches: Vec<u32>,
    /// Tokens of the prompts whose first token is timed
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(super) first_prompt: u32,
    /// Tokens streamed after these, each of which is timed
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(super) stream: u32,
    /// Threads of every engine [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Device of every engine: cpu, cuda, nv
    #[arg(long, visible_alias = "device", value_name = "NAME", default_value = "cpu")]
    pub(super) backend: String,
    /// Times that every engine runs; an interval of 95 % takes 6
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,
    /// Seed of prompts and order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Differences that the verdict may have: file, weights, activations, kv, threads, warmup, clock,
    /// flash-attention, built-for, cache
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(super) allow: Vec<String>,
    /// Stop where something else differs (the default)
    #[arg(long, conflicts_with = "no_fair")]
    pub(super) fair: bool,
    /// Go on whatever differs; it is printed all the same
    #[arg(long)]
    pub(super) no_fair: bool,
    /// Do not ask the reference what the model answers, which takes long on large models
    #[arg(long)]
    pub(super) no_reference: bool,
    /// Folder of llama-bench and llama-server [default: PATH]
    #[arg(long, value_name = "FOLDER")]
    pub(super) llama_cpp: Option<PathBuf>,
    /// Python of tinygrad and PyTorch
    #[arg(long, value_name = "FILE", default_value = "python3")]
    pub(super) python: PathBuf,
    /// PyTorch without torch.compile
    #[arg(long)]
    pub(super) pytorch_no_compile: bool,
    /// PyTorch in full precision
    #[arg(long)]
    pub(super) pytorch_no_half: bool,
    /// Say what each number means, and measure nothing
    #[arg(long)]
    pub(super) explain: bool,
    /// Write the report as a page with plots too, for any browser; this build's steps are timed for it
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Print a comparison that --json wrote, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "with", "explain"])]
    pub(super) from: Option<PathBuf>,
    #[command(flatten)]
    pub(super) records: RecordsFile,
    #[command(flatten)]
    pub(super) format: Format,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl sweep -m model-f16.gguf --types f16,q8_0,q6_k,q4_k_m
      what a type costs and gains; quantised files are kept in the cache
  orinctl sweep --models a.gguf,b.gguf --depths 0,1024,4096 -p 0 -n 64
      decode against depth
  orinctl sweep --threads 1,2,4 --batches 1,4,8
      which number of threads, for one sequence and for several
  orinctl sweep --backend nv --threads-per-row 4,8,16,32 -p 0
      a parameter of the kernels; `orinctl tune` finds the best by itself
  orinctl sweep --threads 1,2,16 --neighbours 0,1,2 --quota 100%,50%
      a machine that is not idle, and how much of its fair share is left

Every combination is a point. A round measures each point once, after an untimed run: settings in an order \
drawn by --seed, each in a daemon of its own, and within a setting its tests in such an order. A slow minute of \
the machine so touches all points, and what one start of a process was lucky in is not in all rounds.

Each measurement is a line of the file as soon as it is made. After Ctrl-C the same command goes on where it \
stopped; with more --rounds it adds to what is there. A file of another sweep, build or model is refused.

Exit code: 3 when measurements are INVALID, since the machine changed during them; 130 after Ctrl-C.")]
pub(super) struct Sweep {
    /// GGUF files, or names of synthetic: models
    #[arg(short, long, visible_alias = "model", value_name = "MODEL,..", value_delimiter = ',', default_value = super::session::DEFAULT_MODEL)]
    pub(super) models: Vec<String>,
    /// Types of weights that each model is measured in: files in F16, BF16 or F32 are quantised [default:
    /// as they are]
    #[arg(long, value_name = "TYPE,..", value_delimiter = ',')]
    pub(super) types: Vec<model::mix::Mix>,
    /// Worker threads [default: the cores allowed]
    #[arg(short, long, value_name = "N,..", value_delimiter = ',')]
    pub(super) threads: Vec<usize>,
    /// Threads of a GPU that compute a row of a product [default: what is remembered, or the heuristic]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub(super) threads_per_row: Vec<u32>,
    /// Threads beside it that only spin
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "0", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(super) neighbours: Vec<u32>,
    /// Share of the cores' time that it gets at most; less than 100% takes root and control groups
    #[arg(long = "quota", value_name = "PERCENT,..", value_delimiter = ',', default_value = "100%", value_parser = quota)]
    pub(super) quotas: Vec<u32>,
    /// Prompt lengths; 0: none
    #[arg(
        short,
        long = "prompt-tokens",
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "512"
    )]
    pub(super) prompts: Vec<u32>,
    /// Tokens to generate; 0: none
    #[arg(
        short = 'n',
        long = "gen-tokens",
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "128"
    )]
    pub(super) generate: Vec<u32>,
    /// Tokens already in the context when timing starts
    #[arg(
        short,
        long,
        visible_alias = "depth",
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "0"
    )]
    pub(super) depths: Vec<u32>,
    /// Sequences generated at once
    #[arg(
        short,
        long,
        visible_alias = "batch",
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "1"
    )]
    pub(super) batches: Vec<u32>,
    /// Times that every point is measured; an interval of 95 % takes 6
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,
    /// Seed of prompts and order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Device: auto, nv, cuda, cpu
    #[arg(long, visible_alias = "device", value_name = "NAME")]
    pub(super) backend: Option<String>,
    /// Instruction set of the CPU device: auto, amx, avx512, avx2, neon, scalar
    #[arg(long, value_name = "NAME")]
    pub(super) cpu_isa: Option<String>,
    /// File of the measurements [default: one for each sweep in the state directory]
    #[arg(short, long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) format: Format,
}

/// `50%` or `50`, of all cores.
fn quota(text: &str) -> Result<u32, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<u32>() {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => Err("a percentage from 1 to 100 is needed, such as 50%".into()),
    }
}

/// Where records are.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RecordsFile {
    /// File of records [default: bench.jsonl in the state directory]
    #[arg(long = "records", value_name = "FILE")]
    pub(super) records: Option<PathBuf>,
}

/// `5%` or `5`, as a fraction.
fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 100.0 => Ok(percent / 100.0),
        _ => Err("a percentage between 0 and 100 is needed, such as 5%".into()),
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl verify
      the records that bench --save made
  orinctl verify before.json

Exit code: 0 when every number follows from its samples and nothing is missing, 1 when one does not or a \
line is damaged, 2 when something is missing that another needs to measure it again.")]
pub(super) struct Verify {
    /// File of records, or a report of bench --json [default: bench.jsonl in the state directory]
    pub(super) file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl history --plot
  orinctl history --model llama-3.2-1b-q6_k --test tg128

A change is marked where it is larger than the spreads of both records.")]
pub(super) struct History {
    /// Draw each record's interval
    #[arg(long, conflicts_with = "json")]
    pub(super) plot: bool,
    /// Only models whose name contains this
    #[arg(short, long, value_name = "TEXT")]
    pub(super) model: Option<String>,
    /// Only this device
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<String>,
    /// Only this test, such as tg128
    #[arg(long, value_name = "NAME")]
    pub(super) test: Option<String>,
    #[command(flatten)]
    pub(super) records: RecordsFile,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// How the report is printed; a table for people when none is given.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
pub(super) struct Format {
    /// Print the whole report as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Print one line per test as CSV
    #[arg(long)]
    pub(super) csv: bool,
    /// Print Markdown
    #[arg(long)]
    pub(super) markdown: bool,
}

/// Which model, and how a private daemon loads it.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ModelChoice {
    /// The model [default: the loaded one; synthetic:qwen3-0.6b:q8_0 in a private daemon]
    #[arg(short, long)]
    pub(super) model: Option<String>,
    /// Start a private daemon even when one listens on the socket
    #[arg(long)]
    pub(super) private: bool,
    /// Device of a private daemon: auto, nv, cuda, cpu, reference
    #[arg(long, visible_alias = "device", value_name = "NAME")]
    pub(super) backend: Option<String>,
    /// Worker threads of a private daemon [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Instruction set of a private daemon's CPU device: auto, amx, avx512, avx2, neon, scalar
    #[arg(long, value_name = "NAME")]
    pub(super) cpu_isa: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl generate 'The capital of France is' -n 16
  orinctl generate --chat 'Name three primes.' --temp 0.7 --seed 1
  git diff | orinctl generate --chat -

With --temp 0, the default, the most likely token is taken each time.")]
pub(super) struct Generate {
    #[command(flatten)]
    pub(super) model: ModelChoice,
    /// The text; - reads it from standard input
    #[arg(value_name = "TEXT", required_unless_present = "prompt")]
    pub(super) text: Option<String>,
    /// The text, as an option
    #[arg(short, long, value_name = "TEXT", conflicts_with = "text")]
    pub(super) prompt: Option<String>,
    /// Tokens to generate at most
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 128)]
    pub(super) max_tokens: u32,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(super) temp: f32,
    /// Choose among the K most likely tokens; 0 is all
    #[arg(long, value_name = "K")]
    pub(super) top_k: Option<u32>,
    /// Choose among the most likely tokens that together have probability P
    #[arg(long, value_name = "P")]
    pub(super) top_p: Option<f32>,
    /// Same seed, same answer
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u32>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(super) stop: Vec<String>,
    /// Go on after the model ends its text
    #[arg(long)]
    pub(super) ignore_eos: bool,
    /// Wrap the text as a user's message in the model's chat template
    #[arg(long, conflicts_with = "raw")]
    pub(super) chat: bool,
    /// Continue the text as it is (default)
    #[arg(long)]
    pub(super) raw: bool,
    /// Print nothing but the text
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Top {
    /// Print one view as text and exit; the default where there is no terminal
    #[arg(long)]
    pub(super) once: bool,
    /// Print a line of JSON twice a second, until Ctrl-C
    #[arg(long, conflicts_with = "once")]
    pub(super) json: bool,
    /// Stop after N lines
    #[arg(short = 'n', long = "samples", value_name = "N", requires = "json")]
    pub(super) samples: Option<u64>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl doctor
  orinctl doctor --config /etc/orind/orind.toml
      for the model that is configured there
  orinctl doctor --report report.json
      a file to show to others

Exit code: 0 when nothing needs to be fixed, 3 with warnings, 4 with failures. Nothing is changed.")]
pub(super) struct Doctor {
    /// Configuration of the daemon [default: what a daemon without one uses]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Write findings and the machine's state to a file without names of users, hosts or paths
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Let a GPU be tried again that the machine went down with: forget what stands against devices
    #[arg(long)]
    pub(super) retry_gpu: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl load /models/llama-3.2-1b-q6_k.gguf
  orinctl load synthetic:qwen3-0.6b:q8_0 --slots 4 --context 8192

What is not given comes from the daemon's configuration.")]
pub(super) struct Load {
    /// GGUF file, name from `orinctl models`, or synthetic:NAME
    pub(super) model: String,
    /// Device: auto, nv, cuda, cpu, reference
    #[arg(long, value_name = "NAME")]
    pub(super) backend: Option<String>,
    /// Sequences served at once
    #[arg(long, value_name = "N")]
    pub(super) slots: Option<usize>,
    /// Tokens a sequence has room for; 0 takes the model's own, at most 4096
    #[arg(long, value_name = "N")]
    pub(super) context: Option<usize>,
    /// Rows of one prefill chunk
    #[arg(long, value_name = "N")]
    pub(super) prefill_chunk: Option<usize>,
    /// What keys and values are stored in: f16, q8_0, q4_0
    #[arg(long, value_name = "TYPE")]
    pub(super) kv_type: Option<String>,
    /// Worker threads; 0 takes the cores allowed
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Instruction set of the CPU device: auto, amx, avx512, avx2, neon, scalar
    #[arg(long, value_name = "NAME")]
    pub(super) cpu_isa: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl plan synthetic:tiny-llama:q8_0
  orinctl plan model.gguf --depth 4096
      one token with 4096 before it
  orinctl plan model.gguf --batch 8
      one token for each of 8 sequences
  orinctl plan model.gguf --prefill 512 --full
      every step of a prefill chunk
  orinctl plan model.gguf --profile orin-profile.json
      with an estimate of the speed there")]
pub(super) struct Plan {
    /// GGUF file or synthetic:NAME
    pub(super) model: String,
    /// Plan a prefill chunk of N tokens
    #[arg(long, value_name = "N", conflicts_with = "batch")]
    pub(super) prefill: Option<usize>,
    /// Plan decode of N sequences
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) batch: usize,
    /// Tokens already in the context
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) depth: usize,
    /// Estimate the speed on the Orin whose profile this is, as `orinctl first-contact` writes it
    #[arg(long, value_name = "FILE")]
    pub(super) profile: Option<PathBuf>,
    /// Print every step of every layer
    #[arg(long)]
    pub(super) full: bool,
    /// Print JSON: every step
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl profile synthetic:qwen3-0.6b:q8_0
  orinctl profile model.gguf --depth 2048 --json
  orinctl profile model.gguf --prompt 256 -n 4
      a chunk of a prompt instead of a token
  orinctl profile model.gguf --backend nv --trace token.json
      open it in ui.perfetto.dev
  tegra-sim run -- orinctl profile synthetic:tiny-llama:q8_0 --backend nv

Steps of the same kind in different layers are summed. Bytes are those of weights and KV cache; the \
bandwidth is measured before and after, by the device itself. A GPU's launches are serialised to be \
timed; the last line says how long they take without that. A simulated Orin has a clock of its own: \
no bandwidth is measured there, and % of bandwidth is a dash.")]
pub(super) struct Profile {
    /// GGUF file or synthetic:NAME
    pub(super) model: String,
    /// Tokens already in the context
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) depth: usize,
    /// Tokens to time, or chunks with --prompt
    #[arg(short = 'n', long = "tokens", value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) tokens: u32,
    /// Device: nv, cuda, cpu
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = device::NAMES)]
    pub(super) backend: String,
    /// Time a chunk of N prompt tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub(super) prompt: Option<u32>,
    /// The CPU's worker threads [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<std::num::NonZeroUsize>,
    /// The CPU's instruction set: amx, avx512, avx2, neon, scalar [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub(super) cpu_isa: Option<String>,
    /// Write the last token, or chunk, to a trace file that Perfetto and chrome://tracing open
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl parity
      every device of this machine
  orinctl parity --devices cpu -m model.gguf --prompt 'The capital of France is'
  orinctl parity --devices cuda -m large.gguf --reference cpu --no-steps
  tegra-sim run -- orinctl parity --devices nv
      the NV driver on a simulated Orin

Devices that cannot be used here are skipped, with the reason. Exit code: 0 when all others are within \
the tolerance, 1 when one is not or none could be used.")]
pub(super) struct Parity {
    /// Devices: nv, cuda, cpu, reference
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = "nv,cuda,cpu")]
    pub(super) devices: Vec<String>,
    /// GGUF file or synthetic:NAME
    #[arg(short, long, default_value = "synthetic:tiny-llama:q8_0")]
    pub(super) model: String,
    /// A prompt; may be given several times [default: seeded tokens]
    #[arg(short, long = "prompt", alias = "prompts", value_name = "TEXT")]
    pub(super) prompts: Vec<String>,
    /// Tokens after each prompt
    #[arg(short = 'n', long = "tokens", value_name = "N", default_value_t = 16)]
    pub(super) tokens: usize,
    /// Device that the model's logits are compared with; the reference is slow on large models
    #[arg(long, value_name = "NAME", default_value = "reference")]
    pub(super) reference: String,
    /// Leave out the single steps
    #[arg(long)]
    pub(super) no_steps: bool,
    /// Worker threads of the CPU [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Print JSON: every step of every prompt
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl fingerprint model.gguf
      the hash, and one of each part
  orinctl fingerprint model.gguf --backend cuda --expect 0123456789abcdef0123456789abcdef
      does this GPU compute what the machine with that hash did?
  orinctl fingerprint model.gguf --longest 100
      quicker; another set of sequences has another hash

The hash is over the bits of the model's logits for a fixed set of token sequences: prompts of 1 to 600 tokens, \
each with three tokens decoded after it; one prompt in chunks of 512, 64, 33 and 2; sequences decoded \
together. The text of a model's answers follows from these bits, so two machines with the same hash give the \
same answers to the same prompts and seeds. The file, the version of the arithmetic (docs/numerics.md, told as \
`numerics`) and --longest decide the hash; threads, the CPU's instruction set and how kernels are tuned do not. Where two hashes \
differ, the first part that does says where to look: prompts of up to 32 tokens are a product or a norm, longer \
ones attention, chunks and sequences a kernel that minds its company.

Exit code: 0, or 1 where the hash is not the one of --expect.")]
pub(super) struct Fingerprint {
    /// GGUF file or synthetic:NAME
    pub(super) model: String,
    /// Device: nv, cuda, cpu, reference
    #[arg(long, visible_alias = "device", value_name = "NAME", default_value = "cpu", value_parser = device::NAMES)]
    pub(super) backend: String,
    /// The CPU's worker threads [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<std::num::NonZeroUsize>,
    /// The CPU's instruction set: amx, avx512, avx2, neon, scalar [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub(super) cpu_isa: Option<String>,
    /// Tokens of the longest prompt
    #[arg(long, value_name = "N", default_value_t = LONGEST, value_parser = clap::value_parser!(u32).range(1..=i64::from(LONGEST)))]
    pub(super) longest: u32,
    /// The hash that it must be
    #[arg(long, value_name = "HASH")]
    pub(super) expect: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The text that models are to predict, and where they run.
#[derive(Debug, clap::Args)]
pub(super) struct Predicted {
    /// The text: a file in UTF-8. Numbers of different texts cannot be compared
    #[arg(value_name = "FILE")]
    pub(super) text: PathBuf,
    /// Tokens of a chunk
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    pub(super) context: usize,
    /// Chunks, from the text's beginning [default: all]
    #[arg(long, value_name = "N")]
    pub(super) chunks: Option<std::num::NonZeroUsize>,
    /// Time 32 decoded tokens of each model too, five times
    #[arg(long)]
    pub(super) speed: bool,
    /// What keys and values of the models are stored in: f16, q8_0, q4_0. Those of --base are in f16
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(super) kv_type: plan::DType,
    /// Device: nv, cuda, cpu, reference
    #[arg(long, visible_alias = "device", value_name = "NAME", default_value = "cpu", value_parser = device::NAMES)]
    pub(super) backend: String,
    /// The CPU's worker threads [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<std::num::NonZeroUsize>,
    /// The CPU's instruction set: amx, avx512, avx2, neon, scalar [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub(super) cpu_isa: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl perplexity wiki.test.raw -m model.gguf
  orinctl perplexity wiki.test.raw -m f16.gguf -m q8_0.gguf -m q4_k_m.gguf
      a row for each
  orinctl perplexity book.txt -m model.gguf --chunks 4 --context 2048

Perplexity is the exponential of the mean of -ln p(token), as llama-perplexity computes it: the text's \
tokens are cut into chunks of --context, each is read from an empty KV cache with the begin token in \
place of its first token, where the model wants one, and each token of its second half is predicted from \
those before it. 1 is certainty; guessing gives the size of the vocabulary. Only models with the same \
tokeniser can be compared. After +- stands the standard error of the mean, as if tokens were independent.

Ctrl-C prints what is known by then.")]
pub(super) struct Perplexity {
    #[command(flatten)]
    pub(super) on: Predicted,
    /// GGUF file or synthetic:NAME; may be given several times
    #[arg(short, long = "model", value_name = "MODEL", required = true)]
    pub(super) models: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl kld wiki.test.raw --base f16.gguf -m q4_k_m.gguf
  orinctl kld wiki.test.raw --base f16.gguf -m q8_0.gguf -m q6_k.gguf -m q4_k_m.gguf --speed
      size, divergence and speed of each type, in one table
  orinctl kld wiki.test.raw --base model.gguf -m model.gguf --kv-type q8_0
      what a smaller cache of keys and values costs

At each token that `orinctl perplexity` would score, the divergence is the sum over the vocabulary of \
p ln(p/q), p of the base, q of the model: 0 where they say the same. Unlike perplexity it does not reward \
errors that happen to suit the text. Top-1 is the part of tokens at which both find the same token most \
likely. Base and model are in memory together and see the same tokens; the base runs once for each model. \
--speed is of this run and depends on what else the machine does; `orinctl bench` measures better.

Ctrl-C prints what is known by then.")]
pub(super) struct Kld {
    #[command(flatten)]
    pub(super) on: Predicted,
    /// The model that the others are held against, as a rule in F16
    #[arg(short, long, value_name = "MODEL")]
    pub(super) base: String,
    /// GGUF file or synthetic:NAME; may be given several times
    #[arg(short, long = "model", value_name = "MODEL", required = true)]
    pub(super) models: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M
  orinctl quantize model-f16.gguf model-q6_k.gguf Q6_K --dry-run
      which tensor would get which type, and how large the file would be

Types: F32, F16, BF16, Q8_0, Q6_K, Q5_1, Q5_K_M, Q5_K_S, Q5_0, Q4_1, Q4_K_M, Q4_K_S, Q4_0, IQ4_NL, IQ4_XS, \
MXFP4_MOE, Q3_K_L, Q3_K_M, Q3_K_S, Q2_K, Q2_K_S, TQ2_0, TQ1_0; Q5_K, Q4_K and Q3_K mean the _M. Tensors get the \
types that llama.cpp gives them: vectors and norms stay as they are, the output matrix (the embedding, where it is \
the output too) gets at least Q6_K, and the smaller types store some of attn_v, attn_output and ffn_down in more \
bits. Metadata is copied. The file appears when it is complete; memory is a few MiB for each thread.

Ctrl-C leaves nothing behind.")]
pub(super) struct Quantize {
    /// GGUF file in F16, BF16 or F32, or synthetic:NAME
    #[arg(value_name = "IN")]
    pub(super) input: String,
    /// The file that is made
    #[arg(value_name = "OUT")]
    pub(super) output: PathBuf,
    /// The type
    #[arg(value_name = "TYPE")]
    pub(super) mix: model::mix::Mix,
    /// Quantise what is quantised already, with the error of both
    #[arg(long)]
    pub(super) requantize: bool,
    /// Replace a file that is there; never the input
    #[arg(short, long)]
    pub(super) force: bool,
    /// Print what would be done, do nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Threads [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<std::num::NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

// Where an installation goes.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// Install below this directory: bin, lib/systemd/system, lib/sysusers.d, ..
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub(super) prefix: PathBuf,
    /// Use this directory as /, and leave the running system alone
    #[arg(long, value_name = "DIR")]
    pub(super) root: Option<PathBuf>,
    /// Print what would be done, do nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Uninstall {
    #[command(flatten)]
    pub(super) place: Place,
    /// Remove models, caches and the configuration too
    #[arg(long)]
    pub(super) purge: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl first-contact
      asks before what is risky, leaves out what is dangerous
  orinctl first-contact --list
      the experiments, and what is known of their risk
  orinctl first-contact --only doorbell-latency,copy-bandwidth
  orinctl first-contact --yes --skip largest-allocation -o agx-64.json
  orinctl first-contact --resume orin-profile.json
      goes on after the machine went down
  orinctl first-contact --only large-ring -o ring.json
      one that may take the machine down
  tegra-sim run -- orinctl first-contact
      the same on a simulated Orin
  tegra-sim profile diff orin-profile.json
      how the simulator differs from the machine

Every experiment runs in a process of its own with a time limit; a failure is a result too. Nothing \
needs root, no setting is changed, everything is released. The file has no serial numbers and no paths, \
and is never overwritten.")]
pub(super) struct FirstContact {
    /// Run these experiments only; what is named is agreed to, risky and dangerous ones too
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(super) only: Vec<String>,
    /// Run these besides, which is the only way to run dangerous ones beside others
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(super) risky: Vec<String>,
    /// Leave these experiments out
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(super) skip: Vec<String>,
    /// List the experiments, run none
    #[arg(long)]
    pub(super) list: bool,
    /// Run risky experiments without asking; dangerous ones have to be named
    #[arg(short, long)]
    pub(super) yes: bool,
    /// File that the profile is written to; there must be none of that name
    #[arg(short, long, value_name = "FILE", default_value = "orin-profile.json")]
    pub(super) output: PathBuf,
    /// Go on with this file: what has an answer is kept, what was under way when the run ended is not
    /// run again unless it is named
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    pub(super) resume: Option<PathBuf>,
    /// Seconds after which any experiment is killed [default: its own limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) time_limit: Option<f64>,
    /// Print the profile as JSON instead of the table
    #[arg(long)]
    pub(super) json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds > 0.0 => Ok(seconds),
        _ => Err("a number of seconds above 0 is needed".into()),
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Experiment {
    /// Which
    pub(super) name: String,
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  orinctl tune
      search for two minutes, store what was found
  orinctl tune -m model.gguf --beam 4 --budget 600
  orinctl tune --kernel 'gate Q6_K'
      one family and type
  orinctl tune verify
      do the winners still win?
  orinctl tune sweep --param threads_per_row=4,8,16
  orinctl tune show
      what is stored, and whether it is used

With a daemon on the socket its loaded model is tuned; requests wait meanwhile. Without one a private \
daemon is started. Ctrl-C keeps what was found; the next call continues from there.")]
pub(super) struct Tune {
    #[command(subcommand)]
    pub(super) command: Option<TuneCommand>,
    #[command(flatten)]
    pub(super) search: TuneSearch,
}

#[derive(Debug, Subcommand)]
pub(super) enum TuneCommand {
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
pub(super) struct TunePlace {
    /// Directory of what was found [default: the daemon's own default]
    #[arg(long, value_name = "DIR")]
    pub(super) tune_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct TuneShow {
    #[command(flatten)]
    pub(super) place: TunePlace,
    /// Print JSON: everything, used or not
    #[arg(long)]
    pub(super) json: bool,
    /// Show also what is not used, and why
    #[arg(long)]
    pub(super) all: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct TuneExport {
    #[command(flatten)]
    pub(super) place: TunePlace,
    /// The file; - writes to standard output
    pub(super) file: PathBuf,
    /// The device, as `orinctl tune show` names its file [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct TuneImport {
    #[command(flatten)]
    pub(super) place: TunePlace,
    /// A file that `orinctl tune export` wrote
    pub(super) file: PathBuf,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl tune diff before.toml after.toml
  orinctl tune diff 2026-11-01 2026-11-20

Of a file only what is still in it counts: an entry that a later one of the same kernels replaced is \
gone.")]
pub(super) struct TuneDiff {
    #[command(flatten)]
    pub(super) place: TunePlace,
    /// A file, or a day (UTC): what was known at its end
    pub(super) before: String,
    /// Another file or day
    pub(super) after: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct TuneSearch {
    #[command(flatten)]
    pub(super) model: ModelChoice,
    /// Choices that go on to the next level, 1 to 8
    #[arg(long, value_name = "WIDTH", default_value_t = 3)]
    pub(super) beam: usize,
    /// Seconds of measuring
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    pub(super) budget: f64,
    /// Only cases whose name contains this: a family, a type, a shape
    #[arg(long, value_name = "TEXT")]
    pub(super) kernel: Option<String>,
    /// Measure known cases again
    #[arg(long)]
    pub(super) again: bool,
    /// Count what a simulated Orin does instead of measuring time: under `tegra-sim run --trace FILE`
    #[arg(long)]
    pub(super) counted: bool,
    /// Samples for one case at most
    #[arg(long, value_name = "N", default_value_t = 4000)]
    pub(super) samples: u64,
    /// Sequences at once of a private daemon: its batch sizes are tuned
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(super) slots: usize,
    /// Bytes of weights that take turns so that they come from memory [default: twice the caches]
    #[arg(long, value_name = "BYTES", hide = true)]
    pub(super) cold_bytes: Option<u64>,
    /// Print the report as JSON
    #[arg(long)]
    pub(super) json: bool,
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
pub(super) struct TuneSweep {
    #[command(flatten)]
    pub(super) model: ModelChoice,
    /// The parameter and its values [default: what is stored, compared with the heuristic]
    #[arg(long, value_name = "NAME=VALUE,..")]
    pub(super) param: Option<String>,
    /// Tokens to generate
    #[arg(short = 'n', long = "gen-tokens", value_name = "N", default_value_t = 64)]
    pub(super) tokens: u32,
    /// Evaluate a prompt of N tokens instead
    #[arg(long, value_name = "N")]
    pub(super) prefill: Option<u32>,
    /// Sequences at once
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    pub(super) batch: u32,
    /// Repetitions in a round
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    pub(super) repetitions: u32,
    /// Rounds over all values
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) rounds: u32,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Daemon {
    /// Arguments of `orind`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) arguments: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
        Args::definition().debug_assert();
    }

    #[test]
    fn only_who_asks_a_daemon_tells_how_to_reach_one() {
        let mut definition = Args::definition();
        definition.build();
        let says = |command: &clap::Command| {
            command.clone().render_help().to_string().contains("--socket")
        };
        for command in definition.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let asks = !ALONE.contains(&name) && name != "help";
            assert_eq!(says(command), asks, "{name}");
        }
        let tune = definition.find_subcommand("tune").unwrap();
        for command in tune.get_subcommands() {
            let name = command.get_name();
            assert_eq!(says(command), ["verify", "sweep"].contains(&name), "tune {name}");
        }
    }

    #[test]
    fn a_socket_may_be_named_before_the_subcommand_and_where_none_is_needed() {
        for line in
            ["--socket /x status", "status --socket /x", "plan m --socket /x", "--socket /x plan m"]
        {
            let words = std::iter::once("orinctl").chain(line.split(' '));
            let matches = Args::definition().try_get_matches_from(words).unwrap();
            let args = Args::from_arg_matches(&matches).unwrap();
            assert_eq!(args.connection.socket, Some("/x".into()), "{line}");
        }
        let help =
            Args::definition().try_get_matches_from(["orinctl", "plan", "--help"]).unwrap_err();
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp, "{help}");
    }

    #[test]
    fn the_commands_of_the_example_workflow_exist() {
        let workflow = include_str!("../../docs/examples/speed-gate.yml").replace("\\\n", " ");
        let commands =
            workflow.lines().filter_map(|line| line.split_once("target/release/orinctl "));
        let mut seen = 0;
        for (_, words) in commands {
            let words = words.split_whitespace().map(|word| word.trim_matches('"'));
            let parsed =
                Args::definition().try_get_matches_from(std::iter::once("orinctl").chain(words));
            assert!(parsed.is_ok(), "{}", parsed.unwrap_err());
            seen += 1;
        }
        assert_eq!(seen, 4);
    }

    #[test]
    fn lists_and_globals() {
        let args = Args::try_parse_from([
            "orinctl", "bench", "-p", "32,128", "-n", "0", "-d", "0,64", "--socket", "/x",
        ])
        .unwrap();
        let Command::Bench(bench) = args.command else { panic!("{:?}", args.command) };
        assert_eq!(bench.prompts, Some(vec![32, 128]));
        assert_eq!((bench.generate, bench.depths), (Some(vec![0]), vec![0, 64]));
        assert_eq!(args.connection.socket, Some("/x".into()));
        let both = ["orinctl", "bench", "--json", "--csv"];
        assert!(Args::try_parse_from(both).is_err());
        assert!(Args::try_parse_from(["orinctl", "generate"]).is_err());
        for (text, threshold) in
            [("5%", Some(0.05)), ("2.5", Some(0.025)), ("0", None), ("x%", None)]
        {
            let line = ["orinctl", "bench", "--against", "last", "--threshold", text];
            let parsed = Args::try_parse_from(line).ok().map(|args| args.command);
            let found = parsed.map(|command| match command {
                Command::Bench(bench) => bench.threshold,
                other => panic!("{other:?}"),
            });
            assert_eq!(found, threshold, "{text}");
        }
        assert!(Args::try_parse_from(["orinctl", "generate", "x", "-p", "y"]).is_err());
    }
}
