//! The program's file descriptors that belong to the simulator.
//!
//! A file is identified by its inode, not by its number: a raw system call may close a number or
//! reuse it for another file unseen. Numbers are only tracked to detect the last close; a number
//! that turns out to refer to another file counts as closed.

mod identity;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tegra_sim::driver::{FdTable, FileId, NewFile, Node, OpenFile};
use tegra_sim::memory::DmaBuf;

use crate::placeholder::{self, Placeholder};
use crate::real::system_call;
use identity::Identity;

/// Kind of a simulator file.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// An open device node.
    Node(FileId, Node),
    /// An address space, a TSG or a channel: a file that an ioctl returned.
    Object(FileId),
    DmaBuf(Arc<DmaBuf>),
    /// An event: a real eventfd.
    Event(FileId),
}

impl Known {
    /// The driver's id of the description; buffers have none.
    pub(crate) fn file(&self) -> Option<FileId> {
        match self {
            Self::Node(file, _) | Self::Object(file) | Self::Event(file) => Some(*file),
            Self::DmaBuf(_) => None,
        }
    }
}

struct Entry {
    known: Known,
    numbers: BTreeSet<RawFd>,
    /// CPU mappings, which keep the file open like fds.
    mappings: usize,
    _keeper: Option<OwnedFd>,
}

#[derive(Default)]
struct Table {
    files: HashMap<Identity, Entry>,
    numbers: HashMap<RawFd, Identity>,
    /// Descriptions without references, not yet reported to the driver.
    gone: Vec<FileId>,
}

impl Table {
    fn add(&mut self, fd: RawFd, known: Known, keeper: Option<OwnedFd>) -> io::Result<()> {
        let identity = Identity::of(fd)?;
        self.forget(fd);
        self.files
            .entry(identity)
            .or_insert_with(|| Entry {
                known,
                numbers: BTreeSet::new(),
                mappings: 0,
                _keeper: keeper,
            })
            .numbers
            .insert(fd);
        self.numbers.insert(fd, identity);
        marks::set(fd);
        Ok(())
    }

    /// Updates the entry of `fd` to the file that it refers to now.
    fn refresh(&mut self, fd: RawFd) -> Option<Identity> {
        let now = Identity::of(fd).ok();
        if self.numbers.get(&fd).is_some_and(|known| Some(*known) != now) {
            self.forget(fd);
        }
        let now = now?;
        let entry = self.files.get_mut(&now)?;
        if entry.numbers.insert(fd) {
            self.numbers.insert(fd, now);
            marks::set(fd);
        }
        Some(now)
    }

    fn forget(&mut self, fd: RawFd) {
        if let Some(identity) = self.numbers.remove(&fd) {
            marks::clear(fd);
            if let Some(entry) = self.files.get_mut(&identity) {
                entry.numbers.remove(&fd);
            }
            self.collect(identity);
        }
    }

    fn collect(&mut self, identity: Identity) {
        let unused = |entry: &Entry| entry.numbers.is_empty() && entry.mappings == 0;
        if self.files.get(&identity).is_some_and(unused)
            && let Some(entry) = self.files.remove(&identity)
        {
            self.gone.extend(entry.known.file());
        }
    }
}

/// The table of the simulator's descriptors in the program.
#[derive(Default)]
pub(crate) struct Files {
    table: Mutex<Table>,
}

impl Files {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Returns a new fd of an opened node to the program.
    pub(crate) fn install_node(&self, file: FileId, node: Node, flags: i32) -> io::Result<RawFd> {
        self.install_placeholder(Known::Node(file, node), flags)
    }

    fn install_placeholder(&self, known: Known, flags: i32) -> io::Result<RawFd> {
        let Placeholder { fd, keeper } = placeholder::make(flags)?;
        self.table().add(fd, known, keeper)?;
        Ok(fd)
    }

    /// Looks `fd` up by its inode.
    pub(crate) fn find(&self, fd: RawFd) -> Option<Known> {
        let mut table = self.table();
        if fd < 0 || table.files.is_empty() {
            return None;
        }
        let identity = table.refresh(fd)?;
        table.files.get(&identity).map(|entry| entry.known.clone())
    }

    /// Returns `true` if `fd` is one of the parent's files from before the fork. The table is a
    /// copy that another thread of the parent may have locked: then the answer is unknown.
    pub(crate) fn had(&self, fd: RawFd) -> bool {
        let identity = Identity::of(fd).ok();
        self.table.try_lock().is_some_and(|table| {
            identity.is_some_and(|identity| table.files.contains_key(&identity))
        })
    }

