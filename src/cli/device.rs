//! Devices that a command uses by itself, without a daemon: what the daemon has found to take this machine
//! down is not touched by a command either.

use std::sync::Arc;

use crate::config;
use crate::stages::{self, FILE, Key};
use device::{Device, named};

/// The device of that name, see [`named`].
///
/// # Errors
/// Why it cannot or must not be used here, in one line.
pub(super) fn open(name: &str, cpu_isa: &str, threads: usize) -> Result<Arc<dyn Device>, String> {
    if !matches!(name, "cpu" | "reference") {
        let book = stages::read(&config::client_state_dir(FILE)).map_err(|e| e.to_string())?;
        let record = book.devices.get(name);
        if let Some(reason) = record.and_then(|record| record.withheld(&Key::here(String::new()))) {
            return Err(reason);
        }
    }
    named(name, cpu_isa, threads)
}
