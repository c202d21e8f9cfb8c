//! Page cache of the system.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// Number of cached pages among the first `most` bytes of a file.
pub fn resident(path: &Path, most: usize) -> usize {
    let file = File::open(path).unwrap();
    let len = most.min(file.metadata().unwrap().len() as usize);
    let len = NonZeroUsize::new(len).unwrap();
    let mut pages = vec![0u8; len.get().div_ceil(4096)];
    // SAFETY: the mapping of the file is not accessed; the vector has a byte for each of its pages
    // of 4 KiB or more.
    unsafe {
        let at =
            mmap(None, len, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file.as_fd(), 0).unwrap();
        assert_eq!(libc::mincore(at.as_ptr(), len.get(), pages.as_mut_ptr()), 0);
        munmap(at, len.get()).unwrap();
    }
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// Copies a file to `dir` and evicts it from the page cache; `None` if the file system is in memory
/// (tmpfs).
pub fn cold(from: &str, dir: &Path) -> Option<PathBuf> {
    let path = dir.join("cold.gguf");
    std::fs::copy(from, &path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    // Dirty pages would not be evicted.
    file.sync_all().unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    (resident(&path, usize::MAX) == 0).then_some(path)
}
