//! Tuning store: a directory with one TOML file per device.
//!
//! - `record`: contents of an entry; `key`: its hardware; `format`: its text
//! - `disk`: atomic writes; `journal`: unfinished searches; `compare`: changes between two states
//!
//! [`Store::read`] returns the usable entries and reasons for ignoring the others; [`Store::merge`]
//! adds entries. Nothing is ever dropped: stale, invalid or damaged content is preserved and
//! reported. [`Declared`] describes kernels and their parameters.

mod compare;
mod disk;
mod error;
mod format;
mod journal;
mod key;
mod record;
#[cfg(test)]
mod tests;

pub use compare::{Change, Snapshot, compare};
pub use error::StoreError;
pub use format::{Added, File, FormatError, Unusable, VERSION};
pub use journal::{Journal, Topic, Tried, Verdict};
pub use key::{CLOCK_BAND_MHZ, DeviceKey};
pub use record::{
    Candidates, Case, Choice, Clock, Cost, Heuristic, Record, Rejected, When, describe,
};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use disk::{Lock, PATIENCE};

/// This program's kernels of a device, for validating records.
pub trait Declared {
    /// Hash of the sources of a case's kernels, in hexadecimal; `None` if there are no such
    /// kernels.
    fn source(&self, case: &Case) -> Option<String>;

    /// Returns whether the choice would run the machine code that was measured.
    ///
    /// # Errors
    ///
    /// A description of the change.
    fn still(&self, record: &Record) -> Result<(), String> {
        let _ = record;
        Ok(())
    }

    /// Returns whether the choice is valid for the case.
    ///
    /// # Errors
    ///
    /// The unknown parameter, or the value and its range.
    fn admits(&self, case: &Case, choice: &Choice) -> Result<(), String>;
}

/// Contents of a file, sorted by usability.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Records that are valid for this program's kernels.
    pub current: Vec<Record>,
    /// Outdated records, each with the reason.
    pub stale: Vec<(Record, String)>,
    /// Invalid entries, each with its case and the reason.
    pub ignored: Vec<(String, String)>,
    /// Path and reason if the whole file is unusable. The next merge renames it.
    pub damaged: Option<(PathBuf, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Records of new cases.
    pub added: usize,
    /// Records that replaced others.
    pub changed: usize,
    /// Records that are older than, or equal to, existing ones.
    pub known: usize,
    /// New name of an unusable file.
    pub set_aside: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    pub merged: Merged,
    /// Records that are outdated for this program's kernels, with the reason; not imported.
    pub stale: Vec<(Record, String)>,
    /// Invalid entries, with their case and the reason; not imported.
    pub ignored: Vec<(String, String)>,
}

/// A file in the store's directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub path: PathBuf,
    /// Contents, or the reason for ignoring the file.
    pub content: Result<File, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    dir: PathBuf,
}

/// State of a device's file.
enum Found {
    Nothing,
    Own(File),
    /// An unusable file: the suffix for renaming it, and the reason.
    Other(&'static str, String),
}

impl Store {
    /// A store in a directory, which is created on the first write.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    #[must_use]
    pub fn path(&self, key: &DeviceKey) -> PathBuf {
        self.dir.join(key.stem() + ".toml")
    }

    /// Reads a device's records for one clock: simulated counts are never used as times. Needs no
    /// lock, because files are replaced atomically.
    ///
    /// # Errors
    ///
    /// [`StoreError::Newer`], or the file cannot be read. A damaged file is no error, see
    /// [`Loaded::damaged`].
    pub fn read(
        &self,
        key: &DeviceKey,
        clock: Clock,
        declared: &dyn Declared,
    ) -> Result<Loaded, StoreError> {
        Ok(match self.find(key)? {
            Found::Nothing => Loaded::default(),
            Found::Own(file) => Loaded::sort(file, clock, declared),
            Found::Other(_, why) => {
                Loaded { damaged: Some((self.path(key), why)), ..Loaded::default() }
            }
        })
    }

    /// Adds records to a device's file. They are durable on return; on failure the file is
    /// unchanged. Several processes may merge at once.
    pub fn merge(&self, key: &DeviceKey, records: &[Record]) -> Result<Merged, StoreError> {
        for record in records {
            record.plausible().map_err(|why| {
                let case = record.case.to_string();
                StoreError::Implausible { case, why }
            })?;
        }
        let mut merged = Merged::default();
        if records.is_empty() {
            return Ok(merged);
        }
        let path = self.path(key);
        let lock = Lock::acquire(&path, PATIENCE)?;
        let mut file = match self.find(key)? {
            Found::Own(file) => file,
            Found::Nothing => File::new(key.clone()),
            Found::Other(word, _) => {
                merged.set_aside = Some(lock.set_aside(word)?);
                File::new(key.clone())
            }
        };
        for record in records {
            match file.add(record.clone()) {
                Added::New => merged.added += 1,
                Added::Changed => merged.changed += 1,
                Added::Known => merged.known += 1,
            }
        }
        if merged.added + merged.changed > 0 {
            lock.replace(&file.text())?;
        }
        Ok(merged)
    }

