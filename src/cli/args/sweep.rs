//! Arguments of `orinctl sweep`.

use std::path::PathBuf;

use super::Format;

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
pub(crate) struct Sweep {
    /// GGUF files, or names of synthetic: models
    #[arg(short, long, visible_alias = "model", value_name = "MODEL,..", value_delimiter = ',', default_value = crate::session::DEFAULT_MODEL)]
    pub(crate) models: Vec<String>,
    /// Types of weights that each model is measured in: files in F16, BF16 or F32 are quantised [default:
    /// as they are]
    #[arg(long, value_name = "TYPE,..", value_delimiter = ',')]
    pub(crate) types: Vec<model::mix::Mix>,
    /// Worker threads [default: the cores allowed]
    #[arg(short, long, value_name = "N,..", value_delimiter = ',')]
    pub(crate) threads: Vec<usize>,
    /// Threads of a GPU that compute a row of a product [default: what is remembered, or the heuristic]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub(crate) threads_per_row: Vec<u32>,
    /// Threads beside it that only spin
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "0", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) neighbours: Vec<u32>,
    /// Share of the cores' time that it gets at most; less than 100% takes root and control groups
    #[arg(long = "quota", value_name = "PERCENT,..", value_delimiter = ',', default_value = "100%", value_parser = quota)]
    pub(crate) quotas: Vec<u32>,
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
    #[arg(
        short,
        long,
        visible_alias = "depth",
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "0"
    )]
    pub(crate) depths: Vec<u32>,
    /// Sequences generated at once
    #[arg(
        short,
        long,
        visible_alias = "batch",
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "1"
    )]
    pub(crate) batches: Vec<u32>,
    /// Times that every point is measured; an interval of 95 % takes 6
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seed of prompts and order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Device: auto, nv, cuda, cpu
    #[arg(long, visible_alias = "device", value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// Instruction set of the CPU device: auto, amx, avx512, avx2, neon, scalar
    #[arg(long, value_name = "NAME")]
    pub(crate) cpu_isa: Option<String>,
    /// File of the measurements [default: one for each sweep in the state directory]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// `50%` or `50`, of all cores.
fn quota(text: &str) -> Result<u32, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<u32>() {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => Err("a percentage from 1 to 100 is needed, such as 50%".into()),
    }
}
