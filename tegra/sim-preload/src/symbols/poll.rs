//! `poll`, `ppoll` and their fortified variants.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use libc::{nfds_t, pollfd, sigset_t, size_t, timespec};

use super::ready::{self, Deadline, EVENT_BITS};
use crate::files::marks;
use crate::real;

/// Polls with events among `fds`: polls them for `POLLIN`, and reports both of their bits.
///
/// # Safety
/// As for `ppoll`.
unsafe fn poll_events(
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let mut deadline = Deadline::after(timeout);
    let is_event: Vec<bool> = fds.iter().map(|one| ready::is_event(one.fd)).collect();
    let mut asked = fds.to_vec();
    for (one, _) in asked.iter_mut().zip(&is_event).filter(|(_, event)| **event) {
        one.events = if one.events & EVENT_BITS == 0 { 0 } else { libc::POLLIN };
    }
    loop {
        let left = ready::c_timeout(deadline.left());
        let (list, count) = (asked.as_mut_ptr(), asked.len() as nfds_t);
        // SAFETY: `list` and `count` describe a live slice; the mask is the caller's.
        let result = unsafe { real::ppoll(list, count, ready::address(left.as_ref()), mask) };
        if result < 0 {
            return result;
        }
        for ((answer, one), event) in asked.iter().zip(fds.iter_mut()).zip(&is_event) {
            one.revents = answer.revents;
            if *event && answer.revents & libc::POLLIN != 0 {
                one.revents &= !EVENT_BITS;
                if ready::consume(one.fd) {
                    one.revents |= one.events & EVENT_BITS;
                }
            }
        }
        let count = fds.iter().filter(|one| one.revents != 0).count() as c_int;
        if count > 0 || deadline.is_over() {
            return count;
        }
    }
}

/// The caller's list, if any of its numbers may be an event of the simulator.
///
/// # Safety
/// `fds` has `count` elements.
unsafe fn concerning<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: the caller guarantees the list.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    fds.iter().any(|one| marks::is_set(one.fd)).then_some(fds)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the arguments are the caller's.
    unsafe {
        match concerning(fds, count) {
            Some(fds) => {
                let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
                poll_events(fds, timeout, ptr::null())
            }
            None => real::poll(fds, count, timeout),
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the arguments are the caller's.
    unsafe {
        match concerning(fds, count) {
            Some(fds) => poll_events(fds, ready::duration(timeout), mask),
            None => real::ppoll(fds, count, timeout, mask),
        }
    }
}

/// Aborts like glibc if a list is longer than its object.
fn check(count: nfds_t, object: size_t) {
    if object / size_of::<pollfd>() < count as usize {
        // SAFETY: ends the program.
        unsafe { libc::abort() }
    }
}

/// `poll` with the size of the list's object.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    object: size_t,
) -> c_int {
    check(count, object);
    // SAFETY: the arguments are the caller's.
    unsafe { poll(fds, count, timeout) }
}

/// `ppoll` with the size of the list's object.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    object: size_t,
) -> c_int {
    check(count, object);
    // SAFETY: the arguments are the caller's.
    unsafe { ppoll(fds, count, timeout, mask) }
}
