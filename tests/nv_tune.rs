//! Tuning the NV device on the simulated Orin, with the simulator's counts as the clock: the same search and
//! the same bench as on hardware. What is printed is counted, not measured: it says how much work a variant is, not
//! how long it takes.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::Command;

use orind::device::Device;
use orind::device::gpu::nv::Nv;
use orind::engine::tuning::bench::{CaseBench, Stopwatch};
use orind::engine::tuning::pace::Pace;
use orind::engine::tuning::{Kernels, run};
use orind::plan::DType;
use orind::tune::beam::{Bench, Settings, search};
use orind::tune::report::Spec;
use orind::tune::store::describe;
use orind::tune::{Case, Choice, Clock, Store};
use serde_json::Value;
use tegra_sim_preload as _;

/// What launches did, by name.
type Counts = BTreeMap<&'static str, u64>;

/// Reads what the simulator traces of the launches between start and stop.
struct Counted {
    trace: PathBuf,
    at: u64,
    last: Counts,
}

impl Counted {
    fn new() -> Self {
        let trace = std::env::var_os("TEGRA_SIM_TRACE").unwrap().into();
        Self { trace, at: 0, last: Counts::new() }
    }
}

impl Stopwatch for Counted {
    fn start(&mut self) {
        self.at = std::fs::metadata(&self.trace).unwrap().len();
    }

    fn stop(&mut self) -> Result<f64, String> {
        let mut file = std::fs::File::open(&self.trace).unwrap();
        file.seek(SeekFrom::Start(self.at)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        let mut counts = Counts::new();
        for line in text.lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            let Some(work) = event.get("work") else { continue };
            for name in ["sectors", "bank_conflicts"] {
                *counts.entry(name).or_default() += work[name].as_u64().unwrap();
            }
            for (kind, number) in work["instructions"].as_object().unwrap() {
                let warps = number["warps"].as_u64().unwrap();
                *counts.entry("instructions").or_default() += warps;
                let name = ["integer", "dot", "float", "shared", "global", "control"];
                if let Some(name) = name.into_iter().find(|name| name == kind) {
                    *counts.entry(name).or_default() += warps;
                }
            }
        }
        self.last = counts;
        // An issue slot for every instruction of a warp, every sector and every pass over a bank. Sectors
        // and not cache misses, which differ a little with the order of the blocks.
        let cost = ["instructions", "sectors", "bank_conflicts"].map(|name| self.last[name]);
        Ok(cost.iter().sum::<u64>() as f64)
    }

    fn clock(&self) -> Clock {
        Clock::Counted
    }
}

fn case(family: &str, dtype: DType, rows: u32, cols: u32, batch: u32) -> Case {
    Case { family: family.into(), dtype, rows, cols, batch }
}

/// Every choice of a case's space.
fn all(nv: &Nv, case: &Case) -> Vec<Choice> {
    let space = nv.space(case).unwrap();
    let mut all = vec![Choice::new()];
    for parameter in &space.parameters {
        let with = |choice: &Choice| {
            let value = |value: &u32| {
                let mut choice = choice.clone();
                choice.insert(parameter.name.into(), *value);
                choice
            };
            parameter.values.iter().map(value).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all.retain(|choice| space.check(choice).is_ok());
    all
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn counted() {
    let nv = Nv::detect().unwrap();
    let pace = Pace::default();
    for case in [case("project", DType::Q8_0, 512, 1024, 1), case("gate", DType::Q6_K, 512, 512, 1)]
    {
        let space = nv.space(&case).unwrap();
        let mut watch = Counted::new();
        let mut order = Vec::new();
        {
            let mut one = Counted::new();
            for choice in all(&nv, &case).into_iter().filter(|c| c["warps_per_sm"] == 32) {
                let mut bench = CaseBench::new(&nv, (&case, &space), 0, &pace, &mut one).unwrap();
                bench.check(&choice).unwrap();
                let cost = bench.time(&choice).unwrap();
                drop(bench);
                order.push((cost as u64, choice, one.last.clone()));
            }
        }
        order.sort_by_key(|(cost, ..)| *cost);
        println!("{case}: counted issue slots, not times");
        for (cost, choice, counts) in &order {
            println!("{cost:>8}  {}  {counts:?}", describe(choice));
        }
        let mut bench = CaseBench::new(&nv, (&case, &space), 0, &pace, &mut watch).unwrap();
        // Counts do not scatter: as few pairs as have an interval.
        let settings = Settings { pairs: 6, ..Settings::default() };
        let found = search(&space, settings, &[], &mut bench, &mut |_, _| {}).unwrap();
        println!("found {} at {}", describe(&found.choice), found.cost.median);
        assert!(found.complete && found.rejected.is_empty(), "{found:?}");
        assert!(found.cost.median <= order[0].0 as f64, "{found:?}");
    }
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn a_count_is_remembered_as_a_count() {
    let nv = Nv::detect().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (store, pace) = (Store::new(dir.path()), Pace::default());
    let cases = [case("project", DType::Q8_0, 512, 256, 1)];
    let spec = Spec { cold_bytes: Some(0), samples: 80, ..Spec::default() };
    let go = |watch: &mut dyn Stopwatch| {
        run(&nv, &cases, (&store, &spec), &pace, watch, &mut |_| {}).unwrap()
    };
    let report = go(&mut Counted::new());
    assert_eq!((report.clock, report.rows[0].gb_per_s), (Clock::Counted, None));
    let key = nv.key().unwrap();
    let read = |clock| store.read(&key, clock, &Kernels(&nv)).unwrap();
    let (counted, measured) = (read(Clock::Counted), read(Clock::Measured));
    assert!(measured.current.is_empty(), "a count is never used as a time");
    assert_eq!(measured.stale.len(), counted.current.len());
    // The machine's clock says nothing about a simulator, and is found out.
    let wall = go(&mut orind::engine::tuning::bench::WallClock::default());
    let why = wall.rows[0].why.clone().unwrap();
    assert!(why.contains("no GPU is as slow"), "{why}");
}

#[test]
fn variants_are_right_and_their_counts_are_printed() {
    for test in ["counted", "a_count_is_remembered_as_a_count"] {
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--ignored", "--nocapture"])
            .env("TEGRA_SIM_TRACE", dir.path().join("trace"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{text}");
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}
