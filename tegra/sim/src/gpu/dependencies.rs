//! Dependencies between accesses: happens-before between channels, by vector clocks, and between work
//! of one channel that may overlap. An access that depends on none of those before it is a data race.
//!
//! Channels order each other by semaphores alone: a release publishes what the channel has done, an
//! acquire takes it over. The CPU may have looked at every semaphore that was released before it
//! rang a doorbell, and knows which channels it has closed: that much is ordered before what the
//! doorbell starts. The host unit's own accesses to semaphores are what orders, and are not recorded.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mmu::Piece;

/// By channel: the last epoch that has been seen.
type VectorClock = BTreeMap<u16, u64>;

/// Most readers remembered of a range.
const READERS: usize = 8;

/// Who made an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    channel: u16,
    epoch: u64,
    /// Running number of the work within its channel.
    serial: u64,
    /// Launches that start each other have one in common.
    chain: u64,
    /// Done by the front end itself, so before everything later.
    in_order: bool,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel {}", self.channel)
    }
}

/// Work and what it depends on.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) stamp: Stamp,
    /// Work of its own channel up to this serial is done.
    after: u64,
    /// What of other channels is done.
    seen: Arc<VectorClock>,
}

impl Agent {
    /// Work started by the completion of this.
    pub(crate) fn follower(&self, serial: u64, joins: bool) -> Self {
        let stamp = Stamp { serial, ..self.stamp };
        // With several parents everything earlier counts as done: only one chain can be kept.
        let after = if joins { serial.saturating_sub(1) } else { self.after };
        Self { stamp, after, seen: Arc::clone(&self.seen) }
    }

    fn is_after(&self, other: &Stamp) -> bool {
        if other.channel != self.stamp.channel {
            return self.seen.get(&other.channel).is_some_and(|epoch| *epoch >= other.epoch);
        }
        other.serial == self.stamp.serial
            || other.in_order
            || other.serial <= self.after
            || other.chain == self.stamp.chain
    }
}

/// What work of the same channel it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Done at once, by the front end.
    Immediate,
    /// Waits for the work before it.
    Serial,
    /// May overlap the work before it.
    Overlapping,
}

#[derive(Debug, Default)]
struct ChannelClock {
    epoch: u64,
    serial: u64,
    /// Everything up to this serial is done.
    drained: u64,
    /// Bound of the last work, which overlapping work shares.
    after: u64,
    seen: Arc<VectorClock>,
}

#[derive(Clone, Debug)]
struct Range {
    end: u64,
    writer: Option<Stamp>,
    readers: Vec<Stamp>,
}

/// The dependencies of all channels.
#[derive(Debug, Default)]
pub(crate) struct Dependencies {
    channels: BTreeMap<u16, ChannelClock>,
    /// By buffer and offset: what an acquire of the semaphore there takes over.
    released: HashMap<(u64, u64), VectorClock>,
    /// Releases in order, with what they publish; those that the CPU is known to have seen are
    /// gone from the front and joined in `cpu`.
    log: VecDeque<VectorClock>,
    /// Releases so far, for whoever rings a doorbell.
    count: Arc<AtomicU64>,
    cpu: VectorClock,
    /// By buffer and offset: who touched the range last.
    ranges: HashMap<u64, BTreeMap<u64, Range>>,
}

fn join(into: &mut VectorClock, other: &VectorClock) {
    for (channel, epoch) in other {
        let seen = into.entry(*channel).or_default();
        *seen = (*seen).max(*epoch);
    }
}

impl Dependencies {
    /// A channel begins.
    pub(crate) fn open(&mut self, channel: u16) {
        // A later channel of this number is ordered after the earlier one, which was closed.
        let clock = self.channels.entry(channel).or_default();
        clock.epoch += 1;
        clock.drained = clock.serial;
    }

    /// A channel is closed, and does nothing any more: the CPU, which closed it, knows that.
    pub(crate) fn close(&mut self, channel: u16) {
        let Some(clock) = self.channels.get(&channel) else { return };
        join(&mut self.cpu, &clock.seen);
        let own = self.cpu.entry(channel).or_default();
        *own = (*own).max(clock.epoch);
    }

