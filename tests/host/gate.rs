//! Records, and the regression gate that compares a run with a record or with another build, as commands.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use analysis::{Gate, Verdict};
use orind_testing::daemon::{MODEL, orinctl};
use orind_testing::program::{built, outcome};
use serde_json::Value;

/// Arguments of tests that take milliseconds each.
const SMALL: [&str; 11] = ["-m", MODEL, "-t", "1", "-p", "8", "-n", "16", "-r", "3", "--private"];

fn command(home: &Path, args: &[&[&str]]) -> Command {
    let mut command = orinctl(home);
    command.args(args.concat());
    command
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_run_is_saved_and_the_next_is_compared_with_it() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&[&str]]| outcome(&mut command(home.path(), args));

    let (code, _, said) = run(&[&["bench", "--against", "last"], &SMALL]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("no records in") && said.contains("--save"), "{said}");

    let (code, _, said) = run(&[&["bench", "--save"], &SMALL]);
    assert_eq!(code, Some(0), "{said}");
    let file = home.path().join("data/orind/bench.jsonl");
    assert!(said.contains(&file.display().to_string()), "{said}");
    let records = analysis::read(&file).unwrap();
    let manifest = &records.reports[0].1.manifest;
    let provenance = manifest.provenance.as_ref().unwrap();
    assert_eq!(provenance.model_sha256.as_ref().unwrap().len(), 64);
    assert!(provenance.weight_types["Q8_0"] > 0 && provenance.kv_type == "F16");
    assert_eq!(provenance.prompt_precision, "single");
    assert_eq!(provenance.kernels.as_ref().unwrap().len(), 64);

    let (code, table, said) = run(&[&["verify", "--json"]]);
    let found = json(&table);
    assert_eq!(found["records"][0]["wrong"], Value::Array(vec![]), "{found}");
    for missing in found["records"][0]["missing"].as_array().unwrap() {
        // The commit of this build, if it has one.
        assert!(missing.as_str().unwrap().contains("commit"), "{found}");
        assert_eq!(code, Some(2), "{said}");
    }

    // Tests, repetitions and context come from the record. The verdict on such short tests depends on the machine.
    let (code, text, said) = run(&[
        &["bench", "--against", "last", "--threshold", "99%", "--json", "--save"],
        &SMALL[..4],
        &["--private"],
    ]);
    let gate: Gate = serde_json::from_value(json(&text)["gate"].clone()).unwrap();
    let names: Vec<&str> = gate.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["pp8", "tg16"]);
    assert_eq!(code, Some(if gate.verdict <= Verdict::Same { 0 } else { 2 }), "{said}{text}");
    assert!(gate.verdict <= Verdict::CannotTell && gate.threshold == 0.99, "{gate:?}");

    let (code, text, _) = run(&[&["history", "--plot", "--test", "tg16"]]);
    assert_eq!(code, Some(0));
    assert!(text.contains("on cpu, 1 threads: tg16, tok/s") && !text.contains("pp8"), "{text}");
    assert_eq!(text.matches('●').count(), 2, "{text}");
    let (_, text, _) = run(&[&["history", "--json"]]);
    assert_eq!(json(&text)[1]["points"].as_array().unwrap().len(), 2);
    let (code, _, said) = run(&[&["history", "--model", "other"]]);
    assert!(code == Some(1) && said.contains("none of the 2 records"), "{said}");

    // A commit without a record; another model; a malformed line.
    let (code, _, said) = run(&[&["bench", "--against", "0000000"], &SMALL]);
    assert!(code == Some(3) && said.contains("no valid record for --against 0000000"), "{said}");
    let other = ["-m", "synthetic:tiny-llama:f16", "-t", "1", "--private"];
    let (code, _, said) = run(&[&["bench", "--against", "last"], &other]);
    assert!(code == Some(3) && said.contains("the model is synthetic:tiny-llama:q8_0"), "{said}");
    let mut text = fs::read_to_string(&file).unwrap();
    let half = text.len() / 2;
    text.push_str(&text.clone()[..half / 2]);
    fs::write(&file, text.replacen("\"median\":", "\"median\":1", 1)).unwrap();
    let (code, text, _) = run(&[&["verify"]]);
    assert_eq!(code, Some(1));
    assert!(text.contains("line 3: DAMAGED") && text.contains("WRONG    pp8: median is"), "{text}");
    let (code, _, said) = run(&[&["history"]]);
    assert!(code == Some(0) && said.contains("line 3: not a record, skipped"), "{said}");
}

