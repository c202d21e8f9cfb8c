//! The NV driver: launches carried to an Orin's GPU by its own queues, without CUDA.
//!
//! `code` puts the kernels' machine code where the GPU finds it; `record` writes a list of
//! launches down once, as QMDs, constant banks and a command stream that never change again;
//! `uploads` writes mailboxes between two steps under way; `instance` replays recordings step by
//! step, reads what comes back, and repeats a step that a fault interrupted, or that the `watchdog`
//! gave up. Memory, channels and queues are those of the crate `tegra`.

mod code;
mod instance;
mod record;
mod uploads;
mod watchdog;

use orind_kernels::source::Target;
use tegra::orin::Orin;
use tegra::space::{AddressSpace, L2};

use super::layout::{Layout, of_device};
use crate::gpu;
use crate::tune::{Case, Choice, DeviceKey, Space};
use crate::{Device, Error, Footprint, Info, Instance, Request, Scope, Tunable};
use instance::NvInstance;
use plan::{Cost, Fusions, Plan};
use telemetry::{Probe, Root};

/// The name of this device.
const DEVICE: &str = "nv";

/// The machine code that runs here.
const TARGET: Target = Target::Sm87;
const SM: u32 = 87;

/// The GPU of a Jetson Orin.
#[derive(Clone, Debug)]
pub struct Nv {
    orin: Orin,
}

impl Nv {
    /// Opens the GPU's nodes.
    ///
    /// # Errors
    /// The reason why there is no Orin to use, in one line.
    pub fn detect() -> Result<Self, String> {
        match Orin::open() {
            Ok(orin) => Ok(Self { orin }),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Device for Nv {
    fn info(&self) -> Info {
        let orin = &self.orin;
        Info {
            name: DEVICE,
            description: format!("{}, {} SMs", orin.chip(), orin.sms()),
            threads: 0,
        }
    }

    fn fusions(&self) -> Fusions {
        Fusions::ALL
    }

    fn cost(&self, plan: &Plan) -> Cost {
        gpu::lower::cost(plan)
    }

    fn footprint(&self, request: &Request<'_>) -> Result<Footprint, Error> {
        Ok(Layout::new(request).map_err(of_device(DEVICE))?.footprint())
    }

    fn open(&self, request: &Request<'_>) -> Result<Box<dyn Instance>, Error> {
        let layout = Layout::new(request).map_err(of_device(DEVICE))?;
        layout.footprint().fits(self.orin.memory().map_err(failed)?.free)?;
        // No line of memory that the CPU writes is kept, so nothing needs to be thrown away.
        let space = AddressSpace::new(&self.orin, L2::Volatile).map_err(failed)?;
        let choices = request.choices.cloned().unwrap_or_default();
        Ok(Box::new(NvInstance::new(space, layout, choices)?))
    }

    fn gpu_memory(&self) -> Option<u64> {
        Some(self.orin.memory().map_or(0, |memory| memory.free))
    }

    fn tunable(&self) -> Option<&dyn Tunable> {
        Some(self)
    }
}

impl Tunable for Nv {
    fn key(&self) -> DeviceKey {
        let clock = self.orin.characteristics().max_freq / 1_000_000;
        let clock = u32::try_from(clock).unwrap_or(0);
        gpu::key(&Probe::new(Root::system()), SM, self.orin.sms(), clock)
    }

    fn cases(&self, request: &Request<'_>) -> Result<Vec<Case>, Error> {
        gpu::cases(request).map_err(of_device(DEVICE))
    }

    fn space(&self, case: &Case) -> Option<Space> {
        gpu::variant::space(TARGET, case)
    }

    fn compile(
        &self,
        case: &Case,
        choice: &Choice,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let made = gpu::variant::compile(TARGET, case, choice, wanted);
        made.map_err(|error| Error::Unsupported { device: DEVICE, what: error.to_string() })
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
