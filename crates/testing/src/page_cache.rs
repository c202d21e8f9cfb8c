//! What the system keeps of a file in memory.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// How many pages of the first bytes of a file are in memory.
pub fn resident(path: &Path, most: usize) -> usize {
    let file = File::open(path).unwrap();
    let len = most.min(file.metadata().unwrap().len() as usize);
    let len = NonZeroUsize::new(len).unwrap();
    let mut pages = vec![0u8; len.get().div_ceil(4096)];
    // SAFETY: a mapping of the file that is not touched; a byte for each of its pages of 4 KiB or more.
    unsafe {
        let at =
            mmap(None, len, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file.as_fd(), 0).unwrap();
        assert_eq!(libc::mincore(at.as_ptr(), len.get(), pages.as_mut_ptr()), 0);
        munmap(at, len.get()).unwrap();
    }
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// A copy of a file in `dir`, on disk and not in memory; `None` where the file system keeps it there (tmpfs).
pub fn cold(from: &str, dir: &Path) -> Option<PathBuf> {
    let path = dir.join("cold.gguf");
    std::fs::copy(from, &path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    // What has yet to be written stays.
    file.sync_all().unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    (resident(&path, usize::MAX) == 0).then_some(path)
}
