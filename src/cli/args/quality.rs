//! Arguments of `orinctl perplexity` and `orinctl kld`.

use std::path::PathBuf;

/// Text to predict, and the device to use.
#[derive(Debug, clap::Args)]
pub(crate) struct Predicted {
    /// Text file in UTF-8. Numbers of different texts are not comparable
    #[arg(value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens per chunk
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    pub(crate) context: usize,
    /// Number of chunks, from the beginning of the text [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) chunks: Option<std::num::NonZeroUsize>,
    /// Also time 32 decoded tokens of each model, five times
    #[arg(long)]
    pub(crate) speed: bool,
    /// Type of the models' KV cache: f16, q8_0, q4_0. The base always uses f16
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(crate) kv_type: plan::DType,
    /// Device: nv, cuda, cpu, reference
    #[arg(long, visible_alias = "device", value_name = "NAME", default_value = "cpu", value_parser = device::NAMES)]
    pub(crate) backend: String,
    /// Worker threads of the CPU device [default: the allowed cores]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// Instruction set of the CPU device: amx, avx512, avx2, neon, scalar [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub(crate) cpu_isa: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl perplexity wiki.test.raw -m model.gguf
  orinctl perplexity wiki.test.raw -m f16.gguf -m q8_0.gguf -m q4_k_m.gguf
      one row per model
  orinctl perplexity book.txt -m model.gguf --chunks 4 --context 2048

Perplexity is the exponential of the mean of -ln p(token), as llama-perplexity computes it: the text's \
tokens are cut into chunks of --context tokens. Each chunk starts with an empty KV cache, with the BOS token in \
place of its first token if the model uses one, and each token of its second half is predicted from \
those before it. 1 is certainty; guessing gives the vocabulary size. Only models with the same \
tokeniser are comparable. The value after +- is the standard error, assuming independent tokens.

Ctrl-C prints the result so far.")]
pub(crate) struct Perplexity {
    #[command(flatten)]
    pub(crate) on: Predicted,
    /// GGUF file or synthetic:NAME; may be repeated
    #[arg(short, long = "model", value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl kld wiki.test.raw --base f16.gguf -m q4_k_m.gguf
  orinctl kld wiki.test.raw --base f16.gguf -m q8_0.gguf -m q6_k.gguf -m q4_k_m.gguf --speed
      size, divergence and speed of each type in one table
  orinctl kld wiki.test.raw --base model.gguf -m model.gguf --kv-type q8_0
      the quality loss of a smaller KV cache

The divergence at each token that `orinctl perplexity` scores is the sum over the vocabulary of \
p ln(p/q), with p of the base and q of the model: 0 if both agree. Unlike perplexity it does not reward \
errors that happen to suit the text. Top-1 is the share of tokens at which both have the same most \
likely token. Base and model are in memory together and read the same tokens; the base runs once per model. \
--speed depends on the machine's other load; `orinctl bench` measures better.

Ctrl-C prints the result so far.")]
pub(crate) struct Kld {
    #[command(flatten)]
    pub(crate) on: Predicted,
    /// Base model to compare with, normally in F16
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) base: String,
    /// GGUF file or synthetic:NAME; may be repeated
    #[arg(short, long = "model", value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
}
