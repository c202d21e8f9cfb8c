//! Tests through the public interface: whole kernels, faults, and single instructions against a
//! model.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod encoded;
mod faults;
mod forms;
mod kernels;
mod loads;
mod model;
mod numbers;
mod public;
mod semantics;
mod support;
mod tensor;
mod undefined;
mod vectors;
mod warp;
