//! Error numbers and refusals: each condition under which a driver refuses a call, with the
//! function that decides it.
//!
//! A handler can only fail with a [`Refusal`] declared by `refusals!`, which also adds it to the
//! node's table, so the printed table cannot diverge from the simulator.

use std::fmt;

/// A Linux error number that these drivers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[rustfmt::skip]
pub enum Errno {
    EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, EBADF = 9, EAGAIN = 11, ENOMEM = 12, EACCES = 13,
    EFAULT = 14, EBUSY = 16, EEXIST = 17, ENODEV = 19, EINVAL = 22, EMFILE = 24, ENOTTY = 25,
    ENOSPC = 28, ENOSYS = 38, EOPNOTSUPP = 95, EADDRNOTAVAIL = 99, ETIMEDOUT = 110,
}

impl Errno {
    /// Returns the positive error number.
    pub const fn code(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A condition under which a node refuses a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Node: `nvmap`, `ctrl`, `as`, `tsg`, `channel`, or a name for rules of all nodes.
    pub node: &'static str,
    /// Ioctl or system call.
    pub call: &'static str,
    /// Condition.
    pub condition: &'static str,
    /// Value of `errno`.
    pub errno: Errno,
    /// File and function of the r36.4.3 driver that decides.
    pub source: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, call, condition, errno, source } = self;
        write!(f, "{node} {call}: {condition}: {errno} ({source})")
    }
}

impl std::error::Error for Refusal {}

/// Error of a refused call.
pub type Refused = &'static Refusal;

/// The value that an ioctl returns: 0, or with nvgpu the bytes that could not be copied out.
pub type Answer = Result<i32, Refused>;

/// Declares the refusals of one node as constants, and their table.
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
