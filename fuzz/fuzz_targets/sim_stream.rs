//! Fuzzes the simulated GPU with arbitrary rings, command streams, QMDs and memory: it may reject
//! them, but must not crash or hang.
//!
//! Run with `cargo +nightly fuzz run sim_stream`. The ordinary tests of `tegra-sim` also replay the
//! corpus.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tegra/sim/tests/suite/gpu/stream.rs"]
mod stream;

fuzz_target!(|data: &[u8]| stream::run(data));
