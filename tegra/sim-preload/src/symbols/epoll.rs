//! `epoll_ctl`, `epoll_wait` and `epoll_pwait`.
//!
//! An epoll set reports the caller's own data word, not the file's number, so the table here maps
//! events in epoll sets to that word.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event, sigset_t};
use parking_lot::Mutex;

use super::ready::{self, Deadline};
use crate::files::marks;
use crate::{real, world};

/// Bits that an event may report.
const EVENT_BITS: u32 = (libc::EPOLLIN | libc::EPOLLPRI) as u32;

/// An event in an epoll set.
#[derive(Clone, Copy)]
struct Watch {
    epoll: RawFd,
    fd: RawFd,
    events: u32,
    word: u64,
}

static WATCHES: Mutex<Vec<Watch>> = Mutex::new(Vec::new());

fn watches<T>(work: impl FnOnce(&mut Vec<Watch>) -> T) -> T {
    work(&mut WATCHES.lock())
}

/// Removes a number that will refer to another file: as an epoll set and as an event in one.
pub(super) fn closed(fd: RawFd) {
    watches(|all| {
        all.retain(|watch| watch.epoll != fd && watch.fd != fd);
    });
    marks::clear(fd);
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if !ready::is_event(fd) {
        // SAFETY: the arguments are the caller's.
        return unsafe { real::epoll_ctl(epoll, operation, fd, event) };
    }
    // SAFETY: the caller gives null or a valid event.
    let wanted = unsafe { event.as_ref() }.copied();
    let mut asked = wanted;
    if let Some(asked) = &mut asked {
        let readable = if asked.events & EVENT_BITS == 0 { 0 } else { libc::EPOLLIN as u32 };
        asked.events = asked.events & !EVENT_BITS | readable;
    }
    let place = asked.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: the event is a copy of our own, or null as the caller's was.
    let result = unsafe { real::epoll_ctl(epoll, operation, fd, place) };
    if result == 0 {
        watches(|all| {
            if matches!(operation, EPOLL_CTL_MOD | EPOLL_CTL_DEL) {
                all.retain(|watch| (watch.epoll, watch.fd) != (epoll, fd));
            }
            if let (EPOLL_CTL_ADD | EPOLL_CTL_MOD, Some(wanted)) = (operation, wanted) {
                all.push(Watch { epoll, fd, events: wanted.events, word: wanted.u64 });
                // Marked, so that closing the set is seen.
                marks::set(epoll);
            }
        });
    }
    result
}

/// Clears the latches of the events among `reported`; drops those that another waiter cleared
/// first. Returns the number left.
fn take(reported: &mut [epoll_event], watched: &[Watch]) -> usize {
    let mut left = 0;
    for at in 0..reported.len() {
        let mut event = reported[at];
        let mut alike = watched.iter().filter(|watch| watch.word == event.u64).peekable();
        if alike.peek().is_some() && event.events & EVENT_BITS != 0 {
            let taken = alike.find(|watch| ready::is_event(watch.fd) && ready::consume(watch.fd));
            event.events &= !EVENT_BITS;
            event.events |= taken.map_or(0, |watch| watch.events & EVENT_BITS);
            if event.events == 0 {
                continue;
            }
        }
        reported[left] = event;
        left += 1;
    }
    left
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let watched: Vec<Watch> = if marks::is_set(epoll) && world::current().is_some() {
        watches(|all| all.iter().filter(|watch| watch.epoll == epoll).copied().collect())
    } else {
        Vec::new()
    };
    if watched.is_empty() {
        // SAFETY: the arguments are the caller's.
        return unsafe { real::epoll_pwait(epoll, events, count, timeout, mask) };
    }
    let mut deadline = Deadline::after_ms(timeout);
    loop {
        // SAFETY: the arguments are the caller's.
        let result = unsafe { real::epoll_pwait(epoll, events, count, deadline.left_ms(), mask) };
        let Ok(reported) = usize::try_from(result) else { return result };
        // SAFETY: the kernel has filled this many elements of the caller's list.
        let reported = unsafe { std::slice::from_raw_parts_mut(events, reported) };
        let left = take(reported, &watched);
        if left > 0 || deadline.is_over() {
            return left as c_int;
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    if !marks::is_set(epoll) {
        // SAFETY: the arguments are the caller's.
        return unsafe { real::epoll_wait(epoll, events, count, timeout) };
    }
    // SAFETY: as above.
    unsafe { epoll_pwait(epoll, events, count, timeout, ptr::null()) }
}
