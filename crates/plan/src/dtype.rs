//! Element and block types of tensors: their names, block lengths and sizes.
//!
//! The block layouts themselves (how bits become numbers) belong to `quant`.

use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements, as stored.
///
/// Quantised types store blocks of [`DType::block_len`] elements in [`DType::block_bytes`] bytes.
/// Names and layouts are those of the GGML formats (ggml `ggml-common.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(non_camel_case_types, reason = "the field's names are Q4_K and Q6_K")]
pub enum DType {
    F32,
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// 32 signed bytes and one `f16` scale.
    Q8_0,
    /// 32 nibbles, offset 8, and one `f16` scale.
    Q4_0,
    /// 256 nibbles in 8 sub-blocks, each with a 6-bit scale and minimum.
    Q4_K,
    /// 256 five-bit values in 8 sub-blocks, each with a 6-bit scale and minimum.
    Q5_K,
    /// 256 six-bit values in 16 sub-blocks, each with an 8-bit scale.
    Q6_K,
    /// Signed 32-bit integers: token ids, positions, slots.
    I32,
}

impl DType {
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::I32,
    ];

    /// The field's name, elements and bytes of one block.
    const fn row(self) -> (&'static str, usize, usize) {
        match self {
            Self::F32 => ("F32", 1, 4),
            Self::F16 => ("F16", 1, 2),
            Self::BF16 => ("BF16", 1, 2),
            Self::Q8_0 => ("Q8_0", 32, 34),
            Self::Q4_0 => ("Q4_0", 32, 18),
            Self::Q4_K => ("Q4_K", 256, 144),
            Self::Q5_K => ("Q5_K", 256, 176),
            Self::Q6_K => ("Q6_K", 256, 210),
            Self::I32 => ("I32", 1, 4),
        }
    }

    /// Elements in one block; 1 for plain types.
    #[must_use]
    pub const fn block_len(self) -> usize {
        self.row().1
    }

    /// Bytes of one block; the element size for plain types.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.row().2
    }

    /// True for types stored in blocks with scales.
    #[must_use]
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of `elements` contiguous elements, or `None` when they do not fill whole blocks or
    /// the size overflows.
    #[must_use]
    pub const fn size_of(self, elements: u64) -> Option<u64> {
        let block = self.block_len() as u64;
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(self.block_bytes() as u64)
    }

    /// The field's name: `F32`, `Q6_K`, ...
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().0
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown tensor type `{name}`; known: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, I32")]
pub struct UnknownDType {
    pub name: String,
}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|t| t.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownDType { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_in_any_case() {
        for t in DType::ALL {
            assert_eq!(t.name().parse::<DType>(), Ok(t));
            assert_eq!(t.name().to_lowercase().parse::<DType>(), Ok(t));
        }
        assert!("q3_k".parse::<DType>().is_err());
    }

    #[test]
    fn sizes_need_whole_blocks_and_do_not_overflow() {
        assert_eq!(DType::Q6_K.size_of(512), Some(420));
        assert_eq!(DType::Q6_K.size_of(100), None);
        assert_eq!(DType::F32.size_of(u64::MAX), None);
    }
}
