//! Interface of the GPU: its configuration, the channels that the driver opens, and the traits through
//! which the driver's interrupt handlers and the engine for shader code are attached.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::latency::Latency;
use super::qmd::Launch;
use crate::config::{Checks, Config, Injection};
use crate::finding::{Fault, Reporter, Rule, SmFault, Stderr};
use crate::memory::DmaBuf;
use crate::mmu::{Access, Mmu, MmuFault, Piece};
use crate::quirks::Quirks;
use crate::trace::{Trace, Work};

/// SMs with power: those of an Orin AGX 64 GB in its 30 W mode.
pub const SMS: u32 = 8;

/// How a GPU behaves.
#[derive(Clone)]
pub struct GpuConfig {
    /// Decides everything that hardware leaves open.
    pub seed: u64,
    /// How long a doorbell may be held back for others to overtake it, when there are several
    /// channels and the program does not block ([`Gpu::hurry`]). Runs are exact repetitions when
    /// doorbells that belong together come within it, when channels are opened and closed at rest,
    /// and when the program does not read the clock while the GPU works.
    pub hold: Duration,
    /// How long everything may wait on semaphores before that is called a deadlock.
    pub deadlock_timeout: Duration,
    pub trace: Trace,
    pub reporter: Arc<dyn Reporter>,
    pub injection: Arc<Injection>,
    /// Directory that gets a bundle of every launch that fails.
    pub bundles: Option<PathBuf>,
    /// What shader code is checked for.
    pub checks: Checks,
    /// What takes how long.
    pub latency: Latency,
    /// SMs that share a kernel's blocks.
    pub sms: u32,
    /// Whether a desktop wants the compute engine too.
    pub desktop: bool,
    /// What fails.
    pub quirks: Quirks,
}

impl GpuConfig {
    /// A GPU as the environment asks for it; failures and records are shared with the driver.
    pub fn new(config: &Config, trace: Trace, injection: Arc<Injection>) -> Self {
        Self {
            seed: config.seed,
            hold: Duration::from_micros(500),
            deadlock_timeout: Duration::from_secs(60),
            trace,
            reporter: Arc::new(Stderr::new(config.lint.clone(), config.known.clone())),
            injection,
            bundles: config.bundles.clone(),
            checks: config.checks,
            latency: Latency::default(),
            sms: SMS,
            desktop: config.desktop,
            quirks: config.quirks,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TsgId(pub(super) u32);

/// A channel as it is when its ring is set up.
#[derive(Clone, Debug)]
pub struct ChannelSetup {
    pub id: u16,
    /// What its doorbell is rung with.
    pub token: u32,
    pub tsg: TsgId,
    pub veid: u32,
    pub ring: Arc<DmaBuf>,
    /// Entries of the ring, a power of two.
    pub entries: u32,
    pub userd: Arc<DmaBuf>,
    pub mmu: Arc<Mmu>,
    /// Whether the program itself moves GP_PUT: the driver does not see such a channel's progress.
    pub usermode: bool,
    /// Milliseconds that switches of the compute engine may wait for the channel.
    pub switch_limit_ms: u32,
}

/// Why a channel cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// There is one of this id or token.
    #[error("channel {id} or token {token:#x} is in use")]
    InUse { id: u16, token: u32 },
    /// The TSG does not exist or has been stopped.
    #[error("{tsg:?} does not exist or has been stopped")]
    NoTsg { tsg: TsgId },
    /// The ring does not hold a power of two of entries, or USERD is too small.
    #[error("a ring of {entries} entries in {ring} bytes, with USERD in {userd} bytes")]
    Sizes { entries: u32, ring: u64, userd: u64 },
}

/// A channel that waits for a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    pub channel: u16,
    pub address: u64,
    /// What it is compared with.
    pub payload: u64,
}

/// What the driver does when the GPU interrupts. Called from the GPU's thread without locks held,
/// so it may call the [`Gpu`] again.
pub trait Events: Send + Sync {
    /// A channel failed: its TSG has been stopped for good. The driver writes the notifiers and
    /// wakes waiters.
    fn channel_error(&self, tsg: TsgId, code: u32, detail: &Fault);

    /// Something asked for waiters to be woken.
    fn non_stall_interrupt(&self);
}

/// Bytes of constant banks that code can read: the bank, and a range in it.
pub type ConstantReads = Vec<(u8, Range<u32>)>;

/// Memory as shaders see it, through the channel's page tables and caches.
pub trait GpuMemory: Sync {
    /// Reads bytes. [`MmuFault`] at the first address that cannot be read.
    fn read(&self, va: u64, out: &mut [u8]) -> Result<(), MmuFault>;

    /// Writes bytes. [`MmuFault`] at the first address that cannot be written.
    fn write(&self, va: u64, data: &[u8]) -> Result<(), MmuFault>;

    /// The buffers behind a range, for engines that go to them directly; such an engine says what
    /// it touched with [`GpuMemory::touched`]. Valid until the launch ends. [`MmuFault`] at the
    /// first address that cannot be accessed so.
    fn resolve(&self, va: u64, bytes: u64, access: Access) -> Result<Vec<Piece>, MmuFault>;

    /// The first address within `bytes` from `va` on that is mapped, in whatever way.
    fn next_mapped(&self, va: u64, bytes: u64) -> Option<u64>;

    /// What shaders see in place of a piece's memory: L1 may hold it otherwise, on a machine on which
    /// invalidates get lost.
    fn stale(&self, _piece: &Piece) -> Option<Vec<u8>> {
        None
    }

    /// Says that a range was accessed in the buffers themselves: the checks of [`GpuMemory::read`]
    /// and [`GpuMemory::write`] are made up for. Before the access for reads, after it for writes.
    /// Costs about a nanosecond a byte, so each range once.
    fn touched(&self, va: u64, bytes: u64, access: Access);

    /// Says what the launch's code can read of constant banks: bank, and bytes in it. Until it is said, that is all
    /// of every bank.
    fn reads_constants(&self, _reads: ConstantReads) {}

    /// Tells of something that hardware would not notice.
    fn found(&self, _rule: Rule, _message: String) {}
}

/// What runs shader code.
pub trait ComputeEngine: Send {
    /// Runs one kernel to its end, and tells what it did. [`SmFault`] when it is stopped.
    fn launch(&mut self, launch: &Launch, memory: &dyn GpuMemory) -> Result<Work, SmFault>;
}
