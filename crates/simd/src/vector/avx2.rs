//! [`Simd`] on AVX2, FMA and F16C: two registers per vector, lanes 0 to 7 and 8 to 15.

use std::arch::x86_64::*;

use super::Simd;
use super::amx::Amx;

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Applies an intrinsic to both halves.
macro_rules! halves {
    ($f:expr; $($x:ident),+) => { [$f($($x[0]),+), $f($($x[1]),+)] };
}

/// Bytes `(x >> n)` or `(x << n)` as shifts of 16-bit lanes; the caller masks what crosses over.
#[inline(always)]
unsafe fn count(n: u32) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_cvtsi32_si128(n.cast_signed()) }
}

/// The even lanes of both vectors.
#[inline(always)]
unsafe fn evens([low, high]: [__m256; 2]) -> __m256 {
    // SAFETY: the caller proves AVX2.
    unsafe {
        let pairs = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(low, high));
        _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(pairs))
    }
}

/// Lanes of both vectors, interleaved.
#[inline(always)]
unsafe fn interleaved(a: __m256, b: __m256) -> [__m256; 2] {
    // SAFETY: as for `evens`.
    unsafe {
        let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
    }
}

// SAFETY (all blocks): the caller of a `Simd` function proves the instruction set and the pointers.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one argument for all, above")]
impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];
    const ACCUMULATORS: usize = 4;
    type Tiles = Amx;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        unsafe {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F {
        const MASKS: [i32; 32] = {
            let mut masks = [0; 32];
            let mut lane = 0;
            while lane < 16 {
                masks[lane] = -1;
                lane += 1;
            }
            masks
        };
        unsafe {
            let mask = MASKS.as_ptr().add(16 - n).cast::<__m256i>();
            let (low, high) = (_mm256_loadu_si256(mask), _mm256_loadu_si256(mask.add(1)));
            [_mm256_maskload_ps(p, low), _mm256_maskload_ps(p.wrapping_add(8), high)]
        }
    }
    // Masked stores take as long as a cache miss on processors before Zen 4.
    #[inline(always)]
    unsafe fn store_part(mut p: *mut f32, x: Self::F, n: usize) {
        unsafe {
            let mut left = x[0];
            if n & 8 != 0 {
                _mm256_storeu_ps(p, left);
                (p, left) = (p.add(8), x[1]);
            }
            let mut four = _mm256_castps256_ps128(left);
            if n & 4 != 0 {
                _mm_storeu_ps(p, four);
                (p, four) = (p.add(4), _mm256_extractf128_ps::<1>(left));
            }
            if n & 2 != 0 {
                _mm_storel_pd(p.cast(), _mm_castps_pd(four));
                (p, four) = (p.add(2), _mm_movehl_ps(four, four));
            }
            if n & 1 != 0 {
                _mm_store_ss(p, four);
            }
        }
    }
    #[inline(always)]
    unsafe fn evens(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [evens(a), evens(b)] }
    }
    #[inline(always)]
    unsafe fn interleaved(a: Self::F, b: Self::F) -> [Self::F; 2] {
        unsafe { [interleaved(a[0], b[0]), interleaved(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: Self::F) {
        unsafe {
            let h = halves!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>; x);
            _mm_storeu_si128(p.cast(), h[0]);
            _mm_storeu_si128(p.add(8).cast(), h[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        unsafe {
            let lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()));
            Self::bits_f(Self::shl_i::<16>([lo, hi]))
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { halves!(_mm256_add_ps; a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { halves!(_mm256_sub_ps; a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { halves!(_mm256_mul_ps; a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        unsafe { halves!(_mm256_div_ps; a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { halves!(_mm256_fmadd_ps; a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        // `vmaxps` is defined as `a > b ? a : b`.
        unsafe { halves!(_mm256_max_ps; a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        unsafe { halves!(_mm256_min_ps; a, b) }
    }
    #[inline(always)]
    unsafe fn maximum(a: Self::F, b: Self::F) -> Self::F {
        // Both orders differ for zeroes of two signs, whose conjunction is +0; all bits of a NaN are 1.
        unsafe {
            let (x, y) = (halves!(_mm256_max_ps; a, b), halves!(_mm256_max_ps; b, a));
            let most = halves!(_mm256_and_ps; x, y);
            let nan = halves!(_mm256_cmp_ps::<_CMP_UNORD_Q>; a, b);
            halves!(_mm256_or_ps; most, nan)
        }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
        }
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        unsafe {
            let m = halves!(_mm256_cmp_ps::<_CMP_LT_OQ>; a, b);
            halves!(_mm256_blendv_ps; y, x, m)
        }
    }
    #[inline(always)]
    unsafe fn select_le(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        unsafe {
            let m = halves!(_mm256_cmp_ps::<_CMP_LE_OQ>; a, b);
            halves!(_mm256_blendv_ps; y, x, m)
        }
    }
    #[inline(always)]
    unsafe fn first(x: Self::F, n: usize, other: Self::F) -> Self::F {
        unsafe {
            let n = _mm256_set1_epi32(i32::try_from(n).unwrap_or(16));
            let lo = _mm256_cmpgt_epi32(n, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            let hi = _mm256_cmpgt_epi32(n, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
            let m = [_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)];
            halves!(_mm256_blendv_ps; other, x, m)
        }
    }
    #[inline(always)]
    unsafe fn sum(x: Self::F) -> f32 {
        unsafe {
            let y = _mm256_add_ps(x[0], x[1]);
            let z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps::<1>(y));
            let w = _mm_add_ps(z, _mm_movehl_ps(z, z));
            _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)))
        }
    }
    #[inline(always)]
    unsafe fn max_lanes(x: Self::F) -> f32 {
        unsafe {
            let y = _mm256_max_ps(x[0], x[1]);
            let z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps::<1>(y));
            let w = _mm_max_ps(z, _mm_movehl_ps(z, z));
            _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)))
        }
    }
    #[inline(always)]
    unsafe fn round_i(x: Self::F) -> Self::I {
        // Ties to even: Rust does not change the rounding mode of the control register.
        unsafe { [_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1])] }
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn to_f(x: Self::I) -> Self::F {
        unsafe { halves!(_mm256_cvtepi32_ps; x) }
    }
    #[inline(always)]
    unsafe fn bits_f(x: Self::I) -> Self::F {
        unsafe { halves!(_mm256_castsi256_ps; x) }
    }
    #[inline(always)]
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        unsafe { halves!(_mm256_add_epi32; a, b) }
    }
    #[inline(always)]
    unsafe fn and_i(a: Self::I, b: Self::I) -> Self::I {
        unsafe { halves!(_mm256_and_si256; a, b) }
    }
    #[inline(always)]
    unsafe fn or_i(a: Self::I, b: Self::I) -> Self::I {
        unsafe { halves!(_mm256_or_si256; a, b) }
    }
    #[inline(always)]
    unsafe fn shl_i<const N: i32>(x: Self::I) -> Self::I {
        unsafe { halves!(_mm256_slli_epi32::<N>; x) }
    }
    #[inline(always)]
    unsafe fn shr_i<const N: i32>(x: Self::I) -> Self::I {
        unsafe { halves!(_mm256_srli_epi32::<N>; x) }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::I {
        unsafe {
            let x = _mm_loadu_si128(p.cast());
            [_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(x))]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::I {
        unsafe {
            let x = _mm_loadu_si128(p.cast());
            [_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(x))]
        }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> Self::I {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())] }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: Self::I) -> i32 {
        unsafe {
            // Packs four lanes of each half into each 128-bit half, as words and then as bytes.
            let words = _mm256_packs_epi32(x[0], x[1]);
            let bytes = _mm256_packs_epi16(words, words);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
            let b = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, order));
            _mm_storeu_si128(p.cast(), b);
            sum_i8(b)
        }
    }
    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> Self::B {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn store_b(p: *mut u8, x: Self::B) {
        unsafe {
            _mm256_storeu_si256(p.cast(), x[0]);
            _mm256_storeu_si256(p.add(32).cast(), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn sub_b(x: Self::B, n: u8) -> Self::B {
        unsafe {
            let n = _mm256_set1_epi8(n.cast_signed());
            [_mm256_sub_epi8(x[0], n), _mm256_sub_epi8(x[1], n)]
        }
    }
    #[inline(always)]
    unsafe fn and_b(x: Self::B, mask: u8) -> Self::B {
        unsafe {
            let m = _mm256_set1_epi8(mask.cast_signed());
            [_mm256_and_si256(x[0], m), _mm256_and_si256(x[1], m)]
        }
    }
    #[inline(always)]
    unsafe fn or_b(a: Self::B, b: Self::B) -> Self::B {
        unsafe { halves!(_mm256_or_si256; a, b) }
    }
    #[inline(always)]
    unsafe fn shr_and_b(x: Self::B, n: u32, mask: u8) -> Self::B {
        unsafe {
            let n = count(n);
            Self::and_b([_mm256_srl_epi16(x[0], n), _mm256_srl_epi16(x[1], n)], mask)
        }
    }
    #[inline(always)]
    unsafe fn above<const N: i32>(a: Self::B, b: Self::B) -> Self::B {
        unsafe {
            let below = 0xff >> N;
            Self::or_b(Self::and_b(a, !below), Self::shr_and_b(b, N.cast_unsigned(), below))
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], x: Self::B) -> Self::B {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, x[0]), _mm256_shuffle_epi8(table, x[1])]
        }
    }
    #[inline(always)]
    unsafe fn dot_u(acc: Self::I, w: Self::B, a: *const i8) -> Self::I {
        unsafe {
            // 127 * 127 * 2 < 2^15: the pairwise 16-bit sums do not saturate.
            let a = _mm256_set1_epi32(a.cast::<i32>().read_unaligned());
            let ones = _mm256_set1_epi16(1);
            let d0 = _mm256_madd_epi16(_mm256_maddubs_epi16(w[0], a), ones);
            let d1 = _mm256_madd_epi16(_mm256_maddubs_epi16(w[1], a), ones);
            [_mm256_add_epi32(acc[0], d0), _mm256_add_epi32(acc[1], d1)]
        }
    }
    #[inline(always)]
    unsafe fn dots_u<const G: usize, const R: usize>(
        mut acc: [[Self::I; R]; G],
        w: [[Self::B; 4]; G],
        a: *const i8,
        most: u8,
    ) -> [[Self::I; R]; G] {
        unsafe {
            let ones = _mm256_set1_epi16(1);
            // Pairs of products are at most 2 * 127 * `most`: so many of their sums fit in 16 bits.
            let together = match most {
                0..=32 => 4,
                33..=64 => 2,
                _ => 1,
            };
            let mut sums = [[[_mm256_setzero_si256(); 2]; R]; G];
            for i in 0..4 {
                for (sums, w) in sums.iter_mut().zip(&w) {
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let a = a.add(64 * r + 4 * i).cast::<i32>().read_unaligned();
                        let a = _mm256_set1_epi32(a);
                        for (sum, w) in sums.iter_mut().zip(w[i]) {
                            let pairs = _mm256_maddubs_epi16(w, a);
                            let first = i % together == 0;
                            *sum = if first { pairs } else { _mm256_add_epi16(*sum, pairs) };
                        }
                    }
                }
                if (i + 1) % together == 0 {
                    for (acc, sums) in acc.iter_mut().zip(&sums) {
                        for (acc, sums) in acc.iter_mut().zip(sums) {
                            for (acc, &sum) in acc.iter_mut().zip(sums) {
                                *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(sum, ones));
                            }
                        }
                    }
                }
            }
            acc
        }
    }
    #[inline(always)]
    unsafe fn init_8(_less128: i32) -> Self::I {
        unsafe { [_mm256_set1_epi32(super::BIAS); 2] }
    }
    #[inline(always)]
    unsafe fn operand_8(stored: Self::B) -> Self::B {
        unsafe {
            let sign = _mm256_set1_epi8(-128);
            [_mm256_xor_si256(stored[0], sign), _mm256_xor_si256(stored[1], sign)]
        }
    }
    #[inline(always)]
    unsafe fn dot_8(acc: Self::I, w: Self::B, a: *const i8) -> Self::I {
        unsafe {
            // |w| * (a with w's sign): |w| is at most 128, |a| at most 127, and 128 * 127 * 2 < 2^15.
            let a = _mm256_set1_epi32(a.cast::<i32>().read_unaligned());
            let ones = _mm256_set1_epi16(1);
            let mut out = acc;
            for i in 0..2 {
                let p = _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(a, w[i]));
                out[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(p, ones));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}

/// Sum of 16 signed bytes.
///
/// # Safety
///
/// The machine has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn sum_i8(bytes: __m128i) -> i32 {
    // As unsigned bytes, each is 128 too large.
    let unsigned = _mm_xor_si128(bytes, _mm_set1_epi8(i8::MIN));
    let sums = _mm_sad_epu8(unsigned, _mm_setzero_si128());
    _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128
}
