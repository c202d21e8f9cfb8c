//! Rotary position embedding (RoPE) and its table.

use super::isa::dispatch;
use super::vector::{LANES, Simd, load_first, store_first};
use plan::RopeStyle;

dispatch! {
    /// Writes one position's row of the table: cosines of position times frequency, then sines, times `magnitude`.
    ///
    /// # Safety
    ///
    /// `frequencies` is valid for `half` values, `out` for twice as many; no other thread accesses `out`.
    pub unsafe fn table(position: f32, frequencies: *const f32, half: usize, magnitude: f32, out: *mut f32) = table_in;

    /// Rotates one head of `dim` values in place, by `cos` and `sin` of `dim / 2` values each.
    ///
    /// # Safety
    ///
    /// `x` is valid for `dim` values (even), `cos` and `sin` for half as many.
    pub unsafe fn rope(x: *mut f32, dim: usize, cos: *const f32, sin: *const f32, style: RopeStyle) = rope_in;
}

#[inline(always)]
unsafe fn table_in<S: Simd>(
    position: f32,
    frequencies: *const f32,
    half: usize,
    magnitude: f32,
    out: *mut f32,
) {
    // SAFETY: the caller's contract; every access is cut at `half`.
    unsafe {
        for i in (0..half).step_by(LANES) {
            let n = half - i;
            let frequencies = load_first::<S>(frequencies.add(i), n);
            let [cosine, sine] = cos_sin::<S>(S::splat(position), frequencies);
            store_first::<S>(out.add(i), S::mul(cosine, S::splat(magnitude)), n);
            store_first::<S>(out.add(half + i), S::mul(sine, S::splat(magnitude)), n);
        }
    }
}

/// Cosine and sine of `p * f`, for angles below 2^20, to 2e-7. The angle is computed in two parts without loss, and
/// reduced to +-pi/4 by pi/2 in two parts. Minimax polynomials follow.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn cos_sin<S: Simd>(p: S::F, f: S::F) -> [S::F; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        let minus_one = S::splat(-1.0);
        let high = S::mul(p, f);
        let low = S::fma(p, f, S::mul(high, minus_one));
        let quarter = S::round_i(S::mul(high, S::splat(std::f32::consts::FRAC_2_PI)));
        let turns = S::to_f(quarter);
        let r = S::fma(turns, S::splat(-std::f32::consts::FRAC_PI_2), high);
        let r = S::add(S::fma(turns, S::splat(4.371_139e-8), r), low);
        let r2 = S::mul(r, r);
        let s = S::fma(r2, S::splat(-1.951_529_6e-4), S::splat(8.332_161e-3));
        let s = S::fma(r2, s, S::splat(-1.666_665_5e-1));
        let s = S::fma(S::mul(r2, r), s, r);
        let c = S::fma(r2, S::splat(2.443_315_7e-5), S::splat(-1.388_731_6e-3));
        let c = S::fma(r2, c, S::splat(4.166_664_6e-2));
        let c = S::fma(S::mul(r2, r2), c, S::fma(r2, S::splat(-0.5), S::splat(1.0)));
        // Odd quarters swap sine and cosine. The second and third quarter negate the sine, the first and second the
        // cosine.
        let cosine = if_bit::<S, 1>(quarter, s, c);
        let sine = if_bit::<S, 1>(quarter, c, s);
        let next = S::add_i(quarter, S::splat_i(1));
        [
            if_bit::<S, 2>(next, S::mul(cosine, minus_one), cosine),
            if_bit::<S, 2>(quarter, S::mul(sine, minus_one), sine),
        ]
    }
}

/// `x` if the bit of `i` with value `BIT` is set, else `y`.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn if_bit<S: Simd, const BIT: i32>(i: S::I, x: S::F, y: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe { S::select_lt(S::splat(0.0), S::to_f(S::and_i(i, S::splat_i(BIT))), x, y) }
}

#[inline(always)]
unsafe fn rope_in<S: Simd>(
    x: *mut f32,
    dim: usize,
    cos: *const f32,
    sin: *const f32,
    style: RopeStyle,
) {
    // SAFETY: the caller's contract: indices below `dim` and `dim / 2`.
    unsafe {
        let half = dim / 2;
        let mut i = 0;
        if style == RopeStyle::HalfSplit {
            while i + LANES <= half {
                let (a, b) = (S::load(x.add(i)), S::load(x.add(i + half)));
                let (c, s) = (S::load(cos.add(i)), S::load(sin.add(i)));
                let minus_bs = S::sub(S::splat(0.0), S::mul(b, s));
                S::store(x.add(i), S::fma(a, c, minus_bs));
                S::store(x.add(i + half), S::fma(a, s, S::mul(b, c)));
                i += LANES;
            }
        }
        while i < half {
            let (p, q) = match style {
                RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                RopeStyle::HalfSplit => (i, i + half),
            };
            let (a, b, c, s) = (*x.add(p), *x.add(q), *cos.add(i), *sin.add(i));
            *x.add(p) = a.mul_add(c, 0.0 - b * s);
            *x.add(q) = a.mul_add(s, b * c);
            i += 1;
        }
    }
}
