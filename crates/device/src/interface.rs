//! Device interface: the traits and types between an engine and its devices. The crate's
//! documentation has the rules.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::modes::{Mode, Note};
use crate::tune::{Case, Choice, Choices, DeviceKey, Space};
use plan::{Buffer, BufferId, Cost, Fusions, Plan};

/// Version of the arithmetic of `docs/numerics.md`. A new version may change every logit.
pub const NUMERICS: u32 = 1;

/// Steps of a plan whose tokens the ring stores; also the most steps of one submission.
pub const RING_STEPS: u32 = 64;

/// Most submissions of an instance in flight, over all plans.
pub const MAX_SUBMISSIONS: usize = 8;

/// Most mailbox writes that can wait for a plan's next submission while it is in flight. Their
/// total size is at most that of the mailboxes.
pub const STAGED_WRITES: usize = 16;

/// Positions of a KV cache block.
pub const BLOCK: usize = 128;

/// Unit of reading, writing and copying states. States that store every position are split into
/// blocks of [`BLOCK`] positions, enough to fill all slots; the caller assigns blocks to slots with
/// [`Instance::map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// KV cache block with this number.
    Block(u32),
    /// Recurrent snapshot of this slot: its rings and other states that are not split into blocks.
    Recurrent(u32),
}

/// Cancels an instance: its running step ends after the current kernel, and the instance is lost.
#[derive(Clone, Debug, Default)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Cancels the instance.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True after [`Self::cancel`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Short name for `--backend`, one of [`NAMES`](crate::NAMES).
    pub name: &'static str,
    /// Description for users: processor, instruction set.
    pub description: String,
    /// Number of worker threads; 0 if not applicable.
    pub threads: usize,
}

/// Requirements of an instance: every plan that it will prepare, already fused for the device.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Weights, as stored in the model file.
    pub weights: &'a [Buffer],
    /// Persistent state, by logical shape.
    pub states: &'a [Buffer],
    pub plans: &'a [Plan],
    /// Tuned choices for kernels; the default variant is used without one.
    pub choices: Option<&'a Choices>,
}

/// Memory of an instance, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Weights as packed by the device.
    pub weights: u64,
    pub state: u64,
    /// Scratch, mailboxes and outputs.
    pub activations: u64,
}

impl Footprint {
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.weights + self.state + self.activations
    }

    /// Checks that the total fits `have` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] with the calculation.
    pub fn fits(&self, have: u64) -> Result<()> {
        if self.total() <= have {
            return Ok(());
        }
        let Self { weights, state, activations } = self;
        Err(Error::OutOfMemory {
            what: format!("weights {weights} + KV cache {state} + activations {activations} bytes"),
            need: self.total(),
            have,
        })
    }
}

/// Scope of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One channel or instance.
    Instance,
    Device,
}

/// Error of the device interface. The source is the driver's error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Rejected before anything was allocated.
    #[error("{what}: needs {need} bytes, {have} are available")]
    OutOfMemory { what: String, need: u64, have: u64 },
    #[error("device lost ({scope:?}): {reason}")]
    Lost {
        scope: Scope,
        /// True if a new instance can be opened.
        rebuildable: bool,
        reason: String,
        #[source]
        source: Option<Source>,
    },
    #[error("{device} does not support {what}")]
    Unsupported { device: &'static str, what: String },
    /// The caller broke a rule of the interface.
    #[error("invalid request to the device: {0}")]
    Invalid(String),
    #[error("reading weight `{weight}`")]
    Weight {
        weight: String,
        #[source]
        source: Source,
    },
}

/// Result of a call of the device interface.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a driver or of a weight's source.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Stored bytes of a weight, readable from several threads at once.
pub trait WeightSource: Sync {
    /// Fills `buf` from byte `offset` of the tensor.
    ///
    /// # Errors
    ///
    /// The error of the underlying medium.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Source>;
}

/// A weight read by a function.
impl<F: Fn(u64, &mut [u8]) -> Result<(), Source> + Sync> WeightSource for F {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Source> {
        self(offset, buf)
    }
}

/// A weight in memory.
impl WeightSource for Vec<u8> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Source> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(buf.len())?))
            .ok_or_else(|| format!("bytes {offset}.. of a weight of {}", self.len()))?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

/// Elements for a mailbox. One-byte elements are written all at once.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    I32(&'a [i32]),
    F32(&'a [f32]),
    I8(&'a [i8]),
    U8(&'a [u8]),
    Bool(&'a [bool]),
}

/// Counters of an instance's use of the hardware; 0 if not applicable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Activity {
    pub launches: u64,
    /// Submissions to a hardware queue.
    pub submits: u64,
    pub doorbells: u64,
    /// Number of waits that slept, each one system call.
    pub sleeps: u64,
    /// Number of channel rebuilds after a fault.
    pub rebuilds: u64,
}

/// Duration of one part of an execution: a kernel launch, or a kernel call on the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Index of the plan's step.
    pub step: usize,
    /// Name in the model, such as `blk.3.attn_q`.
    pub label: String,
    /// Symbol of the kernel, or name of the kernel call.
    pub kernel: String,
    pub nanoseconds: u64,
}

/// Two executions of a plan: a normal one, and one with a timer between its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Parts in execution order.
    pub timings: Vec<Timing>,
    /// True if the parts were serialised for timing. Their sum then exceeds [`Profile::whole`].
    pub serialised: bool,
    /// Duration of the normal execution.
    pub whole: Duration,
}

