//! Arguments of `orinctl compare`.

use std::path::PathBuf;

use super::{Format, RecordsFile};

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
pub(crate) struct Compare {
    /// GGUF file or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", default_value = crate::session::DEFAULT_MODEL)]
    pub(crate) model: String,
    /// The other engines: llama.cpp, tinygrad, pytorch, orind:PATH (another build's orinctl),
    /// openai:HOST:PORT (a server of OpenAI's routes)
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
    /// Tokens of the prompts whose first token is timed
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) first_prompt: u32,
    /// Tokens streamed after these, each of which is timed
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) stream: u32,
    /// Threads of every engine [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Device of every engine: cpu, cuda, nv
    #[arg(long, visible_alias = "device", value_name = "NAME", default_value = "cpu")]
    pub(crate) backend: String,
    /// Times that every engine runs; an interval of 95 % takes 6
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seed of prompts and order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Differences that the verdict may have: file, weights, activations, kv, threads, warmup, clock,
    /// flash-attention, built-for, cache
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) allow: Vec<String>,
    /// Stop where something else differs (the default)
    #[arg(long, conflicts_with = "no_fair")]
    pub(crate) fair: bool,
    /// Go on whatever differs; it is printed all the same
    #[arg(long)]
    pub(crate) no_fair: bool,
    /// Do not ask the reference what the model answers, which takes long on large models
    #[arg(long)]
    pub(crate) no_reference: bool,
    /// Folder of llama-bench and llama-server [default: PATH]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) llama_cpp: Option<PathBuf>,
    /// Python of tinygrad and PyTorch
    #[arg(long, value_name = "FILE", default_value = "python3")]
    pub(crate) python: PathBuf,
    /// PyTorch without torch.compile
    #[arg(long)]
    pub(crate) pytorch_no_compile: bool,
    /// PyTorch in full precision
    #[arg(long)]
    pub(crate) pytorch_no_half: bool,
    /// Say what each number means, and measure nothing
    #[arg(long)]
    pub(crate) explain: bool,
    /// Write the report as a page with plots too, for any browser; this build's steps are timed for it
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print a comparison that --json wrote, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "with", "explain"])]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) records: RecordsFile,
    #[command(flatten)]
    pub(crate) format: Format,
}
