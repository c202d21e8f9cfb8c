//! The machine code that is checked in: a program needs no CUDA to have it.

use crate::catalogue::Unit;
use crate::manifest::Manifest;
use crate::source::Target;

include!(concat!(env!("OUT_DIR"), "/prebuilt.rs"));

/// A unit for a target: a cubin, or PTX as text. `None` when it has not been built.
#[must_use]
pub fn file(unit: Unit, target: Target) -> Option<&'static [u8]> {
    let name = target.file(unit);
    FILES.iter().find(|(file, _)| *file == name).map(|(_, bytes)| *bytes)
}

/// Every file, by name.
pub fn files() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    FILES.iter().copied()
}

/// The manifest.
///
/// # Errors
///
/// It is missing or cannot be read.
pub fn manifest() -> Result<Manifest, ManifestError> {
    let (_, bytes) =
        FILES.iter().find(|(file, _)| *file == MANIFEST).ok_or(ManifestError::Missing)?;
    Ok(serde_json::from_slice(bytes)?)
}

/// Name of the manifest under `prebuilt/`.
pub const MANIFEST: &str = "manifest.json";

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
