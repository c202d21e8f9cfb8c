//! Winograd convolution F(2x2, 3x3) (Lavin and Gray, <https://arxiv.org/abs/1509.09308>): 16 products for 4 results
//! instead of 36, for 3 by 3 windows with stride 1.
//!
//! A tile of 4 by 4 elements is transformed to 16 values. These are multiplied with 16 transformed weights and
//! summed over the channels. The 16 sums are transformed to 4 results. All three transforms are linear, with
//! factors of 1 and 1/2.

use super::dense::{Function, applied};
use super::isa::dispatch;
use super::vector::{LANES, Simd};

/// Values of a transformed tile.
pub const TAPS: usize = 16;

dispatch! {
    /// Transforms `n` tiles, two elements apart, of four lines. Each line has its even elements, and `part` values
    /// further on its odd ones. Each of the [`TAPS`] is written `apart` values behind the previous one.
    ///
    /// # Safety
    ///
    /// Each part of the lines has `n` values, rounded up to whole vectors, and one more; `out` has space for `n`
    /// values per tap, rounded up.
    pub unsafe fn tiles(lines: [*const f32; 4], part: usize, n: usize, out: *mut f32, apart: usize) = tiles_in;

    /// Transforms the sums of `n` tiles to two lines of `2 n` results, adds `bias` and applies `function`. The sums
    /// of a tap are `apart` values behind those of the previous tap.
    ///
    /// # Safety
    ///
    /// `sums` has `n` values of each tap, and each line has space for `2 n`, rounded up to whole vectors.
    pub unsafe fn results(sums: *const f32, apart: usize, n: usize, bias: f32, function: Function, lines: [*mut f32; 2]) = results_in;
}

/// Transforms the weights of a window.
#[must_use]
pub fn weights(g: [[f32; 3]; 3]) -> [f32; TAPS] {
    let line = |[a, b, c]: [f32; 3]| {
        let (ends, middle) = (0.5 * (a + c), 0.5 * b);
        [a, ends + middle, ends - middle, c]
    };
    let down: [[f32; 4]; 3] =
        std::array::from_fn(|column| line(std::array::from_fn(|row| g[row][column])));
    let mut all = [0.0; TAPS];
    for (row, all) in all.chunks_exact_mut(4).enumerate() {
        all.copy_from_slice(&line(std::array::from_fn(|column| down[column][row])));
    }
    all
}

#[inline(always)]
unsafe fn tiles_in<S: Simd>(
    lines: [*const f32; 4],
    part: usize,
    n: usize,
    out: *mut f32,
    apart: usize,
) {
    for first in (0..n).step_by(LANES) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut down = [[S::splat(0.0); 4]; 4];
            for (column, down) in down.iter_mut().enumerate() {
                let at = first + column / 2 + column % 2 * part;
                let [a, b, c, d] = [0, 1, 2, 3].map(|line: usize| lines[line].add(at));
                let (a, b, c, d) = (S::load(a), S::load(b), S::load(c), S::load(d));
                *down = [S::sub(a, c), S::add(b, c), S::sub(c, b), S::sub(b, d)];
            }
            let [a, b, c, d] = down;
            for row in 0..4 {
                let out = out.add(first + 4 * row * apart);
                S::store(out, S::sub(a[row], c[row]));
                S::store(out.add(apart), S::add(b[row], c[row]));
                S::store(out.add(2 * apart), S::sub(c[row], b[row]));
                S::store(out.add(3 * apart), S::sub(b[row], d[row]));
            }
        }
    }
}

#[inline(always)]
unsafe fn results_in<S: Simd>(
    sums: *const f32,
    apart: usize,
    n: usize,
    bias: f32,
    function: Function,
    lines: [*mut f32; 2],
) {
    for first in (0..n).step_by(LANES) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut down = [[S::splat(0.0); 2]; 4];
            for (column, down) in down.iter_mut().enumerate() {
                let at = sums.add(first + column * apart);
                let (a, b) = (S::load(at), S::load(at.add(4 * apart)));
                let (c, d) = (S::load(at.add(8 * apart)), S::load(at.add(12 * apart)));
                *down = [S::add(S::add(a, b), c), S::sub(S::sub(b, c), d)];
            }
            let [a, b, c, d] = down;
            for (row, line) in lines.into_iter().enumerate() {
                let even = S::add(S::add(S::add(a[row], b[row]), c[row]), S::splat(bias));
                let odd = S::add(S::sub(S::sub(b[row], c[row]), d[row]), S::splat(bias));
                let [even, odd] = [applied::<S>(function, even), applied::<S>(function, odd)];
                let [low, high] = S::interleaved(even, odd);
                S::store(line.add(2 * first), low);
                S::store(line.add(2 * first + LANES), high);
            }
        }
    }
}
