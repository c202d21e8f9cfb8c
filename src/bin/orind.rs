//! `orind`: the daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    grammar::run_if_worker(std::env::args_os());
    daemon::main(std::env::args_os())
}
