//! List of the files that an installation created, from which `uninstall` removes them.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// Paths as on the installed system, independent of a staging directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) files: BTreeSet<PathBuf>,
    /// Directories that the installation created.
    pub(super) directories: BTreeSet<PathBuf>,
}

impl Manifest {
    pub(super) fn to_text(&self) -> String {
        let mut text =
            "# Files created by orinctl install; orinctl uninstall reads this list.\n".to_owned();
        for (kind, paths) in [("file", &self.files), ("directory", &self.directories)] {
            for path in paths {
                text.push_str(&format!("{kind} {}\n", path.display()));
            }
        }
        text
    }

    /// Parses a manifest. Every path must be below one of `roofs`, because the manifest decides
    /// what is deleted.
    pub(super) fn parse(text: &str, roofs: &[&Path]) -> Result<Self, String> {
        let mut manifest = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (kind, path) = line.split_once(' ').ok_or_else(|| format!("`{line}`"))?;
            let path = PathBuf::from(path);
            let plain =
                path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
            if !plain || !roofs.iter().any(|roof| path.starts_with(roof)) {
                return Err(format!("`{line}`, which is not below {}", roofs[0].display()));
            }
            match kind {
                "file" => manifest.files.insert(path),
                "directory" => manifest.directories.insert(path),
                _ => return Err(format!("`{line}`")),
            };
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_round_trip() {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
        let manifest = Manifest {
            files: paths(&["/usr/local/bin/orind", "/etc/orind/orind.toml"]),
            directories: paths(&["/etc/orind"]),
        };
        let roofs = [Path::new("/usr/local"), Path::new("/etc/orind")];
        assert_eq!(Manifest::parse(&manifest.to_text(), &roofs).unwrap(), manifest);
    }

    #[test]
    fn paths_outside_the_prefix_are_rejected() {
        let roofs = [Path::new("/opt/o"), Path::new("/etc/orind")];
        for line in [
            "file /etc/passwd",
            "file /opt/o/../../etc/passwd",
            "directory /",
            "file opt/o/x",
            "file",
            "link /opt/o/x",
        ] {
            assert!(Manifest::parse(line, &roofs).is_err(), "{line}");
        }
    }
}
