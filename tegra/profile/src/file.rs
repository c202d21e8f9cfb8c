//! Reading a profile that nobody vouches for, and writing one so that a crash leaves the last whole
//! one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{FORMAT, Profile, VERSION, check};

/// Most bytes of a file: a full one has some hundred kilobytes.
pub const MOST_BYTES: usize = 8 << 20;

/// Why a file is no profile, or cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("it has more than {MOST_BYTES} bytes: no profile has")]
    TooLarge,
    #[error("it is no profile: {0}")]
    Json(#[from] serde_json::Error),
    #[error(
        "its format is {found:?}, not {FORMAT:?}: a file that `orinctl first-contact` wrote is needed"
    )]
    Format { found: String },
    /// A version that this program does not know.
    #[error(
        "it has version {found}, this program reads version {VERSION}: make it anew, or use a newer program"
    )]
    Version { found: u64 },
    /// A part that no run writes.
    #[error("{what}")]
    Invalid { what: String },
    /// A file that was to be made.
    #[error(
        "{} is there already and is never overwritten: `--resume {}` goes on with it, `-o` writes another file",
        path.display(), path.display()
    )]
    Exists { path: PathBuf },
    /// Any of these, of a named file.
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: Box<Error> },
}

/// What every version has.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: String,
    #[serde(default)]
    version: u64,
}

impl Profile {
    /// Reads a profile out of bytes that nobody vouches for.
    ///
    /// # Errors
    /// [`Error`] says which part is none of a profile's.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > MOST_BYTES {
            return Err(Error::TooLarge);
        }
        // A later version may have another shape: its number is the better error.
        let head: Head = serde_json::from_slice(bytes)?;
        check::head(&head.format, head.version)?;
        let profile: Self = serde_json::from_slice(bytes)?;
        profile.check()?;
        Ok(profile)
    }

    /// Whether [`Profile::parse`] would take it.
    pub fn check(&self) -> Result<(), Error> {
        check::profile(self)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`Profile::parse`], with the file's name.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.into(), source };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(io)?;
        file.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
        Self::parse(&bytes).map_err(|error| Error::File { path: path.into(), error: error.into() })
    }

    /// As [`Profile::read`], and `None` where there is no such file.
    pub fn read_if_there(path: &Path) -> Result<Option<Self>, Error> {
        match Self::read(path) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// The file's text.
    pub fn to_json(&self) -> Result<String, Error> {
        Ok(compact_numbers(&serde_json::to_string_pretty(self)?))
    }

    /// As [`Profile::write`], for a name that must be free: [`Error::Exists`].
    pub fn create(&self, path: &Path) -> Result<(), Error> {
        if path.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: path.into() });
        }
        self.write(path)
    }

    /// Writes the file and has it on the disk with its name: whoever reads it, also after the whole
    /// machine went down, sees the last one written whole.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let io = |source| Error::Io { path: path.into(), source };
        let text = self.to_json()?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(".part");
        let beside = PathBuf::from(beside);
        let written = File::create(&beside).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        let named = written.and_then(|()| std::fs::rename(&beside, path));
        // The name is the directory's: without this the file of before may come back.
        named.and_then(|()| File::open(directory(path))?.sync_all()).map_err(|source| {
            // Nothing is kept of it; that it cannot be removed either changes nothing.
            let _ = std::fs::remove_file(&beside);
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
        // Strings have no raw line feeds, so a line that ends so opens a list. Lists of objects go
        // on with a brace.
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
