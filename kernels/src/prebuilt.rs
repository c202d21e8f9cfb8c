//! Checked-in machine code: running the kernels needs no CUDA toolkit.
//!
//! Files are LZMA-compressed to an eighth and decompressed on request. As long as an [`Unpacked`]
//! exists, decompressed files are cached.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};

use lzma_rust2::{LzmaOptions, LzmaReader, LzmaWriter};
use parking_lot::Mutex;

use crate::catalogue::Unit;
use crate::manifest::Manifest;
use crate::source::Target;

include!(concat!(env!("OUT_DIR"), "/prebuilt.rs"));

/// Name of the manifest under `prebuilt/`.
pub const MANIFEST: &str = "manifest.json";

/// Suffix of compressed machine code.
const PACKED: &str = ".lzma";

/// Memory limit of decompression in KiB, above the dictionary size that [`pack`] uses.
const MEMORY: u32 = 32 << 10;

struct File {
    name: &'static str,
    bytes: &'static [u8],
}

impl File {
    const fn new(name: &'static str, bytes: &'static [u8]) -> Self {
        Self { name, bytes }
    }
}

/// Name of a machine code file under `prebuilt/`.
#[must_use]
pub fn packed(name: &str) -> String {
    format!("{name}{PACKED}")
}

/// Compresses machine code to a `.lzma` file, as read by `xz --format=lzma`.
///
/// # Errors
///
/// The compressor fails.
pub fn pack(code: &[u8]) -> io::Result<Vec<u8>> {
    let options = LzmaOptions::with_preset(6);
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(code.len() as u64))?;
    writer.write_all(code)?;
    writer.finish()
}

/// Decompresses the output of [`pack`].
///
/// # Errors
///
/// The bytes are not the output of [`pack`].
pub fn unpack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut code = Vec::new();
    LzmaReader::new_mem_limit(bytes, MEMORY, None)?.read_to_end(&mut code)?;
    Ok(code)
}

/// Decompressed files and the number of [`Unpacked`] guards.
struct Decompressed {
    holders: usize,
    files: BTreeMap<String, Vec<u8>>,
}

static CACHE: Mutex<Decompressed> = Mutex::new(Decompressed { holders: 0, files: BTreeMap::new() });

/// Guard that keeps decompressed files cached, for devices that are opened repeatedly. A model
/// needs a few MiB.
#[derive(Debug)]
pub struct Unpacked(());

impl Unpacked {
    /// Adds a guard.
    #[must_use]
    pub fn keep() -> Self {
        CACHE.lock().holders += 1;
        Self(())
    }
}

impl Clone for Unpacked {
    fn clone(&self) -> Self {
        Self::keep()
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        let mut cache = CACHE.lock();
        cache.holders -= 1;
        if cache.holders == 0 {
            cache.files = BTreeMap::new();
        }
    }
}

/// Machine code of a unit for a target: a cubin, or PTX as text. `None` if it was not built.
#[must_use]
pub fn file(unit: Unit, target: Target) -> Option<Vec<u8>> {
    let name = target.file(unit);
    let found = FILES.iter().find(|file| file.name.strip_suffix(PACKED) == Some(&name))?;
    let mut cache = CACHE.lock();
    if let Some(code) = cache.files.get(&name) {
        return Some(code.clone());
    }
    let code = match unpack(found.bytes) {
        Ok(code) => code,
        Err(error) => unreachable!("{name} is checked in as the build packed it: {error}"),
    };
    if cache.holders > 0 {
        cache.files.insert(name, code.clone());
    }
    Some(code)
}

/// Every compressed file with its name.
pub fn files() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    FILES.iter().map(|file| (file.name, file.bytes))
}

/// Parses the manifest.
///
/// # Errors
///
/// It is missing or invalid.
pub fn manifest() -> Result<Manifest, ManifestError> {
    let (_, bytes) = files().find(|(name, _)| *name == MANIFEST).ok_or(ManifestError::Missing)?;
    Ok(serde_json::from_slice(bytes)?)
}

/// Reason why the manifest is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// `prebuilt/` is empty.
    #[error("prebuilt/manifest.json is missing; run `cargo run -p orind-kernels -- build`")]
    Missing,
    /// Invalid JSON.
    #[error("prebuilt/manifest.json cannot be read")]
    Json(#[from] serde_json::Error),
}
