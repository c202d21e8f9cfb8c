//! CUDA backend: the same launches on any NVIDIA GPU from SM 8.0 on, through libcuda, loaded at run
//! time. On an Orin it serves for comparison with the NV backend.
//!
//! - `driver`, `library`, `fault`: calls of the driver and their results
//! - `gpu`: owners of a context and its handles
//! - `weights`: upload; `code`: kernels
//! - `record`: a step as one graph; `instance`: replay
//! - `proof`: first light

mod code;
mod driver;
mod fault;
mod gpu;
mod instance;
mod library;
mod proof;
mod record;
#[cfg(test)]
mod tests;
mod weights;

use std::sync::Arc;

use orind_kernels::prebuilt::Unpacked;
use orind_kernels::source::Target;

use super::GpuDevice;
use super::layout::Layout;
use crate::FirstLight;
use crate::tune::{Choices, DeviceKey};
use crate::{Instance, Result};
use driver::{Attribute, ComputeMode, Driver, MemoryKind};
use fault::{Code, Fault};
use gpu::Gpu;
use instance::CudaInstance;
use telemetry::{Probe, Root};

const DEVICE: &str = "cuda";

/// Driver version that cubins of CUDA 12 need (minor versions are compatible), and version that PTX
/// of NVRTC 12.6 (ISA 8.5) needs.
const LEAST_VERSION: i32 = 12_000;
const LEAST_VERSION_FOR_PTX: i32 = 12_050;

/// Lowest compute capability that the kernels are compiled for.
const LEAST_CAPABILITY: u32 = 80;

/// Environment variable for the memory of weights: `device`, `pinned` or `managed`.
const MEMORY: &str = "ORIND_CUDA_MEMORY";
/// CUDA's own list of visible GPUs.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// An NVIDIA GPU with a private context, through the CUDA driver.
#[derive(Clone, Debug)]
pub struct Cuda {
    gpu: Arc<Gpu>,
    kind: MemoryKind,
    /// The device may be opened again.
    _code: Unpacked,
}

impl Cuda {
    /// Opens the first usable GPU; `CUDA_VISIBLE_DEVICES` selects among several.
    ///
    /// # Errors
    ///
    /// Why there is none, on one line.
    pub fn detect() -> Result<Self, String> {
        let variable = |name: &str| std::env::var(name).ok();
        let library = library::Library::load()?;
        let driver: Arc<dyn Driver> = Arc::new(library);
        Self::with(&driver, variable(VISIBLE).as_deref(), variable(MEMORY).as_deref())
    }

    /// Likewise with a given driver and values of the environment.
    fn with(
        driver: &Arc<dyn Driver>,
        visible: Option<&str>,
        memory: Option<&str>,
    ) -> Result<Self, String> {
        let version = driver.version().map_err(|fault| fault.to_string())?;
        if version < LEAST_VERSION {
            return Err(format!(
                "the CUDA driver is too old: it is for CUDA {}, 12.0 is the least; update it",
                dotted(version)
            ));
        }
        let hidden = || match visible {
            Some(list) => format!("{VISIBLE}=\"{list}\" hides every GPU"),
            None => "the CUDA driver finds no GPU".into(),
        };
        match driver.init() {
            Err(fault) if fault.code == Code::NO_DEVICE => return Err(hidden()),
            Err(fault) => return Err(fault.to_string()),
            Ok(()) => {}
        }
        let count = driver.devices().map_err(|fault| fault.to_string())?;
        let mut refusals = Vec::new();
        for device in 0..count {
            match open(driver, device, version) {
                Ok(gpu) => {
                    let kind = kind(memory, gpu.integrated)?;
                    return Ok(Self { gpu: Arc::new(gpu), kind, _code: Unpacked::keep() });
                }
                Err(reason) => refusals.push(reason),
            }
        }
        Err(if refusals.is_empty() { hidden() } else { refusals.join("; ") })
    }
}

