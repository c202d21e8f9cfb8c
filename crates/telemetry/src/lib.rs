//! State of the machine: memory, power mode, clocks, temperatures, power rails, other users of the
//! GPU.
//!
//! Reads `/proc`, `/sys`, `/etc` and `/dev` under a [`Root`]. Changes nothing, starts no program,
//! and needs no root privileges. Unreadable values are `None`; [`State::unread`] lists the reasons.
//! [`Probe`] discovers the files once and then reads them on demand; [`Watch`] reads them on a
//! thread of its own during a measurement.
//!
//! Every path is documented with its source. `docs/orin-state.md` explains the numbers to
//! operators.

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
