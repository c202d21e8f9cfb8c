//! The seam: what a device does with a plan.
//!
//! A [`Device`] says what it is and which fused steps it knows, and opens an [`Instance`]: the
//! memory of one loaded model. Weights arrive one tensor at a time, plans are prepared once, then
//! submitted again and again; a [`Ticket`] stands for steps under way. What changes from token to
//! token lives in the plan's mailboxes, in device memory; sampled tokens come back through a ring.
//! The device owns KV storage; who sits in which slot, and which blocks are whose, is the engine's business. What may be tuned a
//! device declares as [`Space`]s ([`Tunable`]); what was chosen it is told in the [`Request`].
//!
//! Rules that every device keeps (`ledger`) and is held to (`contract`):
//!
//! - Submissions, of whatever plans, run and finish in the order in which they were made. At most
//!   [`MAX_SUBMISSIONS`] are under way at once.
//! - A submission is under way until it, or a later one, has been waited for, finished or not: what
//!   these rules refuse must not depend on how fast a device is. A plan is under way while one of its
//!   submissions is.
//! - Mailboxes are written, outputs are read, each with the type that the plan gives it. Writes and
//!   submissions of a plan take effect in the order of the calls: what is written while the plan is
//!   under way is seen by its next submission and by none before. [`STAGED_WRITES`] such writes are
//!   possible for one submission.
//! - Outputs are read while their plan is not under way.
//! - A row of logits that is not finite gives [`plan::sample::NOT_FINITE`] for a token, -1, in the ring and
//!   as the next step's input, which is a row of zeroes then. The rows beside it are as without it.
//! - A step's tokens are read once its submission has been waited for, and until [`RING_STEPS`] later
//!   steps of its plan have been submitted.
//! - Weights are uploaded while nothing is under way.
//! - What has been lost stays lost: every later call that needs the device says so again.

mod axes;
pub mod bring_up;
#[cfg(test)]
mod contract;
pub mod cpu;
pub mod first_light;
pub mod gpu;
mod kernels;
mod ledger;
mod named;
mod plan_buffers;
mod precision;
pub mod reference;
mod slots;
pub mod tune;
mod uses;

pub use kernels::{Kernels, remembered};
pub use named::{AUTO, NAMES, behind, for_loops, named};
pub use orind_kernels::kept::keep_in as keep_compiled;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::first_light::{FirstLight, Mode};
use crate::tune::{Case, Choice, Choices, DeviceKey, Space};
use plan::{Buffer, BufferId, Cost, Fusions, Plan};

/// Version of the arithmetic of `docs/numerics.md`: with another one every logit may be another.
pub const NUMERICS: u32 = 1;

/// Steps of a plan whose tokens its ring keeps, and most steps of one submission.
pub const RING_STEPS: u32 = 64;

/// Submissions of an instance that can be under way at once, all plans together.
pub const MAX_SUBMISSIONS: usize = 8;

/// Writes to a plan's mailboxes that can wait for its next submission while it is under way. Together
/// they are no larger than its mailboxes.
pub const STAGED_WRITES: usize = 16;

/// Positions of a block.
pub const BLOCK: usize = 128;

/// What of the states is read, written and copied at once. States that keep every position have blocks of [`BLOCK`]
/// positions, as many as all slots together can fill; which of them are a slot's is for the caller to say:
/// [`Instance::map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The block of that number.
    Block(u32),
    /// Of the other states, which are rings or do not lie by positions: what that slot has.
    Rest(u32),
}

/// Bytes of the machine's memory (or the process's cgroup's) that an instance may still take, where the system tells:
/// what is available, without what other instances have reserved and not yet touched.
#[must_use]
pub fn available() -> Option<u64> {
    telemetry::memory::available().map(|bytes| bytes.saturating_sub(cpu::promised()))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Short name, as in `--backend`: one of [`NAMES`].
    pub name: &'static str,
    /// One line for people: processor, instruction set.
    pub description: String,
    /// Worker threads; 0 where the term does not apply.
    pub threads: usize,
}

