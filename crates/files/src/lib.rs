//! Regular files that clients name: how they are opened, and their identity.
//!
//! Opening never blocks on a pipe or terminal. All properties are those of the open descriptor, so
//! a file that is renamed or replaced meanwhile cannot mix with another one.

pub mod directory;

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path};
use std::time::{Duration, SystemTime};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Identity of a file's contents: equal values mean that nothing has replaced or written it.
///
/// Length and modification time alone do not suffice: tools preserve times, file systems count them
/// in steps of milliseconds, and every file of a Nix store has the same one. Only the kernel sets
/// the time of the last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    pub bytes: u64,
    /// Seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Seconds and nanoseconds.
    pub changed: (i64, i64),
}

/// Longest step of a file system's clock, with a margin.
const CLOCK_STEP: Duration = Duration::from_millis(100);

impl Identity {
    /// Identity of the file that a path names now.
    ///
    /// # Errors
    /// The file cannot be inspected.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&path.metadata()?))
    }

    /// True if the last change is so long ago that another one would have another time.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let since_epoch = u64::try_from(seconds).ok().zip(u32::try_from(nanoseconds).ok());
        let Some((seconds, nanoseconds)) = since_epoch else { return true };
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        changed.elapsed().is_ok_and(|ago| ago > CLOCK_STEP)
    }
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A regular file that is open for reading.
#[derive(Debug)]
pub struct RegularFile {
    file: File,
    /// When it was opened.
    identity: Identity,
}

impl RegularFile {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a regular file ([`io::ErrorKind::InvalidInput`]).
    pub fn open(path: &Path) -> io::Result<Self> {
        // Without O_NONBLOCK, opening a pipe without a writer would block. It has no effect on files.
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
        Self::new(File::options().read(true).custom_flags(flags).open(path)?)
    }

    /// Opens a file below a directory. No part of `path` may lead out of it, be it `..` or a link.
    ///
    /// # Errors
    /// As for [`RegularFile::open`], or the path leads out of the directory
    /// ([`io::ErrorKind::CrossesDevices`], as the kernel reports it).
    pub fn open_beneath(directory: &Path, path: &Path) -> io::Result<Self> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let folder = File::open(directory)?;
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Self::new(openat2(&folder, path, how)?.into())
    }

    fn new(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Self { identity: Identity::from(&metadata), file })
    }

    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Identity when the file was opened.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// Length in bytes when the file was opened.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.identity.bytes
    }

    /// True if the file was empty when it was opened.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if nothing has written the file since it was opened.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.file.metadata().is_ok_and(|now| Identity::from(&now) == self.identity)
    }
}

/// True if a path has only names, so that without links it stays below the directory it starts in.
#[must_use]
pub fn has_only_names(path: &Path) -> bool {
    !path.as_os_str().is_empty()
        && path.components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn other_files_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for path in [pipe.as_path(), dir.path(), Path::new("/dev/null"), Path::new("/dev/tty")] {
            let error = RegularFile::open(path).unwrap_err();
            assert!(
                error.kind() == io::ErrorKind::InvalidInput || error.raw_os_error().is_some(),
                "{error}"
            );
        }
    }

    #[test]
    fn a_link_does_not_lead_out_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir_all(inner.join("sub")).unwrap();
        fs::write(dir.path().join("secret"), "s").unwrap();
        fs::write(inner.join("sub/data"), "d").unwrap();
        symlink("../secret", inner.join("link")).unwrap();
        symlink("..", inner.join("up")).unwrap();
        symlink(dir.path().join("secret"), inner.join("absolute")).unwrap();
        symlink("sub/data", inner.join("inside")).unwrap();
        let open = |path: &str| RegularFile::open_beneath(&inner, Path::new(path));
        assert!(open("sub/data").is_ok() && open("inside").is_ok());
        for path in ["link", "up/secret", "absolute", "../secret", "/etc/passwd"] {
            assert!(open(path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_replaced_file_has_another_identity() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&path, "one").unwrap();
        let first = RegularFile::open(&path).unwrap();
        let time = first.file().metadata().unwrap().modified().unwrap();
        fs::write(&new, "two").unwrap();
        File::options().write(true).open(&new).unwrap().set_modified(time).unwrap();
        fs::rename(&new, &path).unwrap();
        let second = RegularFile::open(&path).unwrap();
        assert_ne!(first.identity(), second.identity());
        // The clock of a file system has steps.
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&path, "two").unwrap();
        assert!(!second.is_unchanged());
    }
}
