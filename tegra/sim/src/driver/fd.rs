//! What the simulator asks of whoever keeps the program's file descriptors.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use crate::memory::DmaBuf;

/// An open file description of a node, an address space, a TSG, a channel or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// A file that an ioctl gives to the program.
#[derive(Debug)]
pub enum NewFile {
    /// A description that answers ioctls; any placeholder will do as its fd.
    Placeholder(FileId),
    /// A new fd of a buffer, which stays the same buffer.
    DmaBuf(Arc<DmaBuf>),
    /// A pollable description: the fd is a real eventfd, readable while the event is latched.
    Event(FileId, OwnedFd),
}

/// What an fd of the program refers to.
#[derive(Clone, Debug)]
pub enum OpenFile {
    /// A description of the simulator's.
    File(FileId),
    DmaBuf(Arc<DmaBuf>),
}

/// The program's table of file descriptors. It keeps each [`DmaBuf`] that it was given for as long
/// as the program has an fd of it, and calls [`super::Orin::close`] when the last fd of a
/// description is gone. It is called while the simulator holds locks: it must not call back.
pub trait FdTable: Send + Sync {
    /// Gives a file the lowest free number, close-on-exec. Fails when the table is full: the
    /// simulator answers `EMFILE`.
    fn install(&self, file: NewFile) -> io::Result<RawFd>;

    /// What a number refers to; none when it is closed or a file that the simulator does not know.
    fn lookup(&self, fd: RawFd) -> Option<OpenFile>;
}
