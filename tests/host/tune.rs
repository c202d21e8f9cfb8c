//! Tuning from outside: results are stored, and used by later loads with the same kernels.

use std::io::{BufRead as _, BufReader};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use ::engine::tuning::Tuning;
use ::engine::tuning::pace::Pace;
use ::engine::{Handle, LoadSpec, ModelInfo, State as EngineState};
use device::cpu::{Cpu, Isa};
use device::tune::report::{Mode, Progress, Report, Spec, State};
use device::tune::{Clock, Record, Store};
use device::{Kernels, Tunable};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orind_testing::engine::{self, ask, engine, request};
use orind_testing::program::{outcome, said};
use orind_testing::{daemon, tiny};
use serde_json::Value;

fn tuning(mode: Mode, dir: &Path) -> Tuning {
    Tuning { mode, dir: dir.to_owned(), cold_bytes: Some(0), ..Tuning::default() }
}

fn load(handle: &Handle, tuning: Tuning) -> ModelInfo {
    // A single thread never waits at a barrier on a busy machine.
    let spec =
        LoadSpec { prefill_chunk: 2, tuning, ..engine::spec(tiny("tiny-llama-Q8_0"), "cpu") };
    engine::load(handle, spec).unwrap()
}

/// A short search over tiny matrices, which stay in the caches.
fn small() -> Spec {
    let kernel = Some("project".into());
    Spec { cold_bytes: Some(0), beam: 1, kernel, ..Spec::default() }
}

/// Tunes, and stops after `stop_after` cases.
fn tune(handle: &Handle, spec: Spec, stop_after: usize) -> Report {
    let mut cases = 0;
    tune_until(handle, spec, move |progress| {
        cases += usize::from(matches!(progress, Progress::Case { .. }));
        cases == stop_after
    })
}

fn tune_until(
    handle: &Handle,
    spec: Spec,
    mut stop: impl FnMut(&Progress) -> bool + Send + 'static,
) -> Report {
    let (sender, receiver) = std::sync::mpsc::channel();
    let done = handle.exclusive("tune", move |core| {
        let pace = Pace::default();
        let report = core.tune(&spec, &pace, &mut |progress| {
            if stop(&progress) {
                pace.stop();
            }
        });
        sender.send(report.unwrap()).unwrap();
    });
    done.blocking_recv().unwrap().unwrap();
    receiver.recv().unwrap()
}

fn generate(handle: &Handle) -> Vec<u32> {
    ask(handle, request((0..40).map(|i| i * 37 % 1000), 20)).ids
}

fn cpu() -> Cpu {
    Cpu::new(Isa::detect(), NonZeroUsize::MIN)
}

fn records(dir: &Path) -> Vec<Record> {
    let cpu = cpu();
    let key = cpu.key();
    Store::new(dir).read(&key, Clock::Measured, &Kernels(&cpu)).unwrap().current
}

