//! What a format of blocks is: a layout in files, the numbers that its bits stand for, and a quantiser.

use half::f16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::SUPER_BLOCK;
use crate::DType;

/// Numbers that may have a scale of their own: a format has one for 16, for 32 or for all of a block.
pub const SUB_BLOCK: usize = 16;

/// A format of blocks of `N` numbers. The type that implements it is the block as it lies in files (ggml
/// `ggml-common.h`): every field is bytes, so it may lie at any address; `f16` fields are little-endian.
pub trait Format<const N: usize>:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Sized + Suspect
{
    const DTYPE: DType;
    const LEVELS: Levels;

    /// The block taken apart.
    fn parts(&self) -> Parts<N>;

    /// The block that comes near `values`.
    ///
    /// # Errors
    /// [`Unstorable`]: no scale can hold them, or the format has no quantiser here.
    fn quantise(values: &[f32; N]) -> Result<Self, Unstorable> {
        let _ = values;
        Err(Unstorable::NoQuantiser)
    }
}

/// A scale as stored, or a block by its scales.
pub trait Suspect {
    /// Whether it may make a NaN or an infinity of a code.
    fn is_suspect(&self) -> bool;
}

/// `f16`, little-endian.
impl Suspect for [u8; 2] {
    #[inline]
    fn is_suspect(&self) -> bool {
        const EXPONENT: u16 = 0x7c00;
        u16::from_le_bytes(*self) & EXPONENT == EXPONENT
    }
}

/// What codes stand for, before they are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// The code less this.
    Minus(u8),
    /// The entry of that index. Codes have as many bits as all entries that are used need.
    Table([i8; 16]),
}

impl Levels {
    #[inline]
    #[must_use]
    pub const fn of(self, code: u8) -> i16 {
        match self {
            Self::Minus(offset) => code as i16 - offset as i16,
            Self::Table(levels) => levels[code as usize & 15] as i16,
        }
    }
}

/// A block taken apart. Number `i`, of the sub-block `s = i / 16`, is
/// `(d * scales[s]) * level of codes[i] - dmin * minima[s]`, each operation rounded.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts<const N: usize> {
    pub codes: [u8; N],
    pub d: f32,
    /// Of the first `N / 16` sub-blocks.
    pub scales: [i8; SUPER_BLOCK / SUB_BLOCK],
    pub dmin: f32,
    pub minima: [i8; SUPER_BLOCK / SUB_BLOCK],
}

impl<const N: usize> Parts<N> {
    /// Codes with one scale for all of them, and no minimum.
    pub(super) const fn scaled(d: f32, codes: [u8; N]) -> Self {
        Self { codes, d, scales: [1; _], dmin: 0.0, minima: [0; _] }
    }
}

/// Why numbers make no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstorable {
    /// A scale of the block would not be finite.
    OutOfRange,
    /// The format can be read, but not made.
    NoQuantiser,
}

/// The whole blocks in `bytes`; what is left over at the end is not part of the result.
#[must_use]
pub fn blocks<F: Format<N>, const N: usize>(bytes: &[u8]) -> &[F] {
    let Ok((blocks, _)) = <[F]>::ref_from_prefix(bytes) else { unreachable!("{ANYWHERE}") };
    blocks
}

/// The whole blocks in `bytes`, to be written.
pub(super) fn blocks_mut<F: Format<N>, const N: usize>(bytes: &mut [u8]) -> &mut [F] {
    let Ok((blocks, _)) = <[F]>::mut_from_prefix(bytes) else { unreachable!("{ANYWHERE}") };
    blocks
}

/// Why there are always blocks, if none at all.
const ANYWHERE: &str = "a block may lie at any address, and there may be none";

#[inline]
pub(super) fn half_to_f32(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// A scale as stored, and the number that it then is.
pub(super) fn store_scale(d: f32) -> Result<([u8; 2], f32), Unstorable> {
    let stored = f16::from_f32(d);
    if stored.is_finite() {
        Ok((stored.to_le_bytes(), stored.to_f32()))
    } else {
        Err(Unstorable::OutOfRange)
    }
}
