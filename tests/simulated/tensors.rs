//! Tensors on the simulated Orin: the op suite, random programs of primitives and trainings, as the CPU's tests have them.

#[path = "../../crates/device/tests/tensors/draw.rs"]
mod draw;
#[path = "../../crates/device/tests/tensors/programs.rs"]
mod programs;
#[path = "../../crates/nn/tests/networks/training.rs"]
mod training;

use device::Device;
use device::gpu::nv::Nv;
use draw::Draw;
use orind::parity::{case, ops};

/// Random programs that are tried.
const PROGRAMS: u64 = 16;

fn devices() -> Vec<Box<dyn Device>> {
    vec![Box::new(Nv::detect().unwrap())]
}

/// Forward and backward.
#[test]
fn operations_compute_what_pytorch_computes() {
    let all = ops::all().unwrap();
    let tally = ops::run(&all, &Nv::detect().unwrap()).unwrap();
    assert_eq!((tally.failures, tally.skips), (vec![], vec![]));
    let passed: usize = tally.categories.values().map(|counts| counts.passed).sum();
    assert_eq!(passed, all.len());
}
