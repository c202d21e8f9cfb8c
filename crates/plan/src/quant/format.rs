//! Traits of a block format: its layout in files, the numbers that its bits represent, its
//! quantiser.

use half::f16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::DType;

/// Elements of a block of the simple formats (ggml `QK8_0`, `QK4_0`).
pub const BLOCK: usize = 32;

/// Elements of a block of the K formats (ggml `QK_K`).
pub const SUPER_BLOCK: usize = 256;

/// Smallest group of elements with a scale of its own: formats have one scale per 16, per 32 or per
/// block.
pub const SUB_BLOCK: usize = 16;

/// A format with blocks of `N` elements. The implementing type is the block as stored in files
/// (ggml `ggml-common.h`). All fields are bytes, so it has no alignment; `f16` fields are
/// little-endian.
pub trait Format<const N: usize>:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Sized + Suspect
{
    const DTYPE: DType;
    const LEVELS: Levels;

    /// Unpacks the block.
    fn parts(&self) -> Parts<N>;

    /// Quantises `values`.
    ///
    /// # Errors
    /// [`Unstorable`] if a scale is out of range or the format has no quantiser here.
    fn quantise(values: &[f32; N]) -> Result<Self, Unstorable> {
        let _ = values;
        Err(Unstorable::NoQuantiser)
    }
}

/// A quick check for scales that are not finite, on one scale or on a block.
pub trait Suspect {
    /// True if the scale may produce a NaN or an infinity.
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

/// Numbers that codes represent, before scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// The code minus this offset.
    Minus(u8),
    /// The table entry at that index. Codes have only as many bits as the used entries need.
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

/// An unpacked block. Element `i` of sub-block `s = i / 16` is
/// `(d * scales[s]) * level of codes[i] - dmin * minima[s]`, each operation rounded.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts<const N: usize> {
    pub codes: [u8; N],
    pub d: f32,
    /// Scales of the first `N / 16` sub-blocks.
    pub scales: [i8; SUPER_BLOCK / SUB_BLOCK],
    pub dmin: f32,
    pub minima: [i8; SUPER_BLOCK / SUB_BLOCK],
}

impl<const N: usize> Parts<N> {
    /// Codes with a single scale and no minimum.
    pub(super) const fn scaled(d: f32, codes: [u8; N]) -> Self {
        Self { codes, d, scales: [1; _], dmin: 0.0, minima: [0; _] }
    }
}

/// Reason why numbers cannot be quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstorable {
    /// A scale of the block would not be finite.
    OutOfRange,
    /// The format can be read but not written.
    NoQuantiser,
}

/// The whole blocks in `bytes`; ignores trailing bytes.
#[must_use]
pub fn blocks<F: Format<N>, const N: usize>(bytes: &[u8]) -> &[F] {
    let Ok((blocks, _)) = <[F]>::ref_from_prefix(bytes) else { unreachable!("{ANYWHERE}") };
    blocks
}

/// The whole blocks in `bytes`, mutable.
pub(super) fn blocks_mut<F: Format<N>, const N: usize>(bytes: &mut [u8]) -> &mut [F] {
    let Ok((blocks, _)) = <[F]>::mut_from_prefix(bytes) else { unreachable!("{ANYWHERE}") };
    blocks
}

/// Reason why the cast to blocks cannot fail.
const ANYWHERE: &str = "a block may lie at any address, and there may be none";

#[inline]
pub(super) fn half_to_f32(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// Rounds a scale to `f16`: the stored bytes and their value.
pub(super) fn store_scale(d: f32) -> Result<([u8; 2], f32), Unstorable> {
    let stored = f16::from_f32(d);
    if stored.is_finite() {
        Ok((stored.to_le_bytes(), stored.to_f32()))
    } else {
        Err(Unstorable::OutOfRange)
    }
}
