//! Buffers by what they are for, each with its own rule of who may touch it when.
//!
//! | class | CPU | GPU | handed over |
//! |---|---|---|---|
//! | [`Weights`] | writes while [`Filling`], reads afterwards | reads, writes fault | when sealed |
//! | [`Scratch`] | not mapped | reads and writes | never |
//! | [`Mailbox`] | atomic words | reads and writes | by the timeline |
//!
//! [`Trial`] has the attributes that one gives it, to find out what they do.
//!
//! CPU mappings are inner cacheable: the GPU snoops the CPU's caches, so no cache maintenance is
//! needed. Before the GPU sees what the CPU wrote stand the barriers of a submit; before the CPU
//! sees what the GPU wrote, the release of a timeline and the barrier of looking at it.
//!
//! Dropping a buffer that the GPU still uses is a fault of the GPU, reported as one; it endangers no
//! memory of this process. Whoever submits work keeps its buffers until the work is done.

mod mailbox;
mod pool;
mod scratch;
mod trial;
mod weights;

pub use mailbox::Mailbox;
pub use pool::{Loading, Placement, WeightsPool};
pub use scratch::Scratch;
pub use trial::{Attributes, Trial};
pub use weights::{Filling, Weights};

use crate::error::Error;

/// Checks that `bytes` at `offset` lie within `size`.
pub(crate) fn within(offset: u64, bytes: u64, size: u64) -> Result<(), Error> {
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::Range { offset, bytes, size }),
    }
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn ranges() {
        assert!(within(0, 0, 0).is_ok());
        assert!(within(4, 4, 8).is_ok());
        assert!(within(5, 4, 8).is_err());
        assert!(within(9, 0, 8).is_err());
        assert!(within(u64::MAX, 2, 8).is_err());
    }
}
