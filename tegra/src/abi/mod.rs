//! The kernel interface: requests and argument structures of nvmap and nvgpu, one module per node.
//!
//! Owns layouts, request numbers and the one function that makes the system call. It opens no fd
//! and has no state: order, lifetime and policy belong to the layers above.
//!
//! Source of every number here: the uapi headers of L4T r36.4.3 (`nvmap.h`, `nvgpu-ctrl.h`,
//! `nvgpu-as.h`, `nvgpu.h`), byte for byte the same in r36.2, r36.3, r36.4 and r36.4.2. In release
//! r35.6 OPEN_TSG has 8 bytes of arguments, SETUP_BIND 80 and the characteristics 312, and there
//! are no requests for subcontexts: this crate does not run there. `tests/suite/abi.rs` compares
//! every item with tables extracted by a C compiler from those headers. The errnos are read from
//! the drivers of r36.4.x.
//!
//! # Rules common to all nodes
//!
//! The kernel switches on the whole 32-bit request, so a right number with a wrong size is unknown:
//! `ENOTTY`. A number or an argument size beyond the node's table is `EINVAL` on nvgpu nodes and
//! `ENOTTY` on nvmap. A bad pointer is `EFAULT`. Results are written back only on success.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// Declares `repr(C)` argument structures, each field followed by its documentation, checks their
/// sizes and offsets at compile time, and publishes both for comparison with the headers.
macro_rules! layouts {
    ($(
        $(#[$meta:meta])*
        pub struct $Name:ident = $cname:literal, size $size:literal {
            $( $offset:literal => $field:ident : $ty:ty, $doc:literal; )+
        }
    )+) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $Name { $( #[doc = $doc] pub $field: $ty, )+ }

        const _: () = assert!(size_of::<$Name>() == $size);
        $( const _: () = assert!(std::mem::offset_of!($Name, $field) == $offset); )+

        impl $Name {
            /// Size and field offsets, under the names that the header uses.
            pub const LAYOUT: $crate::abi::Layout = $crate::abi::Layout {
                name: $cname,
                size: $size,
                fields: &[ $( (stringify!($field), $offset, size_of::<$ty>()), )+ ],
            };
        }
    )+};
}

/// Declares the requests of one node as typed constants, and the table of all of them.
macro_rules! requests {
    (
        magic $magic:literal;
        $( $(#[$meta:meta])* $NAME:ident = $dir:ident $nr:literal $Args:ty, $cname:literal; )+
    ) => {
        $(
            $(#[$meta])*
            pub const $NAME: $crate::abi::Request<$Args> =
                $crate::abi::Request::new($cname, requests!(@code $dir $magic, $nr, $Args));
        )+

        /// Every request of this module: name in the header, request number, argument layout.
        pub const REQUESTS: &[(&str, u32, $crate::abi::Layout)] =
            &[ $( ($cname, $NAME.code(), <$Args>::LAYOUT), )+ ];
    };
    (@code read $magic:literal, $nr:literal, $Args:ty) => {
        nix::request_code_read!($magic, $nr, size_of::<$Args>())
    };
    (@code write $magic:literal, $nr:literal, $Args:ty) => {
        nix::request_code_write!($magic, $nr, size_of::<$Args>())
    };
    (@code readwrite $magic:literal, $nr:literal, $Args:ty) => {
        nix::request_code_readwrite!($magic, $nr, size_of::<$Args>())
    };
}

/// Declares the requests of one node that take no argument, and the table of all of them.
macro_rules! commands {
    (magic $magic:literal; $( $(#[$meta:meta])* $NAME:ident = $nr:literal, $cname:literal; )+) => {
        $(
            $(#[$meta])*
            pub const $NAME: $crate::abi::Command =
                $crate::abi::Command::new($cname, nix::request_code_none!($magic, $nr));
        )+

        /// Every request of this module that takes no argument.
        pub const COMMANDS: &[$crate::abi::Command] = &[ $( $NAME, )+ ];
    };
}

pub mod address_space;
pub mod channel;
pub mod ctrl;
pub mod nvmap;
pub mod tsg;

/// Every request that this crate can make, with its name in the headers and its number: the list
/// for a seccomp filter.
pub fn requests() -> impl Iterator<Item = (&'static str, u32)> {
    let with = [
        nvmap::REQUESTS,
        ctrl::REQUESTS,
        address_space::REQUESTS,
        tsg::REQUESTS,
        channel::REQUESTS,
    ];
    let without = [tsg::COMMANDS, channel::COMMANDS];
    let with = with.into_iter().flatten().map(|(name, number, _)| (*name, *number));
    let without = without.into_iter().flatten().map(|command| (command.name(), command.code()));
    with.chain(without).chain([("NVMAP_IOC_FREE", nvmap::FREE)])
}

/// Size and fields of a structure, under the C names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The structure's C tag.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Name, offset in bytes and size in bytes of each field.
    pub fields: &'static [(&'static str, usize, usize)],
}

/// One ioctl request whose argument is a pointer to an `Args`.
#[derive(Debug)]
pub struct Request<Args> {
    name: &'static str,
    code: nix::sys::ioctl::ioctl_num_type,
    args: PhantomData<fn(&mut Args)>,
}

impl<Args> Clone for Request<Args> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Args> Copy for Request<Args> {}

impl<Args> Request<Args> {
    const fn new(name: &'static str, code: nix::sys::ioctl::ioctl_num_type) -> Self {
        Self { name, code, args: PhantomData }
    }

    /// The request's name in the header.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The 32-bit request number: direction, argument size, magic, number.
    #[must_use]
    pub const fn code(&self) -> u32 {
        self.code as u32
    }

    /// Makes the system call. The kernel reads `args`, and writes it if the request's direction
    /// includes it. The error is the driver's errno. A positive result, which nvgpu uses for bytes that
    /// it could not copy out, becomes `EFAULT`.
    ///
    /// # Safety
    /// `fd` refers to the node that this request belongs to: another driver may read the same
    /// number differently. Every address and buffer size inside `args` describes memory that the
    /// driver may access as the request's documentation says.
    pub unsafe fn call(&self, fd: BorrowedFd<'_>, args: &mut Args) -> Result<(), Errno> {
        // SAFETY: `args` is exclusively borrowed and as large as the size in the request number,
        // which bounds what the driver copies; the caller answers for the fd and nested addresses.
        let result = unsafe { nix::libc::ioctl(fd.as_raw_fd(), self.code, &raw mut *args) };
        match Errno::result(result)? {
            0 => Ok(()),
            _ => Err(Errno::EFAULT),
        }
    }
}

/// One ioctl request without an argument.
pub type Command = Request<()>;

impl Command {
    /// Makes the system call. The error is the driver's errno.
    ///
    /// # Safety
    /// `fd` refers to the node that this request belongs to.
    pub unsafe fn command(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        // SAFETY: no memory is passed; the caller answers for the fd.
        let result = unsafe { nix::libc::ioctl(fd.as_raw_fd(), self.code, 0) };
        Errno::result(result).map(drop)
    }
}
