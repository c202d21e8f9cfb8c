//! `orinctl`: the client.

fn main() -> std::process::ExitCode {
    orind::cli::main()
}
