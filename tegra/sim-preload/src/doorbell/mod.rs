//! The doorbell page: an inaccessible mapping whose loads and stores are carried out one by one.
//!
//! A store to a page of shared memory would have to be polled for, and polling loses a doorbell
//! that is followed by the same value and invents order. So the page has no access rights at all:
//! every instruction that touches it faults, [`trap`] decodes and emulates it, and [`registers`]
//! answers for what lies in the page.

#[cfg(any(target_arch = "aarch64", test))]
mod aarch64;
mod bus;
mod pages;
mod registers;
mod trap;
#[cfg(any(target_arch = "x86_64", test))]
mod x86_64;

pub(crate) use pages::{MapError, map, unmap};
pub(crate) use trap::{die, program_action, set_program_action};
