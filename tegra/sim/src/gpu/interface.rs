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

/// Number of powered SMs: those of an Orin AGX 64 GB in its 30 W mode.
pub const SMS: u32 = 8;

/// Configuration of a GPU.
#[derive(Clone)]
pub struct GpuConfig {
    /// Seed for everything that hardware leaves undefined.
    pub seed: u64,
    /// Longest delay of a doorbell for others to overtake it, if there are several channels and the
    /// program does not block ([`Gpu::hurry`](super::Gpu::hurry)). Runs are reproducible if
    /// doorbells that belong together are within this time, channels are opened and closed when
    /// idle, and the program does not read the clock while the GPU works.
    pub hold: Duration,
    /// Time for which everything may wait for semaphores before a deadlock is reported.
    pub deadlock_timeout: Duration,
    pub trace: Trace,
    pub reporter: Arc<dyn Reporter>,
    pub injection: Arc<Injection>,
    /// Directory for bundles of failed launches.
    pub bundles: Option<PathBuf>,
    /// Checks of shader code.
    pub checks: Checks,
    /// Times of the virtual clock.
    pub latency: Latency,
    /// Number of SMs.
    pub sms: u32,
    /// Simulates a desktop that uses the compute engine.
    pub desktop: bool,
    /// Defects of the machine.
    pub quirks: Quirks,
}

impl GpuConfig {
    /// Derives the configuration of a GPU; it shares injection and trace with the driver.
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

/// Arguments of opening a channel.
#[derive(Clone, Debug)]
pub struct ChannelSetup {
    pub id: u16,
    /// Doorbell token.
    pub token: u32,
    pub tsg: TsgId,
    pub veid: u32,
    pub ring: Arc<DmaBuf>,
    /// Number of ring entries, a power of two.
    pub entries: u32,
    pub userd: Arc<DmaBuf>,
    pub mmu: Arc<Mmu>,
    /// The program itself moves GP_PUT, so the driver does not see the channel's progress.
    pub usermode: bool,
    /// Milliseconds that compute engine switches may wait for the channel.
    pub switch_limit_ms: u32,
}

/// Error of opening a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// A channel with this id or token exists.
    #[error("channel {id} or token {token:#x} is in use")]
    InUse { id: u16, token: u32 },
    /// The TSG does not exist or has been stopped.
    #[error("{tsg:?} does not exist or has been stopped")]
    NoTsg { tsg: TsgId },
    /// The number of ring entries is not a power of two, or USERD is too small.
    #[error("a ring of {entries} entries in {ring} bytes, with USERD in {userd} bytes")]
    Sizes { entries: u32, ring: u64, userd: u64 },
}

/// A channel that waits for a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    pub channel: u16,
    pub address: u64,
    /// Value that it is compared with.
    pub payload: u64,
}

/// Interrupt handlers of the driver. Called from the GPU's thread without locks held, so they may
/// call the [`Gpu`](super::Gpu).
pub trait Events: Send + Sync {
    /// A channel failed and its TSG was stopped permanently. The driver writes notifiers and wakes
    /// waiters.
    fn channel_error(&self, tsg: TsgId, code: u32, detail: &Fault);

    /// A unit requested that waiters are woken.
    fn non_stall_interrupt(&self);
}

/// Ranges of constant banks that code can read: bank, bytes.
pub type ConstantReads = Vec<(u8, Range<u32>)>;

/// Memory as seen by shaders, through the channel's page tables and caches.
pub trait GpuMemory: Sync {
    /// Reads bytes. [`MmuFault`] at the first address that is not readable.
    fn read(&self, va: u64, out: &mut [u8]) -> Result<(), MmuFault>;

    /// Writes bytes. [`MmuFault`] at the first address that is not writable.
    fn write(&self, va: u64, data: &[u8]) -> Result<(), MmuFault>;

    /// Returns the buffers behind a range, for engines that access them directly and report the
    /// accesses with [`GpuMemory::touched`]. Valid until the launch ends. [`MmuFault`] at the first
    /// address that does not permit the access.
    fn resolve(&self, va: u64, bytes: u64, access: Access) -> Result<Vec<Piece>, MmuFault>;

    /// Returns the first mapped address within `bytes` from `va` on, with any rights.
    fn next_mapped(&self, va: u64, bytes: u64) -> Option<u64>;

    /// Returns the stale contents that shaders see instead of a piece's memory, on a machine on
    /// which L1 invalidates get lost.
    fn stale(&self, _piece: &Piece) -> Option<Vec<u8>> {
        None
    }

    /// Reports a direct access to a range, which performs the checks of [`GpuMemory::read`] and
    /// [`GpuMemory::write`]. Call it before reads and after writes. It costs about a nanosecond a
    /// byte, so report each range once.
    fn touched(&self, va: u64, bytes: u64, access: Access);

    /// Reports the ranges of constant banks that the code can read. Until then, all of every bank
    /// counts.
    fn reads_constants(&self, _reads: ConstantReads) {}

    /// Reports a finding that hardware would not notice.
    fn found(&self, _rule: Rule, _message: String) {}
}

/// Executes shader code.
pub trait ComputeEngine: Send {
    /// Runs a kernel to completion and returns its work. [`SmFault`] if it is stopped.
    fn launch(&mut self, launch: &Launch, memory: &dyn GpuMemory) -> Result<Work, SmFault>;
}
