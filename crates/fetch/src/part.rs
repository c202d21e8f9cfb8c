//! Partial file of a download: next to its destination under a temporary name, locked, with a
//! running checksum and the server's validator.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::directory::Directory;
use crate::error::Error;
use crate::sum::Sum;

/// Magic bytes of a GGUF file.
const MAGIC: [u8; 4] = *b"GGUF";

/// Longest validator that is stored.
const LONGEST_VALIDATOR: u64 = 1024;

pub(crate) struct Part<'a> {
    directory: &'a Directory,
    /// Destination path.
    place: PathBuf,
    name: OsString,
    /// Name of the file with the validator: the server's `ETag` or `Last-Modified`.
    notes: OsString,
    file: File,
    length: u64,
    begins: Vec<u8>,
    sum: Sha256,
}

impl<'a> Part<'a> {
    /// Opens the partial file of an earlier try, or an empty one. Empties one that is longer than
    /// the file, of which the size may be known.
    pub(crate) fn open(
        directory: &'a Directory,
        place: &Path,
        bytes: Option<u64>,
        read: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        let final_name = place.file_name().unwrap_or_default();
        let hidden = |end: &str| {
            let mut name = OsString::from(".");
            name.push(final_name);
            name.push(end);
            name
        };
        let (name, notes) = (hidden(".part"), hidden(".from"));
        let failed = |source| Error::File { path: place.with_file_name(&name), source };
        let file = directory.own(&name)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: place.into() }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let total = file.metadata().map_err(failed)?.len();
        let too_long = bytes.is_some_and(|bytes| total > bytes);
        if too_long {
            file.set_len(0).map_err(failed)?;
        }
        let mut from = file.try_clone().map_err(failed)?.take(if too_long { 0 } else { total });
        let (length, begins, sum) = (0, Vec::new(), Sha256::new());
        let place = place.to_owned();
        let mut part = Self { directory, place, name, notes, file, length, begins, sum };
        let mut buffer = vec![0; 1 << 17];
        loop {
            match from.read(&mut buffer).map_err(|source| part.failed(source))? {
                0 => break,
                count => part.count(&buffer[..count]),
            }
            read(part.length, total);
        }
        Ok(part)
    }

    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    fn count(&mut self, bytes: &[u8]) {
        let missing = MAGIC.len().saturating_sub(self.begins.len());
        self.begins.extend(bytes.iter().take(missing));
        self.sum.update(bytes);
        self.length += bytes.len() as u64;
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::File { path: self.place.with_file_name(&self.name), source }
    }

    /// As [`Directory::room`].
    pub(crate) fn room(&self, needs: u64) -> Result<u64, Error> {
        self.directory.room(needs)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => {
                Error::Full { path: self.place.with_file_name(&self.name) }
            }
            _ => self.failed(source),
        })?;
        self.count(bytes);
        Ok(())
    }

    /// The first bytes, if they cannot be those of a GGUF file; `whole` if no more bytes follow.
    pub(crate) fn wrong_beginning(&self, whole: bool) -> Option<String> {
        let right = if whole { self.begins == MAGIC } else { MAGIC.starts_with(&self.begins) };
        (!right).then(|| String::from_utf8_lossy(&self.begins).escape_debug().to_string())
    }

    pub(crate) fn validator(&self) -> Option<String> {
        let text = self.directory.note(&self.notes, LONGEST_VALIDATOR)?;
        is_header(&text).then_some(text)
    }

    /// Truncates the file and stores a new validator.
    pub(crate) fn begin(&mut self, validator: Option<&str>) -> Result<(), Error> {
        self.file.set_len(0).map_err(|source| self.failed(source))?;
        let validator = validator.filter(|text| is_header(text)).unwrap_or_default();
        self.directory.write_note(&self.notes, validator)?;
        (self.length, self.begins, self.sum) = (0, Vec::new(), Sha256::new());
        Ok(())
    }

    pub(crate) fn sum(&self) -> Sum {
        Sum(self.sum.clone().finalize().into())
    }

    /// Moves the file to its destination.
    pub(crate) fn finish(self) -> Result<(), Error> {
        self.file.sync_all().map_err(|source| self.failed(source))?;
        let to = self.place.file_name().unwrap_or_default();
        self.directory.rename(&self.file, &self.name, to)?;
        self.directory.remove(&self.notes)
    }

    /// Removes a partial file that cannot be completed.
    pub(crate) fn discard(self) -> Result<(), Error> {
        self.directory.remove(&self.name)?;
        self.directory.remove(&self.notes)
    }
}

/// True for a validator that can be stored and sent.
fn is_header(text: &str) -> bool {
    let visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    !text.is_empty() && text.len() as u64 <= LONGEST_VALIDATOR && text.bytes().all(visible)
}
