//! Tuning of kernels generated for groups of tensor operations, on the simulated Orin, with the same search, bench and
//! store as for matmuls. Costs are instruction counts.

use std::path::Path;

use device::Device;
use device::cpu::Cpu;
use device::gpu::nv::Nv;
use device::tune::beam::Bench as _;
use device::tune::report::{Report, Spec};
use device::tune::store::describe;
use device::tune::{Candidates, Case, Choice, Clock, Cost, Heuristic, Record, Space, Store, When};
use device::{Data, Kernels, Tunable};
use engine::tuning::bench::{CaseBench, Stopwatch};
use engine::tuning::counted::Counted;
use engine::tuning::pace::Pace;
use engine::tuning::{self, Cases, Groups, run};
use nn::{Session, SessionOptions};
use orind_kernels::jit;
use orind_testing::program::{again, said};
use orind_testing::random::Random;
use plan::graph::Graph;
use plan::{Class, DType, Plan};

/// Columns: more than a block of sums has, and not a multiple of it.
const SHAPE: [usize; 2] = [5, 700];

/// An elementwise operation, the softmax of rows, and sums of its columns.
fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.source(Class::Mailbox, "x", DType::F32, &SHAPE).unwrap();
    let y = g.source(Class::Mailbox, "y", DType::F32, &[1, SHAPE[1]]).unwrap();
    let z = nn::functions::tanh(&mut g, y).unwrap();
    g.output("z", z);
    let softmax = nn::functions::softmax(&mut g, x, 1).unwrap();
    let scaled = nn::functions::mul(&mut g, softmax, y).unwrap();
    let sums = nn::functions::sum(&mut g, scaled, &[0]).unwrap();
    g.output("softmax", softmax);
    g.output("sums", sums);
    g
}

fn open(store: Option<&Path>) -> Session {
    let options = SessionOptions { memory_limit: None, tuned: store };
    Session::open_with(&Nv::detect().unwrap(), options, &[], [], &[&graph()]).unwrap()
}

/// Bits of a session's outputs, and the kernels that it runs.
fn answer(session: &mut Session) -> (Vec<u32>, Vec<String>) {
    let mut random = Random(7);
    let (x, y) = (random.reals(SHAPE[0] * SHAPE[1], 3.0), random.reals(SHAPE[1], 1.0));
    session.write(0, &[("x", Data::F32(&x)), ("y", Data::F32(&y))]).unwrap();
    session.run(0, 1).unwrap();
    let outputs = ["softmax", "sums", "z"].map(|name| session.output(0, name).unwrap());
    let bits = outputs.into_iter().flatten().map(f32::to_bits).collect();
    let kernels = session.profile(0).unwrap().timings.into_iter().map(|t| t.kernel).collect();
    (bits, kernels)
}

fn groups(nv: &Nv) -> Groups {
    tuning::groups(nv, open(None).plan(0)).unwrap()
}

/// The simulator's counts, declared as times for this test.
struct Pretended(Counted);

impl Stopwatch for Pretended {
    fn start(&mut self) {
        self.0.start();
    }

    fn stop(&mut self) -> Result<f64, String> {
        self.0.stop()
    }

    fn clock(&self) -> Clock {
        Clock::Measured
    }
}

