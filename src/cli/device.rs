//! Devices that commands open in this process, without a daemon. A device that the daemon recorded
//! as crashing this machine is refused here too.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::error::Error;
use device::bring_up::{self, FILE};
use device::cpu::Isa;
use device::{Device, named};

/// Opens a device by name, see [`named`]. The error is one line.
pub(super) fn open(name: &str, cpu_isa: &str, threads: usize) -> Result<Arc<dyn Device>, String> {
    match bring_up::withheld(&config::client_state_dir(FILE), name) {
        Some(reason) => Err(reason),
        None => named(name, cpu_isa, threads),
    }
}

/// Opens the device of `--backend`, with `--threads` and `--cpu-isa` for the CPU.
pub(super) fn chosen(
    name: &str,
    threads: Option<NonZeroUsize>,
    cpu_isa: Option<&str>,
) -> Result<Arc<dyn Device>, Error> {
    if name != "cpu" && (threads.is_some() || cpu_isa.is_some()) {
        return Err(Error::Usage(format!(
            "--threads and --cpu-isa apply to the CPU device, not to {name}"
        )));
    }
    if let Some(isa) = cpu_isa {
        Isa::named(isa).map_err(|e| Error::Usage(format!("--cpu-isa: {e}")))?;
    }
    open(name, cpu_isa.unwrap_or("auto"), threads.map_or(0, NonZeroUsize::get))
        .map_err(|why| Error::Backend { name: name.to_owned(), why })
}
