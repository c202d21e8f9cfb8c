//! Threads of the simulator in the program's process.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that blocks all signals of the program.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let builder = Builder::new().name(name.into());
    let (all, mut old) = (u64::MAX, 0_u64);
    let mask = |new: *const u64, old: *mut u64| {
        // Uses the system call: the preload library's functions change the program's own mask.
        // SAFETY: masks of the eight bytes that the kernel takes, or null.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, 8) }
    };
    // A thread inherits the mask of the thread that starts it.
    mask(&raw const all, &raw mut old);
    let started = builder.spawn(work);
    mask(&raw const old, std::ptr::null_mut());
    started
}
