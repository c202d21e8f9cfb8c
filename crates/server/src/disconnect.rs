//! Detects disconnected clients. A client that has only shut down its sending side still waits for
//! its answer; one that has closed its socket does not, and its work is cancelled. The kernel
//! distinguishes the two on a unix socket. On TCP it does not: there, end of input counts as
//! disconnected.

use std::io;
use std::os::fd::OwnedFd;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

/// Watches a unix socket for a hang-up.
pub(super) struct DisconnectWatch(AsyncFd<OwnedFd>);

impl DisconnectWatch {
    /// Watches `stream`. Uses one file descriptor.
    pub(super) fn watch(stream: &UnixStream) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        // epoll always reports a hang-up (both directions closed), and no other event is requested.
        epoll.add(stream, EpollEvent::new(EpollFlags::empty(), 0))?;
        // SAFETY: the `OwnedFd` cannot be replaced or closed before the `AsyncFd` drops it.
        Ok(Self(unsafe { AsyncFd::register_with_interest(epoll.0, Interest::READABLE) }?))
    }

    /// Returns when the client has disconnected. Never returns without a watch.
    pub(super) async fn wait(watch: Option<&Self>) {
        match watch {
            // If the watch itself fails, the next write to the client detects the disconnect.
            Some(Self(epoll)) if epoll.readable().await.is_ok() => {}
            _ => std::future::pending().await,
        }
    }
}
