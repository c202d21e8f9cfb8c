//! Arguments of `orinctl sweep`.

use std::path::PathBuf;

use super::Format;
use config::{Backend, CpuIsa, named};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl sweep -m model-f16.gguf --types f16,q8_0,q6_k,q4_k_m
      speed of each type; quantised files are kept in the cache
  orinctl sweep --models a.gguf,b.gguf --depths 0,1024,4096 -p 0 -n 64
      decode against depth
  orinctl sweep --threads 1,2,4 --batches 1,4,8
      best number of threads for one sequence and for several
  orinctl sweep --backend nv --threads-per-row 4,8,16,32 -p 0
      a kernel parameter; `orinctl tune` finds the best value by itself
  orinctl sweep --threads 1,2,16 --neighbours 0,1,2 --quota 100%,50%
      a busy machine: how much of its fair share orind gets

Every combination is a point. A round measures each point once, after an untimed run. Settings run in an order \
drawn by --seed, each in its own daemon, and the tests of a setting in random order too. A slow minute of \
the machine then affects all points, and the luck of one process start does not affect all rounds.

Each measurement is appended to the file at once. After Ctrl-C the same command continues where it \
stopped; with more --rounds it adds measurements. A file of another sweep, build or model is refused.

Exit code: 3 if measurements are INVALID because the machine changed during them; 130 after Ctrl-C.")]
pub(crate) struct Sweep {
    /// GGUF files or synthetic:NAME
    #[arg(short, long, visible_alias = "model", value_name = "MODEL,..", value_delimiter = ',', default_value = crate::session::DEFAULT_MODEL)]
    pub(crate) models: Vec<String>,
    /// Weight types to measure each model in; files in F16, BF16 or F32 are quantised [default: as
    /// they are]
    #[arg(long, value_name = "TYPE,..", value_delimiter = ',')]
    pub(crate) types: Vec<model::mix::Mix>,
    /// Worker threads [default: the allowed cores]
    #[arg(short, long, value_name = "N,..", value_delimiter = ',')]
    pub(crate) threads: Vec<usize>,
    /// GPU threads that compute one row of a matmul [default: the tuned value, or the heuristic]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub(crate) threads_per_row: Vec<u32>,
    /// Number of other threads that spin during the measurement
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "0", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) neighbours: Vec<u32>,
    /// Limit on the share of the cores' time; less than 100% needs root and control groups
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
    /// Number of rounds; a 95 % interval needs 6
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seed of the prompts and of the order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Device: auto, nv, cuda, cpu
    #[arg(long, visible_alias = "device", value_name = "NAME", value_parser = named::<Backend>)]
    pub(crate) backend: Option<Backend>,
    /// Instruction set of the CPU device: auto, amx, avx512, avx2, neon, scalar
    #[arg(long, value_name = "NAME", value_parser = named::<CpuIsa>)]
    pub(crate) cpu_isa: Option<CpuIsa>,
    /// File of the measurements [default: one per sweep in the state directory]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// Parses `50%` or `50`, a percentage of all cores.
fn quota(text: &str) -> Result<u32, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<u32>() {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => Err("expected a percentage from 1 to 100, such as 50%".into()),
    }
}
