//! The stage file: what is remembered of first light, for each device, and what follows from it at the next
//! start.
//!
//! A stage is written down, and synced with its directory, before it begins. One that has no end tells
//! that the machine went down in it, or, if the machine has not been started since, that the process did.
//! What a stage does is the device's; when stages run is the engine's.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::first_light::{Mode, Stage};
use jiff::{Timestamp, Unit};
use serde::{Deserialize, Serialize};

/// The file's name in the state directory.
pub const FILE: &str = "first-light.json";

/// Changes whenever an older program would misunderstand the file.
const VERSION: u32 = 1;

/// Everybody may read it, as `orinctl doctor` does, whatever the daemon's umask.
const MODE: u32 = 0o644;

/// No file of ours is larger: a device takes a few hundred bytes.
const LARGEST: u64 = 1 << 20;

/// How long another process may be in first light, which takes a second or two.
const PATIENCE: Duration = Duration::from_secs(30);

/// What clears a device that was found to take the machine down.
pub const RETRY: &str = "`orinctl doctor --retry-gpu`";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what} {}: {source}; first light is written down there before it begins: make that possible, or set another state_dir", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is damaged ({reason}), so whether the machine went down in first light is not known; if it did not, {RETRY} starts afresh", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{} has been locked by another process for {} s: another orind is in first light", path.display(), PATIENCE.as_secs())]
    Busy { path: PathBuf },
}

impl Error {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }
}

/// For what a proof holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Changes with every start of the machine; empty where the system does not tell.
    pub boot: String,
    pub kernel: String,
    /// The hardware and its driver.
    pub device: String,
    /// The program's version.
    pub orind: String,
}

impl Key {
    pub fn here(device: String) -> Self {
        // What cannot be read is not known, and not the same as anything.
        let read = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        Self {
            boot: read("/proc/sys/kernel/random/boot_id"),
            kernel: read("/proc/sys/kernel/osrelease"),
            device,
            orind: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    fn same_boot(&self, other: &Self) -> bool {
        !self.boot.is_empty() && self.boot == other.boot
    }

    /// The same machine, driver and version, started again or not.
    fn same_software(&self, other: &Self) -> bool {
        Self { boot: String::new(), ..self.clone() }
            == Self { boot: String::new(), ..other.clone() }
    }
}

/// A stage that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    pub stage: Stage,
    /// When, as people read it.
    pub at: String,
}

/// What is remembered of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub key: Key,
    /// The mode that was asked for; none of a device without modes.
    pub wanted: Option<Mode>,
    /// The stage that has not ended.
    pub under_way: Option<Begun>,
    /// Whether this run follows one in the same boot whose process ended in a stage.
    #[serde(default)]
    pub again: bool,
    /// What was passed, and in which mode.
    pub passed: Option<Passed>,
    /// Why it was not, in a run that came to its end.
    pub failed: Option<String>,
    /// What was found not to work, though a lower mode does without.
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    pub mode: Option<Mode>,
}

impl Record {
    /// Why the device must not be touched, for somebody who is in boot `now`.
    pub fn withheld(&self, now: &Key) -> Option<String> {
        let Begun { stage, at } = self.under_way.as_ref()?;
        if self.key.same_boot(now) {
            let lower = self.wanted.is_none_or(|wanted| wanted.chains.lower().is_some());
            if lower && !self.again {
                return None;
            }
            return Some(format!(
                "orind ended in stage `{stage}` of first light on {at}, more than once or in its lowest \
                 mode; {RETRY} lets it be tried again"
            ));
        }
        Some(format!(
            "the machine went down in stage `{stage}` of first light on {at}; {RETRY} lets it be tried \
             again"
        ))
    }
}

/// What a device may do at a start.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// It has passed since the machine was started.
    Known { mode: Option<Mode>, notes: Vec<String> },
    /// It has to be proven.
    Prove(Record),
    /// It must not be touched; why.
    Withheld(String),
}

/// All devices, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Book {
    version: u32,
    pub devices: BTreeMap<String, Record>,
}

impl Default for Book {
    fn default() -> Self {
        Self { version: VERSION, devices: BTreeMap::new() }
    }
}

