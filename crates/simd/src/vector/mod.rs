//! The vector operations that every kernel is written in: sixteen lanes of `f32` or `i32`, and groups of 64 bytes.
//!
//! Each operation is defined exactly (IEEE 754 with fused multiply-add, round to nearest even, exact integers, one
//! fixed tree for sums over lanes), so that all implementations (AVX-512, AVX2, NEON, scalar) give the same bits.
//! The only exception is the payload of a NaN.
//!
//! A *group* is 64 bytes: 16 rows of a weight matrix by 4 consecutive columns, the shape that one
//! `vpdpbusd`, two `vpmaddubsw` or four `sdot` take.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod tiles;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use scalar::Scalar;
pub(crate) use tiles::Tiles;

/// Lanes of a vector, and rows of a row group.
pub const LANES: usize = 16;

/// The bits of `BIAS_F`. The bits plus an integer `i` of less than 22 bits are those of `BIAS_F + i`: a dot product
/// with this initial value is an `f32` without a conversion.
pub const BIAS: i32 = 0x4b40_0000;

/// The bits of minus `BIAS_F`. The bits plus an integer `i` are those of `-(BIAS_F + i)`.
pub const MINUS_BIAS: i32 = BIAS | i32::MIN;

/// 1.5 times 2^23, see [`BIAS`].
pub(crate) const BIAS_F: f32 = 12_582_912.0;

