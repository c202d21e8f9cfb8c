//! `read` and `write`: of the simulator's files only the node `power` supports them.

use std::ffi::{c_int, c_void};

use libc::{size_t, ssize_t};
use tegra_sim::driver::{FileId, Node};

use crate::files::{Known, marks};
use crate::power::Power;
use crate::real::{self, fail};
use crate::world;

/// The result for one of the simulator's files; `None` when `fd` is not one.
fn simulated(
    fd: c_int,
    access: impl FnOnce(&Power, FileId) -> Result<usize, c_int>,
) -> Option<ssize_t> {
    if !marks::is_set(fd) {
        return None;
    }
    let answer = world::with(|world| {
        Some(match world.files.find(fd)? {
            Known::Node(file, Node::Power) => access(&world.power, file),
            // fs/read_write.c: a file without the operation.
            _ => Err(libc::EINVAL),
        })
    })??;
    Some(match answer {
        Ok(bytes) => bytes as ssize_t,
        Err(errno) => fail(errno) as ssize_t,
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn read(fd: c_int, into: *mut c_void, bytes: size_t) -> ssize_t {
    let answer = simulated(fd, |power, file| power.read(file, into as u64, bytes));
    // SAFETY: the arguments are the caller's.
    answer.unwrap_or_else(|| unsafe { real::read(fd, into, bytes) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn write(fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t {
    let answer = simulated(fd, |power, _| power.write(from as u64, bytes));
    // SAFETY: the arguments are the caller's.
    answer.unwrap_or_else(|| unsafe { real::write(fd, from, bytes) })
}
