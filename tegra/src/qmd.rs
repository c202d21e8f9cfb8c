//! Encoder of the 256-byte descriptor of a kernel launch.
//!
//! A [`Launch`] describes the launch in the kernel's terms; [`Launch::encode`] checks it against
//! the rules of the hardware's scheduler and returns the [`Qmd`]. Fields that a launch does not
//! choose have the values of code that was seen to work on hardware.
//!
//! The GPU reads a QMD, and writes to it, until the launch has completed; as a dependent it is read
//! even before its own launch. The CPU must not touch it in between. When QMDs are reused, signal
//! completion with a semaphore of the push buffer rather than with a QMD's release.

use std::fmt;

use crate::address::{AddressError, GpuAddress, QmdAddress};
use crate::class::Value;
use crate::class::qmd::{
    self as fields, BANKS, CallLimit, DependentAction, Membar, PrefetchType, QmdField, RELEASES,
    ReleaseMembar, SamplerIndex, StructureSize, WORDS,
};
use crate::local_memory::THREAD_ADDRESS_BITS;
use crate::pushbuffer::Payload;

/// Machine-code version of compute capability 8.7.
const SASS_VERSION: u32 = 0x87;
/// The group id of the proven code.
const GROUP_ID: u32 = 0x3f;
/// Blocks of a grid in x, y, z.
const GRID_LIMIT: [u32; 3] = [i32::MAX as u32, 0xffff, 0xffff];
/// Threads of a block in x, y, z.
const BLOCK_LIMIT: [u32; 3] = [1024, 1024, 64];
/// Threads of a block in total: scheduler check 18.
const THREADS_LIMIT: u32 = 1024;
/// Largest register count that the machine code can encode.
const REGISTERS_LIMIT: u32 = 255;
/// Registers of an SM, and their allocation granule for a warp.
const REGISTER_FILE: u32 = 0x1_0000;
const REGISTER_GRANULE: u32 = 256;
/// SM partitions, each with a quarter of the warps and registers.
const PARTITIONS: u32 = 4;
const THREADS_PER_WARP: u32 = 32;
/// Barriers of a block.
const BARRIERS_LIMIT: u32 = 16;
/// Granule of a thread's local memory.
const LOCAL_GRANULE: u32 = 32;
/// Bytes of shared memory that the system reserves for every block.
const SHARED_RESERVED: u32 = 0x400;
const SHARED_GRANULE: u32 = 128;
/// Shared-memory carve-outs of L1, in bytes. The SM has 164 KiB; more than 100 was not tried.
const CARVE_OUTS: [u32; 3] = [32 << 10, 64 << 10, 100 << 10];
const CARVE_OUT_GRANULE: u32 = 4096;
/// Alignment of code: that of the compiler's sections.
const CODE_ALIGNMENT: u64 = 128;
/// Alignment of a constant bank: later layouts store addresses without these bits (inferred).
const BANK_ALIGNMENT: u64 = 64;
const BANK_LIMIT: u32 = 64 << 10;
const BANK_GRANULE: u32 = 16;
/// Unit in which code is prefetched.
const PREFETCH_GRANULE: u32 = 256;

/// Error of a launch that cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QmdError {
    /// An address that the launch cannot use.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A number outside the hardware's range.
    #[error("{what} is {value}, outside {least} to {limit}")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// The number.
        value: u64,
        /// The smallest allowed.
        least: u64,
        /// The largest allowed.
        limit: u64,
    },
    /// More threads than the registers of an SM allow.
    #[error("{threads} threads of {registers} registers do not fit an SM: at most {limit}")]
    RegisterFile {
        /// Threads of a block.
        threads: u32,
        /// Registers of a thread.
        registers: u32,
        /// Threads that would fit.
        limit: u32,
    },
    /// A size that is no multiple of its granule.
    #[error("{what} of {value} bytes is no multiple of {granule}")]
    Granule {
        /// Name of the size.
        what: &'static str,
        /// The size.
        value: u32,
        /// The granule.
        granule: u32,
    },
    /// A QMD that [`Launch::encode`] cannot have made.
    #[error("not a QMD of ours: word {word} is {found:#010x}, not {expected:#010x}")]
    NotOurs {
        /// The first word that differs.
        word: usize,
        /// Its value.
        found: u32,
        /// The value after encoding the decoded launch again.
        expected: u32,
    },
    /// A field with a value that no launch encodes.
    #[error("not a QMD of ours: {field} is {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
    },
}

