//! CPU cost of submitting one recorded body, and of recording a step of 200 launches.
//!
//! Over plain memory, so that the numbers are of this crate alone: no driver, no simulator, no
//! uncached doorbell. The test `tests/suite/port.rs` shows that a submit makes no system call.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;
use std::ptr::addr_of_mut;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tegra::address::{GpuAddress, QmdAddress};
use tegra::class::Compute;
use tegra::class::host::userd;
use tegra::pushbuffer::{Entry, PushBuffer};
use tegra::queue::{MappedPort, PortMemory, Queue, QueueConfig, TAIL_WORDS, Wake};

const ENTRIES: usize = 1024;
const LAUNCHES: u64 = 200;

#[repr(C, align(4096))]
struct Memory {
    ring: [u64; ENTRIES],
    userd: [u32; userd::SIZE / 4],
    tails: [[u32; TAIL_WORDS]; ENTRIES],
    timeline: u64,
    doorbell: u32,
}

fn at(address: u64) -> GpuAddress {
    GpuAddress::new(address).unwrap()
}

fn submit(criterion: &mut Criterion) {
    let memory: &'static mut Memory = Box::leak(Box::new(Memory {
        ring: [0; _],
        userd: [0; _],
        tails: [[0; _]; _],
        timeline: 0,
        doorbell: 0,
    }));
    let memory = &raw mut *memory;
    // SAFETY: the memory is leaked, and accessed through these pointers only.
    let timeline = unsafe { addr_of_mut!((*memory).timeline) };
    // SAFETY: as above.
    let port = unsafe {
        MappedPort::new(PortMemory {
            ring: addr_of_mut!((*memory).ring).cast(),
            entries: ENTRIES as u32,
            userd: addr_of_mut!((*memory).userd).cast(),
            tails: addr_of_mut!((*memory).tails).cast(),
            timeline,
            doorbell: addr_of_mut!((*memory).doorbell),
            token: 511,
        })
    };
    let config = QueueConfig {
        entries: ENTRIES as u32,
        tails: at(0x10_0000),
        timeline: at(0x20_0000),
        start: 0,
    };
    let mut queue = Queue::new(port, config).unwrap();
    let body = [Entry::new(at(0x30_0000), 64).unwrap()];
    criterion.bench_function("submit one body", |bencher| {
        bencher.iter(|| {
            let point = queue.submit(black_box(&body), Wake::Interrupt).unwrap();
            // SAFETY: as above. A GPU that completes everything at once.
            unsafe { timeline.write_volatile(point.value()) };
        });
    });
}

fn record(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("record");
    group.throughput(Throughput::Elements(LAUNCHES));
    group.bench_function("200 launches", |bencher| {
        bencher.iter(|| {
            let mut stream = PushBuffer::<Compute>::new();
            for launch in 0..LAUNCHES {
                let qmd = QmdAddress::new(at(black_box(0x40_0000) + launch * 256)).unwrap();
                stream.launch(qmd);
            }
            stream.into_words()
        });
    });
    group.finish();
}

criterion_group!(benches, submit, record);
criterion_main!(benches);
