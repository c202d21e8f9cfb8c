//! Atomic file updates: one writer at a time, by a lock file; new text is written to a temporary file, is
//! synced, and replaces the file by a rename.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::StoreError;

/// Time limit for the lock; a merge takes milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Size limit: larger files are not read. A record takes about 1 KiB.
const LARGEST: u64 = 16 << 20;

/// Options that create a missing file.
fn created() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o644).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    options
}

/// Write lock of one file, held until dropped.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _held: File,
}

impl Lock {
    /// Waits for the lock of `path` and creates its directory. The lock file is never removed:
    /// otherwise two writers could lock different files of the same name.
    pub(super) fn acquire(path: &Path, patience: Duration) -> Result<Self, StoreError> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(|e| StoreError::io("make the directory", dir, e))?;
        }
        let lock = path.with_extension("lock");
        let file = created().append(true).open(&lock);
        let file = file.map_err(|e| StoreError::io("open", &lock, e))?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { path: path.to_owned(), _held: file }),
                Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Busy { path: lock, waited_s: patience.as_secs() });
                }
                Err(TryLockError::Error(e)) => return Err(StoreError::io("lock", &lock, e)),
            }
        }
    }

    /// Appends a line to a file next to the locked one. A preceding truncated line stays separate.
    pub(super) fn append(&self, path: &Path, line: &str) -> Result<(), StoreError> {
        let write = || {
            let mut file = created().read(true).append(true).open(path)?;
            let mut last = [b'\n'];
            if file.metadata()?.len() > 0 {
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
            }
            let start = if last == [b'\n'] { "" } else { "\n" };
            file.write_all(format!("{start}{line}").as_bytes())
        };
        write().map_err(|e| StoreError::io("write", path, e))
    }

    /// Replaces a file next to the locked one; an empty text removes it.
    pub(super) fn rewrite(&self, path: &Path, text: &str) -> Result<(), StoreError> {
        let temporary = path.with_extension("journal.tmp");
        let done = if text.is_empty() {
            fs::remove_file(path)
        } else {
            fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path))
        };
        done.map_err(|e| StoreError::io("replace", path, e))
    }

    /// Replaces the file: synced on return, unchanged on failure.
    pub(super) fn replace(&self, text: &str) -> Result<(), StoreError> {
        self.replace_by(|file| file.write_all(text.as_bytes()))
    }

    /// Likewise with another write function, for tests.
    pub(super) fn replace_by(
        &self,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        // A fixed name, so that the next writer overwrites a killed writer's file.
        let temporary = self.path.with_extension("tmp");
        let written = created()
            .write(true)
            .truncate(true)
            .open(&temporary)
            .and_then(|mut file| write(&mut file).and_then(|()| file.sync_all()));
        if let Err(error) = written {
            // Frees the space of the partial file.
            let _ = fs::remove_file(&temporary);
            return Err(StoreError::io("write", &temporary, error));
        }
        fs::rename(&temporary, &self.path).map_err(|e| StoreError::io("replace", &self.path, e))?;
        self.sync_directory()
    }

    /// Renames the file to the first free name `FILE.WHY-N` and returns it.
    pub(super) fn set_aside(&self, why: &str) -> Result<PathBuf, StoreError> {
        let mut number = 1;
        let aside = loop {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{why}-{number}"));
            let name = PathBuf::from(name);
            // Only holders of the lock create these names.
            if fs::symlink_metadata(&name).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
                break name;
            }
            number += 1;
        };
        fs::rename(&self.path, &aside).map_err(|e| StoreError::io("set aside", &self.path, e))?;
        self.sync_directory()?;
        Ok(aside)
    }

    /// A new name is durable only after its directory is synced.
    fn sync_directory(&self) -> Result<(), StoreError> {
        let dir = self.path.parent().unwrap_or(Path::new("."));
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(|e| StoreError::io("write the directory", dir, e))
    }
}

/// Contents of a file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let failed = |e| StoreError::io("read", path, e);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        let why = format!("larger than the limit of {} MiB", LARGEST >> 20);
        return Err(failed(io::Error::other(why)));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(path: &Path) -> Lock {
        Lock::acquire(path, PATIENCE).unwrap()
    }

    /// Fails half way like a full disk.
    fn half(file: &mut File) -> io::Result<()> {
        file.write_all(b"half of")?;
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    #[test]
    fn a_full_disk_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        lock(&path).replace("old").unwrap();
        let error = lock(&path).replace_by(half).unwrap_err();
        assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
        let message = error.to_string();
        let temporary = dir.path().join("a.tmp");
        assert!(message.contains(&temporary.display().to_string()), "{message}");
        assert!(message.contains("free some space") && message.contains("tune_dir"), "{message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert!(!temporary.exists());
    }

    #[test]
    fn a_held_lock_times_out_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/a.toml");
        let held = lock(&path);
        let error = Lock::acquire(&path, Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("a.lock"), "{error}");
        drop(held);
        lock(&path);
    }

    #[test]
    fn renamed_files_never_replace_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        for n in 1..=3 {
            fs::write(&path, n.to_string()).unwrap();
            let aside = lock(&path).set_aside("damaged").unwrap();
            assert_eq!(aside, dir.path().join(format!("a.toml.damaged-{n}")));
        }
        for n in 1..=3 {
            let aside = dir.path().join(format!("a.toml.damaged-{n}"));
            assert_eq!(fs::read_to_string(aside).unwrap(), n.to_string());
        }
    }

    #[test]
    fn oversized_files_are_not_read() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("16 MiB"), "{error}");
    }
}
