//! The one simulated Orin of this process: when it starts, and who may enter it.
//!
//! It starts when a node is first opened. Calls that the simulator itself makes, or a signal
//! handler that interrupts it, are not simulated: they go straight to libc. That is why the locks
//! here may be parking_lot's: it sleeps by `syscall`, which is not interposed, and the memory that it
//! allocates for a thread that has to wait comes from calls that are not simulated. A forked child is
//! another process that has only a copy of the memory and none of the threads: it does not see its
//! parent's Orin. (`exec` makes a fresh start.)

use std::cell::Cell;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::process;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use parking_lot::Mutex;
use tegra_sim::config::Config;
use tegra_sim::driver::{FdTable, Orin};

use crate::doorbell::die;
use crate::files::{Files, marks};
use crate::power::Power;

/// The Orin and what this library knows about the program.
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

/// The world, for the doorbell's signal handler: it takes no lock there.
pub(crate) fn current() -> Option<&'static World> {
    existing().filter(|world| world.process == process::id())
}

/// Whether a number is a file of the Orin of this process's parent, which is told about once.
pub(crate) fn is_inherited(fd: RawFd) -> bool {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let parents = existing().filter(|world| world.process != process::id());
    if !marks::is_set(fd) || !parents.is_some_and(|world| world.files.had(fd)) {
        return false;
    }
    if !TOLD.swap(true, Ordering::Relaxed) {
        say(&format!(
            "ioctl on fd {fd}, a node that process {} inherited by fork: a forked child cannot use its parent's Orin; \
             fork before the first node is opened, or exec and open the nodes there (Python's multiprocessing: the \
             start method \"spawn\")",
            process::id()
        ));
    }
    true
}

/// Does `work` in the world, if there is one and the call comes from the program. Whatever lost
/// its last reference by then is closed.
pub(crate) fn with<T>(work: impl FnOnce(&'static World) -> T) -> Option<T> {
    let world = current()?;
    let _inside = Inside::enter()?;
    let result = work(world);
    settle(world);
    Some(result)
}

/// Does `work` in the world, starting it if need be. None for a call that is not the program's, or
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
        // What the user asked for cannot be had: going on would show something else.
        Err(error) => die(format_args!("the simulated Orin does not start: {error}")),
    }
}

/// An Orin as the `TEGRA_SIM_` variables say.
fn configured(files: Arc<dyn FdTable>) -> io::Result<Arc<Orin>> {
    let config = Config::from_env().map_err(io::Error::other)?;
    Orin::new(&config, files)
}

/// Starts the world with an Orin that `make` gives. `AlreadyExists` when there is one, and those of
/// `make`.
pub(crate) fn start_with(
    make: impl FnOnce(Arc<dyn FdTable>) -> io::Result<Arc<Orin>>,
) -> io::Result<&'static World> {
    let _one = STARTING.lock();
    if existing().is_some() {
        if current().is_none() {
            say(
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
    // SAFETY: a function that takes nothing and lives as long as the library, which is never unloaded. Where there
    // is no room for another handler, the sum is not told.
    unsafe { libc::atexit(finish) };
    Ok(world)
}

/// The program ends: says what was found in sum. Not said by a program that ends by `_exit` or a signal.
extern "C" fn finish() {
    let Some(world) = current() else { return };
    let _inside = Inside::enter();
    if let Some(summary) = world.orin.summary() {
        say(summary.trim_end());
    }
}

/// Tells the person at the terminal.
pub(crate) fn say(what: &str) {
    // Nobody to tell it to if stderr is closed.
    let _ = writeln!(io::stderr(), "tegra-sim: {what}");
}
