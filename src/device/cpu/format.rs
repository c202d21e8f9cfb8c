//! How a packed superblock becomes operands in registers, for each type of weights.
//!
//! The counterpart of `packed`, which owns where the bytes lie.

use super::packed::{LINE, at};
use super::simd::{BIAS_F, LANES, Simd};

/// How a block's integers become a number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Signed bytes stored plus 128, one scale for 32 columns.
    Signed,
    /// Unsigned minus 8, one scale for 32 columns.
    Offset8,
    /// Unsigned minus 32, one scale for each 16 columns.
    Offset32,
    /// Unsigned with a scale and a minimum to subtract for 32 columns.
    Minimum,
}

/// 16 rows by 32 columns, ready to be multiplied.
#[derive(Clone, Copy)]
pub(super) struct Block<S: Simd> {
    /// Columns `4g..4g+4` in group `g`.
    pub(super) w: [S::B; 8],
    /// The scale; for [`Form::Offset32`] that of the first 16 columns.
    pub(super) scale: S::F,
    /// [`Form::Offset32`]: the scale of the last 16 columns. [`Form::Minimum`]: minus the minimum.
    pub(super) second: S::F,
    /// Minus [`BIAS_F`] times the scale: exact, since a scale has at most 19 bits.
    pub(super) unbias: S::F,
}

impl<S: Simd> Block<S> {
    /// # Safety
    ///
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn new(w: [S::B; 8], scale: S::F, second: S::F) -> Self {
        // SAFETY: the caller's contract.
        Self { w, scale, second, unbias: unsafe { S::mul(scale, S::splat(-BIAS_F)) } }
    }
}

/// A quantised type of weights.
pub(super) trait Quant {
    /// Columns of a superblock: 64 or 256.
    const COLUMNS: usize;
    /// Bytes of a superblock.
    const BYTES: usize;
    /// How its integers become numbers.
    const FORM: Form;
    /// Block `b` (of 32 columns) of the superblock at `sb`; `b` is a literal wherever this is
    /// called, so that shifts become immediates.
    ///
    /// # Safety
    ///
    /// As for [`Simd`]; `sb` is valid for [`Quant::BYTES`] bytes.
    unsafe fn block<S: Simd>(sb: *const u8, b: usize) -> Block<S>;
}

/// The line `n` after `p`.
#[inline(always)]
unsafe fn line<S: Simd>(p: *const u8, n: usize) -> S::B {
    // SAFETY: the caller's contract.
    unsafe { S::load_b(p.add(n * LINE)) }
}

/// `Q8_0`.
pub(super) struct Q8_0;

impl Quant for Q8_0 {
    const COLUMNS: usize = 64;
    const BYTES: usize = 17 * LINE;
    const FORM: Form = Form::Signed;

    #[inline(always)]
    unsafe fn block<S: Simd>(sb: *const u8, b: usize) -> Block<S> {
        // SAFETY: offsets within the superblock.
        unsafe {
            let mut w = [S::operand_8(line::<S>(sb, 8 * b)); 8];
            for (g, w) in w.iter_mut().enumerate() {
                *w = S::operand_8(line::<S>(sb, 8 * b + g));
            }
            let scale = S::load_f16(sb.add(at::Q8_0_SCALE + 32 * b).cast());
            Block::new(w, scale, scale)
        }
    }
}

/// `Q4_0`.
pub(super) struct Q4_0;

impl Quant for Q4_0 {
    const COLUMNS: usize = 64;
    const BYTES: usize = 9 * LINE;
    const FORM: Form = Form::Offset8;

    #[inline(always)]
    unsafe fn block<S: Simd>(sb: *const u8, b: usize) -> Block<S> {
        // SAFETY: offsets within the superblock.
        unsafe {
            let mut w = [line::<S>(sb, 4 * b); 8];
            for g in 0..4 {
                let both = line::<S>(sb, 4 * b + g);
                w[g] = S::and_b(both, 15);
                w[g + 4] = S::shr_and_b(both, 4, 15);
            }
            let scale = S::load_f16(sb.add(at::Q4_0_SCALE + 32 * b).cast());
            Block::new(w, scale, scale)
        }
    }
}

/// The low or high nibbles of the 8 lines that block `b` shares with its neighbour.
#[inline(always)]
unsafe fn nibbles<S: Simd>(p: *const u8, high: bool) -> [S::B; 8] {
    // SAFETY: the caller's contract: 8 lines.
    unsafe {
        let mut w = [line::<S>(p, 0); 8];
        for (g, w) in w.iter_mut().enumerate() {
            let both = line::<S>(p, g);
            *w = if high { S::shr_and_b(both, 4, 15) } else { S::and_b(both, 15) };
        }
        w
    }
}