fn search(nv: &Nv, groups: &Groups, store: &Store, watch: &mut dyn Stopwatch) -> Report {
    let spec = Spec { beam: 1, ..Spec::default() };
    run(nv, Cases::Groups(groups), store, &spec, &Pace::default(), watch, &mut |_| {}).unwrap()
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn a_winner_is_stored_and_used_at_the_next_start() {
    if let Err(why) = jit::compiler() {
        return println!("skipped: {why}");
    }
    let nv = Nv::detect().unwrap();
    let groups = groups(&nv);
    let forms = ["group_elements_", "group_rows_", "group_columns_"];
    for form in forms {
        assert!(
            groups.keys().any(|case| case.family.starts_with(form)),
            "{form}: {:?}",
            groups.keys()
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let report = search(&nv, &groups, &store, &mut Pretended(Counted::new().unwrap()));
    for row in &report.rows {
        println!("{}: {} at {}, {}", row.case, row.choice, row.cost, row.heuristic_cost);
        assert!(row.rejected.is_empty() && row.why.is_none(), "{row:?}");
    }
    let found = store.read(&nv.key(), Clock::Measured, &Kernels(&nv)).unwrap();
    assert_eq!(found.current.len(), groups.len());
    let won = found.current.iter().filter(|record| record.choice != record.heuristic.choice);
    assert!(won.count() > 0, "no choice is cheaper than the heuristic's");
    let (bits, kernels) = answer(&mut open(None));
    let (tuned_bits, tuned) = answer(&mut open(Some(dir.path())));
    assert!(bits == tuned_bits);
    for record in &found.current {
        let symbol = record.case.family.replace("_elements", "").replace("_rows", "");
        let symbol = symbol.replace("_columns", "");
        let heuristic = record.choice == record.heuristic.choice;
        assert!(kernels.contains(&symbol));
        assert_eq!(tuned.contains(&symbol), heuristic, "{}: {tuned:?}", describe(&record.choice));
    }
    // A second search measures nothing.
    let again = search(&nv, &groups, &store, &mut Pretended(Counted::new().unwrap()));
    assert_eq!((again.rows.len(), again.known), (0, groups.len()));
}

/// Block sizes, elements per thread and threads per row, for each form of group.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn no_parameter_changes_a_bit() {
    if let Err(why) = jit::compiler() {
        return println!("skipped: {why}");
    }
    let nv = Nv::detect().unwrap();
    let pace = Pace::default();
    for (case, plan) in groups(&nv) {
        let space = nv.space(&case).unwrap();
        let mut watch = Counted::new().unwrap();
        let group = Some(&plan);
        let mut bench = CaseBench::new(&nv, &case, group, &space, 0, &pace, &mut watch).unwrap();
        let mut choices = vec![space.heuristic.clone()];
        for (warps, unroll, threads_per_row) in
            [(1, 8, 16), (2, 2, 64), (8, 1, 256), (8, 4, 32), (4, 8, 128)]
        {
            let values =
                [("warps", warps), ("unroll", unroll), ("threads_per_row", threads_per_row)];
            let known = |(name, _): &(&str, u32)| space.parameter(name).is_some();
            let values = values.into_iter().filter(known);
            choices.push(values.map(|(name, value)| (name.to_owned(), value)).collect());
        }
        for choice in choices {
            space.check(&choice).unwrap();
            bench.check(&choice).unwrap_or_else(|e| panic!("{case}, {}: {e}", describe(&choice)));
        }
        if space.parameter("threads_per_row").is_some() {
            let mut wide = space.heuristic.clone();
            wide.extend([("threads_per_row".into(), 128), ("warps".into(), 2)]);
            let why = space.check(&wide).unwrap_err().to_string();
            assert!(why.contains("64 threads are no whole rows of 128"), "{why}");
        }
    }
}

/// Sums and maxima of rows equal the CPU's bit for bit, with the heuristic's number of threads for each length.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn rows_of_many_lengths_equal_the_cpu() {
    if let Err(why) = jit::compiler() {
        return println!("skipped: {why}");
    }
    for [rows, length] in
        [[1, 5000], [3, 257], [5, 700], [33, 2100], [100, 600], [520, 300], [700, 3]]
    {
        let mut g = Graph::new();
        let x = g.source(Class::Mailbox, "x", DType::F32, &[rows, length]).unwrap();
        let softmax = nn::functions::softmax(&mut g, x, 1).unwrap();
        let sums = nn::functions::sum(&mut g, softmax, &[1]).unwrap();
        g.output("softmax", softmax);
        g.output("sums", sums);
        let values = Random(rows as u64).reals(rows * length, 3.0);
        let run = |device: &dyn Device| {
            let mut session = Session::open(device, &[], [], &[&g]).unwrap();
            session.write(0, &[("x", Data::F32(&values))]).unwrap();
            session.run(0, 1).unwrap();
            ["softmax", "sums"].map(|name| session.output(0, name).unwrap())
        };
        let [nv, cpu] = [run(&Nv::detect().unwrap()), run(&Cpu::detect())];
        for (have, want) in nv.iter().flatten().zip(cpu.iter().flatten()) {
            assert_eq!(have.to_bits(), want.to_bits(), "{rows} rows of {length}: {have}, {want}");
        }
    }
}

/// A record of the store, as if another search had written it.
fn record(case: &Case, space: &Space, choice: Choice) -> Record {
    Record {
        case: case.clone(),
        source: space.source.clone(),
        choice,
        cost: Cost::Measured { ns: 7.0, interval_ns: [6.0, 8.0], gb_per_s: 1.0 },
        heuristic: Heuristic { choice: space.heuristic.clone(), cost: 9.0 },
        when: When::now(),
        clocks: String::new(),
        candidates: space.candidates,
        rejected: Vec::new(),
    }
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn an_invalid_entry_is_not_used() {
    if let Err(why) = jit::compiler() {
        return println!("skipped: {why}");
    }
    let nv = Nv::detect().unwrap();
    let groups = groups(&nv);
    let (bits, kernels) = answer(&mut open(None));
    let case = groups.keys().find(|case| case.family.starts_with("group_rows")).unwrap();
    let space = nv.space(case).unwrap();
    let with = |name: &str, value: u32| {
        let mut choice = space.heuristic.clone();
        choice.insert(name.into(), value);
        choice
    };
    let good = record(case, &space, with("unroll", 2));
    let unknown = Case { family: "group_rows_0123456789abcdef".into(), ..case.clone() };
    for (record, used) in [
        (good.clone(), true),
        (Record { source: "0123456789abcdef".into(), ..good.clone() }, false),
        (Record { candidates: Candidates::Nvrtc(1, 2), ..good.clone() }, false),
        (Record { choice: with("unroll", 3), ..good.clone() }, false),
        (Record { choice: with("colour", 3), ..good.clone() }, false),
        (Record { case: unknown, ..good.clone() }, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let about = format!("{} {}", record.case, describe(&record.choice));
        store.merge(&nv.key(), &[record]).unwrap();
        let (now, other) = answer(&mut open(Some(dir.path())));
        assert!(now == bits);
        assert_eq!(other != kernels, used, "{about}");
        // A truncated file.
        let path = store.path(&nv.key());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert_eq!(answer(&mut open(Some(dir.path()))), (bits.clone(), kernels.clone()));
    }
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn without_a_compiler_nothing_is_tuned() {
    let nv = Nv::detect().unwrap();
    let plan: Plan = open(None).plan(0).clone();
    let why = tuning::groups(&nv, &plan).unwrap_err().to_string();
    assert!(
        why.starts_with("nothing of the network can be tuned on nv: nv does not support generated kernels: no NVRTC: "),
        "{why}"
    );
    // Choices that need a compiler stay in the store, unused.
    let family = "group_rows_0123456789abcdef".into();
    let case = Case { family, dtype: DType::F32, rows: 5, cols: 700, batch: 1 };
    let space = nv.space(&case).unwrap();
    let mut choice = space.heuristic.clone();
    choice.insert("unroll".into(), 2);
    let found = Record { candidates: Candidates::Nvrtc(12, 6), ..record(&case, &space, choice) };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    store.merge(&nv.key(), &[found]).unwrap();
    let read = store.read(&nv.key(), Clock::Measured, &Kernels(&nv)).unwrap();
    assert_eq!(read.stale[0].1, "compiled by nvrtc 12.6, which is not here");
    let (_, kernels) = answer(&mut open(Some(dir.path())));
    assert!(kernels.iter().all(|kernel| kernel == "tensor"), "{kernels:?}");
}

#[test]
fn groups_are_tuned_like_matmuls() {
    run_each(&[
        "a_winner_is_stored_and_used_at_the_next_start",
        "an_invalid_entry_is_not_used",
        "without_a_compiler_nothing_is_tuned",
    ]);
}

#[test]
#[ignore = "nightly"]
fn nightly_tuned_groups_change_no_bit() {
    run_each(&["no_parameter_changes_a_bit", "rows_of_many_lengths_equal_the_cpu"]);
}

/// Runs tests in processes of their own.
fn run_each(tests: &[&str]) {
    for &test in tests {
        let dir = tempfile::tempdir().unwrap();
        let mut command = again(module_path!(), test);
        command.env("TEGRA_SIM_TRACE", dir.path().join("trace"));
        if test == "without_a_compiler_nothing_is_tuned" {
            command.env("ORIND_NVRTC", dir.path().join("none"));
        }
        println!("{}", said(&mut command));
    }
}
