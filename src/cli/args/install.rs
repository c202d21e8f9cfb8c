//! Arguments of `orinctl install` and `uninstall`.

use std::path::PathBuf;

// Where an installation goes.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Place {
    /// Install below this directory: bin, lib/systemd/system, lib/sysusers.d, ..
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub(in crate::cli) prefix: PathBuf,
    /// Use this directory as /, and leave the running system alone
    #[arg(long, value_name = "DIR")]
    pub(in crate::cli) root: Option<PathBuf>,
    /// Print what would be done, do nothing
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Uninstall {
    #[command(flatten)]
    pub(in crate::cli) place: Place,
    /// Remove models, caches and the configuration too
    #[arg(long)]
    pub(in crate::cli) purge: bool,
}
