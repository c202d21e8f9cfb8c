//! Arbitrary bytes as everything that a program can give to the GPU: ring, streams, QMDs, memory.
//!
//! Shared by the fuzz target and by the replay of its corpus, so it needs nothing but the crate.

use std::sync::Arc;
use std::time::Duration;

use tegra_sim::config::{Config, Injection};
use tegra_sim::finding::{Collector, Fault};
use tegra_sim::gpu::{
    ChannelSetup, Events, Gpu, GpuConfig, MapAccess, MapFlags, Mmu, SWITCH_LIMIT_MS, TsgId,
};
use tegra_sim::memory::DmaBuf;
use tegra_sim::trace::Trace;

/// GPU address of the bytes; a read-only and a cacheable view follow.
const BASE: u64 = 0x20_0000;
const SIZE: u64 = 64 << 10;
const ENTRIES: u32 = 16;

struct Nobody;

impl Events for Nobody {
    fn channel_error(&self, _: TsgId, _: u32, _: &Fault) {}

    fn non_stall_interrupt(&self) {}
}

/// Runs `data`: a seed of 8 bytes, GP_PUT of one, how many ring entries it brings of one, those
/// entries, and the memory. Other entries of the ring name the memory from its beginning.
pub(crate) fn run(data: &[u8]) {
    let Some((seed, rest)) = data.split_first_chunk::<8>() else { return };
    let [put, own, rest @ ..] = rest else { return };
    let config = Config { seed: u64::from_le_bytes(*seed), ..Config::default() };
    let config = GpuConfig {
        hold: Duration::from_secs(1000),
        deadlock_timeout: Duration::ZERO,
        reporter: Arc::new(Collector::default()),
        ..GpuConfig::new(&config, Trace::off(), Arc::new(Injection::default()))
    };
    let gpu = Gpu::new(config, Arc::new(Nobody)).expect("a thread");
    let buffer = |bytes| DmaBuf::new(bytes).expect("a buffer");
    let (ring, userd, memory) = (buffer(4096), buffer(4096), buffer(SIZE));

    let own = usize::from(own % 16).min(rest.len() / 8);
    let (entries, image) = rest.split_at(own * 8);
    let image = &image[..image.len().min(SIZE as usize)];
    memory.write(0, image).expect("within the buffer");
    let words = (image.len() as u64 / 4).max(1);
    for index in 0..u64::from(ENTRIES) {
        ring.store_u64(index * 8, BASE | words << 42).expect("within the ring");
    }
    ring.write(0, entries).expect("within the ring");
    userd.store_u32(0x8c, u32::from(*put % 18)).expect("within the page");

    let mmu = Arc::new(Mmu::new());
    let plain = MapFlags::default();
    let views = [
        plain,
        MapFlags { access: MapAccess::ReadOnly, ..plain },
        MapFlags { cacheable: true, ..plain },
        MapFlags { unmapped_pte: true, ..plain },
    ];
    for (index, flags) in views.into_iter().enumerate() {
        let va = BASE + index as u64 * SIZE;
        mmu.map(va, Arc::clone(&memory), 0, SIZE, flags).expect("free addresses");
    }
    let tsg = gpu.open_tsg();
    let setup = |id: u16| ChannelSetup {
        id,
        token: id.into(),
        tsg,
        veid: 0,
        ring: Arc::clone(&ring),
        entries: ENTRIES,
        userd: Arc::clone(&userd),
        mmu: Arc::clone(&mmu),
        usermode: true,
        switch_limit_ms: SWITCH_LIMIT_MS,
    };
    for id in [511, 510] {
        gpu.open_channel(setup(id)).expect("a channel");
        gpu.alloc_object(id, 0xc7c0);
        gpu.alloc_object(id, 0xc7b5);
    }
    gpu.doorbell(511);
    gpu.doorbell(510);
    gpu.drain();
    gpu.close_tsg(tsg);
    gpu.drain();
}
