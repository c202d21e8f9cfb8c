//! Arguments of `orinctl plan`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl plan synthetic:tiny-llama:q8_0
  orinctl plan model.gguf --depth 4096
      one token after 4096 others
  orinctl plan model.gguf --batch 8
      one token for each of 8 sequences
  orinctl plan model.gguf --prefill 512 --full
      every step of a prefill chunk
  orinctl plan model.gguf --profile orin-profile.json
      with an estimated speed on that machine")]
pub(crate) struct Plan {
    /// GGUF file or synthetic:NAME
    pub(crate) model: String,
    /// Plan a prefill chunk of N tokens
    #[arg(long, value_name = "N", conflicts_with = "batch")]
    pub(crate) prefill: Option<usize>,
    /// Plan decode of N sequences
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) batch: usize,
    /// Tokens already in the context
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) depth: usize,
    /// Estimate the speed on the Orin of this profile, written by `orinctl first-contact`
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Print every step of every layer
    #[arg(long)]
    pub(crate) full: bool,
    /// Print JSON: every step
    #[arg(long)]
    pub(crate) json: bool,
}
