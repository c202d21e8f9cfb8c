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
