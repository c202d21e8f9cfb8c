//! The simulated GPU on arbitrary rings, streams, QMDs and memory: it may refuse them, but it must
//! not crash or hang.
//!
//! Run with `cargo +nightly fuzz run sim_stream`. The corpus beside this file is also replayed by
//! the ordinary tests of `tegra-sim`.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tegra/sim/tests/suite/gpu/stream.rs"]
mod stream;

fuzz_target!(|data: &[u8]| stream::run(data));
