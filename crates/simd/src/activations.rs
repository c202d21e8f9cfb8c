//! Activation rows in the form that the matrix kernels read: 8-bit blocks for quantised weights, `f32` blocks for
//! plain weights.
//!
//! Up to [`TILE`] neighbouring rows form a *tile* (L2). Tiles are stored one after another. Inside a tile, the
//! first blocks of all rows come first, then all second blocks. A weight block in registers therefore meets a
//! tile's rows in one contiguous run, and the second-level cache gets each tile as one contiguous piece.
//!
//! Inputs of a softmax need more than 8 bits. They have two *residual planes* of 8-bit blocks: the second plane
//! quantises the error of the first. The two blocks are adjacent, and a product adds both.
//!
//! Quantisation, per row and per *span* of 32 or 256 columns: `scale = max|x| / 127`, `q = round(x * (127 /
//! max|x|))`, ties to even. The result depends only on the span's values. A span whose `max|x|` is below 1e-30
//! becomes zero. A span with a NaN or an infinity gets a NaN scale, so that every output of its row is NaN. Types
//! with superblocks of 256 columns use the long span: the integers of their blocks are added up before a scale is
//! applied, as in ggml's `Q8_K`.

use super::isa::dispatch;
use super::vector::{BIAS, BIAS_F, LANES, MINUS_BIAS, Simd, load_first};

pub const BLOCK: usize = 32;

/// Columns are padded with zeros to a multiple of this number: the widest step of a weight format whose blocks may
/// not fill a row.
const STEP: usize = 64;

/// A block of 32 quantised activations in one cache line, with the terms that correct the offsets of weight
/// formats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub struct Q8Block {
    /// The quantised values, -127 to 127.
    pub q: [i8; BLOCK],
    /// Value of the integer 1.
    pub scale: f32,
    pub sum: f32,
    /// `BIAS` minus 128 times the sum of `q`: the initial value of dot products with weights that are stored plus
    /// 128.
    pub less128: i32,
    /// `BIAS` minus 8 times the sum of `q`.
    pub less8: i32,
    /// `BIAS` minus 32 times the sum of each half of `q`.
    pub less32: [i32; 2],
    /// Minus `BIAS`, minus 15 times and minus 31 times the sum of `q`: for weights stored as the difference to 15
    /// or 31.
    pub negated: [i32; 2],
}

impl Q8Block {
    /// `BIAS` minus `n` times the sum of `q`. A value for an `n` without a field is derived from one that has a field.
    #[inline(always)]
    pub(crate) const fn less(&self, n: u8) -> i32 {
        match n {
            0 => BIAS,
            8 => self.less8,
            _ => BIAS + ((self.less8 - BIAS) >> 3) * n as i32,
        }
    }

    /// The same for half `half` of `q`.
    #[inline(always)]
    pub(crate) const fn less_half(&self, n: u8, half: usize) -> i32 {
        match n {
            0 => BIAS,
            32 => self.less32[half],
            _ => BIAS + ((self.less32[half] - BIAS) >> 5) * n as i32,
        }
    }

    /// Minus `BIAS`, minus `n` times the sum of `q`.
    #[inline(always)]
    pub(crate) const fn less_negated(&self, n: u8) -> i32 {
        match n {
            15 => self.negated[0],
            31 => self.negated[1],
            _ => MINUS_BIAS + ((self.less8 - BIAS) >> 3) * n as i32,
        }
    }

    /// The same for half `half` of `q`.
    #[inline(always)]
    pub(crate) const fn less_negated_half(&self, n: u8, half: usize) -> i32 {
        MINUS_BIAS + ((self.less32[half] - BIAS) >> 5) * n as i32
    }

