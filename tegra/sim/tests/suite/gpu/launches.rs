//! Launches: arguments of the engine, order, dependents, releases, and SKED's checks.

use std::sync::Arc;

use parking_lot::Mutex;
use tegra::address::GpuAddress;
use tegra::class::qmd::{DependentAction, Membar};
use tegra::pushbuffer::{Payload, PushBuffer, Release, Upload};
use tegra::qmd::{Dependent, QmdRelease};
use tegra_sim::finding::Rule;
use tegra_sim::finding::SmFault;
use tegra_sim::gpu::{Access, ComputeEngine, GpuMemory, Launch};
use tegra_sim::trace::Work;

use super::rig::{Kernel, LOCAL, Rig, SHARED, compute_stream, release};

/// Notes launches; each copies the first constant behind the code, if it can.
struct Engine {
    seen: Arc<Mutex<Vec<Launch>>>,
    fault: bool,
}

impl ComputeEngine for Engine {
    fn launch(&mut self, launch: &Launch, memory: &dyn GpuMemory) -> Result<Work, SmFault> {
        self.seen.lock().push(launch.clone());
        if let Some(bank) = launch.constants[0] {
            let mut word = [0; 4];
            memory.read(bank.address, &mut word).map_err(SmFault::Mmu)?;
            memory.resolve(bank.address, 16, Access::Read).map_err(SmFault::Mmu)?;
        }
        if self.fault {
            return Err(SmFault::Exception {
                name: "misaligned-address",
                sm: 3,
                global_esr: 4,
                warp_esr: 0xf,
                warp_pc: launch.program + 0x40,
                message: "lane 3".into(),
            });
        }
        Ok(Work::default())
    }
}

fn engine(rig: &Rig, fault: bool) -> Arc<Mutex<Vec<Launch>>> {
    let seen = Arc::default();
    rig.gpu.set_compute_engine(Box::new(Engine { seen: Arc::clone(&seen), fault }));
    seen
}

/// A rig whose launches are seen, and a kernel to launch.
fn ready(seed: u64) -> (Rig, Arc<Mutex<Vec<Launch>>>, Kernel) {
    let rig = Rig::new(seed);
    let (seen, kernel) = (engine(&rig, false), Kernel::new(&rig));
    (rig, seen, kernel)
}

fn stamped(at: GpuAddress, payload: u64) -> Option<QmdRelease> {
    let payload = Payload::Long(payload);
    Some(QmdRelease { at, payload, timestamp: true, system_barrier: true })
}

#[test]
fn the_engine_gets_the_decoded_launch() {
    let (rig, seen, kernel) = ready(1);
    let slot = rig.buffer(4096);
    let mut launch = kernel.launch;
    launch.grid = [70000, 3, 2];
    launch.block = [32, 4, 2];
    launch.shared_bytes = 5000;
    launch.membar = Membar::Gpu;
    launch.releases[1] = stamped(slot.at(16), 77);
    kernel.store(0, &launch);
    let mut stream = compute_stream();
    stream.launch(kernel.at(0)).release(release(slot.at(0), 1));
    rig.run(stream.words());
    let seen = seen.lock();
    let got = &seen[0];
    assert_eq!(seen.len(), 1);
    assert_eq!((got.program, got.registers, got.qmd), (kernel.code.va, 16, kernel.qmd.va));
    assert_eq!((got.grid, got.block), ([70000, 3, 2], [32, 4, 2]));
    assert_eq!(got.shared_bytes, (5000u32 + 0x400).next_multiple_of(128));
    assert_eq!((got.local_low, got.local_high), (0, 0x240));
    assert_eq!((got.local_window, got.shared_window), (LOCAL, SHARED));
    assert_eq!(got.local_memory.base, 0x10_0000_0000);
    let bank = got.constants[0].unwrap();
    assert_eq!((bank.address, bank.bytes), (kernel.constants.va, 0x180));
    assert_eq!(got.constants[1..], [None; 7]);
    assert_eq!((slot.long(0), slot.long(16)), (1, 77));
    assert!(slot.long(24) < slot.long(8), "the launch completes before the release that waits");
}

#[test]
fn unordered_launches_run_in_any_order_and_barriers_order_them() {
    let order = |seed, wait: bool| {
        let (rig, seen, kernel) = ready(seed);
        let mut stream = compute_stream();
        for index in 0..3 {
            kernel.store(index, &kernel.launch);
            stream.launch(kernel.at(index));
            if wait {
                stream.wait_for_idle(tegra::class::host::WfiScope::CurrentVeid);
            }
        }
        rig.run(stream.words());
        let seen = seen.lock();
        seen.iter().map(|launch| (launch.qmd - kernel.qmd.va) / 256).collect::<Vec<_>>()
    };
    let mut orders: Vec<_> = (0..40).map(|seed| order(seed, false)).collect();
    assert!((0..10).all(|seed| order(seed, true) == [0, 1, 2]));
    orders.sort();
    orders.dedup();
    assert!(orders.len() > 3, "{orders:?}");
}

