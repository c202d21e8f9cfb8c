//! `orind`: the daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    orind::daemon::main(std::env::args_os())
}
