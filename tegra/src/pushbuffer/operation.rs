//! Operations of a stream, one variant each, and their encoding.

use std::fmt;

use super::header::{Header, immediate, incrementing, non_incrementing};
use crate::address::{AddressError, GpuAddress, QmdAddress};
use crate::class::compute::{PcasAction, invalidate_shader_caches, send_signaling_pcas2_b};
use crate::class::copy::{
    ComponentSize, DestinationLayout, Interrupt, RemapSource, SemaphoreType, SourceLayout,
    Transfer as TransferType,
};
use crate::class::host::{
    MemOp, MembarType, SemOperation, WfiScope, mem_op_c, mem_op_d, sem_execute, set_object, wfi,
};
use crate::class::{self, Class, ClassId, compute, copy, host};
use crate::local_memory::{LocalMemory, THREAD_ADDRESS_BITS};

/// Error of an operation with unusable operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// An address that the operation cannot use.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A size outside the range of one operation.
    #[error("{what} of {value} is outside 1 to {limit}: split it")]
    Size {
        /// Name of the size.
        what: &'static str,
        /// The size.
        value: u64,
        /// The largest.
        limit: u64,
    },
    /// Lines that overlap within their own buffer.
    #[error("lines of {width} bytes overlap at a pitch of {pitch}")]
    Pitch {
        /// Bytes of a line.
        width: u32,
        /// Bytes from one line to the next.
        pitch: u32,
    },
    /// The local and the shared window overlap: the scheduler would refuse every launch.
    #[error("local window {local} and shared window {shared} overlap")]
    Windows {
        /// Address of the local-memory window.
        local: GpuAddress,
        /// Address of the shared-memory window.
        shared: GpuAddress,
    },
}

/// A semaphore's payload, 32 or 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// 32 bits.
    Word(u32),
    /// 64 bits.
    Long(u64),
}

impl Payload {
    pub(crate) const fn words(self) -> [u32; 2] {
        match self {
            Self::Word(value) => [value, 0],
            Self::Long(value) => [value as u32, (value >> 32) as u32],
        }
    }

    pub(crate) const fn from_words(long: bool, low: u32, high: u32) -> Self {
        if long { Self::Long((high as u64) << 32 | low as u64) } else { Self::Word(low) }
    }

    const fn is_long(self) -> bool {
        matches!(self, Self::Long(_))
    }

    /// Bytes written, which are also the alignment: 16 with a timestamp (manual).
    const fn bytes(self, timestamp: bool) -> u64 {
        match self {
            _ if timestamp => 16,
            Self::Word(_) => 4,
            Self::Long(_) => 8,
        }
    }

    /// Checks that a release of this payload fits at `at`.
    pub(crate) fn place(self, at: GpuAddress, timestamp: bool) -> Result<(), AddressError> {
        at.aligned(self.bytes(timestamp))?.spanning(self.bytes(timestamp)).map(drop)
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(value) => write!(f, "{value:#x} (32-bit)"),
            Self::Long(value) => write!(f, "{value:#x}"),
        }
    }
}

/// Condition under which an acquire succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Memory equals the payload.
    Equal,
    /// Memory is at least the payload, unsigned.
    AtLeast,
    /// Memory has reached the payload in modular order: right for timelines that never reset.
    Reached,
    /// Memory and payload share a bit.
    AnyBit,
    /// A bit is clear in both.
    AnyClear,
}

impl Condition {
    const fn operation(self) -> SemOperation {
        match self {
            Self::Equal => SemOperation::Acquire,
            Self::AtLeast => SemOperation::AcquireStrictGeq,
            Self::Reached => SemOperation::AcquireCircularGeq,
            Self::AnyBit => SemOperation::AcquireAnd,
            Self::AnyClear => SemOperation::AcquireNor,
        }
    }
}

/// A wait on a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    at: GpuAddress,
    payload: Payload,
    condition: Condition,
    switches_tsg: bool,
}

impl Acquire {
    /// Waits until the semaphore at `at`, a multiple of the payload's size, meets `condition` with
    /// `payload`.
    pub fn new(
        at: GpuAddress,
        payload: Payload,
        condition: Condition,
    ) -> Result<Self, OperationError> {
        payload.place(at, false)?;
        Ok(Self { at, payload, condition, switches_tsg: false })
    }

    /// The same wait; another TSG may run meanwhile.
    #[must_use]
    pub const fn switching_tsg(mut self) -> Self {
        self.switches_tsg = true;
        self
    }

