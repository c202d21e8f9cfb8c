//! The GPU without a driver: streams, semaphores, copies, launches, and a violation of each rule.

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
