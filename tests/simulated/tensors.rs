//! Tensor programs on the simulated Orin: operations and training compared with PyTorch, random programs with the
//! reference.

#[expect(dead_code, reason = "an example, of which the test needs parts")]
#[path = "../../crates/nn/examples/digits.rs"]
mod digits;
#[path = "../../crates/device/tests/tensors/draw.rs"]
mod draw;
#[path = "../../crates/device/tests/tensors/programs.rs"]
mod programs;
#[path = "../../crates/device/tests/tensors/special.rs"]
mod special;
#[path = "../../crates/nn/tests/networks/training.rs"]
mod training;

use std::collections::BTreeSet;

use device::Device;
use device::cpu::Cpu;
use device::gpu::nv::Nv;
use draw::Draw;
use parity::case::noise;
use parity::ops::{self, Op};

/// Random programs of each run of the gate; [`nightly_random_programs_equal_the_reference`] runs more.
const PROGRAMS: u64 = 4;

fn devices() -> Vec<Box<dyn Device>> {
    vec![Box::new(Nv::detect().unwrap())]
}

fn check_operations(operations: &[Op]) {
    let tally = ops::run(operations, &Nv::detect().unwrap()).unwrap();
    assert_eq!((tally.failures, tally.skips), (vec![], vec![]));
    let passed: usize = tally.categories.values().map(|counts| counts.passed).sum();
    assert_eq!(passed, operations.len());
}

/// The first case of each operation and category, forward and backward.
#[test]
fn each_operation_matches_pytorch() {
    let mut seen = BTreeSet::new();
    let mut operations = ops::all().unwrap();
    operations.retain(|op| {
        let name = op.name.split(' ').next().unwrap_or_default();
        seen.insert((op.category, name.to_owned()))
    });
    assert!(operations.len() > 300, "{} operations", operations.len());
    check_operations(&operations);
}

#[test]
#[ignore = "nightly"]
fn nightly_operations_of_every_shape_match_pytorch() {
    check_operations(&ops::all().unwrap());
}

#[test]
#[ignore = "nightly"]
fn nightly_random_programs_equal_the_reference() {
    for seed in PROGRAMS..32 {
        let mut draw = Draw::new(seed);
        let case = programs::case(|s| {
            let mut pool = Vec::new();
            for i in 0..3 {
                let most = [3, 40][draw.below(2)];
                let shape = draw.shape(most);
                let values = noise(seed * 10 + i, shape.iter().product());
                pool.push(s.floats(&format!("x{i}"), &shape, values)?);
            }
            for _ in 0..30 {
                programs::grow(&mut s.g, &mut pool, &mut draw)?;
            }
            Ok(pool)
        });
        programs::assert_same(&case, 2e-4, &format!("seed {seed}"));
    }
}

/// A line of `tests/data/nn/losses.txt` names network, optimiser and losses.
fn losses(optimiser: &str) -> impl Iterator<Item = &'static str> {
    training::LOSSES.lines().filter(move |line| line.split(' ').nth(1) == Some(optimiser))
}

/// Adam updates two states for each weight; the convolutional network adds batch norm and pooling.
#[test]
fn losses_of_adam_match_pytorch() {
    training::check_losses(losses("adam"));
}

#[test]
#[ignore = "nightly"]
fn nightly_losses_of_every_optimiser_match_pytorch() {
    for optimiser in ["sgd", "momentum", "nesterov", "adamw", "lamb"] {
        training::check_losses(losses(optimiser));
    }
}

/// Trains the example of `crates/nn` for a few steps on both devices.
#[test]
#[ignore = "nightly"]
fn nightly_perceptron_learns_digits_as_on_the_cpu() {
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
