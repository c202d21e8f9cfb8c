//! Fault bundles: what a GPU fault left, in one file, so that its launches can be run again elsewhere.
//!
//! Owns the format; `directory` owns where a program keeps such files, and how many. A file is a line
//! that names it, a line of JSON ([`Header`]), and the bytes that the header's contents describe, one
//! after the other. A bundle is not trusted: everything in it is checked against the file and against
//! limits. Who writes one is the daemon or the simulator; the simulator runs it. Knows no GPU.

mod directory;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use directory::{Directory, KEPT, KEPT_BYTES};

/// The first line.
const MAGIC: &str = "tegra fault bundle 2\n";
/// Bytes of the longest header.
const HEADER: u64 = 16 << 20;
/// Bytes of memory that a bundle holds at most.
pub const LIMIT: u64 = 64 << 20;

/// Why a bundle cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file cannot be read or written.
    #[error("bundle {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The file is something else.
    #[error("bundle {}: not a fault bundle of version 2", path.display())]
    Magic { path: PathBuf },
    #[error("bundle {}: header: {source}", path.display())]
    Header { path: PathBuf, source: serde_json::Error },
    /// The header says what cannot be.
    #[error("bundle {}: {what}", path.display())]
    Contents { path: PathBuf, what: String },
}

/// What is known of a fault, beside memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program, with its version.
    pub writer: String,
    /// When, as people read it; none where time is simulated.
    pub at: Option<String>,
    /// The GPU, in a line.
    pub device: String,
    /// Its channel.
    pub channel: u32,
    /// What happened, in a word: `mmu-fault`, `hang`, a broken rule's name.
    pub rule: String,
    /// The error notifier's code; none where the driver recorded nothing, as of work that hangs.
    pub notifier: Option<u32>,
    pub message: String,
    /// Where SMs stopped, as far as the driver tells: addresses of instructions.
    pub stopped_at: Vec<u64>,
    /// The last methods of the stream, decoded, and where in it the channel was.
    pub stream: Vec<String>,
    /// The launches that were under way, in the order in which they run: the first of them that fails
    /// is the one.
    pub launches: Vec<Launch>,
    /// The channel's window of shared memory.
    pub shared_window: u64,
    /// The channel's window of local memory.
    pub local_window: u64,
    /// Where local memory is kept.
    pub local_memory: LocalMemory,
    /// Every mapping of the address space.
    pub mappings: Vec<Mapping>,
    /// What the bundle holds of it, in the order of the bytes. Memory is as the fault left it: what
    /// kernels had written by then is written.
    pub contents: Vec<Range>,
    /// What it should hold and does not: it is too large, or could not be read.
    pub left_out: Vec<Range>,
    /// What only a simulated GPU knows.
    pub simulated: Option<Simulated>,
}

/// One launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Where it stands in its program, and its kernel's name; empty where nobody knows.
    pub name: String,
    /// Address of the QMD.
    pub qmd: u64,
    /// The QMD; empty when it could not be read.
    pub words: Vec<u32>,
}

/// What a simulated GPU knows of a launch beyond what an Orin tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Simulated {
    /// The fault was made to happen on request.
    pub injected: bool,
    /// Chance of the launch.
    pub seed: u64,
    /// GPU time of the launch, in nanoseconds.
    pub time: u64,
    /// What shader code was checked for, by name.
    pub checks: String,
}

/// The backing store of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalMemory {
    /// Where it lies.
    pub base: u64,
    /// Bytes of each TPC's share.
    pub bytes_per_tpc: u64,
    /// SMs that may use it.
    pub max_sms: u32,
}

/// One mapping of the address space.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// What the memory is for; empty where nobody knows.
    pub what: String,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Range {
    pub va: u64,
    pub bytes: u64,
}

/// A fault, and the memory that its launches name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    pub header: Header,
    /// The bytes of each of the header's contents.
    pub memory: Vec<Vec<u8>>,
}

impl Header {
    /// Reads a file's header, and none of its memory.
    ///
    /// # Errors
    /// [`BundleError`] for everything that is not as [`Bundle::write`] leaves it.
    pub fn read(path: &Path) -> Result<Self, BundleError> {
        Ok(Self::begin(path)?.0)
    }

    /// The header, and the file behind it.
    fn begin(path: &Path) -> Result<(Self, BufReader<File>), BundleError> {
        let failed = |source| BundleError::Io { path: path.to_owned(), source };
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        let mut magic = Vec::new();
        file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic).map_err(failed)?;
        if magic != MAGIC.as_bytes() {
            return Err(BundleError::Magic { path: path.to_owned() });
        }
        let mut line = Vec::new();
        file.by_ref().take(HEADER).read_until(b'\n', &mut line).map_err(failed)?;
        let header: Self = serde_json::from_slice(&line)
            .map_err(|source| BundleError::Header { path: path.to_owned(), source })?;
        let total = header.contents.iter().fold(0u64, |sum, part| sum.saturating_add(part.bytes));
        if total > LIMIT {
            let what = format!("{total:#x} bytes of memory, limit {LIMIT:#x}");
            return Err(BundleError::Contents { path: path.to_owned(), what });
        }
        Ok((header, file))
    }
}

impl Bundle {
    /// Writes a new file at a path.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), BundleError> {
        File::create(path)
            .and_then(|mut file| self.write_to(&mut file))
            .map_err(|source| BundleError::Io { path: path.to_owned(), source })
    }

    fn write_to(&self, file: &mut impl Write) -> io::Result<()> {
        let header = serde_json::to_string(&self.header)?;
        file.write_all(format!("{MAGIC}{header}\n").as_bytes())?;
        self.memory.iter().try_for_each(|bytes| file.write_all(bytes))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`BundleError`] for everything that is not as [`Bundle::write`] leaves it.
    pub fn read(path: &Path) -> Result<Self, BundleError> {
        let failed = |source| BundleError::Io { path: path.to_owned(), source };
        let wrong = |what| BundleError::Contents { path: path.to_owned(), what };
        let (header, mut file) = Header::begin(path)?;
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
