//! QMDs: decoding of launches, and the checks of the compute scheduler (SKED).
//!
//! [`super::schedule`] decides when a launch runs. The checks and their bits are those of
//! `NV_PGRAPH_PRI_SKED_HWW_ESR` in GA100's manual; limits missing there are those of compute
//! capability 8.7.

use tegra_bundle::{Header, Simulated};

use super::semaphore::{Reduction, Width, Write};
use crate::class::{Field, qmd as fields};
use crate::mmu::{Access, Mmu};

/// Number of constant banks of a launch.
pub const BANKS: usize = 8;
/// Size of a QMD in bytes.
pub(crate) const BYTES: usize = 4 * fields::WORDS;

/// Size of the shared and local windows: local addresses have 24 bits.
pub const WINDOW: u64 = 1 << 24;

/// A constant bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bank {
    /// Address.
    pub address: u64,
    /// Size in bytes, a multiple of 16; accesses beyond it fault.
    pub bytes: u32,
    /// The launch invalidates its cached contents.
    pub invalidate: bool,
}

/// A decoded and valid launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub channel: u16,
    /// Address of its QMD.
    pub qmd: u64,
    pub words: [u32; fields::WORDS],
    /// Address of the first instruction.
    pub program: u64,
    /// Registers of a thread.
    pub registers: u32,
    /// Barriers of a block.
    pub barriers: u32,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Shared memory of a block in bytes, including the part reserved for the system.
    pub shared_bytes: u32,
    /// Local memory of a thread in bytes, upwards from 0.
    pub local_low: u32,
    /// Local memory of a thread in bytes, downwards from 2^24.
    pub local_high: u32,
    pub constants: [Option<Bank>; BANKS],
    /// Start of the shared window in the generic address space, [`WINDOW`] bytes.
    pub shared_window: u64,
    /// Start of the local window in the generic address space, [`WINDOW`] bytes.
    pub local_window: u64,
    /// Backing store of local memory.
    pub local_memory: LocalMemory,
    /// Random seed for the order of warps and blocks.
    pub seed: u64,
    /// GPU time at which it starts, in nanoseconds.
    pub time: u64,
}

impl Launch {
    /// Blocks of the grid, and warps of all of them.
    pub(crate) fn blocks_and_warps(&self) -> (u64, u64) {
        let product = |sizes: [u32; 3]| {
            sizes.into_iter().fold(1u64, |product, size| product.saturating_mul(size.into()))
        };
        let blocks = product(self.grid);
        (blocks, blocks.saturating_mul(product(self.block).div_ceil(WARP.into())))
    }

    /// Drops the last blocks of a launch that a fault stops; one time in four all blocks, one time
    /// in four none.
    pub(crate) fn cut_short(&mut self) {
        let Some(longest) = self.grid.iter_mut().max_by_key(|blocks| **blocks) else { return };
        *longest = match self.seed % 4 {
            0 => 0,
            1 => *longest,
            _ => (self.seed / 4 % u64::from((*longest).max(1))) as u32,
        };
    }

    /// Checks that each TPC's share of local memory suffices for `warps_per_tpc` warps.
    pub(crate) fn check_local_memory(&self, warps_per_tpc: u64) -> Result<(), SkedError> {
        let per_thread = u64::from(self.local_low) + u64::from(self.local_high);
        let per_tpc = (per_thread * u64::from(WARP)).next_multiple_of(0x200) * warps_per_tpc;
        let held = self.local_memory.bytes_per_tpc;
        if per_thread > WINDOW || per_tpc > held {
            let message = format!(
                "{per_thread} bytes of local memory a thread need {per_tpc:#x} a TPC, of {held:#x}"
            );
            return Err(SkedError { bit: esr::LOCAL_MEMORY_TOTAL_SIZE, message });
        }
        Ok(())
    }

