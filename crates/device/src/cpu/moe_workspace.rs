//! Buffers of a mixture of experts: their sizes, and their offsets in the scratch of a step.

use simd::activations;

/// The pairs of one expert.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub(super) expert: usize,
    /// Index of its first pair.
    pub(super) first: usize,
    pub(super) pairs: usize,
    /// Number of tiles in the segments before it.
    pub(super) tiles: usize,
}

/// Buffers between the kernel calls of an MoE layer.
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    /// Chosen experts of each row, best first, and their weights.
    pub(super) chosen: *mut u32,
    pub(super) weights: *mut f32,
    /// Place of each pair in sorted order, and the row of each place.
    pub(super) places: *mut u32,
    pub(super) rows: *mut u32,
    /// Segments, sorted by expert, and the totals of all segments.
    pub(super) segments: *mut Segment,
    pub(super) ends: *mut Ends,
    /// One row of hidden values, and one of results, per pair.
    pub(super) hidden: *mut f32,
    pub(super) results: *mut f32,
}

#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) segments: usize,
    pub(super) tiles: usize,
}

/// Memory that an MoE layer needs beyond its operands.
pub(super) struct Needs {
    pairs: usize,
    experts: usize,
    hidden: usize,
    /// Number of activation blocks.
    pub(super) blocks: usize,
    pub(super) bytes: usize,
}

impl Needs {
    pub(super) fn of(mixture: &plan::Mixture) -> Self {
        let [rows, width] = mixture.x.shape[..] else { unreachable!("plans are validated") };
        let (pairs, experts) = (rows * mixture.routing.chosen, mixture.experts());
        let hidden = mixture.hidden();
        let blocks = pairs * activations::blocks(width.max(hidden));
        let mut needs = Self { pairs, experts, hidden, blocks, bytes: 0 };
        needs.bytes = needs.offsets().last().map_or(0, |start| start + 4 * pairs * width);
        needs
    }

    /// Offset of each of [`Buffers`].
    fn offsets(&self) -> [usize; 8] {
        let pairs = 4 * self.pairs;
        let sizes = [
            size_of::<Ends>(),
            self.experts * size_of::<Segment>(),
            pairs,
            pairs,
            pairs,
            pairs,
            pairs * self.hidden,
        ];
        let mut offsets = [0; 8];
        for (i, size) in sizes.into_iter().enumerate() {
            offsets[i + 1] = offsets[i] + size.next_multiple_of(64);
        }
        offsets
    }

    /// The buffers in memory from `base` on.
    pub(super) fn at(&self, base: *mut u8) -> Buffers {
        let [ends, segments, chosen, weights, places, rows, hidden, results] =
            self.offsets().map(|offset| base.wrapping_add(offset));
        Buffers {
            chosen: chosen.cast(),
            weights: weights.cast(),
            places: places.cast(),
            rows: rows.cast(),
            segments: segments.cast(),
            ends: ends.cast(),
            hidden: hidden.cast(),
            results: results.cast(),
        }
    }
}

impl Buffers {
    /// # Safety
    ///
    /// The group phase has run, and no other code writes the buffers meanwhile.
    pub(super) const unsafe fn segments(&self) -> (&[Segment], usize) {
        // SAFETY: the caller's contract: as many have been written.
        unsafe {
            let Ends { segments, tiles } = *self.ends;
            (std::slice::from_raw_parts(self.segments, segments), tiles)
        }
    }
}
