//! Bytes of a tensor's elements in memory, by type.

use plan::{Buffer, Class, DType};
use simd::tensor::Narrow;

/// Storage width of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// 4 bytes: `F32` or `I32`.
    Word,
    /// Fewer bytes, widened when read.
    Less(Narrow),
}

impl Width {
    /// The width of a type; `None` for block-quantised types.
    pub(super) const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 | DType::I32 => Some(Self::Word),
            DType::F16 => Some(Self::Less(Narrow::Half)),
            DType::BF16 => Some(Self::Less(Narrow::Brain)),
            DType::I8 => Some(Self::Less(Narrow::Signed)),
            DType::U8 | DType::BOOL => Some(Self::Less(Narrow::Unsigned)),
            _ => None,
        }
    }

    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Word => 4,
            Self::Less(narrow) => narrow.bytes(),
        }
    }
}

/// Width of a buffer's elements; `None` for block-quantised activations and states.
pub(super) fn stored(buffer: &Buffer) -> Option<Width> {
    match buffer.class {
        Class::Weight => Some(plain_weight(buffer.dtype)),
        _ => Width::of(buffer.dtype),
    }
}

/// Width of a weight that is stored as plain numbers: the type of integers is unchanged, other types are decoded to
/// `F32` at upload.
pub(super) fn plain_weight(dtype: DType) -> Width {
    Width::of(dtype).filter(|_| dtype.is_integer()).unwrap_or(Width::Word)
}
