//! Simulated GPU memory and launches. Buffers have gaps between them, so that an access past an end
//! faults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::Grid;
use orind_kernels::cubin::{self, Cubin};
use orind_kernels::params::Parameters;
use orind_kernels::source::Target;
use orind_kernels::{jit, prebuilt};
use orind_testing::machine::{self, Shape};
use sass::count::Counters;
use sass::memory::{Access, Memory, MemoryFault, Region};

/// Distance between the addresses of buffers.
const APART: u64 = 1 << 28;

#[derive(Default)]
pub(crate) struct Device {
    buffers: BTreeMap<u64, Vec<AtomicU32>>,
    seed: u64,
}

impl Memory for Device {
    fn region(&self, address: u64, access: Access) -> Result<Region<'_>, MemoryFault> {
        match self.buffers.range(..=address).next_back() {
            Some((&start, words)) if address < start + 4 * words.len() as u64 => {
                Ok(Region { start, words, writable: true, marks: None })
            }
            _ => Err(MemoryFault::Unmapped { address, access }),
        }
    }
}

impl Device {
    /// A device that schedules warps and blocks by `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { buffers: BTreeMap::new(), seed }
    }

    /// A buffer with these bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> u64 {
        let words = bytes.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            AtomicU32::new(u32::from_le_bytes(word))
        });
        let address = APART * (self.buffers.len() as u64 + 1);
        self.buffers.insert(address, words.collect());
        address
    }

    pub(crate) fn floats(&mut self, values: &[f32]) -> u64 {
        self.bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn integers(&mut self, values: &[i32]) -> u64 {
        self.bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A buffer of `count` NaN words, which kernels must write before they read them.
    pub(crate) fn scratch(&mut self, count: usize) -> u64 {
        self.floats(&vec![f32::NAN; count])
    }

    pub(crate) fn words(&self, address: u64) -> Vec<u32> {
        self.buffers[&address].iter().map(|word| word.load(Relaxed)).collect()
    }

    pub(crate) fn read(&self, address: u64) -> Vec<f32> {
        self.words(address).into_iter().map(f32::from_bits).collect()
    }

    /// Runs a kernel from its cubin, or compiled now. Returns execution counters.
    pub(crate) fn launch<P: Parameters>(
        &self,
        kernel: Kernel,
        grid: Grid,
        shared: u32,
        params: &P,
    ) -> Counters {
        let code = if kernel.is_prebuilt(Target::Sm87) {
            prebuilt::file(kernel.unit(), Target::Sm87).unwrap()
        } else {
            jit::code(kernel, Target::Sm87, &|| true).unwrap().to_vec()
        };
        let cubin = Cubin::parse(&code).unwrap();
        let name = kernel.symbol();
        let found = cubin.kernel(&name).unwrap();
        self.execute(&name, found, [kernel.threads(), 1, 1], grid, shared, params.as_bytes())
    }

    /// Runs any kernel's machine code.
    pub(crate) fn execute(
        &self,
        name: &str,
        found: &cubin::Kernel<'_>,
        block: [u32; 3],
        grid: Grid,
        shared: u32,
        params: &[u8],
    ) -> Counters {
        let shape = Shape { grid, block, shared };
        match machine::execute(found, shape, params, self, self.seed) {
            Ok(counters) => counters,
            Err(fault) => panic!("{name}, seed {}: {fault}", self.seed),
        }
    }
}
