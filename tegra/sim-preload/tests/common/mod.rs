//! One channel, set up through libc's functions alone, and torn down again.
#![expect(clippy::unwrap_used, reason = "integration tests")]

use std::ffi::{CStr, c_int, c_void};
use std::{io, ptr};

pub(crate) fn open(path: &CStr) -> c_int {
    // SAFETY: a C string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    assert!(fd >= 0, "{path:?}: {}", io::Error::last_os_error());
    fd
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: a number of the test's own.
    assert_eq!(unsafe { libc::close(fd) }, 0, "{fd}: {}", io::Error::last_os_error());
}

/// An ioctl whose structure is passed as 32-bit words.
pub(crate) fn ioctl<const N: usize>(fd: c_int, request: u32, mut words: [u32; N]) -> [u32; N] {
    // SAFETY: the words are as long as the size bits of the request.
    let result = unsafe { libc::ioctl(fd, request.into(), words.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    assert!(result >= 0, "request {request:#x} of {fd}: {error}");
    assert_eq!((request >> 16 & 0x3fff) as usize, 4 * N, "{request:#x}: size");
    words
}

/// The errno of a refused ioctl.
pub(crate) fn refused<const N: usize>(fd: c_int, request: u32, mut words: [u32; N]) -> i32 {
    // SAFETY: as above.
    let result = unsafe { libc::ioctl(fd, request.into(), words.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    assert_eq!(result, -1, "request {request:#x} of {fd}");
    error.raw_os_error().unwrap()
}

pub(crate) fn map(fd: c_int, bytes: usize) -> *mut u32 {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, wherever the kernel likes.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, both, libc::MAP_SHARED, fd, 0) };
    assert_ne!(memory, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    memory.cast()
}

pub(crate) fn unmap(memory: *mut u32, bytes: usize) {
    // SAFETY: a mapping of the test's own.
    assert_eq!(unsafe { libc::munmap(memory.cast::<c_void>(), bytes) }, 0);
}

/// A buffer: handle, dma-buf, mapping.
pub(crate) struct Buffer {
    pub(crate) nvmap: c_int,
    pub(crate) handle: u32,
    pub(crate) fd: c_int,
    pub(crate) cpu: *mut u32,
    pub(crate) bytes: usize,
}

impl Buffer {
    pub(crate) fn new(nvmap: c_int, bytes: usize, caching: u32) -> Self {
        let [_, handle] = ioctl(nvmap, 0xc008_4e00, [bytes as u32, 0]);
        ioctl(nvmap, 0x4014_4e03, [handle, 1 << 30, caching, 4096, 0]);
        let [fd, _] = ioctl(nvmap, 0xc008_4e0f, [0, handle]);
        let cpu = map(fd as c_int, bytes);
        // SAFETY: the mapping is as long.
        unsafe { ptr::write_bytes(cpu.cast::<u8>(), 0, bytes) };
        Self { nvmap, handle, fd: fd as c_int, cpu, bytes }
    }

    pub(crate) fn store(&self, word: usize, value: u32) {
        // SAFETY: tests stay within the buffer.
        unsafe { self.cpu.add(word).write_volatile(value) }
    }

    pub(crate) fn load(&self, word: usize) -> u32 {
        // SAFETY: tests stay within the buffer.
        unsafe { self.cpu.add(word).read_volatile() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        unmap(self.cpu, self.bytes);
        close(self.fd);
        // SAFETY: the handle goes by value.
        unsafe { libc::ioctl(self.nvmap, 0x4e04, u64::from(self.handle)) };
    }
}

/// Bytes of a doorbell mapping.
pub(crate) const PAGE: usize = 0x1_0000;

/// A channel with all its objects.
pub(crate) struct Channel {
    nvmap: c_int,
    pub(crate) ctrl: c_int,
    space: c_int,
    group: c_int,
    channel: c_int,
    pub(crate) event: c_int,
    ring: Option<Buffer>,
    userd: Option<Buffer>,
    work: Option<Buffer>,
    va: u64,
    pub(crate) token: u32,
    pub(crate) page: *mut u32,
    submitted: u32,
}

impl Channel {
    pub(crate) fn new() -> Self {
        let nvmap = open(c"/dev/nvmap");
        let ctrl = open(c"/dev/nvgpu/igpu0/ctrl");
        let mut words = [0; 16];
        // Flags 2, from 0x200000 to 0xff00000000.
        (words[2], words[4], words[7]) = (2, 0x20_0000, 0xff);
        let space = ioctl(ctrl, 0xc040_4708, words)[1] as c_int;
        for window in [0xfd, 0xfe] {
            ioctl(space, 0xc020_4106, [0x40000, 0, 4096, 1, 0, window, 0, 0]);
        }
        let group = ioctl(ctrl, 0xc018_4709, [0; 6])[0] as c_int;
        let veid = ioctl(group, 0xc010_5412, [1, space as u32, 0, 0])[2];
        let (ring, userd) = (Buffer::new(nvmap, 8192, 1), Buffer::new(nvmap, 4096, 1));
        let work = Buffer::new(nvmap, PAGE, 2);
        let channel = ioctl(ctrl, 0xc004_470b, [u32::MAX])[0] as c_int;
        ioctl(space, 0xc004_4101, [channel as u32]);
        ioctl(group, 0xc018_540b, [channel as u32, veid, 0, 0, 0, 0]);
        ioctl(channel, 0x4008_4877, [1, 0]);
        let mut words = [0; 26];
        words[..5].copy_from_slice(&[1024, 0, 0xa, userd.fd as u32, ring.fd as u32]);
        let token = ioctl(channel, 0xc068_4880, words)[5];
        ioctl(channel, 0xc010_486c, [0xc7c0, 0, 0, 0]);
        let event = ioctl(group, 0xc010_5407, [1, 2, 0, 0])[2] as c_int;
        // compr_kind -1, incompr_kind 0.
        let words = [0, 0xffff, work.fd as u32, 4096, 0, 0, 0, 0, 0, 0];
        let mapped = ioctl(space, 0xc028_4107, words);
        let va = u64::from(mapped[8]) | u64::from(mapped[9]) << 32;
        let page = map(ctrl, PAGE);
        let (ring, userd, work) = (Some(ring), Some(userd), Some(work));
        Self {
            nvmap,
            ctrl,
            space,
            group,
            channel,
            event,
            ring,
            userd,
            work,
            va,
            token,
            page,
            submitted: 0,
        }
    }

    /// Writes a release of the next number and an interrupt to the ring; the caller rings the
    /// doorbell.
    pub(crate) fn submit(&mut self) -> u32 {
        self.submit_behind(&[])
    }

    /// Like [`Channel::submit`], after other words.
    pub(crate) fn submit_behind(&mut self, words: &[u32]) -> u32 {
        self.submitted += 1;
        let number = self.submitted;
        let (ring, userd) = (self.ring.as_ref().unwrap(), self.userd.as_ref().unwrap());
        let work = self.work.as_ref().unwrap();
        let (semaphore, body) = (self.va + 0x8000, self.va + 0x100 * u64::from(number));
        let (low, high) = (semaphore as u32, (semaphore >> 32) as u32);
        let release = [0x2005_0017, low, high, number, 0, 0x0310_0001, 0x2001_0008, 0];
        let words = [words, &release].concat();
        for (at, word) in (0x40 * number as usize..).zip(&words) {
            work.store(at, *word);
        }
        let entry = body | (words.len() as u64) << 42 | 1 << 41;
        let slot = 2 * (number as usize - 1);
        ring.store(slot, entry as u32);
        ring.store(slot + 1, (entry >> 32) as u32);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        userd.store(0x8c / 4, number);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        number
    }

    /// The semaphore's value.
    pub(crate) fn value(&self) -> u32 {
        self.work.as_ref().unwrap().load(0x8000 / 4)
    }

    /// Waits by poll until the semaphore has a value.
    pub(crate) fn wait(&self, number: u32) {
        while self.value() != number {
            let mut list = [libc::pollfd { fd: self.event, events: libc::POLLIN, revents: 0 }];
            // SAFETY: a list of one.
            let count = unsafe { libc::poll(list.as_mut_ptr(), 1, 60_000) };
            assert_eq!(count, 1, "semaphore {} instead of {number}: no event", self.value());
        }
    }

    /// Rings the doorbell as most programs do.
    pub(crate) fn ring(&self) {
        // SAFETY: the doorbell page has this register.
        unsafe { self.page.add(0x24).write_volatile(self.token) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        unmap(self.page, PAGE);
        for fd in [self.event, self.channel] {
            close(fd);
        }
        ioctl(self.space, 0xc008_4105, [self.va as u32, (self.va >> 32) as u32]);
        (self.ring, self.userd, self.work) = (None, None, None);
        for fd in [self.group, self.space, self.ctrl, self.nvmap] {
            close(fd);
        }
    }
}
