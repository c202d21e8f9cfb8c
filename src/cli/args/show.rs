//! Arguments of `orinctl show` and `rm`.

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl show
      the loaded model
  orinctl show hf.co/OWNER/REPO:Q4_K_M
  orinctl show model.gguf --template")]
pub(crate) struct Show {
    /// The model [default: the loaded one]
    pub(crate) model: Option<String>,
    /// Print the chat template
    #[arg(long, conflicts_with_all = ["metadata", "json"])]
    pub(crate) template: bool,
    /// Print all keys of the file's header
    #[arg(long, conflicts_with = "json")]
    pub(crate) metadata: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  orinctl rm hf.co/OWNER/REPO:Q4_K_M

Deletes what `orinctl pull` downloaded, and cached synthetic models; no other files.")]
pub(crate) struct Rm {
    /// Models by the names they were downloaded with, or their files
    #[arg(required = true, value_name = "MODEL")]
    pub(crate) models: Vec<String>,
}
