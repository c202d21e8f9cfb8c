//! Devices by name.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::cpu::{Cpu, Isa, pool::default_threads};
use super::first_light::{Chains, Mode};
use super::gpu::nv::{Nv, TIMESLICE, chains::turn};
use super::gpu::{TURN, cuda::Cuda};
use super::{Device, reference::Reference};

/// What `auto` tries, best first.
pub const AUTO: [&str; 3] = ["nv", "cuda", "cpu"];
pub const NAMES: [&str; 4] = ["nv", "cuda", "cpu", "reference"];

/// The device of that name for a control loop: one thread of the CPU, or a share of the GPU that comes often.
///
/// # Errors
/// Why it cannot be used here, in one line.
pub fn for_loops(name: &str) -> Result<Arc<dyn Device>, String> {
    match name {
        "nv" => Ok(Arc::new(Nv::detect()?.often())),
        name => named(name, "auto", 1),
    }
}

/// How long a step of a control loop waits for the GPU at most, by a cautious estimate, beside models that give it `chains`
/// and `others` further loops on the same GPU; nothing where the device is no GPU.
///
/// On an Orin a turn is a timeslice, and the chain of launches that begins in it. A loop's turn comes behind that of one
/// model or program, however many there are, and of each other loop. What CUDA does between streams is its own: there it is
/// what one launch takes.
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

/// The device of that name. `cpu_isa` is the CPU's instruction set, `auto` for the best one; `threads` are
/// the CPU's, 0 for the cores allowed.
///
/// # Errors
/// Why it cannot be used here, in one line.
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
