//! The root directory of the probed files, and errors of reading them.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::state::Unread;

/// Directory that stands for `/`: the machine's own, or a copy of another machine's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// Environment variable with another root.
    pub const VARIABLE: &str = "ORIND_SYSROOT";

    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// This machine's files, or those under `$ORIND_SYSROOT`.
    #[must_use]
    pub fn system() -> Self {
        let other = std::env::var_os(Self::VARIABLE).map(PathBuf::from);
        Self(other.filter(|path| path.is_absolute()).unwrap_or_else(|| "/".into()))
    }

    /// Location of an absolute path.
    #[must_use]
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.0.join(absolute.trim_start_matches('/'))
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Contents of a small text file, trimmed of NULs and white space.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        read(&self.path(path)).ok()
    }

    pub(super) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Like [`Self::text`], for a file that should exist: an error is added to `notes`.
    pub(super) fn wanted(&self, what: &str, path: &str, notes: &mut Vec<Unread>) -> Option<String> {
        match read(&self.path(path)) {
            Ok(text) => Some(text),
            Err(reason) => {
                notes.push(Unread { what: what.into(), path: path.into(), reason });
                None
            }
        }
    }

    pub(super) fn wanted_number<T: FromStr>(
        &self,
        what: &str,
        path: &str,
        notes: &mut Vec<Unread>,
    ) -> Option<T> {
        let text = self.wanted(what, path, notes)?;
        let number = text.parse().ok();
        if number.is_none() {
            let reason = format!("`{}` is not the number expected", text.escape_debug());
            notes.push(Unread { what: what.into(), path: path.into(), reason });
        }
        number
    }

    /// Paths of a directory's entries in numeric order (`policy4` before `policy12`); empty if
    /// unreadable.
    pub(super) fn entries(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(directory)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let number = |name: &str| {
            let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
            digits.parse::<u64>().unwrap_or(0)
        };
        names.sort_by(|a, b| number(a).cmp(&number(b)).then_with(|| a.cmp(b)));
        names.into_iter().map(|name| format!("{directory}/{name}")).collect()
    }
}

fn read(path: &Path) -> Result<String, String> {
    match fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            Ok(text.trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_owned())
        }
        // Error text without the `(os error N)` suffix.
        Err(error) => Err(match error.kind() {
            std::io::ErrorKind::NotFound => "no such file".into(),
            std::io::ErrorKind::PermissionDenied => "not allowed for this user".into(),
            _ => error.to_string(),
        }),
    }
}