#[test]
fn results_are_used_by_the_next_load_and_not_measured_again() {
    let dir = tempfile::tempdir().unwrap();
    let handle = engine();
    let info = load(&handle, tuning(Mode::Load, dir.path()));
    assert_eq!((info.tuning.used, info.tuning.current), (0, 0));
    let before = generate(&handle);

    // Results of an interrupted search are kept.
    let part = tune(&handle, small(), 2);
    assert_eq!(part.rows.len(), 2);
    assert!(part.left > 0);
    let kept = records(dir.path()).len();
    assert!(kept <= 2);
    let rest = tune(&handle, small(), usize::MAX);
    assert_eq!(rest.known, kept, "what is known is left alone");
    assert_eq!(rest.rows.len() + rest.known, part.rows.len() + part.left);
    assert!(rest.rows.iter().all(|row| row.rejected.is_empty()), "{:?}", rest.rows);
    for row in &rest.rows {
        assert!(row.gain >= 1.0 && row.state != State::Failed, "{row:?}");
    }
    let found = records(dir.path());
    assert_eq!(found.len(), rest.rows.len() + kept);

    // Another engine, as after a restart.
    handle.stop(Duration::from_secs(5));
    let handle = engine();
    let info = load(&handle, tuning(Mode::Load, dir.path()));
    assert_eq!((info.tuning.used, info.tuning.stale), (found.len(), 0));
    assert_eq!(generate(&handle), before, "a choice decides how fast an answer comes");
    assert!(tune(&handle, small(), usize::MAX).rows.is_empty());
    let again = tune(&handle, Spec { again: true, samples: 60, ..small() }, usize::MAX);
    assert_eq!(again.rows.len(), found.len());
    let winners = found.iter().filter(|r| r.choice != r.heuristic.choice).count();
    let known = records(dir.path());
    let verified = tune(&handle, Spec { verify: true, ..small() }, usize::MAX);
    assert!(verified.rows.len() <= found.len(), "{winners}");
    assert_eq!(records(dir.path()), known, "verifying changes nothing");

    // `Off` ignores the store.
    let info = load(&handle, tuning(Mode::Off, dir.path()));
    assert_eq!((info.tuning.used, info.tuning.file), (0, None));
    handle.stop(Duration::from_secs(5));
}

/// An interrupted search continues in another process.
#[test]
#[ignore = "nightly"]
fn nightly_an_interrupted_case_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let handle = engine();
    load(&handle, tuning(Mode::Load, dir.path()));
    let all = || Spec { beam: 8, ..small() };
    let mut tried = 0;
    let part = tune_until(&handle, all(), move |progress| {
        tried += usize::from(matches!(progress, Progress::Candidate { .. }));
        tried == 3
    });
    assert!(part.rows.len() == 1 && part.rows[0].tried == 3, "{part:?}");
    assert_eq!(part.rows[0].before, 0);
    assert!(matches!(part.rows[0].state, State::Partial | State::Faster), "{part:?}");
    let name = part.rows[0].case.clone();
    let journal = part.file.with_extension("journal");
    assert_eq!(std::fs::read_to_string(&journal).unwrap().lines().count(), 3);
    handle.stop(Duration::from_secs(5));

    let handle = engine();
    load(&handle, tuning(Mode::Load, dir.path()));
    let (sender, candidates) = std::sync::mpsc::channel();
    let of = name.clone();
    let rest = tune_until(&handle, all(), move |progress| {
        if let Progress::Candidate { case, .. } = progress
            && *case == of
        {
            sender.send(()).unwrap();
        }
        false
    });
    let row = rest.rows.iter().find(|row| row.case == name).unwrap();
    assert_eq!((row.before, row.tried), (3, 3 + candidates.iter().count()), "{row:?}");
    assert!(matches!(row.state, State::Heuristic | State::Faster), "{row:?}");
    assert!(!journal.exists(), "what is over needs no journal");
    assert!(tune(&handle, all(), usize::MAX).rows.is_empty());
    handle.stop(Duration::from_secs(5));
}

/// The watchdog notices a candidate that hangs.
#[test]
fn every_sample_is_a_heartbeat() {
    let dir = tempfile::tempdir().unwrap();
    let handle = engine();
    load(&handle, tuning(Mode::Load, dir.path()));
    let watch = handle.clone();
    let (sender, beats) = std::sync::mpsc::channel();
    tune_until(&handle, small(), move |progress| {
        if matches!(progress, Progress::Case { .. }) {
            return true;
        }
        if matches!(progress, Progress::Candidate { .. }) {
            // No measurement runs now, because this is the engine's thread.
            sender.send([watch.heartbeat().unwrap(), watch.heartbeat().unwrap()]).unwrap();
        }
        false
    });
    let beats: Vec<[u64; 2]> = beats.iter().collect();
    assert!(beats.len() > 1, "{beats:?}");
    for pair in beats.windows(2) {
        // At least a warm-up and six pairs, each with a beginning and an end.
        assert!(pair[1][0] - pair[0][1] >= 2 * 13, "{beats:?}");
    }
    assert!(
        beats.iter().all(|[first, second]| first == second),
        "heartbeats without samples: {beats:?}"
    );
    handle.stop(Duration::from_secs(5));
}

