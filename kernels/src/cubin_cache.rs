//! Disk cache of compiled kernels, keyed by sources, options, architecture and NVRTC version.
//!
//! A file begins with the SHA-256 of its content; a damaged file is ignored. A file that cannot be
//! written only means that the next process compiles the kernel again.

use std::fs::{self, DirEntry};
use std::path::PathBuf;
use std::time::SystemTime;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// Most files; the oldest are removed beyond that.
const MOST: usize = 2048;

/// Bytes of a file's SHA-256.
const HASH: usize = 32;

/// Size limit: larger files are ignored. A kernel has less than a megabyte.
const LARGEST: u64 = 16 << 20;

static FOLDER: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Sets the cache folder and enables the cache. The folder is created on the first write. Any
/// process that can write to it controls what the GPU runs.
pub fn keep_in(folder: PathBuf) {
    *FOLDER.lock() = Some(folder);
}

/// File name for sources compiled by an NVRTC version.
pub(crate) fn name(sources: &str, (major, minor): (i32, i32)) -> String {
    format!("{sources}-nvrtc{major}.{minor}")
}

/// Reads a file; `None` if it is missing or damaged.
pub(crate) fn read(name: &str) -> Option<Vec<u8>> {
    let path = FOLDER.lock().as_ref()?.join(name);
    if fs::metadata(&path).ok()?.len() > LARGEST {
        return None;
    }
    let file = fs::read(path).ok()?;
    let (hash, code) = file.split_at_checked(HASH)?;
    (hash == Sha256::digest(code).as_slice()).then(|| code.to_vec())
}

/// Writes a file atomically.
pub(crate) fn write(name: &str, code: &[u8]) {
    let Some(folder) = FOLDER.lock().clone() else { return };
    let whole = [Sha256::digest(code).as_slice(), code].concat();
    let part = folder.join(format!("{name}.{}", std::process::id()));
    let written = fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&part, whole))
        .and_then(|()| fs::rename(&part, folder.join(name)));
    if written.is_err() {
        // The next process compiles the kernel again; remove the partial file.
        let _ = fs::remove_file(part);
        return;
    }
    let age = |entry: &DirEntry| {
        entry.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let mut all: Vec<DirEntry> = fs::read_dir(&folder).into_iter().flatten().flatten().collect();
    let beyond = all.len().saturating_sub(MOST);
    if beyond > 0 {
        all.sort_by_cached_key(age);
        for entry in &all[..beyond] {
            // Another process may have removed it already.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_files_are_read_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("orind-kept-{}", std::process::id()));
        keep_in(folder.join("below"));
        let name = name("abc", (12, 6));
        assert_eq!(read(&name), None);
        write(&name, b"machine code");
        assert_eq!(read(&name).as_deref(), Some(&b"machine code"[..]));
        assert_eq!(read(&super::name("abc", (12, 8))), None, "another compiler");
        let file = folder.join("below").join(&name);
        let mut bytes = fs::read(&file).unwrap();
        for damage in [HASH - 1, bytes.len() - 1] {
            bytes[damage] ^= 1;
            fs::write(&file, &bytes).unwrap();
            assert_eq!(read(&name), None, "byte {damage}");
            bytes[damage] ^= 1;
        }
        fs::write(&file, &bytes[..HASH - 1]).unwrap();
        assert_eq!(read(&name), None, "cut short");
        for other in 0..MOST + 3 {
            fs::write(folder.join("below").join(other.to_string()), "").unwrap();
        }
        write(&name, b"again");
        assert_eq!(read(&name).as_deref(), Some(&b"again"[..]));
        assert!(fs::read_dir(folder.join("below")).unwrap().count() <= MOST);
        fs::remove_dir_all(&folder).unwrap();
        write(&name, b"and again");
        assert_eq!(read(&name).as_deref(), Some(&b"and again"[..]));
        fs::remove_dir_all(folder).unwrap();
    }
}
