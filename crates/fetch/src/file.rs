//! A file to download: its URL, its destination, and its announced size and checksum.

use std::path::{Path, PathBuf};

use crate::sum::Sum;

/// Destination of downloads.
#[derive(Clone, Copy, Debug)]
pub enum Folder<'a> {
    /// A cache: files are stored below the host or repository they are from, where
    /// [`find`](crate::find) looks them up by name.
    Cache(&'a Path),
    /// One folder for all files, by their own names.
    Flat(&'a Path),
}

/// A file to download.
#[derive(Clone, Debug)]
pub struct File {
    pub url: String,
    /// Destination path.
    pub path: PathBuf,
    pub(crate) bytes: Option<u64>,
    pub(crate) sum: Option<Sum>,
    /// True for files of the hub, which receives the token.
    pub(crate) hub: bool,
}

impl File {
    /// True if a checksum is known.
    #[must_use]
    pub const fn is_checked(&self) -> bool {
        self.sum.is_some()
    }
}

/// Destination of a file with the given path in the cache.
pub(crate) fn place(folder: Folder, below: PathBuf) -> PathBuf {
    match folder {
        Folder::Cache(cache) => cache.join(below),
        Folder::Flat(folder) => folder.join(below.file_name().unwrap_or_default()),
    }
}
