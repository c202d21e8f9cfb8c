//! The GPU driven directly, without a driver: streams, semaphores, copies, launches, and each rule
//! broken on purpose.

mod copies;
mod faults;
mod hostile;
mod launches;
mod machines;
mod memory;
mod planted;
mod property;
mod replay;
pub(crate) mod rig;
mod semaphores;
mod stream;
mod switches;
mod turns;
