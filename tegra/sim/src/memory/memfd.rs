//! The memfds behind dma-bufs, opened in a table of file descriptors other than the program's.
//!
//! A program may count its descriptors, run out of them, or close them all, so it must only see
//! those that the driver returned. The simulator's descriptors are therefore in the tables of
//! threads that share their table with no other thread. Other threads work with such a descriptor
//! through that thread, or reopen the file by its name under `/proc`.
//!
//! All of this uses raw system calls, because libc's functions may be those of the preload library,
//! which would treat these as the program's own descriptors and mappings.

use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use parking_lot::Mutex;

use crate::thread;

type Job = Box<dyn FnOnce() + Send>;

/// A thread with its own descriptor table.
#[derive(Debug)]
struct Keeper {
    /// Name of the thread under `/proc`.
    name: String,
    jobs: Sender<Job>,
}

/// Keepers of this process; another one is started when all tables are full.
static KEEPERS: Mutex<Vec<Arc<Keeper>>> = Mutex::new(Vec::new());

/// A memfd in the table of a keeper; closed on drop.
#[derive(Debug)]
pub(super) struct Memfd {
    keeper: Arc<Keeper>,
    fd: RawFd,
}

/// Result of [`create`].
#[derive(Debug)]
pub(super) struct NewMemfd {
    pub(super) file: Memfd,
    pub(super) inode: u64,
    /// Address of a mapping of the whole file, which the caller unmaps; 0 for an empty file.
    pub(super) base: usize,
}

/// Creates a sealed memfd of `bytes` and maps it. The seals prevent the program from shrinking
/// memory that the simulator has mapped.
pub(super) fn create(bytes: u64) -> io::Result<NewMemfd> {
    let mut keepers = KEEPERS.lock();
    for keeper in keepers.iter() {
        match keeper.memfd(bytes) {
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {}
            made => return made,
        }
    }
    let keeper = Keeper::start()?;
    keepers.push(Arc::clone(&keeper));
    keeper.memfd(bytes)
}

impl Keeper {
    fn start() -> io::Result<Arc<Self>> {
        let (jobs, work) = mpsc::channel::<Job>();
        let (sender, receiver) = mpsc::channel();
        thread::spawn("tegra-sim-files", move || {
            // The receiving thread ends only with the process.
            let _ = sender.send(own_table().and_then(|()| own_name()));
            work.into_iter().for_each(|job| job());
        })?;
        let name = receiver.recv().map_err(io::Error::other)??;
        Ok(Arc::new(Self { name, jobs }))
    }

    /// Executes `work` on the keeper's thread.
    fn ask<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let (sender, receiver) = mpsc::channel();
        // The receiving thread ends only with the process.
        let job = Box::new(move || drop(sender.send(work())));
        self.jobs.send(job).map_err(|_| io::ErrorKind::BrokenPipe)?;
        receiver.recv().map_err(io::Error::other)
    }

    fn memfd(self: &Arc<Self>, bytes: u64) -> io::Result<NewMemfd> {
        let keeper = Arc::clone(self);
        self.ask(move || {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            // SAFETY: the name is a C string.
            let fd =
                ok(unsafe { libc::syscall(libc::SYS_memfd_create, c"nvmap".as_ptr(), flags) })?;
            let file = Memfd { keeper, fd: fd as RawFd };
            // SAFETY: no memory is passed.
            ok(unsafe { libc::syscall(libc::SYS_ftruncate, fd, bytes) })?;
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            // SAFETY: no memory is passed.
            ok(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, seals) })?;
            // SAFETY: all zero is a valid `stat`.
            let mut stat: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: `stat` is the structure that this system call fills.
            ok(unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut stat) })?;
            let base = if bytes == 0 { 0 } else { map_shared(fd, bytes)? };
            Ok(NewMemfd { file, inode: stat.st_ino, base })
        })?
    }
}

impl Memfd {
    /// Reopens the file in the table of the calling thread.
    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        let path = CString::new(format!("/proc/{}/fd/{}", self.keeper.name, self.fd))?;
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: the path is a C string.
        let fd = ok(unsafe {
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0)
        })?;
        // SAFETY: the call returned this fd, and nothing else uses it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    }

    /// Returns the first allocated range at or after `offset`, up to the next hole.
    pub(super) fn data_after(&self, offset: u64) -> Option<Range<u64>> {
        let fd = self.fd;
        let seek = move |offset: u64, whence: i32| {
            // SAFETY: `lseek` takes no memory.
            u64::try_from(unsafe { libc::syscall(libc::SYS_lseek, fd, offset, whence) }).ok()
        };
        let data = move || {
            let start = seek(offset, libc::SEEK_DATA)?;
            Some(start..seek(start, libc::SEEK_HOLE)?)
        };
        self.keeper.ask(data).ok()?
    }
}

impl Drop for Memfd {
    fn drop(&mut self) {
        let fd = self.fd;
        let close = move || {
            // SAFETY: this value owns the fd, in the table of the thread that closes it.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        };
        // A keeper ends only with the process.
        let _ = self.keeper.jobs.send(Box::new(close));
    }
}

/// Unshares the calling thread's table of descriptors and empties it. Otherwise files that the
/// program closes would stay open here.
fn own_table() -> io::Result<()> {
    // SAFETY: no memory is passed; the thread uses none of the descriptors that it had.
    ok(unsafe {
        libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, libc::CLOSE_RANGE_UNSHARE)
    })?;
    Ok(())
}

/// Returns the name of the calling thread under `/proc`, in whichever pid namespace that shows.
fn own_name() -> io::Result<String> {
    let name = std::fs::read_link("/proc/thread-self")?;
    name.into_os_string().into_string().map_err(|_| io::ErrorKind::InvalidData.into())
}

fn map_shared(fd: libc::c_long, bytes: u64) -> io::Result<usize> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: creates a new mapping at an address that the kernel chooses; existing ones are not
    // affected.
    let base = ok(unsafe { libc::syscall(libc::SYS_mmap, 0usize, bytes, prot, flags, fd, 0usize) });
    base.map(|base| base as usize)
}

fn ok(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