    /// 32 times the sum of half `half` of `q`, without a conversion.
    #[inline(always)]
    pub(crate) const fn sum_half(&self, half: usize) -> f32 {
        BIAS_F - f32::from_bits(self.less32[half].cast_unsigned())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationFormat {
    /// 8-bit values per activation, 1 or 2: the second is the quantised error of the first.
    pub residual_planes: usize,
    /// Number of blocks that share a scale, see [`PackedLayout::span`](super::packed::PackedLayout::span).
    pub span: usize,
}

/// A block of 32 unquantised activations.
pub type F32Block = [f32; BLOCK];

/// Number of blocks of a row of `k` columns, padding included.
#[must_use]
pub const fn blocks(k: usize) -> usize {
    k.div_ceil(STEP) * (STEP / BLOCK)
}

pub const TILE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPosition {
    pub first: usize,
    /// Distance from one block (or plane) to the next.
    pub step: usize,
}

/// Position of the `count` blocks (of all planes) of row `row` of `rows`.
#[must_use]
pub const fn place(row: usize, rows: usize, count: usize) -> BlockPosition {
    let start = row / TILE * TILE;
    let step = if rows - start < TILE { rows - start } else { TILE };
    BlockPosition { first: start * count + row - start, step }
}

dispatch! {
    /// Quantises the `k` values at `x` into blocks from `dst`, `step` apart, in 1 or 2 planes, with one scale per
    /// `span` blocks.
    ///
    /// # Safety
    ///
    /// `x` is valid for `k` values; `dst` for `blocks(k) * planes` blocks at the distance `step`,
    /// which no other thread accesses meanwhile.
    pub unsafe fn quantise(x: *const f32, k: usize, dst: *mut Q8Block, step: usize, format: ActivationFormat) = quantise_in;

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
    format: ActivationFormat,
) {
    // SAFETY: the caller's contract; partial loads stop at `k`.
    unsafe {
        let all = blocks(k);
        let (zero, planes) = (S::splat(0.0), format.residual_planes);
        for first in (0..all).step_by(format.span) {
            let span = first..all.min(first + format.span);
            let mut max = zero;
            for b in span.clone() {
                max = max_abs::<S>(load::<S>(x, b, k), max);
            }
            let fine = Scale::of::<S>(max);
            let minus_scale = S::splat(0.0 - fine.scale);
            max = zero;
            for b in span.clone() {
                let (block, dst) = (load::<S>(x, b, k), dst.add(b * planes * step));
                // The next row's block is usually the next write here.
                S::prefetch(dst.wrapping_add(1).cast());
                quantise_block::<S>(block, fine, dst);
                if planes == 2 {
                    max = max_abs::<S>(residual::<S>(dst, minus_scale, block), max);
                }
            }
            if planes == 2 {
                let finer = Scale::of::<S>(max);
                for b in span {
                    let dst = dst.add(b * planes * step);
                    let rest = residual::<S>(dst, minus_scale, load::<S>(x, b, k));
                    quantise_block::<S>(rest, finer, dst.add(step));
                }
            }
        }
    }
}

/// Block `b` of the `k` values at `x`, with zeroes behind the last one.
///
/// # Safety
///
/// As for [`quantise`].
#[inline(always)]
unsafe fn load<S: Simd>(x: *const f32, b: usize, k: usize) -> [S::F; 2] {
    // SAFETY: the caller's contract; partial loads stop at `k`.
    unsafe {
        // A full block needs no partial loads.
        if (b + 1) * BLOCK <= k {
            let x = x.add(b * BLOCK);
            return [S::load(x), S::load(x.add(LANES))];
        }
        let start = (b * BLOCK).min(k);
        let mid = (start + LANES).min(k);
        [load_first::<S>(x.add(start), mid - start), load_first::<S>(x.add(mid), k - mid)]
    }
}

/// The largest magnitude so far, including one more block. A NaN counts as infinite.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn max_abs<S: Simd>([a, b]: [S::F; 2], max: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        // `min` with a NaN returns its second operand.
        let infinite = S::splat(f32::INFINITY);
        let (a, b) = (S::min(S::abs(a), infinite), S::min(S::abs(b), infinite));
        S::max(S::max(a, b), max)
    }
}

/// The quantisation error of a block of `x`, whose scale is minus `minus_scale`.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn residual<S: Simd>(
    block: *const Q8Block,
    minus_scale: S::F,
    [x0, x1]: [S::F; 2],
) -> [S::F; 2] {
    // SAFETY: the caller's contract; reads are within the block.
    unsafe {
        let q = (&raw const (*block).q).cast::<i8>();
        [
            S::fma(S::to_f(S::load_i8(q)), minus_scale, x0),
            S::fma(S::to_f(S::load_i8(q.add(LANES))), minus_scale, x1),
        ]
    }
}

#[derive(Clone, Copy)]
struct Scale {
    scale: f32,
    inverse: f32,
}

impl Scale {
    /// # Safety
    ///
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn of<S: Simd>(max: S::F) -> Self {
        // SAFETY: the caller's contract.
        let max = unsafe { S::max_lanes(max) };
        if max.is_infinite() {
            Self { scale: f32::NAN, inverse: 0.0 }
        } else if max > 1e-30 {
            Self { scale: max / 127.0, inverse: 127.0 / max }
        } else {
            Self { scale: 0.0, inverse: 0.0 }
        }
    }
}

/// Writes 32 values as a block, field by field. Assembling the block elsewhere and copying it would read the stores
/// with wider loads, which stalls store forwarding.
///
/// # Safety
///
/// As for [`Simd`]; `to` is valid for a block.
#[inline(always)]
unsafe fn quantise_block<S: Simd>([x0, x1]: [S::F; 2], scale: Scale, to: *mut Q8Block) {
    // SAFETY: the caller's contract; stores are into the block's own fields.
    unsafe {
        if scale.scale.is_nan() {
            let (less128, less8, less32) = (BIAS, BIAS, [BIAS; 2]);
            to.write(Q8Block { scale: f32::NAN, less128, less8, less32, ..Q8Block::default() });
            return;
        }
        let inverse = S::splat(scale.inverse);
        let (i0, i1) = (S::round_i(S::mul(x0, inverse)), S::round_i(S::mul(x1, inverse)));
        let q = (&raw mut (*to).q).cast::<i8>();
        let (s0, s1) = (S::store_i8(q, i0), S::store_i8(q.add(LANES), i1));
        let sum = s0 + s1;
        (*to).scale = scale.scale;
        #[expect(clippy::cast_precision_loss, reason = "below 2^12")]
        {
            (*to).sum = sum as f32;
        }
        ((*to).less128, (*to).less8) = (BIAS - 128 * sum, BIAS - 8 * sum);
        (*to).less32 = [BIAS - 32 * s0, BIAS - 32 * s1];
        (*to).negated = [MINUS_BIAS - 15 * sum, MINUS_BIAS - 31 * sum];
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