#[test]
fn a_changed_kernel_invalidates_exactly_its_own_entries() {
    let dir = tempfile::tempdir().unwrap();
    let handle = engine();
    load(&handle, tuning(Mode::Load, dir.path()));
    tune(&handle, small(), usize::MAX);
    let mut all = records(dir.path());
    assert!(all.len() > 3);
    // One case was measured with other kernels.
    let key = cpu().key();
    std::fs::remove_file(Store::new(dir.path()).path(&key)).unwrap();
    let old = "0123456789abcdef".to_owned();
    all[1].source = old.clone();
    Store::new(dir.path()).merge(&key, &all).unwrap();
    let info = load(&handle, tuning(Mode::Load, dir.path()));
    assert_eq!((info.tuning.stale, info.tuning.current), (1, all.len() - 1));
    // Only this case is searched; the old entry stays in the file.
    let report = tune(&handle, small(), usize::MAX);
    assert_eq!(report.rows.len(), 1);
    assert_eq!(report.rows[0].case, all[1].case.to_string());
    let text = std::fs::read_to_string(Store::new(dir.path()).path(&key)).unwrap();
    assert!(text.contains(&old), "{text}");
    handle.stop(Duration::from_secs(5));
}

#[test]
fn idle_time_is_used_for_tuning_and_answers_do_not_change() {
    let dir = tempfile::tempdir().unwrap();
    let handle = engine();
    load(&handle, tuning(Mode::Off, dir.path()));
    let expected = generate(&handle);
    load(&handle, tuning(Mode::Auto, dir.path()));
    // The scheduler asserts before each step that no sample runs.
    let turns = loop {
        assert_eq!(generate(&handle), expected);
        match handle.snapshot().searching {
            Some(searching) if searching.done > 0 => break searching.turns,
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(turns > 0);
    let EngineState::Ready(_) = handle.snapshot().state else { panic!("requests are served") };
    // A new load ends the search and uses its results.
    let info = load(&handle, tuning(Mode::Load, dir.path()));
    assert_eq!(info.tuning.used, records(dir.path()).len());
    assert_eq!(handle.snapshot().searching, None);
    assert_eq!(generate(&handle), expected);
    handle.stop(Duration::from_secs(5));
}

fn orinctl(home: &Path, args: &[&str]) -> String {
    said(daemon::orinctl(home).args(args))
}

/// A case gets its share of the budget, and the time that other cases do not use.
#[test]
#[ignore = "nightly"]
fn nightly_the_budget_is_used_while_a_case_is_unfinished() {
    let dir = tempfile::tempdir().unwrap();
    let handle = engine();
    load(&handle, tuning(Mode::Load, dir.path()));
    let spec = |budget_seconds| Spec { again: true, budget_seconds, samples: 1_000_000, ..small() };
    let all = tune(&handle, spec(1000.0), usize::MAX);
    assert_eq!(all.left, 0);
    for part in [0.9, 0.6] {
        let budget = all.seconds * part;
        let report = tune(&handle, spec(budget), usize::MAX);
        let unfinished = report.rows.iter().filter(|row| row.state == State::Partial).count();
        let over = report.seconds < budget * 0.999;
        assert!(!(over && unfinished > 0), "{unfinished} after {} of {budget} s", report.seconds);
        assert!(!over || report.left == 0);
    }
}

/// Results before Ctrl-C are printed and stored.
#[test]
fn an_interrupted_search_prints_its_results() {
    let home = tempfile::tempdir().unwrap();
    let mut child = daemon::orinctl(home.path())
        .args(["tune", "-m", "synthetic:tiny-qwen3:q8_0", "--device", "cpu", "-t", "1"])
        .args(["--cold-bytes", "0", "--beam", "8", "--budget", "1000", "--samples", "100000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    // The first of many cases is done.
    let first = lines.map(Result::unwrap).find(|line| line.starts_with("project")).unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let case = first.split_once(':').unwrap().0;
    assert!(text.contains(case) && text.contains("than the heuristic"), "{text}");
    assert!(!text.contains(" 0 left"), "{text}");
    assert_eq!(output.status.code(), Some(130), "{text}");
}

#[test]
fn the_program_tunes_verifies_and_sweeps() {
    let home = tempfile::tempdir().unwrap();
    let model = ["-m", "synthetic:tiny-llama:q8_0", "--device", "cpu", "-t", "1"];
    let small = ["--cold-bytes", "0", "--slots", "1", "--beam", "1", "--kernel", "gate", "--json"];
    let json =
        |args: &[&str]| -> Value { serde_json::from_str(&orinctl(home.path(), args)).unwrap() };
    let first = json(&[&["tune"], &model[..], &small[..]].concat());
    assert_eq!(first["remembered"], true, "{first}");
    let rows = first["rows"].as_array().unwrap().len();
    assert!(rows > 0 && first["candidates"] == "built in", "{first}");
    assert!(Path::new(first["file"].as_str().unwrap()).starts_with(home.path()), "{first}");
    let second = json(&[&["tune"], &model[..], &small[..]].concat());
    assert_eq!(second["known"].as_u64(), Some(rows as u64), "another process knows: {second}");
    let verified = json(&[&["tune", "verify"], &model[..], &small[..]].concat());
    assert!(verified["rows"].as_array().unwrap().len() <= rows);
    let sweep = ["--param", "prefetch_bytes=1024,4097", "-n", "4", "-r", "1", "--rounds", "1"];
    let swept = json(&[&["tune", "sweep", "--json"], &model[..], &sweep[..]].concat());
    let lines = swept["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 3, "{swept}");
    assert!(lines[0]["setting"] == "heuristic" && lines[1]["setting"]["value"] == 1024);
    assert!(lines[1]["tokens_per_second"]["median"].is_f64());
    assert_eq!((&lines[2]["cases"], &lines[2]["tokens_per_second"]), (&0.into(), &Value::Null));
    let both = json(&[&["tune", "sweep", "--json"], &model[..], &sweep[2..]].concat());
    assert_eq!(both["lines"][1]["setting"], "remembered");
    assert!(both["lines"][1]["cases"].as_u64().unwrap() > 0, "{both}");
    let text = orinctl(home.path(), &[&["tune"], &model[..], &small[..8]].concat());
    assert!(text.contains("nothing to do"), "{text}");
}

/// The results are printed nevertheless.
#[test]
fn results_that_cannot_be_stored_are_an_error() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut orinctl = daemon::orinctl(home.path());
        let model = ["tune", "-m", "synthetic:tiny-llama:q8_0", "--device", "cpu", "-t", "1"];
        let small = ["--cold-bytes", "0", "--slots", "1", "--beam", "1", "--kernel", "gate"];
        // Not even root can create a folder there.
        outcome(orinctl.env("XDG_DATA_HOME", "/proc/data").args(model).args(small).args(args))
    };
    let (code, text, error) = run(&[]);
    assert_eq!(code, Some(1), "{text}{error}");
    assert!(text.contains("than the heuristic") && text.contains("nothing was written"), "{text}");
    let says = "cannot store the tuning results: cannot make the directory /proc/data/orind/tune";
    assert!(error.contains(says) && error.contains("No such file"), "{error}");
    let (code, report, _) = run(&["--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((code, &report["remembered"]), (Some(1), &Value::Bool(false)));
    assert!(report["unwritten"].as_str().unwrap().contains("/proc/data"), "{report}");
}
