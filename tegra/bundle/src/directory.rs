//! The directory of a program's bundles: the most recent ones, within a size limit.
//!
//! Bundles are numbered, so that the newest is known even if the clock was wrong. A bundle is
//! written under another name, synced and renamed: a file with a bundle's name is complete. Only
//! one process writes at a time, so an unfinished file is left from a process that died, and is
//! removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{Bundle, BundleError};

/// Name of the directory in the state directory.
const NAME: &str = "faults";

/// Maximum number of bundles, and their maximum total size: the oldest are removed first.
pub const MAX_BUNDLES: usize = 8;
/// See [`MAX_BUNDLES`].
pub const MAX_BYTES: u64 = 256 << 20;

const BEGIN: &str = "fault-";
const END: &str = ".bundle";
/// Suffix of a bundle's name while it is written.
const UNFINISHED: &str = ".unfinished";

/// Bundles contain the model's data: only their owner may read them.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A directory of bundles.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// The directory of a program with this state directory. It is created for the first bundle.
    #[must_use]
    pub fn of_state(state: &Path) -> Self {
        Self(state.join(NAME))
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the bundles, oldest first.
    ///
    /// # Errors
    /// If it exists and cannot be read.
    pub fn list(&self) -> io::Result<Vec<PathBuf>> {
        let mut found: Vec<(u64, PathBuf)> = self
            .entries()?
            .into_iter()
            .filter_map(|path| Some((number(path.file_name()?.to_str()?)?, path)))
            .collect();
        found.sort();
        Ok(found.into_iter().map(|(_, path)| path).collect())
    }

    fn entries(&self) -> io::Result<Vec<PathBuf>> {
        match fs::read_dir(&self.0) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// A number above those of all bundles.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        let newest = self.list().unwrap_or_default().pop();
        let newest = newest.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        newest.and_then(number).map_or(1, |number| number.saturating_add(1))
    }

    /// Path of a bundle with a number and a time such as `20261123T140509Z`.
    #[must_use]
    pub fn place(&self, number: u64, time: &str) -> PathBuf {
        self.0.join(format!("{BEGIN}{time}-{number}{END}"))
    }

    /// Writes a bundle to `place`, then removes the oldest ones above the limits. The bundle is on
    /// the disk when this returns; a failed write leaves no file.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn keep(&self, place: &Path, bundle: &Bundle) -> Result<(), BundleError> {
        self.write(place, bundle)
            .map_err(|source| BundleError::Io { path: place.to_owned(), source })
    }

    fn write(&self, place: &Path, bundle: &Bundle) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&self.0)?;
        let directory = File::open(&self.0)?;
        directory.lock()?;
        let is_unfinished =
            |path: &PathBuf| path.extension().is_some_and(|e| e == &UNFINISHED[1..]);
        for left in self.entries()?.iter().filter(|path| is_unfinished(path)) {
            fs::remove_file(left)?;
        }
        let unfinished = place.with_extension(&UNFINISHED[1..]);
        let file =
            OpenOptions::new().create_new(true).write(true).mode(FILE_MODE).open(&unfinished);
        let written = file.and_then(|mut file| {
            bundle.write_to(&mut file)?;
            file.sync_all()?;
            fs::rename(&unfinished, place)
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
        directory.sync_all()?;
        self.prune(place)
    }

    /// Removes the oldest bundles, but never `newest`.
    fn prune(&self, newest: &Path) -> io::Result<()> {
        let (mut count, mut bytes) = (0, 0u64);
        for path in self.list()?.into_iter().rev() {
            count += 1;
            bytes = bytes.saturating_add(fs::metadata(&path)?.len());
            if (count > MAX_BUNDLES || bytes > MAX_BYTES) && path != newest {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

/// The number in a bundle's name.
fn number(name: &str) -> Option<u64> {
    let (_, number) = name.strip_prefix(BEGIN)?.strip_suffix(END)?.rsplit_once('-')?;
    number.parse().ok()
}