/// A plan that an instance has prepared; valid for that instance only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prepared(pub u32);

/// Identifies submitted steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub prepared: Prepared,
    /// Number of the submission, from 1; submissions finish in order.
    pub sequence: u64,
    /// Steps of the plan that were submitted earlier.
    pub first: u64,
    pub steps: u32,
}

pub trait Device: Send + Sync {
    fn info(&self) -> Info;

    /// Version of the common arithmetic (`docs/numerics.md`): devices with the same version give
    /// the same bits. `None` for a device with its own arithmetic.
    fn numerics(&self) -> Option<u32> {
        Some(NUMERICS)
    }

    /// Fused steps that the device supports; plans for it are rewritten to use them.
    fn fusions(&self) -> Fusions;

    /// Returns whether rows without a slot cost nothing, so that a bucket may be much wider than
    /// needed.
    fn skips_padding(&self) -> bool {
        false
    }

    /// Memory traffic and operations of a plan fused for this device; weights count once per read.
    fn cost(&self, plan: &Plan) -> Cost {
        plan.cost()
    }

    /// Computes the memory of an instance without allocating it.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a step, type or shape that the device cannot run.
    fn footprint(&self, request: &Request<'_>) -> Result<Footprint>;

    /// Opens an instance and reserves all memory that it will use.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] before allocating, [`Error::Unsupported`].
    fn open(&self, request: &Request<'_>) -> Result<Box<dyn Instance>>;

    /// Free GPU memory in bytes, 0 if the driver does not report it; `None` for a device that uses
    /// this process's threads and memory.
    fn gpu_memory(&self) -> Option<u64> {
        None
    }

    /// Returns whether the device's memory is system memory, shared with other users.
    fn shares_memory(&self) -> bool {
        self.gpu_memory().is_none()
    }

    /// Tuning interface; `None` if nothing can be tuned.
    fn tunable(&self) -> Option<&dyn Tunable>;

    /// Proofs that this machine must pass before the device is used; `None` if none are needed.
    fn first_light(&self) -> Option<&dyn FirstLight> {
        None
    }
}

/// A device with tunable kernels.
pub trait Tunable {
    /// Hardware for which choices found on this machine are valid.
    fn key(&self) -> DeviceKey;

    /// Tunable cases of the request's plans, one entry per occurrence.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a step, type or shape that the device cannot run.
    fn cases(&self, request: &Request<'_>) -> Result<Vec<Case>>;

    /// Fused groups of tensor operations whose kernels can be tuned, each as a plan of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if no kernel can be generated for a group, with the reason.
    fn groups(&self, request: &Request<'_>) -> Result<BTreeMap<Case, Plan>> {
        let _ = request;
        Ok(BTreeMap::new())
    }

    /// Allowed values for a case; `None` if there are no such kernels.
    fn space(&self, case: &Case) -> Option<Space>;

    /// Compiles the machine code of a choice if it is not prebuilt, which takes seconds. `wanted`
    /// is called meanwhile; `false` cancels.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] with the compiler's message.
    fn compile(&self, case: &Case, choice: &Choice, wanted: &dyn Fn() -> bool) -> Result<()>;
}

/// Memory of one model on a device, and its prepared plans. All calls are made from one thread.
pub trait Instance: Send {
    /// Memory that is reserved.
    fn footprint(&self) -> Footprint;

    /// Bytes of machine code in GPU memory; `None` if code is part of the process.
    fn code(&self) -> Option<u64> {
        None
    }

    /// Counters of the hardware's use.
    fn activity(&self) -> Activity {
        Activity::default()
    }

    /// Current operating mode, for devices that have modes. Two faults of one step lower it.
    fn mode(&self) -> Option<Mode> {
        None
    }

    /// Writes a bundle for each future fault below the state directory; `tegra-sim replay` runs it.
    /// No effect on devices that cannot record faults.
    fn write_fault_bundles(&mut self, _state: &Path) {}

    /// Reads one weight from its source and packs it for the device. `progress` receives the number
    /// of source bytes read since its last call.
    ///
    /// # Errors
    ///
    /// [`Error::Weight`] if the source fails; [`Error::Invalid`] for a name not in the request, or
    /// while anything is in flight. A device that uploads weights once also rejects a second upload
    /// of a weight, and every upload after the first [`Instance::prepare`].
    fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()>;

    /// Number of KV cache blocks; 0 if each slot has its own positions, which are then part of
    /// [`Part::Recurrent`].
    fn blocks(&self) -> u32 {
        0
    }

    /// Sets the blocks of a slot, in position order; slots may share blocks. Rows at positions
    /// behind them write nothing and read zeroes. Initially each slot has its own blocks, slot 0
    /// the first ones.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a slot or block that does not exist, too many blocks, or while
    /// anything is in flight; [`Error::Unsupported`] if there are no [`Instance::blocks`].
    fn map(&mut self, slot: u32, blocks: &[u32]) -> Result<()> {
        let what = format!("blocks of slots ({} of {slot})", blocks.len());
        Err(Error::Unsupported { device: "this device", what })
    }

    /// Copies a part to another of the same kind.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a block or slot that does not exist, parts of different kinds, or
    /// while anything is in flight.
    fn copy_part(&mut self, from: Part, to: Part) -> Result<()>;

    /// Size of a part in bytes, over all states; may be 0. `None` if parts can be neither read nor
    /// written.
    fn part_bytes(&self, _part: Part) -> Option<usize> {
        None
    }

    /// Reads a part in this device's own format.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a block, slot or length that does not exist, or while anything is in
    /// flight; [`Error::Unsupported`] if there are no [`Instance::part_bytes`]; [`Error::Lost`].
    fn read_part(&mut self, part: Part, _out: &mut [u8]) -> Result<()> {
        let what = format!("reading slots ({part:?})");
        Err(Error::Unsupported { device: "this device", what })
    }

    /// Writes the output of [`Instance::read_part`], possibly from another instance with the same
    /// states.
    ///
    /// # Errors
    ///
    /// As for [`Instance::read_part`].
    fn write_part(&mut self, part: Part, _bytes: &[u8]) -> Result<()> {
        let what = format!("writing slots ({part:?})");
        Err(Error::Unsupported { device: "this device", what })
    }

    /// Prepares a plan of the request.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it was not part of the request or a weight is missing.
    fn prepare(&mut self, plan: &Plan) -> Result<Prepared>;

    /// Prepares a plan of the request with other choices, for measurements.
    ///
    /// # Errors
    ///
    /// As for [`Instance::prepare`]; [`Error::Unsupported`] if nothing can be chosen.
    fn prepare_as(&mut self, plan: &Plan, choices: &Choices) -> Result<Prepared>;

    /// Writes elements of a mailbox, from element `at`. Affects the plan's next submission, but
    /// none in flight.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if range or type do not match, or if too many writes are staged; see
    /// [`STAGED_WRITES`].
    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<()>;

    /// Ends the running step early from another thread, if the device can.
    fn canceller(&self) -> Option<Canceller> {
        None
    }

    /// Starts `steps` consecutive executions of the plan and returns immediately. More than one
    /// step requires a decode plan, in which each step writes the inputs of the next.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for 0 steps, more than [`RING_STEPS`], or while [`MAX_SUBMISSIONS`] are
    /// in flight; [`Error::Lost`].
    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket>;

    /// Waits until the submission, and all earlier ones, have finished.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if it never will; [`Error::Invalid`] for a ticket of another instance.
    fn wait(&mut self, ticket: Ticket) -> Result<()>;

    /// Executes the plan twice and waits: once normally, then with a timer between its parts. Both
    /// count as steps of the plan, but their tokens cannot be read.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] while anything is in flight, [`Error::Lost`].
    fn profile(&mut self, prepared: Prepared) -> Result<Profile>;

    /// Reads the tokens sampled by one step of a finished submission, one per row of logits.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the submission is in flight or has no such step, if [`RING_STEPS`]
    /// later steps of the plan have overwritten the tokens, or if `out` has the wrong length.
    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<()>;

    /// Reads `F32` elements of an output of the plan's latest step, from element `at`; zeroes
    /// before the first step.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if range or type do not match or the plan is in flight.
    fn read(&self, prepared: Prepared, output: BufferId, at: usize, out: &mut [f32]) -> Result<()>;
}

/// A device with bring-up steps.
pub trait FirstLight {
    /// Hardware and driver for which results are valid.
    fn key(&self) -> String;

    /// Runs the device's bring-up steps, except for [`crate::first_light::Stage::Model`]. Calls
    /// `note` before and after each. Returns the best mode that they allow, at most `wanted`, or
    /// `None` for a device without modes.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Lost`] with the step in its reason if no mode works without it; any error of
    /// `note`, immediately.
    fn prove(
        &self,
        wanted: Mode,
        note: &mut dyn FnMut(Note<'_>) -> Result<()>,
    ) -> Result<Option<Mode>>;

    /// The same device, opening instances in this mode.
    fn in_mode(&self, mode: Mode) -> Arc<dyn Device>;
}
