//! When a client is gone. Who has only shut down its sending side has said all it wanted to, and waits for the
//! answer; who has closed its socket waits for nothing, and what is done for it ends. On a unix socket the kernel
//! tells the two apart. On TCP it does not: there the end of what a client sends is its end.

use std::io;
use std::os::fd::OwnedFd;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

/// Notices that the client of a unix socket is gone.
pub(super) struct Gone(AsyncFd<OwnedFd>);

impl Gone {
    /// Watches `stream`; takes a file descriptor.
    pub(super) fn watch(stream: &UnixStream) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        // A hang-up, both directions being closed, is told without being asked for; nothing else is.
        epoll.add(stream, EpollEvent::new(EpollFlags::empty(), 0))?;
        // SAFETY: an `OwnedFd` that nobody can replace or close before the `AsyncFd` drops it.
        Ok(Self(unsafe { AsyncFd::register_with_interest(epoll.0, Interest::READABLE) }?))
    }

    /// Returns when the client is gone; never without a watch.
    pub(super) async fn wait(watch: Option<&Self>) {
        match watch {
            // Were the watch itself to fail, a write to the client would still tell.
            Some(Self(epoll)) if epoll.readable().await.is_ok() => {}
            _ => std::future::pending().await,
        }
    }
}
