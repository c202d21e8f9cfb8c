//! `orind`: the daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    daemon::main(std::env::args_os())
}
