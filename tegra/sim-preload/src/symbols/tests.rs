//! Events through `poll`, `select` and `epoll`, as a program calls them.

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{POLLIN, POLLOUT, POLLPRI, pollfd};
use tegra_sim::driver::{FdTable, FileId, NewFile};

use crate::real::system_call;
use crate::world;

/// An event of the program, and the driver's end of it.
struct Event {
    program: RawFd,
    driver: RawFd,
}

impl Event {
    fn new() -> Self {
        // SAFETY: a new eventfd, of which both ends are ours.
        let (given, driver) = unsafe {
            let given = libc::eventfd(0, libc::EFD_CLOEXEC);
            let driver = system_call(
                libc::SYS_fcntl,
                [given as usize, libc::F_DUPFD_CLOEXEC as usize, 0, 0],
            );
            (OwnedFd::from_raw_fd(given), driver as RawFd)
        };
        let file = NewFile::Event(FileId(u64::MAX), given);
        let program = world::with_started(|world| world.files.install(file).unwrap()).unwrap();
        Self { program, driver }
    }

    fn post(&self) {
        let one = 1_u64;
        // SAFETY: an eventfd takes eight bytes.
        let written = unsafe {
            system_call(libc::SYS_write, [self.driver as usize, &raw const one as usize, 8, 0])
        };
        assert_eq!(written, 8);
    }

    fn poll(&self, events: i16, timeout: i32) -> (i32, i16) {
        let mut list = [pollfd { fd: self.program, events, revents: -1 }];
        // SAFETY: a list of one.
        (unsafe { libc::poll(list.as_mut_ptr(), 1, timeout) }, list[0].revents)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the test's own numbers.
        unsafe {
            libc::close(self.program);
            libc::close(self.driver);
        }
    }
}

#[test]
fn a_poll_clears_the_latch() {
    let event = Event::new();
    assert_eq!(event.poll(POLLIN | POLLPRI, 0), (0, 0));
    event.post();
    event.post();
    assert_eq!(event.poll(POLLIN | POLLPRI, -1), (1, POLLIN | POLLPRI));
    assert_eq!(event.poll(POLLIN | POLLPRI, 0), (0, 0), "one latch for any number of posts");
    event.post();
    assert_eq!(event.poll(POLLPRI, 1000), (1, POLLPRI));
    event.post();
    assert_eq!(event.poll(POLLOUT, 0), (0, 0), "not requested, not cleared");
    assert_eq!(event.poll(POLLIN, 0), (1, POLLIN));
}

#[test]
fn ppoll_clears_the_latch_too() {
    unsafe extern "C" {
        fn __poll_chk(list: *mut pollfd, count: u64, timeout: i32, object: usize) -> i32;
        fn __ppoll_chk(
            list: *mut pollfd,
            count: u64,
            timeout: *const libc::timespec,
            mask: *const libc::sigset_t,
            object: usize,
        ) -> i32;
    }
    let event = Event::new();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut one = [pollfd { fd: event.program, events: POLLIN, revents: 0 }];
    let list = one.as_mut_ptr();
    let size = size_of::<pollfd>();
    // SAFETY: lists of one; an object larger than the list is as good.
    unsafe {
        for again in [1, 0] {
            if again == 1 {
                event.post();
            }
            assert_eq!(libc::ppoll(list, 1, &raw const now, ptr::null()), again);
        }
        event.post();
        assert_eq!(__poll_chk(list, 1, 0, size), 1);
        event.post();
        assert_eq!(__ppoll_chk(list, 1, &raw const now, ptr::null(), 2 * size), 1);
        assert_eq!(libc::poll(list, 1, 0), 0);
    }
}

#[test]
fn one_waiter_gets_an_event() {
    let event = Event::new();
    // SAFETY: a number of this process.
    let copy = unsafe { libc::dup(event.program) };
    event.post();
    let mut list = [event.program, copy].map(|fd| pollfd { fd, events: POLLIN, revents: 0 });
    // SAFETY: a list of two.
    assert_eq!(unsafe { libc::poll(list.as_mut_ptr(), 2, 0) }, 1);
    assert_eq!(list.map(|one| one.revents), [POLLIN, 0]);
    // SAFETY: as above.
    unsafe { libc::close(copy) };
}

