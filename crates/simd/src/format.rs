//! Unpacking of superblocks to register operands, for each weight type.
//!
//! Counterpart of `packed`, which owns the byte order.

#![expect(non_camel_case_types, reason = "the field's names are Q4_K and Q6_K")]

use super::packed::{Form, Integers, LINE, Scales, at};
use super::vector::{BIAS_F, LANES, Simd};
use plan::quant::Levels;

/// Scales and minima of 16 rows by up to 8 blocks of 32 columns. Only the parts that the form has are written.
pub(crate) struct Factors<S: Simd> {
    /// Scales of the first halves of blocks (of whole blocks, if a block has one scale), and of the second halves.
    pub(crate) scales: [[S::F; 8]; 2],
    /// Negated minima, or addends, in the same order.
    pub(crate) minima: [[S::F; 8]; 2],
}

/// A weight format that kernels are compiled for.
pub(crate) trait Quant {
    const FORM: Form;
    /// Columns of a superblock: 64 or 256.
    const COLUMNS: usize = Self::FORM.columns;
    const BYTES: usize = Self::FORM.bytes();
    /// Number of activation blocks that share a scale: 1, or those of a superblock.
    const SPAN: usize = if Self::COLUMNS == 256 { 8 } else { 1 };
    /// True if several superblocks are added up to a leaf first.
    const LEAVES: bool = Self::SPAN == 1;
    /// True if each half block has its own scale.
    const HALVES: bool = Self::FORM.scales.halves();
    /// True if each sum of activations has an addend.
    const MINIMUM: bool = Self::FORM.scales.minimum();
    const SIGNED: bool = matches!(Self::FORM.integers, Integers::Signed);
    /// True if sums start without a bias and are converted.
    const CONVERTED: bool = matches!(Self::FORM.integers, Integers::Converted(_));
    /// Lookup tables from codes to the integers that other formats store, plain and negated.
    const TABLES: Option<[[u8; 16]; 2]> = tables(&Self::FORM);

    /// Writes the scales of the superblock at `sb` for row group `g` of `G` interleaved ones to `to`, from block
    /// `first` on.
    ///
    /// # Safety
    ///
    /// As for [`Simd`]; `sb` is valid for `G` times [`Quant::BYTES`] bytes, `to` to be written.
    #[inline(always)]
    unsafe fn scales<S: Simd, const G: usize>(
        sb: *const u8,
        g: usize,
        to: *mut Factors<S>,
        first: usize,
    ) {
        // SAFETY: the caller's contract: the superblock begins with its scales.
        unsafe {
            let place = |offset: usize| interleaved::<G>(sb, offset, g);
            let to = (to, first);
            match const { Self::FORM.scales } {
                Scales::Half => two_scales::<S, false>(place, to),
                Scales::BHalf => two_scales::<S, true>(place, to),
                Scales::HalfAndMinimum => sums::<S>(place, to),
                Scales::One => one::<S>(place, to),
                Scales::SixBits => six_bits::<S>(place, to),
                Scales::SixBitsAndMinima => six_bits_and_minima::<S>(place, to),
                Scales::NibblesAndMinima => nibbles_and_minima::<S>(place, to),
                Scales::Bytes => bytes::<S>(place, to),
            }
        }
    }

    /// Initial value of a sum that starts at block `first` of these: minus the biases of the blocks that share its
    /// activation scale. It is exact: a long superblock's scales have at most 19 bits, the sum of 16 of them 4
    /// more, and the bias is 3 times a power of two.
    ///
    /// # Safety
    ///
    /// As for [`Simd`]; the factors have been written.
    #[inline(always)]
    unsafe fn minus_bias<S: Simd>(factors: *const Factors<S>, first: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe {
            if const { Self::CONVERTED } {
                return S::splat(0.0);
            }
            let scales = &(*factors).scales;
            let sum = if const { Self::SPAN == 1 } {
                scales[0][first]
            } else {
                let mut pairs = [S::splat(0.0); 4];
                for (i, pair) in pairs.iter_mut().enumerate() {
                    let b = 2 * i;
                    *pair = if const { Self::HALVES } {
                        let first = Self::join::<S>(scales[0][b], scales[1][b]);
                        S::add(first, Self::join::<S>(scales[0][b + 1], scales[1][b + 1]))
                    } else {
                        Self::join::<S>(scales[0][b], scales[0][b + 1])
                    };
                }
                let [a, b, c, d] = pairs;
                S::add(S::add(a, b), S::add(c, d))
            };
            S::mul(sum, S::splat(-BIAS_F))
        }
    }

