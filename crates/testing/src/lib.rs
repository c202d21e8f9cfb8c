//! What the workspace's tests share. Without features it depends on nothing: every crate's tests may use it.
//!
//! | feature | what | for the tests of |
//! | --- | --- | --- |
//! | `numerics` | `docs/numerics.md` in scalars, and rows of weights | whatever computes |
//! | `machine` | kernels executed instruction by instruction | `orind-kernels` and above |
//! | `device` | a model on a device, driven through the seam; models with odd weights, adapters | `orind` |
//! | `engine` | load, ask, collect the answer | `orind` |
//! | `nodes` | ONNX's tests of nodes, a model with files beside it | `orind-onnx` and above |
//! | `daemon` | a daemon on a socket of its own, clients of its lanes, programs on terminals and pages in browsers of their own, the page cache | `orind` |
//!
//! A crate's integration tests may use a feature that depends on the crate itself. Its unit tests may not:
//! they would meet every type of it twice. The simulated Orin stands in below libc, for the whole program
//! that links it, so a test program that wants it says so itself: `use tegra_sim_preload as _;`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

#[cfg(feature = "device")]
pub mod adapters;
#[cfg(feature = "daemon")]
pub mod browser;
#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(feature = "engine")]
pub mod engine;
#[cfg(feature = "nodes")]
pub mod external;
#[cfg(feature = "daemon")]
pub mod lane;
pub mod loopback;
#[cfg(feature = "machine")]
pub mod machine;
pub mod measured;
#[cfg(feature = "nodes")]
pub mod nodes;
#[cfg(feature = "numerics")]
pub mod numerics;
#[cfg(feature = "device")]
pub mod odd;
#[cfg(feature = "daemon")]
pub mod page_cache;
pub mod program;
pub mod random;
#[cfg(feature = "device")]
pub mod session;
#[cfg(feature = "device")]
pub mod shapes;
#[cfg(feature = "daemon")]
pub mod terminal;
#[cfg(feature = "numerics")]
pub mod weights;

/// A file of the repository, by its path from the root.
pub fn repository(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    root.join(path)
}

/// A file of `tests/data`.
pub fn data(path: &str) -> PathBuf {
    repository("tests/data").join(path)
}

/// The file of a tiny model, as `tiny-llama-Q8_0`.
pub fn tiny(model: &str) -> String {
    data(&format!("models/{model}.gguf")).to_str().unwrap().to_owned()
}

/// Whether tests are to run all that they can, however long it takes: `ORIND_TEST_FULL=1`.
pub fn full() -> bool {
    std::env::var_os("ORIND_TEST_FULL").is_some()
}
