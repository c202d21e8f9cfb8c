//! Interface of a matrix unit, and a software model of one in plain Rust.

use super::LANES;

/// Products of small matrices of bytes.
///
/// A *tile product* multiplies `ROWS` rows (at most 16) of `COLUMNS` activations (16 or 32) with as many columns of
/// 16 matrix rows. Group `g` of 64 bytes contains columns `4g..4g+4` of all 16 rows. Bytes are signed, sums exact.
///
/// # Safety
///
/// Every function requires the unit, as [`Simd`](super::Simd) requires its instructions. No other code uses the
/// unit on this thread between [`Tiles::open`] and [`Tiles::close`].
pub(crate) trait Tiles {
    /// Configures the unit for products of a shape.
    unsafe fn open<const ROWS: usize, const COLUMNS: usize>();

    /// Computes two tile products. Rows of activations `x` are 64 bytes apart; groups of weights `w`, and the 16
    /// sums of each row in `out`, are contiguous.
    ///
    /// # Safety
    ///
    /// All operands are valid, and the unit is configured for the shape.
    unsafe fn products<const ROWS: usize, const COLUMNS: usize>(
        x: [*const i8; 2],
        w: [*const u8; 2],
        out: [*mut i32; 2],
    );

    /// Releases the unit's registers.
    unsafe fn close();
}

/// Software model: the definition of every operation.
pub(crate) struct Model;

impl Tiles for Model {
    unsafe fn open<const ROWS: usize, const COLUMNS: usize>() {}

    unsafe fn products<const ROWS: usize, const COLUMNS: usize>(
        x: [*const i8; 2],
        w: [*const u8; 2],
        out: [*mut i32; 2],
    ) {
        for ((x, w), out) in x.into_iter().zip(w).zip(out) {
            for (row, lane) in (0..ROWS).flat_map(|row| (0..LANES).map(move |lane| (row, lane))) {
                let product = |k: usize| {
                    // SAFETY: the caller's contract.
                    let (x, w) =
                        unsafe { (*x.add(64 * row + k), *w.add(64 * (k / 4) + 4 * lane + k % 4)) };
                    i32::from(x) * i32::from(w.cast_signed())
                };
                // SAFETY: as above.
                unsafe { *out.add(LANES * row + lane) = (0..COLUMNS).map(product).sum() };
            }
        }
    }

    unsafe fn close() {}
}
