//! Costs of accesses: sectors, cache lines, shared-memory bank conflicts.

use super::env::Env;
use super::lanes::Each;
use crate::execute::{LANES, repeats};
use crate::program::op::Space;

/// Returns whether the addresses of all lanes are consecutive.
#[inline(always)]
pub(super) fn linear(addresses: &[u64; LANES], bytes: u64) -> bool {
    let mut difference = 0;
    for (lane, address) in addresses.iter().enumerate() {
        difference |= address.wrapping_sub(addresses[0]) ^ (lane as u64 * bytes);
    }
    difference == 0
}

/// Number of lanes in a row: groups of lanes that often share one address, or the addresses of the
/// previous row.
pub(super) const ROW: usize = 8;

/// Returns the lanes that share an address with the previous lane, and with the same lane of the
/// previous row, if that is in the mask.
#[inline(always)]
pub(super) fn repeated(addresses: &[u64; LANES], mask: u32) -> [u32; 2] {
    let [near, far] = repeats(addresses);
    [near & mask & mask << 1, far & mask & mask << ROW]
}

impl Env<'_> {
    /// Counts an access of a warp to global or shared memory; local and generic accesses are not
    /// counted.
    #[inline(always)]
    pub(crate) fn count(
        &mut self,
        space: Space,
        addresses: &[u64; LANES],
        mask: u32,
        bytes: u8,
        store: bool,
    ) {
        match space {
            Space::Global => self.count_global(addresses, mask, bytes, store),
            Space::Shared => self.count_shared(addresses, mask, bytes),
            Space::Local | Space::Generic => {}
        }
    }

    /// Counts an access of a warp to global memory.
    pub(crate) fn count_global(
        &mut self,
        addresses: &[u64; LANES],
        mask: u32,
        bytes: u8,
        store: bool,
    ) {
        self.count_bytes(mask, bytes, store);
        if mask == !0 && linear(addresses, u64::from(bytes)) {
            let first = addresses[0] >> 5;
            let end = (addresses[LANES - 1].wrapping_add(u64::from(bytes) - 1) >> 5) + 1;
            for line in first >> 2..=(end - 1) >> 2 {
                let (from, to) = (first.max(line << 2) & 3, (end - (line << 2)).min(4));
                let mask = ((1u64 << to) - 1) & !((1 << from) - 1);
                self.counters.sectors += u64::from(mask.count_ones());
                self.counters.sectors_missed += self.cache.touch(line, mask);
            }
            return;
        }
        self.count_sectors(addresses, mask);
    }

    /// Counts the bytes that lanes load from or store to global memory.
    #[inline(always)]
    pub(super) fn count_bytes(&mut self, mask: u32, bytes: u8, store: bool) {
        let total = u64::from(mask.count_ones()) * u64::from(bytes);
        if store {
            self.counters.bytes_stored += total;
        } else {
            self.counters.bytes_loaded += total;
        }
    }

    /// Counts the sectors in which accesses of lanes begin.
    pub(super) fn count_sectors(&mut self, addresses: &[u64; LANES], mask: u32) {
        let mut sectors = [0u64; LANES];
        let (mut count, mut sorted) = (0, true);
        for lane in Each(mask) {
            let sector = addresses[lane] >> 5;
            if count > 0 && sectors[count - 1] == sector {
                continue;
            }
            sorted &= count == 0 || sectors[count - 1] < sector;
            sectors[count] = sector;
            count += 1;
        }
        let sectors = &mut sectors[..count];
        if !sorted {
            sectors.sort_unstable();
        }
        let mut rest = &*sectors;
        while let Some(first) = rest.first() {
            let line = first >> 2;
            let (mut mask, mut count) = (0, 0);
            for sector in rest.iter().take_while(|&sector| sector >> 2 == line) {
                mask |= 1u64 << (sector & 3);
                count += 1;
            }
            rest = &rest[count..];
            self.counters.sectors += u64::from(mask.count_ones());
            self.counters.sectors_missed += self.cache.touch(line, mask);
        }
    }

    /// Counts an access of a warp to shared memory, and its passes beyond those that the width
    /// requires.
    pub(crate) fn count_shared(&mut self, addresses: &[u64; LANES], mask: u32, bytes: u8) {
        self.counters.shared_bytes += u64::from(mask.count_ones()) * u64::from(bytes);
        // Consecutive addresses have no bank conflicts.
        if linear(addresses, bytes.into()) {
            return;
        }
        let lanes = match bytes {
            8 => 16,
            16 => 8,
            _ => 32,
        };
        for first in (0..LANES).step_by(lanes) {
            let group = mask >> first & (((1u64 << lanes) - 1) as u32);
            if group == 0 {
                continue;
            }
            let mut words = [0u32; LANES];
            let mut count = 0;
            let mut used = 0u32;
            let mut clash = false;
            for lane in Each(group) {
                let word = (addresses[first + lane] / 4) as u32;
                if count > 0 && words[count - 1] == word {
                    continue;
                }
                // A wide access covers adjacent banks; its first one represents them.
                let bank = 1 << (word % 32);
                clash |= used & bank != 0;
                used |= bank;
                words[count] = word;
                count += 1;
            }
            if clash {
                let words = &mut words[..count];
                words.sort_unstable();
                let mut depth = [0u8; 32];
                let mut last = None;
                for &word in words.iter() {
                    if last != Some(word) {
                        depth[(word % 32) as usize] += 1;
                    }
                    last = Some(word);
                }
                let passes = depth.iter().max().copied().unwrap_or(1);
                self.counters.bank_conflicts += u64::from(passes.saturating_sub(1));
            }
        }
    }
}
