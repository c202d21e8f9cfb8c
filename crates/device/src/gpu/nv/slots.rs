//! Slot copies by the copy engine: between slots, and to and from a staging buffer that the CPU
//! sees.
//!
//! Every copy is waited for; no step runs meanwhile, and each step begins by invalidating its
//! caches.

use std::ops::Range;

use tegra::address::GpuAddress;
use tegra::buffer::Mailbox;
use tegra::context::Context;
use tegra::copy::{self, Copier};
use tegra::pushbuffer::{Engine, PushBuffer};
use tegra::space::AddressSpace;
use tegra::{Error, class};

use super::watchdog::watch;

/// Most streams in flight; one is used.
const ENTRIES: u32 = 64;
/// Size of the staging buffer.
const STAGE: usize = 4 << 20;
/// Words of a stream (less than its capacity) and of one copy in it.
const WORDS: usize = 1024;
/// Polls after which a copy counts as hung; it moves gigabytes per poll.
const POLLS: u32 = 50;

pub(super) struct Slots {
    copier: Copier,
    stage: Mailbox,
}

/// A copy within the GPU's memory.
struct Copy {
    from: GpuAddress,
    to: GpuAddress,
    bytes: u64,
}

impl Slots {
    /// Creates a queue.
    pub(super) fn new(space: &AddressSpace, context: &mut Context) -> Result<Self, Error> {
        let stage = Mailbox::new(space, STAGE as u64)?;
        let queue = context.add_queue(Engine::Copy, ENTRIES)?;
        Ok(Self { copier: Copier::new(space, queue)?, stage })
    }

    /// Copies ranges given as offsets from `base`.
    pub(super) fn copy(
        &mut self,
        context: &mut Context,
        base: GpuAddress,
        copies: &[[usize; 3]],
    ) -> Result<(), Error> {
        let copies = copies.iter().map(|copy| {
            let [from, to, bytes] = copy.map(|n| n as u64);
            Ok(Copy { from: base.offset(from)?, to: base.offset(to)?, bytes })
        });
        self.run(context, copies)
    }

    /// Reads ranges from `base` on, one after the other.
    pub(super) fn read(
        &mut self,
        context: &mut Context,
        base: GpuAddress,
        ranges: &[Range<usize>],
        out: &mut [u8],
    ) -> Result<(), Error> {
        let mut done = 0;
        for part in parts(ranges) {
            let stage = self.stage.address();
            let copies = placed(&part).map(|(at, range)| {
                let (from, to) = (base.offset(range.start as u64)?, stage.offset(at)?);
                Ok(Copy { from, to, bytes: range.len() as u64 })
            });
            self.run(context, copies)?;
            let bytes = part.iter().map(Range::len).sum::<usize>();
            self.stage.read(0, &mut out[done..done + bytes])?;
            done += bytes;
        }
        Ok(())
    }

    /// Writes ranges.
    pub(super) fn write(
        &mut self,
        context: &mut Context,
        base: GpuAddress,
        ranges: &[Range<usize>],
        bytes: &[u8],
    ) -> Result<(), Error> {
        let mut rest = bytes;
        for part in parts(ranges) {
            let (now, later) = rest.split_at(part.iter().map(Range::len).sum());
            rest = later;
            self.stage.write(0, now)?;
            let stage = self.stage.address();
            let copies = placed(&part).map(|(at, range)| {
                let (from, to) = (stage.offset(at)?, base.offset(range.start as u64)?);
                Ok(Copy { from, to, bytes: range.len() as u64 })
            });
            self.run(context, copies)?;
        }
        Ok(())
    }

    /// Executes copies in order.
    fn run(
        &mut self,
        context: &mut Context,
        copies: impl Iterator<Item = Result<Copy, Error>>,
    ) -> Result<(), Error> {
        let mut stream = PushBuffer::new();
        for copy in copies {
            let Copy { from, to, bytes } = copy?;
            copy::copy(&mut stream, from, to, bytes)?;
            if stream.words().len() > WORDS {
                self.submit(context, &std::mem::take(&mut stream))?;
            }
        }
        self.submit(context, &stream)
    }

    fn submit(
        &mut self,
        context: &mut Context,
        stream: &PushBuffer<class::Copy>,
    ) -> Result<(), Error> {
        let ticket = self.copier.submit(context, stream)?;
        let is_late = |error: &Error| matches!(error, Error::Stalled { .. });
        watch(|()| POLLS, is_late, |limit| ((), context.wait(ticket, limit)))
    }
}

/// Splits ranges into parts that fit the staging buffer.
fn parts(ranges: &[Range<usize>]) -> Vec<Vec<Range<usize>>> {
    let mut parts = vec![Vec::new()];
    let mut room = STAGE;
    for range in ranges {
        let mut range = range.clone();
        while !range.is_empty() {
            if room == 0 {
                parts.push(Vec::new());
                room = STAGE;
            }
            let end = range.end.min(range.start + room);
            room -= end - range.start;
            if let Some(part) = parts.last_mut() {
                part.push(range.start..end);
            }
            range.start = end;
        }
    }
    parts
}

/// Ranges of a part with their offsets in the staging buffer.
fn placed(part: &[Range<usize>]) -> impl Iterator<Item = (u64, &Range<usize>)> {
    part.iter().scan(0, |end, range| {
        let at = *end;
        *end += range.len() as u64;
        Some((at, range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_ranges_and_fit_the_staging_buffer() {
        let ranges = [10..20, 100..100 + 2 * STAGE, 7..8];
        let parts = parts(&ranges);
        let bytes: Vec<usize> =
            parts.iter().map(|part| part.iter().map(Range::len).sum()).collect();
        assert_eq!(bytes, [STAGE, STAGE, 11]);
        let all: Vec<usize> =
            parts.iter().flatten().flat_map(|range| [range.start, range.end]).collect();
        let (one, two) = (90 + STAGE, 90 + 2 * STAGE);
        assert_eq!(all, [10, 20, 100, one, one, two, two, 100 + 2 * STAGE, 7, 8]);
        let at: Vec<u64> = placed(&parts[2]).map(|(at, _)| at).collect();
        assert_eq!(at, [0, 10]);
    }
}
