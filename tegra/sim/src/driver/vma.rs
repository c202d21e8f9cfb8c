//! The program's mappings as the kernel lists them, for the `find_vma` lookups of nvmap.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A mapping of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vma {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) writable: bool,
    /// Inode of the mapped file; 0 for none.
    pub(super) inode: u64,
}

/// Returns the mapping that contains an address.
pub(super) fn containing(address: u64) -> Option<Vma> {
    list()?.lines().filter_map(parse).find(|vma| (vma.start..vma.end).contains(&address))
}

/// Parses a line such as `7f00-7f10 rw-s 00001000 00:01 1234 /memfd:nvmap`.
fn parse(line: &str) -> Option<Vma> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let permissions = words.next()?;
    let inode = words.nth(2)?;
    Some(Vma {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        writable: permissions.as_bytes().get(1) == Some(&b'w'),
        inode: inode.parse().ok()?,
    })
}

fn list() -> Option<String> {
    let (path, flags) = (c"/proc/self/maps", libc::O_RDONLY | libc::O_CLOEXEC);
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the call above returned this fd, and nothing else uses it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut text = Vec::new();
    let mut piece = [0u8; 4096];
    loop {
        // SAFETY: `piece` is writable for its whole length.
        let got = unsafe {
            libc::syscall(libc::SYS_read, fd.as_raw_fd(), piece.as_mut_ptr(), piece.len())
        };
        match usize::try_from(got).ok()? {
            0 => return Some(String::from_utf8_lossy(&text).into_owned()),
            got => text.extend_from_slice(piece.get(..got)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "fffe1000-fffe2000 r--s 00001000 00:01 77 /memfd:nvmap (deleted)";
        let (start, end) = (0xfffe_1000, 0xfffe_2000);
        assert_eq!(parse(line), Some(Vma { start, end, writable: false, inode: 77 }));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn the_stack_is_a_writable_mapping_without_file() {
        let here = 0u8;
        let vma = containing(&raw const here as u64).expect("the stack is mapped");
        assert_eq!((vma.writable, vma.inode), (true, 0));
        assert_eq!(containing(16), None);
    }
}
