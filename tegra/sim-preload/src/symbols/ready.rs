//! Readiness of events: what `poll`, `select` and `epoll` share.
//!
//! nvgpu's poll of an event answers `POLLIN | POLLPRI` once per posted event and forgets it then
//! (os/linux/ioctl_tsg.c:gk20a_event_id_poll). The simulator's events are eventfds, so the latch is
//! taken by reading it after a poll that reported it; of several waiters one gets it.

use std::os::fd::RawFd;
use std::ptr;
use std::time::{Duration, Instant};

use libc::timespec;

use crate::files::{Known, marks};
use crate::real::system_call;
use crate::world::{self, World};

/// What an event may report.
pub(super) const EVENT_BITS: i16 = libc::POLLIN | libc::POLLPRI;

/// Whether `fd` is an event of the simulator's.
pub(super) fn is_event(fd: RawFd) -> bool {
    marks::is_set(fd) && world::with(|world| is_event_of(world, fd)).unwrap_or(false)
}

/// As [`is_event`], when the world is at hand.
pub(super) fn is_event_of(world: &World, fd: RawFd) -> bool {
    matches!(world.files.find(fd), Some(Known::Event(_)))
}

/// Takes the latch of an event; false when somebody else has got it.
pub(super) fn consume(fd: RawFd) -> bool {
    let mut count = 0_u64;
    // SAFETY: the buffer has the eight bytes that an eventfd gives; it does not block, because
    // events are made non-blocking when they are given to the program.
    8 == unsafe { system_call(libc::SYS_read, [fd as usize, &raw mut count as usize, 8, 0]) }
}

/// How long a wait may still take. It is the GPU's time: work that takes microseconds on silicon takes here
/// as long as the host needs, and a wait is not over before it is done.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    end: Option<Instant>,
    /// Whether it is over as soon as nothing is left.
    rested: bool,
}

impl Deadline {
    /// From a timeout; none waits for ever. A wait begins, so the GPU holds no doorbell back.
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        world::with(|world| world.orin.gpu().hurry());
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // Who does not wait only looks.
        Self { end, rested: timeout.is_some_and(|timeout| timeout.is_zero()) }
    }

    /// From milliseconds, of which a negative number waits for ever.
    pub(super) fn after_ms(timeout: i32) -> Self {
        Self::after(u64::try_from(timeout).ok().map(Duration::from_millis))
    }

    /// What is left; none waits for ever.
    pub(super) fn left(self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Whether nothing is left. When that is so for the first time, the GPU comes to rest, and one more
    /// look is due.
    pub(super) fn is_over(&mut self) -> bool {
        let over = self.left().is_some_and(|left| left.is_zero());
        if over && !self.rested {
            self.rested = true;
            world::with(|world| world.orin.gpu().drain());
            return false;
        }
        over
    }

    /// What is left in milliseconds, rounded up; -1 waits for ever.
    pub(super) fn left_ms(self) -> i32 {
        self.left().map_or(-1, |left| {
            i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        })
    }
}

/// A C timeout as a duration; none for null.
///
/// # Safety
/// `timeout` is null or valid.
pub(super) unsafe fn duration(timeout: *const timespec) -> Option<Duration> {
    // SAFETY: the caller vouches for it.
    let timeout = unsafe { timeout.as_ref() }?;
    let nanoseconds = u32::try_from(timeout.tv_nsec).unwrap_or(0);
    Some(Duration::new(u64::try_from(timeout.tv_sec).unwrap_or(0), nanoseconds))
}

/// A duration in C's form.
pub(super) fn c_timeout(left: Option<Duration>) -> Option<timespec> {
    left.map(|left| timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    })
}

/// The address of a timeout, or null.
pub(super) fn address(timeout: Option<&timespec>) -> *const timespec {
    timeout.map_or(ptr::null(), ptr::from_ref)
}
