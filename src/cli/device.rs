//! Devices that a command uses by itself, without a daemon: what the daemon has found to take this machine
//! down is not touched by a command either.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::error::Error;
use device::bring_up::{self, FILE};
use device::cpu::Isa;
use device::{Device, named};

/// The device of that name, see [`named`].
///
/// # Errors
/// Why it cannot or must not be used here, in one line.
pub(super) fn open(name: &str, cpu_isa: &str, threads: usize) -> Result<Arc<dyn Device>, String> {
    match bring_up::withheld(&config::client_state_dir(FILE), name) {
        Some(reason) => Err(reason),
        None => named(name, cpu_isa, threads),
    }
}

/// The device of `--backend`, with the CPU's `--threads` and `--cpu-isa`.
pub(super) fn chosen(
    name: &str,
    threads: Option<NonZeroUsize>,
    cpu_isa: Option<&str>,
) -> Result<Arc<dyn Device>, Error> {
    if name != "cpu" && (threads.is_some() || cpu_isa.is_some()) {
        return Err(Error::Usage(format!("--threads and --cpu-isa are the CPU's, not {name}'s")));
    }
    if let Some(isa) = cpu_isa {
        Isa::named(isa).map_err(|e| Error::Usage(format!("--cpu-isa: {e}")))?;
    }
    open(name, cpu_isa.unwrap_or("auto"), threads.map_or(0, NonZeroUsize::get))
        .map_err(|why| Error::Backend { name: name.to_owned(), why })
}
