//! One queue of a context: the state that outlives its channel, and the channel while it is open.

use std::time::Duration;

use crate::address::GpuAddress;
use crate::buffer::Mailbox;
use crate::channel::{
    Channel, ChannelBuilder, Notice, Notifier, Preemption, RingMemory, Subcontext,
};
use crate::class::host::userd;
use crate::doorbell::Doorbell;
use crate::error::Error;
use crate::fault::Progress;
use crate::local_memory::LocalMemory;
use crate::pushbuffer::{Engine, Entry, Operation, Payload, Release, Windows};
use crate::queue::{
    MappedPort, Point, PortMemory, Queue, QueueConfig, SubmitError, TAIL_BYTES, Wake,
};
use crate::space::AddressSpace;

/// Total time by which a channel may delay switches to others over its life. Correct work delays
/// none. A minute covers months of mishaps, and bounds the time that a hung process can block the
/// desktop.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Layout of a queue's mailbox: the timeline, the stream that configures a new channel, the tails,
/// then for each ring entry a record of two times and the two streams that write it.
const TIMELINE: u64 = 0;
const CONFIGURE: u64 = 256;
const TAILS: u64 = 512;
/// Payload and time of start, payload and time of end.
const RECORD_BYTES: u64 = 32;
/// Two streams of six words, each at a multiple of 32 bytes.
const STREAMS_BYTES: u64 = 64;
/// Offset of the second half of a record or of a pair of streams.
const RECORD_END: u64 = RECORD_BYTES / 2;
const STREAM_END: u64 = STREAMS_BYTES / 2;
/// Offset of the time in a record, after its payload.
const TIME: u64 = 8;

/// Start and end of a submission on the GPU, nanoseconds of its timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time at which the host unit reached it; earlier work of the engine may still have run.
    pub started: u64,
    /// Time at which the engine was idle after it.
    pub finished: u64,
}

#[derive(Debug)]
struct Live {
    queue: Queue<MappedPort>,
    channel: Channel,
}

#[derive(Debug)]
pub(super) struct ContextQueue {
    live: Option<Live>,
    /// `None` while a channel uses it.
    ring: Option<RingMemory>,
    control: Mailbox,
    notifier: Notifier,
    engine: Engine,
    entries: u32,
    /// The timeline while no channel is open: the last value reached, and the last submitted.
    parked: (u64, u64),
    /// The last value reached before each rebuild.
    ended: Vec<u64>,
    /// The entries of a timed submission.
    timed: Vec<Entry>,
}

impl ContextQueue {
    pub(super) fn new(space: &AddressSpace, engine: Engine, entries: u32) -> Result<Self, Error> {
        let ring = RingMemory::new(space.orin(), entries)?;
        // A new channel is configured by a stream and its tail.
        let (needed, capacity) = (2, entries as usize - 1);
        if needed > capacity {
            return Err(SubmitError::TooLong { needed, capacity }.into());
        }
        let slots = u64::from(entries);
        let bytes = TAILS + slots * (TAIL_BYTES + RECORD_BYTES + STREAMS_BYTES);
        let control = Mailbox::new(space, bytes)?;
        let new = Self {
            live: None,
            ring: Some(ring),
            control,
            notifier: Notifier::new(space.orin())?,
            engine,
            entries,
            parked: (0, 0),
            ended: Vec::new(),
            timed: Vec::new(),
        };
        for slot in 0..slots {
            let [begin, end] = new.records(slot);
            let begin = Release::new(new.control.at(begin)?, Payload::Word(1))?;
            let end = Release::new(new.control.at(end)?, Payload::Word(1))?;
            for (place, release) in new.streams(slot).into_iter().zip([begin.at_once(), end]) {
                let mut words = Vec::new();
                Operation::Release(release.with_timestamp()?).encode(&mut words);
                new.control.write_words(place, &words)?;
            }
        }
        Ok(new)
    }

    /// Offsets of start and end of a record.
    fn records(&self, slot: u64) -> [u64; 2] {
        let base = TAILS + u64::from(self.entries) * TAIL_BYTES + slot * RECORD_BYTES;
        [base, base + RECORD_END]
    }

    /// Offsets of the streams that write a record.
    fn streams(&self, slot: u64) -> [u64; 2] {
        let records = u64::from(self.entries) * (TAIL_BYTES + RECORD_BYTES);
        let base = TAILS + records + slot * STREAMS_BYTES;
        [base, base + STREAM_END]
    }

