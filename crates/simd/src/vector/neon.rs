//! [`Simd`] on NEON with the dot-product extension: four registers per vector, lanes in order.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Simd;
use super::tiles::Model;

/// NEON with `dotprod` and half-precision conversion.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// Applies an expression to each quarter of a vector.
macro_rules! quarters {
    ($i:ident => $e:expr) => {
        [
            {
                let $i = 0usize;
                $e
            },
            {
                let $i = 1usize;
                $e
            },
            {
                let $i = 2usize;
                $e
            },
            {
                let $i = 3usize;
                $e
            },
        ]
    };
}

/// `acc + dot(w, a)` per lane; `sdot` has no stable intrinsic.
#[inline(always)]
unsafe fn sdot(acc: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
    let mut out = acc;
    // SAFETY: the caller proves `dotprod`; the instruction touches only the named registers.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {out:v}.4s, {w:v}.16b, {a:v}.16b",
            out = inout(vreg) out, w = in(vreg) w, a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// [`sdot`] with byte group `LANE` of `a` in every lane.
#[inline(always)]
unsafe fn sdot_lane<const LANE: usize>(acc: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
    let mut out = acc;
    // SAFETY: as for `sdot`.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {out:v}.4s, {w:v}.16b, {a:v}.4b[{lane}]",
            out = inout(vreg) out, w = in(vreg) w, a = in(vreg) a, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// Multiplies byte group `LANE` of `R` rows with the matching group of each of `G` row groups.
#[inline(always)]
unsafe fn dots_lane<const G: usize, const R: usize, const LANE: usize>(
    acc: &mut [[[int32x4_t; 4]; R]; G],
    w: &[[[uint8x16_t; 4]; 4]; G],
    a: &[int8x16_t; R],
) {
    for (acc, w) in acc.iter_mut().zip(w) {
        for (acc, &a) in acc.iter_mut().zip(a) {
            // SAFETY: the caller's contract.
            *acc = unsafe {
                quarters!(i => sdot_lane::<LANE>(acc[i], vreinterpretq_s8_u8(w[LANE][i]), a))
            };
        }
    }
}

/// Four `f16`, as bits, to `f32`.
#[inline(always)]
unsafe fn widen(h: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: `fcvtl` is baseline AArch64 and touches only the named registers.
    unsafe {
        asm!("fcvtl {out:v}.4s, {h:v}.4h", out = lateout(vreg) out, h = in(vreg) h,
             options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Four `f32` to `f16` bits, nearest even.
#[inline(always)]
unsafe fn narrow(x: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    // SAFETY: `fcvtn` is baseline AArch64 and touches only the named registers.
    unsafe {
        asm!("fcvtn {out:v}.4h, {x:v}.4s", out = lateout(vreg) out, x = in(vreg) x,
             options(pure, nomem, nostack, preserves_flags));
    }
    out
}

// SAFETY (all blocks): the caller of a `Simd` function proves the instruction set and the pointers.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one argument for all, above")]
impl Simd for Neon {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];
    const ACCUMULATORS: usize = 4;
    type Tiles = Model;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        unsafe { quarters!(i => vld1q_f32(p.add(4 * i))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        for (i, v) in x.into_iter().enumerate() {
            unsafe { vst1q_f32(p.add(4 * i), v) }
        }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F {
        let zero = unsafe { vdupq_n_f32(0.0) };
        let of = |p: *const f32, n: usize| unsafe {
            match n {
                0 => zero,
                1 => vld1q_lane_f32::<0>(p, zero),
                2 => vcombine_f32(vld1_f32(p), vdup_n_f32(0.0)),
                3 => vld1q_lane_f32::<2>(p.add(2), vcombine_f32(vld1_f32(p), vdup_n_f32(0.0))),
                _ => vld1q_f32(p),
            }
        };
        quarters!(i => of(p.wrapping_add(4 * i), n.saturating_sub(4 * i)))
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, x: Self::F, n: usize) {
        for (i, x) in x.into_iter().enumerate() {
            let p = p.wrapping_add(4 * i);
            unsafe {
                match n.saturating_sub(4 * i) {
                    0 => {}
                    1 => vst1q_lane_f32::<0>(p, x),
                    2 => vst1_f32(p, vget_low_f32(x)),
                    3 => {
                        vst1_f32(p, vget_low_f32(x));
                        vst1q_lane_f32::<2>(p.add(2), x);
                    }
                    _ => vst1q_f32(p, x),
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn evens(a: Self::F, b: Self::F) -> Self::F {
        unsafe {
            [
                vuzp1q_f32(a[0], a[1]),
                vuzp1q_f32(a[2], a[3]),
                vuzp1q_f32(b[0], b[1]),
                vuzp1q_f32(b[2], b[3]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn interleaved(a: Self::F, b: Self::F) -> [Self::F; 2] {
        let of = |i: usize| unsafe { [vzip1q_f32(a[i], b[i]), vzip2q_f32(a[i], b[i])] };
        let [[p, q], [r, s], [t, u], [v, w]] = [of(0), of(1), of(2), of(3)];
        [[p, q, r, s], [t, u, v, w]]
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        unsafe { quarters!(i => widen(vld1_u16(p.add(4 * i)))) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: Self::F) {
        for (i, v) in x.into_iter().enumerate() {
            unsafe { vst1_u16(p.add(4 * i), narrow(v)) }
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        unsafe { quarters!(i => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(4 * i))))) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { quarters!(i => vaddq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { quarters!(i => vsubq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { quarters!(i => vmulq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        unsafe { quarters!(i => vdivq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { quarters!(i => vfmaq_f32(c[i], a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        unsafe { quarters!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        unsafe { quarters!(i => vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn maximum(a: Self::F, b: Self::F) -> Self::F {
        // `fmax` is the maximum of IEEE 754-2019.
        unsafe { quarters!(i => vmaxq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        unsafe { quarters!(i => vabsq_f32(a[i])) }
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        unsafe { quarters!(i => vbslq_f32(vcltq_f32(a[i], b[i]), x[i], y[i])) }
    }
    #[inline(always)]
    unsafe fn select_le(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        unsafe { quarters!(i => vbslq_f32(vcleq_f32(a[i], b[i]), x[i], y[i])) }
    }
    #[inline(always)]
    unsafe fn first(x: Self::F, n: usize, other: Self::F) -> Self::F {
        unsafe {
            const IOTA: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
            let n = vdupq_n_u32(u32::try_from(n).unwrap_or(16));
            quarters!(i => vbslq_f32(vcltq_u32(vld1q_u32(IOTA.as_ptr().add(4 * i)), n), x[i], other[i]))
        }
    }
    #[inline(always)]
    unsafe fn sum(x: Self::F) -> f32 {
        unsafe {
            let z = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
            let w = vadd_f32(vget_low_f32(z), vget_high_f32(z));
            vget_lane_f32::<0>(w) + vget_lane_f32::<1>(w)
        }
    }
    #[inline(always)]
    unsafe fn max_lanes(x: Self::F) -> f32 {
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(x[0], x[2]), vmaxq_f32(x[1], x[3]))) }
    }
    #[inline(always)]
    unsafe fn round_i(x: Self::F) -> Self::I {
        unsafe { quarters!(i => vcvtnq_s32_f32(x[i])) }
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        unsafe { [vdupq_n_s32(x); 4] }
    }
    #[inline(always)]
    unsafe fn to_f(x: Self::I) -> Self::F {
        unsafe { quarters!(i => vcvtq_f32_s32(x[i])) }
    }
    #[inline(always)]
    unsafe fn bits_f(x: Self::I) -> Self::F {
        unsafe { quarters!(i => vreinterpretq_f32_s32(x[i])) }
    }
    #[inline(always)]
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        unsafe { quarters!(i => vaddq_s32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn and_i(a: Self::I, b: Self::I) -> Self::I {
        unsafe { quarters!(i => vandq_s32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn or_i(a: Self::I, b: Self::I) -> Self::I {
        unsafe { quarters!(i => vorrq_s32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn shl_i<const N: i32>(x: Self::I) -> Self::I {
        unsafe { quarters!(i => vshlq_s32(x[i], vdupq_n_s32(N))) }
    }
    #[inline(always)]
    unsafe fn shr_i<const N: i32>(x: Self::I) -> Self::I {
        unsafe {
            let n = vdupq_n_s32(-N);
            quarters!(i => vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x[i]), n)))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::I {
        unsafe {
            let b = vld1q_u8(p);
            let (l, h) = (vmovl_u8(vget_low_u8(b)), vmovl_u8(vget_high_u8(b)));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(l))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(l))),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(h))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(h))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::I {
        unsafe {
            let b = vld1q_s8(p);
            let (l, h) = (vmovl_s8(vget_low_s8(b)), vmovl_s8(vget_high_s8(b)));
            [
                vmovl_s16(vget_low_s16(l)),
                vmovl_s16(vget_high_s16(l)),
                vmovl_s16(vget_low_s16(h)),
                vmovl_s16(vget_high_s16(h)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> Self::I {
        unsafe { quarters!(i => vld1q_s32(p.add(4 * i))) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: Self::I) -> i32 {
        unsafe {
            let l = vcombine_s16(vmovn_s32(x[0]), vmovn_s32(x[1]));
            let h = vcombine_s16(vmovn_s32(x[2]), vmovn_s32(x[3]));
            let b = vcombine_s8(vmovn_s16(l), vmovn_s16(h));
            vst1q_s8(p, b);
            vaddlvq_s8(b).into()
        }
    }
    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> Self::B {
        unsafe { quarters!(i => vld1q_u8(p.add(16 * i))) }
    }
    #[inline(always)]
    unsafe fn store_b(p: *mut u8, x: Self::B) {
        for (i, v) in x.into_iter().enumerate() {
            unsafe { vst1q_u8(p.add(16 * i), v) }
        }
    }
    #[inline(always)]
    unsafe fn sub_b(x: Self::B, n: u8) -> Self::B {
        unsafe { quarters!(i => vsubq_u8(x[i], vdupq_n_u8(n))) }
    }
    #[inline(always)]
    unsafe fn and_b(x: Self::B, mask: u8) -> Self::B {
        unsafe { quarters!(i => vandq_u8(x[i], vdupq_n_u8(mask))) }
    }
    #[inline(always)]
    unsafe fn or_b(a: Self::B, b: Self::B) -> Self::B {
        unsafe { quarters!(i => vorrq_u8(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn shr_and_b(x: Self::B, n: u32, mask: u8) -> Self::B {
        unsafe {
            let n = vnegq_s8(vreinterpretq_s8_u8(vdupq_n_u8(n as u8)));
            Self::and_b(quarters!(i => vshlq_u8(x[i], n)), mask)
        }
    }
    #[inline(always)]
    unsafe fn above<const N: i32>(a: Self::B, b: Self::B) -> Self::B {
        unsafe { quarters!(i => vsriq_n_u8::<N>(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], x: Self::B) -> Self::B {
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            quarters!(i => vqtbl1q_u8(table, x[i]))
        }
    }
    #[inline(always)]
    unsafe fn dot_u(acc: Self::I, w: Self::B, a: *const i8) -> Self::I {
        unsafe {
            // At most 127, so signed and unsigned agree.
            let a = vreinterpretq_s8_s32(vdupq_n_s32(a.cast::<i32>().read_unaligned()));
            quarters!(i => sdot(acc[i], vreinterpretq_s8_u8(w[i]), a))
        }
    }
    #[inline(always)]
    unsafe fn init_8(_less128: i32) -> Self::I {
        unsafe { [vdupq_n_s32(super::BIAS); 4] }
    }
    #[inline(always)]
    unsafe fn operand_8(stored: Self::B) -> Self::B {
        unsafe { quarters!(i => veorq_u8(stored[i], vdupq_n_u8(0x80))) }
    }
    #[inline(always)]
    unsafe fn dot_8(acc: Self::I, w: Self::B, a: *const i8) -> Self::I {
        unsafe { Self::dot_u(acc, w, a) }
    }
    #[inline(always)]
    unsafe fn dots_u<const G: usize, const R: usize>(
        mut acc: [[Self::I; R]; G],
        w: [[Self::B; 4]; G],
        a: *const i8,
        _most: u8,
    ) -> [[Self::I; R]; G] {
        unsafe {
            // One load for 16 columns of a row; the products select their four bytes.
            let mut rows = [vld1q_s8(a); R];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = vld1q_s8(a.add(64 * r));
            }
            dots_lane::<G, R, 0>(&mut acc, &w, &rows);
            dots_lane::<G, R, 1>(&mut acc, &w, &rows);
            dots_lane::<G, R, 2>(&mut acc, &w, &rows);
            dots_lane::<G, R, 3>(&mut acc, &w, &rows);
            acc
        }
    }
    #[inline(always)]
    unsafe fn dots_8<const G: usize, const R: usize>(
        acc: [[Self::I; R]; G],
        w: [[Self::B; 4]; G],
        a: *const i8,
    ) -> [[Self::I; R]; G] {
        unsafe { Self::dots_u(acc, w, a, u8::MAX) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags)) }
    }
}
