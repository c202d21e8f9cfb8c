//! Source of a model's bytes: a file with positional reads, or memory.
//!
//! A file is read, not mapped. Every device repacks weights for its kernels, so the bytes of the file are used once
//! and a mapping would save no copy. It would add page faults and count the file's pages as memory of the process.
//! Reading a file that has shrunk, or a bad disk, is an error with an offset; loading from a mapping would raise
//! `SIGBUS`.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use files::RegularFile;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::error::{Defect, Error};

/// A file, or a buffer in place of one, and its name in messages.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    /// Length when it was opened.
    pub(super) len: u64,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    File(RegularFile),
    Memory(Vec<u8>),
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = RegularFile::open(path)
            .map_err(|cause| Error::Open { path: path.to_owned(), cause })?;
        Ok(Self { path: path.to_owned(), len: file.len(), bytes: Bytes::File(file) })
    }

    /// The file, unless the bytes are in memory.
    pub(super) const fn file(&self) -> Option<&RegularFile> {
        match &self.bytes {
            Bytes::File(file) => Some(file),
            Bytes::Memory(_) => None,
        }
    }

    pub(super) fn memory(bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self { path: PathBuf::from("(memory)"), len, bytes: Bytes::Memory(bytes) }
    }

    /// Fills `buf` from byte `offset`. `field` names the field in errors.
    pub(super) fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        field: impl Fn() -> String,
    ) -> Result<(), Error> {
        let done = match &self.bytes {
            Bytes::File(file) => file.file().read_exact_at(buf, offset),
            Bytes::Memory(bytes) => usize::try_from(offset)
                .ok()
                .and_then(|at| bytes.get(at..)?.get(..buf.len()))
                .map(|from| buf.copy_from_slice(from))
                .ok_or_else(|| io::ErrorKind::UnexpectedEof.into()),
        };
        done.map_err(|cause| match cause.kind() {
            io::ErrorKind::UnexpectedEof => {
                let have = self.len_now().saturating_sub(offset);
                self.malformed(offset, field(), Defect::Ends { need: buf.len() as u64, have })
            }
            _ => Error::Read { path: self.path.clone(), offset, field: field(), cause },
        })
    }

    /// Drops the file from the page cache. This is a hint that the system may ignore. It covers the whole file,
    /// because a range would spare the pages that it covers only in part, and those may be megabytes large.
    pub(super) fn forget(&self) {
        if let Bytes::File(file) = &self.bytes {
            _ = posix_fadvise(file.file(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
    }

    pub(super) fn malformed(&self, offset: u64, field: String, defect: Defect) -> Error {
        Error::Malformed { path: self.path.clone(), offset, field, defect }
    }

    fn len_now(&self) -> u64 {
        match &self.bytes {
            Bytes::File(file) => file.file().metadata().map_or(0, |m| m.len()),
            Bytes::Memory(bytes) => bytes.len() as u64,
        }
    }
}
