//! `prebuilt/manifest.json`: what the checked-in machine code was made from, and what it uses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`crate::source::hash`] at the time of the build.
    pub sources: String,
    /// The compiler, as it names itself.
    pub compiler: String,
    /// Options of every compilation.
    pub options: Vec<String>,
    /// Each file by name.
    pub files: BTreeMap<String, File>,
    /// What each kernel uses on sm_87, by symbol.
    pub kernels: BTreeMap<String, Usage>,
}

/// A file of machine code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// SHA-256.
    pub sha256: String,
    /// Bytes.
    pub bytes: usize,
    /// [`crate::source::unit_hash`] at the time it was compiled.
    pub unit: String,
    /// Bytes of spills and stack, over all kernels of the file; 0 for PTX.
    pub spilled: u32,
}

/// What a kernel uses on sm_87.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared: u64,
    /// Stack of a thread, in bytes.
    pub stack: u32,
    /// Bytes stored by spills.
    pub spill_stores: u32,
    /// Bytes loaded by spills.
    pub spill_loads: u32,
    /// Bytes of code.
    pub code: usize,
    /// Blocks that an SM of GA10B holds, dynamic shared memory not counted.
    pub blocks_per_sm: u32,
}
