//! Errors of the tuning store. None of them loses the contents of a file.

use std::io;
use std::path::{Path, PathBuf};

/// Reason why the store cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "{} has version {version} of the format, this program knows {known}; it is left as it is: \
         update orind, or set another tune_dir",
        path.display()
    )]
    Newer { path: PathBuf, version: i64, known: i64 },
    #[error("{case}: not stored: {why}")]
    Implausible { case: String, why: String },
    /// No space for the new file; the old one is unchanged.
    #[error(
        "no space to write {}: {source}; the old file is unchanged: free some space, or set another \
         tune_dir",
        path.display()
    )]
    Full { path: PathBuf, source: io::Error },
    #[error(
        "{} has been locked by another process for {waited_s} s; nothing was stored: stop that \
         process (see `fuser {}`) and try again",
        path.display(),
        path.display()
    )]
    Busy { path: PathBuf, waited_s: u64 },
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

impl StoreError {
    /// The system's error for a file.
    pub(super) fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::Full { path, source },
            _ => Self::Io { what, path, source },
        }
    }
}