    /// Sum of two neighbouring scales, of which a negated block has the opposite sign.
    ///
    /// # Safety
    ///
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn join<S: Simd>(a: S::F, b: S::F) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { if const { Self::FORM.negated(1, 1) } { S::sub(a, b) } else { S::add(a, b) } }
    }

    /// The stored integers of block `b` (32 columns) of the superblock at `sb`; index `g` contains columns `4g..4g+4`.
    /// The parity of `b` is a constant at every call.
    ///
    /// # Safety
    ///
    /// As for [`Simd`]; `sb` is valid for `G` times [`Quant::BYTES`] bytes.
    #[inline(always)]
    unsafe fn operands<S: Simd, const G: usize>(sb: *const u8, b: usize) -> [[S::B; 8]; G] {
        // SAFETY: offsets within the superblock.
        unsafe {
            let at = Self::FORM.block(b);
            let mut w = match const { Self::FORM.bits } {
                2 => codes_2::<S, G>(sb, at),
                3 => codes_3::<S, G>(sb, at),
                4 => codes_4::<S, G>(sb, at),
                5 => codes_5::<S, G>(sb, at),
                6 => codes_6::<S, G>(sb, at),
                _ => lines::<S, G, 8>(sb, at),
            };
            if let Some(tables) = const { &Self::TABLES } {
                for w in &mut w {
                    for (i, w) in w.iter_mut().enumerate() {
                        *w = S::lookup(&tables[usize::from(Self::FORM.negated(b, i / 4))], *w);
                    }
                }
            }
            w
        }
    }
}

/// Integers for the codes of a type with a lookup table.
const fn tables(form: &Form) -> Option<[[u8; 16]; 2]> {
    let Levels::Table(levels) = form.levels else { return None };
    let excess = form.excess(0, 0);
    let mut tables = [[0; 16]; 2];
    let mut code = 0;
    while code < levels.len() {
        tables[0][code] = excess.wrapping_add_signed(levels[code]);
        tables[1][code] = excess.wrapping_sub(levels[code].cast_unsigned());
        code += 1;
    }
    Some(tables)
}

/// Declares the formats that kernels are compiled for.
macro_rules! quants {
    ($($name:ident),*) => {$(
        pub(crate) struct $name;

        impl Quant for $name {
            const FORM: Form = Form::$name;
        }
    )*};
}

quants!(
    Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, IQ3_S,
    IQ3_XXS, IQ2_S, IQ1_S, TQ2_0
);

/// Byte position of a superblock offset for row group `g` of `G` interleaved ones.
///
/// # Safety
///
/// `sb` is valid for the superblock of all of them.
#[inline(always)]
unsafe fn interleaved<const G: usize>(sb: *const u8, offset: usize, g: usize) -> *const u8 {
    // SAFETY: the caller's contract.
    unsafe { sb.add((offset / LINE * G + g) * LINE + offset % LINE) }
}

/// The `N` lines from an offset on, of each row group, read in memory order.
///
/// # Safety
///
/// As for [`interleaved`].
#[inline(always)]
unsafe fn lines<S: Simd, const G: usize, const N: usize>(
    sb: *const u8,
    offset: usize,
) -> [[S::B; N]; G] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut lines = [[S::load_b(interleaved::<G>(sb, offset, 0)); N]; G];
        for i in 0..N {
            for (g, lines) in lines.iter_mut().enumerate() {
                lines[i] = S::load_b(interleaved::<G>(sb, offset + i * LINE, g));
            }
        }
        lines
    }
}

/// Destination of factors, and the index of its first block.
type To<S> = (*mut Factors<S>, usize);

// Functions that unpack scales from a superblock; `place` maps an offset to its position. Their safety contract is
// that of `Quant::scales`.

/// [`Scales::Half`], [`Scales::BHalf`].
#[inline(always)]
unsafe fn two_scales<S: Simd, const BRAIN: bool>(
    place: impl Fn(usize) -> *const u8,
    (to, first): To<S>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for b in 0..2 {
            let scale = place(32 * b).cast();
            (*to).scales[0][first + b] =
                if const { BRAIN } { S::load_bf16(scale) } else { S::load_f16(scale) };
        }
    }
}

