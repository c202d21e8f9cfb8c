//! Tests of a sweep's order, file and evaluation.

use std::fs;
use std::path::Path;

use super::*;
use crate::format::tests::report;
use bench::{Kind, Report};

fn sweep() -> Sweep {
    let weights = |model: &str| Weights {
        model: model.into(),
        kind: None,
        load: model.into(),
        bytes: Some(7),
        modified: Some(1),
    };
    Sweep {
        version: "1".into(),
        commit: None,
        processor: None,
        cores: 2,
        backend: None,
        cpu_isa: None,
        weights: vec![weights("a"), weights("b")],
        threads: vec![Some(1), Some(2), Some(4)],
        threads_per_row: vec![None],
        neighbours: vec![0, 1],
        quotas: vec![100],
        tests: Test::all(&[8], &[4], &[0, 16], &[1, 2]),
        seed: 3,
    }
}

/// A report with this speed and number of threads.
fn at(speed: f64, threads: usize) -> Report {
    let mut report = report();
    report.rows.truncate(1);
    report.rows[0].tokens_per_second.median = speed;
    report.manifest.threads = threads;
    report
}

#[test]
fn every_round_has_every_point_once_in_its_own_order() {
    let sweep = sweep();
    let all = sweep.points();
    assert_eq!(all.len(), 2 * 3 * 2 * 6);
    let flat = |round| -> Vec<Point> {
        let of = |(setting, _, tests): (Setting, &Weights, Vec<Test>)| {
            tests.into_iter().map(move |test| Point { setting: setting.clone(), test })
        };
        sweep.round(round).into_iter().flat_map(of).collect()
    };
    for round in 1..4 {
        let order = flat(round);
        assert_eq!(order.len(), all.len());
        assert!(all.iter().all(|point| order.contains(point)));
        assert_eq!(order, flat(round));
        assert_ne!(order, flat(round + 1));
    }
    assert_eq!((sweep.slots(), sweep.context()), (2, 64));
}

#[test]
fn a_log_resumes_and_drops_an_incomplete_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/sweep.jsonl");
    let points = sweep().points();
    let mut log = Log::open(&path, sweep()).unwrap();
    for point in &points[..2] {
        log.add(1, point.clone(), at(10.0, 1)).unwrap();
    }
    let mut invalid = at(1.0, 1);
    invalid.invalid.push("throttled".into());
    log.add(2, points[0].clone(), invalid).unwrap();
    let twice = Log::open(&path, sweep()).map(drop).unwrap_err().to_string();
    assert!(twice.contains("another sweep writes to") && twice.contains("--out"), "{twice}");
    drop(log);
    let whole = fs::read(&path).unwrap();
    for cut in [0, 1, 300] {
        let half = &whole[..cut];
        fs::write(&path, [&whole[..], half].concat()).unwrap();
        let log = Log::open(&path, sweep()).unwrap();
        assert_eq!(log.dropped, cut);
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert!(log.has(1, &points[0]) && log.has(1, &points[1]));
        assert!(!log.has(1, &points[2]) && !log.has(2, &points[0]));
        assert_eq!(log.invalid().collect::<Vec<_>>(), ["throttled"]);
    }
    // The record file that `verify` reads has the same format.
    assert_eq!(crate::read(&path).unwrap().reports.len(), 3);
}

#[test]
fn files_of_other_sweeps_are_rejected_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.jsonl");
    let refused = |sweep: Sweep| Log::open(&path, sweep).map(drop).unwrap_err().to_string();
    let mut log = Log::open(&path, sweep()).unwrap();
    log.add(1, sweep().points()[0].clone(), at(1.0, 1)).unwrap();
    drop(log);
    let text = refused(Sweep { threads: vec![Some(1)], ..sweep() });
    for part in ["x.jsonl", "threads is [1,2,4] there and [1] here", "--out"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let mut other = sweep();
    other.weights[0].modified = Some(2);
    assert!(refused(other).contains("weights is "));
    for foreign in ["{\"format\":1}\n", "a,b\n1,2\n", "{\"format\":9}\n", "no end"] {
        fs::write(&path, foreign).unwrap();
        assert!(refused(sweep()).contains("line 1, is not a measurement"), "{foreign}");
        assert_eq!(fs::read_to_string(&path).unwrap(), foreign);
    }
    assert!(refused_directory(dir.path()).contains("--out"));
}

fn refused_directory(path: &Path) -> String {
    Log::open(path, sweep()).map(drop).unwrap_err().to_string()
}

/// On 2 cores, 100 tokens per second alone; computed by hand.
#[test]
fn fair_shares_refer_to_the_same_test_alone() {
    let dir = tempfile::tempdir().unwrap();
    let test = Test { kind: Kind::Decode, tokens: 4, depth: 0, batch: 1 };
    let mut sweep = Sweep { tests: vec![test], quotas: vec![100, 50], ..sweep() };
    sweep.weights.truncate(1);
    sweep.neighbours = vec![0, 2];
    let mut log = Log::open(&dir.path().join("s"), sweep.clone()).unwrap();
    for point in sweep.points() {
        let s = &point.setting;
        let used = s.threads.unwrap().min(2);
        let speed = match (used, s.neighbours, s.quota) {
            (2, 0, 100) => 100.0,
            (1, 0, 100) => 50.0,
            (2, 2, 100) => 40.0,
            _ => 20.0,
        };
        for round in [1, 2, 3] {
            log.add(round, point.clone(), at(speed + f64::from(round) - 2.0, used)).unwrap();
        }
    }
    let found = Found::of(&log, 3, false);
    let row = |threads, neighbours, quota| {
        let is = |row: &&Row| {
            let s = &row.point.setting;
            (s.threads, s.neighbours, s.quota) == (Some(threads), neighbours, quota)
        };
        found.rows.iter().find(is).unwrap()
    };
    let shares = |row: &Row| (row.fair_share.unwrap(), row.of_fair_share.unwrap());
    assert_eq!(shares(row(2, 0, 100)), (1.0, 1.0));
    assert_eq!(shares(row(1, 0, 100)), (0.5, 1.0));
    assert_eq!(shares(row(4, 2, 100)), (0.5, 0.8));
    assert_eq!(shares(row(1, 2, 100)).0, 1.0 / 3.0);
    assert_eq!(shares(row(2, 0, 50)), (0.5, 0.4));
    let interval = row(2, 0, 100).interval.unwrap();
    assert_eq!((interval.low, interval.high), (99.0, 101.0));
    let table = table(&found);
    for part in ["| 4 (2 used) |", " 40 %, collapses |", " 80 % |", "99.00 to 101.00", "model: a"] {
        assert!(table.contains(part), "{part} in {table}");
    }
    assert_eq!(csv(&found).lines().count(), 1 + 12);
    assert!(markdown(&found).starts_with("|    threads | neighbours |"), "{}", markdown(&found));
}
