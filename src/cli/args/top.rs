//! Arguments of `orinctl top`.

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Top {
    /// Print one view as text and exit; the default where there is no terminal
    #[arg(long)]
    pub(in crate::cli) once: bool,
    /// Print a line of JSON twice a second, until Ctrl-C
    #[arg(long, conflicts_with = "once")]
    pub(in crate::cli) json: bool,
    /// Stop after N lines
    #[arg(short = 'n', long = "samples", value_name = "N", requires = "json")]
    pub(in crate::cli) samples: Option<u64>,
}
