//! Reports of findings: the process ends unless configured otherwise; the manual lists every rule.

use std::process::Output;

use orind_testing::program::again;
use std::fs;

use tegra_sim::finding::{
    ALL, Action, Finding, Policy, Reporter, Rule, Stderr, Suppressions, place,
};

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
    let reporter = Stderr::new(Policy::parse(&mode).unwrap(), Suppressions::default());
    // A fault is delivered to the program, which must live to see it.
    reporter.report(&finding(Rule::MmuFault));
    for _ in 0..3 {
        reporter.report(&finding(Rule::ReleaseBeforeIdle));
    }
    eprint!("{}", reporter.summary().unwrap_or_default());
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
        "TEGRA_SIM_LINT=release-before-idle=warn",
        "release-before-idle: semaphore 0x1000 -- WHY",
    ] {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
}

#[test]
fn a_finding_is_only_printed_when_asked() {
    let output = run("warn");
    assert!(output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("stopping here"), "{stderr}");
    assert_eq!(stderr.matches("tegra-sim: release-before-idle").count(), 1, "{stderr}");
    for row in [
        "1 x mmu-fault, first at 96 ns",
        "3 x release-before-idle, first at 96 ns: semaphore 0x1000",
    ] {
        assert!(stderr.contains(row), "no {row:?} in {stderr}");
    }
}

#[test]
fn a_disabled_finding_is_not_reported() {
    let output = run("release-before-idle=off");
    assert!(output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("mmu-fault") && !stderr.contains("release-before-idle"), "{stderr}");
}

#[test]
fn actions_on_findings_are_selected_by_name() {
    let policy = |list| Policy::parse(list).unwrap();
    let (read, stale) = (Rule::UninitialisedRead, Rule::StaleL2);
    assert_eq!(policy("").of(read), Action::Abort);
    assert_eq!(policy("").of(Rule::ConstantsOversized), Action::Warn, "a note");
    let mixed = policy("warn,stale-l2=abort,uninitialised-read=off");
    assert_eq!(
        [read, stale, Rule::Deadlock].map(|rule| mixed.of(rule)),
        [Action::Off, Action::Abort, Action::Warn]
    );
    assert_eq!(policy("stale-l2=off,warn").of(stale), Action::Warn, "the last word wins");
    for (list, part) in [
        ("quiet", "NAME=off"),
        ("stale-l2=no", "NAME=off"),
        ("stale-l3=off", "there are gp-put-range"),
        ("mmu-fault=off", "hardware raises"),
    ] {
        let said = Policy::parse(list).unwrap_err().to_string();
        assert!(said.contains(part), "{list}: {said}");
    }
}

#[test]
fn every_observation_on_hardware_has_a_test() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let manual = include_str!("../../../../docs/simulator-internals.md");
    let (_, behind) = manual.split_once("## Compared with an Orin").unwrap();
    let (table, _) = behind.split_once("\n## ").unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() > 20, "{}", rows.len());
    for row in rows {
        let last = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let [_, test, _, file, _] = last.split('`').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let path = match file.strip_prefix("tegra/") {
            Some(rest) => root.join("..").join(rest),
            None => root.join("tests/suite").join(file),
        };
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert!(source.contains(&format!("#[test]\nfn {test}() {{")), "{file} has no test {test}");
    }
}

fn finding(rule: Rule, message: &str) -> Finding {
    let message = message.into();
    Finding { rule, channel: None, time: 0, message, listing: Vec::new() }
}

/// A line of the summary, in a suppression file with a reason, matches the same finding at other
/// addresses and no other finding.
#[test]
fn known_findings_stay_known_in_another_run() {
    let message = "pc 0x2000fd70: R5 has no value in 0x2000fd00+0x70 (STG.E [R2], R5), block [1, 0, 0], warp 3";
    let known = place(message);
    assert_eq!(known, "pc *: R5 has no value in *+0x70 (STG.E [R2], R5), block [*, *, *], warp *");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("known");
    fs::write(&path, format!("# ours\n\nuninitialised-use: {known} -- its lanes are not used\n"))
        .unwrap();
    let suppressions = Suppressions::read(&path).unwrap();
    let elsewhere = message.replace("0x2000f", "0x7770f").replace("warp 3", "warp 11");
    for (rule, message, line) in [
        (Rule::UninitialisedUse, message, Some(3)),
        (Rule::UninitialisedUse, &elsewhere, Some(3)),
        (Rule::UninitialisedUse, &message.replace("+0x70", "+0x80"), None),
        (Rule::SharedRace, message, None),
    ] {
        assert_eq!(suppressions.knows(&finding(rule, message)), line, "{rule}: {message}");
    }
    let reporter = Stderr::new(Policy::default(), suppressions);
    assert!(
        reporter.summary().unwrap().contains("nothing of line 3"),
        "it says what is not needed"
    );
    // It would end the process.
    reporter.report(&finding(Rule::UninitialisedUse, message));
    assert!(reporter.summary().unwrap().contains("1 x known by line 3"));
}

#[test]
fn a_file_of_suppressions_gives_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("known");
    for (text, part) in [
        ("stale-l2: *\n", "line 1: it gives no reason"),
        ("# fine\nstale-l2: * -- \n", "line 2: its reason is empty"),
        ("stale-l2 -- so\n", "it names no place"),
        ("stale: * -- so\n", "there is no finding \"stale\""),
        ("mmu-fault: * -- so\n", "hardware raises"),
    ] {
        fs::write(&path, text).unwrap();
        let said = Suppressions::read(&path).unwrap_err().to_string();
        assert!(said.contains(part) && said.contains("known"), "{text:?}: {said}");
    }
    let gone = Suppressions::read(&folder.path().join("gone")).unwrap_err().to_string();
    assert!(gone.contains("cannot be read"), "{gone}");
}

#[test]
fn the_manual_lists_every_rule() {
    let manual = include_str!("../../../../docs/simulator.md");
    for rule in ALL {
        let row = format!("| `{}` | {} |", rule.name(), rule.why());
        assert!(manual.contains(&row), "docs/simulator.md has no row {row}");
    }
}
