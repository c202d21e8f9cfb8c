//! Functions and layers against PyTorch: the operator suite on the reference and CPU devices, and
//! training step by step.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod convolutions;
mod followed;
mod training;

use device::Device;
use device::cpu::Cpu;
use device::reference::Reference;
use parity::ops;

/// Devices under test.
fn devices() -> Vec<Box<dyn Device>> {
    vec![Box::new(Reference), Box::new(Cpu::detect())]
}

#[test]
fn losses_match_pytorch() {
    training::check_losses(training::LOSSES.lines());
}

/// Every operation, forward and backward, in one process.
#[test]
fn operations_match_pytorch_on_the_reference_and_the_cpu() {
    let all = ops::all().unwrap();
    assert!(all.len() >= 409, "{} cases", all.len());
    for device in devices() {
        let tally = ops::run(&all, &*device).unwrap();
        let name = device.info().name;
        assert!(tally.failures.is_empty(), "{name}: {}", tally.failures.join("\n"));
        assert!(tally.skips.is_empty(), "{name}: {}", tally.skips.join("\n"));
        let passed: usize = tally.categories.values().map(|counts| counts.passed).sum();
        assert_eq!(passed, all.len(), "{name}");
    }
}
