//! Device interface: how devices run plans.
//!
//! A [`Device`] declares what it is and which fused steps it supports, and opens an [`Instance`]:
//! the memory of one loaded model. Weights are uploaded one tensor at a time. Plans are prepared
//! once and submitted repeatedly; a [`Ticket`] identifies submitted steps. Inputs that change per
//! token are in the plan's mailboxes, in device memory; sampled tokens are returned through a ring.
//! The device owns KV storage; the engine assigns slots and KV cache blocks. A device declares
//! tuning parameters as `Space`s ([`Tunable`]) and receives choices in the [`Request`].
//!
//! Rules of every device (enforced by `ledger`, tested by `contract`):
//!
//! - Submissions run and finish in order, across plans. At most [`MAX_SUBMISSIONS`] are in flight.
//! - A submission is in flight until it, or a later one, has been waited for, whether it has
//!   finished or not: what these rules reject must not depend on the speed of a device. A plan is
//!   in flight while one of its submissions is.
//! - Mailboxes are written and outputs are read with the type that the plan declares. Writes and
//!   submissions of a plan take effect in call order: a write while the plan is in flight affects
//!   its next submission and no earlier one. Up to [`STAGED_WRITES`] such writes can wait for a
//!   submission.
//! - Outputs are read while their plan is not in flight.
//! - A row of logits that is not finite yields [`plan::sample::NOT_FINITE`] (-1) as token, in the
//!   ring and as the next step's input, which is then a row of zeroes. Other rows are unaffected.
//! - A step's tokens can be read after its submission has been waited for, until [`RING_STEPS`]
//!   later steps of its plan have been submitted.
//! - Weights are uploaded while nothing is in flight.
//! - Loss is permanent: every later call that needs the device fails with the same error.

mod axes;
pub mod bring_up;
#[cfg(test)]
mod contract;
pub mod cpu;
pub mod gpu;
mod interface;
mod kernels;
mod ledger;
mod memory;
mod modes;
mod plan_buffers;
mod precision;
pub mod reference;
mod registry;
mod slots;
pub mod tune;
mod uses;

/// First light: bring-up steps, operating modes, and the interface of devices that have them.
pub mod first_light {
    pub use crate::interface::FirstLight;
    pub use crate::modes::{Chains, Maps, Mode, Note, Range, Stage, WakeBy};
}

pub use interface::*;
pub use kernels::{Kernels, remembered};
pub use memory::available;
pub use orind_kernels::cubin_cache::keep_in as enable_kernel_cache;
pub use registry::{AUTO, NAMES, behind, named, open_realtime};
