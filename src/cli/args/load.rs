//! Arguments of `orinctl load` and `unload`.

use daemon::LoadFlags;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl load /models/llama-3.2-1b-q6_k.gguf
  orinctl load synthetic:qwen3-0.6b:q8_0 --slots 4 --context 8192
  orinctl load qwen3-embedding-0.6b --beside --name embed
      an additional model; requests that name `embed` use it

Options that are not given come from the daemon's configuration.")]
pub(crate) struct Load {
    /// GGUF file, name from `orinctl models`, or synthetic:NAME
    pub(crate) model: String,
    /// Keep the models that are already loaded
    #[arg(long)]
    pub(crate) beside: bool,
    /// Name of the model in requests [default: the file's stem]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) options: LoadFlags,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Unload {
    /// Name of the model in requests [default: the first model]
    pub(crate) model: Option<String>,
}
