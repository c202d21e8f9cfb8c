//! Errors of reading or writing a profile.

use std::io;
use std::path::PathBuf;

use super::{FORMAT, VERSION};

/// Maximum bytes of a file: a full one has a few hundred kilobytes.
pub const MAX_BYTES: usize = 8 << 20;

/// Error of an invalid profile or of its file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("larger than {MAX_BYTES} bytes: not a profile")]
    TooLarge,
    #[error("not a profile: {0}")]
    Json(#[from] serde_json::Error),
    #[error(
        "format {found:?} instead of {FORMAT:?}: use a file written by `orinctl first-contact`"
    )]
    Format { found: String },
    #[error(
        "version {found} instead of {VERSION}: create the profile again, or use a newer program"
    )]
    Version { found: u64 },
    /// A value that no run writes.
    #[error("{what}")]
    Invalid { what: String },
    /// The new file exists already.
    #[error(
        "{} exists and is never overwritten: `--resume {}` continues it, `-o` writes another file",
        path.display(), path.display()
    )]
    Exists { path: PathBuf },
    /// Any of these, with the file's name.
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: Box<Error> },
}
