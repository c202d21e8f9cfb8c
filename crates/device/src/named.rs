//! Devices by name.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::cpu::{Cpu, Isa, pool::default_threads};
use super::gpu::{TURN, cuda::Cuda, nv::Nv};
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

/// What a launch of another program or model may keep it waiting on a GPU by, by a cautious estimate: what none exceeds.
pub const GPU_TURN: Duration = TURN;

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
