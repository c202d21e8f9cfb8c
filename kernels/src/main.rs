//! `orind-kernels build` compiles the kernels into `prebuilt/`, `orind-kernels snippets` the random
//! programs into `snippets/`.

mod build;
mod nvrtc;

use clap::Parser;

/// The kernels' compiler.
#[derive(Parser)]
#[command(version)]
enum Command {
    /// Compiles every unit into `prebuilt/`, with its manifest.
    Build,
    /// Compiles the random programs into `snippets/`.
    Snippets,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Build => build::build(&nvrtc::Compiler::load()?),
        Command::Snippets => build::snippets(&nvrtc::Compiler::load()?),
    }
}
