//! The unix socket and its lock file `SOCKET.lock`. The holder of the file's `flock` may replace a
//! socket file that no process listens on; the kernel releases the lock with the process. A daemon
//! removes both files when it stops, if they are still its own.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen,
    socket, sockopt,
};

use api::folder::{self, Distrust};
use config::SocketMode;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} is in use by {holder}; stop it, or choose another with --socket", path.display())]
    InUse {
        path: PathBuf,
        /// Process id and name, if known.
        holder: String,
    },
    /// The path is not a socket. It is never deleted.
    #[error("{} exists and is not a socket; move it away, or choose another path with --socket", path.display())]
    NotASocket { path: PathBuf },
    #[error("the socket path {} has {} bytes; at most {LONGEST} are possible", path.display(), path.as_os_str().len())]
    TooLong { path: PathBuf },
    /// Another user could replace the socket.
    #[error(
        "{0}: no daemon listens there; set XDG_RUNTIME_DIR, or name another socket with --socket"
    )]
    Distrusted(#[from] Distrust),
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

/// Size of `sun_path` without its terminator.
const LONGEST: usize = 107;

/// Connections that the kernel queues before they are accepted.
const BACKLOG: i32 = 1024;

/// Ownership of a socket path. Dropping it removes the files.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// Device and inode of the socket file.
    identity: (u64, u64),
    lock_path: PathBuf,
    _lock: Flock<File>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| identity(&meta) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
        // Removed while locked: a process that waits for the lock finds the name missing and creates
        // a new file.
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Claims `path`: replaces a stale socket file and listens. The file has `mode` before any client
/// can connect. An error leaves everything unchanged, unless the lock was free.
pub fn claim(path: &Path, mode: SocketMode) -> Result<(UnixListener, Claim), Error> {
    let io = |what, path: &Path| {
        let path = path.to_owned();
        move |error: Errno| Error::Io { what, path, source: error.into() }
    };
    if path.as_os_str().len() > LONGEST {
        return Err(Error::TooLong { path: path.to_owned() });
    }
    make_directory(path)?;
    let lock_path = with_suffix(path, ".lock");
    let lock = take_lock(&lock_path, path)?;
    remove_stale(path)?;

    let fd = stream_socket().map_err(io("create", path))?;
    let address = UnixAddr::new(path).map_err(io("name", path))?;
    bind(fd.as_raw_fd(), &address).map_err(io("bind", path))?;
    let claim = {
        let meta = fs::symlink_metadata(path).map_err(io_error("inspect", path))?;
        Claim { path: path.to_owned(), identity: identity(&meta), lock_path, _lock: lock }
    };
    // No client can connect before `listen`, so none connects with wrong permissions.
    fs::set_permissions(path, fs::Permissions::from_mode(mode.0))
        .map_err(io_error("set the permissions of", path))?;
    let backlog = Backlog::new(BACKLOG).unwrap_or(Backlog::MAXCONN);
    listen(&fd, backlog).map_err(io("listen on", path))?;
    Ok((UnixListener::from(fd), claim))
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn identity(meta: &fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Creates the directory, writable only by its owner. Rejects a directory of another user, who
/// could replace the socket.
fn make_directory(path: &Path) -> Result<(), Error> {
    let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) else { return Ok(()) };
    let fallback = folder::is_fallback(path);
    if fs::symlink_metadata(dir).is_err() {
        fs::DirBuilder::new()
            .mode(if fallback { 0o700 } else { 0o755 })
            .recursive(true)
            .create(dir)
            .map_err(io_error("create the directory", dir))?;
    }
    if fallback {
        return Ok(folder::check(path)?);
    }
    let meta = fs::metadata(dir).map_err(io_error("inspect the directory", dir))?;
    let owner = nix::unistd::Uid::effective();
    if meta.uid() == 0 || meta.uid() == owner.as_raw() || owner.is_root() {
        return Ok(());
    }
    let source = io::Error::other(format!("it belongs to user {}", meta.uid()));
    Err(Error::Io { what: "trust the directory", path: dir.to_owned(), source })
}

/// Locks `path`. The error names the process that has `socket`.
fn take_lock(path: &Path, socket: &Path) -> Result<Flock<File>, Error> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .map_err(io_error("open", path))?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let pid = peer(socket).ok().or_else(|| pid.trim().parse().ok());
                return Err(Error::InUse { path: socket.to_owned(), holder: describe(pid) });
            }
            Err((_, error)) => return Err(io_error("lock", path)(error.into())),
        };
        // The previous holder may have removed the file between open and lock.
        let ours = lock.metadata().map_err(io_error("inspect", path))?;
        if fs::symlink_metadata(path).is_ok_and(|named| identity(&named) == identity(&ours)) {
            lock.set_len(0)
                .and_then(|()| lock.rewind())
                .and_then(|()| writeln!(lock, "{}", std::process::id()))
                .map_err(io_error("write", path))?;
            return Ok(lock);
        }
    }
}

