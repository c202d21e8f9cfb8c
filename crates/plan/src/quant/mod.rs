//! Block formats: their layout, the reference dequantiser, the quantiser.
//!
//! Owns how bits become numbers. [`dequantise`] is scalar and agrees bit for bit with ggml's
//! reference; devices have their own fast paths and are held against it. [`quantise`] is
//! deterministic and does one least-squares step instead of ggml's searches: made for the
//! synthetic models, where speed matters more than the last percent of error.
//!
//! Rows are stored as consecutive blocks, so everything here works on flat slices.

mod block;
mod dequantise;
mod quantise;

#[cfg(test)]
mod tests;

pub use block::{Block, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, blocks, blocks_mut, scale_and_min};
pub use dequantise::dequantise;
pub use quantise::quantise;

use crate::DType;

/// Elements of a block of the simple formats (ggml `QK8_0`, `QK4_0`).
pub const BLOCK: usize = 32;

/// Elements of a block of the K formats (ggml `QK_K`).
pub const SUPER_BLOCK: usize = 256;

/// A slice or a value that a format cannot take.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error(
        "{dtype} is not a format of real numbers; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K"
    )]
    NotReal { dtype: DType },
    #[error("{elements} elements of {dtype} are not {bytes} bytes ({} elements take {})", .dtype.block_len(), .dtype.block_bytes())]
    Length { dtype: DType, elements: usize, bytes: usize },
    /// A number that is not finite, or too large for the format's half-precision scale.
    #[error("element {at} is {value}: {dtype} cannot represent it")]
    Range { dtype: DType, at: usize, value: f32 },
}

fn check(dtype: DType, elements: usize, bytes: usize) -> Result<(), Error> {
    if dtype.size_of(elements as u64) == Some(bytes as u64) {
        Ok(())
    } else {
        Err(Error::Length { dtype, elements, bytes })
    }
}