    pub(super) const fn is_open(&self) -> bool {
        self.live.is_some()
    }

    pub(super) fn channel(&self) -> Option<&Channel> {
        self.live.as_ref().map(|live| &live.channel)
    }

    pub(super) fn timeline(&self) -> GpuAddress {
        self.control.address()
    }

    /// Sets the number of rebuilds to that of its context.
    pub(super) fn catch_up(&mut self, epoch: usize) {
        self.ended.resize(epoch, 0);
    }

    /// Opens the channel.
    pub(super) fn open(
        &mut self,
        group: &Subcontext,
        doorbell: &Doorbell,
        preemption: Preemption,
    ) -> Result<(), Error> {
        let orin = group.space().orin();
        let ring = match self.ring.take() {
            Some(ring) => ring,
            // An earlier failed attempt consumed the ring.
            None => RingMemory::new(orin, self.entries)?,
        };
        let channel = ChannelBuilder::open(orin)?
            .bind_space(group)?
            .bind_group()?
            .disable_watchdog()?
            .set_up(ring)?
            .allocate_object(self.engine)?;
        channel.set_notifier(&self.notifier)?;
        // A driver that refuses this limit has its own, far above the duration of the submitted
        // chains.
        let _ = channel.set_timeout(SWITCH_TIMEOUT);
        if self.engine == Engine::Compute && preemption != Preemption::default() {
            channel.set_preemption(preemption)?;
        }
        let (_, submitted) = self.parked;
        // The new channel releases later values; the old one may not have reached this one.
        self.control.store_u64(TIMELINE, submitted)?;
        let memory = PortMemory {
            ring: channel.ring().ring_base(),
            entries: self.entries,
            userd: channel.ring().userd_base(),
            tails: self.control.base().wrapping_add(TAILS as usize).cast(),
            timeline: self.control.base().wrapping_add(TIMELINE as usize).cast_const().cast(),
            doorbell: doorbell.bell(),
            token: channel.token(),
        };
        // SAFETY: ring and USERD page are mapped while the channel lives, which `Live` stores next
        // to the queue; the control mailbox lives as long as `self` and is laid out for `entries`;
        // the doorbell page lives as long as the context. None is accessed through references. The
        // open channel keeps the GPU powered.
        let port = unsafe { MappedPort::new(memory) };
        let config = QueueConfig {
            entries: self.entries,
            tails: self.control.at(TAILS)?,
            timeline: self.control.at(TIMELINE)?,
            start: submitted,
        };
        self.live = Some(Live { queue: Queue::new(port, config)?, channel });
        Ok(())
    }

    /// Submits the configuration of a new channel. Its queue is idle.
    pub(super) fn configure(
        &mut self,
        windows: Windows,
        local_memory: Option<LocalMemory>,
    ) -> Result<(), Error> {
        let mut words = Vec::new();
        Operation::Bind(self.engine).encode(&mut words);
        if self.engine == Engine::Compute {
            Operation::SetWindows(windows).encode(&mut words);
            if let Some(memory) = local_memory {
                Operation::SetLocalMemory(memory).encode(&mut words);
            }
        }
        debug_assert!(size_of_val(&*words) as u64 <= TAILS - CONFIGURE, "the stream has its place");
        let entry = self.control.write_stream(CONFIGURE, &words)?;
        self.submit(&[entry], Wake::Quiet)?;
        Ok(())
    }

    /// Closes the channel, even with work in flight.
    pub(super) fn close(&mut self) {
        if let Some(Live { mut queue, channel }) = self.live.take() {
            // An error of a corrupt timeline is ignored: the last value read counts.
            let _ = queue.poll();
            self.parked = (queue.completed().value(), queue.last().value());
            drop(queue);
            self.ring = Some(channel.close());
        }
    }

    /// Closes a channel that has only been configured, as if it had never been opened.
    pub(super) fn cancel(&mut self) {
        self.close();
        self.parked.0 = self.parked.1;
    }

    /// Marks incomplete work as lost after a close, and continues after it.
    pub(super) fn give_up(&mut self) {
        let (completed, submitted) = self.parked;
        self.ended.push(completed);
        self.parked = (submitted, submitted);
    }

    #[inline(always)]
    pub(super) fn submit(&mut self, bodies: &[Entry], wake: Wake) -> Result<Point, Error> {
        match &mut self.live {
            Some(live) => Ok(live.queue.submit(bodies, wake)?),
            // Unreachable: the context opens a queue before it submits.
            None => Err(SubmitError::Full { needed: bodies.len() + 1, room: 0 }.into()),
        }
    }

