//! Downloads of model files from a URL or a Hugging Face repository into a folder. Interrupted
//! transfers resume, files are verified against their SHA-256, and a file gets its final name only
//! when it is complete.
//!
//! Depends on HTTP and file paths only; of GGUF it checks only the magic bytes. The only crate that connects to other
//! machines on its own: the client uses it, the daemon does not.

#![forbid(unsafe_code)]

mod client;
mod directory;
mod error;
mod file;
mod hub;
mod name;
mod part;
mod sum;
mod transfer;

pub use client::Client;
pub use error::Error;
pub use file::{File, Folder};
pub use name::Name;
pub use sum::Sum;
pub use transfer::{Fetched, Progress};

use std::path::{Path, PathBuf};

/// Looks up a name in the cache (the first part of a split model), without network access.
#[must_use]
pub fn find(name: &Name, cache: &Path) -> Option<PathBuf> {
    let file = match name {
        Name::Url(url) => cache.join(url.place()),
        Name::Hub(place) => {
            let folder = cache.join(place.folder());
            let there = hub::listed(&folder);
            folder.join(hub::choose(place, &there).ok()?.first()?)
        }
    };
    file.is_file().then_some(file)
}
