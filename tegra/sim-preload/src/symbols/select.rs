//! `select` and `pselect`.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use libc::{FD_CLR, FD_ISSET, FD_SET, FD_SETSIZE, fd_set, sigset_t, timespec, timeval};

use super::ready::{self, Deadline};
use crate::files::marks;
use crate::real;

/// A copy of a caller's set; null is the empty one.
///
/// # Safety
/// `set` is null or valid.
unsafe fn copy(set: *const fd_set) -> fd_set {
    // SAFETY: the caller guarantees the set; all-zero is the empty one.
    unsafe { if set.is_null() { MaybeUninit::zeroed().assume_init() } else { set.read() } }
}

fn has(set: &fd_set, fd: c_int) -> bool {
    // SAFETY: callers stay below FD_SETSIZE.
    unsafe { FD_ISSET(fd, set) }
}

fn add(set: &mut fd_set, fd: c_int) {
    // SAFETY: callers stay below FD_SETSIZE.
    unsafe { FD_SET(fd, set) }
}

fn remove(set: &mut fd_set, fd: c_int) {
    // SAFETY: callers stay below FD_SETSIZE.
    unsafe { FD_CLR(fd, set) }
}

/// The three sets of a call.
#[derive(Clone, Copy)]
struct Sets {
    read: fd_set,
    write: fd_set,
    except: fd_set,
}

impl Sets {
    fn count(&self, limit: c_int) -> c_int {
        let one =
            |fd| [&self.read, &self.write, &self.except].iter().filter(|set| has(set, fd)).count();
        (0..limit).map(one).sum::<usize>() as c_int
    }
}

/// Selects events as readable, and reports a raised one in each set that the caller passed it in.
///
/// # Safety
/// As for `pselect`.
unsafe fn select_events(
    limit: c_int,
    wanted: &Sets,
    events: &[c_int],
    mut deadline: Deadline,
    mask: *const sigset_t,
) -> Result<(c_int, Sets), c_int> {
    loop {
        let mut got = *wanted;
        for fd in events {
            if has(&got.except, *fd) {
                remove(&mut got.except, *fd);
                add(&mut got.read, *fd);
            }
        }
        let left = ready::c_timeout(deadline.left());
        let timeout = ready::address(left.as_ref());
        let (read, write, except) = (&raw mut got.read, &raw mut got.write, &raw mut got.except);
        // SAFETY: the sets are our own, the mask is the caller's.
        let result = unsafe { real::pselect(limit, read, write, except, timeout, mask) };
        if result < 0 {
            return Err(result);
        }
        for fd in events {
            if has(&got.read, *fd) {
                remove(&mut got.read, *fd);
                if ready::consume(*fd) {
                    for (set, asked) in
                        [(&mut got.read, &wanted.read), (&mut got.except, &wanted.except)]
                    {
                        if has(asked, *fd) {
                            add(set, *fd);
                        }
                    }
                }
            }
        }
        let count = got.count(limit);
        if count > 0 || deadline.is_over() {
            return Ok((count, got));
        }
    }
}

/// The call's result when an event of the simulator is in its sets.
///
/// # Safety
/// As for `pselect`.
unsafe fn simulated(
    limit: c_int,
    places: [*mut fd_set; 3],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Option<(c_int, Deadline)> {
    if !(0..=FD_SETSIZE as c_int).contains(&limit) {
        return None;
    }
    // SAFETY: the caller guarantees the sets.
    let [read, write, except] = places.map(|place| unsafe { copy(place) });
    let wanted = Sets { read, write, except };
    let events: Vec<c_int> = (0..limit)
        .filter(|fd| marks::is_set(*fd) && (has(&wanted.read, *fd) || has(&wanted.except, *fd)))
        .filter(|fd| ready::is_event(*fd))
        .collect();
    if events.is_empty() {
        return None;
    }
    let deadline = Deadline::after(timeout);
    // SAFETY: as above.
    let (count, got) = match unsafe { select_events(limit, &wanted, &events, deadline, mask) } {
        Ok(answer) => answer,
        Err(failed) => return Some((failed, deadline)),
    };
    for (place, set) in places.into_iter().zip([got.read, got.write, got.except]) {
        if !place.is_null() {
            // SAFETY: the caller passed a writable set.
            unsafe { place.write(set) }
        }
    }
    Some((count, deadline))
}

/// Like Linux, it writes the remaining time back.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn select(
    limit: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the arguments are the caller's.
    unsafe {
        let wait = timeout.as_ref().map(|time| {
            let (seconds, micros) = (time.tv_sec, time.tv_usec);
            Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
                + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
        });
        let Some((count, deadline)) = simulated(limit, [read, write, except], wait, ptr::null())
        else {
            return real::select(limit, read, write, except, timeout);
        };
        if let (Some(place), Some(left)) = (timeout.as_mut(), deadline.left()) {
            place.tv_sec = left.as_secs() as i64;
            place.tv_usec = i64::from(left.subsec_micros());
        }
        count
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pselect(
    limit: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the arguments are the caller's.
    unsafe {
        match simulated(limit, [read, write, except], ready::duration(timeout), mask) {
            Some((count, _)) => count,
            None => real::pselect(limit, read, write, except, timeout, mask),
        }
    }
}