/// This build's program as another build, which wastes no steps.
fn other_build(home: &Path) -> String {
    let path = home.join("other-orinctl");
    let program = built().join("orinctl");
    let script =
        format!("#!/bin/sh\nunset ORIND_TEST_WASTE\nexec '{}' \"$@\"\n", program.display());
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// The gate with a build that wastes enough decode steps to be slower by `slower`, compared with one that does not.
fn gate(home: &Path, slower: f64, args: &[&str]) -> (Option<i32>, Gate) {
    let other = other_build(home);
    let fixed = ["bench", "--against", &other, "--json", "-m", MODEL, "-t", "1"];
    let mut command = command(home, &[&fixed, args]);
    command.env("ORIND_TEST_WASTE", (slower / (1.0 - slower)).to_string());
    let (code, text, said) = outcome(&mut command);
    assert!(!text.is_empty(), "{said}");
    (code, serde_json::from_value(json(&text)["gate"].clone()).unwrap())
}

#[test]
fn a_build_of_a_tenth_of_the_speed_is_found_in_alternating_runs() {
    let home = tempfile::tempdir().unwrap();
    // The long prompt gives room for wasted steps, and is not slower itself. If other tests use the processors, a few
    // pairs may give no verdict; then the gate runs again with more.
    let lengths = ["-p", "512", "-n", "32"];
    let of = |found: &Gate, name| {
        found.rows.iter().find(|row| row.name == name).map(|row| row.verdict).unwrap()
    };
    let found = ["8", "16", "32"].iter().find_map(|pairs| {
        let (code, found) = gate(home.path(), 0.9, &[&lengths[..], &["--pairs", pairs]].concat());
        assert_eq!(found.rows[1].pairs.as_ref().unwrap().ratios.len().to_string(), *pairs);
        let found_slower =
            of(&found, "tg32") == Verdict::Slower && of(&found, "pp512") != Verdict::Slower;
        assert!(found_slower || found.verdict != Verdict::Same, "{found:?}");
        found_slower.then_some((code, found))
    });
    let (code, found) = found.expect("a build of a tenth of the speed, in 32 pairs");
    assert_eq!((code, found.verdict), (Some(1), Verdict::Slower), "{found:?}");
    let pairs = found.rows[1].pairs.as_ref().unwrap();
    assert!(pairs.resolved && pairs.median < 0.5, "{pairs:?}");
    // The same build is never slower by that much.
    let threshold = ["--threshold", "80"];
    let pairs = ["--pairs", "8"];
    let args = [&lengths[..], &pairs[..], &threshold[..]].concat();
    let (code, same) = gate(home.path(), 0.0, &args);
    assert_ne!(code, Some(1), "{same:?}");
}

/// Detection rates of the gate: 20 runs each with a build that is slower by 8 %, by 1 %, and not slower.
///
/// `cargo test --test host -- --ignored --nocapture rates_of_the_gate`, with `GATE_RUNS` and `GATE_PAIRS` in the
/// environment; preceded by `nice -n -15` on a busy machine.
#[test]
#[ignore = "takes minutes, and its numbers are those of the machine"]
fn rates_of_the_gate() {
    let home = tempfile::tempdir().unwrap();
    let setting = |name: &str, default: u32| {
        std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
    };
    let (runs, pairs) = (setting("GATE_RUNS", 20), setting("GATE_PAIRS", 60));
    for slower in [0.08, 0.01, 0.0] {
        let mut found = std::collections::BTreeMap::new();
        let mut ratios = Vec::new();
        for _ in 0..runs {
            let args = ["-p", "0", "-n", "200", "--pairs", &pairs.to_string()];
            let gate = gate(home.path(), slower, &args).1;
            *found.entry(format!("{:?}", gate.verdict)).or_insert(0) += 1;
            let row = &gate.rows[0];
            let interval = row.interval.map(|i| (i.low, i.high)).unwrap_or_default();
            ratios.push((row.ratio, interval));
        }
        println!("slower by {:.0} %, {runs} runs of {pairs} pairs: {found:?}", 100.0 * slower);
        for (ratio, (low, high)) in ratios {
            println!("    {ratio:.3} ({low:.3} to {high:.3})");
        }
        let slow = found.get("Slower").copied().unwrap_or(0);
        if slower < 0.05 {
            assert!(slow <= runs / 10, "{slow} of {runs} false alarms");
        } else {
            assert!(slow >= runs * 8 / 10, "{slow} of {runs} found");
        }
    }
}
