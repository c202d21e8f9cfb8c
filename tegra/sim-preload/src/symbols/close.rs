//! `close` and `close_range`.

use std::ffi::{c_int, c_uint};

use super::epoll;
use crate::files::marks;
use crate::{real, world};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close(fd: c_int) -> c_int {
    // SAFETY: the arguments are the caller's.
    let close = || unsafe { real::close(fd) };
    if !marks::is_set(fd) {
        return close();
    }
    // Another thread may get the number as soon as it is free: forget it before.
    world::with(|world| {
        epoll::closed(fd);
        world.files.forget(fd);
        close()
    })
    .unwrap_or_else(close)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the arguments are the caller's.
    let result = unsafe { real::close_range(first, last, flags) };
    let only_marks_for_exec = flags as c_uint & libc::CLOSE_RANGE_CLOEXEC != 0;
    if result == 0 && !only_marks_for_exec {
        world::with(|world| {
            for fd in world.files.between(first, last) {
                epoll::closed(fd);
                world.files.forget(fd);
            }
        });
    }
    result
}