    /// Decodes a QMD of a bundle. The error is the message of the scheduler's check that failed.
    pub(crate) fn of_bundle(
        of: &Header,
        qmd: u64,
        words: [u32; fields::WORDS],
    ) -> Result<Self, String> {
        let held = of.local_memory;
        let local_memory = LocalMemory {
            base: held.base,
            bytes_per_tpc: held.bytes_per_tpc,
            max_sms: held.max_sms,
        };
        let state = LaunchState {
            shared_window: of.shared_window,
            local_window: of.local_window,
            local_memory,
        };
        let of_simulated = |simulated: &Simulated| (simulated.seed, simulated.time);
        let (seed, time) = of.simulated.as_ref().map(of_simulated).unwrap_or_default();
        let channel = u16::try_from(of.channel).unwrap_or(u16::MAX);
        let launch = Qmd(words).launch(channel, qmd, &state, Chance { seed, time });
        launch.map_err(|error| error.message)
    }
}

/// Backing store of local memory, as set by methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalMemory {
    /// Address.
    pub base: u64,
    /// Bytes of each TPC's share.
    pub bytes_per_tpc: u64,
    /// SMs that may use it.
    pub max_sms: u32,
}

/// State of the compute engine that a launch uses besides its QMD.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaunchState {
    pub(crate) shared_window: u64,
    pub(crate) local_window: u64,
    pub(crate) local_memory: LocalMemory,
}

/// Random seed and time of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance {
    pub(crate) seed: u64,
    pub(crate) time: u64,
}

/// Action of a completion on another QMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dependent {
    pub(crate) qmd: u64,
    pub(crate) action: DependentAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DependentAction {
    Schedule,
    DecrementDependence,
    /// An action of queue QMDs.
    Queue,
}

/// A check that failed, by its bit in the exception register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SkedError {
    pub(crate) bit: u32,
    pub(crate) message: String,
}

/// Bits of the exception register that the simulator raises.
pub(crate) mod esr {
    pub(crate) const CONSTANT_BUFFER_SIZE: u32 = 7;
    pub(crate) const DEPENDENCE_COUNTER_UNDERFLOW: u32 = 8;
    pub(crate) const LOCAL_MEMORY_LOW_SIZE: u32 = 9;
    pub(crate) const LOCAL_MEMORY_HIGH_SIZE: u32 = 10;
    pub(crate) const LOCAL_MEMORY_TOTAL_SIZE: u32 = 12;
    pub(crate) const REGISTER_COUNT: u32 = 13;
    pub(crate) const OUTER_PUT: u32 = 14;
    pub(crate) const INNER_PUT: u32 = 15;
    pub(crate) const INNER_GET: u32 = 16;
    pub(crate) const OUTER_GET: u32 = 17;
    pub(crate) const TOTAL_THREADS: u32 = 18;
    pub(crate) const PROGRAM_OFFSET: u32 = 20;
    pub(crate) const SHARED_MEMORY_SIZE: u32 = 21;
    pub(crate) const THREAD_DIMENSION_ZERO: u32 = 23;
    pub(crate) const MEMORY_WINDOW_OVERLAP: u32 = 24;
    pub(crate) const L1_CONFIG_TOO_SMALL: u32 = 25;
    pub(crate) const CTA_REGISTER_CONSUMPTION: u32 = 26;
    pub(crate) const INVALIDATE_ACTIVE_QMD: u32 = 29;
}

const THREADS: u32 = 1024;
const BLOCK: [u32; 3] = [1024, 1024, 64];
const GRID: [u32; 3] = [i32::MAX as u32, 0xffff, 0xffff];
const REGISTERS: u32 = 255;
const REGISTER_FILE: u32 = 1 << 16;
const WARP: u32 = 32;
const WARPS_PER_TPC: u64 = 96;
const BANK_BYTES: u32 = 64 << 10;
/// Unit of the L1 split; a code is the size in these units plus one.
const CARVE_OUT: u32 = 4096;
/// The largest split: 164 KiB on an SM of compute capability 8.7.
const LARGEST_CODE: u32 = 0x2a;
const CODE_ALIGNMENT: u64 = 128;
const SHARED_GRANULE: u32 = 128;
const LOCAL_GRANULE: u32 = 16;

/// A QMD in its memory layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Qmd(pub(crate) [u32; fields::WORDS]);

