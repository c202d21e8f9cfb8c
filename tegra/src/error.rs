//! What can go wrong between this process and the GPU, each with what to do about it.
//!
//! One enumeration for the wrappers. The pure layers have errors of their own, which appear here as
//! variants. Whatever asks a driver may fail with [`Error::Request`], whatever makes a buffer with
//! [`Error::OutOfMemory`], [`Error::Empty`], [`Error::Map`] or [`Error::Window`], whatever reaches into
//! one with [`Error::Range`] or [`Error::Misaligned`], and what takes a queue's number with
//! [`Error::NoSuchQueue`]: functions tell what there is beyond that.

use std::fmt;
use std::time::Duration;

use nix::errno::Errno;

use crate::address::{AddressError, GpuAddress};
use crate::fault::Fault;
use crate::pushbuffer::{EntryError, OperationError};
use crate::queue::{QueueError, SubmitError};

/// What an fd of the drivers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// `/dev/nvmap`.
    Nvmap,
    /// `/dev/nvgpu/igpu0/ctrl`.
    Ctrl,
    /// An address space.
    AddressSpace,
    /// A group of channels.
    Tsg,
    /// A channel.
    Channel,
}

impl Node {
    /// The path of a node that is opened by name.
    #[must_use]
    pub const fn path(self) -> Option<&'static str> {
        match self {
            Self::Nvmap => Some("/dev/nvmap"),
            Self::Ctrl => Some("/dev/nvgpu/igpu0/ctrl"),
            Self::AddressSpace | Self::Tsg | Self::Channel => None,
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nvmap => "/dev/nvmap",
            Self::Ctrl => "/dev/nvgpu/igpu0/ctrl",
            Self::AddressSpace => "address space",
            Self::Tsg => "TSG",
            Self::Channel => "channel",
        })
    }
}

/// Why the GPU could not be used as asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device node cannot be opened.
    #[error("{node} cannot be opened: {}{}", errno.desc(), open_hint(*errno))]
    Open {
        /// Which.
        node: Node,
        /// Why.
        errno: Errno,
    },
    /// A driver refused a request.
    #[error("{node}: {request}: {errno}{}", request_hint(*node, *errno))]
    Request {
        /// Who refused.
        node: Node,
        /// The request's name in the header.
        request: &'static str,
        /// Why.
        errno: Errno,
    },
    /// Memory of the drivers cannot be mapped into this process.
    #[error("{bytes} bytes of {what} cannot be mapped for the CPU: {}", errno.desc())]
    Map {
        /// What was to be mapped.
        what: &'static str,
        /// How much.
        bytes: u64,
        /// Why.
        errno: Errno,
    },
    /// There is not enough memory, or no free range of addresses.
    #[error(
        "{need} bytes of GPU memory are not to be had, the system has {have} bytes free: \
         use a smaller model or context, or free memory"
    )]
    OutOfMemory {
        /// Bytes asked for.
        need: u64,
        /// Bytes that the system could give when asked.
        have: u64,
    },
    /// A buffer of no bytes.
    #[error("a buffer of {what} needs at least one byte")]
    Empty {
        /// The class of buffer.
        what: &'static str,
    },
    /// Access outside a buffer.
    #[error("{bytes} bytes at offset {offset} do not lie within a buffer of {size} bytes")]
    Range {
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Bytes of the buffer.
        size: u64,
    },
    /// Access at an offset that the size of the access does not divide.
    #[error("offset {offset} is no multiple of {alignment}")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// The driver placed a buffer where shaders see their local or shared memory.
    #[error(
        "the driver mapped {bytes} bytes at {address}, inside a range kept free for shaders' own \
         memory: accesses would be redirected, so the mapping was undone"
    )]
    Window {
        /// Where.
        address: GpuAddress,
        /// How much.
        bytes: u64,
    },
    /// The GPU or the driver lacks what this crate builds on.
    #[error("this GPU is not supported: {what} is {found}, expected {expected}")]
    Unsupported {
        /// What differs.
        what: &'static str,
        /// What was found.
        found: String,
        /// What is needed.
        expected: &'static str,
    },
    /// An address that the GPU cannot use.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// An operation that cannot be encoded.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A stream that no ring entry can point at.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// A queue that cannot be made, or whose timeline is corrupt.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// Work that cannot be submitted now.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A queue of another context.
    #[error("queue {queue} is none of the {count} of this context")]
    NoSuchQueue {
        /// Its number.
        queue: usize,
        /// How many there are.
        count: usize,
    },
    /// The GPU faulted: every channel of the context is dead until it is rebuilt.
    #[error(transparent)]
    Fault(Box<Fault>),
    /// Work was submitted before a fault and never completed.
    #[error("point {value} of queue {queue} was lost in a fault: submit the work again")]
    Lost {
        /// The queue.
        queue: usize,
        /// The point.
        value: u64,
    },
    /// Work did not complete in time, without a fault being reported.
    #[error(
        "point {value} of queue {queue} not reached after {waited:?}, the GPU is at {completed}: \
         wait longer, or rebuild the context"
    )]
    Stalled {
        /// The queue.
        queue: usize,
        /// The point waited for.
        value: u64,
        /// The last point reached.
        completed: u64,
        /// How long.
        waited: Duration,
    },
    /// Something can only be done when no work is in flight.
    #[error("queue {queue} has work in flight (point {completed} of {submitted}): wait for it")]
    Busy {
        /// The queue.
        queue: usize,
        /// The last point reached.
        completed: u64,
        /// The last point submitted.
        submitted: u64,
    },
}

