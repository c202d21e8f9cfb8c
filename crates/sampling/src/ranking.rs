//! Tokens in ascending order of a key, sorted only as far as the order is read.

/// First prefix that is sorted; each further one doubles it.
const FIRST: usize = 256;

/// Ids with their keys, lower ids first among equal keys.
#[derive(Debug, Default)]
pub(crate) struct Ranking {
    keyed: Vec<(u64, u32)>,
    /// Length of the prefix that has its final order.
    sorted: usize,
}

impl Ranking {
    /// Ranks ids by a key that is computed once for each.
    pub(crate) fn fill(&mut self, keyed: impl Iterator<Item = (u64, u32)>) {
        self.keyed.clear();
        self.keyed.extend(keyed);
        self.sorted = 0;
    }

    /// Id at a rank.
    pub(crate) fn get(&mut self, rank: usize) -> Option<u32> {
        if rank >= self.keyed.len() {
            return None;
        }
        while rank >= self.sorted {
            let rest = &mut self.keyed[self.sorted..];
            let count = self.sorted.max(FIRST).min(rest.len());
            if count < rest.len() {
                rest.select_nth_unstable(count);
            }
            rest[..count].sort_unstable();
            self.sorted += count;
        }
        Some(self.keyed[rank].1)
    }

    /// Ids at and behind a rank, in no particular order. [`Self::get`] has been called for the rank before it.
    pub(crate) fn rest(&self, rank: usize) -> impl Iterator<Item = u32> {
        debug_assert!(rank <= self.sorted);
        self.keyed.iter().skip(rank).map(|(_, id)| *id)
    }
}

/// Key that ascends with a value that is not negative, as [`f64::total_cmp`] orders it.
pub(crate) const fn ascending(distance: f64) -> u64 {
    distance.to_bits()
}

/// Key that ascends where [`f32::total_cmp`] descends.
pub(crate) const fn descending(logit: f32) -> u64 {
    let bits = logit.to_bits();
    let negative = bits >> 31 != 0;
    (if negative { bits } else { !bits & (u32::MAX >> 1) }) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_order_values_as_total_cmp_does(a: u32, b: u32, c: f64, d: f64) {
            let (x, y) = (f32::from_bits(a), f32::from_bits(b));
            prop_assert_eq!(descending(x).cmp(&descending(y)), y.total_cmp(&x));
            let (c, d) = (c.abs(), d.abs());
            prop_assert_eq!(ascending(c).cmp(&ascending(d)), c.total_cmp(&d));
        }

        #[test]
        fn every_rank_is_that_of_a_full_sort(
            keys in prop::collection::vec(0..40u64, 0..2000),
            ranks in prop::collection::vec(0..2100usize, 1..8),
        ) {
            let mut ranking = Ranking::default();
            ranking.fill(keys.iter().copied().zip(0..));
            let mut order: Vec<_> = keys.iter().copied().zip(0u32..).collect();
            order.sort_unstable();
            for rank in ranks {
                prop_assert_eq!(ranking.get(rank), order.get(rank).map(|(_, id)| *id));
            }
        }
    }
}