    pub(super) fn execute(self) -> u32 {
        sem_execute::OPERATION.put(self.condition.operation())
            | sem_execute::ACQUIRE_SWITCH_TSG.put(self.switches_tsg)
            | sem_execute::PAYLOAD_SIZE.put(self.payload.is_long())
    }
}

/// A release of a semaphore by the host unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    at: GpuAddress,
    payload: Payload,
    waits_for_idle: bool,
    timestamp: bool,
}

impl Release {
    /// Waits for idle, makes all writes visible to the system, then writes `payload` at `at`, a
    /// multiple of its size.
    pub fn new(at: GpuAddress, payload: Payload) -> Result<Self, OperationError> {
        payload.place(at, false)?;
        Ok(Self { at, payload, waits_for_idle: true, timestamp: false })
    }

    /// The same release, with the GPU's nanosecond timer written 8 bytes after `at`, before the
    /// payload. The address must be a multiple of 16.
    pub fn with_timestamp(mut self) -> Result<Self, OperationError> {
        self.payload.place(self.at, true)?;
        self.timestamp = true;
        Ok(self)
    }

    /// The same release, executed as soon as the host unit reads it: before earlier work of an
    /// engine has finished.
    #[must_use]
    pub const fn at_once(mut self) -> Self {
        self.waits_for_idle = false;
        self
    }

    pub(super) fn execute(self) -> u32 {
        sem_execute::OPERATION.put(SemOperation::Release)
            | sem_execute::RELEASE_WFI.put(self.waits_for_idle)
            | sem_execute::PAYLOAD_SIZE.put(self.payload.is_long())
            | sem_execute::RELEASE_TIMESTAMP.put(self.timestamp)
    }
}

/// The engine whose class is bound to its subchannel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Compute.
    Compute,
    /// Copy.
    Copy,
}

impl Engine {
    pub(crate) const fn class(self) -> ClassId {
        match self {
            Self::Compute => class::Compute::ID,
            Self::Copy => class::Copy::ID,
        }
    }

    pub(super) const fn subchannel(self) -> u32 {
        match self {
            Self::Compute => class::Compute::SUBCHANNEL,
            Self::Copy => class::Copy::SUBCHANNEL,
        }
    }
}

/// L2 maintenance. Only mappings made with the cacheable flag are in L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L2Operation {
    /// Drops clean lines of system memory, so that later reads see the CPU's writes.
    InvalidateSysmem,
    /// Writes dirty lines back.
    FlushDirty,
}

impl L2Operation {
    pub(super) const fn operation(self) -> MemOp {
        match self {
            Self::InvalidateSysmem => MemOp::L2SysmemInvalidate,
            Self::FlushDirty => MemOp::L2FlushDirty,
        }
    }
}

/// Windows of local and shared memory in the generic address space.
///
/// Both ranges must stay free of buffers: the hardware redirects accesses there. Channels that
/// launch without windows get a scheduler exception (seen on hardware).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    local: GpuAddress,
    shared: GpuAddress,
}

impl Windows {
    /// Minimum number of bytes that the hardware decodes of each window: a thread's local addresses
    /// have 24 bits (inferred; the proven code reserves 1 GiB each).
    pub const SPAN: u64 = 1 << THREAD_ADDRESS_BITS;

    /// Windows at two addresses, which are multiples of [`Windows::SPAN`] and differ.
    pub fn new(local: GpuAddress, shared: GpuAddress) -> Result<Self, OperationError> {
        local.aligned(Self::SPAN)?.spanning(Self::SPAN)?;
        shared.aligned(Self::SPAN)?.spanning(Self::SPAN)?;
        if local == shared {
            return Err(OperationError::Windows { local, shared });
        }
        Ok(Self { local, shared })
    }

    /// Address of the local-memory window.
    #[must_use]
    pub const fn local(self) -> GpuAddress {
        self.local
    }

    /// Address of the shared-memory window.
    #[must_use]
    pub const fn shared(self) -> GpuAddress {
        self.shared
    }
}

/// Shader caches to invalidate. Otherwise shaders may see cached data from before a write of the
/// CPU or the copy engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheInvalidate {
    /// Code.
    pub instruction: bool,
    /// Global memory in L1.
    pub data: bool,
    /// Constant banks.
    pub constant: bool,
    /// Wait for the engine to be idle first.
    pub wait: bool,
}

impl CacheInvalidate {
    fn word(self) -> u32 {
        // Both methods have the same fields at the same positions, which a test checks.
        invalidate_shader_caches::INSTRUCTION.put(self.instruction)
            | invalidate_shader_caches::DATA.put(self.data)
            | invalidate_shader_caches::CONSTANT.put(self.constant)
    }

