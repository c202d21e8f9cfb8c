//! Findings: faults that hardware raises, and mistakes that silicon lets pass.
//!
//! Every finding belongs to a [`Rule`] with a stable name. Owns the catalogue of rules; `policy`
//! chooses the action on a finding, `suppression` lists known findings, and `report` prints them.
//! [`crate::gpu`] and [`crate::driver`] detect violations.

mod policy;
mod report;
mod suppression;

use std::fmt;

pub use policy::{Action, Policy, PolicyError};
pub use report::{Collector, Reporter, Stderr};
pub use suppression::{SuppressionError, Suppressions, place};

use crate::mmu::MmuFault;

/// Severity of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Hardware raises a fault and the driver tears down the TSG.
    Fault,
    /// Hardware raises an interrupt that the driver only logs; the program is not notified.
    Silent,
    /// Hardware does not notice; the program works by luck.
    Lint,
    /// Not a mistake by itself.
    Note,
}

/// Declares the rules: `Variant "name" Severity: why;`.
macro_rules! rules {
    ($($Variant:ident $name:literal $severity:ident $why:literal;)*) => {
        /// A rule that a program can break.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rule { $(#[doc = $why] $Variant,)* }

        pub const ALL: &[Rule] = &[$(Rule::$Variant,)*];

        impl Rule {
            /// Returns the stable name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Variant => $name,)* }
            }

            /// Returns the reason for the rule, in one line.
            pub const fn why(self) -> &'static str {
                match self { $(Self::$Variant => $why,)* }
            }

            /// Returns the severity.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$Variant => Severity::$severity,)* }
            }
        }
    };
}

rules! {
    MmuFault "mmu-fault" Fault
        "An address that no mapping covers, was unmapped, or is written though read-only.";
    PbdmaEntry "pbdma-entry" Fault
        "A push-buffer word that is no header: reserved opcode, reserved bit, address overflow.";
    PbdmaMethod "pbdma-method" Fault
        "A host method that does not exist, is privileged, or takes no such data.";
    PbdmaDevice "pbdma-device" Fault "A method on subchannels 5 to 7, which are for software.";
    PushbufferCrc "pushbuffer-crc" Fault "A CRC control entry that the stream does not have.";
    IllegalClass "illegal-class" Fault "A method on a subchannel to which its class was not bound.";
    IllegalMethod "illegal-method" Fault
        "A method that the compute class does not have or the driver does not accept.";
    CopyMethod "copy-method" Fault "A method that the copy class does not have.";
    CopyPrivileged "copy-privileged" Fault "A copy by physical address or of protected memory.";
    ReservedBits "reserved-bits" Fault
        "Data with reserved bits set, or a number that stands for nothing.";
    SkedException "sked-exception" Fault "A launch that the scheduler of compute work refuses.";
    SmException "sm-exception" Fault "A shader did what the SM refuses.";
    ChannelTimeout "channel-timeout" Fault "The channel did not yield within its limit.";
    ForceReset "force-reset" Fault "The channel was reset on request.";
    GpPutRange "gp-put-range" Silent
        "GP_PUT beyond the ring: the channel stalls, nothing tells the program.";
    GpEntry "gp-entry" Silent
        "A ring entry that is neither a fetch nor a control: it is discarded.";
    SemaphoreMisuse "semaphore-misuse" Silent
        "A semaphore that is misaligned or a reduction that does not exist; what follows is unknown.";
    RingRewritten "ring-entry-rewritten" Lint
        "A ring entry changed between doorbell and fetch: the GPU may have read either.";
    BodyRewritten "body-rewritten" Lint
        "A stream changed while in flight: the GPU prefetches, so it may have run either.";
    PatchedWithoutSync "patched-without-sync" Lint
        "A stream patched by the GPU without SYNC on its entry: the old words may be prefetched.";
    QmdRewritten "qmd-rewritten" Lint
        "A QMD changed before its launch completed: the GPU reads and writes it until then.";
    ConstantsRewritten "constant-bank-rewritten" Lint
        "A constant that a launch reads changed before the launch completed.";
    ConstantsOversized "constant-bank-oversized" Note
        "A QMD declares a constant bank beyond what its code reads, and that part changes.";
    BufferReused "buffer-reused" Lint "The CPU changed the source of a copy that had not run yet.";
    UninitialisedRead "uninitialised-read" Lint "The GPU reads memory that nobody has written.";
    StaleL2 "stale-l2" Lint
        "Read through a cacheable mapping after the CPU changed it, without L2_SYSMEM_INVALIDATE.";
    StaleConstantCache "stale-constant-cache" Lint
        "A launch reads constants that changed since they were cached, without invalidating them.";
    StaleInstructionCache "stale-instruction-cache" Lint
        "A launch runs code that changed since it was cached, without invalidating it.";
    StaleDataCache "stale-data-cache" Lint
        "A shader reads data that changed since L1 cached them, without invalidating it.";
    ReleaseBeforeIdle "release-before-idle" Lint
        "A release without WFI behind work that nothing has waited for: it says too much.";
    ReleaseWithoutFlush "release-without-flush" Lint
        "The copy engine releases without a flush: its writes may be seen after the semaphore.";
    UnorderedAccess "unordered-access" Lint
        "Two channels touch the same memory, one writes, and no semaphore orders them.";
    CopyOverlap "copy-overlap" Lint
        "Source and destination of a copy overlap: the order of its bytes is undefined.";
    MappingInWindow "mapping-in-window" Lint
        "Memory is mapped where a window lies: shaders never reach it.";
    QmdReserved "qmd-reserved" Lint
        "A QMD sets bits that are reserved or that only hardware writes.";
    UninitialisedUse "uninitialised-use" Lint
        "A value that nobody gave reached an address, a branch or a store of a shader.";
    SharedRace "shared-race" Lint
        "Warps of a block touched the same shared memory with no barrier between.";
    RingBeyondHost "ring-beyond-host" Lint
        "The driver maps a ring at 2^40 or above, where Host cannot fetch: a real machine froze.";
    DriverBeyondHost "driver-range-beyond-host" Note
        "The driver's own range reaches beyond 2^40: a real one warns at each context.";
    Deadlock "deadlock" Lint "A channel waits for a semaphore that nothing releases.";
    DoorbellMissing "doorbell-missing" Lint "GP_PUT moved, but no doorbell told the GPU.";
    NotModelled "not-modelled" Lint "Legal on hardware, but the simulator does not do it.";
}