    /// Imports another store's records of the same device that are valid for this program's
    /// kernels. The caller checks that the device is one of this machine.
    pub fn import(&self, file: File, declared: &dyn Declared) -> Result<Imported, StoreError> {
        let key = file.key.clone();
        // Records of both clocks are imported.
        let sort = |clock| {
            let of = |record: &&Record| record.cost.clock() == clock;
            let records = file.records.iter().filter(of).cloned().collect();
            let unusable = Vec::new();
            Loaded::sort(File { key: key.clone(), records, unusable }, clock, declared)
        };
        let (mut all, counted) = (sort(Clock::Measured), sort(Clock::Counted));
        all.current.extend(counted.current);
        all.stale.extend(counted.stale);
        all.ignored.extend(counted.ignored);
        all.ignored.extend(file.unusable.into_iter().map(|u| (u.about(), u.why)));
        let merged = self.merge(&key, &all.current)?;
        Ok(Imported { merged, stale: all.stale, ignored: all.ignored })
    }

    /// Every device's file, by name.
    ///
    /// # Errors
    ///
    /// The directory cannot be read; a missing one is empty.
    pub fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let failed = |e| StoreError::io("read the directory", &self.dir, e);
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(failed(e)),
        };
        let mut listed = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let content = open(&path).map_err(reason).and_then(|file| {
                    if path.file_stem().is_some_and(|stem| *stem == *file.key.stem()) {
                        Ok(file)
                    } else {
                        Err(foreign(&file.key))
                    }
                });
                listed.push(Listed { path, content });
            }
        }
        listed.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(listed)
    }

    fn find(&self, key: &DeviceKey) -> Result<Found, StoreError> {
        let path = self.path(key);
        let Some(bytes) = disk::read(&path)? else { return Ok(Found::Nothing) };
        match parse(&bytes) {
            Ok(file) if file.key == *key => Ok(Found::Own(file)),
            Ok(file) => Ok(Found::Other("foreign", foreign(&file.key))),
            Err(FormatError::Newer(version)) => {
                Err(StoreError::Newer { path, version, known: VERSION })
            }
            Err(FormatError::Damaged(why)) => Ok(Found::Other("damaged", why)),
        }
    }
}

/// Reason for ignoring a file, without its name.
fn reason(error: StoreError) -> String {
    match error {
        StoreError::Io { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}

/// Reads a tuning file, in a store or exported.
///
/// # Errors
///
/// It cannot be read, or is no tuning file.
pub fn open(path: &Path) -> Result<File, StoreError> {
    let failed = |e| StoreError::io("read", path, e);
    let bytes =
        disk::read(path)?.ok_or_else(|| failed(io::Error::from_raw_os_error(libc::ENOENT)))?;
    parse(&bytes).map_err(|error| match error {
        FormatError::Newer(version) => {
            StoreError::Newer { path: path.to_owned(), version, known: VERSION }
        }
        FormatError::Damaged(why) => failed(io::Error::new(io::ErrorKind::InvalidData, why)),
    })
}

fn parse(bytes: &[u8]) -> Result<File, FormatError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => File::parse(text),
        Err(error) => {
            let at = error.valid_up_to();
            Err(FormatError::Damaged(format!("byte {at} is not UTF-8")))
        }
    }
}

fn foreign(key: &DeviceKey) -> String {
    format!("it is about another device: {key}")
}

impl Loaded {
    /// Logs ignored content with the reasons.
    pub fn tell(&self) {
        for (record, why) in &self.stale {
            tracing::info!(case = %record.case, %why, "ignoring a stale tuning entry");
        }
        for (about, why) in &self.ignored {
            tracing::warn!(%about, %why, "ignoring an invalid tuning entry");
        }
        if let Some((file, why)) = &self.damaged {
            tracing::warn!(file = %file.display(), %why, "ignoring the tuning file");
        }
    }

    /// Sorts a file's entries by usability.
    #[must_use]
    pub fn sort(file: File, clock: Clock, declared: &dyn Declared) -> Self {
        let mut loaded = Self::default();
        for unusable in file.unusable {
            loaded.ignored.push((unusable.about(), unusable.why));
        }
        for record in file.records {
            match state(&record, clock, declared) {
                State::Current => loaded.current.push(record),
                State::Stale(why) => loaded.stale.push((record, why)),
                State::Ignored(why) => loaded.ignored.push((record.case.to_string(), why)),
            }
        }
        loaded
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Current,
    /// Outdated, or valid elsewhere.
    Stale(String),
    /// Invalid.
    Ignored(String),
}

/// Returns whether a record may be used with this clock and these kernels.
#[must_use]
pub fn state(record: &Record, clock: Clock, declared: &dyn Declared) -> State {
    if record.cost.clock() != clock {
        return State::Stale(match clock {
            Clock::Measured => "counted by the simulator, not measured".into(),
            Clock::Counted => "measured on hardware, not counted by the simulator".into(),
        });
    }
    match declared.source(&record.case) {
        None => State::Stale("this program has no such kernels".into()),
        Some(source) if source != record.source => {
            let short = |hash: &str| hash.get(..8).unwrap_or(hash).to_owned();
            let (then, now) = (short(&record.source), short(&source));
            State::Stale(format!("the kernels have changed: {then} before, {now} now"))
        }
        Some(_) => match declared.still(record) {
            Err(why) => State::Stale(why),
            Ok(()) => match declared.admits(&record.case, &record.choice) {
                Ok(()) => State::Current,
                Err(why) => State::Ignored(why),
            },
        },
    }
}
