//! Interface to the program's table of file descriptors.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use crate::memory::DmaBuf;

/// An open file description of a node, an address space, a TSG, a channel or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// A file that an ioctl returns to the program.
#[derive(Debug)]
pub enum NewFile {
    /// A description that answers ioctls; its fd can be any placeholder.
    Placeholder(FileId),
    /// A new fd of an existing buffer.
    DmaBuf(Arc<DmaBuf>),
    /// A pollable description: the fd is a real eventfd, readable while the event is latched.
    Event(FileId, OwnedFd),
}

/// Object that an fd of the program refers to.
#[derive(Clone, Debug)]
pub enum OpenFile {
    /// A description of the simulator.
    File(FileId),
    DmaBuf(Arc<DmaBuf>),
}

/// The program's table of file descriptors. It owns each [`DmaBuf`] as long as the program has an
/// fd of it, and calls [`super::Orin::close`] when the last fd of a description is closed. The
/// simulator calls it with locks held, so it must not call back.
pub trait FdTable: Send + Sync {
    /// Installs a file at the lowest free number, close-on-exec. Fails if the table is full; the
    /// simulator then answers `EMFILE`.
    fn install(&self, file: NewFile) -> io::Result<RawFd>;

    /// Returns the object of an fd; none if it is closed or unknown to the simulator.
    fn lookup(&self, fd: RawFd) -> Option<OpenFile>;
}
