//! Constant bank 0 as the compiler expects it: sizes of block and grid, address windows, stack
//! pointer, then the parameters. Offsets were read from sm_87 cubins.

/// Threads of a block, then blocks of the grid, x, y, z.
const DIMENSIONS: usize = 0;
/// Addresses at which shaders see shared memory and local memory.
const WINDOWS: usize = 0x18;
/// The stack pointer that every prologue loads.
const STACK: usize = 0x28;
/// Dynamic shared memory of a block.
const DYNAMIC_SHARED: usize = 0x2c;
/// Shared memory of a block that the system reserves.
const RESERVED_SHARED: usize = 0x114;

/// Shared memory of every block that the system reserves, in bytes.
const SYSTEM_SHARED: u32 = 0x400;

/// Contents of the bank below the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bank0 {
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// GPU address at which shaders see shared memory.
    pub shared_window: u64,
    /// GPU address at which shaders see local memory.
    pub local_window: u64,
    /// Initial stack pointer.
    pub stack_pointer: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub dynamic_shared: u32,
}

impl Bank0 {
    /// Image of the bank, with `parameters` at `offset`, which the cubin specifies.
    #[must_use]
    pub fn image(&self, offset: u32, parameters: &[u8]) -> Vec<u8> {
        // A cubin may specify any offset; every kernel here has its parameters behind the last
        // field.
        let below = (offset as usize).max(RESERVED_SHARED + 4);
        let mut bank = vec![0; below];
        let mut put = |at: usize, bytes: &[u8]| bank[at..at + bytes.len()].copy_from_slice(bytes);
        for (i, size) in self.block.into_iter().chain(self.grid).enumerate() {
            put(DIMENSIONS + 4 * i, &size.to_le_bytes());
        }
        put(WINDOWS, &self.shared_window.to_le_bytes());
        put(WINDOWS + 8, &self.local_window.to_le_bytes());
        put(STACK, &self.stack_pointer.to_le_bytes());
        put(DYNAMIC_SHARED, &self.dynamic_shared.to_le_bytes());
        put(RESERVED_SHARED, &SYSTEM_SHARED.to_le_bytes());
        bank.truncate(offset as usize);
        bank.extend_from_slice(parameters);
        bank
    }
}