/// What an instance will need: every plan it will be asked to prepare, already fused for it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Weights, as stored in the model file.
    pub weights: &'a [Buffer],
    /// Persistent state, by logical shape.
    pub states: &'a [Buffer],
    pub plans: &'a [Plan],
    /// How kernels are to be run, where something better than the heuristic is known.
    pub choices: Option<&'a Choices>,
}

/// Memory of an instance, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Weights as the device packs them.
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

    /// Refuses what `have` bytes do not hold.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the arithmetic.
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

/// How much of the device a failure took with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One channel or instance.
    Instance,
    Device,
}

/// What can go wrong at the seam. Driver detail hangs below as the source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Refused before anything was allocated.
    #[error("{what}: needs {need} bytes, {have} are available")]
    OutOfMemory { what: String, need: u64, have: u64 },
    #[error("device lost ({scope:?}): {reason}")]
    Lost {
        scope: Scope,
        /// True when opening a new instance can succeed.
        rebuildable: bool,
        reason: String,
        #[source]
        source: Option<Source>,
    },
    #[error("{device} does not support {what}")]
    Unsupported { device: &'static str, what: String },
    /// The caller broke a rule of the seam.
    #[error("invalid request to the device: {0}")]
    Invalid(String),
    #[error("reading weight `{weight}`")]
    Weight {
        weight: String,
        #[source]
        source: Source,
    },
}

/// What calls of the seam give.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of whoever is behind a device: a driver, the source of a weight.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// The stored bytes of one weight, readable from several threads at once.
pub trait WeightSource: Sync {
    /// Fills `buf` from byte `offset` of the tensor.
    ///
    /// # Errors
    /// Whatever the source's medium reports.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Source>;
}

/// A weight that a function reads.
impl<F: Fn(u64, &mut [u8]) -> Result<(), Source> + Sync> WeightSource for F {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Source> {
        self(offset, buf)
    }
}

/// A weight that is already in memory.
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

/// Elements for a mailbox. Those of one byte are written all at once.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    I32(&'a [i32]),
    F32(&'a [f32]),
    I8(&'a [i8]),
    U8(&'a [u8]),
    Bool(&'a [bool]),
}

/// What an instance has asked of the hardware so far; zero where the term does not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Activity {
    pub launches: u64,
    /// Hand-overs to a hardware queue.
    pub submits: u64,
    pub doorbells: u64,
    /// Times that waiting slept, each one system call.
    pub sleeps: u64,
    /// Times that channels were made anew after a fault.
    pub rebuilds: u64,
}

/// How long one part of an execution took: a kernel launch, or a stage of the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Which of the plan's steps it belongs to.
    pub step: usize,
    /// Where that stands in the model: `blk.3.attn_q`.
    pub label: String,
    /// The kernel's symbol, or the stage's name.
    pub kernel: String,
    pub nanoseconds: u64,
}

/// Two executions of a plan: one as always, and one with a clock between its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The parts, in the order in which they ran.
    pub timings: Vec<Timing>,
    /// Whether the parts were kept apart for the clock's sake. Then they take longer together than
    /// [`Profile::whole`].
    pub serialised: bool,
    /// The execution as always, from begin to end.
    pub whole: Duration,
}

/// A plan made ready by an instance; valid for that instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prepared(pub u32);

/// Steps under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub prepared: Prepared,
    /// Number of this submission, from 1; submissions finish in order.
    pub sequence: u64,
    /// Steps of the plan that had been submitted before.
    pub first: u64,
    pub steps: u32,
}

pub trait Device: Send + Sync {
    fn info(&self) -> Info;

    /// The version of the one arithmetic (`docs/numerics.md`) that it computes in: devices of one version give
    /// the same bits. `None` for one that has an arithmetic of its own.
    fn numerics(&self) -> Option<u32> {
        Some(NUMERICS)
    }

    /// The fused steps it knows; plans for it are rewritten to use them.
    fn fusions(&self) -> Fusions;