/// [`Scales::HalfAndMinimum`].
#[inline(always)]
unsafe fn sums<S: Simd>(place: impl Fn(usize) -> *const u8, (to, first): To<S>) {
    // SAFETY: the caller's contract.
    unsafe {
        for b in 0..2 {
            (*to).scales[0][first + b] = S::load_f16(place(LINE * b).cast());
            (*to).minima[0][first + b] = S::load_f16(place(LINE * b + at::SECOND).cast());
        }
    }
}

/// [`Scales::One`].
#[inline(always)]
unsafe fn one<S: Simd>(place: impl Fn(usize) -> *const u8, (to, first): To<S>) {
    // SAFETY: the caller's contract.
    unsafe {
        let d = S::load(place(0).cast());
        let minus_d = S::sub(S::splat(0.0), d);
        for b in 0..8 {
            (*to).scales[0][first + b] = d;
            (*to).minima[0][first + b] = minus_d;
        }
    }
}

/// [`Scales::SixBits`].
#[inline(always)]
unsafe fn six_bits<S: Simd>(place: impl Fn(usize) -> *const u8, (to, first): To<S>) {
    // SAFETY: the caller's contract.
    unsafe {
        let (nibble, pair, offset) = (S::splat_i(15), S::splat_i(48), S::splat(32.0));
        let d = S::load_f16(place(0).cast());
        for b in 0..8 {
            let upper = S::load_u8(place(at::SECOND + LANES * (b / 4)));
            let lower = S::load_u8(place(at::EACH + LANES * (b / 2)));
            // The upper pair is moved to bits 4 and 5.
            let upper = match b % 4 {
                0 => S::shl_i::<4>(upper),
                1 => S::shl_i::<2>(upper),
                2 => upper,
                _ => S::shr_i::<2>(upper),
            };
            let lower = if b.is_multiple_of(2) { lower } else { S::shr_i::<4>(lower) };
            let scale = S::or_i(S::and_i(lower, nibble), S::and_i(upper, pair));
            (*to).scales[0][first + b] = S::mul(d, S::sub(S::to_f(scale), offset));
        }
    }
}

/// [`Scales::SixBitsAndMinima`].
#[inline(always)]
unsafe fn six_bits_and_minima<S: Simd>(place: impl Fn(usize) -> *const u8, (to, first): To<S>) {
    // SAFETY: the caller's contract.
    unsafe {
        let (nibble, pair) = (S::splat_i(15), S::splat_i(48));
        let d = S::load_f16(place(0).cast());
        let minus_dmin = S::sub(S::splat(0.0), S::load_f16(place(at::SECOND).cast()));
        for b in 0..8 {
            let low = S::load_u8(place(at::EACH + LANES * b));
            let high = S::load_u8(place(at::UPPER + LANES * (b / 2)));
            // The upper pairs are moved to bits 4 and 5.
            let (s, m) = if b.is_multiple_of(2) {
                (S::shl_i::<4>(high), S::shl_i::<2>(high))
            } else {
                (high, S::shr_i::<2>(high))
            };
            let scale = S::or_i(S::and_i(low, nibble), S::and_i(s, pair));
            let minimum = S::or_i(S::shr_i::<4>(low), S::and_i(m, pair));
            (*to).scales[0][first + b] = S::mul(d, S::to_f(scale));
            (*to).minima[0][first + b] = S::mul(minus_dmin, S::to_f(minimum));
        }
    }
}

