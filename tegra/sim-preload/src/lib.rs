//! `tegra-sim-preload`: the libc symbols that connect a program to the simulated Orin.
//!
//! This crate is the only owner of interposed symbols; the Orin itself is [`tegra_sim`]. It is used
//! in one of two ways:
//!
//! - as `libtegra_sim_preload.so`, which `tegra-sim run -- CMD` puts into `LD_PRELOAD`;
//! - linked into a test binary by `use tegra_sim_preload as _;`: the symbols are then defined in
//!   the executable itself.
//!
//! Raw system calls and statically linked programs bypass it: they cannot be simulated.
//!
//! ```text
//! symbols  ->  world, files, doorbell  ->  tegra_sim::driver::Orin
//!    \-> real (the next definition of each function)
//! ```

#![cfg(target_os = "linux")]

mod doorbell;
mod files;
mod message;
mod placeholder;
mod power;
mod real;
mod symbols;
mod world;

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use tegra_sim::driver::{FdTable, Orin};

/// The simulated Orin of this process; starts it if the program has not opened a node yet.
///
/// `None` in a forked child of a process that had one.
#[must_use]
pub fn orin() -> Option<Arc<Orin>> {
    world::with_started(|world| {
        world.files.refresh_all();
        Arc::clone(&world.orin)
    })
}

/// Starts the simulated Orin that `make` returns, for a test that needs another one than the
/// `TEGRA_SIM_` variables describe: with its own seed, or a reporter that collects findings.
///
/// # Errors
/// `AlreadyExists` when the process has one: it starts with the first opened node, or the first
/// call of [`orin`]. Otherwise the errors of `make`.
pub fn start(
    make: impl FnOnce(Arc<dyn FdTable>) -> io::Result<Arc<Orin>>,
) -> io::Result<Arc<Orin>> {
    world::start_with(make).map(|world| Arc::clone(&world.orin))
}

/// The numbers of the simulator's files that are open in the program, for leak checks.
pub fn open_files() -> Vec<RawFd> {
    world::with(|world| {
        world.files.refresh_all();
        world.files.open_numbers()
    })
    .unwrap_or_default()
}
