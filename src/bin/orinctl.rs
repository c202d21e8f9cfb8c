//! `orinctl`: the client.

fn main() -> std::process::ExitCode {
    cli::main()
}
