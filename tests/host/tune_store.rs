//! The tuning store and real processes: two writers at once, killed writers, full disks.
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use device::tune::store::{self, StoreError};
use device::tune::{Candidates, Case, Choice, Cost, DeviceKey, Heuristic, Record, Store, When};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use orind_testing::program::again;
use orind_testing::random::Random;
use plan::DType;

const DIR: &str = "ORIND_TEST_STORE_DIR";
const ROLE: &str = "ORIND_TEST_STORE_ROLE";

fn key() -> DeviceKey {
    DeviceKey::gpu(87, 16, 1300)
}

fn record(number: u32) -> Record {
    let choice = |warps| Choice::from([("warps".to_owned(), warps)]);
    Record {
        case: Case {
            family: "matvec".into(),
            dtype: DType::Q8_0,
            rows: number,
            cols: 64,
            batch: 1,
        },
        source: "0123456789abcdef".into(),
        choice: choice(number % 7),
        cost: Cost::Measured { ns: 1.5, interval_ns: [1.0, 2.0], gb_per_s: 3.0 },
        heuristic: Heuristic { choice: choice(8), cost: 2.0 },
        when: When::parse("2026-11-20T21:00:00Z").unwrap(),
        clocks: "gpu at most 1300 MHz".into(),
        candidates: Candidates::Prebuilt,
        rejected: Vec::new(),
    }
}

/// A process with one of the roles below.
fn start(role: &str, dir: &Path) -> Command {
    let mut command = again(module_path!(), "child");
    command.env(ROLE, role).env(DIR, dir).stdout(Stdio::piped());
    command
}

#[test]
#[ignore = "the process that the other tests start"]
fn child() {
    let (Ok(role), Ok(dir)) = (env::var(ROLE), env::var(DIR)) else { return };
    let store = Store::new(&dir);
    let (role, number) = role.split_once(' ').unwrap();
    let first: u32 = number.parse().unwrap();
    match role {
        "merge" => {
            for start in (first..first + 200).step_by(5) {
                let records: Vec<Record> = (start..start + 5).map(record).collect();
                store.merge(&key(), &records).unwrap();
            }
        }
        "repeat" => {
            for number in first.. {
                store.merge(&key(), &[record(number)]).unwrap();
                let mut out = std::io::stdout().lock();
                writeln!(out, "merged {number}").unwrap();
                out.flush().unwrap();
            }
        }
        "limited" => {
            // Larger files cannot be written: write() fails with EFBIG instead of a signal.
            // SAFETY: ignoring a signal runs no code.
            unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
            let limit = fs::metadata(store.path(&key())).unwrap().len() + 100;
            setrlimit(Resource::RLIMIT_FSIZE, limit, limit).unwrap();
            refused(&store, &store.merge(&key(), &[record(first)]).unwrap_err());
        }
        "full" => {
            let mut number = first;
            let error = loop {
                match store.merge(&key(), &[record(number)]) {
                    Ok(_) => number += 1,
                    Err(error) => break error,
                }
                assert!(number < 10_000, "the disk does not fill");
            };
            refused(&store, &error);
            let kept: Vec<Record> = (first..number).map(record).collect();
            assert_eq!(store::open(&store.path(&key())).unwrap().records, kept);
            println!("{} records, then the disk was full", kept.len());
        }
        other => panic!("{other}"),
    }
}

/// Checks that the error names the full disk, and that no temporary file is left.
fn refused(store: &Store, error: &StoreError) {
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert!(error.to_string().contains("free some space"), "{error}");
    assert!(!store.path(&key()).with_extension("tmp").exists());
}

#[test]
fn two_writers_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let writers = [1, 201].map(|first| start(&format!("merge {first}"), dir.path()).spawn());
    for writer in writers {
        assert!(writer.unwrap().wait().unwrap().success());
    }
    let all: Vec<Record> = (1..=400).map(record).collect();
    assert_eq!(store::open(&Store::new(dir.path()).path(&key())).unwrap().records, all);
}

#[test]
fn a_killed_writer_loses_no_confirmed_record() {
    check_kills(12);
}

#[test]
#[ignore = "nightly"]
fn nightly_many_killed_writers_lose_no_confirmed_record() {
    check_kills(400);
}

/// Kills writers at random times.
fn check_kills(kills: u32) {
    const SEED: u64 = 6;
    const KILLS_PER_FILE: u32 = 40;
    let mut random = Random(SEED);
    let (mut half_written, mut merges) = (0, 0);
    let mut left = kills;
    while left > 0 {
        let dir = tempfile::tempdir().unwrap();
        let path = Store::new(dir.path()).path(&key());
        let mut confirmed = 0;
        for _ in 0..left.min(KILLS_PER_FILE) {
            let mut writer = start(&format!("repeat {}", confirmed + 1), dir.path());
            let mut writer = writer.spawn().unwrap();
            let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
            let mut note = |line: String| {
                // The line may begin with output of the test harness.
                if let Some((_, number)) = line.split_once("merged ") {
                    confirmed = number.parse().unwrap();
                    merges += 1;
                }
            };
            // Waits for some merges, then for a random moment within the next one.
            let seen = 3 + random.below(3);
            lines.by_ref().take(seen).for_each(|line| note(line.unwrap()));
            std::thread::sleep(Duration::from_micros(random.below(4000) as u64));
            writer.kill().unwrap();
            writer.wait().unwrap();
            lines.for_each(|line| note(line.unwrap()));
            half_written += u32::from(path.with_extension("tmp").exists());
            if confirmed == 0 && !path.exists() {
                continue;
            }
            let file = store::open(&path).unwrap_or_else(|e| panic!("seed {SEED}: {e}"));
            assert!(file.unusable.is_empty(), "seed {SEED}: {:?}", file.unusable);
            let kept = file.records.len() as u32;
            // The merge under way may be complete or not.
            assert!(kept == confirmed || kept == confirmed + 1, "seed {SEED}: {kept}, {confirmed}");
            assert_eq!(file.records, (1..=kept).map(record).collect::<Vec<_>>(), "seed {SEED}");
        }
        left -= left.min(KILLS_PER_FILE);
    }
    assert!(merges >= kills, "every writer is killed in the middle of its work");
    println!("{kills} kills, {merges} merges confirmed, {half_written} files left half written");
}

#[test]
fn a_failed_write_keeps_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let old: Vec<Record> = (1..=20).map(record).collect();
    store.merge(&key(), &old).unwrap();
    let before = fs::read(store.path(&key())).unwrap();
    let output = start("limited 21", dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(fs::read(store.path(&key())).unwrap(), before);
    // With free space, merging works again.
    assert_eq!(store.merge(&key(), &[record(21)]).unwrap().added, 1);
}

/// In a file system of 96 KiB, if this process may mount one.
#[test]
fn a_full_file_system_keeps_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let inner = start("full 1", dir.path());
    let mount = format!("mount -t tmpfs -o size=96k none \"${DIR}\" && exec \"$@\"");
    let output = Command::new("unshare")
        .args(["-r", "-m", "sh", "-c", &mount, "sh"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .output();
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    match output {
        Ok(output) if said(&output).contains("running 1 test") => {
            assert!(output.status.success(), "{}", said(&output));
            assert!(said(&output).contains("then the disk was full"), "{}", said(&output));
        }
        _ => eprintln!("skipped: no file system can be mounted here"),
    }
}
