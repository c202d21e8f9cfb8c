//! Arguments of `orinctl launch`.

use std::ffi::OsString;

use super::ModelChoice;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl launch claude
      Claude Code with the loaded model
  orinctl launch codex exec 'What does this program do?'
  orinctl launch -m model.gguf --context 32768 opencode
      with a private daemon, if none is running
  orinctl launch python3 agent.py
      any program that reads OPENAI_BASE_URL, ANTHROPIC_BASE_URL or OLLAMA_HOST
  orinctl launch --print --tcp localhost:8080 codex
      print variables and arguments instead

Known programs: claude, codex, opencode, aider, open-webui, qwen, goose. The program reaches the daemon \
through a port of this machine that exists while it runs. docs/clients.md describes each client.")]
pub(crate) struct Launch {
    #[command(flatten)]
    pub(crate) model: ModelChoice,
    /// Context length of a private daemon in tokens [default: the daemon's]
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<usize>,
    /// Print the variables and the command instead of running it
    #[arg(long)]
    pub(crate) print: bool,
    /// Program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub(crate) command: Vec<OsString>,
}
