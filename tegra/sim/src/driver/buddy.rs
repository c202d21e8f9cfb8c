//! The driver's buddy allocator, which chooses addresses in an address space.
//!
//! Models `common/mm/allocators/buddy_allocator.c` of r36.4.3 including the order of its free
//! lists, because programs see the addresses. The range is cut from its start into blocks of
//! descending powers of two. An allocation takes the most recently freed block of the smallest
//! sufficient order and splits it leftwards. A freed block merges with its buddy and becomes the
//! newest of its order. There are only 4 KiB pages, so the driver's separation by page size is
//! omitted.

use std::collections::{BTreeMap, HashMap};

/// Bytes of a block of order 0.
const BLOCK: u64 = 4096;

/// Free blocks of one order, newest last.
#[derive(Debug, Default)]
struct FreeList {
    by_age: BTreeMap<u64, u64>,
    age_of: HashMap<u64, u64>,
}

impl FreeList {
    fn add(&mut self, start: u64, age: u64) {
        self.by_age.insert(age, start);
        self.age_of.insert(start, age);
    }

    fn remove(&mut self, start: u64) -> bool {
        let Some(age) = self.age_of.remove(&start) else { return false };
        self.by_age.remove(&age);
        true
    }

    fn newest(&self) -> Option<u64> {
        self.by_age.last_key_value().map(|(_, start)| *start)
    }
}

/// A buddy allocator over `[start, end)`.
#[derive(Debug)]
pub(super) struct Buddy {
    start: u64,
    end: u64,
    /// Initial blocks of the range: start to order.
    tops: BTreeMap<u64, u32>,
    free: Vec<FreeList>,
    /// Allocated blocks: start to order.
    taken: BTreeMap<u64, u32>,
    /// Fixed allocations: start to their blocks, in the order taken.
    fixed: HashMap<u64, Vec<u64>>,
    clock: u64,
}

const fn bytes_of(order: u32) -> u64 {
    BLOCK << order
}

impl Buddy {
    /// Creates an allocator over a range of whole pages that does not start at 0.
    pub(super) fn new(start: u64, end: u64) -> Self {
        let max_order = ((end - start) / BLOCK).max(1).ilog2();
        let mut buddy = Self {
            start,
            end,
            tops: BTreeMap::new(),
            free: (0..=max_order).map(|_| FreeList::default()).collect(),
            taken: BTreeMap::new(),
            fixed: HashMap::new(),
            clock: 0,
        };
        let mut at = start;
        while at < end {
            let order = ((end - at) / BLOCK).ilog2();
            buddy.tops.insert(at, order);
            buddy.release(at, order);
            at += bytes_of(order);
        }
        buddy
    }

