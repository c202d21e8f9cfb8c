//! The parity suite: every device that is here against the reference. The CPU always, NV on the simulated Orin
//! that is linked into this program, CUDA where there is a GPU; what is not here is skipped, and said so.
//!
//! Rows: [`steps`] (every step over shapes, types, extremes), [`fusion`] (fused equals unfused, launch
//! counts), [`types`] (models of every type), [`queues`] (signal, wait, copy, timestamps, many
//! queues), [`replay`] (new inputs, many recordings, interleaved, nothing left behind).

mod fusion;
mod queues;
mod replay;
mod steps;
mod types;

use std::sync::Arc;

use device::{Device, named};
use model::Model;
use orind_testing::tiny;

/// The devices that can be used here, without the reference.
fn devices() -> Vec<Arc<dyn Device>> {
    let found = ["cpu", "nv", "cuda"].into_iter().filter_map(|name| match named(name, "auto", 2) {
        Ok(device) => Some(device),
        Err(reason) => {
            println!("{name}: skipped, {reason}");
            None
        }
    });
    let found: Vec<_> = found.collect();
    let has = |name| found.iter().any(|device| device.info().name == name);
    assert!(has("cpu") && has("nv"), "the CPU and the simulated Orin are always here");
    found
}

fn model(name: &str) -> Model {
    Model::open(tiny(name)).unwrap()
}