/// [`Scales::NibblesAndMinima`]. Minima are divided by 32, because [`Q8Block::sum_half`] is multiplied by 32.
///
/// Nibbles need no conversion: they are inserted into the last bits of a power of two. The multiply-add subtracts
/// that power's product with the scale. All of it is exact.
///
/// [`Q8Block::sum_half`]: super::activations::Q8Block::sum_half
#[inline(always)]
unsafe fn nibbles_and_minima<S: Simd>(place: impl Fn(usize) -> *const u8, (to, first): To<S>) {
    // SAFETY: the caller's contract.
    unsafe {
        let (lower, upper) = (S::splat_i(15), S::splat_i(15 << 4));
        // Numbers whose lowest bit, and bit above the lower nibble, is worth 1.
        let (units, sixteens) = const { (8_388_608.0_f32, 524_288.0_f32) };
        let (of_units, of_sixteens) = (
            S::splat_i(units.to_bits().cast_signed()),
            S::splat_i(sixteens.to_bits().cast_signed()),
        );
        let d = S::load_f16(place(0).cast());
        let dmin = S::mul(S::load_f16(place(at::SECOND).cast()), S::splat(-1.0 / 32.0));
        let (off, off_min) = (S::mul(d, S::splat(-units)), S::mul(dmin, S::splat(-sixteens)));
        for b in 0..8 {
            for half in 0..2 {
                let both = S::load_u8(place(at::EACH + LANES * (2 * b + half)));
                let scale = S::bits_f(S::or_i(S::and_i(both, lower), of_units));
                let minimum = S::bits_f(S::or_i(S::and_i(both, upper), of_sixteens));
                (*to).scales[half][first + b] = S::fma(d, scale, off);
                (*to).minima[half][first + b] = S::fma(dmin, minimum, off_min);
            }
        }
    }
}

/// [`Scales::Bytes`].
#[inline(always)]
unsafe fn bytes<S: Simd>(place: impl Fn(usize) -> *const u8, (to, first): To<S>) {
    // SAFETY: the caller's contract.
    unsafe {
        let d = S::load(place(0).cast());
        for i in 0..16 {
            let (b, half) = (i / 2, i % 2);
            let scale = S::load_i8(place(at::EACH + LANES * i).cast());
            (*to).scales[half][first + b] = S::mul(d, S::to_f(scale));
        }
    }
}

// Functions that unpack a block's codes from the lines at an offset, in the order of `bits`. Their safety contract
// is that of `Quant::operands`.

#[inline(always)]
unsafe fn codes_2<S: Simd, const G: usize>(sb: *const u8, at: usize) -> [[S::B; 8]; G] {
    // SAFETY: the caller's contract.
    unsafe {
        let lines = lines::<S, G, 2>(sb, at);
        let mut w = [[lines[0][0]; 8]; G];
        for (w, lines) in w.iter_mut().zip(&lines) {
            for (w, &l) in w.as_chunks_mut::<4>().0.iter_mut().zip(lines) {
                *w = [
                    S::and_b(l, 3),
                    S::shr_and_b(l, 2, 3),
                    S::shr_and_b(l, 4, 3),
                    S::shr_and_b(l, 6, 3),
                ];
            }
        }
        w
    }
}

#[inline(always)]
unsafe fn codes_3<S: Simd, const G: usize>(sb: *const u8, at: usize) -> [[S::B; 8]; G] {
    // SAFETY: the caller's contract.
    unsafe {
        let lines = lines::<S, G, 3>(sb, at);
        let mut w = [[lines[0][0]; 8]; G];
        for (w, &[a, b, c]) in w.iter_mut().zip(&lines) {
            *w = [
                S::and_b(a, 7),
                S::and_b(b, 7),
                S::and_b(c, 7),
                S::shr_and_b(a, 3, 7),
                S::shr_and_b(b, 3, 7),
                S::shr_and_b(c, 3, 7),
                S::or_b(S::shr_and_b(a, 6, 3), S::shr_and_b(c, 4, 4)),
                S::or_b(S::shr_and_b(b, 6, 3), S::shr_and_b(c, 5, 4)),
            ];
        }
        w
    }
}

#[inline(always)]
unsafe fn codes_4<S: Simd, const G: usize>(sb: *const u8, at: usize) -> [[S::B; 8]; G] {
    // SAFETY: the caller's contract.
    unsafe {
        let lines = lines::<S, G, 4>(sb, at);
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

#[inline(always)]
unsafe fn codes_5<S: Simd, const G: usize>(sb: *const u8, at: usize) -> [[S::B; 8]; G] {
    // SAFETY: the caller's contract.
    unsafe {
        let lines = lines::<S, G, 5>(sb, at);
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

#[inline(always)]
unsafe fn codes_6<S: Simd, const G: usize>(sb: *const u8, at: usize) -> [[S::B; 8]; G] {
    // SAFETY: the caller's contract.
    unsafe {
        let lines = lines::<S, G, 6>(sb, at);
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
