//! Doorbell queue: passes tokens from a signal handler to the GPU's thread.
//!
//! Ringing takes no lock, allocates nothing and makes at most one system call, so it is safe in a
//! signal handler. The order of tokens is preserved; if very many wait, further ones become a set of
//! channels, as on hardware. A waiting token of a closed channel does not apply to a later channel
//! with the same number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::channel::userd;
use crate::memory::DmaBuf;

/// Number of queued tokens whose order is preserved.
const SLOTS: usize = 1 << 12;
/// Number of channels that a token can address.
const CHANNELS: u32 = 1 << 12;
/// Number of low bits of a slot that contain GP_PUT.
const PUT_BITS: u32 = 33;
/// Bits of a token: channel 11:0, runlist 22:16. Source: `dev_usermode` of TU104.
const TOKEN_BITS: u32 = 0x007f_0fff;

/// Wakes the GPU's thread.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    /// Changes at every wake-up.
    count: AtomicU32,
    sleeping: AtomicBool,
}

impl Waker {
    /// Ends the sleep, or prevents the next one.
    pub(crate) fn wake(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) {
            // SAFETY: FUTEX_WAKE only takes the address as a key.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.count.as_ptr(),
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    i32::MAX,
                );
            }
        }
    }

    /// Returns the value for [`Waker::sleep`].
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Sleeps until woken since `count` was read, or for `limit`.
    pub(crate) fn sleep(&self, count: u32, limit: Option<Duration>) {
        self.sleeping.store(true, Ordering::SeqCst);
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().min(1 << 30) as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the counter outlives the call, and `limit` is null or points to a timespec that
        // does; the kernel only reads both.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.count.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                count,
                limit,
            );
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }
}

/// Location of a channel's GP_PUT, for ringing threads.
#[derive(Debug, Default)]
struct Put {
    /// Pointer of a leaked `Arc`; null without a channel.
    userd: AtomicPtr<DmaBuf>,
    /// Number of current readers.
    readers: AtomicU32,
    /// Changes whenever a channel opens or closes.
    channel: AtomicU32,
}

impl Put {
    /// Returns GP_PUT, if there is a channel, and the channel's generation, encoded for a slot.
    fn read(&self) -> u64 {
        self.readers.fetch_add(1, Ordering::SeqCst);
        // Read before GP_PUT, so that a value of a later channel counts as the earlier one's and is
        // dropped.
        let channel = self.channel();
        let userd = self.userd.load(Ordering::SeqCst);
        // SAFETY: null, or a pointer whose reference `unregister` drops only when it is unreachable
        // and has no readers.
        let userd = unsafe { userd.as_ref() };
        let put = userd.and_then(|userd| userd.peek_u32(userd::GP_PUT));
        self.readers.fetch_sub(1, Ordering::SeqCst);
        channel << PUT_BITS | put.map_or(0, |put| u64::from(put) + 1)
    }

    /// Returns the generation bits that fit into a slot.
    fn channel(&self) -> u64 {
        u64::from(self.channel.load(Ordering::SeqCst)) & (u64::MAX >> PUT_BITS)
    }

    fn replace(&self, userd: *const DmaBuf) {
        let old = self.userd.swap(userd.cast_mut(), Ordering::SeqCst);
        self.channel.fetch_add(1, Ordering::SeqCst);
        while self.readers.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        if !old.is_null() {
            // SAFETY: the pointer came from `Arc::into_raw` and is unreachable.
            drop(unsafe { Arc::from_raw(old.cast_const()) });
        }
    }
}