#[test]
fn select_clears_the_latch_for_reading_and_exceptions() {
    let event = Event::new();
    let fd = event.program;
    // SAFETY: the sets and times are local, the number is below FD_SETSIZE.
    let select = |read: bool, except: bool, by_pselect: bool| unsafe {
        let mut sets: [libc::fd_set; 2] = MaybeUninit::zeroed().assume_init();
        for (set, wanted) in sets.iter_mut().zip([read, except]) {
            if wanted {
                libc::FD_SET(fd, set);
            }
        }
        let [mut read, mut except] = sets;
        let (read, except) = (&raw mut read, &raw mut except);
        let count = if by_pselect {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::pselect(fd + 1, read, ptr::null_mut(), except, &raw const now, ptr::null())
        } else {
            let mut now = libc::timeval { tv_sec: 0, tv_usec: 0 };
            libc::select(fd + 1, read, ptr::null_mut(), except, &raw mut now)
        };
        (count, libc::FD_ISSET(fd, read), libc::FD_ISSET(fd, except))
    };
    for by_pselect in [false, true] {
        event.post();
        assert_eq!(select(true, true, by_pselect), (2, true, true));
        assert_eq!(select(true, true, by_pselect), (0, false, false));
        event.post();
        assert_eq!(select(false, true, by_pselect), (1, false, true));
        assert_eq!(select(true, false, by_pselect), (0, false, false));
    }
}

#[test]
fn epoll_clears_the_latch_of_a_reported_event() {
    let (event, other) = (Event::new(), Event::new());
    // SAFETY: the lists are local and as long as said.
    unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let both = (libc::EPOLLIN | libc::EPOLLPRI) as u32;
        for (one, word) in [(&event, 7), (&other, 8)] {
            let mut wanted = libc::epoll_event { events: both, u64: word };
            let add = libc::EPOLL_CTL_ADD;
            assert_eq!(libc::epoll_ctl(epoll, add, one.program, &raw mut wanted), 0);
        }
        let wait = |by_pwait: bool| {
            let mut list: [libc::epoll_event; 4] = MaybeUninit::zeroed().assume_init();
            let list_at = list.as_mut_ptr();
            let count = if by_pwait {
                libc::epoll_pwait(epoll, list_at, 4, 0, ptr::null())
            } else {
                libc::epoll_wait(epoll, list_at, 4, 0)
            };
            let reported = list.iter().take(usize::try_from(count).unwrap());
            reported.map(|event| (event.events, event.u64)).collect::<Vec<_>>()
        };
        for by_pwait in [false, true] {
            event.post();
            assert_eq!(wait(by_pwait), [(both, 7)]);
            assert_eq!(wait(by_pwait), []);
        }
        let mut only_urgent = libc::epoll_event { events: libc::EPOLLPRI as u32, u64: 9 };
        let modify = libc::EPOLL_CTL_MOD;
        assert_eq!(libc::epoll_ctl(epoll, modify, event.program, &raw mut only_urgent), 0);
        event.post();
        assert_eq!(wait(false), [(libc::EPOLLPRI as u32, 9)]);
        let delete = libc::EPOLL_CTL_DEL;
        assert_eq!(libc::epoll_ctl(epoll, delete, event.program, ptr::null_mut()), 0);
        event.post();
        assert_eq!(wait(false), []);
        assert_eq!(event.poll(POLLIN, 0), (1, POLLIN), "not in the set any more, not cleared");
        libc::close(epoll);
    }
}

#[test]
fn events_cannot_be_read_or_written() {
    let event = Event::new();
    event.post();
    let mut word = 1_u64;
    let place = &raw mut word;
    // SAFETY: the buffer has eight bytes.
    let results = unsafe {
        [libc::read(event.program, place.cast(), 8), libc::write(event.program, place.cast(), 8)]
    };
    assert_eq!(results, [-1, -1]);
    assert_eq!(event.poll(POLLIN, 0), (1, POLLIN), "still latched");
}

#[test]
fn an_event_is_removed_when_its_number_is_reused_unseen() {
    let event = Event::new();
    // SAFETY: the numbers are this test's own; no other thread can reuse the freed one in between,
    // because `dup3` replaces it in the raw call itself.
    unsafe {
        let stranger = libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        let [from, to] = [stranger as usize, event.program as usize];
        system_call(libc::SYS_dup3, [from, to, libc::O_CLOEXEC as usize, 0]);
        assert_eq!(event.poll(POLLIN, 0), (1, POLLIN));
        assert_eq!(event.poll(POLLIN, 0), (1, POLLIN), "the program's own eventfd keeps its count");
        libc::close(stranger);
    }
}