/// Vector operations. `F` is 16 `f32`, `I` is 16 `i32`, `B` is 64 bytes.
///
/// # Safety
///
/// Every function requires that the machine has the instruction set that the type names (an
/// [`Isa`](super::Isa) value proves it) and that it is inlined into a function compiled for
/// that instruction set. Pointers must be valid for the bytes that the operation names; no
/// alignment is required.
pub(crate) trait Simd: Copy {
    /// 16 single-precision lanes.
    type F: Copy;
    /// 16 signed 32-bit lanes.
    type I: Copy;
    /// 64 bytes.
    type B: Copy;
    /// Number of accumulators that fit into registers together with their operands; a power of two.
    const ACCUMULATORS: usize;
    /// The matrix unit of this instruction set, or a software model of one.
    type Tiles: Tiles;
    /// True if kernels for the matrix unit are compiled. No machine has one beside these vectors otherwise: only tests
    /// do, with a model of the unit.
    const TILED: bool = cfg!(feature = "modelled");

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self::F;
    /// Loads 16 `f32`.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Stores 16 `f32`.
    unsafe fn store(p: *mut f32, x: Self::F);
    /// Loads fewer than 16 `f32`, zeros in the other lanes.
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F {
        let mut t = [0.0f32; LANES];
        // SAFETY: the caller's contract; the buffer holds 16 values.
        unsafe {
            std::ptr::copy_nonoverlapping(p, t.as_mut_ptr(), n);
            Self::load(t.as_ptr())
        }
    }
    /// Stores the first `n` lanes, fewer than 16.
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, x: Self::F, n: usize) {
        let mut t = [0.0f32; LANES];
        // SAFETY: as above.
        unsafe {
            Self::store(t.as_mut_ptr(), x);
            std::ptr::copy_nonoverlapping(t.as_ptr(), p, n);
        }
    }
    /// The even lanes of `a`, then those of `b`.
    #[inline(always)]
    unsafe fn evens(a: Self::F, b: Self::F) -> Self::F {
        let (mut both, mut evens) = ([0.0f32; 2 * LANES], [0.0; LANES]);
        // SAFETY: the buffers have 16 values per vector.
        unsafe {
            Self::store(both.as_mut_ptr(), a);
            Self::store(both.as_mut_ptr().add(LANES), b);
            for (lane, value) in evens.iter_mut().enumerate() {
                *value = both[2 * lane];
            }
            Self::load(evens.as_ptr())
        }
    }
    /// Lanes of `a` and `b`, interleaved, as two vectors.
    #[inline(always)]
    unsafe fn interleaved(a: Self::F, b: Self::F) -> [Self::F; 2] {
        let (mut x, mut y, mut both) = ([0.0f32; LANES], [0.0f32; LANES], [0.0; 2 * LANES]);
        // SAFETY: the buffers have 16 values per vector.
        unsafe {
            Self::store(x.as_mut_ptr(), a);
            Self::store(y.as_mut_ptr(), b);
            for lane in 0..LANES {
                (both[2 * lane], both[2 * lane + 1]) = (x[lane], y[lane]);
            }
            [Self::load(both.as_ptr()), Self::load(both.as_ptr().add(LANES))]
        }
    }
    /// Loads 16 `f16` (as bits) and widens them, exactly.
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Rounds 16 values to `f16`, ties to even, and stores them.
    unsafe fn store_f16(p: *mut u16, x: Self::F);
    /// Loads 16 `bf16` and widens them, exactly.
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// `a + b`.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: a NaN in either operand yields `b`.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: a NaN in either operand yields `b`.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `maximum` of IEEE 754-2019: NaN if one of them is NaN, and -0 is below +0.
    unsafe fn maximum(a: Self::F, b: Self::F) -> Self::F;
    /// The magnitude.
    unsafe fn abs(a: Self::F) -> Self::F;
    /// `if a < b { x } else { y }`.
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// `if a <= b { x } else { y }`.
    unsafe fn select_le(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// The first `n` lanes of `x`, the other lanes of `other`.
    unsafe fn first(x: Self::F, n: usize, other: Self::F) -> Self::F;
    /// Sum over lanes: `i + (i+8)`, then `+4`, `+2`, `+1`.
    unsafe fn sum(x: Self::F) -> f32;
    /// Maximum over lanes in the same tree, for values that are not NaN.
    unsafe fn max_lanes(x: Self::F) -> f32;
    /// Nearest integer, ties to even. The input must be in range; a NaN yields any integer.
    unsafe fn round_i(x: Self::F) -> Self::I;

    /// `x` in every lane.
    unsafe fn splat_i(x: i32) -> Self::I;
    /// Converts to `f32`, ties to even.
    unsafe fn to_f(x: Self::I) -> Self::F;
    /// The bits, reinterpreted as `f32`.
    unsafe fn bits_f(x: Self::I) -> Self::F;
    /// `a + b`, wrapping.
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    /// `a & b`.
    unsafe fn and_i(a: Self::I, b: Self::I) -> Self::I;
    /// `a | b`.
    unsafe fn or_i(a: Self::I, b: Self::I) -> Self::I;
    /// `x << N`.
    unsafe fn shl_i<const N: i32>(x: Self::I) -> Self::I;
    /// `x >> N`, zeros shifted in.
    unsafe fn shr_i<const N: i32>(x: Self::I) -> Self::I;
    /// Loads 16 bytes, zero extended.
    unsafe fn load_u8(p: *const u8) -> Self::I;
    /// Loads 16 bytes, sign extended.
    unsafe fn load_i8(p: *const i8) -> Self::I;
    /// Loads 16 `i32`.
    unsafe fn load_i(p: *const i32) -> Self::I;
    /// Stores 16 integers of -128 to 127 as bytes, and returns their sum.
    unsafe fn store_i8(p: *mut i8, x: Self::I) -> i32;

    /// Loads 64 bytes.
    unsafe fn load_b(p: *const u8) -> Self::B;
    /// Stores 64 bytes.
    unsafe fn store_b(p: *mut u8, x: Self::B);
    /// `x - n` in every byte, wrapping.
    unsafe fn sub_b(x: Self::B, n: u8) -> Self::B;
    /// `x & mask` in every byte.
    unsafe fn and_b(x: Self::B, mask: u8) -> Self::B;
    /// `a | b`.
    unsafe fn or_b(a: Self::B, b: Self::B) -> Self::B;
    /// `(x >> n) & mask` in every byte; `n` is 0 to 6 and even or 1 to 7, known when inlined, and
    /// `mask` has no bit above those that remain.
    unsafe fn shr_and_b(x: Self::B, n: u32, mask: u8) -> Self::B;
    /// The upper `N` bits of each byte of `a`, followed by the upper bits of `b`.
    unsafe fn above<const N: i32>(a: Self::B, b: Self::B) -> Self::B;
    /// The table entry for each byte of `x`; bytes are below 16.
    unsafe fn lookup(table: &[u8; 16], x: Self::B) -> Self::B;
    /// Adds to each lane the dot product of its four bytes of `w` (unsigned, at most 127) with the four signed
    /// bytes at `a` (not -128). Exact.
    unsafe fn dot_u(acc: Self::I, w: Self::B, a: *const i8) -> Self::I;
    /// Initial value for [`Simd::dot_8`]; `less128` is [`BIAS`] minus 128 times the sum of all activations in the
    /// dot product.
    unsafe fn init_8(less128: i32) -> Self::I;
    /// Converts stored bytes (signed, plus 128) to the operand of [`Simd::dot_8`].
    unsafe fn operand_8(stored: Self::B) -> Self::B;
    /// Adds the dot products of full-range signed bytes; exact once all activations counted in [`Simd::init_8`]
    /// have been added.
    unsafe fn dot_8(acc: Self::I, w: Self::B, a: *const i8) -> Self::I;

    /// [`Simd::dot_u`] of `R` rows, whose bytes are 64 apart, with four groups of each of `G` row groups, for the
    /// four bytes at `a` and those after them. `most` is the greatest byte of `w`, known when inlined.
    #[inline(always)]
    unsafe fn dots_u<const G: usize, const R: usize>(
        mut acc: [[Self::I; R]; G],
        w: [[Self::B; 4]; G],
        a: *const i8,
        _most: u8,
    ) -> [[Self::I; R]; G] {
        for i in 0..4 {
            for (acc, w) in acc.iter_mut().zip(&w) {
                for (r, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: the caller's contract.
                    *acc = unsafe { Self::dot_u(*acc, w[i], a.add(64 * r + 4 * i)) };
                }
            }
        }
        acc
    }
    /// The same for [`Simd::dot_8`].
    #[inline(always)]
    unsafe fn dots_8<const G: usize, const R: usize>(
        mut acc: [[Self::I; R]; G],
        w: [[Self::B; 4]; G],
        a: *const i8,
    ) -> [[Self::I; R]; G] {
        for i in 0..4 {
            for (acc, w) in acc.iter_mut().zip(&w) {
                for (r, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: the caller's contract.
                    *acc = unsafe { Self::dot_8(*acc, w[i], a.add(64 * r + 4 * i)) };
                }
            }
        }
        acc
    }

    /// Prefetches the line at `p` into the second-level cache. Never faults.
    unsafe fn prefetch(p: *const u8);
}