/// Queue of tokens.
#[derive(Debug)]
pub(crate) struct Doorbell {
    /// Token plus one in the low 24 bits, releases above; 0 is an empty slot.
    slots: Box<[AtomicU64]>,
    /// GP_PUT plus one by slot, 0 without a channel; the channel's generation above.
    seen_puts: Box<[AtomicU64]>,
    /// Time of the ring by slot.
    times: Box<[AtomicU64]>,
    puts: Box<[Put]>,
    head: AtomicU64,
    tail: AtomicU64,
    /// Channels rung while the slots were full.
    overflow: Box<[AtomicU64]>,
    overflowed: AtomicBool,
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            seen_puts: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            times: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            puts: (0..CHANNELS).map(|_| Put::default()).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            overflow: (0..CHANNELS.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            overflowed: AtomicBool::new(false),
        }
    }

    /// Registers a channel, whose GP_PUT is read whenever its doorbell is rung. Hardware reads it
    /// some time later; reading it at once is deterministic.
    pub(crate) fn register(&self, channel: u16, userd: Arc<DmaBuf>) {
        if let Some(put) = self.puts.get(usize::from(channel)) {
            put.replace(Arc::into_raw(userd));
        }
    }

    /// Unregisters a channel.
    pub(crate) fn unregister(&self, channel: u16) {
        if let Some(put) = self.puts.get(usize::from(channel)) {
            put.replace(std::ptr::null());
        }
    }

    /// Queues a token, with the number of releases that the CPU may have observed and the time.
    /// Tokens with bits outside the two fields are ignored, as by hardware.
    pub(crate) fn ring(&self, token: u32, seen: u64, time: u64) {
        if token & !TOKEN_BITS != 0 {
            return;
        }
        let put = self.puts[(token % CHANNELS) as usize].read();
        let mut tail = self.tail.load(Ordering::Acquire);
        loop {
            if tail.wrapping_sub(self.head.load(Ordering::Acquire)) >= SLOTS as u64 {
                // Full: only the channel is recorded. The GPU compares the token's runlist with the
                // channel's, which is impossible here, so a wrong runlist rings all the same.
                let channel = token % CHANNELS;
                let bit = 1 << (channel % 64);
                self.overflow[(channel / 64) as usize].fetch_or(bit, Ordering::AcqRel);
                self.overflowed.store(true, Ordering::Release);
                return;
            }
            let next = tail.wrapping_add(1);
            match self.tail.compare_exchange(tail, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => tail = now,
            }
        }
        self.seen_puts[tail as usize % SLOTS].store(put, Ordering::Relaxed);
        self.times[tail as usize % SLOTS].store(time, Ordering::Relaxed);
        // This thread owns the slot until it is not 0; the consumer waits for that.
        self.slots[tail as usize % SLOTS]
            .store(seen << 24 | (u64::from(token) + 1), Ordering::Release);
    }

    /// Returns the next token in order. There must be only one consumer.
    pub(crate) fn next(&self) -> Option<Rung> {
        loop {
            let head = self.head.load(Ordering::Acquire);
            if head == self.tail.load(Ordering::Acquire) {
                break;
            }
            let slot = self.slots[head as usize % SLOTS].swap(0, Ordering::AcqRel);
            // 0: the writer was interrupted between claiming the slot and filling it.
            let token = (slot as u32 & 0xff_ffff).checked_sub(1)?;
            let seen_put = self.seen_puts[head as usize % SLOTS].load(Ordering::Relaxed);
            let time = self.times[head as usize % SLOTS].load(Ordering::Relaxed);
            self.head.store(head.wrapping_add(1), Ordering::Release);
            if seen_put >> PUT_BITS != self.puts[(token % CHANNELS) as usize].channel() {
                continue;
            }
            let put = (seen_put & ((1 << PUT_BITS) - 1)).checked_sub(1).map(|put| put as u32);
            return Some(Rung::Token { token, put, seen: slot >> 24, time });
        }
        if self.overflowed.swap(false, Ordering::AcqRel) {
            let words = self.overflow.iter().enumerate();
            let channels = words.flat_map(|(index, word)| {
                let bits = word.swap(0, Ordering::AcqRel);
                (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| index * 64 + bit)
            });
            return Some(Rung::Channels(channels.map(|channel| channel as u16).collect()));
        }
        None
    }

    /// Returns whether no token waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire) == self.tail.load(Ordering::Acquire)
            && !self.overflowed.load(Ordering::Acquire)
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.puts.iter().for_each(|put| put.replace(std::ptr::null()));
    }
}

/// An entry of the queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// A token, GP_PUT of its channel (whatever its runlist), the number of releases that the CPU
    /// may have observed, and the time.
    Token { token: u32, put: Option<u32>, seen: u64, time: u64 },
    /// Channels whose order was lost.
    Channels(Vec<u16>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_does_not_apply_to_a_later_channel() {
        let doorbell = Doorbell::new();
        let begin = |put| {
            let userd = DmaBuf::new(4096).unwrap();
            userd.store_u32(userd::GP_PUT, put).unwrap();
            doorbell.register(511, userd);
        };
        let rung = |put| Some(Rung::Token { token: 511, put: Some(put), seen: 0, time: 0 });
        begin(3);
        doorbell.ring(511, 0, 0);
        assert_eq!(doorbell.next(), rung(3));
        doorbell.ring(511, 0, 0);
        doorbell.unregister(511);
        doorbell.ring(511, 0, 0);
        begin(0);
        assert_eq!(doorbell.next(), None, "both were rung before there was this channel");
        doorbell.ring(511, 0, 0);
        assert_eq!(doorbell.next(), rung(0));
    }

    #[test]
    fn tokens_keep_their_order_and_overflow_into_a_set() {
        let doorbell = Doorbell::new();
        doorbell.ring(0x0080_0000, 0, 0);
        doorbell.ring(0x1000, 0, 0);
        assert!(doorbell.is_empty());
        for n in 0..SLOTS as u32 {
            doorbell.ring((n % 512) | (3 << 16), n.into(), (2 * n).into());
        }
        doorbell.ring(511, 0, 0);
        doorbell.ring(7, 0, 0);
        for n in 0..SLOTS as u32 {
            let (token, seen) = ((n % 512) | (3 << 16), n.into());
            let rung = Rung::Token { token, put: None, seen, time: 2 * seen };
            assert_eq!(doorbell.next(), Some(rung));
        }
        assert_eq!(doorbell.next(), Some(Rung::Channels(vec![7, 511])));
        assert_eq!(doorbell.next(), None);
        assert!(doorbell.is_empty());
    }
}
