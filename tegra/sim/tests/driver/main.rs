//! The drivers' answers, asked through request numbers and byte layouts as a program asks.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")]

mod bench;
mod bring_up;
mod characteristics;
mod events;
mod hostile;
mod lifetimes;
mod placement;
mod refusals;
