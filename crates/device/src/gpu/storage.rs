//! Storage of weights, KV caches and recurrent states in GPU memory, and the division of scratch.

use orind_kernels::catalogue::CacheType;
use orind_kernels::catalogue::launch::CACHE_BLOCK;
use orind_kernels::repack;

use crate::slots::Pieces;
use crate::uses::Uses;
use crate::{BLOCK, Error, Result};
use plan::{Buffer, DType};

const _: () = assert!(BLOCK == CACHE_BLOCK as usize, "blocks are the kernels'");

/// Alignment of everything, enough for the widest loads and for constant banks.
pub(super) const ALIGN: u64 = 256;

/// Blocks that share the vocabulary when a token is sampled.
pub(super) const SAMPLE_PARTS: u32 = 32;

/// Placeholder for a GPU's name, replaced by [`of_device`].
const ANY: &str = "gpu";

pub(super) fn unsupported(what: String) -> Error {
    Error::Unsupported { device: ANY, what }
}

/// Replaces the placeholder device name of an error.
pub(super) fn of_device(device: &'static str) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::Unsupported { device: ANY, what } => Error::Unsupported { device, what },
        error => error,
    }
}

/// Layout of a weight: as matrices, as plain numbers, or first matrices and then numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightLayout {
    /// Layout and number of matrices, one after the other.
    matrices: Option<(repack::Layout, usize)>,
    numbers: Option<Numbers>,
}

/// Numbers in the order of their buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// Offset in the weight.
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// Type in the file.
    pub(super) dtype: DType,
}

/// Type of a weight's plain numbers: quantised blocks are decoded.
pub(super) const fn plain(dtype: DType) -> DType {
    if dtype.is_quantised() { DType::F32 } else { dtype }
}

impl WeightLayout {
    pub(super) fn of(buffer: &Buffer, uses: Uses) -> Result<Self> {
        let refused = |why: String| unsupported(format!("weight `{}`{why}", buffer.name));
        let (shape, dtype) = (buffer.shape.as_slice(), buffer.dtype);
        let line = matches!((shape, dtype), (&[_], DType::F32)) || dtype.is_integer();
        let packed = uses.matrices || (uses.rows && !uses.numbers) || uses == Uses::default();
        let matrices = match shape {
            _ if line || !packed => None,
            &[rows, k] => Some((rows, k, 1)),
            &[experts, rows, k] => Some((rows, k, experts)),
            shape => return Err(refused(format!(" of {dtype} {shape:?}"))),
        };
        let layout = |(rows, k, count)| {
            let layout = repack::Layout::new(dtype, rows, k);
            layout.map(|layout| (layout, count)).map_err(|e| refused(format!(": {e}")))
        };
        let matrices = matrices.map(layout).transpose()?;
        let mut weight = Self { matrices, numbers: None };
        if uses.numbers || matrices.is_none() {
            let each = plain(dtype).block_bytes() as u64;
            let bytes = (buffer.elements() as u64).saturating_mul(each);
            let at = weight.bytes().next_multiple_of(ALIGN);
            weight.numbers = Some(Numbers { at, bytes, dtype });
        }
        Ok(weight)
    }

    pub(super) const fn bytes(&self) -> u64 {
        match (&self.numbers, &self.matrices) {
            (Some(numbers), _) => numbers.at.saturating_add(numbers.bytes),
            (None, Some((layout, 1))) => layout.bytes() as u64,
            (None, Some((_, count))) => self.stride() * *count as u64,
            (None, None) => 0,
        }
    }

    /// Bytes between consecutive matrices.
    pub(super) const fn stride(&self) -> u64 {
        match &self.matrices {
            Some((layout, _)) => (layout.bytes() as u64).next_multiple_of(ALIGN),
            None => 0,
        }
    }

    /// Layout and number of matrices.
    pub(super) const fn matrices(&self) -> Option<(&repack::Layout, usize)> {
        match &self.matrices {
            Some((layout, count)) => Some((layout, *count)),
            None => None,
        }
    }

    pub(super) const fn numbers(&self) -> Option<Numbers> {
        self.numbers
    }
}

/// Shape of a KV cache buffer: `[block][kv head]`, or `[slot][kv head]` for a ring, in tiles of
/// [`orind_kernels::catalogue::launch::CACHE_TILE`] positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cache {
    pub(super) slots: u32,
    pub(super) capacity: u32,
    pub(super) heads: u32,
    pub(super) dim: u32,
    pub(super) kind: CacheType,
    /// See [`plan::Caches::ring`].
    pub(super) ring: bool,
}

/// Persistent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Cache(Cache),
    /// State of a recurrent layer, or a trained parameter: bytes of the buffer and number of slots.
    Recurrent {
        bytes: u64,
        slots: u32,
    },
}

