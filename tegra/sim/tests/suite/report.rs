//! What follows a finding on stderr: the process ends, unless told to go on; and what the manual
//! says about each.

use std::process::Output;

use orind_testing::program::again;
use tegra_sim::finding::{ALL, Finding, Reporter, Rule, Stderr};

const MODE: &str = "REPORT_MODE";

#[test]
#[ignore = "run by the others, in a process that may be aborted"]
fn child() {
    let mode = std::env::var(MODE).expect("what the others ask for");
    let finding = |rule| Finding {
        rule,
        channel: Some(511),
        time: 96,
        message: "semaphore 0x1000".into(),
        listing: vec!["0: WFI = 0x0".into()],
    };
    let reporter = Stderr { warn_only: mode == "warn" };
    // A fault is delivered to the program, which must live to see it.
    reporter.report(&finding(Rule::MmuFault));
    reporter.report(&finding(Rule::ReleaseBeforeIdle));
}

fn run(mode: &str) -> Output {
    again(module_path!(), "child").env(MODE, mode).output().expect("a process")
}

#[test]
fn a_finding_ends_the_process() {
    let output = run("abort");
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    for part in [
        "tegra-sim: mmu-fault on channel 511 at 96 ns: semaphore 0x1000",
        "tegra-sim: release-before-idle on channel 511",
        "    0: WFI = 0x0",
        "TEGRA_SIM_LINT=warn goes on",
    ] {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
}

#[test]
fn a_finding_is_only_printed_when_asked() {
    let output = run("warn");
    assert!(output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("release-before-idle") && !stderr.contains("goes on"));
}

#[test]
fn the_manual_lists_every_rule() {
    let manual = include_str!("../../../../docs/simulator.md");
    for rule in ALL {
        let row = format!("| `{}` | {} |", rule.name(), rule.why());
        assert!(manual.contains(&row), "docs/simulator.md has no row {row}");
    }
}
