//! Files of models: resolves names, and generates synthetic models in a cache.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use super::build;
use super::spec::{Error, Spec, VERSION, VERSION_KEY, is_synthetic};
use crate::gguf::Gguf;

/// The folder for generated models: `synthetic` in the service's `CACHE_DIRECTORY`, else `orind/synthetic` in
/// `XDG_CACHE_HOME`, in `~/.cache`, or in the system's folder for temporary files.
#[must_use]
pub fn default_cache_dir() -> PathBuf {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(cache) = absolute("CACHE_DIRECTORY") {
        return cache.join("synthetic");
    }
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("orind/synthetic")
}

/// Resolves a model's name. A bare name is looked up in `dir`, as it is and with `.gguf`; if there is no such file,
/// and for `synthetic:NAME` and paths, the name is returned unchanged.
#[must_use]
pub fn resolve(name: &str, dir: &Path) -> String {
    if is_synthetic(name) || name.contains('/') {
        return name.to_owned();
    }
    [name.to_owned(), format!("{name}.gguf")]
        .iter()
        .map(|file| dir.join(file))
        .find(|path| path.is_file())
        .map_or_else(|| name.to_owned(), |path| path.display().to_string())
}

/// Default id of a model loaded by this name: `synthetic:NAME`, or the stem of its file.
#[must_use]
pub fn default_id(name: &str, dir: &Path) -> String {
    let name = resolve(name, dir);
    let stem = || Path::new(&name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let stem = if is_synthetic(&name) { None } else { stem() };
    stem.unwrap_or(name)
}

/// The file of a model's name: the name itself, or the synthetic model's cached file, which is generated if missing.
///
/// # Errors
/// [`Error`] if a synthetic model is unknown or cannot be written.
pub fn locate(name: &str, progress: &mut dyn FnMut(u64, u64)) -> Result<PathBuf, Error> {
    locate_while(name, &mut |done, total| {
        progress(done, total);
        true
    })
}

/// Like [`locate`], but stops and leaves no file once `progress` returns false.
///
/// # Errors
/// Errors of [`locate`], and [`Error::Cancelled`].
pub fn locate_while(
    name: &str,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<PathBuf, Error> {
    if is_synthetic(name) {
        Spec::parse(name)?.generate(&default_cache_dir(), progress)
    } else {
        Ok(PathBuf::from(name))
    }
}

/// True for the name of a synthetic model whose file must be generated first.
#[must_use]
pub fn is_missing(name: &str) -> bool {
    let file = |spec: Spec| default_cache_dir().join(spec.file_name());
    is_synthetic(name) && Spec::parse(name).is_ok_and(|spec| !spec.is_usable(&file(spec)))
}

impl Spec {
    /// The path of the model's file in `cache_dir`. Generates the file if it is missing.
    ///
    /// `progress` receives the bytes done and the bytes in total, on this thread, unless the file exists; the work
    /// stops if it returns false. If two processes request the same model, one generates it and the other waits. The
    /// file gets its name only when it is complete.
    ///
    /// # Errors
    /// [`Error::Cache`] if the folder cannot be used, [`Error::Room`] if the disk has less free space than the file
    /// needs, [`Error::Gguf`] if the file cannot be written.
    pub fn generate(
        &self,
        cache_dir: &Path,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<PathBuf, Error> {
        let path = cache_dir.join(self.file_name());
        if self.is_usable(&path) {
            return Ok(path);
        }
        fs::create_dir_all(cache_dir)
            .map_err(|cause| Error::Cache { path: cache_dir.to_owned(), cause })?;
        let _lock = self.lock(cache_dir)?;
        if !self.is_usable(&path) {
            self.remove_leftovers(cache_dir);
            let threads = thread::available_parallelism().map_or(1, usize::from);
            build::build(*self, &path, threads, progress)?;
        }
        Ok(path)
    }

    /// The model with all of its metadata but zeroes for weights. Leaves no file on disk.
    ///
    /// # Errors
    /// [`Error::Gguf`] if the folder for temporary files cannot be written.
    pub fn outline(&self) -> Result<Gguf, Error> {
        build::outline(*self, &env::temp_dir())
    }

    /// True if the file is complete and of this version of the generator.
    fn is_usable(&self, path: &Path) -> bool {
        Gguf::open(path)
            .ok()
            .and_then(|model| model.metadata().u32(VERSION_KEY).ok())
            .is_some_and(|version| version == VERSION)
    }

    /// Waits until no other process generates this model. The kernel releases the lock with the file handle, however
    /// the process ends. On file systems without locks both processes generate it and the later file replaces the
    /// other.
    fn lock(&self, cache_dir: &Path) -> Result<File, Error> {
        let path = cache_dir.join(format!(".{}.lock", self.file_name()));
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|cause| Error::Cache { path: path.clone(), cause })?;
        match file.lock() {
            Err(cause) if cause.kind() != io::ErrorKind::Unsupported => {
                Err(Error::Cache { path, cause })
            }
            _ => Ok(file),
        }
    }

    /// Removes temporary files of killed processes. Requires the lock.
    fn remove_leftovers(&self, cache_dir: &Path) {
        let prefix = format!(".{}.", self.file_name());
        let entries = fs::read_dir(cache_dir).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&prefix) && name.ends_with(".tmp") {
                // Best effort: it only wastes space.
                drop(fs::remove_file(entry.path()));
            }
        }
    }
}
