//! Shared test support of the workspace. Has no dependencies without features, so every crate's
//! tests may use it.
//!
//! | feature | contents | for the tests of |
//! | --- | --- | --- |
//! | `numerics` | `docs/numerics.md` in scalars, and rows of weights | all crates that compute |
//! | `machine` | kernels executed instruction by instruction | `orind-kernels` and above |
//! | `device` | a model on a device, driven through the device interface; models with unusual weights, adapters | `orind` |
//! | `engine` | load a model, send a request, collect the answer | `orind` |
//! | `nodes` | ONNX's node tests, a model with external data; with `daemon` also published chat templates | `orind-onnx` and above |
//! | `daemon` | a daemon with its own socket, clients of its control loops, programs on terminals, pages in browsers, the page cache | `orind` |
//!
//! A crate's integration tests may use a feature that depends on the crate itself. Its unit tests
//! may not: they would see each of its types twice. The simulated Orin interposes on libc for the
//! whole program that links it, so a test program must opt in itself: `use tegra_sim_preload as
//! _;`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

#[cfg(feature = "device")]
pub mod adapters;
#[cfg(feature = "daemon")]
pub mod browser;
#[cfg(feature = "daemon")]
pub mod control_loop;
#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(feature = "engine")]
pub mod engine;
#[cfg(feature = "nodes")]
pub mod external;
pub mod loopback;
#[cfg(feature = "machine")]
pub mod machine;
pub mod measured;
#[cfg(feature = "device")]
pub mod model_variants;
#[cfg(feature = "nodes")]
pub mod nodes;
#[cfg(feature = "numerics")]
pub mod numerics;
#[cfg(feature = "daemon")]
pub mod page_cache;
pub mod program;
pub mod random;
#[cfg(feature = "device")]
pub mod session;
#[cfg(feature = "device")]
pub mod shapes;
#[cfg(all(feature = "daemon", feature = "nodes"))]
pub mod templates;
#[cfg(feature = "daemon")]
pub mod terminal;
#[cfg(feature = "numerics")]
pub mod weights;

/// Path of a file in the repository.
pub fn repository(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    root.join(path)
}

/// Path of a file in `tests/data`.
pub fn data(path: &str) -> PathBuf {
    repository("tests/data").join(path)
}

/// Path of a tiny model, such as `tiny-llama-Q8_0`.
pub fn tiny(model: &str) -> String {
    data(&format!("models/{model}.gguf")).to_str().unwrap().to_owned()
}

/// True if tests should run every case, however long it takes: `ORIND_TEST_FULL=1`.
pub fn full() -> bool {
    std::env::var_os("ORIND_TEST_FULL").is_some()
}
