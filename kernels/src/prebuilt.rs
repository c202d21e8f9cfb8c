//! The machine code that is checked in: a program needs no CUDA to have it.
//!
//! It is kept packed, as LZMA, which is an eighth, and unpacked when it is asked for; who asks has it, and lets go of it.
//! While somebody holds an [`Unpacked`] each file is unpacked but once.

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

/// What the name of packed machine code ends in.
const PACKED: &str = ".lzma";

/// Kibibytes that unpacking may take, more than the dictionary of what [`pack`] makes.
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

/// The name under `prebuilt/` of a file of machine code.
#[must_use]
pub fn packed(name: &str) -> String {
    format!("{name}{PACKED}")
}

/// Its bytes: a `.lzma` file, as `xz --format=lzma` reads it.
///
/// # Errors
///
/// The packer fails.
pub fn pack(code: &[u8]) -> io::Result<Vec<u8>> {
    let options = LzmaOptions::with_preset(6);
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(code.len() as u64))?;
    writer.write_all(code)?;
    writer.finish()
}

/// The machine code in them.
///
/// # Errors
///
/// They were not made by [`pack`].
pub fn unpack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut code = Vec::new();
    LzmaReader::new_mem_limit(bytes, MEMORY, None)?.read_to_end(&mut code)?;
    Ok(code)
}

/// What has been unpacked, while somebody wants it kept.
struct Kept {
    holders: usize,
    files: BTreeMap<String, Vec<u8>>,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { holders: 0, files: BTreeMap::new() });

/// While there is one, what has been unpacked stays so: a device that is opened again and again has one. A few MiB for
/// what a model takes.
#[derive(Debug)]
pub struct Unpacked(());

impl Unpacked {
    /// One more.
    #[must_use]
    pub fn keep() -> Self {
        KEPT.lock().holders += 1;
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
        let mut kept = KEPT.lock();
        kept.holders -= 1;
        if kept.holders == 0 {
            kept.files = BTreeMap::new();
        }
    }
}

/// A unit for a target: a cubin, or PTX as text. `None` when it has not been built.
#[must_use]
pub fn file(unit: Unit, target: Target) -> Option<Vec<u8>> {
    let name = target.file(unit);
    let found = FILES.iter().find(|file| file.name.strip_suffix(PACKED) == Some(&name))?;
    let mut kept = KEPT.lock();
    if let Some(code) = kept.files.get(&name) {
        return Some(code.clone());
    }
    let code = match unpack(found.bytes) {
        Ok(code) => code,
        Err(error) => unreachable!("{name} is checked in as the build packed it: {error}"),
    };
    if kept.holders > 0 {
        kept.files.insert(name, code.clone());
    }
    Some(code)
}

/// Every file as it lies there, by name.
pub fn files() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    FILES.iter().map(|file| (file.name, file.bytes))
}

/// The manifest.
///
/// # Errors
///
/// It is missing or cannot be read.
pub fn manifest() -> Result<Manifest, ManifestError> {
    let (_, bytes) = files().find(|(name, _)| *name == MANIFEST).ok_or(ManifestError::Missing)?;
    Ok(serde_json::from_slice(bytes)?)
}

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Nothing has been built.
    #[error("there is no prebuilt/manifest.json; run `cargo run -p orind-kernels -- build`")]
    Missing,
    /// Not a manifest.
    #[error("prebuilt/manifest.json cannot be read")]
    Json(#[from] serde_json::Error),
}
