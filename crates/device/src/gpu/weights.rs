//! A weight read from its source into memory that the CPU sees, laid out as the kernels read it.

use super::layout::WeightLayout;
use crate::{Error, Result, WeightSource};

/// Bytes that are read and laid out at a time.
pub(super) const PIECE: usize = 1 << 20;

/// Fills `place`, which holds the whole weight.
///
/// # Errors
/// [`Error::Weight`] when the source fails.
pub(super) fn fill(
    weight: &str,
    layout: &WeightLayout,
    source: &dyn WeightSource,
    place: &mut [u8],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let failed = |source| Error::Weight { weight: weight.to_owned(), source };
    match layout {
        WeightLayout::Matrix(layout) => {
            let row = layout.file_row_bytes();
            let rows = (PIECE / row).max(1);
            let total = layout.rows();
            let mut piece = vec![0; rows.min(total) * row];
            for first in (0..total).step_by(rows) {
                let piece = &mut piece[..rows.min(total - first) * row];
                source.read_at((first * row) as u64, piece).map_err(failed)?;
                layout.pack(first, piece, place).map_err(|e| failed(Box::new(e)))?;
                progress(piece.len() as u64);
            }
        }
        WeightLayout::Plain(_) => {
            for (i, piece) in place.chunks_mut(PIECE).enumerate() {
                source.read_at((i * PIECE) as u64, piece).map_err(failed)?;
                progress(piece.len() as u64);
            }
        }
    }
    Ok(())
}
