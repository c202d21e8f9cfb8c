//! Where bytes come from: a file read by position, or memory.
//!
//! A file is read, not mapped. Every device lays weights out anew (the CPU packs them in the order of
//! its kernels, a GPU in that of its own), so their bytes in the file are used once and mapping would
//! save no copy: it would add page faults, and count the file's pages to the process. And a read of a
//! file that has shrunk, or of a bad disk, is an error that names the place; a load from a mapping is
//! `SIGBUS`, which no thread of a server can answer.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::{Defect, Error};

/// One file (or a buffer standing in for one) and its name in messages.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    /// Length when it was opened.
    pub(super) len: u64,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    File(File),
    Memory(Vec<u8>),
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let fail = |cause| Error::Open { path: path.to_owned(), cause };
        // A pipe that nobody writes to would keep an open without this waiting for ever; to a file it is
        // nothing.
        let open = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = open.map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        if !meta.is_file() {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(fail(cause));
        }
        Ok(Self { path: path.to_owned(), len: meta.len(), bytes: Bytes::File(file) })
    }

    pub(super) fn memory(bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self { path: PathBuf::from("(memory)"), len, bytes: Bytes::Memory(bytes) }
    }

    /// Fills `buf` from byte `offset` on; `field` names what is read if that fails.
    pub(super) fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        field: impl Fn() -> String,
    ) -> Result<(), Error> {
        let done = match &self.bytes {
            Bytes::File(file) => file.read_exact_at(buf, offset),
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

    /// Lets the system drop what it keeps of it in memory. It is a hint: where it is not taken, nothing is lost. Of a
    /// range only pages would go that lie in it whole, and pages of a file may be of megabytes.
    pub(super) fn forget(&self) {
        if let Bytes::File(file) = &self.bytes {
            _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
    }

    pub(super) fn malformed(&self, offset: u64, field: String, defect: Defect) -> Error {
        Error::Malformed { path: self.path.clone(), offset, field, defect }
    }

    fn len_now(&self) -> u64 {
        match &self.bytes {
            Bytes::File(file) => file.metadata().map_or(0, |m| m.len()),
            Bytes::Memory(bytes) => bytes.len() as u64,
        }
    }
}