    /// Whether rows without a slot cost nothing, so that a bucket may be far wider than what it is
    /// used for.
    fn skips_padding(&self) -> bool {
        false
    }

    /// What a plan that is fused for this device moves and computes: weights as often as kernels read them.
    fn cost(&self, plan: &Plan) -> Cost {
        plan.cost()
    }

    /// The memory an instance would take, by arithmetic; allocates nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a step, type or shape it cannot run.
    fn footprint(&self, request: &Request<'_>) -> Result<Footprint>;

    /// Reserves everything an instance will ever use.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] before allocating, [`Error::Unsupported`].
    fn open(&self, request: &Request<'_>) -> Result<Box<dyn Instance>>;

    /// Bytes that a GPU has free for instances, 0 where its driver does not tell; `None` for a device that
    /// computes on this process's threads, in this process's memory.
    fn gpu_memory(&self) -> Option<u64> {
        None
    }

    /// Whether its memory is the system's, so that what an instance takes others lack.
    fn shares_memory(&self) -> bool {
        self.gpu_memory().is_none()
    }

    /// What can be tuned; `None` where nothing can be chosen.
    fn tunable(&self) -> Option<&dyn Tunable>;

    /// What must be proven on this machine before it is relied on; `None` where nothing need be.
    fn first_light(&self) -> Option<&dyn FirstLight> {
        None
    }
}

/// A device whose kernels can be run in more than one way.
pub trait Tunable {
    /// For which hardware choices that were found here hold.
    fn key(&self) -> DeviceKey;

    /// What of the request's plans can be tuned: one entry for each time that it occurs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a step, type or shape it cannot run.
    fn cases(&self, request: &Request<'_>) -> Result<Vec<Case>>;

    /// The groups of tensor operations of the request's plans whose kernels can be tuned, each as a plan of its own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where no kernel is made for a group, with what is missing.
    fn groups(&self, request: &Request<'_>) -> Result<BTreeMap<Case, Plan>> {
        let _ = request;
        Ok(BTreeMap::new())
    }

    /// What may be chosen for a case; `None` where there are no such kernels.
    fn space(&self, case: &Case) -> Option<Space>;

    /// Compiles the machine code that a choice needs and that does not come with this program. Where there
    /// is any this takes seconds; while it goes on `wanted` is asked whether anybody still waits.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with what the compiler says.
    fn compile(&self, case: &Case, choice: &Choice, wanted: &dyn Fn() -> bool) -> Result<()>;
}

/// The memory of one model on a device, and its prepared plans. All calls come from one thread.
pub trait Instance: Send {
    /// Memory actually reserved.
    fn footprint(&self) -> Footprint;

    /// Machine code that it has put into a GPU's memory, in bytes; `None` where code is the process's own.
    fn code(&self) -> Option<u64> {
        None
    }

    /// What the hardware has been asked to do.
    fn activity(&self) -> Activity {
        Activity::default()
    }

    /// The mode that it is in, of a device that has modes. After two faults of one step it is a lower one.
    fn mode(&self) -> Option<Mode> {
        None
    }

    /// From now on keeps what is known of each fault below the state directory, as files that
    /// `tegra-sim replay` runs. A device that learns nothing of its faults keeps nothing.
    fn keep_faults(&mut self, _state: &Path) {}

    /// Reads one weight from its source, packing it as the device likes. `progress` is called with
    /// the bytes of the source consumed since the last call.
    ///
    /// # Errors
    /// [`Error::Weight`] when the source fails, [`Error::Invalid`] for a name not in the request or
    /// while anything is under way. A device that hands weights over once also refuses a weight for the
    /// second time, and every weight after the first [`Instance::prepare`].
    fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()>;

    /// Blocks that it has; 0 where each slot keeps its positions to itself, and they are among its [`Part::Rest`].
    fn blocks(&self) -> u32 {
        0
    }

    /// Says where a slot's positions lie from now on: in these blocks, one after the other, of which others may be
    /// slots' too. Behind them they lie nowhere: a row there writes nothing, and is zeroes. At first each slot has
    /// blocks of its own, slot 0 the first ones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a slot or block that is not there, too many of them, or while anything is under way;
    /// [`Error::Unsupported`] where there are no [`Instance::blocks`].
    fn map(&mut self, slot: u32, blocks: &[u32]) -> Result<()> {
        let what = format!("blocks of slots ({} of {slot})", blocks.len());
        Err(Error::Unsupported { device: "this device", what })
    }

    /// Copies a part onto another of its kind.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a block or slot that is not there, parts of two kinds, or while anything is under way.
    fn copy_part(&mut self, from: Part, to: Part) -> Result<()>;

    /// Bytes of a part, of all states together, which may be none; `None` where parts can be neither read nor
    /// written.
    fn part_bytes(&self, _part: Part) -> Option<usize> {
        None
    }

    /// Reads a part, as this device lays it out: nobody else knows what it says.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a block, slot or length that is not there, or while anything is under way;
    /// [`Error::Unsupported`] where there are no [`Instance::part_bytes`]; [`Error::Lost`].
    fn read_part(&mut self, part: Part, _out: &mut [u8]) -> Result<()> {
        let what = format!("reading slots ({part:?})");
        Err(Error::Unsupported { device: "this device", what })
    }

    /// Writes what [`Instance::read_part`] has read, maybe from another instance with the same states.
    ///
    /// # Errors
    /// As [`Instance::read_part`].
    fn write_part(&mut self, part: Part, _bytes: &[u8]) -> Result<()> {
        let what = format!("writing slots ({part:?})");
        Err(Error::Unsupported { device: "this device", what })
    }

    /// Makes a plan of the request ready.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it was not part of the request or a weight is missing.
    fn prepare(&mut self, plan: &Plan) -> Result<Prepared>;

    /// Makes a plan of the request ready under other choices than the request's. For measuring.
    ///
    /// # Errors
    /// As [`Instance::prepare`]; [`Error::Unsupported`] where nothing can be chosen.
    fn prepare_as(&mut self, plan: &Plan, choices: &Choices) -> Result<Prepared>;

    /// Writes elements of a mailbox, from element `at`. Submissions of the plan that are under way do
    /// not see them, its next one does.
    ///
    /// # Errors
    /// [`Error::Invalid`] when range or type do not fit, or too much waits for the next submission: see
    /// [`STAGED_WRITES`].
    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<()>;

    /// Starts `steps` executions of the plan, each after the other, and returns at once. Several
    /// steps make sense for decode plans, whose last step prepares the next one's inputs.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 steps, more than [`RING_STEPS`], or when [`MAX_SUBMISSIONS`] are under
    /// way; [`Error::Lost`].
    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket>;

    /// Blocks until the submission has finished, and with it all before it.
    ///
    /// # Errors
    /// [`Error::Lost`] when it never will, [`Error::Invalid`] for a ticket that is not this instance's.
    fn wait(&mut self, ticket: Ticket) -> Result<()>;

    /// Executes the plan twice and waits: once as always, then part by part with a clock between. To
    /// the plan these are two steps like any other, but for their tokens, which nobody can ask for.
    ///
    /// # Errors
    /// [`Error::Invalid`] while anything is under way, [`Error::Lost`].
    fn profile(&mut self, prepared: Prepared) -> Result<Profile>;

    /// The tokens sampled by one step of a submission that has been waited for, one per row of logits.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the submission is under way, has no such step, the step's tokens have been
    /// overwritten by [`RING_STEPS`] later ones of its plan, or `out` has the wrong length.
    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<()>;

    /// Reads `F32` elements of an output of the plan's latest step, from element `at`: zeroes before the
    /// first.
    ///
    /// # Errors
    /// [`Error::Invalid`] when range or type do not fit or the plan is under way.
    fn read(&self, prepared: Prepared, output: BufferId, at: usize, out: &mut [f32]) -> Result<()>;
}
