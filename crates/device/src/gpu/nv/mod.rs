//! NV backend: drives the Orin's GPU through its own queues, without CUDA.
//!
//! - `code`: machine code in GPU memory
//! - `chains`: number of launches per QMD chain
//! - `record`: immutable recordings of QMDs, constant banks and command streams
//! - `uploads`: mailbox writes between two steps in flight; `slots`: slot copies between steps
//! - `instance`: replays recordings, reads results, repeats steps after a fault or a `watchdog`
//!   timeout
//! - `evidence`, `keeper`: fault bundles
//! - `proof`: operating mode from first light
//!
//! Memory, channels and queues are those of the crate `tegra`.

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
use crate::FirstLight;
use crate::gpu::{self, GpuDevice};
use crate::modes::{Maps, Mode, Range};
use crate::tune::{Choices, DeviceKey};
use crate::{Error, Instance, Result, Scope};
use instance::NvInstance;
use telemetry::{Probe, Root, memory};

const DEVICE: &str = "nv";

/// Timeslice of a context: the driver's default, which is not changed here.
pub(crate) const TIMESLICE: Duration = Duration::from_micros(1024);

const TARGET: Target = Target::Sm87;
const SM: u32 = 87;

#[derive(Clone, Debug)]
pub struct Nv {
    orin: Orin,
    mode: Mode,
    priority: Priority,
    /// The device may be opened again.
    _code: Unpacked,
}

/// Scheduling priority among contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Priority {
    /// Like any other program.
    #[default]
    Normal,
    /// Scheduled before other contexts; waiting polls memory and does not sleep.
    High,
}

impl Priority {
    /// Options of a context: priority and how long a wait polls memory.
    fn options(self) -> context::Options {
        let options = context::Options::default();
        match self {
            // A step takes milliseconds, so polling would only burn processor time.
            Self::Normal => context::Options { spin: Duration::ZERO, ..options },
            Self::High => {
                context::Options { spin: limit::TURN, interleave: Interleave::High, ..options }
            }
        }
    }
}

impl Nv {
    /// Opens the GPU's device nodes.
    ///
    /// # Errors
    ///
    /// Why there is no usable Orin, on one line.
    pub fn detect() -> Result<Self, String> {
        match Orin::open() {
            Ok(orin) => {
                let (mode, priority, _code) =
                    (Mode::default(), Priority::default(), Unpacked::keep());
                Ok(Self { orin, mode, priority, _code })
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Device for control loops: its instances have their own TSG and channel, get their turn
    /// often, and wait without sleeping.
    #[must_use]
    pub fn high_priority(self) -> Self {
        Self { priority: Priority::High, ..self }
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
            // Buffers are system memory, so the available system memory is the limit.
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
        // CPU-written memory is not cached in the L2, so nothing needs to be invalidated.
        let options = Options { l2: L2::Volatile, sealed, range: range(self.mode) };
        let space = AddressSpace::with(&self.orin, options).map_err(failed)?;
        Ok(Box::new(NvInstance::new(space, layout, choices, self.mode, self.priority.options())?))
    }
}

/// Description of the GPU.
fn describe(orin: &Orin) -> String {
    format!("{}, {} SMs", orin.chip(), orin.sms())
}

const fn range(mode: Mode) -> space::Range {
    match mode.range {
        Range::Short => space::Range::Short,
        Range::Proven => space::Range::Proven,
    }
}

/// Converts a driver error.
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