#[test]
fn dependents_run_one_after_the_other() {
    for seed in 0..10 {
        let (rig, seen, kernel) = ready(seed);
        let slot = rig.buffer(4096);
        for index in 0..5 {
            let mut launch = kernel.launch;
            launch.dependent = (index < 4).then(|| Dependent {
                qmd: kernel.at(index + 1),
                action: DependentAction::Schedule,
                prefetch: true,
            });
            kernel.store(index, &launch);
        }
        let mut stream = compute_stream();
        stream.launch(kernel.at(0)).release(release(slot.at(0), 1));
        rig.run(stream.words());
        let seen = seen.lock();
        let order: Vec<_> = seen.iter().map(|l| (l.qmd - kernel.qmd.va) / 256).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
        assert_eq!(slot.long(0), 1);
    }
}

#[test]
fn a_launch_waits_to_be_counted_down() {
    for seed in 0..10 {
        let (rig, seen, kernel) = ready(seed);
        for index in 0..2 {
            let mut launch = kernel.launch;
            launch.dependent = Some(Dependent {
                qmd: kernel.at(2),
                action: DependentAction::DecrementDependence,
                prefetch: false,
            });
            kernel.store(index, &launch);
        }
        let mut last = kernel.launch;
        last.dependence_count = 2;
        kernel.store(2, &last);
        let slot = rig.buffer(4096);
        let mut stream = compute_stream();
        stream.launch(kernel.at(2)).launch(kernel.at(0)).launch(kernel.at(1));
        stream.release(release(slot.at(0), 1));
        rig.run(stream.words());
        assert_eq!(seen.lock()[2].qmd, kernel.qmd.va + 512);
        assert_eq!(slot.long(0), 1);
    }
}

#[test]
fn an_inline_qmd_and_an_upload() {
    let (rig, seen, kernel) = ready(1);
    let target = rig.buffer(4096);
    let mut stream = compute_stream();
    stream.upload(Upload::new(target.at(8), vec![1, 2, 3]).unwrap());
    let mut words = stream.into_words();
    let address = (kernel.qmd.va + 1024) >> 8;
    words.extend([0x2002_20c6, 0, address as u32, 0x2040_20c8]);
    words.extend(kernel.launch.encode().unwrap().words());
    rig.run(&words);
    assert_eq!([target.word(8), target.word(12), target.word(16), target.word(20)], [1, 2, 3, 0]);
    assert_eq!(seen.lock()[0].qmd, kernel.qmd.va + 1024);
    assert_eq!(kernel.qmd.read(1024, 256), kernel.qmd.read(0, 256));
}

#[test]
fn report_semaphores_follow_launches() {
    for seed in 0..5 {
        let (rig, seen, kernel) = ready(seed);
        let slot = rig.buffer(4096);
        let mut stream = compute_stream();
        stream.launch(kernel.at(0));
        let mut words = stream.into_words();
        let low = slot.va as u32;
        // Payload, address, release of four words that wakes; then the older form, one word.
        words.extend([0x2004_2056, 9, 0, low, 0, 0x2001_205a, 0x4]);
        words.extend([0x2004_26c0, 0, low + 32, 8, 1 << 28]);
        rig.run(&words);
        assert_eq!(seen.lock().len(), 1);
        assert_eq!((slot.long(0), slot.long(32)), (9, 8));
        assert!(slot.long(8) > 0);
        assert_eq!(*rig.driver.interrupts.lock(), 1);
    }
}

#[test]
fn an_exception_of_the_sm_stops_the_tsg() {
    let rig = Rig::new(1);
    engine(&rig, true);
    let kernel = Kernel::new(&rig);
    let slot = rig.buffer(4096);
    let mut stream = compute_stream();
    stream.launch(kernel.at(0)).release(release(slot.at(0), 1));
    rig.submit(&mut rig.channel(), stream.words());
    assert_eq!(rig.fault(), (13, Rule::SmException));
    let errors = rig.driver.errors.lock();
    let fault = &errors[0].2;
    assert!(matches!(fault.sm, Some(SmFault::Exception { sm: 3, warp_esr: 0xf, .. })));
    for part in
        ["sm machine check err", "misaligned-address", "error notifier set to 13 for ch 511"]
    {
        assert!(fault.finding.message.contains(part), "{}", fault.finding.message);
    }
    assert_eq!(slot.long(0), 0);
}