/// Removes a socket file that no process listens on. Requires the lock.
fn remove_stale(path: &Path) -> Result<(), Error> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(io_error("inspect", path))?,
    };
    if !meta.file_type().is_socket() {
        return Err(Error::NotASocket { path: path.to_owned() });
    }
    match peer(path) {
        Err(Errno::ECONNREFUSED) => {
            tracing::info!(socket = %path.display(), "replacing a stale socket file");
            fs::remove_file(path).map_err(io_error("remove the stale", path))
        }
        Err(Errno::ENOENT) => Ok(()),
        // A full backlog means that a process listens.
        Err(Errno::EAGAIN) => Err(Error::InUse { path: path.to_owned(), holder: describe(None) }),
        Err(error) => Err(io_error("connect to", path)(error.into())),
        Ok(pid) => Err(Error::InUse { path: path.to_owned(), holder: describe(Some(pid)) }),
    }
}

fn stream_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

/// Returns the id of the process that listens on `path`.
fn peer(path: &Path) -> nix::Result<i32> {
    let fd = stream_socket()?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    getsockopt(&fd, sockopt::PeerCredentials).map(|credentials| credentials.pid())
}

fn describe(pid: Option<i32>) -> String {
    let Some(pid) = pid else { return "another process".into() };
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("process {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    const MODE: SocketMode = SocketMode(0o600);

    #[test]
    fn claims_listen_and_remove_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/s");
        let (listener, claim) = claim(&path, MODE).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop((listener, claim));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn errors_name_the_process_that_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let me = format!("process {} ", std::process::id());
        let structured = claim(&path, MODE).unwrap();
        let error = claim(&path, MODE).unwrap_err().to_string();
        assert!(error.contains(&me), "{error}");
        drop(structured);

        // A listener without our lock.
        let _stranger = UnixListener::bind(&path).unwrap();
        let error = claim(&path, MODE).unwrap_err().to_string();
        assert!(error.contains(&me), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_anything_else_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        drop(claim(&path, MODE).unwrap());

        for make in [
            |p: &Path| fs::write(p, "precious"),
            |p: &Path| fs::create_dir(p),
            |p: &Path| std::os::unix::fs::symlink("/nowhere", p),
        ] {
            make(&path).unwrap();
            assert!(matches!(claim(&path, MODE), Err(Error::NotASocket { .. })));
            assert!(fs::symlink_metadata(&path).is_ok());
            fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
        }
    }

    #[test]
    fn dropping_a_claim_does_not_remove_its_successor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let structured = claim(&path, MODE).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(structured);
        assert!(path.exists());
    }

    #[test]
    fn long_paths_are_rejected_with_the_limit() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
        let error = claim(&path, MODE).unwrap_err().to_string();
        assert!(error.contains("205 bytes") && error.contains("107"), "{error}");
    }

    /// Claims one path concurrently. Exactly one claim wins each round, regardless of stale files.
    #[test]
    fn concurrent_claims_have_one_winner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        for _ in 0..20 {
            let barrier = std::sync::Barrier::new(8);
            let won: Vec<_> = std::thread::scope(|scope| {
                let tries: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| {
                            barrier.wait();
                            claim(&path, MODE).ok()
                        })
                    })
                    .collect();
                tries.into_iter().filter_map(|t| t.join().unwrap()).collect()
            });
            assert_eq!(won.len(), 1);
            UnixStream::connect(&path).unwrap();
        }
    }
}