/// Code to run and its resources, as compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Address of the first instruction, a multiple of 128. At least 4 KiB after the code must be
    /// mapped too: instructions are prefetched.
    pub address: GpuAddress,
    /// Bytes of code, for prefetching it.
    pub code_bytes: u32,
    /// Registers of a thread, 1 to 255.
    pub registers: u32,
    /// Barriers of a block: the highest index used and one, 0 to 16.
    pub barriers: u32,
    /// Bytes of local memory of a thread, a multiple of 32; see
    /// [`crate::local_memory::LocalMemorySize`].
    pub local_bytes: u32,
}

/// A constant bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConstantBank {
    /// Address, a multiple of 64.
    pub address: GpuAddress,
    /// Size, rounded up to 16; at most 64 KiB. The hardware checks accesses against it.
    pub bytes: u32,
    /// Invalidate cached constants of the bank first.
    pub invalidate: bool,
}

/// Caches invalidated when the launch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidate {
    /// Texture headers, samplers and texture data.
    pub texture: bool,
    /// Global memory in L1: needed to see what earlier launches wrote.
    pub data: bool,
    /// Code; needed after code was written.
    pub instruction: bool,
    /// Constants of all banks.
    pub constant: bool,
}

impl Default for Invalidate {
    /// The invalidations of the proven code.
    fn default() -> Self {
        Self { texture: true, data: true, instruction: false, constant: false }
    }
}

/// A semaphore release at completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QmdRelease {
    /// Address; a multiple of the payload's size, of 16 with a timestamp.
    pub at: GpuAddress,
    /// The payload.
    pub payload: Payload,
    /// Also write the nanosecond timer, 8 bytes after the address.
    pub timestamp: bool,
    /// Make all writes visible to the system first.
    pub system_barrier: bool,
}

/// A launch that completion of this one triggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependent {
    /// Its QMD, which the GPU may read as soon as this launch is sent.
    pub qmd: QmdAddress,
    /// The action at completion.
    pub action: DependentAction,
    /// Fetch it beforehand.
    pub prefetch: bool,
}

/// A kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The code.
    pub program: Program,
    /// Blocks in x, y, z: up to 2^31 - 1, 65535, 65535.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z: up to 1024, 1024, 64, and 1024 in all.
    pub block: [u32; 3],
    /// Shared memory of a block, static and dynamic, without the system's own.
    pub shared_bytes: u32,
    /// Constant banks 0 to 7.
    pub constants: [Option<ConstantBank>; BANKS],
    /// Caches invalidated at the start.
    pub invalidate: Invalidate,
    /// Barrier at the end of every block.
    pub membar: Membar,
    /// Releases at completion.
    pub releases: [Option<QmdRelease>; 3],
    /// Launch triggered by completion.
    pub dependent: Option<Dependent>,
    /// [`DependentAction::DecrementDependence`]s that the launch waits for.
    pub dependence_count: u16,
}