impl Book {
    /// Reads what a file holds; the error says what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let book: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match book.version {
            VERSION => Ok(book),
            version => Err(format!("version {version}, this program knows {VERSION}")),
        }
    }

    /// What follows for a device from what is remembered.
    pub fn admit(&self, device: &str, key: Key, wanted: Option<Mode>) -> Admission {
        let mut new = Record { key, wanted, ..Record::default() };
        let Some(old) = self.devices.get(device) else { return Admission::Prove(new) };
        if let Some(reason) = old.withheld(&new.key) {
            return Admission::Withheld(reason);
        }
        let lower = |new: &mut Record, by: Option<Mode>| {
            if let (Some(wanted), Some(by)) = (&mut new.wanted, by) {
                wanted.chains = wanted.chains.max(by.chains);
            }
        };
        match (&old.under_way, old.passed) {
            // The process ended in a stage: once more, a rung lower.
            (Some(_), _) => {
                let rung = |mode: Mode| Some(Mode { chains: mode.chains.lower()?, ..mode });
                lower(&mut new, old.wanted.and_then(rung));
                new.again = true;
            }
            (None, Some(Passed { mode })) if old.key.same_software(&new.key) => {
                if old.key.same_boot(&new.key) && old.wanted == wanted {
                    return Admission::Known { mode, notes: old.notes.clone() };
                }
                // It did not work as was wanted, whatever was: that is not tried again at every start.
                let was_lowered =
                    mode.zip(old.wanted).is_some_and(|(mode, wanted)| mode.chains > wanted.chains);
                lower(&mut new, mode.filter(|_| was_lowered));
            }
            (None, _) => {}
        }
        Admission::Prove(new)
    }
}

/// Why a device must not be touched on this machine as it is, for somebody who does not prove it; `None` of those
/// that take no machine down.
pub fn withheld(dir: &Path, device: &str) -> Option<String> {
    if matches!(device, "cpu" | "reference") {
        return None;
    }
    match read(dir) {
        Ok(book) => book.devices.get(device)?.withheld(&Key::here(String::new())),
        Err(error) => Some(error.to_string()),
    }
}

/// The state directory's book, or an empty one where there is none yet.
pub fn read(dir: &Path) -> Result<Book, Error> {
    let path = dir.join(FILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Book::default()),
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(Error::io("read", &path))?;
    let damaged = |reason| Error::Damaged { path, reason };
    if bytes.len() as u64 > LARGEST {
        return Err(damaged(format!("more than {LARGEST} bytes")));
    }
    Book::parse(&bytes).map_err(damaged)
}

/// Forgets all that stands against a device: marks, failures, lowered modes, and a damaged file. Gives the
/// names of the devices that there was something about.
pub fn forget(dir: &Path) -> Result<Vec<String>, Error> {
    let path = dir.join(FILE);
    let names = match read(dir) {
        Ok(book) if book.devices.is_empty() => return Ok(Vec::new()),
        Ok(book) => book.devices.into_keys().collect(),
        Err(Error::Damaged { reason, .. }) => vec![format!("a damaged file ({reason})")],
        Err(error) => return Err(error),
    };
    let lock = Lock::acquire(&path)?;
    lock.write(&Book::default())?;
    Ok(names)
}

/// The right to write a state directory's book, until dropped.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _held: File,
}

impl Lock {
    fn acquire(path: &Path) -> Result<Self, Error> {
        let lock = path.with_extension("lock");
        let dir = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(dir).map_err(Error::io("make the directory", dir))?;
        // It stays: removing it would let two hold a lock of the same name. Whoever made it, reading is enough.
        let made = OpenOptions::new().create_new(true).append(true).mode(MODE).open(&lock);
        let file = made.or_else(|_| File::open(&lock)).map_err(Error::io("open", &lock))?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { path: path.to_owned(), _held: file }),
                Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: lock }),
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &lock)(error)),
            }
        }
    }

    /// When this returns, the book is on the disk under its name.
    fn write(&self, book: &Book) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(book).map_err(io::Error::from);
        let temporary = self.path.with_extension("tmp");
        let written = text.and_then(|text| {
            // What a process that ended has left may be another user's.
            let _ = fs::remove_file(&temporary);
            let mut file = OpenOptions::new().create_new(true).write(true).open(&temporary)?;
            file.set_permissions(Permissions::from_mode(MODE))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.map_err(Error::io("write", &temporary))?;
        fs::rename(&temporary, &self.path).map_err(Error::io("replace", &self.path))?;
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(Error::io("sync the directory", dir))
    }
}

