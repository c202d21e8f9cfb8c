//! Fuzzes the ONNX reader: it may reject arbitrary bytes; accepted models build for small inputs or
//! fail with an error.
//!
//! Run with `cargo +nightly fuzz run onnx`; the models in `tests/data/onnx/nodes.bin.z` are a
//! corpus.

#![no_main]

use std::collections::BTreeMap;

use device::cpu::Cpu;
use libfuzzer_sys::fuzz_target;
use onnx::{Array, Extent, Model, Network};

fuzz_target!(|data: &[u8]| {
    let Ok(model) = Model::parse(data) else { return };
    let mut inputs = BTreeMap::new();
    for input in model.inputs() {
        let extent = |extent: Extent| if let Extent::Of(n) = extent { n } else { 2 };
        let shape: Vec<usize> = input.shape.unwrap_or_default().into_iter().map(extent).collect();
        let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        let Some(count) = count.filter(|count| *count <= 1 << 16) else { return };
        inputs.insert(input.name, Array { elem: input.elem, shape, values: vec![1.0; count] });
    }
    if let Ok(mut network) = Network::of(&model, &Cpu::detect(), &inputs) {
        drop(network.run(&inputs));
    }
});