/// `e^x` within 2 units in the last place; 0 below -87.33, infinity above 88, NaN for NaN.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe { exp_to_88::<S>(infinite_above_88::<S>(x)) }
}

/// `1 + e^x`; more accurate results for tiny `e^x` would not change the sum.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn one_and_exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe { S::add(S::splat(1.0), power_of_e::<S>(infinite_above_88::<S>(x), 0.0, 0)) }
}

/// Maps numbers above 88 to a number whose exponential overflows to infinity.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn infinite_above_88<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe { S::select_lt(S::splat(88.0), x, S::splat(89.0), x) }
}

/// [`exp`] of numbers up to 88.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp_to_88<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe { exp_over_power::<S>(x, 0.0, 0) }
}

/// `e^x / 2^power`; 0 for numbers 87.33 or more below `max`. `max` is about `power * ln 2` (or 0, if the exponents
/// are far from overflow), and `power` below 2^22.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp_over_power<S: Simd>(x: S::F, max: f32, power: i32) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let y = power_of_e::<S>(x, max, power);
        S::select_lt(x, S::splat(max - 87.33), S::splat(0.0), y)
    }
}

/// The same, but numbers further below `max` may yield any value of that magnitude.
///
/// Range reduction by `ln 2` in two parts and a polynomial of degree 6. Taylor coefficients suffice: the remainder
/// over `[-ln2/2, ln2/2]` is below 2^-26. Only the last step, which is exact, uses `power`.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn power_of_e<S: Simd>(x: S::F, max: f32, power: i32) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        // The constant is the first operand, so that a NaN, which yields the second operand, is preserved.
        let c = S::max(S::splat(max - 87.5), x);
        let n = S::round_i(S::mul(c, S::splat(std::f32::consts::LOG2_E)));
        let nf = S::to_f(n);
        let r = S::fma(nf, S::splat(-355.0 / 512.0), c);
        let r = S::fma(nf, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.0 / 720.0);
        for k in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = S::fma(p, r, S::splat(k));
        }
        let scale = S::bits_f(S::shl_i::<23>(S::add_i(n, S::splat_i(127 - power))));
        S::mul(p, scale)
    }
}

/// `cap * tanh(x / cap)`, as `cap - 2 cap / (1 + e^(2 x / cap))`.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn capped<S: Simd>(cap: f32, x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let below = one_and_exp::<S>(S::mul(x, S::splat(2.0 / cap)));
        let below = S::div(S::splat(2.0 * cap), below);
        S::sub(S::splat(cap), below)
    }
}

/// Loads `n` values, at most 16, and zeros in the other lanes.
///
/// # Safety
///
/// As for [`Simd`]; `p` valid for `n` values.
#[inline(always)]
pub(crate) unsafe fn load_first<S: Simd>(p: *const f32, n: usize) -> S::F {
    // SAFETY: the caller's contract.
    unsafe { if n >= LANES { S::load(p) } else { S::load_part(p, n) } }
}

/// Stores the first `n` lanes, at most 16.
///
/// # Safety
///
/// As for [`Simd`]; `p` valid for `n` values.
#[inline(always)]
pub(crate) unsafe fn store_first<S: Simd>(p: *mut f32, x: S::F, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { if n >= LANES { S::store(p, x) } else { S::store_part(p, x, n) } }
}
