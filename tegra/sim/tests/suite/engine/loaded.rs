//! A prebuilt kernel in GPU memory, ready to be launched.

use std::path::Path;
use std::time::Duration;

use orind_kernels::catalogue::Kernel;
use orind_kernels::cubin::Cubin;
use orind_kernels::params::Parameters;
use orind_kernels::prebuilt;
use orind_kernels::source::Target;
use orind_testing::machine::{Shape, Windows, bank0};
use tegra::local_memory::{LocalMemory, LocalMemorySize};
use tegra::pushbuffer::CacheInvalidate;
use tegra::qmd::{ConstantBank, Launch, Program};
use tegra_sim::config::Checks;
use tegra_sim::engine::MachineCode;

use crate::gpu::rig::{Buffer, LOCAL, Rig, SHARED, at, compute_stream, release};

/// TPCs of the device.
pub(crate) const TPCS: u32 = 4;

/// A rig whose GPU executes machine code.
pub(crate) fn rig(seed: u64) -> Rig {
    rig_with(seed, "", None)
}

/// A rig with failures to produce, and a directory for bundles.
pub(crate) fn rig_with(seed: u64, faults: &str, bundles: Option<&Path>) -> Rig {
    let rig = Rig::with_bundles(seed, faults, Duration::from_secs(1000), bundles);
    rig.gpu.set_compute_engine(Box::new(MachineCode::new(Checks::Race)));
    rig
}

pub(crate) struct Loaded {
    pub(crate) code: Buffer,
    pub(crate) code_bytes: u64,
    pub(crate) bank: Buffer,
    pub(crate) qmd: Buffer,
    pub(crate) launch: Launch,
    /// Another backing store of local memory: where it is, and its bytes a TPC.
    pub(crate) local: Option<(u64, u64)>,
    /// The stream invalidates L1 before the launch.
    pub(crate) invalidate: bool,
    /// Changes the QMD's words as no encoder would.
    pub(crate) spoil: Option<fn(&mut [u32])>,
}

impl Loaded {
    /// Code, constants and QMD of a launch of a prebuilt kernel.
    pub(crate) fn new<P: Parameters>(
        rig: &Rig,
        kernel: Kernel,
        grid: [u32; 3],
        params: &P,
    ) -> Self {
        let cubin = prebuilt::file(kernel.unit(), Target::Sm87).unwrap();
        let block = [kernel.threads(), 1, 1];
        Self::of(rig, &cubin, &kernel.symbol(), (grid, block), params.as_bytes())
    }

    /// Code, constants and QMD of a launch of any cubin's kernel.
    pub(crate) fn of(
        rig: &Rig,
        cubin: &[u8],
        name: &str,
        (grid, block): ([u32; 3], [u32; 3]),
        params: &[u8],
    ) -> Self {
        let cubin = Cubin::parse(cubin).unwrap();
        let found = cubin.kernel(name).unwrap();
        let bank0 = bank0(
            found,
            Shape { grid, block, shared: 0 },
            Windows { shared: SHARED, local: LOCAL },
            params,
        );
        let store = |bytes: &[u8], room: u64| {
            let buffer = rig.buffer(bytes.len() as u64 + room);
            buffer.write(0, bytes);
            buffer
        };
        // Instructions are prefetched from the page behind the code.
        let (code, bank, qmd) = (store(found.code, 4096), store(&bank0, 0), rig.buffer(4096));
        let program = Program {
            address: code.at(0),
            code_bytes: found.code.len() as u32,
            registers: found.registers,
            barriers: found.barriers,
            local_bytes: LocalMemorySize::new(found.stack_bytes, TPCS).unwrap().per_thread,
        };
        let mut launch = Launch::new(program, grid, block);
        launch.shared_bytes = found.shared_bytes as u32;
        launch.constants[0] =
            Some(ConstantBank { address: bank.at(0), bytes: bank0.len() as u32, invalidate: true });
        if let Some(bytes) = found.constants2 {
            let (address, size) = (store(bytes, 0).at(0), bytes.len() as u32);
            launch.constants[2] = Some(ConstantBank { address, bytes: size, invalidate: true });
        }
        Self {
            code,
            code_bytes: found.code.len() as u64,
            bank,
            qmd,
            launch,
            local: None,
            invalidate: false,
            spoil: None,
        }
    }

    /// Launches and waits for the end; whether the release behind the launch was seen.
    pub(crate) fn run(&self, rig: &Rig) -> bool {
        let slot = rig.buffer(4096);
        let mut words = self.launch.encode().unwrap().words().to_vec();
        if let Some(spoil) = self.spoil {
            spoil(&mut words);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.qmd.write(0, &bytes);
        let qmd = tegra::address::QmdAddress::new(self.qmd.at(0)).unwrap();
        let mut stream = compute_stream();
        if let Some((store, bytes)) = self.local {
            stream.set_local_memory(LocalMemory::new(at(store), bytes).unwrap());
        }
        if self.invalidate {
            stream.invalidate_shader_caches(CacheInvalidate {
                data: true,
                ..CacheInvalidate::default()
            });
        }
        stream.launch(qmd).release(release(slot.at(0), 1));
        rig.submit(&mut rig.channel(), stream.words());
        rig.gpu.drain();
        slot.long(0) == 1
    }
}

pub(crate) fn floats(rig: &Rig, values: &[f32]) -> Buffer {
    let buffer = rig.buffer(values.len() as u64 * 4);
    buffer.write(0, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    buffer
}

pub(crate) fn read(buffer: &Buffer, count: usize) -> Vec<f32> {
    let bytes = buffer.read(0, count * 4);
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
}
