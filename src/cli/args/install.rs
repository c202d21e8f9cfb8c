//! Arguments of `orinctl install` and `uninstall`.

use std::path::PathBuf;

// Where an installation goes.
#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// Install below this directory: bin, lib/systemd/system, lib/sysusers.d, ..
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub(crate) prefix: PathBuf,
    /// Use this directory as /, and leave the running system alone
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Print what would be done, do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Uninstall {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Remove models, caches and the configuration too
    #[arg(long)]
    pub(crate) purge: bool,
}
