//! Devices that a command uses by itself, without a daemon: what the daemon has found to take this machine
//! down is not touched by a command either.

use std::sync::Arc;

use crate::config;
use crate::stages::{self, FILE};
use device::{Device, named};

/// The device of that name, see [`named`].
///
/// # Errors
/// Why it cannot or must not be used here, in one line.
pub(super) fn open(name: &str, cpu_isa: &str, threads: usize) -> Result<Arc<dyn Device>, String> {
    match stages::withheld(&config::client_state_dir(FILE), name) {
        Some(reason) => Err(reason),
        None => named(name, cpu_isa, threads),
    }
}
