//! Results of the CUDA driver: names, scope of the failure, and advice.
//!
//! Numbers and names are those of `CUresult` in `cuda.h` 12.6; its comments define which results
//! make the context unusable. Unknown numbers (of newer drivers) are reported as numbers.

use super::DEVICE;
use crate::{Error, Scope};

/// `CUresult` of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) u32);

impl Code {
    pub(super) const INVALID_VALUE: Self = Self(1);
    pub(super) const OUT_OF_MEMORY: Self = Self(2);
    pub(super) const DEVICE_UNAVAILABLE: Self = Self(46);
    pub(super) const NO_DEVICE: Self = Self(100);
    pub(super) const INVALID_DEVICE: Self = Self(101);
    #[cfg(test)]
    pub(super) const ILLEGAL_ADDRESS: Self = Self(700);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// Only the call failed.
    None,
    /// The context is unusable; a new one may work.
    Context,
    /// The GPU is unusable for this process.
    Device,
}

/// Number, name, scope, and advice.
type Known = (u32, &'static str, Harm, &'static str);

const KERNEL: &str = "a kernel went wrong; load the model again, and report it if it comes back";
const BUG: &str = "a bug of orind: please report it";

static KNOWN: &[Known] = &[
    (1, "INVALID_VALUE", Harm::None, BUG),
    (2, "OUT_OF_MEMORY", Harm::None, "lower `context` or `slots`, or free the GPU"),
    (3, "NOT_INITIALIZED", Harm::Device, BUG),
    (4, "DEINITIALIZED", Harm::Device, "the process is ending"),
    (34, "STUB_LIBRARY", Harm::Device, "a stub of libcuda is in the way: fix LD_LIBRARY_PATH"),
    (46, "DEVICE_UNAVAILABLE", Harm::Device, "another process holds the GPU exclusively"),
    (100, "NO_DEVICE", Harm::Device, "no GPU is visible: see CUDA_VISIBLE_DEVICES"),
    (101, "INVALID_DEVICE", Harm::Device, "the GPU cannot be used: see nvidia-smi"),
    (200, "INVALID_IMAGE", Harm::None, "the driver does not take this machine code"),
    (201, "INVALID_CONTEXT", Harm::Context, BUG),
    (209, "NO_BINARY_FOR_GPU", Harm::None, "there is no machine code for this GPU"),
    (214, "ECC_UNCORRECTABLE", Harm::Context, "memory of the GPU is faulty: see nvidia-smi -q"),
    (218, "INVALID_PTX", Harm::None, "the driver does not take this PTX: update it"),
    (220, "NVLINK_UNCORRECTABLE", Harm::Context, "a link of the GPU is faulty"),
    (221, "JIT_COMPILER_NOT_FOUND", Harm::None, "install libnvidia-ptxjitcompiler"),
    (222, "UNSUPPORTED_PTX_VERSION", Harm::None, "the driver is too old for this PTX: update it"),
    (400, "INVALID_HANDLE", Harm::None, BUG),
    (500, "NOT_FOUND", Harm::None, "machine code and catalogue disagree: build the kernels anew"),
    (700, "ILLEGAL_ADDRESS", Harm::Context, KERNEL),
    (701, "LAUNCH_OUT_OF_RESOURCES", Harm::None, BUG),
    (702, "LAUNCH_TIMEOUT", Harm::Context, "a display shares the GPU and limits kernels"),
    (709, "CONTEXT_IS_DESTROYED", Harm::Context, "load the model again"),
    (710, "ASSERT", Harm::Context, KERNEL),
    (714, "HARDWARE_STACK_ERROR", Harm::Context, KERNEL),
    (715, "ILLEGAL_INSTRUCTION", Harm::Context, KERNEL),
    (716, "MISALIGNED_ADDRESS", Harm::Context, KERNEL),
    (717, "INVALID_ADDRESS_SPACE", Harm::Context, KERNEL),
    (718, "INVALID_PC", Harm::Context, KERNEL),
    (719, "LAUNCH_FAILED", Harm::Context, KERNEL),
    (800, "NOT_PERMITTED", Harm::None, "the process may not do this: see the container's rights"),
    (801, "NOT_SUPPORTED", Harm::None, "this GPU or driver cannot do it"),
    (802, "SYSTEM_NOT_READY", Harm::Device, "start nvidia-fabricmanager, or wait for it"),
    (803, "SYSTEM_DRIVER_MISMATCH", Harm::Device, "libcuda and the kernel module differ: reboot"),
    (804, "COMPAT_NOT_SUPPORTED_ON_DEVICE", Harm::Device, "remove the cuda-compat libraries"),
    (901, "STREAM_CAPTURE_INVALIDATED", Harm::None, BUG),
    (999, "UNKNOWN", Harm::Context, "see the kernel's log for NVRM"),
];

pub(super) type Result<T = (), E = Fault> = std::result::Result<T, E>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) call: &'static str,
    pub(super) code: Code,
}

impl Fault {
    pub(super) const fn new(call: &'static str, code: Code) -> Self {
        Self { call, code }
    }

    fn known(self) -> Option<&'static Known> {
        KNOWN.iter().find(|(code, ..)| *code == self.code.0)
    }

    pub(super) fn at_the_seam(self) -> Error {
        match self.known().map(|(_, _, harm, _)| *harm) {
            _ if self.code == Code::OUT_OF_MEMORY => {
                Error::OutOfMemory { what: format!("GPU memory ({self})"), need: 0, have: 0 }
            }
            Some(Harm::None) => Error::Unsupported { device: DEVICE, what: self.to_string() },
            harm => Error::Lost {
                scope: Scope::Device,
                rebuildable: harm != Some(Harm::Device),
                reason: self.to_string(),
                source: Some(Box::new(self)),
            },
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.known() {
            Some((_, name, _, hint)) => write!(f, "{}: CUDA_ERROR_{name}: {hint}", self.call),
            None => write!(f, "{}: CUDA error {}", self.call, self.code.0),
        }
    }
}

impl std::error::Error for Fault {}
