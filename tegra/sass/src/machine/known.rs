//! Defined bits of registers and local memory, for each lane.
//!
//! Most words are fully defined or fully undefined, which takes one bit for each lane. A bit mask
//! is stored only for words that are partly defined.

use super::lanes::Each;
use crate::execute::{LANES, Lanes};

/// Defined bits of a range of words.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Lanes whose word is fully defined.
    whole: Vec<u32>,
    /// Lanes whose word is described by `unset`. Meaningless for lanes of `whole`; all other lanes
    /// are fully undefined.
    partly: Vec<u32>,
    /// Undefined bits; empty until a word is partly defined.
    unset: Vec<Lanes>,
}

impl Known {
    /// Resets to `words` undefined words.
    pub(crate) fn reset(&mut self, words: usize) {
        self.whole.clear();
        self.partly.clear();
        self.grow(words);
    }

    /// Grows to at least `words` words; new ones are undefined.
    pub(crate) fn grow(&mut self, words: usize) {
        let words = words.max(self.whole.len());
        self.whole.resize(words, 0);
        self.partly.resize(words, 0);
    }

    /// Returns the lanes whose word is fully defined.
    #[inline(always)]
    pub(crate) fn whole(&self, word: usize) -> u32 {
        self.whole[word]
    }

    /// Returns whether registers are fully defined in every lane.
    #[inline(always)]
    pub(crate) fn all_whole(&self, registers: [u8; 3]) -> bool {
        registers.iter().fold(!0, |lanes, &it| lanes & self.whole[usize::from(it)]) == !0
    }

    /// Marks a word as fully defined for these lanes.
    #[inline(always)]
    pub(crate) fn set(&mut self, word: usize, lanes: u32) {
        self.whole[word] |= lanes;
    }

    /// Marks a word as undefined for these lanes.
    pub(crate) fn clear(&mut self, word: usize, lanes: u32) {
        self.whole[word] &= !lanes;
        self.partly[word] &= !lanes;
    }

    /// Returns the undefined bits of a lane's word.
    pub(crate) fn unset(&self, word: usize, lane: usize) -> u32 {
        if self.whole[word] >> lane & 1 == 1 {
            0
        } else if self.partly[word] >> lane & 1 == 1 {
            self.unset[word][lane]
        } else {
            !0
        }
    }

    /// Returns the undefined bits of a word for each lane.
    pub(crate) fn unset_lanes(&self, word: usize) -> Lanes {
        std::array::from_fn(|lane| self.unset(word, lane))
    }

    /// Sets the undefined bits of a lane's word.
    pub(crate) fn write(&mut self, word: usize, lane: usize, unset: u32) {
        self.clear(word, 1 << lane);
        match unset {
            0 => self.whole[word] |= 1 << lane,
            u32::MAX => {}
            _ => {
                if self.unset.len() < self.whole.len() {
                    self.unset.resize(self.whole.len(), [0; LANES]);
                }
                self.unset[word][lane] = unset;
                self.partly[word] |= 1 << lane;
            }
        }
    }

    /// [`Known::write`] for each lane of a mask.
    pub(crate) fn write_lanes(&mut self, word: usize, mask: u32, unset: &Lanes) {
        for lane in Each(mask) {
            self.write(word, lane, unset[lane]);
        }
    }
}
