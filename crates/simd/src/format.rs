//! How a packed superblock becomes operands in registers, for each type of weights.
//!
//! The counterpart of `packed`, which owns where the bytes lie.

use super::packed::{LINE, at};
use super::vector::{BIAS_F, LANES, Simd};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightFormat {
    /// Signed bytes stored plus 128, one scale for 32 columns.
    Signed,
    /// Unsigned minus 8, one scale for 32 columns.
    Offset8,
    /// Unsigned minus 32, one scale for each 16 columns.
    Offset32,
    /// Unsigned with a scale and a minimum to subtract for 32 columns. Every other block is negated
    /// (as what is missing to the greatest value) and starts from minus the bias: scales are of one
    /// sign, so biases would grow to 8 times the size where the first's rounding counts.
    Minimum,
}

impl WeightFormat {
    /// Whether block `b` of a superblock is stored negated.
    #[inline(always)]
    pub(crate) const fn negated(self, b: usize) -> bool {
        matches!(self, Self::Minimum) && !b.is_multiple_of(2)
    }

    /// What a byte as it is stored is too large by, in block `b` of integers of `bits`, to be the weight: of a
    /// negated block, minus the weight.
    #[inline(always)]
    pub(crate) const fn excess(self, b: usize, bits: u32) -> u8 {
        match self {
            Self::Signed => 128,
            Self::Offset8 => 8,
            Self::Offset32 => 32,
            Self::Minimum if self.negated(b) => (1 << bits) - 1,
            Self::Minimum => 0,
        }
    }
}

/// What the integers of 16 rows by 32 columns are worth.
#[derive(Clone, Copy)]
pub(crate) struct Scale<S: Simd> {
    /// The scale; for [`WeightFormat::Offset32`] that of the first 16 columns.
    pub(crate) scale: S::F,
    /// [`WeightFormat::Offset32`]: the scale of the last 16 columns. [`WeightFormat::Minimum`]: minus the minimum.
    pub(crate) second: S::F,
}

pub(crate) trait Quant {
    /// Columns of a superblock: 64 or 256.
    const COLUMNS: usize;
    const BYTES: usize;
    const FORMAT: WeightFormat;
    /// Blocks of activations that share a scale: 1 or a superblock's.
    const SPAN: usize = if Self::COLUMNS == 256 { 8 } else { 1 };
    /// Whether several superblocks are added up before they meet others.
    const LEAVES: bool = Self::SPAN == 1;
    /// [`WeightFormat::Minimum`]: bits of an integer.
    const BITS: u32 = 4;
    /// What the blocks of a superblock of a panel of `G` row groups are worth, which begins at `sb`.
    ///
    /// # Safety
    ///
    /// As for [`Simd`]; `sb` is valid for `G` times [`Quant::BYTES`] bytes.
    #[inline(always)]
    unsafe fn scales<S: Simd, const G: usize>(sb: *const u8) -> [[Scale<S>; 8]; G] {
        // SAFETY: the caller's contract.
        unsafe {
            match const { Self::FORMAT } {
                WeightFormat::Signed | WeightFormat::Offset8 => two_scales::<S, G>(sb),
                WeightFormat::Minimum => k_scales::<S, G>(sb),
                WeightFormat::Offset32 => half_block_scales::<S, G>(sb),
            }
        }
    }
    /// What a sum starts from that begins with block `first` of these: minus the biases of the blocks that share
    /// its scale of activations. It is exact: a long superblock's scales have 19 bits at most, the sum of 16 of them 4
    /// more, and the bias is 3 times a power of two.
    ///
    /// # Safety
    ///
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn minus_bias<S: Simd>(scales: &[Scale<S>; 8], first: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe {
            let sum = if const { Self::SPAN == 1 } {
                scales[first].scale
            } else {
                let pair = |b: usize| match Self::FORMAT {
                    // The odd one is negated.
                    WeightFormat::Minimum => S::sub(scales[b].scale, scales[b + 1].scale),
                    _ => {
                        let [even, odd] = [b, b + 1].map(|b| &scales[b]);
                        S::add(S::add(even.scale, even.second), S::add(odd.scale, odd.second))
                    }
                };
                S::add(S::add(pair(0), pair(2)), S::add(pair(4), pair(6)))
            };
            S::mul(sum, S::splat(-BIAS_F))
        }
    }
    /// The integers of block `b` (of 32 columns) of that superblock as they are stored, columns `4g..4g+4` in
    /// place `g`; `b` is a literal wherever this is called, so that shifts become immediates.
    ///
    /// # Safety
    ///
    /// As for [`Quant::scales`].
    unsafe fn operands<S: Simd, const G: usize>(sb: *const u8, b: usize) -> [[S::B; 8]; G];
}