    /// Start of the range.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// End of the range.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    fn max_order(&self) -> u32 {
        self.free.len() as u32 - 1
    }

    /// Allocates `len` bytes where the driver would.
    pub(super) fn alloc(&mut self, len: u64) -> Option<u64> {
        if len == 0 {
            return None;
        }
        let blocks = (len - 1) / BLOCK;
        let order = u64::BITS - blocks.leading_zeros();
        let from = (order..=self.max_order())
            .find(|order| self.free[*order as usize].newest().is_some())?;
        let start = self.free[from as usize].newest()?;
        self.split_to(start, from, start, order);
        self.take(start, order);
        Some(start)
    }

    /// Allocates exactly `[base, base + len)`; none if it is not free or outside the range.
    pub(super) fn alloc_fixed(&mut self, base: u64, len: u64) -> Option<u64> {
        let end = base.checked_add(len)?;
        let aligned = base.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        if !aligned || len == 0 || base < self.start || end > self.end || !self.is_free(base, end) {
            return None;
        }
        // Alignments are relative to the start of the range, as are blocks.
        let alignment = |offset: u64| (offset / BLOCK).trailing_zeros();
        let mut order = match base - self.start {
            0 => alignment(len),
            offset => alignment(offset).min(alignment(len)),
        };
        if order > self.max_order() {
            return None;
        }
        let mut blocks = Vec::new();
        let mut at = base;
        while at < end {
            if !self.make(at, order) {
                self.give_back(blocks);
                return None;
            }
            self.take(at, order);
            blocks.push(at);
            at += bytes_of(order);
            order = alignment(at - self.start);
            if at < end && (order >= 52 || bytes_of(order) > end - at) {
                order = ((end - at) / BLOCK).ilog2().min(self.max_order());
            }
        }
        self.fixed.insert(base, blocks);
        Some(base)
    }

    /// Frees the allocation at `start`; ignores other addresses.
    pub(super) fn free(&mut self, start: u64) {
        if let Some(blocks) = self.fixed.remove(&start) {
            self.give_back(blocks);
        } else {
            self.give_back(vec![start]);
        }
    }

    /// Frees blocks, the last allocated first.
    fn give_back(&mut self, blocks: Vec<u64>) {
        for block in blocks.into_iter().rev() {
            let Some(order) = self.taken.remove(&block) else { continue };
            self.release(block, order);
            self.coalesce(block, order);
        }
    }

    fn release(&mut self, start: u64, order: u32) {
        self.clock += 1;
        self.free[order as usize].add(start, self.clock);
    }

    fn take(&mut self, start: u64, order: u32) {
        self.free[order as usize].remove(start);
        self.taken.insert(start, order);
    }

    /// Returns whether no allocation starts or ends inside. One that covers the whole range is
    /// found later, when its block cannot be created.
    fn is_free(&self, base: u64, end: u64) -> bool {
        let begins = self.taken.range(base + 1..end).next().is_some();
        let ends = self.taken.range(..=base).next_back().is_some_and(|(start, order)| {
            let taken_end = start + bytes_of(*order);
            taken_end > base && taken_end < end
        });
        !begins && !ends
    }

    /// Creates the free block at `base` of `order` from the free block that contains it.
    fn make(&mut self, base: u64, order: u32) -> bool {
        for from in order..=self.max_order() {
            let offset = base - self.start;
            let start = self.start + (offset & !(bytes_of(from) - 1));
            if self.free[from as usize].age_of.contains_key(&start) {
                self.split_to(start, from, base, order);
                return true;
            }
        }
        false
    }

    /// Splits the free block at `start` until the block at `target` of `order` exists.
    fn split_to(&mut self, mut start: u64, from: u32, target: u64, order: u32) {
        for current in (order..from).rev() {
            self.free[current as usize + 1].remove(start);
            let right = start + bytes_of(current);
            self.release(start, current);
            self.release(right, current);
            if target >= right {
                start = right;
            }
        }
    }

    /// Merges a free block with its buddy repeatedly, while the buddy is free.
    fn coalesce(&mut self, mut start: u64, mut order: u32) {
        let Some((top, top_order)) = self.tops.range(..=start).next_back() else { return };
        let (top, top_order) = (*top, *top_order);
        while order < top_order {
            let buddy = top + ((start - top) ^ bytes_of(order));
            if !self.free[order as usize].remove(buddy) {
                return;
            }
            self.free[order as usize].remove(start);
            start = start.min(buddy);
            order += 1;
            self.release(start, order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn first_allocations_land_where_they_were_seen_on_hardware() {
        let place = |len| Buddy::new(0x20_0000, 0xff_ffe0_0000).alloc(len);
        assert_eq!(place(4096), Some(0xff_ffa0_0000));
        assert_eq!(place(MIB), Some(0xff_ffa0_0000));
        let mut buddy = Buddy::new(0x20_0000, 0xff_ffe0_0000);
        let seen = [4096, MIB, 16 * MIB, 64 * MIB].map(|len| buddy.alloc(len));
        let expected = [0xff_ffa0_0000, 0xff_ffb0_0000, 0xff_fe20_0000, 0xff_f820_0000].map(Some);
        assert_eq!(seen, expected);
    }

    #[test]
    fn freeing_everything_gives_the_first_layout_back() {
        let mut buddy = Buddy::new(0x20_0000, 0x4000_0000);
        let fixed = buddy.alloc_fixed(0x1030_3000, 0x5000).expect("free");
        let some = [1, 5000, MIB, 3 * MIB, 4096].map(|len| buddy.alloc(len).expect("room"));
        assert_eq!(buddy.alloc_fixed(fixed, 4096), None);
        assert_eq!(buddy.alloc_fixed(fixed + 0x4000, 0x2000), None);
        some.iter().for_each(|start| buddy.free(*start));
        buddy.free(fixed);
        buddy.free(0x1234_5000);
        for (order, list) in buddy.free.iter().enumerate() {
            let tops = buddy.tops.values().filter(|top| **top as usize == order).count();
            assert_eq!(list.age_of.len(), tops, "order {order}");
        }
        assert!(buddy.taken.is_empty());
    }

    #[test]
    fn the_allocator_refuses_misaligned_and_outside_ranges() {
        let mut buddy = Buddy::new(0x20_0000, 0x4000_0000);
        let wrong = [
            (0x1f_f000, 4096),
            (0x3fff_f000, 8192),
            (0x20_0800, 4096),
            (0x20_0000, 0),
            (u64::MAX - 4095, 4096),
            (0x20_0000, u64::MAX - 4095),
        ];
        for (base, len) in wrong {
            assert_eq!(buddy.alloc_fixed(base, len), None, "{base:#x} {len:#x}");
        }
        assert_eq!((buddy.alloc(0), buddy.alloc(0x4000_0000)), (None, None));
        assert_eq!(buddy.alloc(u64::MAX), None);
    }
}
