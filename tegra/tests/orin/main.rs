//! The crate through its public door on the simulated Orin, which is linked into this program.
//!
//! Every test runs alone and leaves nothing behind: [`support::alone`] sees to both.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use tegra_sim_preload as _;

mod bring_up;
mod buffers;
mod copies;
mod faults;
mod idle;
mod injected;
mod launches;
mod programs;
mod queues;
mod raw;
mod refusals;
mod support;
