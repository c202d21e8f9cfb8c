//! Request handling common to all nvgpu nodes: checks, and copying of arguments.
//!
//! The kernel switches on the whole 32-bit request. It copies arguments in if the direction
//! includes write, and back if it includes read and the handler succeeded; a failed call leaves the
//! caller's fields unchanged.

use std::marker::PhantomData;

use super::errno::Answer;
use super::errno::{Refused, refusals};
use crate::user;
use crate::user::BadAddress;

refusals! { "nvgpu";
    WRONG_NUMBER = "any", EINVAL, "wrong magic, number 0 or beyond the last, arguments too large",
        "os/linux/ioctl_*.c: first check of each ioctl function";
    UNKNOWN = "any", ENOTTY, "known number with another size or direction, or one without a case",
        "os/linux/ioctl_*.c: default case of each ioctl function";
    BAD_INPUT = "any", EFAULT, "the argument cannot be read",
        "os/linux/ioctl_*.c: copy_from_user of each ioctl function";
    BAD_OUTPUT = "any of as", EFAULT, "the argument cannot be written",
        "os/linux/ioctl_as.c:gk20a_as_dev_ioctl";
    BAD_NESTED = "any", EFAULT, "memory that the argument points to is not accessible",
        "os/linux/ioctl_*.c: copy_from_user and copy_to_user of handlers";
}

const WRITE: u32 = 1;
const READ: u32 = 2;

const fn request(direction: u32, magic: u8, number: u8, size: u32) -> u32 {
    direction << 30 | size << 16 | (magic as u32) << 8 | number as u32
}

/// A request without arguments.
pub(super) const fn io(magic: u8, number: u8, size: u32) -> u32 {
    request(0, magic, number, size)
}

/// A request whose arguments are copied in.
pub(super) const fn iow(magic: u8, number: u8, size: u32) -> u32 {
    request(WRITE, magic, number, size)
}

/// A request whose arguments are copied out.
pub(super) const fn ior(magic: u8, number: u8, size: u32) -> u32 {
    request(READ, magic, number, size)
}

/// A request whose arguments are copied in and out.
pub(super) const fn iowr(magic: u8, number: u8, size: u32) -> u32 {
    request(READ | WRITE, magic, number, size)
}

/// Declares the requests of a node: `NAME = direction number, size of the argument { offset =>
/// MEMBER: type, .. };` with the members that the simulator accesses.
///
/// Generates for each request its code and a module of its members ([`layout`]), and the table
/// `REQUESTS`.
macro_rules! requests {
    ($magic:literal; $(
        $NAME:ident = $direction:ident $number:literal
        $(, $size:literal $({ $( $offset:literal => $MEMBER:ident : $ty:ty ),* $(,)? })? )?;
    )+) => {
        $(
            pub(in crate::driver) const $NAME: u32 = $crate::driver::dispatch::$direction($magic, $number, 0 $(+ $size)?);
            $($( $crate::driver::dispatch::layout! {
                $NAME, $size { $( $offset => $MEMBER: $ty ),* }
            } )?)?
        )+

        /// Every request of the node.
        pub(in crate::driver) const REQUESTS: &[$crate::driver::dispatch::Request] = &[$(
            $crate::driver::dispatch::Request {
                name: stringify!($NAME),
                code: $NAME,
                members: &[$($($( (stringify!($MEMBER), $offset, size_of::<$ty>()) ),*)?)?],
            },
        )+];
    };
}

/// Declares a C structure of a size as a module with that size and the accessed members.
macro_rules! layout {
    ($NAME:ident, $size:literal { $( $offset:literal => $MEMBER:ident : $ty:ty ),* $(,)? }) => {
        #[expect(non_snake_case, reason = "named as the header names it")]
        pub(in crate::driver) mod $NAME {
            pub(in crate::driver) const BYTES: usize = $size;
            $(
                pub(in crate::driver) const $MEMBER: $crate::driver::dispatch::Member<$ty> =
                    $crate::driver::dispatch::Member::at($offset, BYTES);
            )*
        }
    };
}

pub(super) use {layout, requests};

/// A supported request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Name in the header, without the node's prefix.
    pub name: &'static str,
    /// Code that the program passes.
    pub code: u32,
    /// Name, offset and size in bytes of the accessed members of its argument.
    pub members: &'static [(&'static str, usize, usize)],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub(super) magic: u8,
    pub(super) number: u8,
    pub(super) size: usize,
    pub(super) goes_in: bool,
    pub(super) comes_out: bool,
}

impl Parts {
    pub(super) const fn of(request: u32) -> Self {
        Self {
            magic: (request >> 8) as u8,
            number: request as u8,
            size: (request >> 16 & 0x3fff) as usize,
            goes_in: request >> 30 & WRITE != 0,
            comes_out: request >> 30 & READ != 0,
        }
    }
}

/// The largest argument of any node.
const LARGEST: usize = 264;

