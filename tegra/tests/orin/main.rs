//! The crate's public interface on the simulated Orin, which is linked into this program.
//!
//! Every test runs alone and leaks nothing: [`support::alone`] ensures both.

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
