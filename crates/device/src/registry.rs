//! Device registry: opens devices by name.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::cpu::{Cpu, Isa, pool::default_threads};
use super::gpu::nv::{Nv, TIMESLICE, chains::turn};
use super::gpu::{TURN, cuda::Cuda};
use super::modes::{Chains, Mode};
use super::{Device, reference::Reference};

/// Devices that `auto` tries, best first.
pub const AUTO: [&str; 3] = ["nv", "cuda", "cpu"];
pub const NAMES: [&str; 4] = ["nv", "cuda", "cpu", "reference"];

/// Opens a device for a control loop: one CPU thread, or a high-priority share of the GPU.
///
/// # Errors
///
/// Why it cannot be used on this machine, on one line.
pub fn open_realtime(name: &str) -> Result<Arc<dyn Device>, String> {
    match name {
        "nv" => Ok(Arc::new(Nv::detect()?.high_priority())),
        name => named(name, "auto", 1),
    }
}

/// Conservative upper bound of the time that a control loop's step waits for the GPU, with models
/// that submit QMD chains of duration `chains` and `others` further loops on the same GPU. `None`
/// for other devices.
///
/// On an Orin a turn is a timeslice plus the QMD chain that begins in it. A loop's turn comes after
/// that of one model or program, however many there are, and of each other loop. CUDA schedules
/// streams itself: the bound is the duration of one launch.
#[must_use]
pub fn behind(name: &str, chains: Chains, others: usize) -> Option<Duration> {
    match name {
        "nv" => {
            let of_loop = TIMESLICE + turn(Mode::default().chains);
            let of_loops: Duration = std::iter::repeat_n(of_loop, others).sum();
            Some(TIMESLICE + turn(chains) + of_loops)
        }
        "cuda" => Some(TURN),
        _ => None,
    }
}

/// Opens a device by name. `cpu_isa` is the CPU's instruction set, `auto` for the best; `threads`
/// is the number of CPU threads, 0 for all allowed cores.
///
/// # Errors
///
/// Why it cannot be used on this machine, on one line.
pub fn named(name: &str, cpu_isa: &str, threads: usize) -> Result<Arc<dyn Device>, String> {
    Ok(match name {
        "nv" => Arc::new(Nv::detect()?),
        "cuda" => Arc::new(Cuda::detect()?),
        "cpu" => {
            let isa = match cpu_isa {
                "auto" => Isa::detect(),
                name => Isa::named(name).map_err(|e| format!("cpu_isa: {e}"))?,
            };
            let threads = NonZeroUsize::new(threads).unwrap_or_else(default_threads);
            Arc::new(Cpu::new(isa, threads))
        }
        "reference" => Arc::new(Reference),
        _ => return Err(format!("`{name}` is not known; known: {}", NAMES.join(", "))),
    })
}
