//! Rotary embedding, and keys and values into the cache.
//!
//! The cache is `f16`, per slot and KV head. Keys lie in tiles of 16 positions, column by column
//! (`[position / 16][head_dim][16]`), so that a score needs no sum across lanes; values lie row by
//! row (`[position][head_dim]`).

use super::isa::dispatch;
use super::vector::{LANES, Simd};
use plan::RopeStyle;

dispatch! {
    /// Rotates one head of `dim` values in place: pairs by `cos` and `sin` of `dim / 2` values each.
    ///
    /// # Safety
    ///
    /// `x` is valid for `dim` values (even), `cos` and `sin` for half as many.
    pub unsafe fn rope(x: *mut f32, dim: usize, cos: *const f32, sin: *const f32, style: RopeStyle) = rope_in;

    /// Writes one head's key and value of `dim` values (a multiple of 16) into its cache at
    /// `position`, rounded to `f16`.
    ///
    /// # Safety
    ///
    /// `k`, `v` are valid for `dim` values; the caches hold `position`; nobody else touches it.
    pub unsafe fn kv_write(k: *const f32, v: *const f32, dim: usize, position: usize, keys: *mut u16, values: *mut u16) = kv_write_in;
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

#[inline(always)]
unsafe fn kv_write_in<S: Simd>(
    k: *const f32,
    v: *const f32,
    dim: usize,
    position: usize,
    keys: *mut u16,
    values: *mut u16,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let column = keys.add(position / LANES * LANES * dim + position % LANES);
        for d in (0..dim).step_by(LANES) {
            let mut bits = [0u16; LANES];
            S::store_f16(bits.as_mut_ptr(), S::load(k.add(d)));
            for (i, &b) in bits.iter().enumerate() {
                *column.add((d + i) * LANES) = b;
            }
            S::store_f16(values.add(position * dim + d), S::load(v.add(d)));
        }
    }
}
