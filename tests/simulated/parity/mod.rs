//! The parity suite: available devices compared with the reference. The CPU and NV (on the simulated Orin) are always
//! available, CUDA with a GPU; missing devices are skipped with a message.
//!
//! Rows: [`steps`] (every step over shapes, types, extremes), [`fusion`] (fused equals unfused, launch
//! counts), [`types`] (models of every type), [`queues`] (signal, wait, copy, timestamps, many
//! queues), [`replay`] (new inputs, many recordings, interleaved, no residue).

mod fusion;
mod queues;
mod replay;
mod steps;
mod types;

use std::sync::Arc;

use device::{Device, named};
use model::Model;
use orind_testing::tiny;

/// Available devices, without the reference.
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
    assert!(has("cpu") && has("nv"), "the CPU and the simulated Orin are always available");
    found
}

fn model(name: &str) -> Model {
    Model::open(tiny(name)).unwrap()
}
