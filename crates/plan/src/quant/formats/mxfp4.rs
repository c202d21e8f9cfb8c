//! Block layout, dequantiser and quantiser of `MXFP4`: 32 numbers of 4 bits (E2M1) with a power of
//! two for a scale (E8M0), the OCP Microscaling format.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::nibbles;
use crate::DType;
use crate::quant::fit::{ends, extreme};
use crate::quant::format::{BLOCK, Format, Levels, Parts, Suspect, Unstorable};

/// Twice the numbers of E2M1, so that they are integers.
const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 32 values `2^(e - 128) * level`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MXFP4 {
    pub e: u8,
    /// Byte `j` contains code `j` in its low nibble and code `j + 16` in its high nibble.
    pub qs: [u8; BLOCK / 2],
}

/// `2^(e - 128)`: half of the E8M0 value, since levels are doubled. Every `e` is a number here, as
/// in ggml.
fn scale(e: u8) -> f32 {
    let bits = match e {
        0 | 1 => 0x0020_0000 << e,
        _ => u32::from(e - 1) << 23,
    };
    f32::from_bits(bits)
}

/// An E8M0 scale; above 252 the greatest level may overflow `f32`.
impl Suspect for u8 {
    #[inline]
    fn is_suspect(&self) -> bool {
        *self > 252
    }
}

impl Format<BLOCK> for MXFP4 {
    const DTYPE: DType = DType::MXFP4;
    const LEVELS: Levels = Levels::Table(LEVELS);

    #[inline]
    fn parts(&self) -> Parts<BLOCK> {
        Parts::scaled(scale(self.e), nibbles::split(&self.qs))
    }

    /// Matches ggml's reference, except that ggml takes the exponent from a logarithm, which may
    /// round up just below a power of two; this takes it from the number's bits.
    fn quantise(values: &[f32; BLOCK]) -> Result<Self, Unstorable> {
        let (low, high) = ends(values);
        if !low.is_finite() || !high.is_finite() {
            return Err(Unstorable::OutOfRange);
        }
        let exponent = (extreme(values).to_bits() >> 23 & 255) as u8;
        let e = exponent.saturating_sub(2);
        let d = scale(e);
        let codes = values.map(|v| {
            let error = |code: u8| (d * f32::from(LEVELS[usize::from(code)]) - v).abs();
            (1..16).fold(0, |best, code| if error(code) < error(best) { code } else { best })
        });
        Ok(Self { e, qs: nibbles::join(&codes) })
    }
}
