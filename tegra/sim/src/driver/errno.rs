//! Error numbers, and refusals: each condition under which a driver says no, with the function
//! that decides it.
//!
//! A handler can only fail with a [`Refusal`] declared by `refusals!`, which also lists it in the
//! node's table: the printed table cannot drift from what the simulator does.

use std::fmt;

/// An error number of Linux, as far as these drivers use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[rustfmt::skip]
pub enum Errno {
    EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, EBADF = 9, EAGAIN = 11, ENOMEM = 12, EACCES = 13,
    EFAULT = 14, EBUSY = 16, EEXIST = 17, ENODEV = 19, EINVAL = 22, EMFILE = 24, ENOTTY = 25,
    ENOSPC = 28, ENOSYS = 38, EOPNOTSUPP = 95, EADDRNOTAVAIL = 99, ETIMEDOUT = 110,
}

impl Errno {
    /// The positive number for `errno`.
    pub const fn code(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// One condition under which a node refuses a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The node: `nvmap`, `ctrl`, `as`, `tsg`, `channel`, or what all nodes share.
    pub node: &'static str,
    /// The ioctl or system call.
    pub call: &'static str,
    /// When it is refused.
    pub condition: &'static str,
    /// What the caller sees in `errno`.
    pub errno: Errno,
    /// Where the driver of r36.4.3 decides so: file and function.
    pub source: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, call, condition, errno, source } = self;
        write!(f, "{node} {call}: {condition}: {errno} ({source})")
    }
}

impl std::error::Error for Refusal {}

/// What a refused call ends with.
pub type Refused = &'static Refusal;

/// The value that an ioctl returns: 0, or with nvgpu the bytes that could not be copied out.
pub type Answer = Result<i32, Refused>;

/// Declares the refusals of one node as constants, and the table of all of them.
macro_rules! refusals {
    ($node:literal; $( $NAME:ident = $call:literal, $errno:ident, $condition:literal, $source:literal; )+) => {
        $(
            pub(in crate::driver) static $NAME: $crate::driver::errno::Refusal = $crate::driver::errno::Refusal {
                node: $node,
                call: $call,
                condition: $condition,
                errno: $crate::driver::errno::Errno::$errno,
                source: $source,
            };
        )+

        pub(in crate::driver) static REFUSALS: &[$crate::driver::errno::Refused] = &[ $( &$NAME, )+ ];
    };
}
pub(super) use refusals;

refusals! { "all";
    CLOSED = "any", EBADF, "the description is closed", "fs/ioctl.c:vfs_ioctl";
    NOT_MODELLED = "ioctl", ENOTTY, "a node whose ioctls are not simulated",
        "not the driver's answer";
    NO_MMAP = "mmap", ENODEV, "the file has no mmap", "mm/mmap.c:do_mmap";
}