impl State {
    pub(super) fn of(buffer: &Buffer, ring: bool) -> Result<Self> {
        let size = |n: usize| u32::try_from(n).ok().filter(|&n| n > 0);
        match (buffer.shape.as_slice(), buffer.dtype) {
            (&[slots, capacity, heads, dim], dtype)
                if size(dim).is_some_and(|dim| CacheType::of(dtype, dim).is_some()) =>
            {
                let sizes = (size(slots), size(capacity), size(heads), size(dim));
                if let (Some(slots), Some(capacity), Some(heads), Some(dim)) = sizes
                    && let Some(kind) = CacheType::of(dtype, dim)
                {
                    return Ok(Self::Cache(Cache { slots, capacity, heads, dim, kind, ring }));
                }
            }
            (&[slots, ..], dtype) if !dtype.is_quantised() => {
                if let Some(slots) = size(slots) {
                    return Ok(Self::Recurrent { bytes: buffer.bytes(), slots });
                }
            }
            _ => {}
        }
        let (name, dtype, shape) = (&buffer.name, buffer.dtype, &buffer.shape);
        Err(unsupported(format!("state `{name}` of {dtype} {shape:?}")))
    }

    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Cache(cache) => cache.bytes(),
            Self::Recurrent { bytes, .. } => bytes,
        }
    }
}

impl Cache {
    /// Pieces of a state at `begin`.
    pub(super) fn at(self, begin: u64) -> Pieces {
        let (positions, blocks) = if self.ring {
            (self.capacity, 1)
        } else {
            (BLOCK as u32, self.capacity.div_ceil(BLOCK as u32))
        };
        let head = self.kind.head_bytes(positions, self.dim) as usize;
        let count = self.slots as usize * blocks as usize;
        Pieces { begin: begin as usize, count, bytes: head.saturating_mul(self.heads as usize) }
    }

    pub(super) fn bytes(self) -> u64 {
        let Pieces { count, bytes, .. } = self.at(0);
        (count as u64).saturating_mul(bytes as u64)
    }
}

/// Memory shared by plans, besides weights and caches: one plan runs at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Workspace {
    pub(super) arena: u64,
    pub(super) attention: u64,
    pub(super) sample: u64,
    pub(super) candidates: u64,
    /// Intermediate results of an MoE layer.
    pub(super) mixture: u64,
    /// Rows after a LayerNorm, which projections do not fuse.
    pub(super) normed: u64,
    /// Quantised activations of many rows.
    pub(super) activations: u64,
    /// Counters of blocks of attention or of a sequence, then of sampling; zero between launches.
    pub(super) block_counters: u64,
    pub(super) sample_counters: u64,
}

impl Workspace {
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            arena: self.arena.max(other.arena),
            attention: self.attention.max(other.attention),
            sample: self.sample.max(other.sample),
            candidates: self.candidates.max(other.candidates),
            mixture: self.mixture.max(other.mixture),
            normed: self.normed.max(other.normed),
            activations: self.activations.max(other.activations),
            block_counters: self.block_counters.max(other.block_counters),
            sample_counters: self.sample_counters.max(other.sample_counters),
        }
    }

    /// Bytes that only the GPU accesses.
    pub(super) const fn scratch(&self) -> u64 {
        let Self { arena, attention, sample, candidates, mixture, normed, activations, .. } = *self;
        arena + attention + sample + candidates + mixture + normed + activations
    }

    /// Bytes of counters, which the CPU clears.
    pub(super) const fn counters(&self) -> u64 {
        self.block_counters + self.sample_counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A weight takes twice the memory only if both forms are read.
    #[test]
    fn a_weight_is_stored_in_the_forms_that_are_read() {
        let line = |dtype, shape: &[usize]| Buffer {
            name: "w".into(),
            class: plan::Class::Weight,
            dtype,
            shape: shape.to_vec(),
        };
        let read = |what: &str| Uses {
            matrices: what.contains('m'),
            rows: what.contains('r'),
            numbers: what.contains('n'),
        };
        // 16 rows of 96 (102 bytes each in Q8_0): bytes as matrices, and as plain numbers.
        for (dtype, shape, what, matrices, numbers) in [
            (DType::F16, &[16, 96][..], "m", 1, None),
            (DType::F16, &[16, 96], "mr", 1, None),
            (DType::F16, &[16, 96], "r", 1, None),
            (DType::F16, &[16, 96], "", 1, None),
            (DType::F16, &[16, 96], "n", 0, Some(3072)),
            (DType::F16, &[16, 96], "rn", 0, Some(3072)),
            (DType::F16, &[16, 96], "mn", 1, Some(3072)),
            (DType::Q8_0, &[16, 96], "mrn", 1, Some(6144)),
            (DType::F32, &[2, 8, 96], "mn", 2, Some(6144)),
            (DType::F32, &[2, 8, 96], "n", 0, Some(6144)),
            (DType::F32, &[2, 2, 4, 96], "n", 0, Some(6144)),
            (DType::F32, &[1536], "", 0, Some(6144)),
            (DType::I8, &[16, 96], "", 0, Some(1536)),
        ] {
            let weight = WeightLayout::of(&line(dtype, shape), read(what)).unwrap();
            assert_eq!(weight.matrices().map_or(0, |(_, count)| count), matrices, "{what}");
            assert_eq!(weight.numbers().map(|numbers| numbers.bytes), numbers, "{what}");
            let packed = weight.stride() * matrices as u64;
            let behind = numbers.map(|bytes| packed + bytes);
            assert_eq!(
                weight.bytes().next_multiple_of(ALIGN),
                behind.unwrap_or(packed).next_multiple_of(ALIGN)
            );
        }
        let refused = |buffer, what| WeightLayout::of(&buffer, read(what)).unwrap_err().to_string();
        let why = refused(line(DType::F32, &[2, 2, 4, 96]), "mn");
        assert!(why.contains("weight `w` of F32 [2, 2, 4, 96]"), "{why}");
    }
}
