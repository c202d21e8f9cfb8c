//! Arguments of `orinctl pull`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl pull hf.co/OWNER/REPO:Q4_K_M
      the file of that type from a repository of the Hugging Face hub
  orinctl chat -m hf.co/OWNER/REPO:Q4_K_M
      chat with the downloaded model
  orinctl pull OWNER/REPO/folder/model-Q8_0.gguf
      one file of a repository
  orinctl pull https://example.org/model.gguf --sha256 9f86d081...
      a file from any server, with its hash checked
  sudo orinctl pull OWNER/REPO --dir /var/lib/orind/models
      into the folder of the service, which then lists it

Without a type, the repository's only model or Q4_K_M is chosen. All parts of a split model are downloaded. An interrupted \
download resumes where it stopped. A file gets its name when it is complete and its SHA-256 is that of the hub or \
--sha256. The path is printed on standard output.

Environment: HF_ENDPOINT is the address of another hub, HF_TOKEN a token for private and gated models, HTTPS_PROXY a proxy, \
SSL_CERT_FILE a file of certificate authorities that replaces the system's.")]
pub(crate) struct Pull {
    /// URL, or [hf.co/]OWNER/REPO[:TYPE] or [hf.co/]OWNER/REPO/FILE.gguf on the hub
    pub(crate) name: String,
    /// Expected SHA-256 of the file, in hexadecimal
    #[arg(long, value_name = "SUM")]
    pub(crate) sha256: Option<fetch::Sum>,
    /// Folder for the file [default: the cache, where the same name finds it again]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Download again even if the file exists
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