/// Where an offset of a superblock is for row group `g` of a panel of `G`.
///
/// # Safety
///
/// `sb` is valid for the superblock of all of them.
#[inline(always)]
unsafe fn in_panel<const G: usize>(sb: *const u8, offset: usize, g: usize) -> *const u8 {
    // SAFETY: the caller's contract.
    unsafe { sb.add((offset / LINE * G + g) * LINE + offset % LINE) }
}

/// The `N` lines from an offset on, of each row group, read in the order in which they lie.
///
/// # Safety
///
/// As for [`in_panel`].
#[inline(always)]
unsafe fn lines<S: Simd, const G: usize, const N: usize>(
    sb: *const u8,
    offset: usize,
) -> [[S::B; N]; G] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut lines = [[S::load_b(in_panel::<G>(sb, offset, 0)); N]; G];
        for i in 0..N {
            for (g, lines) in lines.iter_mut().enumerate() {
                lines[i] = S::load_b(in_panel::<G>(sb, offset + i * LINE, g));
            }
        }
        lines
    }
}

/// Scales of the two blocks of a superblock of 64 columns.
#[inline(always)]
unsafe fn two_scales<S: Simd, const G: usize>(sb: *const u8) -> [[Scale<S>; 8]; G] {
    // SAFETY: the caller's contract: two times 16 `f16`.
    unsafe {
        let scale = |b: usize, g: usize| {
            let scale = S::load_f16(in_panel::<G>(sb, 32 * b, g).cast());
            Scale { scale, second: scale }
        };
        let mut scales = [[scale(0, 0); 8]; G];
        for (g, scales) in scales.iter_mut().enumerate() {
            scales[0] = scale(0, g);
            scales[1] = scale(1, g);
        }
        scales
    }
}

pub(crate) struct Q8_0;

impl Quant for Q8_0 {
    const COLUMNS: usize = 64;
    const BYTES: usize = 17 * LINE;
    const FORMAT: WeightFormat = WeightFormat::Signed;

    #[inline(always)]
    unsafe fn operands<S: Simd, const G: usize>(sb: *const u8, b: usize) -> [[S::B; 8]; G] {
        // SAFETY: offsets within the superblock.
        unsafe { lines::<S, G, 8>(sb, at::Q8_0_QUANTS + 8 * b * LINE) }
    }
}

pub(crate) struct Q4_0;

impl Quant for Q4_0 {
    const COLUMNS: usize = 64;
    const BYTES: usize = 9 * LINE;
    const FORMAT: WeightFormat = WeightFormat::Offset8;

    #[inline(always)]
    unsafe fn operands<S: Simd, const G: usize>(sb: *const u8, b: usize) -> [[S::B; 8]; G] {
        // SAFETY: offsets within the superblock.
        unsafe {
            let lines = lines::<S, G, 4>(sb, at::Q4_0_QUANTS + 4 * b * LINE);
            let mut w = [[lines[0][0]; 8]; G];
            for (w, both) in w.iter_mut().zip(&lines) {
                for (i, &both) in both.iter().enumerate() {
                    w[i] = S::and_b(both, 15);
                    w[i + 4] = S::shr_and_b(both, 4, 15);
                }
            }
            w
        }
    }
}

/// Scales and negated minima of a superblock, multiplied out.
#[inline(always)]
unsafe fn k_scales<S: Simd, const G: usize>(sb: *const u8) -> [[Scale<S>; 8]; G] {
    // SAFETY: the caller's contract: the superblock begins with its scales.
    unsafe {
        let (nibble, pair) = (S::splat_i(15), S::splat_i(48));
        let zero = S::splat(0.0);
        let mut scales = [[Scale { scale: zero, second: zero }; 8]; G];
        for (g, to) in scales.iter_mut().enumerate() {
            let place = |offset: usize| in_panel::<G>(sb, offset, g);
            let d = S::load_f16(place(0).cast());
            let neg_dmin = S::sub(zero, S::load_f16(place(at::K_MINIMUM).cast()));
            for (b, to) in to.iter_mut().enumerate() {
                let low = S::load_u8(place(at::K_LOW + LANES * b));
                let high = S::load_u8(place(at::K_HIGH + LANES * (b / 2)));
                // The upper pairs land at bits 4 and 5.
                let (s, m) = if b.is_multiple_of(2) {
                    (S::shl_i::<4>(high), S::shl_i::<2>(high))
                } else {
                    (high, S::shr_i::<2>(high))
                };
                let scale = S::or_i(S::and_i(low, nibble), S::and_i(s, pair));
                let minimum = S::or_i(S::shr_i::<4>(low), S::and_i(m, pair));
                to.scale = S::mul(d, S::to_f(scale));
                to.second = S::mul(neg_dmin, S::to_f(minimum));
            }
        }
        scales
    }
}