impl Launch {
    /// A launch with no shared memory, banks, releases or dependents; everything else as in the
    /// proven code.
    #[must_use]
    pub fn new(program: Program, grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            program,
            grid,
            block,
            shared_bytes: 0,
            constants: [None; BANKS],
            invalidate: Invalidate::default(),
            membar: Membar::System,
            releases: [None; 3],
            dependent: None,
            dependence_count: 0,
        }
    }

    /// Encodes the QMD, or returns the rule that the launch breaks.
    pub fn encode(&self) -> Result<Qmd, QmdError> {
        let shared = self.check()?;
        let mut qmd = Qmd([0; WORDS]);

        qmd.set(fields::QMD_MAJOR_VERSION, fields::MAJOR);
        qmd.set(fields::QMD_VERSION, fields::MINOR);
        qmd.set(fields::SASS_VERSION, SASS_VERSION);
        qmd.set(fields::QMD_GROUP_ID, GROUP_ID);
        qmd.set(fields::SM_GLOBAL_CACHING_ENABLE, true);
        qmd.set(fields::API_VISIBLE_CALL_LIMIT, CallLimit::NoCheck);
        qmd.set(fields::SAMPLER_INDEX, SamplerIndex::ViaHeaderIndex);

        let Program { address, code_bytes, registers, barriers, local_bytes } = self.program;
        qmd.set(fields::PROGRAM_ADDRESS_LOWER, address.lower());
        qmd.set(fields::PROGRAM_ADDRESS_UPPER, address.upper());
        let prefetch = address.get() / u64::from(PREFETCH_GRANULE);
        qmd.set(fields::PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED, prefetch as u32);
        qmd.set(fields::PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED, (prefetch >> 32) as u32);
        let blocks = (code_bytes / PREFETCH_GRANULE).min(fields::PROGRAM_PREFETCH_SIZE.max());
        qmd.set(fields::PROGRAM_PREFETCH_SIZE, blocks);
        qmd.set(fields::PROGRAM_PREFETCH_TYPE, PrefetchType::Launch);
        qmd.set(fields::REGISTER_COUNT_V, registers);
        qmd.set(fields::BARRIER_COUNT, barriers);
        qmd.set(fields::SHADER_LOCAL_MEMORY_LOW_SIZE, 0);
        qmd.set(fields::SHADER_LOCAL_MEMORY_HIGH_SIZE, local_bytes);

        let [x, y, z] = self.grid;
        qmd.set(fields::CTA_RASTER_WIDTH, x);
        qmd.set(fields::CTA_RASTER_HEIGHT, y);
        qmd.set(fields::CTA_RASTER_DEPTH, z);
        let [x, y, z] = self.block;
        qmd.set(fields::CTA_THREAD_DIMENSION0, x);
        qmd.set(fields::CTA_THREAD_DIMENSION1, y);
        qmd.set(fields::CTA_THREAD_DIMENSION2, z);

        qmd.set(fields::SHARED_MEMORY_SIZE, shared.bytes);
        qmd.set(fields::MIN_SM_CONFIG_SHARED_MEM_SIZE, shared.carve_out);
        qmd.set(fields::TARGET_SM_CONFIG_SHARED_MEM_SIZE, shared.carve_out);
        qmd.set(fields::MAX_SM_CONFIG_SHARED_MEM_SIZE, Shared::LARGEST);

        let Invalidate { texture, data, instruction, constant } = self.invalidate;
        qmd.set(fields::INVALIDATE_TEXTURE_HEADER_CACHE, texture);
        qmd.set(fields::INVALIDATE_TEXTURE_SAMPLER_CACHE, texture);
        qmd.set(fields::INVALIDATE_TEXTURE_DATA_CACHE, texture);
        qmd.set(fields::INVALIDATE_SHADER_DATA_CACHE, data);
        qmd.set(fields::INVALIDATE_INSTRUCTION_CACHE, instruction);
        qmd.set(fields::INVALIDATE_SHADER_CONSTANT_CACHE, constant);
        qmd.set(fields::CWD_MEMBAR_TYPE, self.membar);

        for (bank, constant) in self.constants.iter().enumerate() {
            let Some(ConstantBank { address, bytes, invalidate }) = *constant else { continue };
            qmd.set(fields::CONSTANT_BUFFER_VALID[bank], true);
            qmd.set(fields::CONSTANT_BUFFER_ADDR_LOWER[bank], address.lower());
            qmd.set(fields::CONSTANT_BUFFER_ADDR_UPPER[bank], address.upper());
            qmd.set(fields::CONSTANT_BUFFER_SIZE_SHIFTED4[bank], bytes.div_ceil(BANK_GRANULE));
            qmd.set(fields::CONSTANT_BUFFER_INVALIDATE[bank], invalidate);
        }
        for (bits, release) in RELEASES.into_iter().zip(&self.releases) {
            let Some(QmdRelease { at, payload, timestamp, system_barrier }) = *release else {
                continue;
            };
            let (long, size) = match (payload, timestamp) {
                (Payload::Word(_), true) => (false, StructureSize::FourWords),
                (Payload::Word(_), false) => (false, StructureSize::OneWord),
                (Payload::Long(_), true) => (true, StructureSize::FourWords),
                (Payload::Long(_), false) => (true, StructureSize::TwoWords),
            };
            let membar = if system_barrier { ReleaseMembar::System } else { ReleaseMembar::None };
            let [low, high] = payload.words();
            qmd.set(fields::RELEASE0_ENABLE.after(bits), true);
            qmd.set(fields::RELEASE0_ADDRESS_LOWER.after(bits), at.lower());
            qmd.set(fields::RELEASE0_ADDRESS_UPPER.after(bits), at.upper());
            qmd.set(fields::RELEASE0_MEMBAR_TYPE.after(bits), membar);
            qmd.set(fields::RELEASE0_PAYLOAD64B.after(bits), long);
            qmd.set(fields::RELEASE0_STRUCTURE_SIZE.after(bits), size);
            qmd.set(fields::RELEASE0_PAYLOAD_LOWER.after(bits), low);
            qmd.set(fields::RELEASE0_PAYLOAD_UPPER.after(bits), high);
        }
        qmd.set(fields::DEPENDENCE_COUNTER, self.dependence_count.into());
        if let Some(Dependent { qmd: dependent, action, prefetch }) = self.dependent {
            qmd.set(fields::DEPENDENT_QMD0_ENABLE, true);
            qmd.set(fields::DEPENDENT_QMD0_POINTER, dependent.shifted());
            qmd.set(fields::DEPENDENT_QMD0_ACTION, action);
            qmd.set(fields::DEPENDENT_QMD0_PREFETCH, prefetch);
        }
        Ok(qmd)
    }

    fn check(&self) -> Result<Shared, QmdError> {
        let Program { address, code_bytes, registers, barriers, local_bytes } = self.program;
        address.aligned(CODE_ALIGNMENT)?.spanning(code_bytes.into())?;
        in_range("registers of a thread", registers, 1, REGISTERS_LIMIT)?;
        in_range("barriers of a block", barriers, 0, BARRIERS_LIMIT)?;
        in_range("local bytes of a thread", local_bytes, 0, (1 << THREAD_ADDRESS_BITS) - 1)?;
        if !local_bytes.is_multiple_of(LOCAL_GRANULE) {
            let what = "local memory of a thread";
            return Err(QmdError::Granule { what, value: local_bytes, granule: LOCAL_GRANULE });
        }
        let axes = ["blocks in x", "blocks in y", "blocks in z"];
        for ((what, value), limit) in axes.into_iter().zip(self.grid).zip(GRID_LIMIT) {
            in_range(what, value, 1, limit)?;
        }
        let axes = ["threads in x", "threads in y", "threads in z"];
        for ((what, value), limit) in axes.into_iter().zip(self.block).zip(BLOCK_LIMIT) {
            in_range(what, value, 1, limit)?;
        }
        // At most 1024 * 1024 * 64 after the checks above.
        let threads = self.block.into_iter().product();
        in_range("threads of a block", threads, 1, THREADS_LIMIT)?;
        let limit = threads_by_registers(registers);
        if threads > limit {
            return Err(QmdError::RegisterFile { threads, registers, limit });
        }
        for bank in self.constants.iter().flatten() {
            in_range("bytes of a constant bank", bank.bytes, 1, BANK_LIMIT)?;
            bank.address.aligned(BANK_ALIGNMENT)?.spanning(bank.bytes.into())?;
        }
        for release in self.releases.iter().flatten() {
            release.payload.place(release.at, release.timestamp)?;
        }
        Shared::new(self.shared_bytes)
    }

    /// Decodes a QMD that [`Launch::encode`] made. Sizes are rounded to their granules.
    /// [`QmdError`] when encoding the result would not return the same QMD.
    pub fn decode(qmd: &Qmd) -> Result<Self, QmdError> {
        let address = |upper, lower| GpuAddress::from_words(qmd.get(upper), qmd.get(lower));
        let mut constants = [None; BANKS];
        for (bank, constant) in constants.iter_mut().enumerate() {
            if qmd.get(fields::CONSTANT_BUFFER_VALID[bank]) {
                *constant = Some(ConstantBank {
                    address: address(
                        fields::CONSTANT_BUFFER_ADDR_UPPER[bank],
                        fields::CONSTANT_BUFFER_ADDR_LOWER[bank],
                    )?,
                    bytes: qmd.get(fields::CONSTANT_BUFFER_SIZE_SHIFTED4[bank]) * BANK_GRANULE,
                    invalidate: qmd.get(fields::CONSTANT_BUFFER_INVALIDATE[bank]),
                });
            }
        }
        let mut releases = [None; 3];
        for (release, bits) in releases.iter_mut().zip(RELEASES) {
            if qmd.get(fields::RELEASE0_ENABLE.after(bits)) {
                let size = qmd.get(fields::RELEASE0_STRUCTURE_SIZE.after(bits));
                let membar = qmd.get(fields::RELEASE0_MEMBAR_TYPE.after(bits));
                *release = Some(QmdRelease {
                    at: address(
                        fields::RELEASE0_ADDRESS_UPPER.after(bits),
                        fields::RELEASE0_ADDRESS_LOWER.after(bits),
                    )?,
                    payload: Payload::from_words(
                        qmd.get(fields::RELEASE0_PAYLOAD64B.after(bits)),
                        qmd.get(fields::RELEASE0_PAYLOAD_LOWER.after(bits)),
                        qmd.get(fields::RELEASE0_PAYLOAD_UPPER.after(bits)),
                    ),
                    timestamp: size == Some(StructureSize::FourWords),
                    system_barrier: membar == Some(ReleaseMembar::System),
                });
            }
        }
        let dependent = if qmd.get(fields::DEPENDENT_QMD0_ENABLE) {
            Some(Dependent {
                qmd: QmdAddress::from_shifted(qmd.get(fields::DEPENDENT_QMD0_POINTER)),
                action: qmd.value("DEPENDENT_QMD0_ACTION", fields::DEPENDENT_QMD0_ACTION)?,
                prefetch: qmd.get(fields::DEPENDENT_QMD0_PREFETCH),
            })
        } else {
            None
        };
        let launch = Self {
            program: Program {
                address: address(fields::PROGRAM_ADDRESS_UPPER, fields::PROGRAM_ADDRESS_LOWER)?,
                code_bytes: qmd.get(fields::PROGRAM_PREFETCH_SIZE) * PREFETCH_GRANULE,
                registers: qmd.get(fields::REGISTER_COUNT_V),
                barriers: qmd.get(fields::BARRIER_COUNT),
                local_bytes: qmd.get(fields::SHADER_LOCAL_MEMORY_HIGH_SIZE),
            },
            grid: [
                qmd.get(fields::CTA_RASTER_WIDTH),
                qmd.get(fields::CTA_RASTER_HEIGHT),
                qmd.get(fields::CTA_RASTER_DEPTH),
            ],
            block: [
                qmd.get(fields::CTA_THREAD_DIMENSION0),
                qmd.get(fields::CTA_THREAD_DIMENSION1),
                qmd.get(fields::CTA_THREAD_DIMENSION2),
            ],
            shared_bytes: qmd.get(fields::SHARED_MEMORY_SIZE).saturating_sub(SHARED_RESERVED),
            constants,
            invalidate: Invalidate {
                texture: qmd.get(fields::INVALIDATE_TEXTURE_HEADER_CACHE),
                data: qmd.get(fields::INVALIDATE_SHADER_DATA_CACHE),
                instruction: qmd.get(fields::INVALIDATE_INSTRUCTION_CACHE),
                constant: qmd.get(fields::INVALIDATE_SHADER_CONSTANT_CACHE),
            },
            membar: qmd.value("CWD_MEMBAR_TYPE", fields::CWD_MEMBAR_TYPE)?,
            releases,
            dependent,
            dependence_count: qmd.get(fields::DEPENDENCE_COUNTER) as u16,
        };
        let again = launch.encode()?;
        match (0..WORDS).find(|&word| again.0[word] != qmd.0[word]) {
            None => Ok(launch),
            Some(word) => {
                Err(QmdError::NotOurs { word, found: qmd.0[word], expected: again.0[word] })
            }
        }
    }
}

