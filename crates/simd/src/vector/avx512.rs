//! [`Simd`] on AVX-512 (F, BW, VL, DQ, VNNI): one register per vector.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Simd;
use super::amx::Amx;
use super::avx2::sum_i8;

/// AVX-512 with VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY (all blocks): the caller of a `Simd` function proves the instruction set and the pointers.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one argument for all, above")]
impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    const ACCUMULATORS: usize = 16;
    type Tiles = Amx;
    const TILED: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m512) {
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps((1u16 << n) - 1, p) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, x: __m512, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, (1u16 << n) - 1, x) }
    }
    #[inline(always)]
    unsafe fn evens(a: __m512, b: __m512) -> __m512 {
        unsafe {
            let lanes = _mm512_mullo_epi32(
                _mm512_set1_epi32(2),
                _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
            );
            _mm512_permutex2var_ps(a, lanes, b)
        }
    }
    #[inline(always)]
    unsafe fn interleaved(a: __m512, b: __m512) -> [__m512; 2] {
        unsafe {
            let low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            [_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b)]
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        unsafe {
            let w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w))
        }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // `vmaxps` is defined as `a > b ? a : b`.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn maximum(a: __m512, b: __m512) -> __m512 {
        // Both orders differ for zeroes of two signs, whose conjunction is +0.
        unsafe {
            let most = _mm512_and_ps(_mm512_max_ps(a, b), _mm512_max_ps(b, a));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b);
            _mm512_mask_mov_ps(most, nan, _mm512_set1_ps(f32::NAN))
        }
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn select_lt(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        unsafe { _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), x) }
    }
    #[inline(always)]
    unsafe fn select_le(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        unsafe { _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b), x) }
    }
    #[inline(always)]
    unsafe fn first(x: __m512, n: usize, other: __m512) -> __m512 {
        unsafe {
            let mask = if n >= 16 { 0xFFFF } else { (1u16 << n) - 1 };
            _mm512_mask_mov_ps(other, mask, x)
        }
    }
    #[inline(always)]
    unsafe fn sum(x: __m512) -> f32 {
        unsafe {
            let y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps::<1>(y));
            let w = _mm_add_ps(z, _mm_movehl_ps(z, z));
            _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)))
        }
    }
    #[inline(always)]
    unsafe fn max_lanes(x: __m512) -> f32 {
        unsafe {
            let y = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps::<1>(y));
            let w = _mm_max_ps(z, _mm_movehl_ps(z, z));
            _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)))
        }
    }
    #[inline(always)]
    unsafe fn round_i(x: __m512) -> __m512i {
        unsafe { _mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn to_f(x: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn bits_f(x: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(x) }
    }
    #[inline(always)]
    unsafe fn add_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn and_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shl_i<const N: i32>(x: __m512i) -> __m512i {
        unsafe { _mm512_sll_epi32(x, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn shr_i<const N: i32>(x: __m512i) -> __m512i {
        unsafe { _mm512_srl_epi32(x, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512i {
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: __m512i) -> i32 {
        unsafe {
            let b = _mm512_cvtepi32_epi8(x);
            _mm_storeu_si128(p.cast(), b);
            sum_i8(b)
        }
    }
    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_b(p: *mut u8, x: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn sub_b(x: __m512i, n: u8) -> __m512i {
        unsafe { _mm512_sub_epi8(x, _mm512_set1_epi8(n.cast_signed())) }
    }
    #[inline(always)]
    unsafe fn and_b(x: __m512i, mask: u8) -> __m512i {
        unsafe { _mm512_and_si512(x, _mm512_set1_epi8(mask.cast_signed())) }
    }
    #[inline(always)]
    unsafe fn or_b(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shr_and_b(x: __m512i, n: u32, mask: u8) -> __m512i {
        // The count is a constant once inlined, and the shift by register becomes one by immediate.
        unsafe { Self::and_b(_mm512_srl_epi16(x, _mm_cvtsi32_si128(n.cast_signed())), mask) }
    }
    #[inline(always)]
    unsafe fn above<const N: i32>(a: __m512i, b: __m512i) -> __m512i {
        unsafe {
            let upper = _mm512_set1_epi8(-1 << (8 - N));
            // Bits from `a` where `upper` is set.
            let below = _mm512_srl_epi16(b, _mm_cvtsi32_si128(N));
            _mm512_ternarylogic_epi32::<0b1100_1010>(upper, a, below)
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], x: __m512i) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, x)
        }
    }
    #[inline(always)]
    unsafe fn dot_u(acc: __m512i, w: __m512i, a: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(a.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn init_8(less128: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(less128) }
    }
    #[inline(always)]
    unsafe fn operand_8(stored: __m512i) -> __m512i {
        stored
    }
    #[inline(always)]
    unsafe fn dot_8(acc: __m512i, w: __m512i, a: *const i8) -> __m512i {
        // Unsigned (signed + 128) by signed; `init_8` has subtracted the sum's excess.
        unsafe { Self::dot_u(acc, w, a) }
    }
    #[inline(always)]
    unsafe fn dots_u<const G: usize, const R: usize>(
        mut acc: [[__m512i; R]; G],
        w: [[__m512i; 4]; G],
        a: *const i8,
        _most: u8,
    ) -> [[__m512i; R]; G] {
        match (acc.as_flattened_mut().first_chunk_mut(), w.as_slice()) {
            (Some(acc), &[w]) if R == 8 => unsafe { eight(acc, w, a) },
            (Some(acc), &[v, w]) if R == 4 => unsafe { two_by_four(acc, [v, w], a) },
            _ => {
                for i in 0..4 {
                    for (r, a) in (0..R).map(|r| (r, a.wrapping_add(64 * r + 4 * i))) {
                        for (acc, w) in acc.iter_mut().zip(&w) {
                            acc[r] = unsafe { Self::dot_u(acc[r], w[i], a) };
                        }
                    }
                }
            }
        }
        acc
    }
    #[inline(always)]
    unsafe fn dots_8<const G: usize, const R: usize>(
        acc: [[__m512i; R]; G],
        w: [[__m512i; 4]; G],
        a: *const i8,
    ) -> [[__m512i; R]; G] {
        unsafe { Self::dots_u(acc, w, a, u8::MAX) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}

/// Multiplies one group with the four bytes at `$at` of each of eight rows.
macro_rules! step {
    ($w:literal, $at:literal) => {
        concat!(
            step!("a0", $w, 0, $at),
            step!("a1", $w, 64, $at),
            step!("a2", $w, 128, $at),
            step!("a3", $w, 192, $at),
            step!("a4", $w, 256, $at),
            step!("a5", $w, 320, $at),
            step!("a6", $w, 384, $at),
            step!("a7", $w, 448, $at),
        )
    };
    ($acc:literal, $w:literal, $row:literal, $at:literal) => {
        concat!(
            "vpdpbusd {",
            $acc,
            "}, {",
            $w,
            "}, dword ptr [{a} + ",
            $row,
            " + ",
            $at,
            "]{{1to16}}\n"
        )
    };
}

/// [`Simd::dots_u`] of eight rows. In this order, with broadcasts as part of the instructions, the products run at
/// the processor's peak rate of two per cycle. A compiler orders the instructions row by row, and reaches two
/// thirds of it.
///
/// # Safety
///
/// The machine has the instruction set, and `a` is as for [`Simd::dots_u`].
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn eight(acc: &mut [__m512i; 8], w: [__m512i; 4], a: *const i8) {
    let [a0, a1, a2, a3, a4, a5, a6, a7] = acc;
    let [w0, w1, w2, w3] = w;
    // SAFETY: reads 16 bytes of each of eight rows, and no other memory.
    unsafe {
        asm!(
            step!("w0", 0),
            step!("w1", 4),
            step!("w2", 8),
            step!("w3", 12),
            a = in(reg) a,
            w0 = in(zmm_reg) w0, w1 = in(zmm_reg) w1, w2 = in(zmm_reg) w2, w3 = in(zmm_reg) w3,
            a0 = inout(zmm_reg) *a0, a1 = inout(zmm_reg) *a1,
            a2 = inout(zmm_reg) *a2, a3 = inout(zmm_reg) *a3,
            a4 = inout(zmm_reg) *a4, a5 = inout(zmm_reg) *a5,
            a6 = inout(zmm_reg) *a6, a7 = inout(zmm_reg) *a7,
            options(nostack, readonly, pure, preserves_flags),
        );
    }
}

/// Multiplies the four bytes at `$at` of each of four rows with one group of each row group.
macro_rules! pair {
    ($v:literal, $w:literal, $at:literal) => {
        concat!(
            pair!("a0", "b0", $v, $w, 0, $at),
            pair!("a1", "b1", $v, $w, 64, $at),
            pair!("a2", "b2", $v, $w, 128, $at),
            pair!("a3", "b3", $v, $w, 192, $at),
        )
    };
    ($a:literal, $b:literal, $v:literal, $w:literal, $row:literal, $at:literal) => {
        concat!(
            "vpbroadcastd zmm31, dword ptr [{a} + ",
            $row,
            " + ",
            $at,
            "]\nvpdpbusd {",
            $a,
            "}, {",
            $v,
            "}, zmm31\nvpdpbusd {",
            $b,
            "}, {",
            $w,
            "}, zmm31\n"
        )
    };
}

/// [`Simd::dots_u`] of four rows with two row groups. Each broadcast is used twice: half as many reads as in
/// [`eight`].
///
/// # Safety
///
/// As for [`eight`].
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn two_by_four(acc: &mut [__m512i; 8], w: [[__m512i; 4]; 2], a: *const i8) {
    let [a0, a1, a2, a3, b0, b1, b2, b3] = acc;
    let [[v0, v1, v2, v3], [w0, w1, w2, w3]] = w;
    // SAFETY: reads 16 bytes of each of four rows, and no other memory.
    unsafe {
        asm!(
            pair!("v0", "w0", 0),
            pair!("v1", "w1", 4),
            pair!("v2", "w2", 8),
            pair!("v3", "w3", 12),
            a = in(reg) a,
            out("zmm31") _,
            v0 = in(zmm_reg) v0, v1 = in(zmm_reg) v1, v2 = in(zmm_reg) v2, v3 = in(zmm_reg) v3,
            w0 = in(zmm_reg) w0, w1 = in(zmm_reg) w1, w2 = in(zmm_reg) w2, w3 = in(zmm_reg) w3,
            a0 = inout(zmm_reg) *a0, a1 = inout(zmm_reg) *a1,
            a2 = inout(zmm_reg) *a2, a3 = inout(zmm_reg) *a3,
            b0 = inout(zmm_reg) *b0, b1 = inout(zmm_reg) *b1,
            b2 = inout(zmm_reg) *b2, b3 = inout(zmm_reg) *b3,
            options(nostack, readonly, pure, preserves_flags),
        );
    }
}
