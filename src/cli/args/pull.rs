//! Arguments of `orinctl pull`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl pull hf.co/OWNER/REPO:Q4_K_M
      the file of that type in a repository of the Hugging Face hub
  orinctl chat -m hf.co/OWNER/REPO:Q4_K_M
      the model that was pulled by that name
  orinctl pull OWNER/REPO/folder/model-Q8_0.gguf
      one file of a repository
  orinctl pull https://example.org/model.gguf --sha256 9f86d081...
      a file from anywhere, checked
  sudo orinctl pull OWNER/REPO --dir /var/lib/orind/models
      for the service, which then lists it

Without a type, that of a repository's only model, or Q4_K_M. All parts of a split model come. What broke off goes on \
where it ended, with the next command too; a file has its name when it is whole and its SHA-256 is right, as the hub \
tells it or --sha256. The path is printed on standard output.

Environment: HF_ENDPOINT is another hub's address, HF_TOKEN a token for private and gated models, HTTPS_PROXY a proxy, \
SSL_CERT_FILE a file of certificate authorities in place of the system's.")]
pub(crate) struct Pull {
    /// URL, or [hf.co/]OWNER/REPO[:TYPE] or [hf.co/]OWNER/REPO/FILE.gguf on the hub
    pub(crate) name: String,
    /// SHA-256 that the file must have, in hexadecimal
    #[arg(long, value_name = "SUM")]
    pub(crate) sha256: Option<fetch::Sum>,
    /// Folder that the file is put into [default: a place of its own in the cache, where its name finds it]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Fetch a file that is there already
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
