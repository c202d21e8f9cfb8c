//! Arguments of `orinctl completions` and `orinctl man`.

use std::path::PathBuf;

use clap_complete::Shell;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  source <(orinctl completions bash)
  orinctl completions fish > ~/.config/fish/completions/orinctl.fish

`orinctl install` installs them where bash, zsh and fish look.")]
pub(crate) struct Completions {
    /// Shell
    pub(crate) shell: Shell,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  orinctl man /usr/share/man/man1")]
pub(crate) struct Man {
    /// Folder for the pages; created if missing
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}
