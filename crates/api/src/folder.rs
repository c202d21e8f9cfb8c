//! Ownership checks of `/tmp/orind-UID`, the socket folder of a user without a run-time directory.
//! Another user could create it first and listen in the daemon's place, so daemon and client check
//! its owner.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    #[error("{} belongs to user {owner}", path.display())]
    Foreign { path: PathBuf, owner: u32 },
    #[error("{} is not a {wanted}", path.display())]
    Other { path: PathBuf, wanted: &'static str },
    #[error("other users may write to {}", path.display())]
    Open { path: PathBuf },
    #[error("cannot inspect {}: {source}", path.display())]
    Inspect { path: PathBuf, source: io::Error },
}

/// Returns true if `socket` is in that folder.
pub fn is_fallback(socket: &Path) -> bool {
    socket.parent() == Some(&config::fallback_folder())
}

/// Checks the folder and a socket in it. Both must belong to this user or root and not be writable
/// by others. Missing files pass.
pub fn check(socket: &Path) -> Result<(), Distrust> {
    let user = Uid::effective();
    socket.parent().map_or(Ok(()), |folder| check_folder(folder, user))?;
    look(socket, user, "socket", |meta| meta.file_type().is_socket()).map(|_| ())
}

fn check_folder(folder: &Path, user: Uid) -> Result<(), Distrust> {
    match look(folder, user, "folder", Metadata::is_dir)? {
        Some(meta) if meta.mode() & 0o022 != 0 => Err(Distrust::Open { path: folder.to_owned() }),
        _ => Ok(()),
    }
}

/// Returns the metadata of `path` without following links. Fails unless `user` or root owns it.
fn look(
    path: &Path,
    user: Uid,
    wanted: &'static str,
    is_wanted: impl FnOnce(&Metadata) -> bool,
) -> Result<Option<Metadata>, Distrust> {
    let path = path.to_owned();
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Distrust::Inspect { path, source }),
        Ok(meta) if ![0, user.as_raw()].contains(&meta.uid()) => {
            Err(Distrust::Foreign { path, owner: meta.uid() })
        }
        Ok(meta) if !is_wanted(&meta) => Err(Distrust::Other { path, wanted }),
        Ok(meta) => Ok(Some(meta)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn folders_must_be_owned_private_and_not_links() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("orind-1");
        let me = Uid::effective();
        let check_as = |user| check_folder(&folder, user).map_err(|e| e.to_string());
        assert_eq!(check_as(me), Ok(()));
        fs::create_dir(&folder).unwrap();
        assert_eq!(check_as(me), Ok(()));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(check_as(me).unwrap_err().starts_with("other users may write to "));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        // Every user accepts files that root owns.
        let stranger = Uid::from_raw(me.as_raw() + 1);
        assert_eq!(check_as(stranger).is_ok(), me.is_root());
        fs::rename(&folder, dir.path().join("elsewhere")).unwrap();
        symlink("elsewhere", &folder).unwrap();
        assert!(check_as(me).unwrap_err().ends_with("is not a folder"));
    }

    #[test]
    fn only_the_fallback_folder_is_checked() {
        assert!(is_fallback(&config::fallback_folder().join("orind.sock")));
        assert!(!is_fallback(Path::new("/run/orind/orind.sock")));
        assert!(!is_fallback(Path::new("orind.sock")));
    }
}