    pub(super) fn from_word(word: u32, wait: bool) -> Option<Self> {
        let caches = Self {
            instruction: invalidate_shader_caches::INSTRUCTION.get(word),
            data: invalidate_shader_caches::DATA.get(word),
            constant: invalidate_shader_caches::CONSTANT.get(word),
            wait,
        };
        (caches.word() == word).then_some(caches)
    }
}

/// Words that the compute engine writes to memory from the stream itself, in order with launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    destination: GpuAddress,
    words: Vec<u32>,
}

impl Upload {
    /// Maximum number of words in one upload: the limit of one header.
    pub const MAX_WORDS: u32 = Header::MAX_COUNT;

    /// Writes `words`, 1 to [`Upload::MAX_WORDS`], at `destination`, a multiple of 4.
    pub fn new(destination: GpuAddress, words: Vec<u32>) -> Result<Self, OperationError> {
        let count = in_range("an upload in words", words.len() as u64, Self::MAX_WORDS.into())?;
        destination.aligned(4)?.spanning(count * 4)?;
        Ok(Self { destination, words })
    }

    pub(super) fn launch() -> u32 {
        compute::launch_dma::DST_MEMORY_LAYOUT.put(compute::DestinationLayout::Pitch)
            | compute::launch_dma::COMPLETION_TYPE.put(compute::Completion::FlushDisable)
            | compute::launch_dma::SYSMEMBAR_DISABLE.put(true)
    }
}

/// A release of a semaphore by the copy engine, after a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    at: GpuAddress,
    payload: Payload,
    timestamp: bool,
    interrupts: bool,
}

impl Signal {
    /// Writes `payload` at `at`, with the nanosecond timer 8 bytes after it if `timestamp`. `at`
    /// must be a multiple of the payload's size, of 16 with a timestamp.
    pub fn new(at: GpuAddress, payload: Payload, timestamp: bool) -> Result<Self, OperationError> {
        payload.place(at, timestamp)?;
        Ok(Self { at, payload, timestamp, interrupts: false })
    }

    /// The same, and an interrupt that wakes pollers of the TSG's event.
    #[must_use]
    pub const fn interrupting(mut self) -> Self {
        self.interrupts = true;
        self
    }

    pub(super) fn launch(self) -> u32 {
        let semaphore =
            if self.timestamp { SemaphoreType::WithTimestamp } else { SemaphoreType::NoTimestamp };
        let interrupt = if self.interrupts { Interrupt::NonBlocking } else { Interrupt::None };
        copy::launch_dma::FLUSH_ENABLE.put(true)
            | copy::launch_dma::SEMAPHORE_TYPE.put(semaphore)
            | copy::launch_dma::INTERRUPT_TYPE.put(interrupt)
            | copy::launch_dma::SEMAPHORE_PAYLOAD_SIZE.put(self.payload.is_long())
    }

    fn encode(self, out: &mut Vec<u32>) {
        let [low, high] = self.payload.words();
        let words = [self.at.upper(), self.at.lower(), low, high];
        let used = if self.payload.is_long() { 4 } else { 3 };
        incrementing(out, copy::SET_SEMAPHORE_A, &words[..used]);
    }
}

/// Shape of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Consecutive bytes.
    Linear {
        /// Number of bytes.
        bytes: u32,
    },
    /// Lines at a pitch.
    Lines {
        /// Bytes of a line.
        width: u32,
        /// Number of lines.
        count: u32,
        /// Bytes from one source line to the next.
        source_pitch: u32,
        /// Bytes from one destination line to the next.
        destination_pitch: u32,
    },
}

impl Shape {
    /// Bytes from the first byte to the end of the last line, at `pitch`.
    fn extent(self, pitch: u32) -> u64 {
        match self {
            Self::Linear { bytes } => bytes.into(),
            Self::Lines { width, count, .. } => {
                u64::from(pitch) * (u64::from(count) - 1) + u64::from(width)
            }
        }
    }
}

/// A copy by the copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    source: GpuAddress,
    destination: GpuAddress,
    shape: Shape,
    overlaps_previous: bool,
    then: Option<Signal>,
}

impl Transfer {
    /// Maximum bytes of a line: the largest copy of the proven code.
    pub const MAX_BYTES: u32 = 1 << 31;

