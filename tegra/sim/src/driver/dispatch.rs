//! What all nvgpu nodes do with a request before and after its handler.
//!
//! The kernel switches on the whole 32-bit request. Arguments are copied in when the direction says
//! write, and copied back when it says read and the handler succeeded: fields of a failed call stay
//! as the caller left them.

use super::errno::{Refused, refusals};
use super::{Answer, user};

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
pub(super) const fn io(magic: u8, number: u8) -> u32 {
    request(0, magic, number, 0)
}

/// A request whose arguments go in.
pub(super) const fn iow(magic: u8, number: u8, size: u32) -> u32 {
    request(WRITE, magic, number, size)
}

/// A request whose arguments come out.
pub(super) const fn ior(magic: u8, number: u8, size: u32) -> u32 {
    request(READ, magic, number, size)
}

/// A request whose arguments go in and come out.
pub(super) const fn iowr(magic: u8, number: u8, size: u32) -> u32 {
    request(READ | WRITE, magic, number, size)
}

/// The parts of a request.
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

/// An argument structure, by offset. Offsets are constants of the handlers and lie within it.
#[derive(Debug)]
pub(super) struct Args([u8; LARGEST]);

impl Args {
    /// All zero, as the driver's buffer is before anything is copied in.
    pub(super) const fn zeroed() -> Self {
        Self([0; LARGEST])
    }

    /// The first `size` bytes.
    pub(super) fn bytes(&self, size: usize) -> &[u8] {
        &self.0[..size]
    }

    /// The first `size` bytes, to fill.
    pub(super) fn bytes_mut(&mut self, size: usize) -> &mut [u8] {
        &mut self.0[..size]
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    pub(super) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn i16(&self, at: usize) -> i16 {
        i16::from_le_bytes(self.array(at))
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub(super) fn i32(&self, at: usize) -> i32 {
        i32::from_le_bytes(self.array(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    pub(super) fn set<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&value);
    }

    pub(super) fn set_u32(&mut self, at: usize, value: u32) {
        self.set(at, value.to_le_bytes());
    }

    pub(super) fn set_i32(&mut self, at: usize, value: i32) {
        self.set(at, value.to_le_bytes());
    }

    pub(super) fn set_u64(&mut self, at: usize, value: u64) {
        self.set(at, value.to_le_bytes());
    }
}

/// How a handler ended that did not refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// The call succeeded.
    Ok,
    /// A nested copy left so many bytes: the driver returns their number, a positive result, and
    /// copies nothing back.
    Residual(usize),
}

/// What a handler gives.
pub(super) type Handled = Result<Done, Refused>;

/// How one nvgpu node checks its requests.
#[derive(Debug)]
pub(super) struct Rules {
    /// The letter of its requests.
    pub(super) magic: u8,
    /// The highest number.
    pub(super) last: u8,
    /// Bytes of the largest argument.
    pub(super) largest: usize,
    /// Whether an unwritable argument is `EFAULT`; otherwise the bytes left are returned.
    pub(super) output_faults: bool,
    /// A request whose arguments are copied back even when it fails.
    pub(super) always_out: Option<u32>,
}

impl Rules {
    /// Answers one request of the node.
    pub(super) fn dispatch(
        &self,
        request: u32,
        arg: u64,
        handler: impl FnOnce(&mut Args) -> Handled,
    ) -> Result<Answer, Refused> {
        let parts = Parts::of(request);
        if parts.magic != self.magic
            || parts.number == 0
            || parts.number > self.last
            || parts.size > self.largest
        {
            return Err(&WRONG_NUMBER);
        }
        let mut args = Args::zeroed();
        if parts.goes_in {
            user::read(arg, args.bytes_mut(parts.size)).map_err(|_| &BAD_INPUT)?;
        }
        let handled = handler(&mut args);
        let residual = match handled {
            Ok(Done::Residual(left)) => left,
            Err(refused) if self.always_out != Some(request) => return Err(refused),
            Ok(Done::Ok) | Err(_) if parts.comes_out => {
                let left = user::write_most(arg, args.bytes(parts.size));
                if left != 0 && self.output_faults {
                    return Err(&BAD_OUTPUT);
                }
                left
            }
            Ok(Done::Ok) | Err(_) => 0,
        };
        handled?;
        Ok(Answer { value: i32::try_from(residual).unwrap_or(i32::MAX) })
    }
}

/// Copies out to memory that an argument points to; the driver returns what is left, if any.
pub(super) fn copy_out(address: u64, data: &[u8]) -> Handled {
    match user::write_most(address, data) {
        0 => Ok(Done::Ok),
        left => Ok(Done::Residual(left)),
    }
}
