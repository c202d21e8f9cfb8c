//! Synthetic models: seeded random GGUF files with the shapes, vocabulary sizes and tensor types
//! of real models, so that everything can run where there is no model and no network.
//!
//! `synthetic:NAME:TYPE` names one; [`Spec::generate`] makes its file once and finds it again in
//! the cache. The same name gives the same file whatever the machine's number of cores.
//!
//! The large models have uniform noise for weights, with deviations that keep activations of
//! ordinary size; what they say means nothing. Of the tiny ones those of Llama and Qwen3 follow a planted rule (`planted`)
//! and have a clear most likely token at every step. In both a weight is a function of the seed, the
//! tensor's name and its index, and is stored with [`plan::quant::quantise`] like any other, so
//! that all types of one model have the same weights up to rounding.
//!
//! The vocabularies are invented too: real ones belong to their makers.

mod build;
mod planted;
mod random;
mod shape;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::env;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use crate::gguf::{self, Gguf};
use plan::quant;
use shape::{SHAPES, Shape, Type};

/// What the name of every synthetic model begins with.
pub const PREFIX: &str = "synthetic:";

/// Changes whenever the same name would give another file.
pub const VERSION: u32 = 2;

/// The metadata key that holds [`VERSION`]; only synthetic models have it.
pub const VERSION_KEY: &str = "orind.synthetic.version";

pub const SEED: u64 = 0x06f7_2a3d_5eed_0001;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no synthetic model `{name}`; did you mean `{nearest}`? There are: {}", names().join(", "))]
    Unknown {
        name: String,
        /// The most similar name that exists.
        nearest: String,
    },
    #[error("cannot use the cache {}: {cause}", .path.display())]
    Cache { path: PathBuf, cause: io::Error },
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    #[error(transparent)]
    Quant(#[from] quant::Error),
}

#[derive(Clone, Copy, PartialEq)]
pub struct Spec {
    shape: Shape,
    kind: Type,
    /// It has fewer layers than the model it is named after.
    cut: bool,
}

/// All names, as [`Spec::parse`] takes them.
#[must_use]
pub fn names() -> Vec<String> {
    SHAPES
        .iter()
        .flat_map(|shape| {
            Type::of(shape).map(move |kind| Spec { shape: *shape, kind: *kind, cut: false })
        })
        .map(|spec| spec.to_string())
        .collect()
}

/// True for names that mean a synthetic model and not a file.
#[must_use]
pub fn is_synthetic(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The folder for generated models: `synthetic` in the service's `CACHE_DIRECTORY`, else `orind/synthetic`
/// in `XDG_CACHE_HOME`, else in `~/.cache`, else in the system's folder for temporary files.
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

/// The file or name that a model's name stands for: `synthetic:NAME` and paths as they are, a bare name is
/// looked up in `dir`, with `.gguf` added where that finds a file.
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

/// What a model that is loaded by this name is called where it is given no other: `synthetic:NAME`, or the stem of its
/// file.
#[must_use]
pub fn id_of(name: &str, dir: &Path) -> String {
    let name = resolve(name, dir);
    let stem = || Path::new(&name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let stem = if is_synthetic(&name) { None } else { stem() };
    stem.unwrap_or(name)
}

/// The file behind a model's name: the name itself, or the synthetic model's cached file, made
/// first where it is missing.
///
/// # Errors
/// [`Error`] when a synthetic model is not known or cannot be written.
pub fn locate(name: &str, progress: &mut dyn FnMut(u64, u64)) -> Result<PathBuf, Error> {
    if is_synthetic(name) {
        Spec::parse(name)?.generate(&default_cache_dir(), progress)
    } else {
        Ok(PathBuf::from(name))
    }
}

impl Spec {
    /// The model of this name, `synthetic:NAME:TYPE` in any case; `synthetic:NAME:TYPE@N` has the first N of
    /// its layers.
    ///
    /// # Errors
    /// [`Error::Unknown`] with the nearest name and all others.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let wanted = name.to_lowercase();
        let found = wanted.strip_prefix(PREFIX).and_then(|rest| rest.split_once(':')).and_then(
            |(model, kind)| {
                let mut shape = *SHAPES.iter().find(|shape| shape.name == model)?;
                let (kind, layers) = match kind.split_once('@') {
                    Some((kind, layers)) => (kind, Some(layers)),
                    None => (kind, None),
                };
                let kind = *Type::of(&shape).find(|t| t.name == kind)?;
                let cut = layers.is_some();
                if let Some(layers) = layers {
                    let layers = layers.parse().ok()?;
                    // A planted rule needs all of them.
                    if shape.planted || !(1..shape.layers).contains(&layers) {
                        return None;
                    }
                    shape.layers = layers;
                }
                Some(Self { shape, kind, cut })
            },
        );
        found.ok_or_else(|| {
            let distance = |known: &String| strsim::damerau_levenshtein(&wanted, known);
            let nearest = names().into_iter().min_by_key(distance).unwrap_or_default();
            Error::Unknown { name: name.to_owned(), nearest }
        })
    }

    #[must_use]
    pub fn file_name(&self) -> String {
        let layers = if self.cut { format!("@{}", self.shape.layers) } else { String::new() };
        format!("{}-{}{layers}-v{VERSION}-{SEED:016x}.gguf", self.shape.name, self.kind.name)
    }

    /// Its name for people, which says of a cut one that it is.
    fn title(&self) -> String {
        let Shape { title, layers, .. } = self.shape;
        if self.cut { format!("{title} cut to {layers} layers") } else { title.to_owned() }
    }

    /// The path of the model's file in `cache_dir`, which is made if it is not there yet.
    ///
    /// `progress` is told the bytes done and the bytes in all, from this thread; it is not called
    /// when the file is there. Two processes may ask for the same model at the same time: one
    /// makes it, the other waits. A file appears under its name only when it is complete.
    ///
    /// # Errors
    /// [`Error::Cache`] when the folder cannot be used, [`Error::Gguf`] when the file cannot be
    /// written (the disk is full, for instance).
    pub fn generate(
        &self,
        cache_dir: &Path,
        progress: &mut dyn FnMut(u64, u64),
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

    /// The model with all that its file would say of itself, and zero for weights. Nothing is left of it on
    /// the disk.
    ///
    /// # Errors
    /// [`Error::Gguf`] when the folder for temporary files cannot be written.
    pub fn outline(&self) -> Result<Gguf, Error> {
        build::outline(*self, &env::temp_dir())
    }

    /// True if the file is whole and made by this version: its tensors lie within it.
    fn is_usable(&self, path: &Path) -> bool {
        Gguf::open(path)
            .ok()
            .and_then(|model| model.metadata().u32(VERSION_KEY).ok())
            .is_some_and(|version| version == VERSION)
    }

    /// Waits until no other process makes this model. The lock ends with the file handle, however
    /// the process ends. On a file system without locks both make it, and the later one stays.
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

    /// Removes what a process that was killed has left; the caller holds the lock.
    fn remove_leftovers(&self, cache_dir: &Path) {
        let prefix = format!(".{}.", self.file_name());
        let entries = fs::read_dir(cache_dir).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&prefix) && name.ends_with(".tmp") {
                // Best effort: it only takes up room.
                drop(fs::remove_file(entry.path()));
            }
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}:{}", self.shape.name, self.kind.name)?;
        if self.cut { write!(f, "@{}", self.shape.layers) } else { Ok(()) }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spec({self})")
    }
}