/// Scale and negated minimum of block `b`, multiplied out.
#[inline(always)]
unsafe fn k_scales<S: Simd>(head: *const u8, b: usize) -> (S::F, S::F) {
    // SAFETY: the caller's contract: `head` is the start of the scales.
    unsafe {
        let low = S::load_u8(head.add(at::K_LOW + LANES * b));
        let high = S::load_u8(head.add(at::K_HIGH + LANES * (b / 2)));
        // The upper pairs land at bits 4 and 5.
        let (s, m) = if b.is_multiple_of(2) {
            (S::shl_i::<4>(high), S::shl_i::<2>(high))
        } else {
            (high, S::shr_i::<2>(high))
        };
        let (nibble, pair) = (S::splat_i(15), S::splat_i(48));
        let scale = S::or_i(S::and_i(low, nibble), S::and_i(s, pair));
        let minimum = S::or_i(S::shr_i::<4>(low), S::and_i(m, pair));
        let d = S::load_f16(head.cast());
        let neg_dmin = S::sub(S::splat(0.0), S::load_f16(head.add(32).cast()));
        (S::mul(d, S::to_f(scale)), S::mul(neg_dmin, S::to_f(minimum)))
    }
}

/// `Q4_K`.
pub(super) struct Q4K;

impl Quant for Q4K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 36 * LINE;
    const FORM: Form = Form::Minimum;

    #[inline(always)]
    unsafe fn block<S: Simd>(sb: *const u8, b: usize) -> Block<S> {
        // SAFETY: offsets within the superblock.
        unsafe {
            let w = nibbles::<S>(sb.add(b / 2 * 8 * LINE), b % 2 == 1);
            let (scale, second) = k_scales::<S>(sb.add(at::Q4_K_SCALE), b);
            Block::new(w, scale, second)
        }
    }
}

/// `Q5_K`.
pub(super) struct Q5K;

impl Quant for Q5K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 44 * LINE;
    const FORM: Form = Form::Minimum;

    #[inline(always)]
    unsafe fn block<S: Simd>(sb: *const u8, b: usize) -> Block<S> {
        // SAFETY: offsets within the superblock.
        unsafe {
            let mut w = nibbles::<S>(sb.add(b / 2 * 8 * LINE), b % 2 == 1);
            for (g, w) in w.iter_mut().enumerate() {
                // Bit `b` to bit 4.
                let bits = line::<S>(sb.add(at::Q5_K_HIGH), g);
                let fifth = match u32::try_from(b).unwrap_or(0) {
                    b @ 0..4 => S::shl_and_b(bits, 4 - b, 16),
                    b => S::shr_and_b(bits, b - 4, 16),
                };
                *w = S::or_b(*w, fifth);
            }
            let (scale, second) = k_scales::<S>(sb.add(at::Q5_K_SCALE), b);
            Block::new(w, scale, second)
        }
    }
}

/// `Q6_K`.
pub(super) struct Q6K;

impl Quant for Q6K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 53 * LINE;
    const FORM: Form = Form::Offset32;

    #[inline(always)]
    unsafe fn block<S: Simd>(sb: *const u8, b: usize) -> Block<S> {
        // SAFETY: offsets within the superblock.
        unsafe {
            let (half, b4) = (b / 4, b % 4);
            let mut w = nibbles::<S>(sb.add((16 * half + 8 * (b4 % 2)) * LINE), b4 / 2 == 1);
            for (g, w) in w.iter_mut().enumerate() {
                // Bits `2 b4` and `2 b4 + 1` to bits 4 and 5.
                let bits = line::<S>(sb.add(at::Q6_K_HIGH), 8 * half + g);
                let high = match b4 {
                    0 => S::shl_and_b(bits, 4, 48),
                    1 => S::shl_and_b(bits, 2, 48),
                    2 => S::and_b(bits, 48),
                    _ => S::shr_and_b(bits, 2, 48),
                };
                *w = S::or_b(*w, high);
            }
            let d = S::load(sb.add(at::Q6_K_D).cast());
            let s = sb.add(at::Q6_K_SCALE + 2 * LANES * b).cast::<i8>();
            let scale = S::mul(d, S::to_f(S::load_i8(s)));
            Block::new(w, scale, S::mul(d, S::to_f(S::load_i8(s.add(LANES)))))
        }
    }
}

/// A plain type of weights.
pub(super) trait Plain {
    /// Bytes of an element.
    const WIDTH: usize;
    /// 16 rows of one column.
    ///
    /// # Safety
    ///
    /// As for [`Simd`]; `p` is valid for 16 elements.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
}

/// `F32`.
pub(super) struct F32;

impl Plain for F32 {
    const WIDTH: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load(p.cast()) }
    }
}

/// `F16`.
pub(super) struct F16;

impl Plain for F16 {
    const WIDTH: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(p.cast()) }
    }
}

/// `BF16`.
pub(super) struct BF16;

impl Plain for BF16 {
    const WIDTH: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load_bf16(p.cast()) }
    }
}
