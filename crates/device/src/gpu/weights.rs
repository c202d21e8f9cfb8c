//! Upload of a weight: reads it from its source and packs it into CPU-visible memory.

use super::storage::{Numbers, WeightLayout};
use crate::{Error, Result, Source, WeightSource};
use plan::quant;

/// Bytes read and packed at a time.
pub(super) const PIECE: usize = 1 << 20;
/// Alignment of pieces of plain numbers in bytes; at least the largest block of any type.
pub(super) const WHOLE: usize = 4 * 256;

impl Numbers {
    /// Reads the numbers stored from byte `at` on, in whole blocks of the file. Returns the number
    /// of file bytes.
    pub(super) fn read(
        &self,
        source: &dyn WeightSource,
        at: usize,
        to: &mut [u8],
    ) -> Result<u64, Source> {
        if !self.dtype.is_quantised() {
            source.read_at(at as u64, to)?;
            return Ok(to.len() as u64);
        }
        let stored = |bytes: usize| bytes / 4 / self.dtype.block_len() * self.dtype.block_bytes();
        let (mut blocks, mut values) = (vec![0; stored(to.len())], vec![0.0; to.len() / 4]);
        source.read_at(stored(at) as u64, &mut blocks)?;
        quant::dequantise(self.dtype, &blocks, &mut values)?;
        for (to, value) in to.as_chunks_mut().0.iter_mut().zip(values) {
            *to = value.to_le_bytes();
        }
        Ok(blocks.len() as u64)
    }
}

/// Fills `place`, which has the size of the whole weight.
///
/// # Errors
///
/// [`Error::Weight`] if the source fails.
pub(super) fn fill(
    weight: &str,
    layout: &WeightLayout,
    source: &dyn WeightSource,
    place: &mut [u8],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let failed = |source| Error::Weight { weight: weight.to_owned(), source };
    let behind = layout.numbers().map_or(place.len(), |numbers| numbers.at as usize);
    let (place, plain) = place.split_at_mut(behind);
    if let Some(numbers) = layout.numbers() {
        for (i, piece) in plain.chunks_mut(PIECE).enumerate() {
            let read = numbers.read(source, i * PIECE, piece).map_err(failed)?;
            // A weight that is read twice is reported once.
            if layout.matrices().is_none() {
                progress(read);
            }
        }
    }
    let Some((matrix, _)) = layout.matrices() else { return Ok(()) };
    let (row, total) = (matrix.file_row_bytes(), matrix.rows());
    let rows = (PIECE / row).max(1);
    let mut piece = vec![0; rows.min(total) * row];
    for (number, place) in place.chunks_mut(layout.stride() as usize).enumerate() {
        let place = &mut place[..matrix.bytes()];
        for first in (0..total).step_by(rows) {
            let piece = &mut piece[..rows.min(total - first) * row];
            let at = (number * total + first) * row;
            source.read_at(at as u64, piece).map_err(failed)?;
            matrix.pack(first, piece, place).map_err(|e| failed(Box::new(e)))?;
            progress(piece.len() as u64);
        }
    }
    Ok(())
}