impl Qmd {
    /// Reads a QMD without side effects; none when it is not mapped.
    pub(crate) fn peek(mmu: &Mmu, at: u64) -> Option<Self> {
        let piece = mmu.resolve(at, BYTES as u64, Access::Read).ok()?.pop()?;
        let mut bytes = [0; BYTES];
        piece.buffer.read(piece.offset, &mut bytes).ok()?;
        Some(Self::from_bytes(&bytes))
    }

    pub(crate) fn from_bytes(bytes: &[u8; BYTES]) -> Self {
        let mut words = [0; fields::WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Self(words)
    }

    fn get(&self, field: Field) -> u32 {
        field.get(self.0[field.word()])
    }

    fn is_set(&self, field: Field) -> bool {
        self.get(field) != 0
    }

    fn address(&self, upper: Field, lower: Field) -> u64 {
        u64::from(self.get(upper)) << 32 | u64::from(self.get(lower))
    }

    /// Returns whether it is a queue QMD, which is not modelled.
    pub(crate) fn is_queue(&self) -> bool {
        self.is_set(fields::IS_QUEUE)
    }

    pub(crate) fn dependence_counter(&self) -> u32 {
        self.get(fields::DEPENDENCE_COUNTER)
    }

    pub(crate) fn version(&self) -> (u32, u32) {
        (self.get(fields::QMD_MAJOR_VERSION), self.get(fields::QMD_VERSION))
    }

    pub(crate) fn invalidates_constants(&self) -> bool {
        self.is_set(fields::INVALIDATE_SHADER_CONSTANT_CACHE)
    }

    pub(crate) fn invalidates_instructions(&self) -> bool {
        self.is_set(fields::INVALIDATE_INSTRUCTION_CACHE)
    }

    pub(crate) fn invalidates_data(&self) -> bool {
        self.is_set(fields::INVALIDATE_SHADER_DATA_CACHE)
    }

    /// Returns the first dependent; `Err` if the second is enabled, whose pointer field is
    /// undocumented.
    pub(crate) fn dependent(&self) -> Result<Option<Dependent>, &'static str> {
        if self.is_set(fields::DEPENDENT_QMD1_ENABLE) {
            return Err("DEPENDENT_QMD1: its pointer has no field in this version");
        }
        if !self.is_set(fields::DEPENDENT_QMD0_ENABLE) {
            return Ok(None);
        }
        let action = match self.get(fields::DEPENDENT_QMD0_ACTION) {
            1 | 3 => DependentAction::Schedule,
            4 => DependentAction::DecrementDependence,
            _ => DependentAction::Queue,
        };
        let qmd = u64::from(self.get(fields::DEPENDENT_QMD0_POINTER)) << 8;
        Ok(Some(Dependent { qmd, action }))
    }

    /// Returns the bound constant banks.
    pub(crate) fn constants(&self) -> [Option<Bank>; BANKS] {
        std::array::from_fn(|bank| {
            let valid = self.is_set(fields::CONSTANT_BUFFER_VALID[bank]);
            valid.then(|| Bank {
                address: self.address(
                    fields::CONSTANT_BUFFER_ADDR_UPPER[bank],
                    fields::CONSTANT_BUFFER_ADDR_LOWER[bank],
                ),
                bytes: self.get(fields::CONSTANT_BUFFER_SIZE_SHIFTED4[bank]) << 4,
                invalidate: self.is_set(fields::CONSTANT_BUFFER_INVALIDATE[bank]),
            })
        })
    }

    pub(crate) fn program(&self) -> u64 {
        self.address(fields::PROGRAM_ADDRESS_UPPER, fields::PROGRAM_ADDRESS_LOWER)
    }

    /// Returns the prefetched code: address and bytes.
    pub(crate) fn prefetch(&self) -> (u64, u64) {
        let upper = u64::from(self.get(fields::PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED));
        let lower = u64::from(self.get(fields::PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED));
        let bytes = u64::from(self.get(fields::PROGRAM_PREFETCH_SIZE)) << 8;
        ((upper << 32 | lower) << 8, bytes)
    }

