//! Arguments that several subcommands share.

use std::path::PathBuf;

use config::{Backend, CpuIsa, named};

/// Address of the daemon.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "The daemon")]
pub(crate) struct Connection {
    /// Socket of the daemon [default: the daemon's default]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// TCP port of the daemon instead of its socket, on this machine or another; sends the API key
    /// in $ORIND_TOKEN
    #[arg(long, global = true, value_name = "HOST:PORT", conflicts_with = "socket")]
    pub(crate) tcp: Option<String>,
    /// File with the API key for --tcp
    #[arg(long, global = true, value_name = "FILE", requires = "tcp")]
    pub(crate) token_file: Option<PathBuf>,
}

/// Path of the record file.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RecordsFile {
    /// Record file [default: bench.jsonl in the state directory]
    #[arg(long = "records", value_name = "FILE")]
    pub(crate) records: Option<PathBuf>,
}

/// Output format of a report; a table if none is given.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct Format {
    /// Print the whole report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print one line per test as CSV
    #[arg(long)]
    pub(crate) csv: bool,
    /// Print Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// Model to use, and options of a private daemon.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelChoice {
    /// The model [default: the loaded one; synthetic:qwen3-0.6b:q8_0 in a private daemon]
    #[arg(short, long)]
    pub(crate) model: Option<String>,
    /// Start a private daemon even if another one listens on the socket
    #[arg(long)]
    pub(crate) private: bool,
    /// Device of a private daemon: auto, nv, cuda, cpu, reference
    #[arg(long, visible_alias = "device", value_name = "NAME", value_parser = named::<Backend>)]
    pub(crate) backend: Option<Backend>,
    /// Worker threads of a private daemon [default: the allowed cores]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Instruction set of a private daemon's CPU device: auto, amx, avx512, avx2, neon, scalar
    #[arg(long, value_name = "NAME", value_parser = named::<CpuIsa>)]
    pub(crate) cpu_isa: Option<CpuIsa>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
