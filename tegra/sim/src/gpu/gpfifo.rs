//! The ring: doorbells, entries, and the fetch of their streams.
//!
//! GP_PUT is read only at doorbells. Hardware may prefetch a covered entry and its stream from then
//! on, so both are recorded; a difference at the actual fetch is a finding. Source: `dev_ram` and
//! `dev_pbdma` of GA100's manual.

use super::access::{Core, Failure, HOST_END, Site};
use super::channel::{Accepted, Channel, Scout, Segment, Watched, userd};
use super::compute;
use super::dependencies::Kind;
use super::pbdma::{Method, Step};
use super::shadow::{Change, Snapshot};
use crate::class;
use crate::config::Occasion;
use crate::finding::{Rule, notifier};
use crate::trace::Event;

/// Largest number of words of an entry.
const MAX_WORDS: u64 = (1 << 21) - 1;

/// A ring entry, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Fetch a stream.
    Fetch {
        address: u64,
        words: u32,
        sync: bool,
        /// Only fetched if the subdevice mask includes this GPU.
        conditional: bool,
    },
    Nop,
    /// Compare a CRC of the streams so far.
    StreamCrc,
    Invalid(&'static str),
}

impl Entry {
    pub(crate) fn decode(entry: u64) -> Self {
        let words = entry >> 42 & MAX_WORDS;
        if words == 0 {
            return match entry >> 32 & 0xff {
                0 => Self::Nop,
                2 => Self::Invalid("its CRC is not the ring's"),
                3 => Self::StreamCrc,
                _ => Self::Invalid("its opcode is illegal"),
            };
        }
        let address = entry & 0xff_ffff_fffc;
        if entry >> 40 & 1 != 0 || entry >> 1 & 1 != 0 {
            Self::Invalid("it sets reserved bits")
        } else if address + 4 * words >= HOST_END {
            Self::Invalid("its stream reaches the end of the address space")
        } else {
            Self::Fetch {
                address,
                words: words as u32,
                sync: entry >> 63 != 0,
                conditional: entry & 1 != 0,
            }
        }
    }
}

impl Channel {
    /// Processes a doorbell that was rung when GP_PUT was `put`.
    pub(crate) fn accept(&mut self, core: &mut Core, put: Option<u32>) {
        let put = put.or_else(|| self.userd.load_u32(userd::GP_PUT).ok());
        let Some(put) = put else { return };
        let (time, channel) = (core.clock.now(), self.id);
        core.trace.record(time, || Event::Doorbell { channel, put });
        self.stalled = put >= self.entries;
        if self.stalled {
            let message = format!("GP_PUT is {put} in a ring of {} entries", self.entries);
            self.find(core, Rule::GpPutRange, message);
            return;
        }
        while self.put != put {
            let index = self.put;
            // In range, because the ring's size was checked when the channel was opened.
            let entry = self.ring.load_u64(u64::from(index) * 8).unwrap_or_default();
            let stream = match Entry::decode(entry) {
                Entry::Fetch { address, words, .. } => self.peek(core, address, words),
                _ => None,
            };
            if let Some((words, _)) = &stream {
                self.foresee(core, words);
            }
            self.accepted.push_back(Accepted { index, entry, stream });
            self.put = (index + 1) % self.entries;
        }
    }

    /// Reads a stream; none if it is not mapped, which the fetch will report.
    fn peek(&self, core: &Core, address: u64, words: u32) -> Option<(Vec<u32>, Snapshot)> {
        let bytes = u64::from(words) * 4;
        let mut stream = vec![0; bytes as usize];
        let mut rest = stream.as_mut_slice();
        for piece in self.mmu.resolve(address, bytes, crate::mmu::Access::Read).ok()? {
            let (part, tail) = rest.split_at_mut(piece.bytes as usize);
            piece.buffer.read(piece.offset, part).ok()?;
            rest = tail;
        }
        Some((words_of(&stream), Snapshot::take(&self.mmu, &core.shadow, address, bytes)))
    }

    /// Finds the memory that copies and launches of a stream will read, and takes snapshots of it.
    fn foresee(&mut self, core: &Core, words: &[u32]) {
        let mut scout = std::mem::take(&mut self.scout);
        for word in words {
            if scout.lost {
                break;
            }
            match scout.parser.take(*word) {
                Ok(Step::Nothing) => {}
                Ok(Step::EndSegment) => break,
                Ok(Step::Method(method)) => self.foresee_method(core, &mut scout, method),
                Err(_) => scout.lost = true,
            }
        }
        self.scout = scout;
    }

