//! Element and block types of tensors: names, block lengths and sizes.
//!
//! The block layouts themselves (how bits become numbers) belong to `quant`.

use std::fmt;
use std::str::FromStr;

/// The type's number in files, if it has one.
macro_rules! number {
    (none) => {
        None
    };
    ($ggml:literal) => {
        Some($ggml)
    };
}

/// Declares the types: name, ggml's number (ggml `enum ggml_type`) or `none`, elements and bytes of a block.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $ggml:tt, $elements:literal, $bytes:literal;)*) => {
        /// Element type of a tensor, as stored.
        ///
        /// Quantised types store blocks of [`DType::block_len`] elements in [`DType::block_bytes`]
        /// bytes. Names and layouts are those of the GGML formats (ggml `ggml-common.h`).
        ///
        /// Half-precision and byte types are storage types. Computation uses [`DType::widened`],
        /// which represents each of their values exactly.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(non_camel_case_types, reason = "the field's names are Q4_K and Q6_K")]
        pub enum DType {
            $($(#[$doc])* $name,)*
        }

        impl DType {
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];

            /// ggml's name, ggml's number, elements and bytes of one block.
            const fn row(self) -> (&'static str, Option<u32>, usize, usize) {
                match self {
                    $(Self::$name => (stringify!($name), number!($ggml), $elements, $bytes),)*
                }
            }
        }
    };
}

dtypes! {
    F32 = 0, 1, 4;
    F16 = 1, 1, 2;
    /// The upper half of an `f32`.
    BF16 = 30, 1, 2;
    /// 32 signed bytes and one `f16` scale.
    Q8_0 = 8, 32, 34;
    /// 32 nibbles, offset 8, and one `f16` scale.
    Q4_0 = 2, 32, 18;
    /// 32 nibbles, one `f16` scale and one `f16` offset.
    Q4_1 = 3, 32, 20;
    /// 32 five-bit values, offset 16, and one `f16` scale.
    Q5_0 = 6, 32, 22;
    /// 32 five-bit values, one `f16` scale and one `f16` offset.
    Q5_1 = 7, 32, 24;
    /// 32 indices into 16 non-uniform levels, and one `f16` scale.
    IQ4_NL = 20, 32, 18;
    /// 32 numbers of 4 bits (E2M1) with a power-of-two scale.
    MXFP4 = 39, 32, 17;
    /// 256 two-bit values in 16 sub-blocks, each with a 4-bit scale and minimum.
    Q2_K = 10, 256, 84;
    /// 256 three-bit values in 16 sub-blocks, each with a 6-bit scale.
    Q3_K = 11, 256, 110;
    /// 256 nibbles in 8 sub-blocks, each with a 6-bit scale and minimum.
    Q4_K = 12, 256, 144;
    /// 256 five-bit values in 8 sub-blocks, each with a 6-bit scale and minimum.
    Q5_K = 13, 256, 176;
    /// 256 six-bit values in 16 sub-blocks, each with an 8-bit scale.
    Q6_K = 14, 256, 210;
    /// 256 indices into the levels of `IQ4_NL` in 8 sub-blocks, each with a 6-bit scale.
    IQ4_XS = 23, 256, 136;
    /// 256 values with one of eight magnitudes; a 9-bit index codes 4 values, a 4-bit scale covers
    /// 32.
    IQ3_S = 21, 256, 110;
    /// 256 values with one of eight magnitudes; an 8-bit index codes 4 values, a 4-bit scale covers
    /// 32.
    IQ3_XXS = 18, 256, 98;
    /// 256 values with one of three magnitudes; a 10-bit index codes 8 values, a 4-bit scale covers
    /// 16.
    IQ2_S = 22, 256, 82;
    /// 256 values with one of three magnitudes; a 9-bit index codes 8 values, a 4-bit scale covers
    /// 16.
    IQ2_XS = 17, 256, 74;
    /// 256 values with one of three magnitudes; an 8-bit index codes 8 values, a 4-bit scale covers
    /// 32.
    IQ2_XXS = 16, 256, 66;
    /// 256 values near -1, 0 or 1; an 11-bit index codes 8 values, a 3-bit scale covers 16.
    IQ1_M = 29, 256, 56;
    /// 256 values near -1, 0 or 1; an 11-bit index codes 8 values, a 3-bit scale covers 32.
    IQ1_S = 19, 256, 50;
    /// 256 values of -1, 0 or 1, five to a byte, and one `f16` scale.
    TQ1_0 = 34, 256, 54;
    /// 256 values of -1, 0 or 1 in two bits each, and one `f16` scale.
    TQ2_0 = 35, 256, 66;
    /// Signed 32-bit integers: token ids, positions, slots.
    I32 = 26, 1, 4;
    /// Signed bytes.
    I8 = 24, 1, 1;
    /// Unsigned bytes. Not a type of GGUF files.
    U8 = none, 1, 1;
    /// Booleans, one byte each: 0 or 1. Not a type of GGUF files.
    BOOL = none, 1, 1;
}

impl DType {
    /// Elements in one block; 1 for plain types.
    #[must_use]
    pub const fn block_len(self) -> usize {
        self.row().2
    }

    /// Bytes of one block; the element size for plain types.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.row().3
    }

    /// True for types stored in blocks with scales.
    #[must_use]
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of `elements` contiguous elements; `None` if they do not fill whole blocks or the size
    /// overflows.
    #[must_use]
    pub const fn size_of(self, elements: u64) -> Option<u64> {
        let block = self.block_len() as u64;
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(self.block_bytes() as u64)
    }

    /// Four-byte type that elements are computed in, `F32` or `I32`; `None` for block types.
    #[must_use]
    pub const fn widened(self) -> Option<Self> {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => Some(Self::F32),
            Self::I32 | Self::I8 | Self::U8 | Self::BOOL => Some(Self::I32),
            _ => None,
        }
    }

    /// True if elements are integers.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(self.widened(), Some(Self::I32))
    }

    /// `value` as this type stores it: truncated to the type's lowest bits, or 0 or 1 for `BOOL`.
    #[must_use]
    pub const fn stored(self, value: i32) -> i32 {
        match self {
            Self::I8 => value as i8 as i32,
            Self::U8 => value as u8 as i32,
            Self::BOOL => (value != 0) as i32,
            _ => value,
        }
    }

    /// ggml's number of the type, as in GGUF files; `None` if GGUF has no such type.
    #[must_use]
    pub const fn ggml(self) -> Option<u32> {
        self.row().1
    }

    /// ggml's name: `F32`, `Q6_K`, ...
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
#[error("unknown tensor type `{name}`; known: {}", DType::ALL.map(DType::name).join(", "))]
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
        assert!("q9_k".parse::<DType>().is_err());
    }

    #[test]
    fn sizes_need_whole_blocks_and_do_not_overflow() {
        assert_eq!(DType::Q6_K.size_of(512), Some(420));
        assert_eq!(DType::Q6_K.size_of(100), None);
        assert_eq!(DType::F32.size_of(u64::MAX), None);
    }
}
