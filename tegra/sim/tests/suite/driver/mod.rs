//! The drivers' answers, asked through request numbers and byte layouts as a program asks.
mod bench;
mod bring_up;
mod characteristics;
mod events;
mod hostile;
mod lifetimes;
mod machines;
mod placement;
mod refusals;
