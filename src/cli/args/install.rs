//! Arguments of `orinctl install` and `uninstall`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// Installation prefix: bin, lib/systemd/system, lib/sysusers.d and so on are created in it
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub(crate) prefix: PathBuf,
    /// Treat this directory as /, and leave the running system alone
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Print what would be done, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Uninstall {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Also remove models, caches and the configuration
    #[arg(long)]
    pub(crate) purge: bool,
}
