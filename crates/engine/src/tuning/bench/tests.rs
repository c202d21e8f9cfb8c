//! Tests of the number of open instances.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use device::Footprint;
use device::cpu::{Cpu, Isa};

/// The CPU with a counter and a limit of instances.
struct Counting {
    cpu: Cpu,
    opened: AtomicUsize,
    full: AtomicBool,
}

impl Counting {
    fn opened(&self) -> usize {
        self.opened.swap(0, Ordering::Relaxed)
    }
}

impl Device for Counting {
    fn info(&self) -> device::Info {
        self.cpu.info()
    }

    fn fusions(&self) -> Fusions {
        self.cpu.fusions()
    }

    fn footprint(&self, request: &Request<'_>) -> device::Result<Footprint> {
        self.cpu.footprint(request)
    }

    fn open(&self, request: &Request<'_>) -> device::Result<Box<dyn Instance>> {
        if self.full.swap(false, Ordering::Relaxed) {
            return Err(Error::OutOfMemory { what: "one more".into(), need: 2, have: 1 });
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.cpu.open(request)
    }

    fn tunable(&self) -> Option<&dyn Tunable> {
        self.cpu.tunable()
    }
}

/// Choices of one layout share an instance up to a size limit. Without room for a second layout, the first
/// instance is dropped.
#[test]
fn instances_are_reopened_only_for_lack_of_room() {
    let (rows, cols, batch) = (256, 128, 3);
    let case = Case { family: "project".into(), dtype: DType::F16, rows, cols, batch };
    let device = Counting {
        cpu: Cpu::new(Isa::detect(), NonZeroUsize::MIN),
        opened: AtomicUsize::new(0),
        full: AtomicBool::new(false),
    };
    let space = device.cpu.space(&case).unwrap();
    let (pace, mut watch) = (Pace::default(), WallClock::default());
    let bench = CaseBench::new(&device, &case, None, &space, 0, &pace, &mut watch);
    let mut bench = bench.unwrap_or_else(|_| panic!("{case} can be measured"));
    // A parameter that does not change the layout of weights, so that every processor has it.
    bench.layout = vec!["rows_per_task"];
    let of = |layout: u32, prefetch: u32| {
        let mut choice = space.heuristic.clone();
        choice.insert("rows_per_task".into(), layout);
        choice.insert("prefetch_bytes".into(), prefetch);
        assert!(space.check(&choice).is_ok(), "{choice:?}");
        choice
    };
    let opened = |bench: &mut CaseBench<'_>, layout, prefetch| {
        assert!(bench.check(&of(layout, prefetch)).is_ok());
        device.opened()
    };
    assert_eq!(opened(&mut bench, 16, 1024), 1);
    assert_eq!(opened(&mut bench, 16, 2048), 0, "the layout is the same");
    assert_eq!(opened(&mut bench, 32, 1024), 1);
    assert_eq!(opened(&mut bench, 16, 4096), 0, "there are two");
    assert_eq!(opened(&mut bench, 64, 1024), 1);
    assert_eq!(opened(&mut bench, 32, 2048), 1, "it was the one that was not used for longest");

    // Inputs, outputs and checked rows are prepared again for every choice.
    let each = u64::from(batch * (rows + cols) + CHECKED as u32) * 4;
    assert_eq!(last(&mut bench.opened).bytes, each);
    last(&mut bench.opened).bytes = MOST_PREPARED - each;
    assert_eq!(opened(&mut bench, 32, 4096), 0, "just as many as there may be");
    assert_eq!(opened(&mut bench, 32, 8192), 1, "it has too many");
    assert_eq!(last(&mut bench.opened).bytes, each);

    assert_eq!(bench.opened.len(), 2);
    device.full.store(true, Ordering::Relaxed);
    assert_eq!(opened(&mut bench, 128, 1024), 1);
    assert_eq!(bench.opened.len(), 1, "the others made room");
}