/// One device's page, open for writing.
#[derive(Debug)]
pub struct Page {
    lock: Lock,
    book: Book,
    device: String,
}

impl Page {
    /// Waits until no other process writes, and reads.
    pub fn open(dir: &Path, device: &str) -> Result<Self, Error> {
        let lock = Lock::acquire(&dir.join(FILE))?;
        Ok(Self { lock, book: read(dir)?, device: device.to_owned() })
    }

    pub fn admit(&self, key: Key, wanted: Option<Mode>) -> Admission {
        self.book.admit(&self.device, key, wanted)
    }

    /// Writes down what is known now.
    pub fn write(&mut self, record: &Record) -> Result<(), Error> {
        self.book.devices.insert(self.device.clone(), record.clone());
        self.lock.write(&self.book)
    }

    /// Writes down that a device that has passed had to go on in another mode, and why.
    pub fn lowered(&mut self, mode: Mode, why: String) -> Result<(), Error> {
        let Some(record) = self.book.devices.get_mut(&self.device) else { return Ok(()) };
        record.passed = Some(Passed { mode: Some(mode) });
        record.notes.push(why);
        self.lock.write(&self.book)
    }
}

impl Begun {
    pub fn now(stage: Stage) -> Self {
        let now = Timestamp::now();
        Self { stage, at: now.round(Unit::Second).unwrap_or(now).to_string() }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.failed, self.passed) {
            (Some(why), _) => write!(f, "failed: {why}"),
            (None, Some(Passed { mode: Some(mode) })) => write!(f, "{mode}"),
            (None, Some(Passed { mode: None })) => f.write_str("passed"),
            (None, None) => f.write_str("not finished"),
        }?;
        self.notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::first_light::Chains;
    use proptest::prelude::*;

    fn full() -> Book {
        let record = Record {
            key: Key::here("a device".into()),
            wanted: Some(Mode::default()),
            under_way: Some(Begun::now(Stage::Order)),
            again: true,
            passed: Some(Passed { mode: Some(Mode { chains: Chains::Serial, ..Mode::default() }) }),
            failed: Some("7 where 8 was expected".into()),
            notes: vec!["event: not woken".into()],
        };
        Book { devices: [("nv".to_owned(), record)].into(), ..Book::default() }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), Book::default());
        let lock = Lock::acquire(&dir.path().join(FILE)).unwrap();
        for book in [full(), Book::default(), full()] {
            lock.write(&book).unwrap();
            assert_eq!(read(dir.path()).unwrap(), book);
            let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, MODE);
        }
        let other =
            OpenOptions::new().append(true).open(dir.path().join("first-light.lock")).unwrap();
        assert!(other.try_lock().is_err(), "nobody else writes meanwhile");
    }

    #[test]
    fn a_boot_that_cannot_be_told_is_another_one() {
        let key = Key { boot: String::new(), ..Key::here("a device".into()) };
        let mut book = full();
        let record = book.devices.get_mut("nv").unwrap();
        (record.key, record.again) = (key.clone(), false);
        assert!(
            matches!(book.admit("nv", key, None), Admission::Withheld(why) if why.contains("went down"))
        );
    }

    proptest! {
        /// A few bytes of a file changed, cut or put in: a book that can be used, or an error.
        #[test]
        fn any_damage_is_answered(
            at in 0.0..1.0f64, cut in 0usize..40, put in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = serde_json::to_vec_pretty(&full()).unwrap();
            let at = (at * bytes.len() as f64) as usize;
            let end = (at + cut).min(bytes.len());
            bytes.splice(at..end, put);
            if let Ok(book) = Book::parse(&bytes) {
                for wanted in [None, Some(Mode::default())] {
                    book.admit("nv", Key::here("a device".into()), wanted);
                }
                for record in book.devices.values() {
                    let _ = (record.to_string(), record.withheld(&Key::default()));
                }
            }
        }

        #[test]
        fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Book::parse(&bytes);
        }
    }
}
