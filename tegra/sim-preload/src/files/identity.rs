//! Identity of an open file.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use crate::real::system_call;

/// An open file's identity: device and inode, and for an eventfd its serial number, because all
/// eventfds share one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    event: u64,
}

impl Identity {
    /// The identity of the file that `fd` refers to now.
    pub(super) fn of(fd: RawFd) -> io::Result<Self> {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: the kernel's and libc's layouts of the structure agree on 64-bit Linux.
        let result = unsafe {
            system_call(libc::SYS_fstat, [fd as usize, stat.as_mut_ptr() as usize, 0, 0])
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: all-zero is a valid value, and the kernel has filled it.
        let stat = unsafe { stat.assume_init() };
        let anonymous = stat.st_mode & libc::S_IFMT == 0;
        let event = if anonymous { event_serial(fd).unwrap_or(0) } else { 0 };
        Ok(Self { device: stat.st_dev, inode: stat.st_ino, event })
    }
}

/// The line `eventfd-id` of `/proc/self/fdinfo` (Linux 5.2 and later); none for other files.
fn event_serial(fd: RawFd) -> Option<u64> {
    let path = std::ffi::CString::new(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let open = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let mut text = [0_u8; 512];
    // SAFETY: the path is a C string, `buffer.len()` bytes are writable, the fd is our own.
    let length = unsafe {
        let at = libc::AT_FDCWD as usize;
        let file = system_call(libc::SYS_openat, [at, path.as_ptr() as usize, open, 0]);
        if file < 0 {
            return None;
        }
        let into = text.as_mut_ptr() as usize;
        let length = system_call(libc::SYS_read, [file as usize, into, text.len(), 0]);
        system_call(libc::SYS_close, [file as usize, 0, 0, 0]);
        usize::try_from(length).ok()?
    };
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("eventfd-id:"))?;
    // Serial numbers start at 0, but 0 represents files that are not events here.
    line.trim().parse::<u64>().ok().map(|id| id + 1)
}
