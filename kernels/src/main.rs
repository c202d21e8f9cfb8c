//! `orind-kernels header` writes `src/cuda/params.cuh`, `build` compiles the kernels into
//! `prebuilt/`, and `snippets` the random programs into `snippets/`.

mod build;

use clap::Parser;
use orind_kernels::nvrtc::Compiler;

/// The kernels' compiler.
#[derive(Parser)]
#[command(version)]
enum Command {
    /// Writes `src/cuda/params.cuh` from `src/params`.
    Header,
    /// Compiles every unit into `prebuilt/`, with its manifest.
    Build,
    /// Compiles the random programs into `snippets/`.
    Snippets,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Header => build::header(),
        Command::Build => build::build(&Compiler::load()?),
        Command::Snippets => build::snippets(&Compiler::load()?),
    }
}
