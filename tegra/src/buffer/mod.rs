//! Buffer types by purpose, each with its own access rules.
//!
//! | type | CPU | GPU | ownership passes |
//! |---|---|---|---|
//! | [`Weights`] | writes while [`Filling`], reads afterwards | reads, writes fault | when sealed |
//! | [`Scratch`] | not mapped | reads and writes | never |
//! | [`Mailbox`] | atomic words | reads and writes | by the timeline |
//!
//! [`ProbeBuffer`] has caller-chosen attributes, for measuring their effect.
//!
//! CPU mappings are inner cacheable: the GPU snoops the CPU's caches, so no cache maintenance is
//! needed. The barriers of a submit order the CPU's writes before the GPU's reads; a timeline
//! release and the barrier after reading it order the GPU's writes before the CPU's reads.
//!
//! Dropping a buffer that the GPU still uses is a GPU fault, reported as one; it endangers no
//! memory of this process. The submitter of work must keep its buffers until the work is done.

mod mailbox;
mod pool;
mod probe;
mod scratch;
mod weights;

pub use mailbox::Mailbox;
pub use pool::{Loading, Placement, WeightsPool};
pub use probe::{Attributes, ProbeBuffer};
pub use scratch::Scratch;
pub use weights::{Filling, Weights};
