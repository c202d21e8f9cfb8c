//! Arguments of `orinctl top`.

#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// Print one view as text and exit; the default without a terminal
    #[arg(long)]
    pub(crate) once: bool,
    /// Print a line of JSON twice a second until Ctrl-C
    #[arg(long, conflicts_with = "once")]
    pub(crate) json: bool,
    /// Stop after N lines
    #[arg(short = 'n', long = "samples", value_name = "N", requires = "json")]
    pub(crate) samples: Option<u64>,
}
