//! Placeholder files for open nodes: real character devices, each with a unique identity.
//!
//! Each is the peer of a fresh pseudo-terminal: a character device whose inode number is unique
//! while its other end, the keeper, is open. Without pseudo-terminals an empty memory file replaces
//! it; it has an identity too, and only a raw `fstat` system call sees the difference.

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

use crate::real::system_call;

/// `TIOCSPTLCK`: lock or unlock the peer.
const UNLOCK: usize = 0x4004_5431;
/// `TIOCGPTPEER`: open the peer, without its path.
const OPEN_PEER: usize = 0x5441;
/// The simulator's own fds are moved above the numbers that programs expect to get next.
const OUT_OF_THE_WAY: usize = 512;
/// The flags of an `open` that remain visible on its fd.
const KEPT_FLAGS: i32 =
    libc::O_ACCMODE | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_SYNC | libc::O_APPEND;

/// A new placeholder.
pub(crate) struct Placeholder {
    pub(crate) fd: RawFd,
    /// Keeps the identity unique.
    pub(crate) keeper: Option<OwnedFd>,
}

/// Creates a placeholder at the lowest free number, with the flags of `open`.
pub(crate) fn make(flags: i32) -> io::Result<Placeholder> {
    let flags = flags & KEPT_FLAGS;
    if let Ok(placeholder) = terminal(flags) {
        return Ok(placeholder);
    }
    let close_on_exec = if flags & libc::O_CLOEXEC == 0 { 0 } else { libc::MFD_CLOEXEC };
    let name = c"nvgpu".as_ptr() as usize;
    let arguments = [name, close_on_exec as usize, 0, 0];
    // SAFETY: the name is a C string.
    let file = checked(unsafe { system_call(libc::SYS_memfd_create, arguments) })?;
    Ok(Placeholder { fd: file.into_raw_fd(), keeper: None })
}

fn terminal(flags: i32) -> io::Result<Placeholder> {
    let path = c"/dev/ptmx".as_ptr() as usize;
    let open = (libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) as usize;
    // SAFETY: the path is a C string.
    let near = checked(unsafe {
        system_call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, open, 0])
    })?;
    let keeper = out_of_the_way(near)?;
    let fd = as_word(&keeper);
    let unlocked = 0_i32;
    // SAFETY: the request reads one `int`.
    unsafe { system_call(libc::SYS_ioctl, [fd, UNLOCK, &raw const unlocked as usize, 0]) };
    let flags = (flags | libc::O_NOCTTY) as usize;
    // SAFETY: the request takes a word.
    let peer = checked(unsafe { system_call(libc::SYS_ioctl, [fd, OPEN_PEER, flags, 0]) })?;
    Ok(Placeholder { fd: peer.into_raw_fd(), keeper: Some(keeper) })
}

/// Moves one of the simulator's fds to a high number, if possible.
fn out_of_the_way(fd: OwnedFd) -> io::Result<OwnedFd> {
    let arguments = [as_word(&fd), libc::F_DUPFD_CLOEXEC as usize, OUT_OF_THE_WAY, 0];
    // SAFETY: the call takes words only.
    match checked(unsafe { system_call(libc::SYS_fcntl, arguments) }) {
        Ok(moved) => Ok(moved),
        // With a low limit on open files, the low number is used.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(fd),
        Err(error) => Err(error),
    }
}

fn as_word(fd: &OwnedFd) -> usize {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd() as usize
}

fn checked(fd: isize) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a call has just made this fd for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
