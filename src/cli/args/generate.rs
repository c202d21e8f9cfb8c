//! Arguments of `orinctl generate`.

use std::path::PathBuf;

use super::ModelChoice;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl generate 'The capital of France is' -n 16
  orinctl generate --chat 'Name three primes.' --temp 0.7 --seed 1
  git diff | orinctl generate --chat -
  orinctl generate --chat -f src/main.rs 'What does this program do?'

With --temp 0, the default, the most likely token is taken each time.")]
pub(in crate::cli) struct Generate {
    #[command(flatten)]
    pub(in crate::cli) model: ModelChoice,
    /// The text; - reads it from standard input
    #[arg(value_name = "TEXT", required_unless_present_any = ["prompt", "files"])]
    pub(in crate::cli) text: Option<String>,
    /// The text, as an option
    #[arg(short, long, value_name = "TEXT", conflicts_with = "text")]
    pub(in crate::cli) prompt: Option<String>,
    /// A file whose text comes before TEXT; may be given several times
    #[arg(short, long = "file", value_name = "FILE")]
    pub(in crate::cli) files: Vec<PathBuf>,
    /// Tokens to generate at most
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 128)]
    pub(in crate::cli) max_tokens: u32,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(in crate::cli) temp: f32,
    /// Choose among the K most likely tokens; 0 is all
    #[arg(long, value_name = "K")]
    pub(in crate::cli) top_k: Option<u32>,
    /// Choose among the most likely tokens that together have probability P
    #[arg(long, value_name = "P")]
    pub(in crate::cli) top_p: Option<f32>,
    /// Same seed, same answer
    #[arg(long, value_name = "N")]
    pub(in crate::cli) seed: Option<u32>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(in crate::cli) stop: Vec<String>,
    /// Go on after the model ends its text
    #[arg(long)]
    pub(in crate::cli) ignore_eos: bool,
    /// Wrap the text as a user's message in the model's chat template
    #[arg(long, conflicts_with = "raw")]
    pub(in crate::cli) chat: bool,
    /// Continue the text as it is (default)
    #[arg(long)]
    pub(in crate::cli) raw: bool,
    /// Print nothing but the text
    #[arg(short, long)]
    pub(in crate::cli) quiet: bool,
}
