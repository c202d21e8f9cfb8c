//! Directories whose files are believed: only the daemon's own user may write them.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use nix::unistd::geteuid;

/// Creates a directory for this user alone, or checks that no other user may write an existing one.
///
/// # Errors
/// The directory cannot be created, belongs to another user, or may be written by others.
pub fn own(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let metadata = path.metadata()?;
    let (owner, user, mode) = (metadata.uid(), geteuid().as_raw(), metadata.mode() & 0o777);
    if owner != user {
        let message = format!("it belongs to user {owner}, and this is user {user}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    if mode & 0o022 != 0 {
        let message = format!("other users may write it (mode {mode:o}); use chmod go-w");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_directories_of_this_user_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("a/b");
        own(&new).unwrap();
        assert_eq!(new.metadata().unwrap().mode() & 0o777, 0o700);
        own(&new).unwrap();
        for mode in [0o770, 0o702] {
            fs::set_permissions(&new, fs::Permissions::from_mode(mode)).unwrap();
            let error = own(&new).unwrap_err();
            assert!(error.to_string().contains("chmod"), "{error}");
        }
        if !geteuid().is_root() {
            assert!(own(Path::new("/usr")).unwrap_err().to_string().contains("user 0"));
        }
    }
}
