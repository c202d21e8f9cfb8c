//! `tegra-sim`: runs programs on a simulated Jetson Orin, and tells what it saw.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
