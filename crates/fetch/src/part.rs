//! Partial file of a download: next to its destination under a temporary name, locked, with a
//! running checksum and the server's validator.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::sum::Sum;

/// Magic bytes of a GGUF file.
const MAGIC: [u8; 4] = *b"GGUF";

pub(crate) struct Part {
    /// Destination path.
    place: PathBuf,
    path: PathBuf,
    /// File with the validator: the server's `ETag` or `Last-Modified`.
    notes: PathBuf,
    file: File,
    length: u64,
    begins: Vec<u8>,
    sum: Sha256,
}

impl Part {
    /// Opens the partial file of an earlier try, or an empty one.
    pub(crate) fn open(place: &Path, read: &mut dyn FnMut(u64, u64)) -> Result<Self, Error> {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let path = place.with_file_name(format!(".{name}.part"));
        let notes = place.with_file_name(format!(".{name}.from"));
        let failed = |source| Error::File { path: path.clone(), source };
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder)
                .map_err(|source| Error::File { path: folder.into(), source })?;
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: place.into() }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let total = file.metadata().map_err(failed)?.len();
        let mut part = Self {
            place: place.into(),
            file,
            length: 0,
            begins: Vec::new(),
            sum: Sha256::new(),
            notes,
            path: path.clone(),
        };
        let mut from = part.file.try_clone().map_err(failed)?;
        let mut buffer = vec![0; 1 << 17];
        loop {
            match from.read(&mut buffer).map_err(failed)? {
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
        Error::File { path: self.path.clone(), source }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|source| self.failed(source))?;
        self.count(bytes);
        Ok(())
    }

    /// The first bytes, if they cannot be those of a GGUF file; `whole` if no more bytes follow.
    pub(crate) fn wrong_beginning(&self, whole: bool) -> Option<String> {
        let right = if whole { self.begins == MAGIC } else { MAGIC.starts_with(&self.begins) };
        (!right).then(|| String::from_utf8_lossy(&self.begins).escape_debug().to_string())
    }

    pub(crate) fn validator(&self) -> Option<String> {
        fs::read_to_string(&self.notes).ok().filter(|text| !text.is_empty())
    }

    /// Truncates the file and stores a new validator.
    pub(crate) fn begin(&mut self, validator: Option<&str>) -> Result<(), Error> {
        self.file.set_len(0).map_err(|source| self.failed(source))?;
        let notes = fs::write(&self.notes, validator.unwrap_or_default());
        notes.map_err(|source| Error::File { path: self.notes.clone(), source })?;
        (self.length, self.begins, self.sum) = (0, Vec::new(), Sha256::new());
        Ok(())
    }

    pub(crate) fn sum(&self) -> Sum {
        Sum(self.sum.clone().finalize().into())
    }

    /// Moves the file to its destination.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let done = self.file.sync_all().and_then(|()| fs::rename(&self.path, &self.place));
        done.map_err(|source| self.failed(source))?;
        self.forget(&self.notes)
    }

    /// Removes a partial file that cannot be completed.
    pub(crate) fn discard(self) -> Result<(), Error> {
        self.forget(&self.path)?;
        self.forget(&self.notes)
    }

    fn forget(&self, path: &Path) -> Result<(), Error> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed(error)),
            _ => Ok(()),
        }
    }
}
