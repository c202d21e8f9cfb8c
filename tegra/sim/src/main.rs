//! `tegra-sim`: runs programs on a simulated Jetson Orin and reports findings.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
