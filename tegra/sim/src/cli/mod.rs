//! Command line of `tegra-sim`: one module per command.

mod elf;
mod embedded;
mod errnos;
mod output;
mod profile;
mod replay;
mod run;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  tegra-sim run -- ./my-jetson-program --its-option
  tegra-sim run --seed 7 --trace run.jsonl -- python3 script.py
  tegra-sim run --lint warn -- ls -l /dev/nvmap
  tegra-sim decode run.jsonl
  tegra-sim stats --json run.jsonl
  tegra-sim run --bundles faults -- ./my-program; tegra-sim replay faults/fault-*.bundle
  tegra-sim run --profile orin-profile.json -- ./my-program
  tegra-sim run --machine no-event,chain-cut=64 --release r36.2 -- ./my-program
  tegra-sim profile diff orin-profile.json
  tegra-sim errnos --node channel

A broken rule that silicon would let pass is reported on stderr and ends the program, unless --lint \
or --suppress say otherwise. What TEGRA_SIM_SEED, TEGRA_SIM_FAULTS, TEGRA_SIM_TRACE, TEGRA_SIM_LINT, TEGRA_SIM_SUPPRESS, \
TEGRA_SIM_CHECKS, TEGRA_SIM_BUNDLES, TEGRA_SIM_PROFILE, TEGRA_SIM_MACHINE, TEGRA_SIM_RELEASE and \
TEGRA_SIM_DESKTOP say, the options of `run` say too.

The program must be dynamically linked: the simulator stands in front of libc's functions. Raw \
system calls pass it by. Each process that opens a node has an Orin of its own.";

/// Simulated Jetson Orin for programs that drive its GPU through nvmap and nvgpu.
#[derive(Debug, Parser)]
#[command(name = "tegra-sim", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program on a simulated Orin
    Run(run::Run),
    /// Print a trace, one line per record
    Decode(trace::Decode),
    /// Print statistics of a trace
    Stats(trace::Stats),
    /// Replay a failed launch from its fault bundle
    Replay(replay::Replay),
    /// Compare the simulator with a real Orin
    #[command(subcommand)]
    Profile(profile::Command),
    /// List the conditions under which the simulated drivers refuse a call
    Errnos(errnos::Errnos),
}

/// Parses the command line and runs the command. Exit status 125 is a failure of the simulator
/// itself, as with `env` and `timeout`.
pub(crate) fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(run) => run.start(),
        Command::Decode(decode) => decode.print(),
        Command::Stats(stats) => stats.print(),
        Command::Replay(replay) => replay.print(),
        Command::Profile(profile) => profile.run(),
        Command::Errnos(errnos) => errnos.print(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::write(&format!("tegra-sim: {error}\n"), &mut std::io::stderr());
            ExitCode::from(125)
        }
    }
}
