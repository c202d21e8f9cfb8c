//! Sleeping until an interrupt.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Error, Node};
use crate::node::adopt;

/// Raised by every non-stalling interrupt of the GPU, from any channel, and by a fault.
///
/// It stays raised until a wait clears it, so an interrupt between a read of memory and the wait is
/// not lost. A wake-up does not identify the channel whose work is done.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    pub(super) fn adopt(fd: RawFd) -> Self {
        Self(adopt(fd))
    }

    /// Sleeps until the event, a signal, or `timeout`, rounded up to milliseconds. `true` for the
    /// event.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        let millis = timeout.as_nanos().div_ceil(1_000_000);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        let wanted = PollFlags::POLLIN | PollFlags::POLLPRI;
        match poll(&mut [PollFd::new(self.0.as_fd(), wanted)], timeout) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(Error::Request { node: Node::Tsg, request: "poll", errno }),
        }
    }
}
