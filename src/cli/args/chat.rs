//! Arguments of `orinctl chat`.

use super::ModelChoice;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl chat
  orinctl chat -m model.gguf --system 'Answer in one sentence.'
  orinctl chat --tcp orin:8080

Lines that begin with / are commands; /help lists them. Ctrl-C stops an answer, Ctrl-D quits.")]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) model: ModelChoice,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Maximum number of tokens in an answer [default: the rest of the context]
    #[arg(short = 'n', long = "max-tokens", value_name = "N")]
    pub(crate) max_tokens: Option<u32>,
    /// Temperature; 0 is greedy [default: the daemon's]
    #[arg(long, value_name = "T")]
    pub(crate) temp: Option<f32>,
    /// Sample from the K most likely tokens; 0 means all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Sample from the most likely tokens whose probabilities sum to P
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Seed; the same seed gives the same answers
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,
}
