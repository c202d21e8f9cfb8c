//! Two products of matrices and what is done to each row between them, as in attention: some rows of the first one's result are
//! brought through all of it while they are in a core's cache.

use super::matmul::MatMul;
use super::pool::Worker;
use super::row_fusion::FusedRows;
use simd::Isa;

/// Bytes of rows that are brought through together: half of a core's second-level cache, beside the columns that stream by.
const BYTES: usize = 1 << 18;

pub(super) struct MatMulChain {
    /// Columns of both products are in panels.
    pub(super) first: MatMul,
    /// What is done to the rows of its result.
    pub(super) rows: FusedRows,
    /// The product of what becomes of them.
    pub(super) second: MatMul,
}

impl MatMulChain {
    /// This thread's share, with scratch for the registers of what is done between.
    ///
    /// # Safety
    ///
    /// As for [`MatMul::run`] and [`FusedRows::run`]; what is done to a row reads no other.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        let [m, ..] = self.first.shape;
        let (rows, pairs) = (isa.tile().rows(m), self.first.count());
        let most = BYTES / (4 * self.rows.length * isa.tile().rows);
        let parts = rows.count.div_ceil(most.max(1));
        while let Some(items) = w.claim(pairs * parts, 1) {
            let (pair, part) = (items.start / parts, items.start % parts);
            let panels = rows.count * part / parts..rows.count * (part + 1) / parts;
            let [first, end] =
                [panels.start, panels.end].map(|panel| pair * m + rows.before(panel));
            // SAFETY: the caller's contract: an item is one thread's.
            unsafe {
                self.first.rows(isa, pair, panels.clone(), scratch);
                for row in (first..end).step_by(self.rows.together()) {
                    let rows = row..end.min(row + self.rows.together());
                    self.rows.some(isa, rows, scratch);
                }
                self.second.rows(isa, pair, panels, scratch);
            }
        }
    }
}
