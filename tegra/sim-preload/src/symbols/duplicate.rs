//! `dup`, `dup2`, `dup3`, and `fcntl` when it duplicates: the new number refers to the same file.

use std::ffi::c_int;

use super::given_anew;
use crate::files::marks;
use crate::{real, world};

/// Records that `to` now refers to the file of `from`.
fn duplicated(from: c_int, to: c_int) -> c_int {
    if to >= 0 && to != from {
        given_anew(to);
        if marks::is_set(from) {
            world::with(|world| world.files.find(to));
        }
    }
    to
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the arguments are the caller's.
    duplicated(fd, unsafe { real::dup(fd) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: the arguments are the caller's.
    duplicated(from, unsafe { real::dup2(from, to) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the arguments are the caller's.
    duplicated(from, unsafe { real::dup3(from, to, flags) })
}

fn controlled(fd: c_int, command: c_int, result: c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return duplicated(fd, result);
    }
    result
}

/// Commands without a third word get a meaningless one, which they do not read.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the arguments are the caller's.
    controlled(fd, command, unsafe { real::fcntl(fd, command, argument) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the arguments are the caller's.
    controlled(fd, command, unsafe { real::fcntl64(fd, command, argument) })
}
