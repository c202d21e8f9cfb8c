//! Fused `matmul -> row operations -> matmul`, such as attention: some rows of the first result pass through all of
//! it while they are in a core's cache.

use super::matmul::MatMul;
use super::pool::Worker;
use super::row_fusion::FusedRows;
use simd::Isa;

/// Bytes of rows that are processed together: half of a core's second-level cache, because columns stream through
/// it too.
const BYTES: usize = 1 << 18;

pub(super) struct MatMulChain {
    /// The columns of both products are packed.
    pub(super) first: MatMul,
    /// Row operations on the first result.
    pub(super) rows: FusedRows,
    /// The product with their result.
    pub(super) second: MatMul,
}

impl MatMulChain {
    /// Computes this thread's share. Scratch contains the registers of the row operations.
    ///
    /// # Safety
    ///
    /// As for [`MatMul::run`] and [`FusedRows::run`]; no row operation reads another row.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        let [m, ..] = self.first.shape;
        let (rows, pairs) = (isa.tile().rows(m), self.first.count());
        let most = BYTES / (4 * self.rows.length * isa.tile().rows);
        let parts = rows.count.div_ceil(most.max(1));
        while let Some(items) = w.claim(pairs * parts, 1) {
            let (pair, part) = (items.start / parts, items.start % parts);
            let row_tiles = rows.count * part / parts..rows.count * (part + 1) / parts;
            let [first, end] =
                [row_tiles.start, row_tiles.end].map(|tile| pair * m + rows.before(tile));
            // SAFETY: the caller's contract: an item is one thread's.
            unsafe {
                self.first.rows(isa, pair, row_tiles.clone(), scratch);
                for row in (first..end).step_by(self.rows.rows_per_pass()) {
                    let rows = row..end.min(row + self.rows.rows_per_pass());
                    self.rows.run_rows(isa, rows, scratch);
                }
                self.second.rows(isa, pair, row_tiles, scratch);
            }
        }
    }
}
