//! What the machine says about itself: memory, power mode, clocks, temperatures, rails, other users
//! of the GPU.
//!
//! Everything is read from `/proc`, `/sys`, `/etc` and `/dev` under a [`Root`]; nothing is changed,
//! no program is started, and nothing needs to be root. What cannot be read is `None`, and
//! [`State::unread`] says why. [`Probe`] looks once for what there is and then reads it as often as
//! wanted; [`Watch`] reads it on a thread of its own while something is measured.
//!
//! Every path stands beside the source that it is known from. What the numbers mean to somebody who
//! serves a model is in `docs/orin-state.md`.

#![forbid(unsafe_code)]

mod board;
pub mod clocks;
mod frequencies;
pub mod memory;
mod power_mode;
mod probe;
mod rails;
mod root;
mod state;
mod thermal;
mod unified;
mod users;
mod watch;

pub use probe::Probe;
pub use root::Root;
pub use state::{
    Alarm, Clock, Cluster, Drivers, Gpu, Memory, PowerMode, Rail, Release, Sample, State, Swap,
    SwapDevice, Unread, Zone,
};
pub use users::{User, Users};
pub use watch::{Range, Recording, Watch};
