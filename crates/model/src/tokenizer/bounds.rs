//! How much work a text or a conversation may cause, and the way out of it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Error;

/// Bytes of work between two looks at the flag: well below a millisecond.
const STRIDE: usize = 4096;

/// What encoding one text may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// Ids at most, BOS and EOS included.
    pub tokens: usize,
    /// Once set, the work ends soon, with [`Error::Cancelled`].
    pub cancelled: &'a AtomicBool,
}

/// Counts work, and looks at the flag now and then.
#[derive(Debug)]
pub(super) struct Work<'a> {
    cancelled: &'a AtomicBool,
    left: usize,
}

impl<'a> Work<'a> {
    pub(super) const fn new(cancelled: &'a AtomicBool) -> Self {
        Self { cancelled, left: 0 }
    }

    /// Accounts for about `bytes` bytes of work.
    pub(super) fn add(&mut self, bytes: usize) -> Result<(), Error> {
        if let Some(left) = self.left.checked_sub(bytes) {
            self.left = left;
            return Ok(());
        }
        self.left = STRIDE;
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }
}
