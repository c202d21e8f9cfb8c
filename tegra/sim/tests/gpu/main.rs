//! The GPU driven directly, without a driver: streams, semaphores, copies, launches, and each rule
//! broken on purpose.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod copies;
mod faults;
mod hostile;
mod launches;
mod memory;
mod planted;
mod property;
mod replay;
mod rig;
mod semaphores;
mod stream;
