//! Products of matrices that are no weights: of activations with each other, and of gradients.
//!
//! The `matrixmultiply` crate computes them: it takes any strides, so that a transposed operand is a view, has kernels for
//! AVX2, AVX-512 and NEON, and brings one crate with it (`gemm` brings seventeen). Threads divide matrices where there are as
//! many, else the longer side of each.

use super::group::Width;
use super::pool::Worker;
use plan::View;

/// A matrix in memory: its first element, and elements between rows and columns.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) at: *const f32,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// `a [m, k]` times the transpose of `b [n, k]`, for each of some pairs.
pub(super) struct MatMul {
    pub(super) a: Operand,
    pub(super) b: Operand,
    /// Axes of pairs: how many, and elements between them in `a` and in `b`.
    pub(super) pairs: Vec<(usize, usize, usize)>,
    pub(super) shape: [usize; 3],
    pub(super) out: *mut f32,
}

/// Whether an operand must be put into `f32` values of its own first: the product reads no halves, and no value for
/// several places.
pub(super) fn is_copied(view: &View, width: Width) -> bool {
    let mut axes = view.shape.iter().zip(&view.strides).rev().take(2);
    width != Width::Word || axes.any(|(n, stride)| *n > 1 && *stride == 0)
}

impl MatMul {
    /// # Safety
    ///
    /// The addresses are valid, all threads are here, and nobody else touches what it writes.
    pub(super) unsafe fn run(&self, w: &Worker<'_>) {
        let [m, n, _] = self.shape;
        let count: usize = self.pairs.iter().map(|(n, ..)| n).product();
        if count >= w.threads() {
            for pair in w.part(count) {
                // SAFETY: the caller's contract; pairs are divided among the threads.
                unsafe { self.part(pair, 0..m, 0..n) };
            }
            return;
        }
        let (rows, columns) = if m >= n { (w.part(m), 0..n) } else { (0..m, w.part(n)) };
        for pair in 0..count {
            // SAFETY: the caller's contract; each pair is divided among the threads.
            unsafe { self.part(pair, rows.clone(), columns.clone()) };
        }
    }

    /// # Safety
    ///
    /// As for [`MatMul::run`], and nobody else computes this part.
    unsafe fn part(
        &self,
        pair: usize,
        rows: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
    ) {
        if rows.is_empty() || columns.is_empty() {
            return;
        }
        let [m, n, k] = self.shape;
        let (mut a, mut b, mut left) = (0, 0, pair);
        for &(extent, of_a, of_b) in self.pairs.iter().rev() {
            (a, b) = (a + left % extent * of_a, b + left % extent * of_b);
            left /= extent;
        }
        let step = usize::cast_signed;
        // SAFETY: the caller's contract: the operands' elements are there, and the part is this thread's.
        unsafe {
            let out = self.out.add(pair * m * n + rows.start * n + columns.start);
            if k == 0 {
                for row in 0..rows.len() {
                    out.add(row * n).write_bytes(0, columns.len());
                }
                return;
            }
            matrixmultiply::sgemm(
                rows.len(),
                k,
                columns.len(),
                1.0,
                self.a.at.add(a + rows.start * self.a.rows),
                step(self.a.rows),
                step(self.a.columns),
                self.b.at.add(b + columns.start * self.b.rows),
                step(self.b.columns),
                step(self.b.rows),
                0.0,
                out,
                step(n),
                1,
            );
        }
    }
}
