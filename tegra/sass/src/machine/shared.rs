//! Shared memory of a block, with its state for the checks of initialisation and races.

use super::words::{merge, misaligned, narrow};
use super::{Outcome, Raised};
use crate::check::Strictness;
use crate::fault::FaultKind;
use crate::program::op::Size;

/// Largest number of warps in a block.
pub(crate) const WARPS: usize = 32;

/// An access to a word: warp, clock of the warp, bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Touch {
    clock: u32,
    warp: u8,
    bytes: u8,
}

/// Access history of a word, for finding races.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    write: Touch,
    atomic: bool,
    /// The last two readers. Forgetting earlier ones can only miss a race.
    reads: [Touch; 2],
}

/// Kind of access, for finding races.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Atomic,
}

/// Shared memory of a block.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) words: Vec<u32>,
    pub(crate) bytes: u32,
    /// Mask of the initialised bytes of each word.
    written: Vec<u8>,
    history: Vec<History>,
    /// First race of the current instruction.
    pub(crate) race: Option<Box<Raised>>,
    /// Vector clock of each warp; its own entry counts its barriers, from one.
    clocks: Vec<[u32; WARPS]>,
}

impl Shared {
    pub(crate) fn start<C: Strictness>(&mut self, bytes: u32, warps: u32) {
        let words = bytes.div_ceil(4) as usize;
        self.bytes = bytes;
        self.words.clear();
        self.words.resize(words, 0xbaad_f00d);
        self.written.clear();
        self.history.clear();
        if C::DEFINEDNESS {
            self.written.resize(words, 0);
        }
        if C::RACES {
            self.history.resize(words, History::default());
            self.clocks.clear();
            for warp in 0..warps as usize {
                let mut clock = [0; WARPS];
                clock[warp] = 1;
                self.clocks.push(clock);
            }
        }
    }

    /// Checks an access, records it for race detection, and returns its first word.
    #[inline(always)]
    pub(crate) fn access<C: Strictness>(
        &mut self,
        kind: Kind,
        warp: u8,
        address: u64,
        bytes: u8,
        lane: usize,
    ) -> Outcome<usize> {
        let word = self.locate(address, bytes, lane)?;
        if C::RACES {
            self.note(kind, warp, address, bytes, lane);
        }
        Ok(word)
    }

    #[inline(always)]
    pub(crate) fn locate(&self, address: u64, bytes: u8, lane: usize) -> Outcome<usize> {
        if misaligned(address, bytes) {
            return Err(Raised::new(FaultKind::Misaligned { address, bytes }, 1 << lane));
        }
        if address + u64::from(bytes) > u64::from(self.bytes) {
            let limit = self.bytes;
            return Err(Raised::new(FaultKind::Shared { address, bytes, limit }, 1 << lane));
        }
        Ok((address / 4) as usize)
    }

    /// Returns whether all bytes of an access are initialised.
    pub(crate) fn is_written(&self, address: u64, bytes: u8) -> bool {
        Self::parts(address, bytes).all(|(word, part)| self.written[word] & part == part)
    }

    /// Returns the undefined bits of what [`Shared::read`] returns.
    pub(crate) fn unset(&self, word: usize, address: u64, size: Size) -> [u32; 4] {
        let unset = |word: usize| {
            (0..4).fold(0, |bits, byte| match self.written[word] >> byte & 1 {
                0 => bits | 0xff << (8 * byte),
                _ => bits,
            })
        };
        if size.bytes < 4 {
            return [narrow(unset(word), address, size), 0, 0, 0];
        }
        let words = usize::from(size.bytes / 4);
        std::array::from_fn(|step| if step < words { unset(word + step) } else { 0 })
    }

    pub(crate) fn set_written(&mut self, address: u64, bytes: u8, value: bool) {
        for (word, part) in Self::parts(address, bytes) {
            if value {
                self.written[word] |= part;
            } else {
                self.written[word] &= !part;
            }
        }
    }

