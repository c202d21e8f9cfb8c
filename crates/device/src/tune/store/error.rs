//! How the store fails. None of it loses what is in a file.

use std::io;
use std::path::{Path, PathBuf};

/// Why the store cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is of a later version of this program.
    #[error(
        "{} has version {version} of the format, this program knows {known}; it is left as it is: \
         update orind, or set another tune_dir",
        path.display()
    )]
    Newer {
        path: PathBuf,
        version: i64,
        /// The latest version that is understood.
        known: i64,
    },
    /// A record that cannot have been measured was to be stored.
    #[error("{case}: not stored: {why}")]
    Implausible {
        /// What the record is about.
        case: String,
        why: String,
    },
    /// No room for the new file; the old one is as it was.
    #[error(
        "no room to write {}: {source}; what was stored is as before: free some space there, or set \
         another tune_dir",
        path.display()
    )]
    Full {
        /// The file that could not be written.
        path: PathBuf,
        source: io::Error,
    },
    /// Another process has held the lock for too long.
    #[error(
        "{} has been locked by another process for {waited_s} s; nothing was stored: stop that \
         process (`fuser {}` names it) and try again",
        path.display(),
        path.display()
    )]
    Busy {
        path: PathBuf,
        /// Seconds waited.
        waited_s: u64,
    },
    /// Any other failure of the file system.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was to be done.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl StoreError {
    /// What the system said about a file.
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
