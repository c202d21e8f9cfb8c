//! Layout of the KV cache: slots, positions, and rings of layers with a sliding window.

use crate::hyper::Attention;

/// Sizes of the KV cache: slots, and positions of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    pub slots: usize,
    pub context: usize,
    /// Rows of the longest chunk, if layers with a sliding window cache only that window, in a ring. The ring has
    /// room for one chunk in addition to the window.
    pub ring: Option<usize>,
}

/// The fewest hidden states that a model with a nextn layer stores for drafts; more if it has more slots.
pub const MIN_NEXTN_ROWS: usize = 16;

/// Positions of a span, which devices read at once. Rings are multiples of it, so that each span is contiguous.
pub(crate) const SPAN: usize = 32;

impl KvLayout {
    /// Number of positions of a layer's cache in a slot, and whether it is a ring. The window's first span is read
    /// whole, positions before the window with weight 0. So no row of a chunk may overwrite it before the chunk's
    /// first row has read it.
    pub(crate) fn positions(self, attention: &Attention) -> (usize, bool) {
        let (Some(chunk), Some(window)) = (self.ring, attention.scores.window) else {
            return (self.context, false);
        };
        let needed = (window - 1).saturating_add(SPAN - 1).saturating_add(chunk);
        let needed = needed.checked_next_multiple_of(SPAN);
        needed.filter(|needed| *needed < self.context).map_or((self.context, false), |n| (n, true))
    }

    /// Rows of [`crate::ports::NEXTN_HIDDEN`].
    pub(crate) fn hidden_rows(self) -> usize {
        self.slots.max(MIN_NEXTN_ROWS)
    }

    /// Shape of a layer's keys, and of its values.
    pub(crate) fn shape(self, attention: &Attention) -> [usize; 4] {
        let (positions, _) = self.positions(attention);
        [self.slots, positions, attention.kv_heads, attention.head_size]
    }
}
