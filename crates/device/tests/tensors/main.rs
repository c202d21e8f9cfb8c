//! Graphs of tensors: their gradients, and every primitive on the CPU, held against a model in `f64`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cpu;
mod draw;
mod gradients;
mod groups;
mod model;
mod programs;

use std::num::NonZeroUsize;

use device::Device;
use device::cpu::{Cpu, Isa};
use draw::Draw;

/// Random programs that are tried.
const PROGRAMS: u64 = 60;

/// Every instruction set, with one thread and several.
fn devices() -> Vec<Box<dyn Device>> {
    let threads = |n| NonZeroUsize::new(n).unwrap();
    let all = Isa::available().flat_map(|isa| [1, 3].map(|n| Cpu::new(isa, threads(n))));
    all.map(|cpu| Box::new(cpu) as Box<dyn Device>).collect()
}
