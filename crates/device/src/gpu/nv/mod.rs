//! The NV driver: launches carried to an Orin's GPU by its own queues, without CUDA.
//!
//! `code` puts the kernels' machine code where the GPU finds it; `chains` says how many launches the
//! hardware gets at once; `record` writes them down once, as QMDs, constant banks and a command
//! stream that never change again; `uploads` writes mailboxes between two steps under way; `slots` moves what slots hold between them;
//! `instance` replays recordings step by step, reads what comes back, and repeats a step that a
//! fault interrupted, or that the `watchdog` gave up, in a lower mode if need be. `evidence` is what a
//! fault leaves, `keeper` has it written to a file. `proof` says which mode first light allows. Memory, channels and queues are those of the crate `tegra`.

pub(crate) mod chains;
mod code;
mod evidence;
mod instance;
mod keeper;
mod proof;
mod record;
mod slots;
mod uploads;
mod watchdog;

use std::time::Duration;

use orind_kernels::prebuilt::Unpacked;
use orind_kernels::source::Target;
use tegra::channel::Interleave;
use tegra::context;
use tegra::orin::Orin;
use tegra::space::{self, Access, AddressSpace, L2, Options};

use super::{layout::Layout, limit};
use crate::first_light::{FirstLight, Maps, Mode, Range};
use crate::gpu::{self, GpuDevice};
use crate::tune::{Choices, DeviceKey};
use crate::{Error, Instance, Result, Scope};
use instance::NvInstance;
use telemetry::{Probe, Root, memory};

const DEVICE: &str = "nv";

/// How long a context runs while others wait: the driver's default, which none here changes.
pub(crate) const TIMESLICE: Duration = Duration::from_micros(1024);

const TARGET: Target = Target::Sm87;
const SM: u32 = 87;

#[derive(Clone, Debug)]
pub struct Nv {
    orin: Orin,
    mode: Mode,
    turns: Turns,
    /// It may be opened again.
    _code: Unpacked,
}

/// How what runs here shares the GPU with other contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turns {
    /// As everybody.
    #[default]
    Equal,
    /// Its turn comes as often as can be, and who waits for it looks at memory and does not sleep.
    Often,
}

impl Turns {
    /// Of a context, and how long a wait looks at memory.
    fn options(self) -> context::Options {
        let options = context::Options::default();
        match self {
            // A step takes milliseconds: polling memory for longer than reading the clock takes would only burn processor
            // time.
            Self::Equal => context::Options { spin: Duration::ZERO, ..options },
            Self::Often => {
                context::Options { spin: limit::TURN, interleave: Interleave::High, ..options }
            }
        }
    }
}

impl Nv {
    /// Opens the GPU's nodes.
    ///
    /// # Errors
    /// The reason why there is no Orin to use, in one line.
    pub fn detect() -> Result<Self, String> {
        match Orin::open() {
            Ok(orin) => {
                let (mode, turns, _code) = (Mode::default(), Turns::default(), Unpacked::keep());
                Ok(Self { orin, mode, turns, _code })
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// For control loops: what is opened with it has its own TSG and channel, gets its turn often, and is waited for
    /// without sleep.
    #[must_use]
    pub fn often(self) -> Self {
        Self { turns: Turns::Often, ..self }
    }
}

impl GpuDevice for Nv {
    const NAME: &'static str = DEVICE;

    fn description(&self) -> String {
        describe(&self.orin)
    }

    fn target(&self) -> Target {
        TARGET
    }

    fn device_key(&self) -> DeviceKey {
        let clock = self.orin.characteristics().max_freq / 1_000_000;
        let clock = u32::try_from(clock).unwrap_or(0);
        gpu::key(&Probe::new(Root::system()), SM, self.orin.sms(), clock)
    }

    fn free(&self) -> Result<u64> {
        match self.orin.memory() {
            Ok(memory) => Ok(memory.free),
            // Buffers are pages of the system's memory: what is available there is what there is.
            Err(error) => memory::available().ok_or_else(|| failed(error)),
        }
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn first_light(&self) -> Option<&dyn FirstLight> {
        Some(self)
    }

    fn instance(&self, layout: Layout, choices: Choices) -> Result<Box<dyn Instance>> {
        let sealed = match self.mode.maps {
            Maps::ReadOnly => Access::Read,
            Maps::ReadWrite => Access::ReadWrite,
        };
        // No line of memory that the CPU writes is kept, so nothing needs to be thrown away.
        let options = Options { l2: L2::Volatile, sealed, range: range(self.mode) };
        let space = AddressSpace::with(&self.orin, options).map_err(failed)?;
        Ok(Box::new(NvInstance::new(space, layout, choices, self.mode, self.turns.options())?))
    }
}

/// The GPU in a line.
fn describe(orin: &Orin) -> String {
    format!("{}, {} SMs", orin.chip(), orin.sms())
}

const fn range(mode: Mode) -> space::Range {
    match mode.range {
        Range::Short => space::Range::Short,
        Range::Proven => space::Range::Proven,
    }
}

/// A failure of the drivers as the seam tells it.
fn failed(error: tegra::Error) -> Error {
    match error {
        tegra::Error::OutOfMemory { need, have } => {
            Error::OutOfMemory { what: "GPU memory".into(), need, have }
        }
        error => Error::Lost {
            scope: Scope::Instance,
            rebuildable: error.can_rebuild(),
            reason: error.to_string(),
            source: Some(Box::new(error)),
        },
    }
}
