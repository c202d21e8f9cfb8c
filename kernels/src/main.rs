//! `orind-kernels build`: compiles the kernels into `prebuilt/`.

mod build;
mod nvrtc;

use clap::Parser;

/// The kernels' compiler.
#[derive(Parser)]
#[command(version)]
enum Command {
    /// Compiles every unit into `prebuilt/`, with its manifest.
    Build,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Build => build::build(&nvrtc::Compiler::load()?),
    }
}