    /// Returns the words of an access, each with a byte mask.
    fn parts(address: u64, bytes: u8) -> impl Iterator<Item = (usize, u8)> {
        let word = (address / 4) as usize;
        let (words, part) = match bytes {
            1 => (1, 1 << (address % 4)),
            2 => (1, 3 << (address % 4)),
            _ => (usize::from(bytes) / 4, 0xf),
        };
        (0..words).map(move |step| (word + step, part))
    }

    /// Records an access and checks whether it races with an earlier one. Repeating it from the
    /// same warp changes nothing.
    pub(crate) fn note(&mut self, kind: Kind, warp: u8, address: u64, bytes: u8, lane: usize) {
        let mine = &self.clocks[usize::from(warp)];
        let unordered =
            |touch: &Touch| touch.warp != warp && touch.clock > mine[usize::from(touch.warp)];
        for (word, part) in Self::parts(address, bytes) {
            let history = &mut self.history[word];
            let meets = |touch: &Touch| touch.bytes & part != 0 && unordered(touch);
            let both_atomic = kind == Kind::Atomic && history.atomic;
            let mut other = (meets(&history.write) && !both_atomic).then_some(history.write.warp);
            if kind != Kind::Read {
                other = other.or(history.reads.iter().find(|t| meets(t)).map(|t| t.warp));
            }
            if let Some(other) = other {
                let address = word as u32 * 4;
                let kind = FaultKind::Race { address, warp, other };
                self.race.get_or_insert_with(|| Raised::new(kind, 1 << lane));
            }
            let clock = mine[usize::from(warp)];
            if kind == Kind::Read {
                let slot =
                    usize::from(history.reads[0].warp != warp && history.reads[0].clock != 0);
                let touch = &mut history.reads[slot];
                let same = touch.warp == warp && touch.clock == clock;
                let bytes = if same { touch.bytes | part } else { part };
                *touch = Touch { clock, warp, bytes };
            } else {
                let same = history.write.warp == warp && history.write.clock == clock;
                let bytes = if same { history.write.bytes | part } else { part };
                history.write = Touch { clock, warp, bytes };
                history.atomic = kind == Kind::Atomic;
                history.reads = [Touch::default(); 2];
            }
        }
    }

    /// Synchronises the vector clocks of warps at a barrier: the waiting warps learn of everything
    /// that the arrived warps did before.
    pub(crate) fn synchronise(&mut self, arrived: u32, waited: u32) {
        let mut joined = [0; WARPS];
        for (warp, clock) in self.clocks.iter_mut().enumerate() {
            if arrived >> warp & 1 == 1 {
                for (known, clock) in joined.iter_mut().zip(clock.iter()) {
                    *known = (*known).max(*clock);
                }
                clock[warp] += 1;
            }
        }
        for (warp, clock) in self.clocks.iter_mut().enumerate() {
            if waited >> warp & 1 == 1 {
                let own = clock[warp];
                for (known, joined) in clock.iter_mut().zip(&joined) {
                    *known = (*known).max(*joined);
                }
                clock[warp] = own;
            }
        }
    }

    /// Reads `WORDS` words.
    #[inline(always)]
    pub(crate) fn words_at<const WORDS: usize>(&self, word: usize) -> [u32; WORDS] {
        std::array::from_fn(|step| self.words[word + step])
    }

    #[inline(always)]
    pub(crate) fn words_at_mut<const WORDS: usize>(&mut self, word: usize) -> &mut [u32] {
        &mut self.words[word..word + WORDS]
    }

    /// Reads up to four words; narrow values are extended.
    #[inline(always)]
    pub(crate) fn read(&self, word: usize, address: u64, size: Size) -> [u32; 4] {
        let mut values = [0; 4];
        if size.bytes >= 4 {
            let count = usize::from(size.bytes / 4);
            values[..count].copy_from_slice(&self.words[word..word + count]);
        } else {
            values[0] = narrow(self.words[word], address, size);
        }
        values
    }

    /// Writes up to four words.
    #[inline(always)]
    pub(crate) fn write(&mut self, word: usize, address: u64, bytes: u8, values: &[u32; 4]) {
        if bytes >= 4 {
            let count = usize::from(bytes / 4);
            self.words[word..word + count].copy_from_slice(&values[..count]);
        } else {
            self.words[word] = merge(self.words[word], address, bytes, values[0]);
        }
    }
}
