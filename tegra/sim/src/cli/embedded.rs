//! The embedded preload library, written to a file that the dynamic linker can read.
//!
//! A file is used instead of an inherited memfd, because Python and others close unknown
//! descriptors before they start a program, and `LD_PRELOAD` would then name a closed one.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Empty if the program was built to find the library next to itself; see `build/embedded.rs`.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/embedded.so"));

/// Error of writing the library.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EmbeddedError {
    /// The environment names no cache folder.
    #[error(
        "neither XDG_CACHE_HOME nor HOME names a folder for the preload library; set one of them"
    )]
    NoCache,
    /// The file cannot be written.
    #[error(
        "the preload library cannot be written to {folder:?}: {error}; set XDG_CACHE_HOME to a folder that can"
    )]
    Unwritable { folder: PathBuf, error: io::Error },
}

/// Path of the library in the user's cache, where it is written if needed. None if the program
/// embeds none.
pub(super) fn library() -> Option<Result<PathBuf, EmbeddedError>> {
    (!LIBRARY.is_empty()).then(|| {
        let folder = cache().ok_or(EmbeddedError::NoCache)?;
        extract(LIBRARY, &folder).map_err(|error| EmbeddedError::Unwritable { folder, error })
    })
}

/// Cache folder by the XDG base directory specification, which ignores relative paths.
fn cache() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(absolute("HOME")?.join(".cache"));
    Some(absolute("XDG_CACHE_HOME").or_else(home)?.join("tegra-sim"))
}

/// Returns the path of a file in `folder` that contains `library`. The name is a hash of the
/// contents, so that several versions can coexist. The file is created atomically.
fn extract(library: &[u8], folder: &Path) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let path = folder.join(format!("libtegra_sim_preload-{:016x}.so", hasher.finish()));
    if fs::read(&path).is_ok_and(|found| found == library) {
        return Ok(path);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Concurrent processes each write their own file.
    let partial = path.with_extension(format!("{:x}.partial", RandomState::new().hash_one(0)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(&partial)?;
    let written = file.write_all(library).and_then(|()| fs::rename(&partial, &path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.map(|()| path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn the_extracted_library_is_complete_and_private() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("cache/tegra-sim");
        let path = extract(b"one", &folder).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_ne!(extract(b"other", &folder).unwrap(), path, "another library has another name");
        // A damaged file is replaced, a correct one is kept.
        fs::write(&path, b"on").unwrap();
        assert_eq!(extract(b"one", &folder).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        extract(b"one", &folder).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
        assert_eq!(names(&folder), 2, "no part of a file is left");
    }

    #[test]
    fn concurrent_processes_find_a_complete_library() {
        let root = tempfile::tempdir().unwrap();
        let library = vec![7; 1 << 20];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let path = extract(&library, root.path()).unwrap();
                    assert_eq!(fs::read(path).unwrap(), library);
                });
            }
        });
        assert_eq!(names(root.path()), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(extract(b"one", &file.join("tegra-sim")).is_err());
    }
}
