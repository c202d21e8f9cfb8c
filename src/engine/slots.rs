//! The slots of the cache that nobody has, and what each still holds: a request that begins like one before it
//! does not evaluate that beginning again. Which request gets which slot is decided here; who copies what, in
//! the scheduler.

use std::collections::VecDeque;

use super::Scales;

/// A slot that nobody has.
#[derive(Debug, PartialEq)]
pub(super) struct Slot {
    pub(super) number: u32,
    /// Tokens whose keys and values it holds, from position 0 on.
    pub(super) held: Vec<u32>,
    /// The adapters that they were evaluated with.
    pub(super) adapters: Scales,
    /// Positions that were written since it was begun at 0, whether what they have is still held or not: in a ring
    /// they have taken the places of those before.
    pub(super) written: usize,
    /// Whether all that it holds is on disk, as far as it can be.
    pub(super) kept: bool,
}

impl Slot {
    /// One that holds nothing.
    pub(super) const fn empty(number: u32) -> Self {
        Self { number, held: Vec::new(), adapters: Scales::NONE, written: 0, kept: true }
    }
}

/// The free slots; the one that has been free for longest is first.
#[derive(Debug, Default)]
pub(super) struct Slots {
    free: VecDeque<Slot>,
}

impl Slots {
    /// All slots of a model, which hold nothing.
    pub(super) fn new(count: usize) -> Self {
        Self { free: (0..count as u32).map(Slot::empty).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.free.iter()
    }

    /// The one that has been free for longest of those that are not on disk.
    pub(super) fn unkept(&mut self) -> Option<&mut Slot> {
        self.free.iter_mut().find(|slot| !slot.kept)
    }

    pub(super) fn all_kept(&self) -> bool {
        self.free.iter().all(|slot| slot.kept)
    }

    /// A slot for a prompt: the one that holds most of its beginning and nothing else. Where there is none: the
    /// one that has been free for longest, if the beginning can be copied from wherever it is, else the one
    /// that shares most of it.
    pub(super) fn take(&mut self, prompt: &[u32], adapters: Scales, copies: bool) -> Option<Slot> {
        let worth = |slot: &Slot| {
            let same = slot.adapters == adapters;
            let shared = if same { shared(&slot.held, prompt) } else { 0 };
            let whole = shared > 0 && shared == slot.held.len();
            (whole, if whole || !copies { shared } else { 0 })
        };
        let mut best = 0;
        for at in 1..self.free.len() {
            if worth(&self.free[at]) > worth(&self.free[best]) {
                best = at;
            }
        }
        self.free.remove(best)
    }

    pub(super) fn put(&mut self, slot: Slot) {
        self.free.push_back(slot);
    }

    /// Nothing of what they hold can be relied on any more.
    pub(super) fn forget(&mut self) {
        self.free.iter_mut().for_each(|slot| *slot = Slot::empty(slot.number));
    }
}

/// Tokens that two sequences begin with alike.
pub(super) fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(held: &[&[u32]]) -> Slots {
        let slot = |(number, held): (u32, &&[u32])| Slot {
            number,
            held: held.to_vec(),
            adapters: Scales::NONE,
            written: held.len(),
            kept: false,
        };
        Slots { free: (0..).zip(held).map(slot).collect() }
    }

    #[test]
    fn who_goes_on_gets_the_slot_back() {
        let mut slots = of(&[&[], &[1, 2], &[1, 2, 3], &[1, 2, 3, 9]]);
        assert_eq!(slots.take(&[1, 2, 3, 4], Scales::NONE, true).unwrap().number, 2);
        assert_eq!(slots.take(&[1, 2, 3, 4], Scales::NONE, true).unwrap().number, 1);
        // What another conversation left is copied, not taken.
        assert_eq!(slots.take(&[1, 2, 3, 4], Scales::NONE, true).unwrap().number, 0);
        assert_eq!(slots.take(&[7], Scales::NONE, true).unwrap().number, 3);
        assert_eq!(slots.take(&[7], Scales::NONE, true), None);
    }

    #[test]
    fn without_copies_the_longest_beginning_is_taken() {
        let mut slots = of(&[&[], &[1, 5], &[1, 2, 9, 9], &[1, 2, 8]]);
        assert_eq!(slots.take(&[1, 2, 3], Scales::NONE, false).unwrap().number, 2);
        slots.put(Slot { held: vec![4], written: 1, ..Slot::empty(2) });
        // The one that was given back last is taken last.
        assert_eq!(
            [5, 6, 7, 8].map(|t| slots.take(&[t], Scales::NONE, false).unwrap().number),
            [0, 1, 3, 2]
        );
    }

    #[test]
    fn what_other_adapters_have_left_is_not_gone_on_with() {
        let mut slots = of(&[&[], &[1, 2, 3]]);
        let other = Scales([0.5; model::MAX_ADAPTERS]);
        assert_eq!(slots.take(&[1, 2, 3, 4], other, false).unwrap().number, 0);
        slots.put(Slot { held: vec![1, 2], adapters: other, ..Slot::empty(0) });
        assert_eq!(slots.take(&[1, 2, 3, 4], other, true).unwrap().number, 0);
    }

    #[test]
    fn what_is_forgotten_is_not_found() {
        let mut slots = of(&[&[1, 2], &[1]]);
        slots.forget();
        assert!(slots.iter().all(|slot| slot.held.is_empty()));
        assert_eq!(slots.take(&[1, 2, 3], Scales::NONE, true).unwrap().number, 0);
    }
}
