//! Arguments of `orinctl profile`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl profile synthetic:qwen3-0.6b:q8_0
  orinctl profile model.gguf --depth 2048 --json
  orinctl profile model.gguf --prompt 256 -n 4
      a prompt chunk instead of a token
  orinctl profile model.gguf --backend nv --trace token.json
      open it in ui.perfetto.dev
  tegra-sim run -- orinctl profile synthetic:tiny-llama:q8_0 --backend nv

Steps of the same kind are summed over all layers. Bytes count weights and KV cache; the \
device measures its bandwidth before and after. A GPU's launches are serialised to be \
timed; the last line is the time without that. A simulated Orin has its own clock: \
no bandwidth is measured there, and % of bandwidth is a dash.")]
pub(crate) struct Profile {
    /// GGUF file or synthetic:NAME
    pub(crate) model: String,
    /// Tokens already in the context
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) depth: usize,
    /// Tokens to time, or chunks with --prompt
    #[arg(short = 'n', long = "tokens", value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) tokens: u32,
    /// Device: nv, cuda, cpu
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = device::NAMES)]
    pub(crate) backend: String,
    /// Time a chunk of N prompt tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub(crate) prompt: Option<u32>,
    /// Worker threads of the CPU device [default: the allowed cores]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// Instruction set of the CPU device: amx, avx512, avx2, neon, scalar [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub(crate) cpu_isa: Option<String>,
    /// Write the last token or chunk as a trace for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