/// Each check of the scheduler by the bit that it raises, from one change of a good QMD.
#[test]
fn sked_refuses() {
    // Word, what is cleared of it, what is set, the bit.
    let cases: [(usize, u32, u32, u32); 16] = [
        (18, 0xffff_0000, 0, 23),
        (12, u32::MAX, 0, 23),
        (18, 0, 0x0400_0000, 18),
        (48, 0, 0x40, 20),
        (20, 0x0001_ff00, 0, 13),
        (20, 0x0001_ff00, 255 << 8, 26),
        (17, 0, 0x40, 21),
        (17, 0x0003_ffff, 0xa000, 25),
        (23, 0, 8, 9),
        (50, 0, 4, 10),
        (50, 0, 0x800, 12),
        (33, 0, 0x1fff << 19, 7),
        (0, 0, 1, 14),
        (1, 0, 1, 17),
        (2, 0, 1, 16),
        (3, 0, 1, 15),
    ];
    for (word, clear, set, bit) in cases {
        let rig = Rig::new(1);
        let mut kernel = Kernel::new(&rig);
        if bit == 26 {
            kernel.launch.block = [512, 1, 1];
            kernel.store(0, &kernel.launch);
        }
        let old = kernel.qmd.word(word as u64 * 4);
        kernel.qmd.memory.store_u32(word as u64 * 4, old & !clear | set).unwrap();
        rig.submit(&mut rig.channel(), &kernel.stream());
        assert_eq!(rig.fault(), (13, Rule::SkedException), "bit {bit}");
        let errors = rig.driver.errors.lock();
        let expected = format!("sked exception: esr {:#010x}", 1u32 << bit);
        let message = &errors[0].2.finding.message;
        assert!(message.contains(&expected), "bit {bit}: {message}");
    }
}

/// Without windows every launch is refused, with the code that was seen on hardware.
#[test]
fn missing_windows_are_the_exception_of_the_hardware() {
    let rig = Rig::new(1);
    let kernel = Kernel::new(&rig);
    let mut stream = PushBuffer::<tegra::class::Compute>::new();
    stream.bind().launch(kernel.at(0));
    rig.submit(&mut rig.channel(), stream.words());
    assert_eq!(rig.fault(), (13, Rule::SkedException));
    let errors = rig.driver.errors.lock();
    assert!(errors[0].2.finding.message.contains("esr 0x01000000"));
    assert!(!errors[0].2.finding.listing.is_empty());
}

#[test]
fn a_dependence_counted_below_zero() {
    let rig = Rig::new(1);
    let kernel = Kernel::new(&rig);
    let mut words = compute_stream().into_words();
    words.extend([0x2001_20ad, kernel.at(0).shifted(), 0x2001_20b0, 7]);
    rig.submit(&mut rig.channel(), &words);
    assert_eq!(rig.fault(), (13, Rule::SkedException));
    let errors = rig.driver.errors.lock();
    assert!(errors[0].2.finding.message.contains("esr 0x00000100"));
}

/// Invalidating a QMD right behind its launch, which for most seeds has not run by then.
#[test]
fn an_active_qmd_must_not_be_invalidated() {
    let refused = (0..20)
        .filter(|seed| {
            let rig = Rig::new(*seed);
            let kernel = Kernel::new(&rig);
            let mut words = compute_stream().into_words();
            words.extend([0x2001_20ad, kernel.at(0).shifted(), 0x2001_20b0, 9, 0x2001_20b0, 1]);
            rig.submit(&mut rig.channel(), &words);
            rig.gpu.drain();
            let errors = rig.driver.errors.lock();
            errors.iter().any(|(_, _, fault)| fault.finding.message.contains("esr 0x20000000"))
        })
        .count();
    assert!((1..20).contains(&refused), "{refused} of 20");
}

#[test]
fn a_release_without_waiting_may_come_before_the_launch() {
    let early = (0..20)
        .filter(|seed| {
            let rig = Rig::new(*seed);
            let kernel = Kernel::new(&rig);
            let slot = rig.buffer(4096);
            let mut launch = kernel.launch;
            launch.releases[0] = stamped(slot.at(16), 1);
            kernel.store(0, &launch);
            let mut stream = compute_stream();
            let at_once = Release::new(slot.at(0), Payload::Long(1)).unwrap();
            stream.launch(kernel.at(0)).release(at_once.with_timestamp().unwrap().at_once());
            rig.submit(&mut rig.channel(), stream.words());
            rig.gpu.drain();
            slot.long(8) < slot.long(24)
        })
        .count();
    assert!((1..20).contains(&early), "{early} of 20");
}
