//! Results of the CUDA driver: their names, what to do about them, and what they mean at the seam.
//!
//! Numbers and names are those of `CUresult` in `cuda.h` 12.6; which of them leave the context
//! unusable is what its comments say. A number that is not listed (of a newer driver) is told as it is.

use super::DEVICE;
use crate::{Error, Scope};

/// `CUresult` of a call that did not succeed.
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

/// What happens to the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// Nothing: the call alone failed.
    None,
    /// It is of no more use; a new one may be.
    Context,
    /// The GPU is gone for this process.
    Device,
}

struct Known {
    code: u32,
    name: &'static str,
    harm: Harm,
    hint: &'static str,
}

const fn known(code: u32, name: &'static str, harm: Harm, hint: &'static str) -> Known {
    Known { code, name, harm, hint }
}

const KERNEL: &str = "a kernel went wrong; load the model again, and report it if it comes back";
const BUG: &str = "a bug of orind: please report it";

static KNOWN: &[Known] = &[
    known(1, "INVALID_VALUE", Harm::None, BUG),
    known(2, "OUT_OF_MEMORY", Harm::None, "lower `context` or `slots`, or free the GPU"),
    known(3, "NOT_INITIALIZED", Harm::Device, BUG),
    known(4, "DEINITIALIZED", Harm::Device, "the process is ending"),
    known(34, "STUB_LIBRARY", Harm::Device, "a stub of libcuda is in the way: fix LD_LIBRARY_PATH"),
    known(46, "DEVICE_UNAVAILABLE", Harm::Device, "another process holds the GPU exclusively"),
    known(100, "NO_DEVICE", Harm::Device, "no GPU is visible: see CUDA_VISIBLE_DEVICES"),
    known(101, "INVALID_DEVICE", Harm::Device, "the GPU cannot be used: see nvidia-smi"),
    known(200, "INVALID_IMAGE", Harm::None, "the driver does not take this machine code"),
    known(201, "INVALID_CONTEXT", Harm::Context, BUG),
    known(209, "NO_BINARY_FOR_GPU", Harm::None, "there is no machine code for this GPU"),
    known(
        214,
        "ECC_UNCORRECTABLE",
        Harm::Context,
        "memory of the GPU is faulty: see nvidia-smi -q",
    ),
    known(218, "INVALID_PTX", Harm::None, "the driver does not take this PTX: update it"),
    known(220, "NVLINK_UNCORRECTABLE", Harm::Context, "a link of the GPU is faulty"),
    known(221, "JIT_COMPILER_NOT_FOUND", Harm::None, "install libnvidia-ptxjitcompiler"),
    known(
        222,
        "UNSUPPORTED_PTX_VERSION",
        Harm::None,
        "the driver is too old for this PTX: update it",
    ),
    known(400, "INVALID_HANDLE", Harm::None, BUG),
    known(
        500,
        "NOT_FOUND",
        Harm::None,
        "machine code and catalogue disagree: build the kernels anew",
    ),
    known(700, "ILLEGAL_ADDRESS", Harm::Context, KERNEL),
    known(701, "LAUNCH_OUT_OF_RESOURCES", Harm::None, BUG),
    known(702, "LAUNCH_TIMEOUT", Harm::Context, "a display shares the GPU and limits kernels"),
    known(709, "CONTEXT_IS_DESTROYED", Harm::Context, "load the model again"),
    known(710, "ASSERT", Harm::Context, KERNEL),
    known(714, "HARDWARE_STACK_ERROR", Harm::Context, KERNEL),
    known(715, "ILLEGAL_INSTRUCTION", Harm::Context, KERNEL),
    known(716, "MISALIGNED_ADDRESS", Harm::Context, KERNEL),
    known(717, "INVALID_ADDRESS_SPACE", Harm::Context, KERNEL),
    known(718, "INVALID_PC", Harm::Context, KERNEL),
    known(719, "LAUNCH_FAILED", Harm::Context, KERNEL),
    known(
        800,
        "NOT_PERMITTED",
        Harm::None,
        "the process may not do this: see the container's rights",
    ),
    known(801, "NOT_SUPPORTED", Harm::None, "this GPU or driver cannot do it"),
    known(802, "SYSTEM_NOT_READY", Harm::Device, "start nvidia-fabricmanager, or wait for it"),
    known(
        803,
        "SYSTEM_DRIVER_MISMATCH",
        Harm::Device,
        "libcuda and the kernel module differ: reboot",
    ),
    known(804, "COMPAT_NOT_SUPPORTED_ON_DEVICE", Harm::Device, "remove the cuda-compat libraries"),
    known(901, "STREAM_CAPTURE_INVALIDATED", Harm::None, BUG),
    known(999, "UNKNOWN", Harm::Context, "see the kernel's log for NVRM"),
];

/// A call that failed.
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
        KNOWN.iter().find(|k| k.code == self.code.0)
    }

    /// The failure as the seam tells it.
    pub(super) fn at_the_seam(self) -> Error {
        match self.known().map(|k| k.harm) {
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
            Some(k) => write!(f, "{}: CUDA_ERROR_{}: {}", self.call, k.name, k.hint),
            None => write!(f, "{}: CUDA error {}", self.call, self.code.0),
        }
    }
}

impl std::error::Error for Fault {}
