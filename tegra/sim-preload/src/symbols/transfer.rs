//! `read` and `write`: no file of the simulator's has them but the node `power`.

use std::ffi::{c_int, c_void};

use libc::{size_t, ssize_t};
use tegra_sim::driver::Node;

use crate::files::{Known, marks};
use crate::power;
use crate::real::{self, fail};
use crate::world::{self, World};

/// The answer of one of the simulator's files; none when `fd` is not one.
fn simulated(
    fd: c_int,
    power: impl FnOnce(&World, tegra_sim::driver::FileId) -> Result<usize, c_int>,
) -> Option<ssize_t> {
    if !marks::is_set(fd) {
        return None;
    }
    let answer = world::with(|world| {
        Some(match world.files.find(fd)? {
            Known::Node(file, Node::Power) => power(world, file),
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
    let answer = simulated(fd, |world, file| power::read(world, file, into as u64, bytes));
    // SAFETY: the arguments are the caller's.
    answer.unwrap_or_else(|| unsafe { real::read(fd, into, bytes) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn write(fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t {
    let answer = simulated(fd, |world, _| power::write(world, from as u64, bytes));
    // SAFETY: the arguments are the caller's.
    answer.unwrap_or_else(|| unsafe { real::write(fd, from, bytes) })
}
