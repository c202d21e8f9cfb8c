//! Cost of the wrappers on the simulated Orin, which is linked in: an upper bound for this crate's
//! share, since the simulator's own work is included. A real driver has other costs.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use tegra::buffer::{Mailbox, Scratch};
use tegra::context::{Context, Options};
use tegra::orin::Orin;
use tegra::pushbuffer::Engine;
use tegra::queue::Wake;
use tegra::space::{AddressSpace, L2};
use tegra_sim_preload as _;

const LONG: Duration = Duration::from_secs(60);

fn memory(criterion: &mut Criterion) {
    let space = AddressSpace::new(&Orin::open().unwrap(), L2::Volatile).unwrap();
    criterion.bench_function("map and unmap 2 MiB for the GPU", |bencher| {
        bencher.iter(|| Scratch::new(black_box(&space), 2 << 20).unwrap());
    });
    criterion.bench_function("map and unmap 2 MiB for CPU and GPU", |bencher| {
        bencher.iter(|| Mailbox::new(black_box(&space), 2 << 20).unwrap());
    });
}

fn submit_and_wait(criterion: &mut Criterion) {
    let space = AddressSpace::new(&Orin::open().unwrap(), L2::Volatile).unwrap();
    for (name, spin) in [("looking", LONG), ("sleeping", Duration::ZERO)] {
        let mut context = Context::new(&space, Options { spin, ..Options::default() }).unwrap();
        let queue = context.add_queue(Engine::Copy, 256).unwrap();
        context.open().unwrap();
        context.drain(LONG).unwrap();
        criterion.bench_function(&format!("submit and wait, {name}"), |bencher| {
            bencher.iter(|| {
                let ticket = context.submit(queue, &[], Wake::Interrupt).unwrap();
                context.wait(ticket, LONG).unwrap();
            });
        });
    }
}

criterion_group!(benches, memory, submit_and_wait);
criterion_main!(benches);
