//! Kernels of a cubin, executed instruction by instruction in any memory, with every check enabled.

use std::error::Error;

use orind_kernels::cubin::Kernel;
use sass::check::Checks;
use sass::count::Counters;
use sass::launch::{BANKS, Launch};
use sass::machine::{Cache, Options, run};
use sass::memory::Memory;
use sass::program::Program;

/// Start of the stack.
const STACK: u32 = 0x00ff_fdc0;

#[derive(Clone, Copy)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// Windows of shared and local memory in the generic address space.
#[derive(Clone, Copy)]
pub struct Windows {
    pub shared: u64,
    pub local: u64,
}

/// Constant bank 0 of a launch: shape, windows, stack start, parameters.
pub fn bank0(kernel: &Kernel<'_>, shape: Shape, windows: Windows, params: &[u8]) -> Vec<u8> {
    let mut bank = kernel.constants0.to_vec();
    let mut put = |at: usize, bytes: &[u8]| bank[at..at + bytes.len()].copy_from_slice(bytes);
    for (i, word) in shape.block.iter().chain(&shape.grid).enumerate() {
        put(4 * i, &word.to_le_bytes());
    }
    put(0x18, &windows.shared.to_le_bytes());
    put(0x20, &windows.local.to_le_bytes());
    put(0x28, &STACK.to_le_bytes());
    put(kernel.params_offset as usize, params);
    bank
}

/// Runs a kernel and counts its operations; `seed` determines the schedule of blocks and warps.
pub fn execute(
    kernel: &Kernel<'_>,
    shape: Shape,
    params: &[u8],
    memory: &dyn Memory,
    seed: u64,
) -> Result<Counters, Box<dyn Error>> {
    const WINDOWS: Windows = Windows { shared: 0x7_2900_0000_0000, local: 0x7_2800_0000_0000 };
    let bank0 = bank0(kernel, shape, WINDOWS, params);
    let mut banks: [&[u8]; BANKS] = [&[]; BANKS];
    banks[0] = &bank0;
    banks[2] = kernel.constants2.unwrap_or_default();
    let launch = Launch {
        name: &kernel.name,
        grid: shape.grid,
        block: shape.block,
        registers: kernel.registers,
        shared_bytes: u32::try_from(kernel.shared_bytes)?.next_multiple_of(16) + shape.shared,
        shared_reserved: 1024,
        local_bytes: kernel.stack_bytes + 0x240,
        banks,
        shared_window: WINDOWS.shared >> 8,
        local_window: WINDOWS.local >> 8,
        entry: 0,
        time_ns: 0,
        sms: 8,
    };
    let options = Options { checks: Checks::ALL, seed, ..Options::default() };
    Ok(run(&Program::new(kernel.code)?, &launch, memory, &Cache::default(), &options)?)
}
