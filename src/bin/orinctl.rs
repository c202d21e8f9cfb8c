//! `orinctl`: the client.

fn main() -> std::process::ExitCode {
    grammar::run_if_worker(std::env::args_os());
    cli::main()
}
