//! Model files from the network: a URL, or a repository of the Hugging Face hub, into a folder. A transfer that breaks
//! off goes on where it ended, what came is held against its SHA-256, and a file has its name when it is whole.
//!
//! Knows HTTP and where files lie; of GGUF no more than the four bytes that a file begins with. The only crate that
//! opens a connection to another machine of its own accord: the client uses it, the daemon does not.

#![forbid(unsafe_code)]

mod client;
mod error;
mod hub;
mod name;
mod part;
mod sum;
mod transfer;

pub use client::Client;
pub use error::Error;
pub use name::Name;
pub use sum::Sum;
pub use transfer::{Fetched, File, Progress};

use std::path::{Path, PathBuf};

/// Where files go.
#[derive(Clone, Copy, Debug)]
pub enum Folder<'a> {
    /// A cache: each file below the host or repository that it is from, where [`find`] finds it by its name.
    Cache(&'a Path),
    /// One folder for all, each file under its own name.
    Flat(&'a Path),
}

/// The file in a cache that a name stands for, of a split model the first. Asks nobody.
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
