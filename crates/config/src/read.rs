//! Parsing of the configuration file, and its errors.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use errors::invalid;
use toml::de::DeTable;

use super::Config;
use super::check::allowed;
use super::keys::keys;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{place}: unknown key `{key}`{}", nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownKey { place: String, key: String, nearest: Option<&'static str> },
    /// Not TOML, or a value of the wrong type.
    #[error("{place}: {reason}")]
    Invalid {
        /// File, line, and the invalid key, if known.
        place: String,
        reason: String,
    },
    #[error("{key} is {value}; {allowed}")]
    Range { key: &'static str, value: String, allowed: String },
}

impl Error {
    pub(super) fn range(
        key: &'static str,
        value: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Range { key, value: value.into(), allowed: allowed.into() }
    }
}

impl Config {
    /// Reads a file. [`Self::check`] checks the values later, because flags may override them.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses TOML. `origin` names the source in errors.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Error> {
        let place = |at: usize| {
            let line = 1 + text.bytes().take(at).filter(|&b| b == b'\n').count();
            format!("{origin}:{line}")
        };
        let refuse = |key: Option<&str>, error: &toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            let place = place(start);
            let place = key.map_or_else(|| place.clone(), |key| format!("{place}: {key}"));
            let reason = invalid::plain(error.message());
            let number = key.and_then(allowed).zip(reason.rsplit_once(", a whole number from "));
            let reason = match number {
                Some((allowed, (value, _))) => {
                    let (from, to) = (allowed.start(), allowed.end());
                    format!("{value}, a whole number from {from} to {to} is needed")
                }
                None => reason,
            };
            Error::Invalid { place, reason }
        };
        let table = DeTable::parse(text).map_err(|e| refuse(None, &e))?;
        for key in table.get_ref().keys() {
            let name: &str = key.get_ref();
            if keys().all(|key| key != name) {
                let nearest = nearest(name);
                let place = place(key.span().start);
                return Err(Error::UnknownKey { place, key: invalid::excerpt(name), nearest });
            }
        }
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let key = table.get_ref().iter().find(|(_, value)| value.span().contains(&at));
            // The span of an array's table is only its header: take the key from the line.
            let line = text.get(..at).and_then(|before| before.lines().last());
            let own = line.and_then(|line| line.split_once('=')).map(|(key, _)| key.trim());
            refuse(key.map(|(key, _)| key.get_ref().as_ref()).or(own), &error)
        })
    }
}

/// Returns the most similar key to a misspelt one.
fn nearest(key: &str) -> Option<&'static str> {
    let alike = |known: &str| strsim::jaro_winkler(known, &key.to_lowercase());
    keys().max_by(|a, b| alike(a).total_cmp(&alike(b))).filter(|known| alike(known) > 0.75)
}
