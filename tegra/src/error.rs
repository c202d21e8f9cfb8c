//! Errors between this process and the GPU, each with the remedy.
//!
//! One enumeration for the wrappers, with the errors of the pure modules as variants. Any request
//! to a driver may fail with [`Error::Request`]; creating a buffer with [`Error::OutOfMemory`],
//! [`Error::Empty`], [`Error::Map`] or [`Error::Window`]; accessing one with [`Error::Range`] or
//! [`Error::Misaligned`]; a function with a queue id with [`Error::NoSuchQueue`]. The documentation
//! of functions lists only further errors.

use std::fmt;
use std::time::Duration;

use nix::errno::Errno;

use crate::address::{AddressError, GpuAddress};
use crate::fault::Fault;
use crate::pushbuffer::{EntryError, OperationError};
use crate::queue::{QueueError, SubmitError};

/// Kind of a driver fd.
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
    /// The path of a node that has one.
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

/// Error of using the GPU.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device node cannot be opened.
    #[error("{node} cannot be opened: {}{}", errno.desc(), open_hint(*errno))]
    Open {
        /// The node.
        node: Node,
        /// The errno.
        errno: Errno,
    },
    /// A driver refused a request.
    #[error("{node}: {request}: {errno}{}", request_hint(*node, *errno))]
    Request {
        /// The node.
        node: Node,
        /// The request's name in the header.
        request: &'static str,
        /// The errno.
        errno: Errno,
    },
    /// Memory of the drivers cannot be mapped into this process.
    #[error("{bytes} bytes of {what} cannot be mapped for the CPU: {}", errno.desc())]
    Map {
        /// Purpose of the memory.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The errno.
        errno: Errno,
    },
    /// There is not enough memory, or no free range of addresses.
    #[error(
        "{need} bytes of GPU memory are not available, the system has {have} bytes free: \
         use a smaller model or context, or free memory"
    )]
    OutOfMemory {
        /// Requested bytes.
        need: u64,
        /// Bytes free at the time.
        have: u64,
    },
    /// A buffer of no bytes.
    #[error("a buffer of {what} needs at least one byte")]
    Empty {
        /// Type of the buffer.
        what: &'static str,
    },
    /// Access outside a buffer.
    #[error("{bytes} bytes at offset {offset} exceed a buffer of {size} bytes")]
    Range {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Bytes of the buffer.
        size: u64,
    },
    /// Access at an offset that is not a multiple of its size.
    #[error("offset {offset} is not a multiple of {alignment}")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// The required alignment.
        alignment: u64,
    },
    /// The driver placed a buffer inside a window of local or shared memory.
    #[error(
        "the driver mapped {bytes} bytes at {address}, inside a range reserved for shaders' own \
         memory: accesses would be redirected, so the mapping was undone"
    )]
    Window {
        /// The address.
        address: GpuAddress,
        /// Number of bytes.
        bytes: u64,
    },
    /// The GPU or the driver lacks a required property.
    #[error("this GPU is not supported: {what} is {found}, expected {expected}")]
    Unsupported {
        /// Name of the property.
        what: &'static str,
        /// Its value.
        found: String,
        /// The required value.
        expected: &'static str,
    },
    /// An address that the GPU cannot use.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// An operation that cannot be encoded.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A stream that no ring entry can address.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// A queue that cannot be created, or whose timeline is corrupt.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// Work that cannot be submitted now.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// An unknown queue id.
    #[error("queue {queue} does not exist: this context has {count}")]
    NoSuchQueue {
        /// The index.
        queue: usize,
        /// Number of queues in the context.
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
        /// The awaited point.
        value: u64,
        /// The last point reached.
        completed: u64,
        /// Time waited.
        waited: Duration,
    },
    /// The call requires idle queues.
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
    /// Returns `true` if [`crate::context::Context::rebuild`] may help: channels are dead or stuck,
    /// buffers and address space are intact.
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

    /// The driver's errno, if a driver returned one.
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
            ": this machine is not a Jetson Orin, or L4T's nvgpu driver is not loaded"
        }
        Errno::EACCES | Errno::EPERM => ": the user must be in group video",
        Errno::EMFILE | Errno::ENFILE => ": too many open files, raise the limit",
        _ => "",
    }
}

fn request_hint(node: Node, errno: Errno) -> &'static str {
    match (node, errno) {
        (_, Errno::ENOTTY) => ": the driver does not know the request, it needs L4T r36.2 to r36.4",
        (_, Errno::EMFILE) => ": too many open files, raise the limit",
        (Node::Tsg | Node::Channel, Errno::ETIMEDOUT) => {
            ": a fault has torn down the channel, rebuild the context"
        }
        (Node::Ctrl, Errno::ENOMEM) => ": all channels or groups of the GPU are in use",
        (Node::Nvmap | Node::AddressSpace, Errno::ENOMEM) => {
            ": enough memory is free, but not contiguous, or not for a buffer of that size"
        }
        (Node::Tsg, Errno::EPERM) => ": another program owns the GPU's scheduler",
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
    fn messages_name_the_node_the_request_and_the_remedy() {
        let cases = [
            (
                Error::Open { node: Node::Ctrl, errno: Errno::EACCES },
                "/dev/nvgpu/igpu0/ctrl",
                "video",
            ),
            (
                Error::Open { node: Node::Nvmap, errno: Errno::ENOENT },
                "/dev/nvmap",
                "not a Jetson Orin",
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
    fn only_dead_channels_can_be_rebuilt() {
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
