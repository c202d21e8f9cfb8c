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

With --temp 0, the default, decoding is greedy.")]
pub(crate) struct Generate {
    #[command(flatten)]
    pub(crate) model: ModelChoice,
    /// Text to continue; - reads it from standard input
    #[arg(value_name = "TEXT", required_unless_present_any = ["prompt", "files"])]
    pub(crate) text: Option<String>,
    /// Text to continue, as an option
    #[arg(short, long, value_name = "TEXT", conflicts_with = "text")]
    pub(crate) prompt: Option<String>,
    /// File whose text is placed before TEXT; may be repeated
    #[arg(short, long = "file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Maximum number of tokens to generate; 0 means the rest of the context
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 128)]
    pub(crate) max_tokens: u32,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temp: f32,
    /// Sample from the K most likely tokens; 0 means all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Sample from the most likely tokens whose probabilities sum to P
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Seed; the same seed gives the same answer
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,
    /// Stop before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Continue after the end-of-text token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Send the text as a user message in the model's chat template
    #[arg(long, conflicts_with = "raw")]
    pub(crate) chat: bool,
    /// Continue the text without a template (the default)
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print only the text
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl Generate {
    /// Arguments of one question, answered to its end.
    pub(crate) fn question(model: ModelChoice, text: String) -> Self {
        Self {
            model,
            text: Some(text),
            prompt: None,
            files: Vec::new(),
            max_tokens: 0,
            temp: 0.8,
            top_k: None,
            top_p: None,
            seed: None,
            stop: Vec::new(),
            ignore_eos: false,
            chat: true,
            raw: false,
            quiet: false,
        }
    }
}