    /// Copies `shape` from `source` to `destination`, after earlier transfers of the channel.
    ///
    /// # Errors
    /// When a size is 0 or above [`Transfer::MAX_BYTES`], when lines overlap within the source or
    /// the destination, or when either leaves the address space.
    pub fn new(
        source: GpuAddress,
        destination: GpuAddress,
        shape: Shape,
    ) -> Result<Self, OperationError> {
        let limit = Self::MAX_BYTES.into();
        let (source_pitch, destination_pitch) = match shape {
            Shape::Linear { bytes } => {
                in_range("a copy in bytes", bytes.into(), limit)?;
                (0, 0)
            }
            Shape::Lines { width, count, source_pitch, destination_pitch } => {
                in_range("a line in bytes", width.into(), limit)?;
                in_range("a number of lines", count.into(), u32::MAX.into())?;
                for pitch in [source_pitch, destination_pitch] {
                    if pitch < width {
                        return Err(OperationError::Pitch { width, pitch });
                    }
                }
                (source_pitch, destination_pitch)
            }
        };
        source.spanning(shape.extent(source_pitch))?;
        destination.spanning(shape.extent(destination_pitch))?;
        Ok(Self { source, destination, shape, overlaps_previous: false, then: None })
    }

    /// The same copy, which may overlap the previous one: their order is undefined.
    #[must_use]
    pub const fn overlapping_previous(mut self) -> Self {
        self.overlaps_previous = true;
        self
    }

    /// The same copy, with a semaphore release at its end, in one launch (inferred from the
    /// header; on hardware a separate [`Operation::Signal`] was seen to work).
    #[must_use]
    pub const fn then(mut self, signal: Signal) -> Self {
        self.then = Some(signal);
        self
    }

    pub(super) fn launch(self) -> u32 {
        let order = if self.overlaps_previous {
            TransferType::Pipelined
        } else {
            TransferType::NonPipelined
        };
        let signal = match self.then {
            Some(signal) => signal.launch(),
            None => 0,
        };
        copy::launch_dma::DATA_TRANSFER_TYPE.put(order)
            | copy::launch_dma::SRC_MEMORY_LAYOUT.put(SourceLayout::Pitch)
            | copy::launch_dma::DST_MEMORY_LAYOUT.put(DestinationLayout::Pitch)
            | copy::launch_dma::MULTI_LINE_ENABLE.put(matches!(self.shape, Shape::Lines { .. }))
            | signal
    }
}

/// A fill of memory with one word by the copy engine.
///
/// Inferred from the class header, not yet seen on hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    destination: GpuAddress,
    value: u32,
    words: u32,
}

impl Fill {
    /// Maximum number of words in one fill.
    pub const MAX_WORDS: u32 = Transfer::MAX_BYTES / 4;

    /// Writes `value` `words` times, 1 to [`Fill::MAX_WORDS`], at `destination`, a multiple of 4.
    pub fn new(destination: GpuAddress, value: u32, words: u32) -> Result<Self, OperationError> {
        let count = in_range("a fill in words", words.into(), Self::MAX_WORDS.into())?;
        destination.aligned(4)?.spanning(count * 4)?;
        Ok(Self { destination, value, words })
    }

    pub(super) fn components() -> u32 {
        copy::remap::DST_X.put(RemapSource::ConstA)
            | copy::remap::COMPONENT_SIZE.put(ComponentSize::Four)
    }

    pub(super) fn launch() -> u32 {
        copy::launch_dma::DATA_TRANSFER_TYPE.put(TransferType::NonPipelined)
            | copy::launch_dma::SRC_MEMORY_LAYOUT.put(SourceLayout::Pitch)
            | copy::launch_dma::DST_MEMORY_LAYOUT.put(DestinationLayout::Pitch)
            | copy::launch_dma::REMAP_ENABLE.put(true)
    }
}

/// One command of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Binds an engine's class to its subchannel.
    Bind(Engine),
    /// Waits on a semaphore.
    Acquire(Acquire),
    /// Releases a semaphore.
    Release(Release),
    /// Raises an interrupt that wakes waiters.
    NonStallInterrupt,
    /// Waits for the most recently used engine.
    WaitForIdle(WfiScope),
    /// Orders writes.
    MemoryBarrier(MembarType),
    /// Invalidates or flushes L2.
    L2(L2Operation),
    /// Stores a value in the USERD page.
    SetReference(u32),
    /// Places local and shared memory.
    SetWindows(Windows),
    /// Backs local memory.
    SetLocalMemory(LocalMemory),
    /// Invalidates shader caches.
    InvalidateShaderCaches(CacheInvalidate),
    /// Launches a kernel.
    Launch(QmdAddress),
    /// Writes words from the stream.
    Upload(Upload),
    /// Copies memory.
    Transfer(Transfer),
    /// Fills memory.
    Fill(Fill),
    /// Releases a semaphore from the copy engine.
    Signal(Signal),
}

