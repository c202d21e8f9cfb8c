//! The interposed functions, grouped by subject.
//!
//! An interposed function has the signature and the safety contract of the C function of its name.
//! Each first checks whether a call can concern the simulator; if not, or if the simulator itself
//! is calling, it calls the next definition. The functions never unwind: a panic ends the program
//! with its message.

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

/// The node at a path. Nodes are recognised by their absolute paths.
fn node_at(path: *const c_char) -> Option<Node> {
    // No path is in the first page; the C function returns EFAULT.
    if (path as usize) < 4096 {
        return None;
    }
    // SAFETY: the caller passes a C string, as for any function with a path.
    let path = unsafe { CStr::from_ptr(path) };
    Node::at(path.to_str().ok()?)
}

/// Records that a real call returned this number: its previous file is closed.
fn given_anew(fd: RawFd) {
    if marks::is_set(fd) {
        world::with(|world| {
            epoll::closed(fd);
            world.files.forget(fd);
        });
    }
}
