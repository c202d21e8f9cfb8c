//! [`Simd`] in plain Rust: the definition of every operation, and the fallback.
//!
//! Operations with 16 calls or 64 products are not inlined, and one row is computed at a time: kernels are already
//! unrolled, and inlining makes nothing faster here.

use half::f16;

use super::tiles::Model;
use super::{LANES, Simd};

/// No instruction set beyond the target's baseline.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type F = [f32; LANES];
type I = [i32; LANES];

/// Applies an operation lane by lane; a loop instead of a closure, so that it is always inlined.
macro_rules! lanes {
    ($i:ident => $e:expr) => {{
        let mut out = [Default::default(); LANES];
        for $i in 0..LANES {
            out[$i] = $e;
        }
        out
    }};
}

// SAFETY (all blocks): pointers are valid for the bytes that the operation names, as the caller of
// a `Simd` function promises.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one argument for all, above")]
impl Simd for Scalar {
    type F = F;
    type I = I;
    type B = [u8; 64];
    const ACCUMULATORS: usize = 1;
    type Tiles = Model;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        unsafe { p.cast::<F>().write_unaligned(x) }
    }
    #[inline(never)]
    unsafe fn load_f16(p: *const u16) -> F {
        let h = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        lanes!(i => f16::from_bits(h[i]).to_f32())
    }
    #[inline(never)]
    unsafe fn store_f16(p: *mut u16, x: F) {
        let h: [u16; LANES] = lanes!(i => f16::from_f32(x[i]).to_bits());
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(h) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        let h = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        lanes!(i => f32::from_bits(u32::from(h[i]) << 16))
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        lanes!(i => a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        lanes!(i => a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        lanes!(i => a[i] / b[i])
    }
    #[inline(never)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        lanes!(i => a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        lanes!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        lanes!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn maximum(a: F, b: F) -> F {
        lanes!(i => plan::maximum(a[i], b[i]))
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        lanes!(i => a[i].abs())
    }
    #[inline(always)]
    unsafe fn select_lt(a: F, b: F, x: F, y: F) -> F {
        lanes!(i => if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    unsafe fn select_le(a: F, b: F, x: F, y: F) -> F {
        lanes!(i => if a[i] <= b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    unsafe fn first(x: F, n: usize, other: F) -> F {
        lanes!(i => if i < n { x[i] } else { other[i] })
    }
    #[inline(always)]
    unsafe fn sum(x: F) -> f32 {
        let mut t = x;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                t[i] += t[i + half];
            }
        }
        t[0]
    }
    #[inline(always)]
    unsafe fn max_lanes(x: F) -> f32 {
        let mut max = x[0];
        for v in x {
            max = if v > max { v } else { max };
        }
        max
    }
    #[inline(never)]
    unsafe fn round_i(x: F) -> I {
        #[expect(clippy::cast_possible_truncation, reason = "the caller's values fit")]
        let out = lanes!(i => x[i].round_ties_even() as i32);
        out
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn to_f(x: I) -> F {
        #[expect(clippy::cast_precision_loss, reason = "rounding is the operation")]
        let out = lanes!(i => x[i] as f32);
        out
    }
    #[inline(always)]
    unsafe fn bits_f(x: I) -> F {
        lanes!(i => f32::from_bits(x[i].cast_unsigned()))
    }
    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        lanes!(i => a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    unsafe fn and_i(a: I, b: I) -> I {
        lanes!(i => a[i] & b[i])
    }
    #[inline(always)]
    unsafe fn or_i(a: I, b: I) -> I {
        lanes!(i => a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn shl_i<const N: i32>(x: I) -> I {
        lanes!(i => x[i] << N)
    }
    #[inline(always)]
    unsafe fn shr_i<const N: i32>(x: I) -> I {
        lanes!(i => (x[i].cast_unsigned() >> N).cast_signed())
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I {
        let b = unsafe { p.cast::<[u8; LANES]>().read() };
        lanes!(i => i32::from(b[i]))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> I {
        let b = unsafe { p.cast::<[i8; LANES]>().read() };
        lanes!(i => i32::from(b[i]))
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> I {
        unsafe { p.cast::<I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: I) -> i32 {
        #[expect(clippy::cast_possible_truncation, reason = "the caller's values fit")]
        let b: [i8; LANES] = lanes!(i => x[i] as i8);
        unsafe { p.cast::<[i8; LANES]>().write(b) };
        x.iter().sum()
    }
    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> [u8; 64] {
        unsafe { p.cast::<[u8; 64]>().read() }
    }
    #[inline(always)]
    unsafe fn store_b(p: *mut u8, x: [u8; 64]) {
        unsafe { p.cast::<[u8; 64]>().write(x) }
    }
    #[inline(always)]
    unsafe fn sub_b(mut x: [u8; 64], n: u8) -> [u8; 64] {
        for b in &mut x {
            *b = b.wrapping_sub(n);
        }
        x
    }
    #[inline(always)]
    unsafe fn and_b(mut x: [u8; 64], mask: u8) -> [u8; 64] {
        for b in &mut x {
            *b &= mask;
        }
        x
    }
    #[inline(always)]
    unsafe fn or_b(mut a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        for i in 0..64 {
            a[i] |= b[i];
        }
        a
    }
    #[inline(always)]
    unsafe fn shr_and_b(mut x: [u8; 64], n: u32, mask: u8) -> [u8; 64] {
        for b in &mut x {
            *b = (*b >> n) & mask;
        }
        x
    }
    #[inline(always)]
    unsafe fn above<const N: i32>(mut a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        let below = 0xff >> N;
        for (a, b) in a.iter_mut().zip(b) {
            *a = *a & !below | b >> N;
        }
        a
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], x: [u8; 64]) -> [u8; 64] {
        x.map(|code| table[usize::from(code & 15)])
    }
    #[inline(never)]
    unsafe fn dot_u(mut acc: I, w: [u8; 64], a: *const i8) -> I {
        let a = unsafe { a.cast::<[i8; 4]>().read() };
        for i in 0..LANES {
            for k in 0..4 {
                acc[i] = acc[i].wrapping_add(i32::from(w[4 * i + k]) * i32::from(a[k]));
            }
        }
        acc
    }
    #[inline(always)]
    unsafe fn init_8(less128: i32) -> I {
        [less128; LANES]
    }
    #[inline(always)]
    unsafe fn operand_8(stored: [u8; 64]) -> [u8; 64] {
        stored
    }
    #[inline(always)]
    unsafe fn dot_8(acc: I, w: [u8; 64], a: *const i8) -> I {
        unsafe { Self::dot_u(acc, w, a) }
    }
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}
}