impl Operation {
    /// Appends the operation's words to `out`.
    pub fn encode(&self, out: &mut Vec<u32>) {
        match self {
            Self::Bind(engine) => {
                let data = [set_object::NVCLASS.put(engine.class() as u32)];
                match engine {
                    Engine::Compute => {
                        incrementing(out, host::SET_OBJECT.on::<class::Compute>(), &data);
                    }
                    Engine::Copy => {
                        incrementing(out, host::SET_OBJECT.on::<class::Copy>(), &data);
                    }
                }
            }
            Self::Acquire(acquire) => {
                semaphore(out, acquire.at, acquire.payload, acquire.execute());
            }
            Self::Release(release) => {
                semaphore(out, release.at, release.payload, release.execute());
            }
            Self::NonStallInterrupt => incrementing(out, host::NON_STALL_INTERRUPT, &[0]),
            Self::WaitForIdle(scope) => {
                immediate(out, host::WFI, wfi::SCOPE.put(*scope));
            }
            Self::MemoryBarrier(reach) => {
                let reach = mem_op_c::MEMBAR_TYPE.put(*reach);
                memory_operation(out, reach, MemOp::Membar);
            }
            Self::L2(operation) => memory_operation(out, 0, operation.operation()),
            Self::SetReference(value) => incrementing(out, host::SET_REFERENCE, &[*value]),
            Self::SetWindows(Windows { local, shared }) => {
                let local = [local.upper(), local.lower()];
                incrementing(out, compute::SET_SHADER_LOCAL_MEMORY_WINDOW_A, &local);
                let shared = [shared.upper(), shared.lower()];
                incrementing(out, compute::SET_SHADER_SHARED_MEMORY_WINDOW_A, &shared);
            }
            Self::SetLocalMemory(memory) => {
                let base = [memory.base().upper(), memory.base().lower()];
                incrementing(out, compute::SET_SHADER_LOCAL_MEMORY_A, &base);
                // At most 2^40 - 1 bytes by construction, so the upper word fits its 8 bits.
                let size = [
                    compute::non_throttled_a::SIZE_UPPER.put((memory.per_tpc() >> 32) as u32),
                    memory.per_tpc() as u32,
                    compute::non_throttled_c::MAX_SM_COUNT.put(LocalMemory::MAX_SMS),
                ];
                incrementing(out, compute::SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A, &size);
            }
            Self::InvalidateShaderCaches(caches) => {
                let method = if caches.wait {
                    compute::INVALIDATE_SHADER_CACHES
                } else {
                    compute::INVALIDATE_SHADER_CACHES_NO_WFI
                };
                incrementing(out, method, &[caches.word()]);
            }
            Self::Launch(qmd) => {
                incrementing(out, compute::SEND_PCAS_A, &[qmd.shifted()]);
                incrementing(out, compute::SEND_SIGNALING_PCAS2_B, &[launch()]);
            }
            Self::Upload(Upload { destination, words }) => {
                let bytes = words.len() as u32 * 4;
                let shape = [bytes, 1, destination.upper(), destination.lower()];
                incrementing(out, compute::LINE_LENGTH_IN, &shape);
                incrementing(out, compute::LAUNCH_DMA, &[Upload::launch()]);
                non_incrementing(out, compute::LOAD_INLINE_DATA, words);
            }
            Self::Transfer(transfer) => {
                let Transfer { source, destination, .. } = transfer;
                let ends =
                    [source.upper(), source.lower(), destination.upper(), destination.lower()];
                incrementing(out, copy::OFFSET_IN_UPPER, &ends);
                match transfer.shape {
                    Shape::Linear { bytes } => {
                        incrementing(out, copy::LINE_LENGTH_IN, &[bytes]);
                    }
                    Shape::Lines { width, count, source_pitch, destination_pitch } => {
                        let lines = [source_pitch, destination_pitch, width, count];
                        incrementing(out, copy::PITCH_IN, &lines);
                    }
                }
                if let Some(signal) = transfer.then {
                    signal.encode(out);
                }
                incrementing(out, copy::LAUNCH_DMA, &[transfer.launch()]);
            }
            Self::Fill(Fill { destination, value, words }) => {
                let end = [destination.upper(), destination.lower()];
                incrementing(out, copy::OFFSET_OUT_UPPER, &end);
                incrementing(out, copy::SET_REMAP_CONST_A, &[*value]);
                incrementing(out, copy::SET_REMAP_COMPONENTS, &[Fill::components()]);
                incrementing(out, copy::LINE_LENGTH_IN, &[*words]);
                incrementing(out, copy::LAUNCH_DMA, &[Fill::launch()]);
            }
            Self::Signal(signal) => {
                signal.encode(out);
                incrementing(out, copy::LAUNCH_DMA, &[signal.launch()]);
            }
        }
    }
}