    /// Returns a reserved field that is not zero.
    pub(crate) fn reserved(&self) -> Option<&'static str> {
        let mut known = [0u32; fields::WORDS];
        for field in fields::FIELDS {
            let name = field.name;
            if (name.contains("RESERVED") || name.starts_with("HW_ONLY")) && self.is_set(*field) {
                return Some(name);
            }
            known[field.word()] |= field.mask();
        }
        let gap = self.0.iter().zip(known).any(|(word, known)| word & !known != 0);
        gap.then_some("bits that no field covers")
    }

    /// Returns the semaphore releases at completion; `Err` if SKED does not support one.
    pub(crate) fn releases(&self) -> Result<Vec<Write>, String> {
        let first = [
            fields::RELEASE0_ENABLE,
            fields::RELEASE0_ADDRESS_UPPER,
            fields::RELEASE0_ADDRESS_LOWER,
            fields::RELEASE0_PAYLOAD_UPPER,
            fields::RELEASE0_PAYLOAD_LOWER,
            fields::RELEASE0_PAYLOAD64B,
            fields::RELEASE0_STRUCTURE_SIZE,
            fields::RELEASE0_REDUCTION_ENABLE,
            fields::RELEASE0_REDUCTION_OP,
            fields::RELEASE0_REDUCTION_FORMAT,
        ];
        let mut releases = Vec::new();
        // The fields of each slot have the same layout.
        for slot in [fields::RELEASE0_ENABLE, fields::RELEASE1_ENABLE, fields::RELEASE2_ENABLE] {
            let behind = slot.low - fields::RELEASE0_ENABLE.low;
            let [enable, upper, lower, high, low, long, structure, reduce, op, format] =
                first.map(|of| Field { high: of.high + behind, low: of.low + behind, ..of });
            if !self.is_set(enable) {
                continue;
            }
            let width = if self.is_set(long) { Width::Long } else { Width::Word };
            let timestamp = match (self.get(structure), width) {
                (0, _) => true,
                (1, Width::Word) | (2, Width::Long) => false,
                (size, _) => return Err(format!("structure size {size} with {width:?} payload")),
            };
            let reduction = if self.is_set(reduce) {
                let unsigned = self.get(format) == 0;
                Some(Reduction::of_engine(self.get(op), unsigned))
            } else {
                None
            };
            releases.push(Write {
                address: self.address(upper, lower),
                payload: self.address(high, low),
                width,
                timestamp,
                reduction,
            });
        }
        Ok(releases)
    }

    /// Decodes a launch and performs SKED's checks.
    pub(crate) fn launch(
        &self,
        channel: u16,
        qmd: u64,
        state: &LaunchState,
        Chance { seed, time }: Chance,
    ) -> Result<Launch, SkedError> {
        let launch = Launch {
            channel,
            qmd,
            words: self.0,
            program: self.program(),
            registers: self.get(fields::REGISTER_COUNT_V),
            barriers: self.get(fields::BARRIER_COUNT),
            grid: [
                self.get(fields::CTA_RASTER_WIDTH),
                self.get(fields::CTA_RASTER_HEIGHT),
                self.get(fields::CTA_RASTER_DEPTH),
            ],
            block: [
                self.get(fields::CTA_THREAD_DIMENSION0),
                self.get(fields::CTA_THREAD_DIMENSION1),
                self.get(fields::CTA_THREAD_DIMENSION2),
            ],
            shared_bytes: self.get(fields::SHARED_MEMORY_SIZE),
            local_low: self.get(fields::SHADER_LOCAL_MEMORY_LOW_SIZE),
            local_high: self.get(fields::SHADER_LOCAL_MEMORY_HIGH_SIZE),
            constants: self.constants(),
            shared_window: state.shared_window,
            local_window: state.local_window,
            local_memory: state.local_memory,
            seed,
            time,
        };
        self.check(&launch)?;
        Ok(launch)
    }

    /// Performs SKED's checks.
    fn check(&self, launch: &Launch) -> Result<(), SkedError> {
        let fail = |bit, message: String| Err(SkedError { bit, message });
        let Launch { grid, block, registers, shared_bytes, .. } = *launch;
        let (shared, local) = (launch.shared_window, launch.local_window);
        if shared.abs_diff(local) < WINDOW {
            let message = format!("windows overlap: local {local:#x}, shared {shared:#x}");
            return fail(esr::MEMORY_WINDOW_OVERLAP, message);
        }
        let positions = [
            (fields::OUTER_PUT, esr::OUTER_PUT, "OUTER_PUT"),
            (fields::INNER_PUT, esr::INNER_PUT, "INNER_PUT"),
            (fields::INNER_GET, esr::INNER_GET, "INNER_GET"),
            (fields::OUTER_GET, esr::OUTER_GET, "OUTER_GET"),
        ];
        if let Some((_, bit, name)) = positions.into_iter().find(|(field, ..)| self.is_set(*field))
        {
            return fail(bit, format!("{name} is set, and this is no queue"));
        }
        if grid.contains(&0) || block.contains(&0) {
            let message = format!("a dimension is zero: grid {grid:?}, block {block:?}");
            return fail(esr::THREAD_DIMENSION_ZERO, message);
        }
        let threads = block.iter().fold(1u32, |product, n| product.saturating_mul(*n));
        let within = |sizes: [u32; 3], limits: [u32; 3]| {
            sizes.into_iter().zip(limits).all(|(size, limit)| size <= limit)
        };
        if threads > THREADS || !within(block, BLOCK) || !within(grid, GRID) {
            let message = format!("too many threads: grid {grid:?}, block {block:?}");
            return fail(esr::TOTAL_THREADS, message);
        }
        if !launch.program.is_multiple_of(CODE_ALIGNMENT) {
            let message = format!("program at {:#x}: no multiple of 128", launch.program);
            return fail(esr::PROGRAM_OFFSET, message);
        }
        if !(1..=REGISTERS).contains(&registers) {
            return fail(esr::REGISTER_COUNT, format!("{registers} registers a thread"));
        }
        // Warps allocate registers in units of 256, and equally on four partitions.
        let warps = threads.div_ceil(WARP).next_multiple_of(4);
        let wanted = warps * (registers * WARP).next_multiple_of(256);
        if wanted > REGISTER_FILE {
            let message = format!("{threads} threads of {registers} registers need {wanted}");
            return fail(esr::CTA_REGISTER_CONSUMPTION, message);
        }
        if !shared_bytes.is_multiple_of(SHARED_GRANULE)
            || shared_bytes > (LARGEST_CODE - 1) * CARVE_OUT
        {
            let message = format!("{shared_bytes} bytes of shared memory");
            return fail(esr::SHARED_MEMORY_SIZE, message);
        }
        let least = self.get(fields::MIN_SM_CONFIG_SHARED_MEM_SIZE);
        let target = self.get(fields::TARGET_SM_CONFIG_SHARED_MEM_SIZE);
        let most = self.get(fields::MAX_SM_CONFIG_SHARED_MEM_SIZE);
        let room = |code: u32| code.saturating_sub(1) * CARVE_OUT;
        if least > target || target > most || most > LARGEST_CODE || room(least) < shared_bytes {
            let message = format!(
                "{shared_bytes} bytes of shared memory with splits {least:#x}, {target:#x}, {most:#x}"
            );
            return fail(esr::L1_CONFIG_TOO_SMALL, message);
        }
        let local = [
            (launch.local_low, esr::LOCAL_MEMORY_LOW_SIZE),
            (launch.local_high, esr::LOCAL_MEMORY_HIGH_SIZE),
        ];
        if let Some((bytes, bit)) =
            local.into_iter().find(|(bytes, _)| !bytes.is_multiple_of(LOCAL_GRANULE))
        {
            return fail(bit, format!("{bytes} bytes of local memory a thread"));
        }
        launch.check_local_memory(WARPS_PER_TPC)?;
        if let Some(bank) = launch.constants.iter().flatten().find(|bank| bank.bytes > BANK_BYTES) {
            let message = format!("a constant bank of {} bytes", bank.bytes);
            return fail(esr::CONSTANT_BUFFER_SIZE, message);
        }
        Ok(())
    }
}
