//! `POST /orin/v1/bench`: progress, the report, and cancellation.

use std::process::Command;

use orind_testing::daemon::{Daemon, MODEL};
use serde_json::json;

use super::{COMPLETIONS, MODELS, SMALL};

/// The commit of this repository, if there is one.
fn commit() -> Option<String> {
    let root = env!("CARGO_MANIFEST_DIR");
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(["-C", root]).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
    };
    let of_this = git(&["rev-parse", "--show-prefix"])?.is_empty();
    if of_this { git(&["rev-parse", "HEAD"]) } else { None }
}

#[test]
fn a_bench_reports_progress_and_can_be_cancelled() {
    let daemon = Daemon::start(SMALL);
    let spec = json!({"prompts": [8], "generate": [4], "repetitions": 1, "warmup": 0});
    let events: Vec<_> = daemon.stream("/orin/v1/bench", &spec).collect();
    let (last, progress) = events.split_last().unwrap();
    assert!(progress.iter().all(|(name, _)| name == "progress") && !progress.is_empty());
    assert_eq!(last.0, "result");
    let report: bench::Report = serde_json::from_str(&last.1).unwrap();
    assert_eq!(report.rows.len(), 2);
    if let Some(expected) = commit() {
        let commit = report.manifest.commit.as_deref().unwrap();
        assert_eq!(commit.strip_suffix("-dirty").unwrap_or(commit), expected);
    }

    // The roof in the status is that of the device that measured it.
    let roof = |backend: &str| {
        let load = json!({"model": MODEL, "backend": backend});
        assert_eq!(daemon.stream(MODELS, &load).last().unwrap().0, "result");
        daemon.get("/orin/v1/status").json()["roof"]["source"].clone()
    };
    assert_ne!(roof("reference"), "bench");
    assert_eq!(roof(&report.manifest.device), "bench");

    let endless = json!({"prompts": [8], "generate": [64], "repetitions": 1000});
    let mut events = daemon.stream("/orin/v1/bench", &endless);
    assert_eq!(events.next().unwrap().0, "progress");
    daemon.until("the bench has the device", |s| s["state"]["name"] == "exclusive");
    drop(events);
    daemon.until("the device is free again", |s| s["state"]["name"] == "ready");
    assert_eq!(daemon.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1})).status, 200);
}
