//! State that the kernel calls of a program share: memory, instruction set, rows, and scratch for sampling.

use std::cell::UnsafeCell;

use super::memory::Memory;
use super::operand::Matrix;
use plan::sample::Candidate;
use simd::Isa;
use simd::matmul::{Activations, Q8Activations};

/// Columns per work item when activations are packed without a norm: whole scale groups, so that few rows still occupy
/// all threads.
pub(super) const PACK_COLUMNS: usize = 1024;

/// Everything that a kernel call needs beyond its operands.
pub(super) struct Context<'a> {
    pub(super) isa: Isa,
    pub(super) memory: &'a Memory,
    pub(super) sampling: &'a SamplingScratch,
    /// Token rows of the bucket.
    pub(super) rows: usize,
    /// Rows before the trailing padding.
    pub(super) active: usize,
}

impl Context<'_> {
    /// Rows to compute of a call with `rows` rows: padding is skipped.
    pub(super) fn rows(&self, rows: usize) -> usize {
        if rows == self.rows { self.active } else { rows }
    }

    /// The activations that the last pack call prepared, in the form that `matrix` needs.
    pub(super) fn activations(
        &self,
        matrix: &Matrix,
        residual_planes: usize,
        used_planes: usize,
    ) -> Activations {
        if matrix.layout.quantised() {
            let blocks = self.memory.q8();
            Activations::Q8(Q8Activations { blocks, residual_planes, used_planes })
        } else {
            Activations::F32(self.memory.f32())
        }
    }
}

/// Sampling buffers, one set per thread.
pub(super) struct SamplingScratch(Vec<UnsafeCell<Sampler>>);

/// Buffers for sampling one row.
pub(super) struct Sampler {
    pub(super) candidates: Vec<Candidate>,
    /// Logits after logit edits.
    pub(super) edited: Vec<f32>,
}

// SAFETY: entry `i` is only touched by thread `i` of a region.
unsafe impl Sync for SamplingScratch {}

impl SamplingScratch {
    pub(super) fn new(threads: usize, vocabulary: usize) -> Self {
        let sampler = || Sampler {
            candidates: Vec::with_capacity(vocabulary),
            edited: Vec::with_capacity(vocabulary),
        };
        Self((0..threads).map(|_| UnsafeCell::new(sampler())).collect())
    }

    /// The buffers of a thread.
    ///
    /// # Safety
    ///
    /// Only thread `index` of the region calls this, and has no other reference to them.
    #[expect(clippy::mut_from_ref, reason = "exclusive access is the caller's contract")]
    pub(super) unsafe fn of_thread(&self, index: usize) -> &mut Sampler {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.0[index].get() }
    }
}
