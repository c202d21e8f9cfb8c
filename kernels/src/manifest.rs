//! `prebuilt/manifest.json`: inputs of the checked-in machine code and the resources of each
//! kernel.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Contents of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`crate::source::hash`] at the time of the build.
    pub sources: String,
    /// Name and version of the compiler.
    pub compiler: String,
    /// Options of every compilation.
    pub options: Vec<String>,
    /// Files by name.
    pub files: BTreeMap<String, File>,
    /// Resources of each kernel on sm_87, by symbol.
    pub kernels: BTreeMap<String, Usage>,
}

/// A file of machine code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// SHA-256 of the unpacked file.
    pub sha256: String,
    /// Size of the unpacked file.
    pub bytes: usize,
    /// [`crate::source::unit_hash`] when the file was compiled.
    pub unit: String,
    /// Bytes of spills and stack, over all kernels of the file; 0 for PTX.
    pub spilled: u32,
}

/// Resources of a kernel on sm_87.
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
    /// Blocks per SM of GA10B, ignoring dynamic shared memory.
    pub blocks_per_sm: u32,
}
