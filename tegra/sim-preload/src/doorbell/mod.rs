//! The doorbell page: an inaccessible mapping whose loads and stores are emulated one by one.
//!
//! Stores to a page of shared memory would have to be polled, and polling loses a doorbell that is
//! followed by the same value, and loses the order. So the page has no access rights: every
//! instruction that touches it faults, [`trap`] decodes and emulates it, and [`registers`] has the
//! registers of the page.

#[cfg(any(target_arch = "aarch64", test))]
mod aarch64;
mod bus;
mod pages;
mod registers;
mod trap;
#[cfg(any(target_arch = "x86_64", test))]
mod x86_64;

use std::ffi::c_void;

pub(crate) use pages::{MapError, unmap};
pub(crate) use trap::{program_action, set_program_action};

use crate::files::Mapped;

/// Installs the handler and maps a doorbell page; see [`pages::map`].
pub(crate) fn map(
    hint: *mut c_void,
    bytes: usize,
    flags: i32,
    file: Mapped,
) -> Result<*mut c_void, (MapError, Mapped)> {
    trap::install();
    pages::map(hint, bytes, flags, file)
}