/// Shared memory of a block, as encoded in the QMD.
struct Shared {
    bytes: u32,
    carve_out: u32,
}

impl Shared {
    /// The code of the largest carve-out.
    const LARGEST: u32 = Self::code(CARVE_OUTS[CARVE_OUTS.len() - 1]);

    const fn code(bytes: u32) -> u32 {
        bytes / CARVE_OUT_GRANULE + 1
    }

    fn new(wanted: u32) -> Result<Self, QmdError> {
        let limit = CARVE_OUTS[CARVE_OUTS.len() - 1] - SHARED_RESERVED;
        in_range("shared bytes of a block", wanted, 0, limit)?;
        let bytes = (SHARED_RESERVED + wanted).next_multiple_of(SHARED_GRANULE);
        let carve_out = CARVE_OUTS.into_iter().find(|size| *size >= bytes);
        // The limit is the largest carve-out, so one is found.
        Ok(Self { bytes, carve_out: carve_out.map_or(Self::LARGEST, Self::code) })
    }
}

/// Threads whose registers fit an SM.
fn threads_by_registers(registers: u32) -> u32 {
    let warp = (registers * THREADS_PER_WARP).next_multiple_of(REGISTER_GRANULE);
    let warps = REGISTER_FILE / warp;
    warps / PARTITIONS * PARTITIONS * THREADS_PER_WARP
}

