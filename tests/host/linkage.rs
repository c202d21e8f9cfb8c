//! Libraries that the programs link.

use std::process::Command;

/// True if a program contains code of a library: panic messages name its source files.
fn links(program: &str, library: &str) -> bool {
    let pattern = format!("/{library}-");
    Command::new("grep").args(["-qaF", &pattern, program]).status().unwrap().success()
}

#[test]
fn the_daemon_links_no_plotting_statistics_or_terminal_library() {
    let (orind, orinctl) = (env!("CARGO_BIN_EXE_orind"), env!("CARGO_BIN_EXE_orinctl"));
    for library in ["plotters", "statrs", "ratatui-core", "rustyline"] {
        assert!(links(orinctl, library), "orinctl should link {library}: is its name still that?");
        assert!(!links(orind, library), "orind links {library}");
    }
}
