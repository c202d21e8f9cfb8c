//! Operands of kernel calls: an address and sizes in place of a plan's view.

use super::layout::Cache;
use super::packed_operand::PackedOperand;
use plan::Recurrence;
use simd::packed::PackedLayout;

/// A tensor of an operation, resolved for an instance's memory.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) address: *mut u8,
    pub(super) storage: Storage,
    /// Extent of the first axis.
    pub(super) first: usize,
    /// Extent of the last axis.
    pub(super) last: usize,
    pub(super) elements: usize,
    /// Elements between neighbouring rows.
    pub(super) stride: usize,
}

/// Form in which an operand is stored.
#[derive(Clone, Copy)]
pub(super) enum Storage {
    /// Elements of 4 bytes.
    Plain,
    /// A packed weight matrix, or one per expert.
    Matrix(PackedLayout),
    /// The packed columns of a tensor product.
    Packed(PackedOperand),
    Cache(Cache),
}

/// A packed weight matrix.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) layout: PackedLayout,
    packed: *const u8,
}

impl Matrix {
    /// The packed bytes of matrix `index`: 0, or an expert.
    ///
    /// # Safety
    ///
    /// There is such a matrix. The weights do not change while the slice is used, as they do not while a program runs.
    pub(super) const unsafe fn weights(&self, index: usize) -> &[u8] {
        let bytes = self.layout.bytes();
        // SAFETY: the caller's contract; a matrix has the size of its layout.
        unsafe { std::slice::from_raw_parts(self.packed.add(index * bytes), bytes) }
    }
}

impl Operand {
    pub(super) const fn f32(&self) -> *mut f32 {
        self.address.cast()
    }

    pub(super) const fn i32(&self) -> *mut i32 {
        self.address.cast()
    }

    /// Product of all axes but the last.
    pub(super) fn rows(&self) -> usize {
        self.elements / self.last.max(1)
    }

    /// Product of all axes but the first and the last: heads, of `[M, H, D]`.
    pub(super) fn heads(&self) -> usize {
        self.rows() / self.first.max(1)
    }

    /// # Panics
    ///
    /// Another form of operand: the resolver has checked it.
    pub(super) fn matrix(&self) -> Matrix {
        let Storage::Matrix(layout) = self.storage else { unreachable!("not a weight matrix") };
        Matrix { layout, packed: self.address }
    }

    /// # Panics
    ///
    /// Another form of operand: the resolver has checked it.
    pub(super) fn cache(&self) -> Cache {
        let Storage::Cache(cache) = self.storage else { unreachable!("not a KV cache") };
        cache
    }
}

/// Sequences of a step that a recurrent layer advances.
pub(super) fn sequences(memory: &Recurrence<Operand>) -> usize {
    memory.rows.slots.elements / memory.chunk.max(1)
}

/// Elements of one version of a slot's state.
pub(super) fn version_size(memory: &Recurrence<Operand>) -> usize {
    memory.state.elements / (2 * memory.state.first).max(1)
}
