//! The preload library that the program carries, laid down where the dynamic linker can read it.
//!
//! In a file, and not in memory that the program inherits: Python and others close what they do not know before
//! they start a program, whose `LD_PRELOAD` would then name nothing.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Empty in a program that was built to find it beside itself; see `build/carried.rs`.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/carried.so"));

/// Why it does not lie anywhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarriedError {
    /// The environment names no folder of the user's own.
    #[error(
        "neither XDG_CACHE_HOME nor HOME names a folder for the preload library; set one of them"
    )]
    NoCache,
    /// It cannot be written.
    #[error(
        "the preload library cannot be written to {folder:?}: {error}; set XDG_CACHE_HOME to a folder that can"
    )]
    Unwritable { folder: PathBuf, error: io::Error },
}

/// Where it lies: in the user's cache, written there if need be. None if the program carries none.
pub(super) fn library() -> Option<Result<PathBuf, CarriedError>> {
    (!LIBRARY.is_empty()).then(|| {
        let folder = cache().ok_or(CarriedError::NoCache)?;
        lay_down(LIBRARY, &folder).map_err(|error| CarriedError::Unwritable { folder, error })
    })
}

/// By the XDG base directory specification, which ignores relative paths.
fn cache() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(absolute("HOME")?.join(".cache"));
    Some(absolute("XDG_CACHE_HOME").or_else(home)?.join("tegra-sim"))
}

/// The path of a file in `folder` that holds `library`. Its name is of its contents: programs that carry others
/// may run at the same time. It appears whole or not at all.
fn lay_down(library: &[u8], folder: &Path) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let path = folder.join(format!("libtegra_sim_preload-{:016x}.so", hasher.finish()));
    if fs::read(&path).is_ok_and(|found| found == library) {
        return Ok(path);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Of processes that begin together each writes its own.
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
    fn what_is_laid_down_is_whole_and_the_users_own() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("cache/tegra-sim");
        let path = lay_down(b"one", &folder).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_ne!(lay_down(b"other", &folder).unwrap(), path, "another library has another name");
        // What somebody broke is mended, and what is right is left alone.
        fs::write(&path, b"on").unwrap();
        assert_eq!(lay_down(b"one", &folder).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        lay_down(b"one", &folder).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
        assert_eq!(names(&folder), 2, "no part of a file is left");
    }

    #[test]
    fn many_that_begin_together_all_find_it_whole() {
        let root = tempfile::tempdir().unwrap();
        let library = vec![7; 1 << 20];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let path = lay_down(&library, root.path()).unwrap();
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
        assert!(lay_down(b"one", &file.join("tegra-sim")).is_err());
    }
}
