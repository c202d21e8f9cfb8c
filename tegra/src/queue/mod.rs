//! A channel's queue: free ring entries, completed work, and the order of memory writes at
//! submission.
//!
//! A submission consists of bodies, streams that were recorded once and never change, and a tail: a
//! small stream that releases the channel's timeline with the submission's own value. The pool of
//! tails has one slot for each ring entry, so that a patched tail is never read for another
//! submission. A submit is a few stores, one GP_PUT, one doorbell and no system call.
//!
//! ```text
//! ring      ... | body | body | tail | body | tail |  free  ...
//! tail pool ... |      |      |  v   |      | v+1  |        ...     timeline: v-1 -> v -> v+1
//! ```
//!
//! Only the timeline frees entries. GP_GET would free an entry when its stream begins, too early to
//! patch a tail, and it is written back late.
//!
//! Owns the bookkeeping, over a [`Port`] that accesses memory; [`MappedPort`] does so with real
//! barriers. Mapping memory, waiting and recovering from faults belong to [`crate::context`]. Its
//! callers keep bodies alive and unchanged until their submission has completed.
//!
//! # Ordering
//!
//! The GPU is an observer outside the CPUs' own coherence domain. It reads an entry as soon as
//! GP_PUT covers it, and reads GP_PUT again when the doorbell is rung, at the latest. A submit
//! therefore needs two barriers, and a completion one:
//!
//! 1. Ring entries and tail words before GP_PUT: otherwise the GPU may fetch a stale entry or
//!    release a stale value. All are stores to Normal memory, cached or write-combined, which
//!    AArch64 may make visible in any order.
//! 2. GP_PUT before the doorbell: otherwise the GPU may read GP_PUT too early, and the work waits
//!    until the next doorbell. The doorbell is Device memory, which is not ordered after stores to
//!    Normal memory.
//! 3. The load of the timeline before loads of what the GPU wrote.
//!
//! Since the observer is a device, the barriers must reach the outer shareable domain or the full
//! system: 1 and 2 are `dmb sy`, which was seen to work on hardware, 3 is `dmb oshld`, which the
//! architecture requires and Linux uses around device memory. The compiler's own release and
//! acquire fences reach the inner domain only and are not enough in 1 and 2. The GPU's side of 3 is
//! the wait for idle and the system barrier of a [`Release`].
//!
//! `tests/suite/queue_model.rs` explores every order that these rules allow, at every pace of the
//! GPU, and fails as soon as any one of the three is left out.

mod port;
mod ring;

pub use port::{MappedPort, PortMemory};

use crate::address::{AddressError, GpuAddress};
use crate::class::host;
use crate::pushbuffer::{
    Acquire, Condition, Entry, EntryError, Operation, OperationError, Payload, Release,
};
use ring::Ring;

/// The memory and the doorbell of one channel.
///
/// Stores may become visible to the GPU in any order unless a barrier separates them. Every index
/// is below the number of ring entries.
pub trait Port {
    /// Stores a ring entry.
    fn store_entry(&mut self, index: u32, entry: u64);
    /// Stores word `word` of tail `index`.
    fn store_tail(&mut self, index: u32, word: usize, value: u32);
    /// Orders entries and tail words before [`Port::store_put`].
    fn order_work_before_put(&mut self);
    /// Stores GP_PUT.
    fn store_put(&mut self, index: u32);
    /// Orders GP_PUT before [`Port::ring_doorbell`].
    fn order_put_before_doorbell(&mut self);
    /// Stores the channel's token to the doorbell.
    fn ring_doorbell(&mut self);
    /// Loads the timeline's payload, ordered before later loads of what the GPU wrote.
    fn load_timeline(&self) -> u64;
}

/// Words of a tail: a release of six, an interrupt of two.
pub const TAIL_WORDS: usize = 8;
/// Words of a tail without an interrupt.
const QUIET_WORDS: usize = 6;
/// Bytes from one tail to the next.
pub const TAIL_BYTES: u64 = 4 * TAIL_WORDS as u64;
/// Position of the payload's low word in a tail, after one header; its high word follows.
const PAYLOAD_WORD: usize =
    1 + (host::SEM_PAYLOAD_LO.address() - host::SEM_ADDR_LO.address()) as usize / 4;

/// Addresses of a queue's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Ring entries, a power of two from 2 to 2^20.
    pub entries: u32,
    /// The pool of tails: [`TAIL_BYTES`] for each ring entry.
    pub tails: GpuAddress,
    /// The timeline: 16 bytes, payload and timestamp.
    pub timeline: GpuAddress,
    /// The payload in the timeline's memory now.
    pub start: u64,
}

/// Error of a queue that cannot be created or used any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Unusable address of tails or timeline.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A tail that no ring entry can address.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// An invalid number of entries.
    #[error("a ring of {entries} entries: must be a power of two from 2 to {}", Ring::MAX_ENTRIES)]
    Entries {
        /// The number.
        entries: u32,
    },
    /// The timeline's memory contains a value that this queue has not submitted, or an older one.
    #[error(
        "timeline holds {found:#x}, outside {completed:#x} to {submitted:#x}: memory is corrupt"
    )]
    Timeline {
        /// The value in memory.
        found: u64,
        /// The last value seen.
        completed: u64,
        /// The last value submitted.
        submitted: u64,
    },
}

impl From<AddressError> for QueueError {
    fn from(error: AddressError) -> Self {
        OperationError::from(error).into()
    }
}