fn in_range(what: &'static str, value: u32, least: u32, limit: u32) -> Result<(), QmdError> {
    if (least..=limit).contains(&value) {
        Ok(())
    } else {
        let (value, least, limit) = (value.into(), least.into(), limit.into());
        Err(QmdError::Range { what, value, least, limit })
    }
}

/// An encoded launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qmd([u32; WORDS]);

impl Qmd {
    /// Wraps words read from memory.
    #[must_use]
    pub const fn from_words(words: [u32; WORDS]) -> Self {
        Self(words)
    }

    /// The words to store, at a multiple of 256.
    #[must_use]
    pub const fn words(&self) -> &[u32; WORDS] {
        &self.0
    }

    /// The value of one field.
    #[must_use]
    pub fn get<T: Value>(&self, field: QmdField<T>) -> T::Read {
        field.get(&self.0)
    }

    fn set<T: Value>(&mut self, field: QmdField<T>, value: T) {
        field.set(&mut self.0, value);
    }

    fn value<T: Value<Read = Option<T>>>(
        &self,
        name: &'static str,
        field: QmdField<T>,
    ) -> Result<T, QmdError> {
        self.get(field).ok_or_else(|| QmdError::Value { field: name, value: self.get(field.raw()) })
    }
}

impl fmt::Display for Qmd {
    /// Prints every non-zero field, one a line, then the bound constant banks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, field) in fields::FIELDS {
            match self.get(*field) {
                0 => {}
                value => writeln!(f, "{name} = {value:#x}")?,
            }
        }
        for bank in (0..BANKS).filter(|bank| self.get(fields::CONSTANT_BUFFER_VALID[*bank])) {
            writeln!(
                f,
                "bank {bank} = {:#x}{:08x}, {:#x} bytes",
                self.get(fields::CONSTANT_BUFFER_ADDR_UPPER[bank]),
                self.get(fields::CONSTANT_BUFFER_ADDR_LOWER[bank]),
                self.get(fields::CONSTANT_BUFFER_SIZE_SHIFTED4[bank]) * BANK_GRANULE,
            )?;
        }
        Ok(())
    }
}
