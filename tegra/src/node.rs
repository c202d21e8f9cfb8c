//! Open fds of the drivers, and requests on them.
//!
//! The only place where the wrappers make system calls: it checks that a request belongs to the
//! node, repeats interrupted requests and turns errnos into [`Error`]s.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;

use crate::abi::{Command, Request, address_space, channel, ctrl, nvmap, tsg};
use crate::error::{Error, Node};

/// Attempts of a request that returns `EAGAIN`.
const AGAIN_TRIES: u32 = 100;
const AGAIN_PAUSE: Duration = Duration::from_millis(1);

/// Argument structures without pointers: the driver accesses nothing but the structure itself. That
/// depends on the meaning of the fields, so no derive can check it.
///
/// # Safety
/// No field is read by the driver as the address of user memory.
pub(crate) unsafe trait Flat {}

macro_rules! flat {
    ($($Args:ty),+ $(,)?) => { $(
        // SAFETY: every field is a number or an fd, per the field's documentation.
        unsafe impl Flat for $Args {}
    )+ };
}

flat!(
    nvmap::Create64,
    nvmap::HandleFd,
    nvmap::Alloc,
    nvmap::AvailableHeaps,
    nvmap::HeapSize,
    nvmap::QueryHeapParams,
    ctrl::AllocAs,
    ctrl::OpenTsg,
    ctrl::OpenChannel,
    ctrl::NumVsms,
    ctrl::GetGpuTime,
    ctrl::GetCpuTimeCorrelationInfo,
    address_space::BindChannel,
    address_space::AllocSpace,
    address_space::MapBufferEx,
    address_space::UnmapBuffer,
    tsg::BindChannelEx,
    tsg::CreateSubcontext,
    tsg::DeleteSubcontext,
    tsg::EventIdCtrl,
    tsg::RunlistInterleave,
    tsg::Timeslice,
    channel::GetTimedout,
    channel::SetTimeout,
    channel::AllocObjCtx,
    channel::SetErrorNotifier,
    channel::Wdt,
    channel::PreemptionMode,
    channel::GetUserSyncpoint,
    channel::SetupBind,
);

/// An open fd of a driver.
#[derive(Debug)]
pub(crate) struct NodeFd {
    node: Node,
    fd: OwnedFd,
}

impl NodeFd {
    /// Opens a node that has a path.
    pub(crate) fn open(node: Node, flags: libc::c_int) -> Result<Self, Error> {
        let path = node.path().ok_or(Error::Open { node, errno: Errno::EINVAL })?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path)
            .map_err(|error| Error::Open { node, errno: errno_of(&error) })?;
        Ok(Self { node, fd: file.into() })
    }

    /// Wraps an fd that a request returned.
    pub(crate) fn adopt(node: Node, fd: RawFd) -> Self {
        Self { node, fd: adopt(fd) }
    }

    /// Makes a request whose argument has no pointers.
    pub(crate) fn call<A: Flat>(&self, request: Request<A>, args: &mut A) -> Result<(), Error> {
        // SAFETY: the argument names no memory.
        unsafe { self.call_nested(request, args) }
    }

    /// Makes a request whose argument may have pointers.
    ///
    /// # Safety
    /// Addresses and sizes inside `args` describe memory that the driver may access as the
    /// request's documentation says.
    pub(crate) unsafe fn call_nested<A>(
        &self,
        request: Request<A>,
        args: &mut A,
    ) -> Result<(), Error> {
        self.repeat(request.name(), request.code(), || {
            // SAFETY: `repeat` lets only requests of this node through; the caller answers for
            // addresses inside.
            unsafe { request.call(self.fd.as_fd(), args) }
        })
    }

    /// Makes a request without an argument.
    pub(crate) fn command(&self, command: Command) -> Result<(), Error> {
        self.repeat(command.name(), command.code(), || {
            // SAFETY: `repeat` lets only requests of this node through.
            unsafe { command.command(self.fd.as_fd()) }
        })
    }

    fn repeat(
        &self,
        request: &'static str,
        code: u32,
        mut enter: impl FnMut() -> Result<(), Errno>,
    ) -> Result<(), Error> {
        let node = self.node;
        let magic = match node {
            Node::Nvmap => b'N',
            Node::Ctrl => b'G',
            Node::AddressSpace => b'A',
            Node::Tsg => b'T',
            Node::Channel => b'H',
        };
        // Another driver would read the same number as another request.
        if code >> 8 & 0xff != u32::from(magic) {
            return Err(Error::Request { node, request, errno: Errno::ENOTTY });
        }
        let mut tries = 0;
        loop {
            match enter() {
                Ok(()) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if tries < AGAIN_TRIES => {
                    tries += 1;
                    thread::sleep(AGAIN_PAUSE);
                }
                Err(errno) => return Err(Error::Request { node, request, errno }),
            }
        }
    }
}

impl AsFd for NodeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Wraps an fd that a driver returned, and makes it close-on-exec.
pub(crate) fn adopt(fd: RawFd) -> OwnedFd {
    // SAFETY: the driver has just made this fd for us and no other code uses it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // Some requests return fds without the flag; a failure leaves a usable fd.
    let _ = fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    fd
}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