impl Error {
    /// Whether [`crate::context::Context::rebuild`] may help: channels are dead or stuck, buffers
    /// and address space are not.
    #[must_use]
    pub const fn can_rebuild(&self) -> bool {
        match self {
            Self::Fault(_)
            | Self::Stalled { .. }
            | Self::Queue(QueueError::Timeline { .. })
            | Self::Submit(SubmitError::Queue(QueueError::Timeline { .. })) => true,
            Self::Request { node: Node::Channel | Node::Tsg, errno, .. } => {
                matches!(errno, Errno::ETIMEDOUT)
            }
            _ => false,
        }
    }

    /// The driver's errno, when a driver said no.
    #[must_use]
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno, .. } | Self::Request { errno, .. } | Self::Map { errno, .. } => {
                Some(*errno)
            }
            _ => None,
        }
    }
}

fn open_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT | Errno::ENXIO | Errno::ENODEV => {
            ": this machine is no Jetson Orin, or L4T's nvgpu driver is not loaded"
        }
        Errno::EACCES | Errno::EPERM => ": the user must be in group video",
        Errno::EMFILE | Errno::ENFILE => ": too many open files, raise the limit",
        _ => "",
    }
}

fn request_hint(node: Node, errno: Errno) -> &'static str {
    match (node, errno) {
        (_, Errno::ENOTTY) => ": the driver does not know the request, L4T r36.2 to r36.4 does",
        (_, Errno::EMFILE) => ": too many open files, raise the limit",
        (Node::Tsg | Node::Channel, Errno::ETIMEDOUT) => {
            ": a fault has torn the channel down, rebuild the context"
        }
        (Node::Ctrl, Errno::ENOMEM) => ": all channels or groups of the GPU are in use",
        (Node::Nvmap | Node::AddressSpace, Errno::ENOMEM) => {
            ": enough is free, but not in one piece, or not for a buffer of that size"
        }
        (Node::Tsg, Errno::EPERM) => ": another program holds the GPU's scheduler",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;

    fn request(node: Node, errno: Errno) -> Error {
        Error::Request { node, request: "NVGPU_GPU_IOCTL_OPEN_CHANNEL", errno }
    }

    #[test]
    fn messages_say_who_refused_what_and_what_to_do() {
        let cases = [
            (
                Error::Open { node: Node::Ctrl, errno: Errno::EACCES },
                "/dev/nvgpu/igpu0/ctrl",
                "video",
            ),
            (
                Error::Open { node: Node::Nvmap, errno: Errno::ENOENT },
                "/dev/nvmap",
                "no Jetson Orin",
            ),
            (request(Node::Ctrl, Errno::ENOTTY), "OPEN_CHANNEL", "r36.2 to r36.4"),
            (request(Node::Ctrl, Errno::ENOMEM), "OPEN_CHANNEL", "in use"),
            (request(Node::Channel, Errno::ETIMEDOUT), "channel: ", "rebuild"),
            (request(Node::Tsg, Errno::EPERM), "TSG: ", "scheduler"),
            (request(Node::Nvmap, Errno::EMFILE), "/dev/nvmap: ", "raise the limit"),
        ];
        for (error, who, what) in cases {
            let message = error.to_string();
            assert!(message.contains(who) && message.contains(what), "{message}");
            assert_eq!(message.lines().count(), 1);
        }
    }

    #[test]
    fn a_rebuild_helps_dead_channels_only() {
        assert!(request(Node::Channel, Errno::ETIMEDOUT).can_rebuild());
        assert!(!request(Node::Ctrl, Errno::ETIMEDOUT).can_rebuild());
        assert!(!request(Node::Channel, Errno::EINVAL).can_rebuild());
        assert!(!Error::OutOfMemory { need: 1, have: 0 }.can_rebuild());
        let timeline = QueueError::Timeline { found: 3, completed: 1, submitted: 2 };
        assert!(Error::from(timeline).can_rebuild());
        assert!(Error::from(SubmitError::from(timeline)).can_rebuild());
        assert!(!Error::from(SubmitError::Full { needed: 1, room: 0 }).can_rebuild());
    }

    /// An engine's thread may own a context, and its errors may cross threads.
    #[test]
    fn contexts_and_errors_move_between_threads() {
        fn moves<T: Send + 'static>() {}
        moves::<Context>();
        moves::<Error>();
    }
}
