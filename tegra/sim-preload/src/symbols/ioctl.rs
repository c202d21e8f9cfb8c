//! `ioctl`: passes requests to the simulator's files to the simulated driver.

use std::ffi::c_int;

use crate::files::Known;
use crate::real::{self, fail};
use crate::world;

/// glibc declares the request as `unsigned long`, musl as `int`: only the low 32 bits matter. The
/// third word is read even if the caller passed none.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int {
    let simulated = world::with(|world| {
        let file = match world.files.find(fd)? {
            Known::Node(file, _) | Known::Object(file) | Known::Event(file) => file,
            // The kernel handles requests to a dma-buf; a memfd supports none of them.
            Known::DmaBuf(_) => return Some(fail(libc::ENOTTY)),
        };
        let answer = world.orin.ioctl(file, request as u32, argument as u64);
        Some(answer.unwrap_or_else(|refusal| fail(refusal.errno.code())))
    });
    match simulated.flatten() {
        Some(result) => result,
        None if world::is_inherited(fd) => fail(libc::ENODEV),
        // SAFETY: the arguments are the caller's.
        None => unsafe { real::ioctl(fd, request, argument) },
    }
}
