//! Arguments of `orinctl quantize`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M
  orinctl quantize model-f16.gguf model-q6_k.gguf Q6_K --dry-run
      print each tensor's type and the file size

Types: F32, F16, BF16, Q8_0, Q6_K, Q5_1, Q5_K_M, Q5_K_S, Q5_0, Q4_1, Q4_K_M, Q4_K_S, Q4_0, IQ4_NL, IQ4_XS, \
MXFP4_MOE, Q3_K_L, Q3_K_M, Q3_K_S, Q2_K, Q2_K_S, TQ2_0, TQ1_0; Q5_K, Q4_K and Q3_K mean the _M variants. Tensors get the \
types that llama.cpp gives them: vectors and norms stay as they are, the output matrix (the embedding, if tied) \
gets at least Q6_K, and the smaller types store some of attn_v, attn_output and ffn_down in more \
bits. Metadata is copied. The file appears when it is complete; each thread needs a few MiB of memory.

Ctrl-C leaves nothing behind.")]
pub(crate) struct Quantize {
    /// GGUF file in F16, BF16 or F32, or synthetic:NAME
    #[arg(value_name = "IN")]
    pub(crate) input: String,
    /// File to write
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Type to convert to
    #[arg(value_name = "TYPE")]
    pub(crate) mix: model::mix::Mix,
    /// Quantise a file that is already quantised, which adds both errors
    #[arg(long)]
    pub(crate) requantize: bool,
    /// Replace an existing file; never the input
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print what would be done, write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Threads [default: the allowed cores]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