    /// Releases so far: what a doorbell's ring remembers.
    pub(crate) fn count(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.count)
    }

    /// A doorbell was rung, or a semaphore written by the CPU, when `count` releases were done.
    pub(crate) fn rung(&mut self, channel: u16, count: u64) {
        let all = self.count.load(Ordering::Acquire);
        let known = all - self.log.len() as u64;
        for _ in known..count.min(all) {
            if let Some(seen) = self.log.pop_front() {
                join(&mut self.cpu, &seen);
            }
        }
        if let Some(clock) = self.channels.get_mut(&channel) {
            join(Arc::make_mut(&mut clock.seen), &self.cpu);
        }
    }

    /// Work is given to an engine, or done by the front end.
    pub(crate) fn issue(&mut self, channel: u16, kind: Kind) -> Agent {
        let clock = self.channels.entry(channel).or_default();
        clock.serial += 1;
        let serial = clock.serial;
        clock.after = match kind {
            Kind::Immediate => clock.after,
            Kind::Serial => serial - 1,
            Kind::Overlapping => clock.after.max(clock.drained),
        };
        let after = if kind == Kind::Immediate { clock.drained } else { clock.after };
        let in_order = kind == Kind::Immediate;
        let stamp = Stamp { channel, epoch: clock.epoch, serial, chain: serial, in_order };
        Agent { stamp, after, seen: Arc::clone(&clock.seen) }
    }

    /// Work that releases is issued: what comes later is not published by it.
    pub(crate) fn next_epoch(&mut self, channel: u16) {
        self.channels.entry(channel).or_default().epoch += 1;
    }

    /// A serial for work that completion starts.
    pub(crate) fn next_serial(&mut self, channel: u16) -> u64 {
        let clock = self.channels.entry(channel).or_default();
        clock.serial += 1;
        clock.serial
    }

    /// Nothing of the channel is under way.
    pub(crate) fn drained(&mut self, channel: u16) {
        let clock = self.channels.entry(channel).or_default();
        clock.drained = clock.serial;
    }

    /// A semaphore is about to be written: whoever sees it must find the release counted.
    pub(crate) fn release(&mut self, agent: &Agent, piece: &Piece) {
        let mut seen = (*agent.seen).clone();
        let own = seen.entry(agent.stamp.channel).or_default();
        *own = (*own).max(agent.stamp.epoch);
        join(self.released.entry((piece.buffer.inode(), piece.offset)).or_default(), &seen);
        self.log.push_back(seen);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// A wait for a semaphore was over. One that no channel released was written by the CPU, which
    /// may have looked at every release before.
    pub(crate) fn acquire(&mut self, channel: u16, piece: &Piece) {
        let Some(seen) = self.released.get(&(piece.buffer.inode(), piece.offset)) else {
            return self.rung(channel, self.count.load(Ordering::Acquire));
        };
        let clock = self.channels.entry(channel).or_default();
        join(Arc::make_mut(&mut clock.seen), seen);
    }

    /// Nothing is under way, and every doorbell yet to come is rung after all that was released:
    /// that much needs no memory.
    pub(crate) fn settle(&mut self) {
        let mut all = self.cpu.clone();
        self.log.iter().for_each(|seen| join(&mut all, seen));
        let known = |stamp: &Stamp| all.get(&stamp.channel).is_some_and(|e| *e >= stamp.epoch);
        self.ranges.retain(|_, ranges| {
            ranges.retain(|_, range| {
                range.readers.retain(|stamp| !known(stamp));
                range.writer = range.writer.filter(|stamp| !known(stamp));
                range.writer.is_some() || !range.readers.is_empty()
            });
            !ranges.is_empty()
        });
        self.released.clear();
        for clock in self.channels.values_mut() {
            join(Arc::make_mut(&mut clock.seen), &all);
        }
        self.cpu = all;
        self.log.clear();
    }

    /// Work reads a range; gives a writer that is not ordered before.
    pub(crate) fn read(&mut self, agent: &Agent, piece: &Piece) -> Option<Stamp> {
        self.touch(agent, piece, false)
    }

    /// Work writes a range; gives a toucher that is not ordered before.
    pub(crate) fn write(&mut self, agent: &Agent, piece: &Piece) -> Option<Stamp> {
        self.touch(agent, piece, true)
    }

    fn touch(&mut self, agent: &Agent, piece: &Piece, write: bool) -> Option<Stamp> {
        let ranges = self.ranges.entry(piece.buffer.inode()).or_default();
        let (start, end) = (piece.offset, piece.offset + piece.bytes);
        if start == end {
            return None;
        }
        split(ranges, start);
        split(ranges, end);
        let mut found = None;
        let mut at = start;
        let mut gaps = Vec::new();
        for (from, range) in ranges.range_mut(start..end) {
            if *from > at {
                gaps.push((at, *from));
            }
            at = range.end;
            let writer = range.writer.filter(|stamp| !agent.is_after(stamp));
            found = found.or(writer);
            if write {
                let reader = range.readers.iter().find(|stamp| !agent.is_after(stamp));
                found = found.or(reader.copied());
                range.writer = Some(agent.stamp);
                range.readers.clear();
            } else if !range.readers.contains(&agent.stamp) {
                range.readers.retain(|stamp| !agent.is_after(stamp));
                if range.readers.len() < READERS {
                    range.readers.push(agent.stamp);
                }
            }
        }
        if at < end {
            gaps.push((at, end));
        }
        for (from, end) in gaps {
            let (writer, readers) =
                if write { (Some(agent.stamp), Vec::new()) } else { (None, vec![agent.stamp]) };
            ranges.insert(from, Range { end, writer, readers });
        }
        found
    }
}

/// Makes a range that reaches over `at` end there.
fn split(ranges: &mut BTreeMap<u64, Range>, at: u64) {
    let Some((_, range)) = ranges.range_mut(..at).next_back() else { return };
    if range.end > at {
        let behind = range.clone();
        range.end = at;
        ranges.insert(at, behind);
    }
}
