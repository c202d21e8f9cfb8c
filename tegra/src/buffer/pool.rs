//! A model's weights: many tensors in few large buffers.

use super::{Filling, Weights};
use crate::address::{AddressError, GpuAddress};
use crate::error::Error;
use crate::space::AddressSpace;

/// Maximum bytes of a chunk, unless one tensor is larger. A power of two: the driver rounds address
/// ranges up to one.
const CHUNK: u64 = 256 << 20;

/// Position of a tensor within a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    chunk: usize,
    offset: u64,
    bytes: u64,
}

impl Placement {
    /// The tensor's bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
}

/// A pool that is being filled.
#[derive(Debug)]
pub struct Loading {
    space: AddressSpace,
    expected: u64,
    chunks: Vec<Chunk>,
}

#[derive(Debug)]
struct Chunk {
    filling: Filling,
    used: u64,
}

impl Loading {
    /// An empty pool for about `expected` bytes in total; it can grow beyond that.
    #[must_use]
    pub fn new(space: &AddressSpace, expected: u64) -> Self {
        Self { space: space.clone(), expected, chunks: Vec::new() }
    }

    /// Allocates a tensor of `bytes` at a multiple of `alignment`, a power of two, and returns its
    /// memory to fill.
    ///
    /// # Errors
    /// [`Error::Empty`] for no bytes, [`Error::Address`] for an alignment above the page size, and
    /// the errors of [`Filling::new`].
    pub fn tensor(&mut self, bytes: u64, alignment: u64) -> Result<(Placement, &mut [u8]), Error> {
        const PAGE: u64 = crate::abi::address_space::PAGE_SIZE as u64;
        if bytes == 0 {
            return Err(Error::Empty { what: "a tensor" });
        }
        if !alignment.is_power_of_two() || alignment > PAGE {
            return Err(AddressError::Misaligned { address: alignment, alignment: PAGE }.into());
        }
        let fits = |chunk: &Chunk| {
            let offset = chunk.used.next_multiple_of(alignment);
            offset.checked_add(bytes).is_some_and(|end| end <= chunk.filling.bytes())
        };
        if !self.chunks.last().is_some_and(fits) {
            let placed: u64 = self.chunks.iter().map(|chunk| chunk.used).sum();
            // The expected size excludes alignment gaps, hence the page.
            let rest = self.expected.saturating_sub(placed).saturating_add(PAGE);
            let filling = Filling::new(&self.space, rest.min(CHUNK).max(bytes))?;
            self.chunks.push(Chunk { filling, used: 0 });
        }
        let index = self.chunks.len() - 1;
        let Chunk { filling, used } = &mut self.chunks[index];
        let offset = used.next_multiple_of(alignment);
        *used = offset + bytes;
        let place = &mut filling.as_mut_slice()[offset as usize..][..bytes as usize];
        Ok((Placement { chunk: index, offset, bytes }, place))
    }

    /// Maps everything for the GPU; see [`Filling::seal`].
    pub fn seal(self) -> Result<WeightsPool, Error> {
        let chunks = self.chunks.into_iter().map(|chunk| chunk.filling.seal());
        Ok(WeightsPool { chunks: chunks.collect::<Result<_, _>>()? })
    }
}

/// A model's weights, mapped for the GPU.
#[derive(Debug)]
pub struct WeightsPool {
    chunks: Vec<Weights>,
}

impl WeightsPool {
    /// GPU address of a tensor; `None` for a placement of another pool.
    #[must_use]
    pub fn address(&self, placement: Placement) -> Option<GpuAddress> {
        self.bytes(placement)?;
        self.chunks.get(placement.chunk)?.address().offset(placement.offset).ok()
    }

    /// A tensor's bytes for the CPU; `None` for a placement of another pool.
    #[must_use]
    pub fn bytes(&self, placement: Placement) -> Option<&[u8]> {
        let (start, length) = (placement.offset as usize, placement.bytes as usize);
        self.chunks.get(placement.chunk)?.as_slice().get(start..)?.get(..length)
    }

    /// The buffers, for mapping totals and reports.
    #[must_use]
    pub fn chunks(&self) -> &[Weights] {
        &self.chunks
    }
}
