//! The kernel side: nvmap and nvgpu of L4T r36.4.x as a program sees them.
//!
//! [`Orin`] answers `open`, `ioctl`, `mmap` and `close` for the device nodes, with the drivers'
//! values and errnos. One module per node; what they share is in [`errno`] (refusals and their
//! table), [`user`] (the program's memory) and [`fd`] (its file descriptors). What the GPU does
//! with a doorbell belongs to [`crate::gpu`].

pub mod errno;
pub mod fd;
mod node;
pub mod user;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

pub use errno::{ERRNOS, Errno, Refusal, Refused};
pub use fd::{FdTable, FileId, NewFile, OpenFile};
pub use node::Node;

/// The tables that [`ERRNOS`] is made of.
static REFUSALS: &[&[Refused]] = &[errno::REFUSALS, node::REFUSALS];

/// What a successful ioctl returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The call's result: 0, or with nvgpu the bytes that could not be copied out.
    pub value: i32,
}

/// What an mmap of a description gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAnswer {
    /// The page of the doorbell and the timer, of this many bytes.
    Doorbell {
        /// Length asked for, at most 64 KiB.
        bytes: u64,
    },
}

/// What is alive, for leak checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// nvmap handles.
    pub handles: usize,
    /// dma-bufs, whether a handle, an fd or a mapping keeps them.
    pub dma_bufs: usize,
    /// GPU mappings that the program made.
    pub mappings: usize,
    /// Address spaces.
    pub address_spaces: usize,
    /// TSGs.
    pub tsgs: usize,
    /// Channels.
    pub channels: usize,
    /// Open file descriptions, events not counted.
    pub files: usize,
    /// Event descriptions.
    pub events: usize,
}

/// What an open file description is.
#[derive(Clone, Debug)]
enum File {
    /// A node that opens but answers no ioctl.
    Silent,
}

/// The simulated device of one process.
pub struct Orin {
    #[expect(dead_code, reason = "used once nodes answer ioctls")]
    fds: Arc<dyn FdTable>,
    files: RwLock<HashMap<FileId, File>>,
    next_file: AtomicU64,
}

impl Orin {
    /// Powers the device up for a program whose descriptors `fds` keeps.
    #[must_use]
    pub fn new(fds: Arc<dyn FdTable>) -> Arc<Self> {
        Arc::new(Self { fds, files: RwLock::default(), next_file: AtomicU64::new(1) })
    }

    /// Opens a node.
    ///
    /// # Errors
    /// As the node's `open`.
    pub fn open(&self, node: Node, _flags: i32) -> Result<FileId, Refused> {
        node.check_access()?;
        Ok(self.add(File::Silent))
    }

    /// The last reference to a description is gone.
    pub fn close(&self, file: FileId) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&file);
    }

    /// Answers an ioctl. `arg` is the caller's third argument, usually an address in its memory.
    ///
    /// # Errors
    /// The refusal says which errno, and which function of the driver decides so.
    pub fn ioctl(&self, file: FileId, _request: u32, _arg: u64) -> Result<Answer, Refused> {
        let file = self.file(file).ok_or(&errno::CLOSED)?;
        match file {
            File::Silent => Err(&errno::NOT_MODELLED),
        }
    }

    /// Answers an mmap of a description that is no dma-buf.
    ///
    /// # Errors
    /// The refusal says which errno, and which function of the driver decides so.
    pub fn mmap(
        &self,
        file: FileId,
        _bytes: u64,
        _prot: i32,
        _flags: i32,
        _offset: u64,
    ) -> Result<MapAnswer, Refused> {
        match self.file(file).ok_or(&errno::CLOSED)? {
            File::Silent => Err(&errno::NO_MMAP),
        }
    }

    /// What is alive now.
    #[must_use]
    pub fn live(&self) -> Live {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner).len();
        Live { files, ..Live::default() }
    }

    fn add(&self, file: File) -> FileId {
        let id = FileId(self.next_file.fetch_add(1, Ordering::Relaxed));
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(id, file);
        id
    }

    fn file(&self, id: FileId) -> Option<File> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }
}

impl std::fmt::Debug for Orin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orin").field("live", &self.live()).finish_non_exhaustive()
    }
}
