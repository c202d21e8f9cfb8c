//! What kernels ask of a matrix unit, and the model of one in plain Rust.

use super::LANES;

/// Products of small matrices of bytes.
///
/// A *tile product* takes `ROWS` rows (at most 16) of `COLUMNS` activations (16 or 32), and as many columns of 16
/// rows of a matrix, columns `4g..4g+4` of all of them in group `g` of 64 bytes. Bytes are signed, sums exact.
///
/// # Safety
///
/// Every function requires the unit, as [`Simd`](super::Simd) requires its instructions. Nothing else uses the unit
/// on this thread between [`Tiles::open`] and [`Tiles::close`].
pub(crate) trait Tiles {
    /// Prepares the thread for products of a shape.
    unsafe fn open<const ROWS: usize, const COLUMNS: usize>();

    /// Two tile products. Rows of activations `x` lie 64 bytes apart, groups of weights `w` one after the other, and
    /// so do the 16 sums of each row in `out`.
    ///
    /// # Safety
    ///
    /// What is named is valid, and the thread is open for the shape.
    unsafe fn products<const ROWS: usize, const COLUMNS: usize>(
        x: [*const i8; 2],
        w: [*const u8; 2],
        out: [*mut i32; 2],
    );

    /// Gives the unit's registers back.
    unsafe fn close();
}

/// The meaning of every operation.
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
