//! Which bits of words have a value, lane by lane: of registers, and of local memory.
//!
//! Most words have one as a whole, or none at all, which is a bit a lane. Bit by bit it is only written
//! down for a word that has a value in part.

use super::lanes::Each;
use crate::execute::{LANES, Lanes};

/// What is known about some words.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Lanes for which all of a word has a value.
    whole: Vec<u32>,
    /// Lanes for which `unset` tells; it means nothing for those of `whole`, and of others no bit has one.
    partly: Vec<u32>,
    /// Bits without a value; empty until a word has some.
    unset: Vec<Lanes>,
}

impl Known {
    /// So many words without a value.
    pub(crate) fn reset(&mut self, words: usize) {
        self.whole.clear();
        self.partly.clear();
        self.grow(words);
    }

    /// At least so many words; new ones have no value.
    pub(crate) fn grow(&mut self, words: usize) {
        let words = words.max(self.whole.len());
        self.whole.resize(words, 0);
        self.partly.resize(words, 0);
    }

    /// The lanes for which all of a word has a value.
    #[inline(always)]
    pub(crate) fn whole(&self, word: usize) -> u32 {
        self.whole[word]
    }

    /// Whether all of some registers have a value, for every lane.
    #[inline(always)]
    pub(crate) fn all_whole(&self, registers: [u8; 3]) -> bool {
        registers.iter().fold(!0, |lanes, &it| lanes & self.whole[usize::from(it)]) == !0
    }

    /// All of a word has a value, for these lanes.
    #[inline(always)]
    pub(crate) fn set(&mut self, word: usize, lanes: u32) {
        self.whole[word] |= lanes;
    }

    /// No bit of a word has a value, for these lanes.
    pub(crate) fn clear(&mut self, word: usize, lanes: u32) {
        self.whole[word] &= !lanes;
        self.partly[word] &= !lanes;
    }

    /// The bits of a lane's word that have no value.
    pub(crate) fn unset(&self, word: usize, lane: usize) -> u32 {
        if self.whole[word] >> lane & 1 == 1 {
            0
        } else if self.partly[word] >> lane & 1 == 1 {
            self.unset[word][lane]
        } else {
            !0
        }
    }

    /// The bits of a word that have no value, of each lane.
    pub(crate) fn unset_lanes(&self, word: usize) -> Lanes {
        std::array::from_fn(|lane| self.unset(word, lane))
    }

    /// These bits of a lane's word have no value, all others have one.
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
