//! Fault-checked access to the program's memory.
//!
//! Addresses come from the program and may be invalid. The bytes are copied through a small memfd,
//! so that the kernel checks the range and returns `EFAULT` instead of raising a signal.
//! (`process_vm_readv` would need one call, but user-mode emulators lack it and containers forbid
//! it.)

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use parking_lot::Mutex;

/// The range is not readable or not writable memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAddress;

/// Bytes copied through the file at a time.
const CHUNK: usize = 1 << 16;

/// Returns the file; the mutex admits one user at a time.
fn passage() -> Result<&'static Mutex<OwnedFd>, BadAddress> {
    static PASSAGE: OnceLock<Mutex<OwnedFd>> = OnceLock::new();
    if let Some(passage) = PASSAGE.get() {
        return Ok(passage);
    }
    // SAFETY: the name is a C string.
    let fd =
        unsafe { libc::syscall(libc::SYS_memfd_create, c"passage".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(BadAddress);
    }
    // SAFETY: the call above returned this fd, and nothing else uses it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    Ok(PASSAGE.get_or_init(|| Mutex::new(fd)))
}

/// Reads `out.len()` bytes at `address`. Fails if any is not readable.
pub fn read(address: u64, out: &mut [u8]) -> Result<(), BadAddress> {
    let file = passage()?.lock();
    for (i, piece) in out.chunks_mut(CHUNK).enumerate() {
        let from = address.checked_add((i * CHUNK) as u64).ok_or(BadAddress)?;
        // SAFETY: the kernel checks the program's range and reads it only.
        check(unsafe { move_bytes(libc::SYS_pwrite64, &file, from, piece.len()) }, piece.len())?;
        let to = piece.as_mut_ptr() as u64;
        // SAFETY: `piece` is exclusively borrowed and has this length.
        check(unsafe { move_bytes(libc::SYS_pread64, &file, to, piece.len()) }, piece.len())?;
    }
    Ok(())
}

/// Writes `data` at `address`. Fails if any byte is not writable; a writable first part is written
/// nevertheless.
pub fn write(address: u64, data: &[u8]) -> Result<(), BadAddress> {
    let file = passage()?.lock();
    for (i, piece) in data.chunks(CHUNK).enumerate() {
        let to = address.checked_add((i * CHUNK) as u64).ok_or(BadAddress)?;
        let from = piece.as_ptr() as u64;
        // SAFETY: `piece` is readable for its whole length.
        check(unsafe { move_bytes(libc::SYS_pwrite64, &file, from, piece.len()) }, piece.len())?;
        // SAFETY: the program requested that its memory at `to` is written, as by the driver; the
        // kernel checks the range.
        check(unsafe { move_bytes(libc::SYS_pread64, &file, to, piece.len()) }, piece.len())?;
    }
    Ok(())
}

/// Writes as much of `data` at `address` as is writable, and returns the number of bytes left, with
/// page granularity.
#[must_use]
pub fn write_most(address: u64, data: &[u8]) -> usize {
    let mut done = 0;
    while done < data.len() {
        let Some(to) = address.checked_add(done as u64) else { break };
        let in_page = (4096 - to % 4096) as usize;
        let piece = &data[done..data.len().min(done + in_page)];
        if write(to, piece).is_err() {
            break;
        }
        done += piece.len();
    }
    data.len() - done
}

/// Reads an array of `N` bytes at `address`. Fails if any is not readable.
pub fn read_array<const N: usize>(address: u64) -> Result<[u8; N], BadAddress> {
    let mut bytes = [0; N];
    read(address, &mut bytes)?;
    Ok(bytes)
}

/// # Safety
/// With `pread64`, `len` bytes at `address` may be overwritten.
unsafe fn move_bytes(call: libc::c_long, file: &OwnedFd, address: u64, len: usize) -> libc::c_long {
    // SAFETY: guaranteed by the caller; the kernel checks the range itself.
    unsafe { libc::syscall(call, file.as_raw_fd(), address as usize, len, 0usize) }
}

fn check(moved: libc::c_long, len: usize) -> Result<(), BadAddress> {
    if usize::try_from(moved) == Ok(len) { Ok(()) } else { Err(BadAddress) }
}