pub(crate) struct Q4K;

impl Quant for Q4K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 36 * LINE;
    const FORMAT: WeightFormat = WeightFormat::Minimum;

    #[inline(always)]
    unsafe fn operands<S: Simd, const G: usize>(sb: *const u8, b: usize) -> [[S::B; 8]; G] {
        // SAFETY: offsets within the superblock.
        unsafe {
            let mut w = lines::<S, G, 8>(sb, at::Q4_K_QUANTS + b / 2 * 8 * LINE);
            for w in w.as_flattened_mut() {
                *w = if b % 2 == 1 { S::shr_and_b(*w, 4, 15) } else { S::and_b(*w, 15) };
            }
            w
        }
    }
}

pub(crate) struct Q5K;

impl Quant for Q5K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 44 * LINE;
    const FORMAT: WeightFormat = WeightFormat::Minimum;
    const BITS: u32 = 5;

    #[inline(always)]
    unsafe fn operands<S: Simd, const G: usize>(sb: *const u8, b: usize) -> [[S::B; 8]; G] {
        // SAFETY: offsets within the superblock.
        unsafe {
            let lines = lines::<S, G, 5>(sb, at::Q5_K_QUANTS + 5 * b * LINE);
            let mut w = [[lines[0][0]; 8]; G];
            for (w, l) in w.iter_mut().zip(&lines) {
                for (w, &l) in w.iter_mut().zip(l) {
                    *w = S::and_b(l, 31);
                }
                w[5] = S::shr_and_b(S::above::<3>(l[0], l[1]), 3, 31);
                w[6] = S::shr_and_b(S::above::<3>(l[2], l[3]), 3, 31);
                let two = S::or_b(S::shr_and_b(l[1], 4, 2), S::shr_and_b(l[3], 5, 1));
                w[7] = S::or_b(S::shr_and_b(l[4], 3, 28), two);
            }
            w
        }
    }
}

/// A scale for each 16 columns, multiplied out.
#[inline(always)]
unsafe fn half_block_scales<S: Simd, const G: usize>(sb: *const u8) -> [[Scale<S>; 8]; G] {
    // SAFETY: the caller's contract: offsets within the superblock.
    unsafe {
        let zero = S::splat(0.0);
        let mut scales = [[Scale { scale: zero, second: zero }; 8]; G];
        for (g, to) in scales.iter_mut().enumerate() {
            let d = S::load(in_panel::<G>(sb, 0, g).cast());
            let scale = |j: usize| {
                let s = in_panel::<G>(sb, at::Q6_K_SCALES + LANES * j, g);
                S::mul(d, S::to_f(S::load_i8(s.cast())))
            };
            for (b, to) in to.iter_mut().enumerate() {
                *to = Scale { scale: scale(2 * b), second: scale(2 * b + 1) };
            }
        }
        scales
    }
}

pub(crate) struct Q6K;

impl Quant for Q6K {
    const COLUMNS: usize = 256;
    const BYTES: usize = 53 * LINE;
    const FORMAT: WeightFormat = WeightFormat::Offset32;

    #[inline(always)]
    unsafe fn operands<S: Simd, const G: usize>(sb: *const u8, b: usize) -> [[S::B; 8]; G] {
        // SAFETY: offsets within the superblock.
        unsafe {
            let lines = lines::<S, G, 6>(sb, at::Q6_K_QUANTS + 6 * b * LINE);
            let mut w = [[lines[0][0]; 8]; G];
            for (w, lines) in w.iter_mut().zip(&lines) {
                let halves = w.as_chunks_mut::<4>().0.iter_mut();
                for (w, l) in halves.zip(lines.as_chunks::<3>().0) {
                    for (w, &l) in w.iter_mut().zip(l) {
                        *w = S::and_b(l, 63);
                    }
                    w[3] = S::shr_and_b(S::above::<4>(S::above::<2>(l[2], l[1]), l[0]), 2, 63);
                }
            }
            w
        }
    }
}

pub(crate) trait Plain {
    const WIDTH: usize;
    /// 16 rows of one column.
    ///
    /// # Safety
    ///
    /// As for [`Simd`]; `p` is valid for 16 elements.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
}

pub(crate) struct F32;

impl Plain for F32 {
    const WIDTH: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load(p.cast()) }
    }
}

pub(crate) struct F16;

impl Plain for F16 {
    const WIDTH: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(p.cast()) }
    }
}

pub(crate) struct BF16;

impl Plain for BF16 {
    const WIDTH: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load_bf16(p.cast()) }
    }
}
