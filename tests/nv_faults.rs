//! GPU faults in the middle of a generation: the daemon's engine rebuilds the channel, executes the
//! interrupted step again on the caches as they are, and the stream's tokens are those of a run that
//! nothing disturbed.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

use orind::engine::{Event, Handle, LoadEvent, LoadSpec, Request, Settings};
use orind::plan::sample::{Sampling, philox};
use tegra_sim::bundle::Bundle;
use tegra_sim::engine::Replay;
use tegra_sim_preload as _;

const TOKENS: u32 = 60;

/// One generation, with the faults that the environment asks the simulator for. The parent reads
/// what this prints.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn generation() {
    let handle = Handle::start(Settings { queue_limit: 4 }).unwrap();
    let mut events = handle.load(LoadSpec {
        model: "synthetic:tiny-llama:q8_0".into(),
        backend: "nv".into(),
        slots: 2,
        context: 128,
        prefill_chunk: 8,
        threads: 1,
        cpu_isa: "auto".into(),
    });
    loop {
        match events.blocking_recv().unwrap() {
            LoadEvent::Progress { .. } => {}
            LoadEvent::Loaded(_) => break,
            LoadEvent::Failed(error) => panic!("{error}"),
        }
    }
    let mut events = handle
        .generate(Request {
            prompt: (1..20).collect(),
            max_tokens: TOKENS,
            // Random, so that a repeated step that drew other numbers would show.
            sampling: Sampling { temperature: 1.5, top_k: 0, top_p: 1.0, seed: 7 },
            stop: vec![],
            ignore_end: true,
            logprobs: None,
            prompt_logprobs: false,
        })
        .unwrap();
    let mut ids = Vec::new();
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Token(token) => ids.push(token.id),
            Event::Failed(error) => panic!("{error}"),
            Event::Prompt(_) | Event::Finished(_) => {}
        }
    }
    println!("tokens {ids:?}");
    println!("rebuilds {}", handle.snapshot().activity.rebuilds);
}

/// Tokens and rebuilds of a generation with these faults.
fn generate(faults: &str) -> (String, usize) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["generation", "--exact", "--ignored", "--nocapture"])
        .env("TEGRA_SIM_FAULTS", faults)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "faults {faults}: {text}\n{error}");
    let line = |name: &str| {
        text.lines().find_map(|l| Some(l.split_once(name)?.1.to_owned())).unwrap_or_default()
    };
    (line("tokens "), line("rebuilds ").parse().unwrap())
}

/// What the simulator leaves behind can be looked at on any machine.
#[test]
fn every_fault_leaves_a_bundle_that_replays() {
    let dir = tempfile::tempdir().unwrap();
    let faults: Vec<String> = places(2, 3).iter().map(|at| format!("mmu-fault@{at}")).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["generation", "--exact", "--ignored", "--nocapture"])
        .env("TEGRA_SIM_FAULTS", faults.join(","))
        .env("TEGRA_SIM_BUNDLES", dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    for file in files {
        let replay = Replay::run(&Bundle::read(&file).unwrap(), None).unwrap();
        assert!(replay.is_same(), "{}: {replay}", file.display());
    }
}

/// `count` places at which something fails, a step apart at least.
fn places(seed: u64, count: u32) -> Vec<u64> {
    let mut at = 5;
    (0..count)
        .map(|i| {
            at += 16 + u64::from(philox([i, 0, 0, 0], seed)[0] % 10);
            at
        })
        .collect()
}

#[test]
fn fifty_faults_change_no_token() {
    let (undisturbed, rebuilds) = generate("");
    assert_eq!(rebuilds, 0);
    assert_eq!(undisturbed.split(',').count(), TOKENS as usize);
    let faults: Vec<String> =
        places(1, 50).into_iter().map(|at| format!("mmu-fault@{at}")).collect();
    let (disturbed, rebuilds) = generate(&faults.join(","));
    assert_eq!(disturbed, undisturbed);
    assert_eq!(rebuilds, 50);
}

#[test]
fn a_step_that_never_succeeds_ends_the_request_and_not_the_daemon() {
    let faults: Vec<String> = (40..48).map(|at| format!("mmu-fault@{at}")).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["generation", "--exact", "--ignored", "--nocapture"])
        .env("TEGRA_SIM_FAULTS", faults.join(","))
        .output()
        .unwrap();
    // The request fails with a reason, which is where that test stops.
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("address fault"), "{error}");
    assert!(!output.status.success());
}
