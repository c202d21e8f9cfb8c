//! Block layout, dequantiser and quantiser of `TQ1_0`: 256 values of -1, 0 or 1, five to a byte,
//! with one scale.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ternary;
use crate::DType;
use crate::quant::format::{Format, Levels, Parts, SUPER_BLOCK, Unstorable, half_to_f32};

/// 256 values `d * (digit - 1)`.
///
/// A byte stores up to five base-3 digits as a fraction of 256. Three times the byte has the first
/// digit in its upper byte, and the lower byte stores the remaining digits in the same way. Digit
/// `n` of byte `l` in a run of `w` bytes is value `l + w n` of that run.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TQ1_0 {
    /// Five digits per byte: a run of 32 bytes (160 values), then one of 16 (80 values).
    pub qs: [u8; 48],
    /// Four digits per byte: the last 16 values.
    pub qh: [u8; 4],
    /// Scale, `f16`.
    pub d: [u8; 2],
}

/// Unpacks the digits of a run of `W` bytes.
#[inline]
fn split<const W: usize>(bytes: &[u8; W], codes: &mut [u8]) {
    let mut rest = *bytes;
    for digits in codes.as_chunks_mut::<W>().0 {
        *digits = rest.map(|byte| ((u16::from(byte) * 3) >> 8) as u8);
        rest = rest.map(|byte| byte.wrapping_mul(3));
    }
}

/// The inverse of [`split`].
fn join<const W: usize>(codes: &[u8]) -> [u8; W] {
    let mut numbers = [0_u16; W];
    // Four digits are five with a last digit of 0.
    for n in 0..5 {
        for (l, number) in numbers.iter_mut().enumerate() {
            *number = *number * 3 + codes.get(n * W + l).copied().map_or(0, u16::from);
        }
    }
    // Rounds up, so that unpacking restores the digits.
    numbers.map(|number| (number * 256).div_ceil(243) as u8)
}

impl Format<SUPER_BLOCK> for TQ1_0 {
    const DTYPE: DType = DType::TQ1_0;
    const LEVELS: Levels = Levels::Minus(1);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let mut codes = [0; SUPER_BLOCK];
        let (first, rest) = codes.split_at_mut(160);
        let (second, third) = rest.split_at_mut(80);
        let (runs, last) = self.qs.as_chunks::<16>();
        let &[a, b, c] = runs else {
            unreachable!("48 bytes are three times 16, not {}", last.len())
        };
        split::<32>(&std::array::from_fn(|l| if l < 16 { a[l] } else { b[l - 16] }), first);
        split(&c, second);
        split(&self.qh, third);
        Parts::scaled(half_to_f32(self.d), codes)
    }

    /// Matches ggml's reference bit for bit.
    fn quantise(values: &[f32; SUPER_BLOCK]) -> Result<Self, Unstorable> {
        let (d, digits) = ternary::fit(values)?;
        let mut qs = [0; 48];
        qs[..32].copy_from_slice(&join::<32>(&digits[..160]));
        qs[32..].copy_from_slice(&join::<16>(&digits[160..240]));
        Ok(Self { qs, qh: join(&digits[240..]), d })
    }
}