impl Rule {
    pub fn from_name(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|rule| rule.name() == name)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub rule: Rule,
    /// Channel, if any.
    pub channel: Option<u16>,
    /// GPU time in nanoseconds.
    pub time: u64,
    /// Description with addresses and values.
    pub message: String,
    /// Decoded methods before it, one per line.
    pub listing: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tegra-sim: {}", self.rule)?;
        if let Some(channel) = self.channel {
            write!(f, " on channel {channel}")?;
        }
        write!(f, " at {} ns: {}\n  {}", self.time, self.message, self.rule.why())?;
        self.listing.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// Fault that stops a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SmFault {
    /// An access that the page tables refuse.
    Mmu(MmuFault),
    Exception {
        /// Name of the violated rule in the engine.
        name: &'static str,
        sm: u32,
        /// `global_esr`.
        global_esr: u32,
        /// `warp_esr`, low 16 bits.
        warp_esr: u32,
        warp_pc: u64,
        message: String,
    },
}

/// A fault as reported to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Finding whose message begins with the driver's log line.
    pub finding: Finding,
    /// Error notifier code (`nvgpu.h`).
    pub code: u32,
    /// SM error state, for a fault of a shader.
    pub sm: Option<SmFault>,
}

/// Error notifier codes. Source: `nvgpu.h` of r36.4.
pub mod notifier {
    /// Channel did not yield.
    pub const IDLE_TIMEOUT: u32 = 8;
    /// Exception of the graphics engine, or class error.
    pub const GR_EXCEPTION: u32 = 13;
    /// An acquire timed out.
    pub const ACQUIRE_TIMEOUT: u32 = 24;
    /// A method that the compute class does not have.
    pub const ILLEGAL_NOTIFY: u32 = 25;
    pub const MMU_FAULT: u32 = 31;
    /// A PBDMA or copy-engine error.
    pub const PBDMA_ERROR: u32 = 32;
    /// The channel was reset on request.
    pub const RESET_REQUESTED: u32 = 43;
    /// CRC mismatch.
    pub const CRC_MISMATCH: u32 = 80;
}
