//! Fault bundles: the state after a GPU fault, in one file, so that its launches can be replayed
//! elsewhere.
//!
//! Owns the format; `directory` owns the storage of such files. A file consists of a line that
//! identifies it, a line of JSON ([`Header`]), and the bytes of the header's `contents`, one after
//! the other. Bundles are untrusted: everything in one is checked against the file and against
//! limits. The daemon or the simulator writes bundles; the simulator replays them. Independent of any GPU.

mod directory;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use directory::{Directory, MAX_BUNDLES, MAX_BYTES};

/// The first line.
const MAGIC: &str = "tegra fault bundle 2\n";
/// Maximum size of the header in bytes.
const HEADER: u64 = 16 << 20;
/// Maximum bytes of memory in a bundle.
pub const LIMIT: u64 = 64 << 20;

/// Error of writing or reading a bundle.
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
    /// The header is inconsistent.
    #[error("bundle {}: {what}", path.display())]
    Contents { path: PathBuf, what: String },
}

/// Description of a fault, without memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program, with its version.
    pub writer: String,
    /// Time for people; none if time is simulated.
    pub at: Option<String>,
    /// The GPU, in one line.
    pub device: String,
    /// Channel that faulted.
    pub channel: u32,
    /// Kind of fault: `mmu-fault`, `hang`, the name of a broken rule.
    pub rule: String,
    /// The error notifier's code; none if the driver recorded nothing, as for hung work.
    pub notifier: Option<u32>,
    pub message: String,
    /// Addresses of the instructions at which SMs stopped, as reported by the driver.
    pub stopped_at: Vec<u64>,
    /// The last methods of the stream, decoded, and the channel's position in it.
    pub stream: Vec<String>,
    /// The launches in flight, in execution order: the first one that fails is the culprit.
    pub launches: Vec<Launch>,
    /// The channel's window of shared memory.
    pub shared_window: u64,
    /// The channel's window of local memory.
    pub local_window: u64,
    /// Backing store of local memory.
    pub local_memory: LocalMemory,
    /// Every mapping of the address space.
    pub mappings: Vec<Mapping>,
    /// Memory ranges in the bundle, in the order of their bytes. Memory is as the fault left it,
    /// with all writes of kernels until then.
    pub contents: Vec<Range>,
    /// Ranges that should be in the bundle and are not: too large, or unreadable.
    pub left_out: Vec<Range>,
    /// Facts that only a simulated GPU knows.
    pub simulated: Option<Simulated>,
}

/// One launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Position of the launch in its program, and its kernel's name; empty if unknown.
    pub name: String,
    /// Address of the QMD.
    pub qmd: u64,
    /// The QMD; empty when it could not be read.
    pub words: Vec<u32>,
}

/// Facts about a launch that only a simulated GPU knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Simulated {
    /// The fault was injected on request.
    pub injected: bool,
    /// Seed of the launch's random numbers.
    pub seed: u64,
    /// GPU time of the launch, in nanoseconds.
    pub time: u64,
    /// Names of the checks applied to shader code.
    pub checks: String,
}

/// The backing store of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalMemory {
    /// First GPU address.
    pub base: u64,
    /// Bytes of each TPC's share.
    pub bytes_per_tpc: u64,
    /// SMs that may use it.
    pub max_sms: u32,
}

/// One mapping of the address space.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Purpose of the memory; empty if unknown.
    pub what: String,
    pub va: u64,
    pub bytes: u64,
    /// The GPU may write.
    pub writable: bool,
    /// L2 may cache it.
    pub cacheable: bool,
    /// True if the page-table entries are valid.
    pub valid: bool,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Range {
    pub va: u64,
    pub bytes: u64,
}

/// A fault, and the memory that its launches refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    pub header: Header,
    /// The bytes of each of the header's `contents`.
    pub memory: Vec<Vec<u8>>,
}

impl Header {
    /// Reads a file's header, without its memory.
    ///
    /// # Errors
    /// [`BundleError`] for everything that [`Bundle::write`] would not write.
    pub fn read(path: &Path) -> Result<Self, BundleError> {
        Ok(Self::begin(path)?.0)
    }

    /// The header, and the file positioned after it.
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
    /// Writes a new file.
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
    /// [`BundleError`] for everything that [`Bundle::write`] would not write.
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
            return Err(wrong("more bytes than in the header's contents".to_owned()));
        }
        Ok(Self { header, memory })
    }
}
