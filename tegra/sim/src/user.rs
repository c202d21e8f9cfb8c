//! The program's memory, read and written with fault checking.
//!
//! Addresses come from the program and may be anything. Instead of following them, the bytes go
//! through a small memory file: the kernel checks the range, and says `EFAULT` instead of raising a
//! signal. (`process_vm_readv` would do the same in one call, but user-mode emulators lack it and
//! containers forbid it.)

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use parking_lot::Mutex;

/// The range is not readable, or not writable, memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAddress;

/// Bytes that pass through the file at a time.
const CHUNK: usize = 1 << 16;

/// The file, one user at a time.
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
    // SAFETY: the call above has just given this fd to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    Ok(PASSAGE.get_or_init(|| Mutex::new(fd)))
}

/// Reads `out.len()` bytes at `address`. Fails unless all are readable.
pub fn read(address: u64, out: &mut [u8]) -> Result<(), BadAddress> {
    let file = passage()?.lock();
    for (i, piece) in out.chunks_mut(CHUNK).enumerate() {
        let from = address.checked_add((i * CHUNK) as u64).ok_or(BadAddress)?;
        // SAFETY: the kernel checks the program's range and reads it only.
        check(unsafe { move_bytes(libc::SYS_pwrite64, &file, from, piece.len()) }, piece.len())?;
        let to = piece.as_mut_ptr() as u64;
        // SAFETY: `piece` is exclusively ours and as long as said.
        check(unsafe { move_bytes(libc::SYS_pread64, &file, to, piece.len()) }, piece.len())?;
    }
    Ok(())
}

/// Writes `data` at `address`. A range that is writable in its first part only is written there.
/// Fails unless all are writable.
pub fn write(address: u64, data: &[u8]) -> Result<(), BadAddress> {
    let file = passage()?.lock();
    for (i, piece) in data.chunks(CHUNK).enumerate() {
        let to = address.checked_add((i * CHUNK) as u64).ok_or(BadAddress)?;
        let from = piece.as_ptr() as u64;
        // SAFETY: `piece` is readable for as long as said.
        check(unsafe { move_bytes(libc::SYS_pwrite64, &file, from, piece.len()) }, piece.len())?;
        // SAFETY: the program asked for its own memory at `to` to be written, as it would of the
        // driver; the kernel checks the range.
        check(unsafe { move_bytes(libc::SYS_pread64, &file, to, piece.len()) }, piece.len())?;
    }
    Ok(())
}

/// Writes as much of `data` at `address` as is writable, and gives the bytes left over. Page
/// granular, as far as the end is concerned.
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

/// Reads an array of `N` bytes at `address`. Fails unless all are readable.
pub fn read_array<const N: usize>(address: u64) -> Result<[u8; N], BadAddress> {
    let mut bytes = [0; N];
    read(address, &mut bytes)?;
    Ok(bytes)
}

/// # Safety
/// With `pread64`, `len` bytes at `address` may be overwritten.
unsafe fn move_bytes(call: libc::c_long, file: &OwnedFd, address: u64, len: usize) -> libc::c_long {
    // SAFETY: the caller's promise; the kernel checks the range itself.
    unsafe { libc::syscall(call, file.as_raw_fd(), address as usize, len, 0usize) }
}

fn check(moved: libc::c_long, len: usize) -> Result<(), BadAddress> {
    if usize::try_from(moved) == Ok(len) { Ok(()) } else { Err(BadAddress) }
}
