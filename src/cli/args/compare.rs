//! Arguments of `orinctl compare`.

use std::path::PathBuf;

use config::{Backend, named};

use super::{Format, RecordsFile};

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl compare -m model.gguf --with llama.cpp --llama-cpp ~/llama.cpp/build/bin
  orinctl compare -m model.gguf --with pytorch,tinygrad --python venv/bin/python --allow weights,activations,kv
  orinctl compare -m model.gguf --with orind:before/orinctl --rounds 10
      another build
  orinctl compare -m model.gguf --with openai:localhost:8000 --allow clock
      a server that is already running, with the same model
  orinctl compare -m model.gguf -d 0,1024,4096 --html report.html
      decode and prefill against depth, as a table and as a page with plots
  orinctl compare --from saved.json --html report.html
      an earlier comparison from its --json output

Every round runs each engine once, one process at a time, in random order. A missing engine \
is reported with the command that installs it; the others continue if one fails. An engine whose \
answers differ from the model's never wins. The comparison stops if the engines differ in something that \
changes the verdict, unless --allow names it. Ctrl-C stops and prints what was measured.

Exit code: 3 if the run is INVALID because the machine changed during it.")]
pub(crate) struct Compare {
    /// GGUF file or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", default_value = crate::session::DEFAULT_MODEL)]
    pub(crate) model: String,
    /// Other engines: llama.cpp, tinygrad, pytorch, orind:PATH (another build's orinctl),
    /// openai:HOST:PORT (an OpenAI-compatible server)
    #[arg(long, value_name = "PEER,..", value_delimiter = ',', default_value = "llama.cpp")]
    pub(crate) with: Vec<String>,
    /// Prompt lengths; 0: none
    #[arg(
        short,
        long = "prompt-tokens",
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "512"
    )]
    pub(crate) prompts: Vec<u32>,
    /// Tokens to generate; 0: none
    #[arg(
        short = 'n',
        long = "gen-tokens",
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "128"
    )]
    pub(crate) generate: Vec<u32>,
    /// Tokens already in the context when timing starts
    #[arg(short, long = "depth", value_name = "N,..", value_delimiter = ',', default_value = "0")]
    pub(crate) depths: Vec<u32>,
    /// Sequences generated at once
    #[arg(short, long = "batch", value_name = "N,..", value_delimiter = ',', default_value = "1")]
    pub(crate) batches: Vec<u32>,
    /// Length of the prompts whose time to first token is measured
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) first_prompt: u32,
    /// Tokens streamed after each of these prompts, each of them timed
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) stream: u32,
    /// Threads of every engine [default: the allowed cores]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Device of every engine: cpu, cuda, nv
    #[arg(long, visible_alias = "device", value_name = "NAME", default_value = "cpu", value_parser = named::<Backend>)]
    pub(crate) backend: Backend,
    /// Number of rounds; a 95 % interval needs 6
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seed of the prompts and of the order of engines
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Differences that do not stop the comparison: file, weights, activations, kv, threads,
    /// warmup, clock, flash-attention, built-for, cache
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) allow: Vec<String>,
    /// Stop if the engines differ in anything else that changes the verdict (the default)
    #[arg(long, conflicts_with = "no_fair")]
    pub(crate) fair: bool,
    /// Continue whatever differs; differences are still printed
    #[arg(long)]
    pub(crate) no_fair: bool,
    /// Do not compute reference answers, which takes long on large models
    #[arg(long)]
    pub(crate) no_reference: bool,
    /// Folder with llama-bench and llama-server [default: PATH]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) llama_cpp: Option<PathBuf>,
    /// Python interpreter for tinygrad and PyTorch
    #[arg(long, value_name = "FILE", default_value = "python3")]
    pub(crate) python: PathBuf,
    /// Run PyTorch without torch.compile
    #[arg(long)]
    pub(crate) pytorch_no_compile: bool,
    /// Run PyTorch in full precision
    #[arg(long)]
    pub(crate) pytorch_no_half: bool,
    /// Explain each number, measure nothing
    #[arg(long)]
    pub(crate) explain: bool,
    /// Also write the report as a self-contained HTML page with plots; times orind's decode steps
    /// for it
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print a comparison saved with --json, measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "with", "explain"])]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) records: RecordsFile,
    #[command(flatten)]
    pub(crate) format: Format,
}
