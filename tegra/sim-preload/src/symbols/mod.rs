//! The interposed functions, by what they are about.
//!
//! An interposed function has the signature and the safety contract of the C function of its name.
//! Each asks first whether a call can concern the simulator at all; if not, or if the simulator
//! itself is calling, it goes to the next definition. The functions unwind into nobody: a panic
//! ends the program with its message.

mod close;
mod duplicate;
mod epoll;
mod ioctl;
mod lookup;
mod memory;
mod open;
mod poll;
mod ready;
mod select;
mod signal;
mod stat;
#[cfg(test)]
mod tests;
mod transfer;

use std::ffi::{CStr, c_char};
use std::os::fd::RawFd;

use tegra_sim::driver::Node;

use crate::files::marks;
use crate::world;

/// The node that a path names. Nodes are known by their absolute paths.
fn node_at(path: *const c_char) -> Option<Node> {
    // The first page holds no path; the C function answers EFAULT.
    if (path as usize) < 4096 {
        return None;
    }
    // SAFETY: the caller gives a C string, as of any function that takes a path.
    let path = unsafe { CStr::from_ptr(path) };
    Node::at(path.to_str().ok()?)
}

/// A real call has given the program this number: whatever it meant before is closed.
fn given_anew(fd: RawFd) {
    if marks::is_set(fd) {
        world::with(|world| {
            epoll::closed(fd);
            world.files.forget(fd);
        });
    }
}
