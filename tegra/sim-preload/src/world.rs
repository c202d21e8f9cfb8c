//! The one simulated Orin of this process: its start, and the calls that reach it.
//!
//! It starts when a node is first opened. Calls of the simulator itself, or of a signal handler
//! that interrupts it, are not simulated: they reach libc directly. That is why the locks here may
//! be parking_lot's: it sleeps by `syscall`, which is not interposed, and the memory that it
//! allocates for a waiting thread comes from calls that are not simulated. A forked child is
//! another process that has only a copy of the memory and none of the threads: it cannot use its
//! parent's Orin. (`exec` starts afresh.)

use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::process;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use parking_lot::Mutex;
use tegra_sim::config::Config;
use tegra_sim::driver::{FdTable, Orin};

use crate::files::{Files, marks};
use crate::message;
use crate::power::Power;

/// The Orin and this library's knowledge of the program.
pub(crate) struct World {
    process: u32,
    pub(crate) orin: Arc<Orin>,
    pub(crate) files: Arc<Files>,
    pub(crate) power: Power,
}

static WORLD: AtomicPtr<World> = AtomicPtr::new(ptr::null_mut());
static STARTING: Mutex<()> = Mutex::new(());

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, calls of this thread are the simulator's own.
struct Inside;

impl Inside {
    fn enter() -> Option<Self> {
        INSIDE.try_with(|inside| !inside.replace(true)).ok()?.then_some(Self)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(false));
    }
}

fn existing() -> Option<&'static World> {
    // SAFETY: the pointer is null or came from a box that is never freed.
    unsafe { WORLD.load(Ordering::Acquire).as_ref() }
}

/// The world, for the doorbell's signal handler, which takes no lock.
pub(crate) fn current() -> Option<&'static World> {
    existing().filter(|world| world.process == process::id())
}

/// Returns `true` if a number is a file of the parent process's Orin, and reports that once.
pub(crate) fn is_inherited(fd: RawFd) -> bool {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    let parents = existing().filter(|world| world.process != process::id());
    if !marks::is_set(fd) || !parents.is_some_and(|world| world.files.had(fd)) {
        return false;
    }
    if !REPORTED.swap(true, Ordering::Relaxed) {
        message::print(&format!(
            "ioctl on fd {fd}, a node that process {} inherited by fork: a forked child cannot use its parent's Orin; \
             fork before the first node is opened, or exec and open the nodes there (Python's multiprocessing: the \
             start method \"spawn\")",
            process::id()
        ));
    }
    true
}

/// Runs `work` in the world, if there is one and the program itself is calling. Files that lost
/// their last reference by then are closed.
pub(crate) fn with<T>(work: impl FnOnce(&'static World) -> T) -> Option<T> {
    let world = current()?;
    let _inside = Inside::enter()?;
    let result = work(world);
    settle(world);
    Some(result)
}

/// Runs `work` in the world, and starts it if needed. `None` if the simulator itself is calling, or
/// in a forked child of a process that had an Orin.
pub(crate) fn with_started<T>(work: impl FnOnce(&'static World) -> T) -> Option<T> {
    let _inside = Inside::enter()?;
    let world = start()?;
    let result = work(world);
    settle(world);
    Some(result)
}

fn settle(world: &World) {
    for file in world.files.take_gone() {
        world.orin.close(file);
    }
}

fn start() -> Option<&'static World> {
    if let Some(world) = current() {
        return Some(world);
    }
    match start_with(configured) {
        Ok(world) => Some(world),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => current(),
        // Without the requested configuration, the results would be misleading.
        Err(error) => message::abort(format_args!("the simulated Orin does not start: {error}")),
    }
}

/// An Orin configured by the `TEGRA_SIM_` variables.
fn configured(files: Arc<dyn FdTable>) -> io::Result<Arc<Orin>> {
    let config = Config::from_env().map_err(io::Error::other)?;
    Orin::new(&config, files)
}

/// Starts the world with the Orin that `make` returns. `AlreadyExists` when there is one, or the
/// errors of `make`.
pub(crate) fn start_with(
    make: impl FnOnce(Arc<dyn FdTable>) -> io::Result<Arc<Orin>>,
) -> io::Result<&'static World> {
    let _one = STARTING.lock();
    if existing().is_some() {
        if current().is_none() {
            message::print(
                "a forked child cannot use the Orin of its parent; open the nodes after exec, or fork before the first open",
            );
        }
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let files = Arc::new(Files::default());
    let orin = make(Arc::clone(&files) as _)?;
    let world = World { process: process::id(), orin, files, power: Power::default() };
    let world = Box::leak(Box::new(world));
    WORLD.store(world, Ordering::Release);
    // SAFETY: the function has no arguments and lives as long as the library, which is never
    // unloaded. If the handler cannot be registered, the summary is not printed.
    unsafe { libc::atexit(finish) };
    Ok(world)
}

/// Prints the summary of findings at exit. A program that ends by `_exit` or a signal does not get
/// it.
extern "C" fn finish() {
    let Some(world) = current() else { return };
    let _inside = Inside::enter();
    if let Some(summary) = world.orin.summary() {
        message::print(summary.trim_end());
    }
}
