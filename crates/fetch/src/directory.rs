//! Destination directory of a download, and the files in it.
//!
//! A download by root may go to a directory of another user, who could place links in it and in the
//! directories above. The path is therefore walked one component at a time, files are opened
//! relative to the descriptor of the directory, and a link is followed only if it and its directory
//! belong to root or to this user.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::error::Error;

/// Most links in a path: the kernel's limit.
const LINKS: u32 = 40;

/// Largest share of a disk that is kept free, as a divisor.
const RESERVED_PART: u64 = 8;

/// Space that is kept free on a disk of any size.
const RESERVED: u64 = 1 << 30;

/// An open directory.
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens a directory; creates it and those above it.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let start = |path: &Path| {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            openat(AT_FDCWD, path, flags, Mode::empty()).map_err(|errno| failed(path, errno))
        };
        let mut fd = start(Path::new("."))?;
        // Path of `fd`, for messages.
        let mut at = PathBuf::new();
        let mut rest: VecDeque<OsString> = names(path);
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == "/" {
                (fd, at) = (start(Path::new("/"))?, "/".into());
                continue;
            }
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let here = at.join(&name);
            let found = match openat(&fd, &*name, flags, Mode::empty()) {
                Err(Errno::ENOENT) => {
                    match mkdirat(&fd, &*name, Mode::from_bits_truncate(0o777)) {
                        Ok(()) | Err(Errno::EEXIST) => {}
                        Err(errno) => return Err(failed(&here, errno)),
                    }
                    openat(&fd, &*name, flags, Mode::empty())
                }
                found => found,
            };
            let found = found.map_err(|errno| failed(&here, errno))?;
            let status = fstat(&found).map_err(|errno| failed(&here, errno))?;
            match kind(&status) {
                SFlag::S_IFDIR => (fd, at) = (found, here),
                SFlag::S_IFLNK => {
                    let folder = fstat(&fd).map_err(|errno| failed(&here, errno))?;
                    links += 1;
                    if !is_trusted(&status) || !is_trusted(&folder) || links > LINKS {
                        return Err(Error::Link { path: here });
                    }
                    let target = readlinkat(&found, "").map_err(|errno| failed(&here, errno))?;
                    for name in names(Path::new(&target)).into_iter().rev() {
                        rest.push_front(name);
                    }
                }
                _ => return Err(failed(&here, Errno::ENOTDIR)),
            }
        }
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Path of a file, for messages.
    fn path(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    fn failed(&self, name: &OsStr, errno: Errno) -> Error {
        failed(&self.path(name), errno)
    }

    /// Opens a regular file for reading, if there is one. A link is followed if it belongs to this
    /// user.
    pub(crate) fn existing(&self, name: &OsStr) -> Option<File> {
        let status = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        let is_link = kind(&status) == SFlag::S_IFLNK;
        let folder = fstat(&self.fd).ok()?;
        let follow = is_link && is_trusted(&status) && is_trusted(&folder);
        // Without O_NONBLOCK, opening a pipe would block.
        let mut flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        flags.set(OFlag::O_NOFOLLOW, !follow);
        let file = File::from(openat(&self.fd, name, flags, Mode::empty()).ok()?);
        file.metadata().ok()?.is_file().then_some(file)
    }

    /// Opens a file of this program for reading and appending; creates it if there is none of this
    /// user.
    pub(crate) fn own(&self, name: &OsStr) -> Result<File, Error> {
        let flags = OFlag::O_RDWR
            | OFlag::O_APPEND
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_NOCTTY
            | OFlag::O_CLOEXEC;
        match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                let status = file
                    .metadata()
                    .map_err(|source| Error::File { path: self.path(name), source })?;
                if !status.is_file() || status.nlink() > 1 {
                    return Err(Error::Link { path: self.path(name) });
                }
                if status.uid() == geteuid().as_raw() {
                    return Ok(file);
                }
                // Its owner could write to it during and after the download.
                self.remove(name)?;
            }
            Err(Errno::ELOOP) => return Err(Error::Link { path: self.path(name) }),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(self.failed(name, errno)),
        }
        let mode = Mode::from_bits_truncate(0o666);
        let file = openat(&self.fd, name, flags | OFlag::O_CREAT | OFlag::O_EXCL, mode);
        file.map(File::from).map_err(|errno| self.failed(name, errno))
    }

    /// Reads a short text that this user wrote; `None` for anything else.
    pub(crate) fn note(&self, name: &OsStr, most: u64) -> Option<String> {
        let file = self.existing(name)?;
        let status = file.metadata().ok()?;
        if status.uid() != geteuid().as_raw() || status.len() > most {
            return None;
        }
        let mut text = String::new();
        file.take(most).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Replaces a short text.
    pub(crate) fn write_note(&self, name: &OsStr, text: &str) -> Result<(), Error> {
        let mut file = self.own(name)?;
        let written = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|source| Error::File { path: self.path(name), source })
    }

    /// Gives `file`, which is named `from`, another name, and replaces what has it.
    pub(crate) fn rename(&self, file: &File, from: &OsStr, to: &OsStr) -> Result<(), Error> {
        let named = fstatat(&self.fd, from, AtFlags::AT_SYMLINK_NOFOLLOW);
        let named = named.map_err(|errno| self.failed(from, errno))?;
        let status = fstat(file).map_err(|errno| self.failed(from, errno))?;
        if (named.st_dev, named.st_ino) != (status.st_dev, status.st_ino) {
            let source = io::Error::other("was replaced during the download");
            return Err(Error::File { path: self.path(from), source });
        }
        renameat(&self.fd, from, &self.fd, to).map_err(|errno| self.failed(to, errno))
    }

    pub(crate) fn remove(&self, name: &OsStr) -> Result<(), Error> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed(name, errno)),
        }
    }

    /// Fails if the disk would have less than its reserve free after writing `needs` bytes. Returns
    /// the number of bytes that may be written.
    pub(crate) fn room(&self, needs: u64) -> Result<u64, Error> {
        let Ok(system) = fstatvfs(&self.fd) else { return Ok(u64::MAX) };
        let bytes = |blocks: u64| blocks.saturating_mul(system.fragment_size());
        let free = bytes(system.blocks_available());
        let reserve = RESERVED.min(bytes(system.blocks()) / RESERVED_PART);
        let room = free.saturating_sub(reserve);
        if needs > room {
            return Err(Error::Space { folder: self.path.clone(), needs, free, reserve });
        }
        Ok(room)
    }
}

/// Names of a path, with `/` for the root.
fn names(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter(|part| !matches!(part, Component::CurDir));
    names.map(|part| part.as_os_str().to_owned()).collect()
}

fn kind(status: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT
}

/// True for a file of root or of this user.
fn is_trusted(status: &FileStat) -> bool {
    status.st_uid == 0 || status.st_uid == geteuid().as_raw()
}

fn failed(path: &Path, errno: Errno) -> Error {
    Error::File { path: path.to_owned(), source: errno.into() }
}