    /// Removes the number `fd`, which is about to be closed, or already refers to another file.
    pub(crate) fn forget(&self, fd: RawFd) {
        self.table().forget(fd);
    }

    /// The known numbers from `first` to `last`.
    pub(crate) fn between(&self, first: u32, last: u32) -> Vec<RawFd> {
        let inside = |fd: &RawFd| u32::try_from(*fd).is_ok_and(|fd| (first..=last).contains(&fd));
        self.table().numbers.keys().copied().filter(inside).collect()
    }

    /// Records a mapping of `fd`, which keeps the file open. Pass the result to
    /// [`Files::unmapped`].
    pub(crate) fn mapped(&self, fd: RawFd) -> Option<Mapped> {
        let mut table = self.table();
        let identity = table.refresh(fd)?;
        table.files.get_mut(&identity)?.mappings += 1;
        Some(Mapped(identity))
    }

    /// The description that a mapping keeps open.
    pub(crate) fn file_of(&self, mapped: &Mapped) -> Option<FileId> {
        self.table().files.get(&mapped.0)?.known.file()
    }

    /// Records that a mapping was removed.
    pub(crate) fn unmapped(&self, mapped: &Mapped) {
        let mut table = self.table();
        if let Some(entry) = table.files.get_mut(&mapped.0) {
            entry.mappings -= 1;
            table.collect(mapped.0);
        }
    }

    /// Removes and returns the descriptions without references.
    pub(crate) fn take_gone(&self) -> Vec<FileId> {
        std::mem::take(&mut self.table().gone)
    }

    /// Checks every known number again, to find those that were closed unseen.
    pub(crate) fn refresh_all(&self) {
        let mut table = self.table();
        let numbers: Vec<RawFd> = table.numbers.keys().copied().collect();
        for fd in numbers {
            table.refresh(fd);
        }
    }

    /// Numbers that the program has open now.
    pub(crate) fn open_numbers(&self) -> Vec<RawFd> {
        let mut numbers: Vec<RawFd> = self.table().numbers.keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }
}

/// A mapping that keeps a file open.
#[derive(Debug)]
pub(crate) struct Mapped(Identity);

impl FdTable for Files {
    fn install(&self, file: NewFile) -> io::Result<RawFd> {
        match file {
            NewFile::Placeholder(id) => {
                self.install_placeholder(Known::Object(id), libc::O_RDWR | libc::O_CLOEXEC)
            }
            NewFile::DmaBuf(buffer) => {
                let fd = buffer.open()?.into_raw_fd();
                self.table().add(fd, Known::DmaBuf(buffer), None)?;
                Ok(fd)
            }
            NewFile::Event(id, event) => {
                let fd = event.into_raw_fd();
                // A read clears an event after a poll reported it, and must not block.
                let arguments = [fd as usize, libc::F_SETFL as usize, libc::O_NONBLOCK as usize, 0];
                // SAFETY: the call takes words only.
                unsafe { system_call(libc::SYS_fcntl, arguments) };
                self.table().add(fd, Known::Event(id), None)?;
                Ok(fd)
            }
        }
    }

    fn lookup(&self, fd: RawFd) -> Option<OpenFile> {
        Some(match self.find(fd)? {
            Known::DmaBuf(buffer) => OpenFile::DmaBuf(buffer),
            Known::Node(file, _) | Known::Object(file) | Known::Event(file) => OpenFile::File(file),
        })
    }
}

/// A lock-free, system-call-free filter for the simulator's numbers: almost all of a program's
/// files are its own, and reading them must stay cheap.
pub(crate) mod marks {
    use super::{AtomicU64, Ordering, RawFd};

    /// Numbers with a bit of their own. Larger ones count as marked.
    const LIMIT: usize = 1 << 20;

    static MARKS: [AtomicU64; LIMIT / 64] = [const { AtomicU64::new(0) }; LIMIT / 64];

    fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((MARKS.get(fd / 64)?, 1 << (fd % 64)))
    }

    pub(crate) fn set(fd: RawFd) {
        if let Some((word, bit)) = place(fd) {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    pub(crate) fn clear(fd: RawFd) {
        if let Some((word, bit)) = place(fd) {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Returns `true` if `fd` must be looked up.
    pub(crate) fn is_set(fd: RawFd) -> bool {
        fd >= 0 && place(fd).is_none_or(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }
}
