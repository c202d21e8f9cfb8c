//! The bring-up state file: results of first light, per device, and their consequences at the next start.
//!
//! A bring-up step is recorded, and synced with its directory, before it begins. A step without an end means that
//! the machine crashed in it, or, without a reboot since, that the process did. The device defines the steps; the
//! engine decides when they run.

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

/// Name of the file in the state directory.
pub const FILE: &str = "first-light.json";

/// Format version; changes whenever an older program would misread the file.
const VERSION: u32 = 1;

/// Mode of the file: everybody may read it, as `orinctl doctor` does, with any umask of the daemon.
const MODE: u32 = 0o644;

/// Maximum size of the file in bytes. A device takes a few hundred.
const LARGEST: u64 = 1 << 20;

/// Maximum wait for another process in first light, which takes a second or two.
const PATIENCE: Duration = Duration::from_secs(30);

/// Command that clears the record of a device that crashed the machine.
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

/// Conditions under which a result stays valid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Boot id; empty if the system reports none.
    pub boot: String,
    pub kernel: String,
    /// Hardware and driver.
    pub device: String,
    /// Version of the program.
    pub orind: String,
}

impl Key {
    pub fn here(device: String) -> Self {
        // An unreadable value is unknown, and equal to no other.
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

    /// True for the same machine, driver and version, rebooted or not.
    fn same_software(&self, other: &Self) -> bool {
        Self { boot: String::new(), ..self.clone() }
            == Self { boot: String::new(), ..other.clone() }
    }
}

/// A bring-up step that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    pub stage: Stage,
    /// Start time, for people.
    pub at: String,
}

/// Record of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub key: Key,
    /// Requested mode; `None` for a device without modes.
    pub wanted: Option<Mode>,
    /// Step without an end.
    pub under_way: Option<Begun>,
    /// True if this run retries after a process ended in a step in the same boot.
    #[serde(default)]
    pub again: bool,
    /// Passed steps, and the mode.
    pub passed: Option<Passed>,
    /// Reason of a completed run that failed.
    pub failed: Option<String>,
    /// Failed features that a lower mode does not need.
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    pub mode: Option<Mode>,
}

impl Record {
    /// Reason not to use the device in boot `now`.
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

/// Permission of a device at a start.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// Passed since the last boot.
    Known { mode: Option<Mode>, notes: Vec<String> },
    /// Must be tested.
    Prove(Record),
    /// Must not be used, with the reason.
    Withheld(String),
}

/// Records of all devices, by name.
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
    /// Parses a file; the error names the defect.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let book: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match book.version {
            VERSION => Ok(book),
            version => Err(format!("version {version}, this program knows {VERSION}")),
        }
    }

    /// Returns the permission that follows from the record of a device.
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
            // The process ended in a step: retry once, in a lower mode.
            (Some(_), _) => {
                let rung = |mode: Mode| Some(Mode { chains: mode.chains.lower()?, ..mode });
                lower(&mut new, old.wanted.and_then(rung));
                new.again = true;
            }
            (None, Some(Passed { mode })) if old.key.same_software(&new.key) => {
                if old.key.same_boot(&new.key) && old.wanted == wanted {
                    return Admission::Known { mode, notes: old.notes.clone() };
                }
                // The requested mode failed, a lower one passed: do not retry at every start.
                let was_lowered =
                    mode.zip(old.wanted).is_some_and(|(mode, wanted)| mode.chains > wanted.chains);
                lower(&mut new, mode.filter(|_| was_lowered));
            }
            (None, _) => {}
        }
        Admission::Prove(new)
    }
}

/// Reason not to use a device on this machine in its present state, for a caller that does not run first light; `None`
/// for devices that cannot crash a machine.
pub fn withheld(dir: &Path, device: &str) -> Option<String> {
    if matches!(device, "cpu" | "reference") {
        return None;
    }
    match read(dir) {
        Ok(book) => book.devices.get(device)?.withheld(&Key::here(String::new())),
        Err(error) => Some(error.to_string()),
    }
}

/// Reads the records of the state directory; empty if there is no file yet.
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

/// Clears everything recorded against any device: crashes, failures, lowered modes, and a damaged file. Returns the
/// names of the affected devices.
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

/// Lock on the records of a state directory, released on drop.
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
        // The lock file stays: after a removal two processes could lock files of the same name. Read access suffices.
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

    /// Writes the records; they are on disk under their name on return.
    fn write(&self, book: &Book) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(book).map_err(io::Error::from);
        let temporary = self.path.with_extension("tmp");
        let written = text.and_then(|text| {
            // A temporary file of a process that ended may belong to another user.
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

/// Record of one device, open for writing.
#[derive(Debug)]
pub struct Page {
    lock: Lock,
    book: Book,
    device: String,
}

impl Page {
    /// Waits for other writers, then reads.
    pub fn open(dir: &Path, device: &str) -> Result<Self, Error> {
        let lock = Lock::acquire(&dir.join(FILE))?;
        Ok(Self { lock, book: read(dir)?, device: device.to_owned() })
    }

    pub fn admit(&self, key: Key, wanted: Option<Mode>) -> Admission {
        self.book.admit(&self.device, key, wanted)
    }

    /// Writes the current record.
    pub fn write(&mut self, record: &Record) -> Result<(), Error> {
        self.book.devices.insert(self.device.clone(), record.clone());
        self.lock.write(&self.book)
    }

    /// Records that a device that had passed continues in another mode, and why.
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
        /// Some bytes of a file changed, removed or inserted: usable records, or an error.
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
