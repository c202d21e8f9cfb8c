//! The examples as tests: shorter training runs on the CPU, up to the accuracy stated here.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[expect(dead_code, reason = "an example's main")]
#[path = "../examples/digits.rs"]
mod digits;
#[expect(dead_code, reason = "an example's main")]
#[path = "../examples/gpt.rs"]
mod gpt;

use std::num::NonZeroUsize;

use device::cpu::{Cpu, Isa};

/// One thread, since tests run in parallel.
fn cpu() -> Cpu {
    Cpu::new(Isa::detect(), NonZeroUsize::MIN)
}

/// Fraction of held-out digits that a network recognises after `steps` steps.
fn trained(network: fn(&mut nn::layers::Net) -> nn::Result, steps: usize) -> f32 {
    let mut trainer = digits::trainer(&cpu(), network).unwrap();
    for number in 0..steps {
        digits::step(&mut trainer, number).unwrap();
    }
    digits::accuracy(&mut trainer, 16).unwrap()
}

#[test]
fn a_perceptron_recognises_nine_digits_of_ten() {
    let right = trained(digits::mlp, 800);
    assert!(right > 0.9, "{right}");
}

#[test]
fn a_convolutional_network_recognises_nineteen_digits_of_twenty() {
    let right = trained(digits::convolutional, 200);
    assert!(right > 0.95, "{right}");
}

#[test]
fn a_gpt_beats_bigrams() {
    let (text, trained) = gpt::text();
    let (trained, held_out) = text.split_at(trained);
    let mut trainer = gpt::trainer(&cpu()).unwrap();
    for number in 0..300 {
        gpt::step(&mut trainer, trained, number).unwrap();
    }
    let own = gpt::loss(&mut trainer, held_out).unwrap();
    let pairs = gpt::counted(trained, held_out, 2);
    assert!(own < pairs, "{own}, {pairs}");
}
