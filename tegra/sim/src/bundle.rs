//! Fault bundles: a failed launch in one file, so that it can be run again elsewhere.
//!
//! Owns the format. A file is a line that names it, a line of JSON ([`Header`]), and the bytes that
//! the header's contents describe, one after the other. A bundle is not trusted: everything in it is
//! checked against the file and against limits.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Checks;

/// The first line.
const MAGIC: &str = "tegra-sim fault bundle 1\n";
/// Bytes of the longest header.
const HEADER: u64 = 16 << 20;
/// Bytes of memory that a bundle holds at most.
pub const LIMIT: u64 = 64 << 20;

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file cannot be read or written.
    #[error("bundle {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// The file is something else.
    #[error("bundle {path}: not a fault bundle of version 1")]
    Magic { path: PathBuf },
    #[error("bundle {path}: header: {source}")]
    Header { path: PathBuf, source: serde_json::Error },
    /// The header says what cannot be.
    #[error("bundle {path}: {what}")]
    Contents { path: PathBuf, what: String },
}

/// What is known of a failed launch, beside memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub channel: u16,
    /// The broken rule's name.
    pub rule: String,
    /// The error notifier's code.
    pub notifier: u32,
    pub message: String,
    /// The fault was made to happen on request.
    pub injected: bool,
    /// The last methods of the stream, decoded, and where in it the channel was.
    pub stream: Vec<String>,
    /// Address of the QMD.
    pub qmd: u64,
    /// The QMD; empty when it could not be read.
    pub words: Vec<u32>,
    /// Chance of the launch.
    pub seed: u64,
    /// GPU time of the launch, in nanoseconds.
    pub time: u64,
    /// What shader code was checked for.
    pub checks: Checks,
    /// The channel's window of shared memory.
    pub shared_window: u64,
    /// The channel's window of local memory.
    pub local_window: u64,
    /// Where local memory is kept.
    pub local_memory: LocalMemory,
    pub mappings: Vec<Mapping>,
    /// What the bundle holds of it, in the order of the bytes. Memory is as the launch left it: what
    /// the kernel had written by then is written.
    pub contents: Vec<Range>,
    /// What it should hold and does not, for its size.
    pub left_out: Vec<Range>,
}

/// The backing store of local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalMemory {
    /// Where it lies.
    pub base: u64,
    /// Bytes of each TPC's share.
    pub bytes_per_tpc: u64,
    /// SMs that may use it.
    pub max_sms: u32,
}

/// One mapping of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    pub va: u64,
    pub bytes: u64,
    /// Whether the GPU may write.
    pub writable: bool,
    /// Whether L2 may keep it.
    pub cacheable: bool,
    /// Whether its page-table entries are valid.
    pub valid: bool,
}

/// Addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub va: u64,
    pub bytes: u64,
}

/// A failed launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    pub header: Header,
    /// The bytes of each of the header's contents.
    pub memory: Vec<Vec<u8>>,
}

impl Bundle {
    /// Writes the file.
    pub fn write(&self, path: &Path) -> Result<(), BundleError> {
        let failed = |source| BundleError::Io { path: path.to_owned(), source };
        let header = serde_json::to_string(&self.header)
            .map_err(|source| BundleError::Header { path: path.to_owned(), source })?;
        let mut file = File::create(path).map_err(failed)?;
        let text = format!("{MAGIC}{header}\n");
        file.write_all(text.as_bytes()).map_err(failed)?;
        self.memory.iter().try_for_each(|bytes| file.write_all(bytes)).map_err(failed)
    }

    /// Reads a file. [`BundleError`] for everything that is not as [`Bundle::write`] leaves it.
    pub fn read(path: &Path) -> Result<Self, BundleError> {
        let owned = || path.to_owned();
        let failed = |source| BundleError::Io { path: owned(), source };
        let wrong = |what| BundleError::Contents { path: owned(), what };
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        let mut magic = Vec::new();
        file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic).map_err(failed)?;
        if magic != MAGIC.as_bytes() {
            return Err(BundleError::Magic { path: owned() });
        }
        let mut line = Vec::new();
        file.by_ref().take(HEADER).read_until(b'\n', &mut line).map_err(failed)?;
        let header: Header = serde_json::from_slice(&line)
            .map_err(|source| BundleError::Header { path: owned(), source })?;
        let total = header.contents.iter().fold(0u64, |sum, part| sum.saturating_add(part.bytes));
        if total > LIMIT {
            return Err(wrong(format!("{total:#x} bytes of memory, limit {LIMIT:#x}")));
        }
        let mut memory = Vec::with_capacity(header.contents.len());
        for Range { va, bytes } in &header.contents {
            let mut found = Vec::new();
            file.by_ref().take(*bytes).read_to_end(&mut found).map_err(failed)?;
            if found.len() as u64 != *bytes {
                let got = found.len();
                return Err(wrong(format!("memory at {va:#x} ends after {got} of {bytes} bytes")));
            }
            memory.push(found);
        }
        if !file.fill_buf().map_err(failed)?.is_empty() {
            return Err(wrong("more bytes than the header says".to_owned()));
        }
        Ok(Self { header, memory })
    }
}
