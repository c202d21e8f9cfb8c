//! The machine code that is checked in: a program needs no CUDA to have it.
//!
//! It is kept deflated, which is a quarter, and inflated when it is asked for; who asks has it, and lets go of it.

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::{DecompressError, decompress_to_vec_zlib};

use crate::catalogue::Unit;
use crate::manifest::Manifest;
use crate::source::Target;

include!(concat!(env!("OUT_DIR"), "/prebuilt.rs"));

/// Name of the manifest under `prebuilt/`.
pub const MANIFEST: &str = "manifest.json";

/// What the name of deflated machine code ends in.
const DEFLATED: &str = ".z";

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
pub fn deflated(name: &str) -> String {
    format!("{name}{DEFLATED}")
}

/// Its bytes.
#[must_use]
pub fn deflate(code: &[u8]) -> Vec<u8> {
    compress_to_vec_zlib(code, 9)
}

/// The machine code in them.
///
/// # Errors
///
/// They were not made by [`deflate`].
pub fn inflate(bytes: &[u8]) -> Result<Vec<u8>, DecompressError> {
    decompress_to_vec_zlib(bytes)
}

/// A unit for a target: a cubin, or PTX as text. `None` when it has not been built.
#[must_use]
pub fn file(unit: Unit, target: Target) -> Option<Vec<u8>> {
    let name = target.file(unit);
    let found = FILES.iter().find(|file| file.name.strip_suffix(DEFLATED) == Some(&name))?;
    match inflate(found.bytes) {
        Ok(code) => Some(code),
        Err(error) => unreachable!("{name} is checked in as the build deflated it: {error}"),
    }
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
