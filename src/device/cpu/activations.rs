//! Activation rows as the matrix kernels read them: 8-bit blocks for quantised weights, `f32`
//! blocks for plain ones.
//!
//! Up to [`TILE`] neighbouring rows form a *tile*; tiles follow one another, and inside one all rows'
//! first blocks come first, then all their second ones: a weight block held in registers meets a
//! tile's rows in one contiguous run, and a tile is one contiguous piece of the second-level cache.
//!
//! Where 8 bits are too coarse (what goes into a softmax) a second *plane* of 8-bit blocks holds
//! what the first one left over: it follows the block of the first, and a product adds both.
//!
//! Quantisation, per row and per 32 columns: `scale = max|x| / 127`, `q = round(x * (127 / max|x|))`
//! to nearest even. It depends on nothing but those 32 values. A block whose `max|x|` is below
//! 1e-30 becomes zero; a block with a NaN or an infinity gets a NaN scale, so that every output of
//! its row is NaN.

use super::isa::dispatch;
use super::simd::{BIAS, LANES, Simd, load_first};

/// Columns of a block.
pub const BLOCK: usize = 32;

/// Columns are padded with zeros to a multiple of this, the widest step of a weight format that may
/// not divide its row.
const STEP: usize = 64;

/// 32 quantised activations with what the weight formats need to correct their offsets: one cache
/// line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub struct Q8Block {
    /// The quantised values, -127 to 127.
    pub q: [i8; BLOCK],
    /// What one step is worth.
    pub scale: f32,
    /// Sum of `q`.
    pub sum: f32,
    /// `BIAS`, less 128 times the sum of `q`: where a dot product starts whose weights are 128 too
    /// large.
    pub less128: i32,
    /// `BIAS`, less 8 times the sum of `q`.
    pub less8: i32,
    /// `BIAS`, less 32 times the sum of the first half of `q`, and the second half's without `BIAS`.
    pub less32: [i32; 2],
    reserved: [u32; 2],
}

/// 32 activations as they are.
pub type F32Block = [f32; BLOCK];

/// Blocks of one row of `k` columns, padding included.
#[must_use]
pub const fn blocks(k: usize) -> usize {
    k.div_ceil(STEP) * (STEP / BLOCK)
}

/// Most rows of a tile.
pub const TILE: usize = 64;

/// Where a row's blocks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of its first block.
    pub first: usize,
    /// Distance from one of its blocks (or planes) to the next.
    pub step: usize,
}

/// Where the `count` blocks (of all planes) of row `row` of `rows` lie.
#[must_use]
pub const fn place(row: usize, rows: usize, count: usize) -> Place {
    let start = row / TILE * TILE;
    let step = if rows - start < TILE { rows - start } else { TILE };
    Place { first: start * count + row - start, step }
}

dispatch! {
    /// Quantises the `k` values at `x` into blocks from `dst`, `step` apart, in 1 or 2 planes.
    ///
    /// # Safety
    ///
    /// `x` is valid for `k` values; `dst` for `blocks(k) * planes` blocks so far apart, accessed by
    /// nobody else meanwhile.
    pub unsafe fn quantise(x: *const f32, k: usize, dst: *mut Q8Block, step: usize, planes: usize) = quantise_in;

    /// Copies the `k` values at `x` into blocks from `dst`, `step` apart.
    ///
    /// # Safety
    ///
    /// As for [`quantise`] with one plane.
    pub unsafe fn arrange(x: *const f32, k: usize, dst: *mut F32Block, step: usize) = arrange_in;
}

#[inline(always)]
unsafe fn quantise_in<S: Simd>(
    x: *const f32,
    k: usize,
    dst: *mut Q8Block,
    step: usize,
    planes: usize,
) {
    // SAFETY: the caller's contract; partial loads stop at `k`.
    unsafe {
        for b in 0..blocks(k) {
            let dst = dst.add(b * planes * step);
            let start = (b * BLOCK).min(k);
            let mid = (start + LANES).min(k);
            let x0 = load_first::<S>(x.add(start), mid - start);
            let x1 = load_first::<S>(x.add(mid), k - mid);
            let block = quantise_block::<S>(x0, x1);
            *dst = block;
            if planes == 2 {
                let worth = S::splat(0.0 - block.scale);
                let q = block.q.as_ptr();
                let left0 = S::fma(S::to_f(S::load_i8(q)), worth, x0);
                let left1 = S::fma(S::to_f(S::load_i8(q.add(LANES))), worth, x1);
                *dst.add(step) = quantise_block::<S>(left0, left1);
            }
        }
    }
}

/// The 32 values `x0`, `x1` as a block.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn quantise_block<S: Simd>(x0: S::F, x1: S::F) -> Q8Block {
    // SAFETY: the caller's contract; stores are into the block's own arrays.
    unsafe {
        let max = S::max_lanes(S::max(S::abs(x0), S::abs(x1)));
        // Zero, unless something is NaN or infinite.
        let zero = S::splat(0.0);
        let taint = S::sum(S::fma(x0, zero, S::mul(x1, zero)));
        let (less128, less8, less32) = (BIAS, BIAS, [BIAS, 0]);
        let mut block = Q8Block { less128, less8, less32, ..Q8Block::default() };
        let inverse = if max > 1e-30 { 127.0 / max } else { 0.0 };
        let (i0, i1) =
            (S::round_i(S::mul(x0, S::splat(inverse))), S::round_i(S::mul(x1, S::splat(inverse))));
        S::store_i8(block.q.as_mut_ptr(), i0);
        S::store_i8(block.q.as_mut_ptr().add(LANES), i1);
        #[expect(clippy::cast_possible_truncation, reason = "integers below 2^11, or a NaN block")]
        let (s0, s1) = (S::sum(S::to_f(i0)) as i32, S::sum(S::to_f(i1)) as i32);
        let tainted = taint.is_nan();
        if max > 1e-30 || tainted {
            block.scale = if tainted { f32::NAN } else { max / 127.0 };
        }
        if !tainted {
            let sum = s0 + s1;
            #[expect(clippy::cast_precision_loss, reason = "below 2^12")]
            {
                block.sum = sum as f32;
            }
            (block.less128, block.less8) = (BIAS - 128 * sum, BIAS - 8 * sum);
            block.less32 = [BIAS - 32 * s0, -32 * s1];
        }
        block
    }
}

#[inline(always)]
unsafe fn arrange_in<S: Simd>(x: *const f32, k: usize, dst: *mut F32Block, step: usize) {
    // SAFETY: the caller's contract; partial loads stop at `k`.
    unsafe {
        for b in 0..blocks(k) {
            let dst = dst.add(b * step).cast::<f32>();
            let start = (b * BLOCK).min(k);
            let mid = (start + LANES).min(k);
            S::store(dst, load_first::<S>(x.add(start), mid - start));
            S::store(dst.add(LANES), load_first::<S>(x.add(mid), k - mid));
        }
    }
}
