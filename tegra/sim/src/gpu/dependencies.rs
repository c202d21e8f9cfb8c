//! Dependencies between accesses: happens-before between channels by vector clocks, and between
//! overlapping work of one channel. An access that does not depend on an earlier conflicting one is
//! a data race.
//!
//! Semaphores alone order channels: a release publishes what the channel has done, and an acquire
//! takes it over. The CPU may have observed every semaphore released before it rings a doorbell,
//! and knows which channels it has closed; all of that happens before the work that the doorbell
//! starts. Semaphore accesses of the host unit create order and are not recorded.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mmu::Piece;

/// Last observed epoch of each channel.
type VectorClock = BTreeMap<u16, u64>;

/// Largest number of readers recorded for a range.
const READERS: usize = 8;

/// Origin of a recorded access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    channel: u16,
    epoch: u64,
    /// Serial number of the work within its channel.
    serial: u64,
    /// Common to all launches of a QMD chain.
    chain: u64,
    /// Executed by the front end itself, so before all later work.
    in_order: bool,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel {}", self.channel)
    }
}

/// Work and its dependencies.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) stamp: Stamp,
    /// Work of its own channel up to this serial is complete.
    after: u64,
    /// Completed work of other channels.
    seen: Arc<VectorClock>,
}

impl Agent {
    /// Returns the agent of work that the completion of this work starts.
    pub(crate) fn follower(&self, serial: u64, joins: bool) -> Self {
        let stamp = Stamp { serial, ..self.stamp };
        // With several parents all earlier work counts as complete, because only one chain is
        // recorded.
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

/// Dependency of work on earlier work of the same channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Executed immediately by the front end.
    Immediate,
    /// Waits for the previous work.
    Serial,
    /// May overlap the previous work.
    Overlapping,
}

#[derive(Debug, Default)]
struct ChannelClock {
    epoch: u64,
    serial: u64,
    /// All work up to this serial is complete.
    drained: u64,
    /// Dependency of the last work, which overlapping work shares.
    after: u64,
    seen: Arc<VectorClock>,
}

#[derive(Clone, Debug)]
struct Range {
    end: u64,
    writer: Option<Stamp>,
    readers: Vec<Stamp>,
}

/// Dependencies of all channels.
#[derive(Debug, Default)]
pub(crate) struct Dependencies {
    channels: BTreeMap<u16, ChannelClock>,
    /// Clock that an acquire takes over, by buffer and offset of the semaphore.
    released: HashMap<(u64, u64), VectorClock>,
    /// Releases in order with their clocks; those that the CPU is known to have observed are
    /// removed from the front and joined in `cpu`.
    log: VecDeque<VectorClock>,
    /// Number of releases, which doorbells record.
    count: Arc<AtomicU64>,
    cpu: VectorClock,
    /// Last accesses of each range, by buffer and offset.
    ranges: HashMap<u64, BTreeMap<u64, Range>>,
}

fn join(into: &mut VectorClock, other: &VectorClock) {
    for (channel, epoch) in other {
        let seen = into.entry(*channel).or_default();
        *seen = (*seen).max(*epoch);
    }
}

impl Dependencies {
    /// Opens a channel.
    pub(crate) fn open(&mut self, channel: u16) {
        // A later channel with this number is ordered after the earlier one, which was closed.
        let clock = self.channels.entry(channel).or_default();
        clock.epoch += 1;
        clock.drained = clock.serial;
    }

    /// Closes a channel: all of its accesses happen before later actions of the CPU.
    pub(crate) fn close(&mut self, channel: u16) {
        let Some(clock) = self.channels.get(&channel) else { return };
        join(&mut self.cpu, &clock.seen);
        let own = self.cpu.entry(channel).or_default();
        *own = (*own).max(clock.epoch);
    }

    /// Returns the counter of releases, which doorbells record.
    pub(crate) fn count(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.count)
    }

    /// Records that a doorbell was rung, or that the CPU wrote a semaphore, after `count` releases.
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

    /// Issues work to an engine or the front end.
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

    /// Starts an epoch after releasing work, which does not publish later work.
    pub(crate) fn next_epoch(&mut self, channel: u16) {
        self.channels.entry(channel).or_default().epoch += 1;
    }

    /// Returns a serial for work that a completion starts.
    pub(crate) fn next_serial(&mut self, channel: u16) -> u64 {
        let clock = self.channels.entry(channel).or_default();
        clock.serial += 1;
        clock.serial
    }

    /// Records that all work of the channel is complete.
    pub(crate) fn drained(&mut self, channel: u16) {
        let clock = self.channels.entry(channel).or_default();
        clock.drained = clock.serial;
    }

    /// Records a release, before the semaphore is written, so that an observer finds it counted.
    pub(crate) fn release(&mut self, agent: &Agent, piece: &Piece) {
        let mut seen = (*agent.seen).clone();
        let own = seen.entry(agent.stamp.channel).or_default();
        *own = (*own).max(agent.stamp.epoch);
        join(self.released.entry((piece.buffer.inode(), piece.offset)).or_default(), &seen);
        self.log.push_back(seen);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Records an acquire. If no channel released the semaphore, the CPU wrote it, and may have
    /// observed every earlier release.
    pub(crate) fn acquire(&mut self, channel: u16, piece: &Piece) {
        let Some(seen) = self.released.get(&(piece.buffer.inode(), piece.offset)) else {
            return self.rung(channel, self.count.load(Ordering::Acquire));
        };
        let clock = self.channels.entry(channel).or_default();
        join(Arc::make_mut(&mut clock.seen), seen);
    }

    /// Forgets recorded accesses when nothing is in flight: every later doorbell is rung after all
    /// releases.
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

    /// Records a read; returns a writer that is not ordered before it.
    pub(crate) fn read(&mut self, agent: &Agent, piece: &Piece) -> Option<Stamp> {
        self.touch(agent, piece, false)
    }

    /// Records a write; returns an access that is not ordered before it.
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

/// Splits a range at `at`.
fn split(ranges: &mut BTreeMap<u64, Range>, at: u64) {
    let Some((_, range)) = ranges.range_mut(..at).next_back() else { return };
    if range.end > at {
        let behind = range.clone();
        range.end = at;
        ranges.insert(at, behind);
    }
}