    pub(super) fn submit_timed(&mut self, bodies: &[Entry], wake: Wake) -> Result<Point, Error> {
        let next = self.last().map_or(0, |point| point.value().wrapping_add(1));
        let [begin, end] = self.streams(self.slot(next));
        let entry = |at| Ok::<_, Error>(Entry::new(self.control.at(at)?, RELEASE_WORDS)?);
        let (begin, end) = (entry(begin)?, entry(end)?);
        let mut entries = std::mem::take(&mut self.timed);
        entries.clear();
        entries.push(begin);
        entries.extend_from_slice(bodies);
        entries.push(end);
        let submitted = self.submit(&entries, wake);
        self.timed = entries;
        submitted
    }

    /// The record of a value: values in flight differ by less than the number of entries.
    fn slot(&self, value: u64) -> u64 {
        value & u64::from(self.entries - 1)
    }

    pub(super) fn timing(&self, point: Point) -> Result<Option<Timing>, Error> {
        let Some(live) = &self.live else { return Ok(None) };
        let value = point.value();
        let done = live.queue.completed().value().wrapping_sub(value) as i64 >= 0;
        let newer = live.queue.last().value().wrapping_sub(value);
        if !done || newer >= self.entries.into() {
            return Ok(None);
        }
        let [begin, end] = self.records(self.slot(value));
        let started = self.control.load_u64(begin + TIME)?;
        let finished = self.control.load_u64(end + TIME)?;
        Ok(Some(Timing { started, finished }))
    }

    pub(super) fn is_done(&mut self, point: Point) -> Result<bool, Error> {
        match &mut self.live {
            Some(live) => Ok(live.queue.is_reached(point)?),
            // A channel is closed when it is idle, or abandoned together with its epoch.
            None => Ok(self.parked.0.wrapping_sub(point.value()) as i64 >= 0),
        }
    }

    /// Returns `true` if the point was reached before the rebuild that ended `epoch`.
    pub(super) fn was_done(&self, point: Point, epoch: usize) -> bool {
        let ended = self.ended.get(epoch);
        ended.is_some_and(|ended| ended.wrapping_sub(point.value()) as i64 >= 0)
    }

    /// The last point submitted, while open.
    pub(super) fn last(&self) -> Option<Point> {
        self.live.as_ref().map(|live| live.queue.last())
    }

    /// The last value reached, and the last submitted.
    pub(super) fn progress(&mut self) -> Result<(u64, u64), Error> {
        match &mut self.live {
            Some(live) => {
                let completed = live.queue.poll()?;
                Ok((completed.value(), live.queue.last().value()))
            }
            None => Ok(self.parked),
        }
    }

    pub(super) fn room(&self) -> usize {
        self.live.as_ref().map_or(self.entries as usize - 1, |live| live.queue.room())
    }

    pub(super) fn notice(&self) -> Option<Notice> {
        self.live.as_ref().and_then(|_| self.notifier.read())
    }

    pub(super) fn is_dead(&self) -> Result<bool, Error> {
        self.live.as_ref().map_or(Ok(false), |live| live.channel.is_dead())
    }

    /// Progress of the queue and the host unit; `None` while closed.
    pub(super) fn describe(&mut self, queue: usize) -> Option<Progress> {
        let Live { queue: ring, channel } = self.live.as_mut()?;
        let _ = ring.poll();
        let port = ring.port();
        // GP_GET is at most one entry after the stream begun last: it is written back late.
        let begun = port.userd(userd::GP_GET).wrapping_sub(ring.oldest()) & (self.entries - 1);
        let in_flight = begun.min((ring.capacity() - ring.room()) as u32);
        let streams = (0..in_flight).map(|entry| port.entry(ring.oldest().wrapping_add(entry)));
        let at = GpuAddress::from_words(port.userd(userd::GET_HI), port.userd(userd::GET));
        Some(Progress {
            queue,
            channel: channel.id(),
            engine: channel.engine(),
            completed: ring.completed().value(),
            submitted: ring.last().value(),
            streams: streams.filter_map(|entry| Entry::decode(entry).ok()).collect(),
            at: at.ok().filter(|at| at.get() != 0),
        })
    }
}

/// Words of a release including its header.
const RELEASE_WORDS: usize = 6;
