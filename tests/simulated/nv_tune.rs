//! Tuning of the NV device on the simulated Orin, with the simulator's counts as the clock: the same search and the
//! same bench as on hardware. The printed numbers are counts of work, not times.

use device::gpu::nv::Nv;
use device::tune::beam::{Bench, Known, Settings, search};
use device::tune::report::Spec;
use device::tune::store::describe;
use device::tune::{Candidates, Case, Choice, Clock, Cost, Heuristic, Record, Space, Store, When};
use device::{Kernels, Tunable};
use engine::tuning::bench::{CaseBench, Stopwatch};
use engine::tuning::counted::Counted;
use engine::tuning::pace::Pace;
use engine::tuning::{Cases, run};
use orind_kernels::jit;
use orind_testing::program::{again, said};
use plan::DType;

fn case(family: &str, dtype: DType, rows: u32, cols: u32, batch: u32) -> Case {
    Case { family: family.into(), dtype, rows, cols, batch }
}

/// A record of the store, as if another search had written it.
fn record(case: &Case, space: &Space, choice: Choice) -> Record {
    Record {
        case: case.clone(),
        source: space.source.clone(),
        choice,
        cost: Cost::Counted(7.0),
        heuristic: Heuristic { choice: space.heuristic.clone(), cost: 9.0 },
        when: When::now(),
        clocks: String::new(),
        candidates: Candidates::Prebuilt,
        rejected: Vec::new(),
    }
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
fn the_search_finds_the_cheapest_variant() {
    let nv = Nv::detect().unwrap();
    let pace = Pace::default();
    // Enough columns for two warps to share a row.
    for case in
        [case("project", DType::Q8_0, 256, 2048, 1), case("gate", DType::Q6_K, 128, 4096, 1)]
    {
        let space = nv.space(&case).unwrap();
        let mut watch = Counted::new().unwrap();
        let mut order = Vec::new();
        {
            let mut one = Counted::new().unwrap();
            for choice in all(&nv, &case).into_iter().filter(|c| c["warps_per_sm"] == 32) {
                let mut bench =
                    CaseBench::new(&nv, &case, None, &space, 0, &pace, &mut one).unwrap();
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
        let mut bench = CaseBench::new(&nv, &case, None, &space, 0, &pace, &mut watch).unwrap();
        // Counts have no noise, so the smallest number of pairs with an interval is enough.
        let settings = Settings { pairs: 6, ..Settings::default() };
        let found = search(&space, settings, Known::default(), &mut bench, &mut |_, _| {}).unwrap();
        println!("found {} at {}", describe(&found.choice), found.cost.median);
        assert!(found.complete && found.rejected.is_empty(), "{found:?}");
        // The search changes one parameter at a time, so it may miss the best pair of changes by a little.
        assert!(found.cost.median <= 1.01 * order[0].0 as f64, "{found:?}");
    }
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn a_count_is_stored_as_a_count() {
    let nv = Nv::detect().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (store, pace) = (Store::new(dir.path()), Pace::default());
    let cases = [case("project", DType::Q8_0, 512, 256, 1)];
    let spec = Spec { cold_bytes: Some(0), samples: 80, ..Spec::default() };
    let go = |watch: &mut dyn Stopwatch| {
        run(&nv, Cases::Products(&cases), &store, &spec, &pace, watch, &mut |_| {}).unwrap()
    };
    let report = go(&mut Counted::new().unwrap());
    assert_eq!((report.clock, report.rows[0].gb_per_s), (Clock::Counted, None));
    let key = nv.key();
    let read = |clock| store.read(&key, clock, &Kernels(&nv)).unwrap();
    let (counted, measured) = (read(Clock::Counted), read(Clock::Measured));
    assert!(measured.current.is_empty(), "a count is never used as a time");
    assert_eq!(measured.stale.len(), counted.current.len());
    // Wall-clock times of the simulator are rejected.
    let wall = go(&mut engine::tuning::bench::WallClock::default());
    let why = wall.rows[0].why.clone().unwrap();
    assert!(why.contains("no GPU is as slow"), "{why}");
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn a_variant_is_compiled_loaded_checked_and_counted() {
    let (major, minor) = match jit::compiler() {
        Ok(compiler) => compiler.version(),
        Err(why) => return println!("skipped: {why}"),
    };
    let nv = Nv::detect().unwrap();
    let case = case("project", DType::Q8_0, 64, 2048, 1);
    let space = nv.space(&case).unwrap();
    let nvrtc = Candidates::Nvrtc(major.unsigned_abs(), minor.unsigned_abs());
    assert_eq!(space.candidates, nvrtc);
    assert!(space.origin.ends_with(&format!("compiled here by nvrtc {major}.{minor}")));
    let pace = Pace::default();
    let mut watch = Counted::new().unwrap();
    {
        let mut bench = CaseBench::new(&nv, &case, None, &space, 0, &pace, &mut watch).unwrap();
        let count = |bench: &mut CaseBench<'_>, choice: &Choice| {
            bench.check(choice).unwrap();
            bench.time(choice).unwrap()
        };
        let heuristic = count(&mut bench, &space.heuristic);
        println!("{heuristic:>8}  {}, prebuilt", describe(&space.heuristic));
        for (threads, unroll) in [(8, 1), (4, 2), (16, 1)] {
            let mut choice = space.heuristic_with("warps", 4).unwrap();
            choice.insert("threads_per_row".into(), threads);
            choice.insert("unroll".into(), unroll);
            assert!(space.is_compiled(&choice) && !space.is_compiled(&space.heuristic));
            let cost = count(&mut bench, &choice);
            println!("{cost:>8}  {}, compiled by {nvrtc}", describe(&choice));
            assert!(cost != heuristic);
        }
    }
    // A search among these variants, and its record.
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let spec = Spec { counted: true, beam: 1, ..Spec::default() };
    let cases = [case];
    let report =
        run(&nv, Cases::Products(&cases), &store, &spec, &pace, &mut watch, &mut |_| {}).unwrap();
    println!("{}: {} at {}", report.candidates, report.rows[0].choice, report.rows[0].cost);
    assert!(report.rows[0].rejected.is_empty(), "{report:?}");
    let known = store.read(&nv.key(), Clock::Counted, &Kernels(&nv)).unwrap();
    assert_eq!(known.current[0].candidates, nvrtc);
    assert_eq!(known.current[0].cost.value(), report.rows[0].cost);
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn without_a_compiler_only_prebuilt_variants_are_used() {
    let nv = Nv::detect().unwrap();
    let space = nv.space(&case("project", DType::Q8_0, 512, 256, 1)).unwrap();
    assert_eq!(space.candidates, Candidates::Prebuilt);
    assert!(space.origin.starts_with("prebuilt alone (no NVRTC: "), "{}", space.origin);
    let mut choice = space.heuristic_with("warps", 4).unwrap();
    choice.insert("unroll".into(), 1);
    let why = space.check(&choice).unwrap_err().to_string();
    assert!(why.contains("not prebuilt, and cannot be compiled here"), "{why}");
    // Records of compiled variants stay in the store, unused.
    let case = case("project", DType::Q8_0, 512, 256, 1);
    let record = Record { candidates: Candidates::Nvrtc(12, 6), ..record(&case, &space, choice) };
    let prebuilt = Record { choice: space.heuristic, ..record.clone() };
    for (record, current) in [(record, false), (prebuilt, true)] {
        let dir = tempfile::tempdir().unwrap();
        let (store, key) = (Store::new(dir.path()), nv.key());
        store.merge(&key, &[record]).unwrap();
        let read = store.read(&key, Clock::Counted, &Kernels(&nv)).unwrap();
        assert_eq!((read.current.len(), read.stale.len()), (current.into(), (!current).into()));
        let message = read.stale.first().map(|(_, why)| why.as_str());
        assert!(
            current || message == Some("compiled by nvrtc 12.6, which is not here"),
            "{message:?}"
        );
    }
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn an_invalid_entry_is_reported_and_not_used() {
    let nv = Nv::detect().unwrap();
    let case = case("project", DType::Q8_0, 512, 2048, 1);
    let space = nv.space(&case).unwrap();
    let before = |mut choice: Choice| {
        choice.remove("unroll").unwrap();
        choice
    };
    let with = |name: &str, value| {
        let mut choice = space.heuristic.clone();
        choice.insert(name.into(), value);
        choice
    };
    for (source, choice, stale, why) in [
        ("0123456789abcdef", before(space.heuristic.clone()), true, "the kernels have changed"),
        (&space.source, before(space.heuristic.clone()), false, "the parameters are "),
        (&space.source, with("unroll", 3), false, "unroll = 3; it takes [1, 2, 4]"),
        (&space.source, with("threads_per_row", 128), false, "threads_per_row = 128; it takes"),
    ] {
        let record = Record { source: source.to_owned(), ..record(&case, &space, choice) };
        let dir = tempfile::tempdir().unwrap();
        let (store, key) = (Store::new(dir.path()), nv.key());
        store.merge(&key, &[record]).unwrap();
        let read = store.read(&key, Clock::Counted, &Kernels(&nv)).unwrap();
        assert!(read.current.is_empty());
        let message = if stale { &read.stale[0].1 } else { &read.ignored[0].1 };
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn variants_are_compiled_checked_and_counted() {
    run_each(&[
        "a_count_is_stored_as_a_count",
        "a_variant_is_compiled_loaded_checked_and_counted",
        "without_a_compiler_only_prebuilt_variants_are_used",
        "an_invalid_entry_is_reported_and_not_used",
    ]);
}

/// Counts every variant of two kernels.
#[test]
#[ignore = "nightly"]
fn nightly_search_finds_the_cheapest_variant() {
    run_each(&["the_search_finds_the_cheapest_variant"]);
}

/// Runs tests in processes of their own.
fn run_each(tests: &[&str]) {
    for &test in tests {
        let dir = tempfile::tempdir().unwrap();
        let mut command = again(module_path!(), test);
        command.env("TEGRA_SIM_TRACE", dir.path().join("trace"));
        // The other tests run without a compiler, so that they behave alike on every machine.
        if test != "a_variant_is_compiled_loaded_checked_and_counted" {
            command.env("ORIND_NVRTC", dir.path().join("none"));
        }
        println!("{}", said(&mut command));
    }
}
