//! Arguments of `orinctl chat`.

use super::ModelChoice;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl chat
  orinctl chat -m model.gguf --system 'Answer in one sentence.'
  orinctl chat --tcp orin:8080

A line that begins with / is a command; /help lists them. Ctrl-C ends an answer, Ctrl-D the program.")]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) model: ModelChoice,
    /// What the model is told before all else
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Tokens of an answer at most [default: what there is room for]
    #[arg(short = 'n', long = "max-tokens", value_name = "N")]
    pub(crate) max_tokens: Option<u32>,
    /// Temperature; 0 is greedy [default: the daemon's]
    #[arg(long, value_name = "T")]
    pub(crate) temp: Option<f32>,
    /// Choose among the K most likely tokens; 0 is all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Choose among the most likely tokens that together have probability P
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Same seed, same answers
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,
}