    fn foresee_method(&self, core: &Core, scout: &mut Scout, method: Method) {
        let Method { subchannel, address, data } = method;
        if address < class::host::METHODS_END {
            return;
        }
        let mut watched = Watched::default();
        if subchannel == 4 {
            if scout.copy.set(address, data) || address != class::copy::LAUNCH_DMA {
                return;
            }
            let Some((va, bytes)) = scout.copy.source(data) else {
                scout.issued += 1;
                return;
            };
            let snapshot = Snapshot::take(&self.mmu, &core.shadow, va, bytes);
            watched.memory.push((Rule::BufferReused, snapshot));
        } else if subchannel == 1 {
            if scout.compute.set(address, data) || !compute::launches(address, data) {
                return;
            }
            self.watch_launch(core, scout.compute.qmd, &mut watched);
        } else {
            return;
        }
        scout.issued += 1;
        scout.watched.insert(scout.issued, watched);
    }

    /// Fetches the next entry.
    pub(crate) fn fetch(&mut self, core: &mut Core) -> Result<(), Failure> {
        let Some(accepted) = self.accepted.pop_front() else { return Ok(()) };
        let Accepted { index, entry, stream } = accepted;
        if core.injection.fires(&Occasion::ChannelTimeout) {
            let message = format!("ctxsw timeout at entry {index}, made to happen");
            return Err(Failure::new(Rule::ChannelTimeout, notifier::IDLE_TIMEOUT, message));
        }
        let now = self.ring.load_u64(u64::from(index) * 8).unwrap_or_default();
        let entry = if now == entry {
            entry
        } else {
            let message = format!("entry {index} was {entry:#018x} and is {now:#018x}");
            self.find(core, Rule::RingRewritten, message);
            if core.random.one_in(2) { now } else { entry }
        };
        self.get = (index + 1) % self.entries;
        core.switches.moved(self.tsg, self.id);
        // Hardware writes back GP_GET some time later.
        if core.random.one_in(2) {
            self.write_back();
        }
        let (time, channel) = (core.clock.advance(core.latency.entry), self.id);
        let (address, words, sync) = match Entry::decode(entry) {
            Entry::Fetch { conditional: true, .. } if !self.parser.is_active() => return Ok(()),
            Entry::Fetch { address, words, sync, .. } => (address, words, sync),
            Entry::Nop => return Ok(()),
            Entry::StreamCrc => {
                let message = format!("entry {index}: the CRC of the streams is another");
                return Err(Failure::new(Rule::PushbufferCrc, notifier::CRC_MISMATCH, message));
            }
            Entry::Invalid(why) => {
                let message = format!("entry {index}, {entry:#018x}, is discarded: {why}");
                self.find(core, Rule::GpEntry, message);
                return Ok(());
            }
        };
        core.trace.record(time, || Event::Entry { channel, index, address, words, sync });
        let mut bytes = vec![0; words as usize * 4];
        let agent = core.dependencies.issue(self.id, Kind::Immediate);
        let site = Site { mmu: &self.mmu, channel, agent: &agent, unit: "PBDMA" };
        core.read(site, address, &mut bytes).map_err(|fault| Failure::mmu(fault, "PBDMA"))?;
        let mut current = words_of(&bytes);
        if let Some((before, snapshot)) = stream {
            let change = snapshot.change(&self.mmu, &core.shadow);
            let finding = match change {
                Some(Change::ByCpu(at)) if !(sync && self.waited) => {
                    Some((Rule::BodyRewritten, at))
                }
                Some(Change::ByGpu(at)) if !sync => Some((Rule::PatchedWithoutSync, at)),
                _ => None,
            };
            if let Some((rule, at)) = finding {
                let message = format!(
                    "the stream at {address:#x} of entry {index} changed near {at:#x} behind its doorbell"
                );
                self.find(core, rule, message);
                if before.len() == current.len() && core.random.one_in(2) {
                    current = before;
                }
            }
        }
        self.unreleased.push(Snapshot::take(&self.mmu, &core.shadow, address, bytes.len() as u64));
        self.waited = false;
        self.segment = Some(Segment { index, address, words: current, at: 0 });
        Ok(())
    }

    /// Writes GP_GET to USERD.
    pub(crate) fn write_back(&mut self) {
        if self.written_get != self.get && self.userd.store_u32(userd::GP_GET, self.get).is_ok() {
            self.written_get = self.get;
        }
    }
}

fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry observed on hardware.
    #[test]
    fn entry_of_the_hardware() {
        assert_eq!(
            Entry::decode(0x0000_1aff_ffa0_1000),
            Entry::Fetch { address: 0xff_ffa0_1000, words: 6, sync: false, conditional: false }
        );
        assert_eq!(Entry::decode(0), Entry::Nop);
        assert!(matches!(Entry::decode(1 << 32), Entry::Invalid(_)));
        assert!(matches!(Entry::decode(0xff_ffff_fffc | 1 << 42), Entry::Invalid(_)));
        assert!(matches!(Entry::decode(0xff_ffff_fff8 | 2 << 42), Entry::Invalid(_)));
        assert!(matches!(Entry::decode(0xff_ffff_fff8 | 1 << 42), Entry::Fetch { .. }));
    }
}
