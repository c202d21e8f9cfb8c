//! Limits on the work that a text or a conversation may cause, and its cancellation.

use std::sync::atomic::{AtomicBool, Ordering};

use super::error::Error;

/// Bytes of work between two checks of the flag, well below a millisecond.
const STRIDE: usize = 4096;

/// Limits on encoding one text.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// The most ids, including BOS and EOS.
    pub tokens: usize,
    /// Once set, encoding soon fails with [`Error::Cancelled`].
    pub cancelled: &'a AtomicBool,
}

/// Counts work and checks the flag periodically.
#[derive(Debug)]
pub(super) struct Work<'a> {
    cancelled: &'a AtomicBool,
    left: usize,
}

impl<'a> Work<'a> {
    pub(super) const fn new(cancelled: &'a AtomicBool) -> Self {
        Self { cancelled, left: 0 }
    }

    /// Adds about `bytes` bytes of work.
    pub(super) fn add(&mut self, bytes: usize) -> Result<(), Error> {
        if let Some(left) = self.left.checked_sub(bytes) {
            self.left = left;
            return Ok(());
        }
        self.left = STRIDE;
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }
}
