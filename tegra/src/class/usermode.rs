//! The doorbell page: the first 64 KiB of an mmap of the ctrl fd.
//!
//! Class `0xc461`. Offsets in bytes, from the TU104 manual; the token was seen on hardware as 511
//! and 510, since channel ids are allocated from the top and the graphics runlist is 0. One mapping
//! for each open ctrl fd. Touching the page while the GPU is powered off is `SIGBUS`; an open
//! deterministic channel prevents that.

use super::Field;

/// Bytes of the page.
pub const SIZE: usize = 0x1_0000;
/// Reads as the class number.
pub const CFG0: usize = 0x00;
/// Nanoseconds, low word, in steps of 32.
pub const TIME_0: usize = 0x80;
/// Nanoseconds, high 29 bits. Read high, low, high, and repeat if the high word changed.
pub const TIME_1: usize = 0x84;
/// Doorbell register, for a [`token`]: the host unit reads that channel's GP_PUT again.
pub const NOTIFY_CHANNEL_PENDING: usize = 0x90;

/// Fields of the token that SETUP_BIND returned, stored to [`NOTIFY_CHANNEL_PENDING`].
pub mod token {
    use super::Field;

    /// Channel id.
    pub const CHANNEL: Field = Field::new(11, 0);
    /// Runlist id.
    pub const RUNLIST: Field = Field::new(22, 16);
}
