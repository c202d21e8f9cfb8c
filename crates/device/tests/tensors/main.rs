//! Graphs of tensors: gradients, and every primitive on the CPU, compared with a model in `f64`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cpu;
mod draw;
mod gradients;
mod group_cases;
mod groups;
mod model;
mod programs;
mod special;

use std::num::NonZeroUsize;

use device::Device;
use device::cpu::{Cpu, Isa};
use draw::Draw;

/// Number of random programs.
const PROGRAMS: u64 = 60;

/// Every instruction set, with one thread and several.
fn devices() -> Vec<Box<dyn Device>> {
    let threads = |n| NonZeroUsize::new(n).unwrap();
    let all = Isa::available().flat_map(|isa| [1, 3].map(|n| Cpu::new(isa, threads(n))));
    all.map(|cpu| Box::new(cpu) as Box<dyn Device>).collect()
}
