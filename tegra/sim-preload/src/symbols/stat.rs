//! `stat`, `statx`, `access` and their variants: nodes look as on the device.
//!
//! Owner root, group `video`. Device and inode numbers are the simulator's own: the device assigns
//! them at boot. A placeholder that an ioctl returned (an address space, a TSG, a channel) is shown
//! as a character device.

use std::ffi::{c_char, c_int, c_uint};
use std::mem::MaybeUninit;

use tegra_sim::driver::Node;

use super::node_at;
use crate::files::{Known, marks};
use crate::real::{self, fail};
use crate::world;

/// Group `video` of L4T's Ubuntu.
const VIDEO: u32 = 44;
/// First major number of Linux's dynamic range, from the top.
const MAJOR: u32 = 511;

/// The node that an open fd refers to.
fn node_of(fd: c_int) -> Option<Node> {
    if !marks::is_set(fd) {
        return None;
    }
    match world::with(|world| world.files.find(fd))?? {
        Known::Node(_, node) => Some(node),
        Known::Object(_) | Known::DmaBuf(_) | Known::Event(_) => None,
    }
}

/// The node at a directory, a path and flags.
fn node_named(dir: c_int, path: *const c_char, flags: c_int) -> Option<Node> {
    if path.is_null() {
        return (flags & libc::AT_EMPTY_PATH != 0).then(|| node_of(dir)).flatten();
    }
    node_at(path).or_else(|| {
        // SAFETY: the caller passes a C string.
        let empty = flags & libc::AT_EMPTY_PATH != 0 && unsafe { *path } == 0;
        empty.then(|| node_of(dir)).flatten()
    })
}

/// Inode and minor number.
fn number(node: Node) -> u32 {
    node as u32 + 1
}

fn mode(node: Node) -> u32 {
    libc::S_IFCHR | node.mode()
}

/// Fills the caller's structure.
fn describe(node: Node, into: *mut libc::stat) -> c_int {
    if into.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: all-zero is valid; the caller's structure is writable.
    unsafe {
        let mut stat: libc::stat = MaybeUninit::zeroed().assume_init();
        stat.st_ino = u64::from(number(node));
        stat.st_nlink = 1;
        stat.st_mode = mode(node);
        stat.st_gid = VIDEO;
        stat.st_rdev = libc::makedev(MAJOR, number(node));
        stat.st_blksize = 4096;
        into.write(stat);
    }
    0
}

fn describe_x(node: Node, into: *mut libc::statx) -> c_int {
    if into.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: all-zero is valid; the caller's structure is writable.
    unsafe {
        let mut stat: libc::statx = MaybeUninit::zeroed().assume_init();
        stat.stx_mask = libc::STATX_BASIC_STATS;
        stat.stx_ino = u64::from(number(node));
        stat.stx_nlink = 1;
        stat.stx_mode = mode(node) as u16;
        stat.stx_gid = VIDEO;
        stat.stx_rdev_major = MAJOR;
        stat.stx_rdev_minor = number(node);
        stat.stx_blksize = 4096;
        into.write(stat);
    }
    0
}

macro_rules! interpose {
    ($( fn $name:ident($($before:ident: $kind:ty,)*) = $real:ident($($given:ident),*), $node:expr; )+)
    => {
        $(
            /// The structures with and without 64 in their names are identical on 64-bit Linux; a
            /// leading version word is the C library's interface before glibc 2.33.
            #[unsafe(no_mangle)]
            #[expect(clippy::allow_attributes, reason = "one macro for all signatures")]
            #[allow(unused_variables, reason = "the version word is ignored")]
            pub(super) unsafe extern "C" fn $name($($before: $kind,)* into: *mut libc::stat) -> c_int {
                match $node {
                    Some(node) => describe(node, into),
                    // SAFETY: the arguments are the caller's.
                    None => unsafe { real::$real($($given,)* into) },
                }
            }
        )+
    };
}

interpose! {
    fn stat(path: *const c_char,) = stat(path), node_at(path);
    fn stat64(path: *const c_char,) = stat(path), node_at(path);
    fn lstat(path: *const c_char,) = lstat(path), node_at(path);
    fn lstat64(path: *const c_char,) = lstat(path), node_at(path);
    fn fstat(fd: c_int,) = fstat(fd), node_of(fd);
    fn fstat64(fd: c_int,) = fstat(fd), node_of(fd);
    fn __xstat(version: c_int, path: *const c_char,) = stat(path), node_at(path);
    fn __xstat64(version: c_int, path: *const c_char,) = stat(path), node_at(path);
    fn __lxstat(version: c_int, path: *const c_char,) = lstat(path), node_at(path);
    fn __lxstat64(version: c_int, path: *const c_char,) = lstat(path), node_at(path);
    fn __fxstat(version: c_int, fd: c_int,) = fstat(fd), node_of(fd);
    fn __fxstat64(version: c_int, fd: c_int,) = fstat(fd), node_of(fd);
}

macro_rules! interpose_at {
    ($( fn $name:ident($($version:ident)?); )+) => {
        $(
            /// See the forms without a directory.
            #[unsafe(no_mangle)]
            #[expect(clippy::allow_attributes, reason = "one macro for all signatures")]
            #[allow(unused_variables, reason = "the version word is ignored")]
            pub(super) unsafe extern "C" fn $name(
                $($version: c_int,)?
                dir: c_int,
                path: *const c_char,
                into: *mut libc::stat,
                flags: c_int,
            ) -> c_int {
                match node_named(dir, path, flags) {
                    Some(node) => describe(node, into),
                    // SAFETY: the arguments are the caller's.
                    None => unsafe { real::fstatat(dir, path, into, flags) },
                }
            }
        )+
    };
}

interpose_at! {
    fn fstatat();
    fn fstatat64();
    fn __fxstatat(version);
    fn __fxstatat64(version);
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut libc::statx,
) -> c_int {
    match node_named(dir, path, flags) {
        Some(node) => describe_x(node, into),
        // SAFETY: the arguments are the caller's.
        None => unsafe { real::statx(dir, path, flags, mask, into) },
    }
}

/// Access of a member of group `video` to a node.
fn permitted(node: Node, wanted: c_int) -> c_int {
    let granted = if node.check_access().is_ok() { (node.mode() >> 3) & 7 } else { 0 };
    if wanted as u32 & !granted == 0 { 0 } else { fail(libc::EACCES) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn access(path: *const c_char, wanted: c_int) -> c_int {
    match node_at(path) {
        Some(node) => permitted(node, wanted),
        // SAFETY: the arguments are the caller's.
        None => unsafe { real::access(path, wanted) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn faccessat(
    dir: c_int,
    path: *const c_char,
    wanted: c_int,
    flags: c_int,
) -> c_int {
    match node_at(path) {
        Some(node) => permitted(node, wanted),
        // SAFETY: the arguments are the caller's.
        None => unsafe { real::faccessat(dir, path, wanted, flags) },
    }
}
