//! Errors of `install` and `uninstall`.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the prefix {} is not an absolute path of letters, digits and `/._+-`", .0.display())]
    Prefix(PathBuf),
    #[error(
        "{} does not exist; both programs are installed from one directory; \
         `cargo build --profile dist` builds both",
        .0.display()
    )]
    Program(PathBuf),
    #[error("nothing is installed below {}: {} does not exist", prefix.display(), manifest.display())]
    NotInstalled { prefix: PathBuf, manifest: PathBuf },
    #[error("{} contains an invalid line: {line}", manifest.display())]
    Manifest { manifest: PathBuf, line: String },
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

impl Error {
    pub(crate) fn hint(&self) -> Option<String> {
        let Self::Io { source, .. } = self else { return None };
        let denied = source.kind() == io::ErrorKind::PermissionDenied;
        denied.then(|| "run it as root (sudo), or stage it with --root DIR".into())
    }
}
