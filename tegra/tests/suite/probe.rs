//! The example `probe` as a program, with an Orin and without one.
//!
//! Skipped, with a message, if only this test was built: the program is an example.

use std::path::Path;
use std::process::Output;

use orind_testing::program::{built, command};

fn run(preload: Option<&Path>, arguments: &[&str]) -> Option<Output> {
    let program = built().join("examples/probe");
    if !program.exists() {
        println!("skipped: {} is not built", program.display());
        return None;
    }
    let mut command = command(program);
    command.args(arguments).env_remove("LD_PRELOAD");
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    Some(command.output().unwrap())
}

#[test]
fn without_an_orin_one_line_and_exit_code_1() {
    if Path::new("/dev/nvmap").exists() {
        println!("skipped: this machine has /dev/nvmap");
        return;
    }
    let Some(output) = run(None, &["--json"]) else { return };
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("not a Jetson Orin"), "{message}");
    let Some(output) = run(None, &["--xml"]) else { return };
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_orin_is_printed_as_table_and_as_json() {
    let library = built().join("deps/libtegra_sim_preload.so");
    if !library.exists() {
        println!("skipped: {} is not built", library.display());
        return;
    }
    let Some(table) = run(Some(&library), &[]) else { return };
    let table = String::from_utf8(table.stdout).unwrap();
    let columns = |line: &str| line.strip_prefix("  ")?.find("  ").map(|_| ());
    assert!(table.lines().any(|line| line.contains("ga10b")), "{table}");
    assert!(table.lines().filter(|line| columns(line).is_some()).count() > 40, "{table}");

    let json = run(Some(&library), &["--json"]).unwrap();
    assert!(json.status.success());
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["chip"]["chip"], "ga10b");
    assert_eq!(report["chip"]["SMs"], report["chip"]["TPCs per GPC"].as_u64().unwrap() * 2);
    for section in ["layout", "engines", "clocks", "memory", "time"] {
        let rows = report[section].as_object().unwrap();
        assert!(!rows.is_empty() && rows.values().all(|value| !value.is_null()), "{section}");
    }
}