/// Error of a submission. Nothing has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Earlier work must complete first.
    #[error("the ring has room for {room} entries, {needed} are needed: wait for earlier work")]
    Full {
        /// Entries needed, with the tail.
        needed: usize,
        /// Entries free.
        room: usize,
    },
    /// The submission has more entries than the ring.
    #[error("{needed} entries never fit a ring that takes {capacity} at once")]
    TooLong {
        /// Entries needed, with the tail.
        needed: usize,
        /// Maximum number of entries in flight.
        capacity: usize,
    },
    /// The queue cannot be used any further.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A point on a queue's timeline: the value that a submission releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point(u64);

impl Point {
    /// The timeline's payload at this point.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// Completion interrupt, to wake pollers of the TSG's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// None: the CPU polls memory.
    Quiet,
    /// Raises an interrupt that wakes waiters of every channel.
    Interrupt,
}

/// Returns `true` for a valid number of ring entries.
pub(crate) const fn is_ring_size(entries: u32) -> bool {
    Ring::fits(entries)
}

/// A channel's queue.
#[derive(Clone, Debug)]
pub struct Queue<P> {
    port: P,
    ring: Ring,
    tails: GpuAddress,
    timeline: GpuAddress,
}

impl<P: Port> Queue<P> {
    /// A queue on an empty ring. Writes the constant words of every tail. [`QueueError`] for a bad
    /// number of entries, or memory that is misaligned or ends above 2^40.
    pub fn new(mut port: P, config: QueueConfig) -> Result<Self, QueueError> {
        let QueueConfig { entries, tails, timeline, start } = config;
        let ring = Ring::new(entries, start).ok_or(QueueError::Entries { entries })?;
        let mut words = Vec::with_capacity(TAIL_WORDS);
        let release = Release::new(timeline, Payload::Long(start))?.with_timestamp()?;
        Operation::Release(release).encode(&mut words);
        Operation::NonStallInterrupt.encode(&mut words);
        // The last tail is the highest: if its address fits, all do.
        let last = tails.offset(u64::from(entries - 1) * TAIL_BYTES)?;
        Entry::new(last, words.len())?;
        for index in 0..entries {
            for (word, value) in words.iter().enumerate() {
                port.store_tail(index, word, *value);
            }
        }
        Ok(Self { port, ring, tails, timeline })
    }

    /// Submits `bodies` in order, and returns the point that the timeline reaches when all are
    /// done.
    ///
    /// The bodies must stay mapped and unchanged until then.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing has been written then.
    pub fn submit(&mut self, bodies: &[Entry], wake: Wake) -> Result<Point, SubmitError> {
        let needed = bodies.len() + 1;
        let capacity = self.ring.capacity();
        if needed > capacity {
            return Err(SubmitError::TooLong { needed, capacity });
        }
        if needed > self.ring.room() {
            self.poll()?;
            let room = self.ring.room();
            if needed > room {
                return Err(SubmitError::Full { needed, room });
            }
        }
        let slot = self.ring.index(bodies.len());
        let words = match wake {
            Wake::Quiet => QUIET_WORDS,
            Wake::Interrupt => TAIL_WORDS,
        };
        let tail = self.tails.offset(u64::from(slot) * TAIL_BYTES).map_err(QueueError::from)?;
        let tail = Entry::new(tail, words).map_err(QueueError::from)?;

        let value = self.ring.next_value();
        self.port.store_tail(slot, PAYLOAD_WORD, value as u32);
        self.port.store_tail(slot, PAYLOAD_WORD + 1, (value >> 32) as u32);
        for (offset, entry) in bodies.iter().chain([&tail]).enumerate() {
            self.port.store_entry(self.ring.index(offset), entry.encode());
        }
        self.ring.submit(needed);
        self.port.order_work_before_put();
        self.port.store_put(self.ring.index(0));
        self.port.order_put_before_doorbell();
        self.port.ring_doorbell();
        Ok(Point(value))
    }

    /// Reads the timeline, frees ring space, and returns the last point reached.
    pub fn poll(&mut self) -> Result<Point, QueueError> {
        let found = self.port.load_timeline();
        if self.ring.complete(found) {
            Ok(Point(found))
        } else {
            let (completed, submitted) = (self.ring.completed(), self.ring.submitted());
            Err(QueueError::Timeline { found, completed, submitted })
        }
    }

    /// Returns `true` if the GPU has reached `point`. Reads memory only if it had not at the last
    /// poll.
    pub fn is_reached(&mut self, point: Point) -> Result<bool, QueueError> {
        Ok(self.ring.has_completed(point.0) || {
            self.poll()?;
            self.ring.has_completed(point.0)
        })
    }

    /// The acquire with which another channel's stream waits for `point`. It cannot fail: the
    /// timeline of a queue is aligned.
    pub fn acquire(&self, point: Point) -> Result<Acquire, OperationError> {
        Acquire::new(self.timeline, Payload::Long(point.0), Condition::Reached)
    }

    /// The last point submitted: when it is reached, the queue is idle.
    #[must_use]
    pub const fn last(&self) -> Point {
        Point(self.ring.submitted())
    }

    /// Ring entries that can be written before the next poll.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.ring.room()
    }

    /// The index of the oldest entry that is not free.
    #[must_use]
    pub const fn oldest(&self) -> u32 {
        self.ring.oldest()
    }

    /// Maximum number of ring entries in flight.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// The last timeline value read.
    #[must_use]
    pub const fn completed(&self) -> Point {
        Point(self.ring.completed())
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> &P {
        &self.port
    }

    /// The port, for accesses outside of the queue.
    pub const fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }
}
