//! Reading an untrusted profile, and writing one atomically.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Profile, check};
use crate::error::{Error, MAX_BYTES};

/// Fields common to all versions.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: String,
    #[serde(default)]
    version: u64,
}

impl Profile {
    /// Parses untrusted bytes.
    ///
    /// # Errors
    /// [`Error`] names the invalid part.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > MAX_BYTES {
            return Err(Error::TooLarge);
        }
        // A later version may have another layout: its number is the better error.
        let head: Head = serde_json::from_slice(bytes)?;
        check::head(&head.format, head.version)?;
        let profile: Self = serde_json::from_slice(bytes)?;
        profile.check()?;
        Ok(profile)
    }

    /// Returns an error if [`Profile::parse`] would reject it.
    pub fn check(&self) -> Result<(), Error> {
        check::profile(self)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Errors of [`Profile::parse`], with the file's name.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.into(), source };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(io)?;
        file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
        Self::parse(&bytes).map_err(|error| Error::File { path: path.into(), error: error.into() })
    }

    /// Like [`Profile::read`], but `None` if the file does not exist.
    pub fn read_if_there(path: &Path) -> Result<Option<Self>, Error> {
        match Self::read(path) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Serialises the profile.
    pub fn to_json(&self) -> Result<String, Error> {
        Ok(compact_numbers(&serde_json::to_string_pretty(self)?))
    }

    /// Like [`Profile::write`], but returns [`Error::Exists`] if the file exists.
    pub fn create(&self, path: &Path) -> Result<(), Error> {
        if path.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: path.into() });
        }
        self.write(path)
    }

    /// Writes the file atomically and syncs it with its directory: after a crash of the whole
    /// machine a reader sees the last complete version.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let io = |source| Error::Io { path: path.into(), source };
        let text = self.to_json()?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(".part");
        let partial = PathBuf::from(partial);
        let written = File::create(&partial).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        let named = written.and_then(|()| std::fs::rename(&partial, path));
        // Without a sync of the directory the old file could reappear after a crash.
        named.and_then(|()| File::open(directory(path))?.sync_all()).map_err(|source| {
            // Best effort: the original error is the one to report.
            let _ = std::fs::remove_file(&partial);
            io(source)
        })
    }
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Puts lists of numbers on one line: a series of a thousand samples is a line, not a thousand.
fn compact_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        out.push_str(line);
        // Strings have no raw line feeds, so such a line opens a list. Lists of objects continue
        // with a brace.
        let mut separator = if line.ends_with('[') { "" } else { "\n" };
        if separator.is_empty() {
            for item in lines.by_ref() {
                let item = item.trim_start();
                if item.starts_with('{') {
                    out.push('\n');
                    out.push_str(&" ".repeat(indent(line) + 2));
                    out.push_str(item);
                    separator = "\n";
                    break;
                }
                out.push_str(item);
                if item.starts_with(']') {
                    separator = "\n";
                    break;
                }
            }
        }
        out.push_str(separator);
    }
    out
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}