/// Kind of memory for weights. If GPU and CPU share memory, managed memory is cached by both and
/// never copied (CUDA for Tegra, "Memory Types"); otherwise GPU memory is fastest.
fn kind(asked: Option<&str>, integrated: bool) -> Result<MemoryKind, String> {
    let kinds = [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Managed];
    match asked {
        None if integrated => Ok(MemoryKind::Managed),
        None => Ok(MemoryKind::Device),
        Some(name) => kinds.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            format!("{MEMORY} is `{name}`; allowed are {}", kinds.map(MemoryKind::name).join(", "))
        }),
    }
}

fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Opens a context on a device; the error is one line.
fn open(driver: &Arc<dyn Driver>, device: i32, version: i32) -> Result<Gpu, String> {
    let name = driver.name(device).unwrap_or_else(|_| format!("GPU {device}"));
    let told = |fault: Fault| format!("{name}: {fault}");
    let ask = |attribute| driver.attribute(device, attribute).map_err(told);
    let number = |value: i32| u32::try_from(value).unwrap_or(0);
    let (major, minor) = (number(ask(Attribute::Major)?), number(ask(Attribute::Minor)?));
    let capability = 10 * major + minor;
    if capability < LEAST_CAPABILITY {
        return Err(format!(
            "{name} is too old: SM {major}.{minor}, the kernels need 8.0 or later"
        ));
    }
    if code::target(capability) == Target::Compute80 && version < LEAST_VERSION_FOR_PTX {
        return Err(format!(
            "{name}: SM {major}.{minor} needs a driver for CUDA {}, this one is for {}; update it",
            dotted(LEAST_VERSION_FOR_PTX),
            dotted(version)
        ));
    }
    let mode = ask(Attribute::ComputeMode)?;
    if mode == ComputeMode::PROHIBITED {
        return Err(format!(
            "{name} does not allow contexts (compute mode Prohibited); see nvidia-smi -c"
        ));
    }
    let context = driver.create_context(device).map_err(|fault| match fault.code {
        Code::DEVICE_UNAVAILABLE | Code::INVALID_DEVICE
            if mode == ComputeMode::EXCLUSIVE_PROCESS =>
        {
            format!("{name} is in use by another process (compute mode Exclusive_Process)")
        }
        Code::OUT_OF_MEMORY => format!("{name}: other processes use all of its memory"),
        _ => told(fault),
    })?;
    let gpu = |sms, integrated| {
        let driver = Arc::clone(driver);
        Gpu { driver, device, context, name: name.clone(), capability, version, sms, integrated }
    };
    match (ask(Attribute::Multiprocessors), ask(Attribute::Integrated)) {
        (Ok(sms), Ok(integrated)) => Ok(gpu(number(sms), integrated != 0)),
        // Dropped immediately, with the context.
        (Err(reason), _) | (_, Err(reason)) => {
            drop(gpu(0, false));
            Err(reason)
        }
    }
}

impl GpuDevice for Cuda {
    const NAME: &'static str = DEVICE;

    fn description(&self) -> String {
        let Gpu { name, sms, .. } = &*self.gpu;
        let code = self.target().architecture();
        format!("{name}, {sms} SMs, {code}, weights in {} memory", self.kind.name())
    }

    fn target(&self) -> Target {
        code::target(self.gpu.capability)
    }

    fn device_key(&self) -> DeviceKey {
        let probe = Probe::new(Root::system());
        super::key(&probe, self.gpu.capability, self.gpu.sms, self.gpu.clock_mhz())
    }

    fn free(&self) -> Result<u64> {
        self.gpu.free().map_err(Fault::at_the_seam)
    }

    fn shares_memory(&self) -> bool {
        self.gpu.integrated
    }

    fn first_light(&self) -> Option<&dyn FirstLight> {
        Some(self)
    }

    fn instance(&self, layout: Layout, choices: Choices) -> Result<Box<dyn Instance>> {
        Ok(Box::new(CudaInstance::new(&self.gpu, layout, self.kind, choices)?))
    }
}
