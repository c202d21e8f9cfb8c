//! Element types of the KV cache. `cuda/cache.cuh` defines their layout.

use plan::DType;

use super::launch::CACHE_TILE;

/// Element type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CacheType {
    /// Half precision.
    F16,
    /// Blocks of 32 bytes with a scale.
    Q8_0,
    /// Blocks of 32 nibbles with a scale.
    Q4_0,
}

impl CacheType {
    /// All types.
    pub const ALL: [Self; 3] = [Self::F16, Self::Q8_0, Self::Q4_0];

    /// Cache type for buffers of a `dtype` with heads of `dim` values; `None` if unsupported.
    #[must_use]
    pub const fn of(dtype: DType, dim: u32) -> Option<Self> {
        let (kind, unit) = match dtype {
            DType::F16 => (Self::F16, 8),
            DType::Q8_0 => (Self::Q8_0, 32),
            DType::Q4_0 => (Self::Q4_0, 32),
            _ => return None,
        };
        if dim > 0 && dim.is_multiple_of(unit) { Some(kind) } else { None }
    }

    /// Data type of the buffers.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::Q8_0 => DType::Q8_0,
            Self::Q4_0 => DType::Q4_0,
        }
    }

    /// Bits of a value, without its share of a scale.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::F16 => 16,
            Self::Q8_0 => 8,
            Self::Q4_0 => 4,
        }
    }

    /// Bytes of a key or value of `dim` values.
    #[must_use]
    pub const fn row_bytes(self, dim: u32) -> u32 {
        let dtype = self.dtype();
        dim / dtype.block_len() as u32 * dtype.block_bytes() as u32
    }

    /// Bytes of one head's keys or values for a slot of `capacity` positions.
    #[must_use]
    pub const fn head_bytes(self, capacity: u32, dim: u32) -> u64 {
        let tiles = capacity.div_ceil(CACHE_TILE) as u64;
        tiles * CACHE_TILE as u64 * self.row_bytes(dim) as u64
    }

    /// Infix in kernel symbols.
    pub(super) const fn infix(self) -> &'static str {
        match self {
            Self::F16 => "",
            Self::Q8_0 => "_q8_0",
            Self::Q4_0 => "_q4_0",
        }
    }
}
