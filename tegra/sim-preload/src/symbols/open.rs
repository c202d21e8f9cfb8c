//! `open` and its variants: a node's path starts the world and returns a placeholder.

use std::ffi::{c_char, c_int};

use libc::mode_t;
use tegra_sim::driver::Node;

use super::{given_anew, node_at};
use crate::real::{self, fail};
use crate::world;

/// Opens a node; `None` when the simulator itself is calling.
fn open_node(node: Node, flags: c_int) -> Option<c_int> {
    world::with_started(|world| match world.orin.open(node) {
        Ok(file) => match world.files.install_node(file, node, flags) {
            Ok(fd) => fd,
            Err(error) => {
                world.orin.close(file);
                fail(error.raw_os_error().unwrap_or(libc::EMFILE))
            }
        },
        Err(refusal) => fail(refusal.errno.code()),
    })
}

fn opened(path: *const c_char, flags: c_int, otherwise: impl FnOnce() -> c_int) -> c_int {
    if let Some(node) = node_at(path) {
        return open_node(node, flags).unwrap_or_else(|| fail(libc::ENODEV));
    }
    let fd = otherwise();
    given_anew(fd);
    fd
}

macro_rules! interpose {
    ($( fn $name:ident($([$dir:ident])? path, flags $(, $mode:ident)?); )+) => {
        $(
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                $($dir: c_int,)?
                path: *const c_char,
                flags: c_int
                $(, $mode: mode_t)?
            ) -> c_int {
                // SAFETY: the arguments are the caller's.
                opened(path, flags, || unsafe { real::$name($($dir,)? path, flags $(, $mode)?) })
            }
        )+
    };
}

interpose! {
    fn open(path, flags, mode);
    fn open64(path, flags, mode);
    fn openat([dir] path, flags, mode);
    fn openat64([dir] path, flags, mode);
    fn __open_2(path, flags);
    fn __open64_2(path, flags);
    fn __openat_2([dir] path, flags);
    fn __openat64_2([dir] path, flags);
}
