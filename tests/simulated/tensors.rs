//! Tensors on the simulated Orin: the op suite, random programs of primitives and trainings, as the CPU's tests have them.

#[expect(dead_code, reason = "an example, of which this needs parts")]
#[path = "../../crates/nn/examples/digits.rs"]
mod digits;
#[path = "../../crates/device/tests/tensors/draw.rs"]
mod draw;
#[path = "../../crates/device/tests/tensors/programs.rs"]
mod programs;
#[path = "../../crates/nn/tests/networks/training.rs"]
mod training;

use device::Device;
use device::cpu::Cpu;
use device::gpu::nv::Nv;
use draw::Draw;
use parity::ops;

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

/// The example of `crates/nn`, begun on both.
#[test]
fn a_perceptron_learns_digits_as_on_the_cpu() {
    let mut nv = digits::trainer(&Nv::detect().unwrap(), digits::mlp).unwrap();
    let mut cpu = digits::trainer(&Cpu::detect(), digits::mlp).unwrap();
    let before = digits::accuracy(&mut nv, 2).unwrap();
    for number in 0..24 {
        let [have, want] =
            [&mut nv, &mut cpu].map(|trainer| digits::step(trainer, number).unwrap());
        assert!((have - want).abs() < 1e-4 * want, "step {number}: {have}, {want}");
    }
    let after = digits::accuracy(&mut nv, 2).unwrap();
    assert!(after > before + 0.1, "{before}, {after}");
}