/// Launch action on the QMD: fetch it and run it (seen on hardware).
pub(super) fn launch() -> u32 {
    send_signaling_pcas2_b::PCAS_ACTION.put(PcasAction::PrefetchSchedule)
}

fn semaphore(out: &mut Vec<u32>, at: GpuAddress, payload: Payload, execute: u32) {
    let [low, high] = payload.words();
    incrementing(out, host::SEM_ADDR_LO, &[at.lower(), at.upper(), low, high, execute]);
}

fn memory_operation(out: &mut Vec<u32>, c: u32, operation: MemOp) {
    let d = mem_op_d::OPERATION.put(operation);
    incrementing(out, host::MEM_OP_A, &[0, 0, c, d]);
}

fn in_range(what: &'static str, value: u64, limit: u64) -> Result<u64, OperationError> {
    if (1..=limit).contains(&value) {
        Ok(value)
    } else {
        Err(OperationError::Size { what, value, limit })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(engine) => write!(f, "bind {engine:?}"),
            Self::Acquire(Acquire { at, payload, condition, switches_tsg }) => {
                write!(f, "acquire {at} {condition:?} {payload}")?;
                f.write_str(if *switches_tsg { ", others may run" } else { "" })
            }
            Self::Release(Release { at, payload, waits_for_idle, timestamp }) => {
                write!(f, "release {at} = {payload}")?;
                f.write_str(if *waits_for_idle { " when idle" } else { " at once" })?;
                f.write_str(if *timestamp { ", timestamp" } else { "" })
            }
            Self::NonStallInterrupt => f.write_str("interrupt"),
            Self::WaitForIdle(scope) => write!(f, "wait for idle, {scope:?}"),
            Self::MemoryBarrier(reach) => write!(f, "memory barrier, {reach:?}"),
            Self::L2(operation) => write!(f, "L2 {operation:?}"),
            Self::SetReference(value) => write!(f, "reference = {value:#x}"),
            Self::SetWindows(Windows { local, shared }) => {
                write!(f, "windows local {local} shared {shared}")
            }
            Self::SetLocalMemory(memory) => {
                write!(f, "local memory {} with {:#x} bytes a TPC", memory.base(), memory.per_tpc())
            }
            Self::InvalidateShaderCaches(caches) => {
                f.write_str("invalidate")?;
                f.write_str(if caches.instruction { " instruction" } else { "" })?;
                f.write_str(if caches.data { " data" } else { "" })?;
                f.write_str(if caches.constant { " constant" } else { "" })?;
                f.write_str(if caches.wait { " when idle" } else { " at once" })
            }
            Self::Launch(qmd) => write!(f, "launch {qmd}"),
            Self::Upload(Upload { destination, words }) => {
                write!(f, "upload {} words to {destination}", words.len())
            }
            Self::Transfer(transfer) => {
                let Transfer { source, destination, shape, overlaps_previous, then } = transfer;
                write!(f, "copy {source} to {destination}, ")?;
                match shape {
                    Shape::Linear { bytes } => write!(f, "{bytes} bytes")?,
                    Shape::Lines { width, count, source_pitch, destination_pitch } => write!(
                        f,
                        "{count} lines of {width} bytes, pitch {source_pitch} to {destination_pitch}"
                    )?,
                }
                f.write_str(if *overlaps_previous { ", pipelined" } else { "" })?;
                then.iter().try_for_each(|signal| write!(f, ", then {signal}"))
            }
            Self::Fill(Fill { destination, value, words }) => {
                write!(f, "fill {words} words at {destination} with {value:#010x}")
            }
            Self::Signal(signal) => signal.fmt(f),
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "signal {} = {}", self.at, self.payload)?;
        f.write_str(if self.timestamp { ", timestamp" } else { "" })?;
        f.write_str(if self.interrupts { ", interrupt" } else { "" })
    }
}