/// An integer in an argument.
pub(super) trait Scalar: Copy {
    fn load(bytes: &[u8]) -> Self;
    fn store(self, bytes: &mut [u8]);
}

macro_rules! scalars {
    ($($ty:ty),+) => {$(
        impl Scalar for $ty {
            fn load(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(&bytes[..size_of::<Self>()]);
                Self::from_le_bytes(own)
            }

            fn store(self, bytes: &mut [u8]) {
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
            }
        }
    )+};
}

scalars!(u8, u16, u32, u64, i16, i32);

/// Position of an integer in an argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<T> {
    offset: usize,
    ty: PhantomData<T>,
}

impl<T> Member<T> {
    /// A member at an offset in a structure of `size` bytes.
    pub(super) const fn at(offset: usize, size: usize) -> Self {
        assert!(offset + size_of::<T>() <= size, "a member lies within its structure");
        Self { offset, ty: PhantomData }
    }

    /// Byte offset in the structure.
    pub(super) const fn offset(&self) -> u64 {
        self.offset as u64
    }
}

/// An argument, or another C structure of the program.
#[derive(Debug)]
pub(super) struct Args {
    bytes: [u8; LARGEST],
    size: usize,
}

impl Args {
    /// A zeroed buffer, as in the driver before arguments are copied in.
    pub(super) const fn zeroed(size: usize) -> Self {
        Self { bytes: [0; LARGEST], size }
    }

    /// Copies an argument in from the program's memory.
    pub(super) fn read(address: u64, size: usize) -> Result<Self, BadAddress> {
        let mut args = Self::zeroed(size);
        user::read(address, &mut args.bytes[..size])?;
        Ok(args)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.size]
    }

    pub(super) fn get<T: Scalar>(&self, member: Member<T>) -> T {
        T::load(&self.bytes[member.offset..])
    }

    pub(super) fn set<T: Scalar>(&mut self, member: Member<T>, value: T) {
        value.store(&mut self.bytes[member.offset..]);
    }

    /// Sets a member of element `index` of an array of structures of `size` bytes.
    pub(super) fn set_element<T: Scalar>(
        &mut self,
        index: usize,
        size: usize,
        member: Member<T>,
        value: T,
    ) {
        value.store(&mut self.bytes[index * size + member.offset..]);
    }
}

/// Result of a handler that did not refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Ok,
    /// A nested copy left this many bytes: the driver returns their number as a positive result and
    /// copies nothing back.
    Residual(usize),
}

pub(super) type Handled = Result<Done, Refused>;

/// Checks of one nvgpu node.
#[derive(Debug)]
pub(super) struct Rules {
    /// Magic letter of its requests.
    pub(super) magic: u8,
    pub(super) last: u8,
    /// Size of the largest argument.
    pub(super) largest: usize,
    /// An unwritable argument fails with `EFAULT`; otherwise the number of bytes left is returned.
    pub(super) output_faults: bool,
    /// A request whose arguments are copied back even when it fails.
    pub(super) always_out: Option<u32>,
}

impl Rules {
    /// Derives the rules of a node from its requests.
    pub(super) const fn of(requests: &[Request]) -> Self {
        let magic = Parts::of(requests[0].code).magic;
        let mut rules = Self { magic, last: 0, largest: 0, output_faults: false, always_out: None };
        let mut i = 0;
        while i < requests.len() {
            let Parts { number, size, .. } = Parts::of(requests[i].code);
            rules.last = if number > rules.last { number } else { rules.last };
            rules.largest = if size > rules.largest { size } else { rules.largest };
            i += 1;
        }
        rules
    }

    /// Executes one request of the node.
    pub(super) fn dispatch(
        &self,
        request: u32,
        arg: u64,
        handler: impl FnOnce(&mut Args) -> Handled,
    ) -> Answer {
        let parts = Parts::of(request);
        if parts.magic != self.magic
            || parts.number == 0
            || parts.number > self.last
            || parts.size > self.largest
        {
            return Err(&WRONG_NUMBER);
        }
        let mut args = if parts.goes_in {
            Args::read(arg, parts.size).map_err(|_| &BAD_INPUT)?
        } else {
            Args::zeroed(parts.size)
        };
        let handled = handler(&mut args);
        let residual = match handled {
            Ok(Done::Residual(left)) => left,
            Err(refused) if self.always_out != Some(request) => return Err(refused),
            Ok(Done::Ok) | Err(_) if parts.comes_out => {
                let left = user::write_most(arg, args.bytes());
                if left != 0 && self.output_faults {
                    return Err(&BAD_OUTPUT);
                }
                left
            }
            Ok(Done::Ok) | Err(_) => 0,
        };
        handled?;
        Ok(i32::try_from(residual).unwrap_or(i32::MAX))
    }
}

/// Copies data to memory that an argument points to; the driver returns the number of bytes left,
/// if any.
pub(super) fn copy_out(address: u64, data: &[u8]) -> Handled {
    match user::write_most(address, data) {
        0 => Ok(Done::Ok),
        left => Ok(Done::Residual(left)),
    }
}
