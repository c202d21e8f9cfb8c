//! Arguments of `orinctl perplexity` and `orinctl kld`.

use std::path::PathBuf;

/// The text that models are to predict, and where they run.
#[derive(Debug, clap::Args)]
pub(crate) struct Predicted {
    /// The text: a file in UTF-8. Numbers of different texts cannot be compared
    #[arg(value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens of a chunk
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    pub(crate) context: usize,
    /// Chunks, from the text's beginning [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) chunks: Option<std::num::NonZeroUsize>,
    /// Time 32 decoded tokens of each model too, five times
    #[arg(long)]
    pub(crate) speed: bool,
    /// What keys and values of the models are stored in: f16, q8_0, q4_0. Those of --base are in f16
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(crate) kv_type: plan::DType,
    /// Device: nv, cuda, cpu, reference
    #[arg(long, visible_alias = "device", value_name = "NAME", default_value = "cpu", value_parser = device::NAMES)]
    pub(crate) backend: String,
    /// The CPU's worker threads [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// The CPU's instruction set: amx, avx512, avx2, neon, scalar [default: the best one]
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
      a row for each
  orinctl perplexity book.txt -m model.gguf --chunks 4 --context 2048

Perplexity is the exponential of the mean of -ln p(token), as llama-perplexity computes it: the text's \
tokens are cut into chunks of --context, each is read from an empty KV cache with the begin token in \
place of its first token, where the model wants one, and each token of its second half is predicted from \
those before it. 1 is certainty; guessing gives the size of the vocabulary. Only models with the same \
tokeniser can be compared. After +- stands the standard error of the mean, as if tokens were independent.

Ctrl-C prints what is known by then.")]
pub(crate) struct Perplexity {
    #[command(flatten)]
    pub(crate) on: Predicted,
    /// GGUF file or synthetic:NAME; may be given several times
    #[arg(short, long = "model", value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
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
pub(crate) struct Kld {
    #[command(flatten)]
    pub(crate) on: Predicted,
    /// The model that the others are held against, as a rule in F16
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) base: String,
    /// GGUF file or synthetic:NAME; may be given several times
    #[arg(short, long = "model", value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
}
