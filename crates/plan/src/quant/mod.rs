//! Block formats: their layout, the reference dequantiser, the quantisers.
//!
//! Owns how bits become numbers. Every format is a file in `formats`: the block, its levels, how it is taken apart and how it
//! is made. [`dequantise`] is scalar and agrees bit for bit with ggml's reference; devices have their own fast paths and
//! are held against it, and lay weights out from the same parts. [`quantise`] is deterministic and does one to three
//! least-squares steps instead of ggml's searches.
//!
//! Rows are stored as consecutive blocks, so everything here works on flat slices.

mod fit;
mod format;
mod formats;

#[cfg(test)]
mod tests;

pub use format::{Format, Levels, Parts, SUB_BLOCK, Unstorable, blocks};
pub use formats::*;

use half::{bf16, f16};

use crate::DType;
use format::{blocks_mut, half_to_f32};

/// Elements of a block of the simple formats (ggml `QK8_0`, `QK4_0`).
pub const BLOCK: usize = 32;

/// Elements of a block of the K formats (ggml `QK_K`).
pub const SUPER_BLOCK: usize = 256;

/// A slice or a value that a format cannot take.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("{dtype} is not a format of real numbers; the others are: {}", real())]
    NotReal { dtype: DType },
    #[error("{elements} elements of {dtype} are not {bytes} bytes ({} elements take {})", .dtype.block_len(), .dtype.block_bytes())]
    Length { dtype: DType, elements: usize, bytes: usize },
    /// A number that is not finite, or too large for the format's half-precision scale.
    #[error("element {at} is {value}: {dtype} cannot represent it")]
    Range { dtype: DType, at: usize, value: f32 },
    #[error("{dtype} can be read but not made: its quantisers need the importance of every weight")]
    NoQuantiser { dtype: DType },
}

/// The names of all types of real numbers.
fn real() -> String {
    let real = DType::ALL.into_iter().filter(|dtype| !dtype.is_integer());
    real.map(DType::name).collect::<Vec<_>>().join(", ")
}

fn check(dtype: DType, elements: usize, bytes: usize) -> Result<(), Error> {
    if dtype.size_of(elements as u64) == Some(bytes as u64) {
        Ok(())
    } else {
        Err(Error::Length { dtype, elements, bytes })
    }
}

/// Turns stored elements into numbers: bit for bit what ggml's reference gives (the payload of a
/// NaN excepted).
///
/// # Errors
/// [`Error::NotReal`] for integer types, [`Error::Length`] unless `bytes` holds exactly
/// `out.len()` elements.
pub fn dequantise(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    check(dtype, out.len(), bytes.len())?;
    match dtype {
        DType::F32 => decode(bytes, out, f32::from_le_bytes),
        DType::F16 => decode(bytes, out, half_to_f32),
        DType::BF16 => decode(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        _ if dtype.is_integer() => return Err(Error::NotReal { dtype }),
        _ => formats::with_format!(dtype, multiply_out(bytes, out)),
    }
    Ok(())
}

/// Stored elements as 4 bytes each: numbers as [`dequantise`] has them, integers as the bits of an `i32`.
///
/// # Errors
/// [`Error::Length`] unless `bytes` holds exactly `out.len()` elements.
pub fn widen(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    let bits = |value: i32| f32::from_bits(dtype.stored(value).cast_unsigned());
    check(dtype, out.len(), bytes.len())?;
    match dtype {
        DType::I32 => decode(bytes, out, |b| bits(i32::from_le_bytes(b))),
        DType::I8 | DType::U8 | DType::BOOL => decode(bytes, out, |[b]| bits(i32::from(b))),
        _ => dequantise(dtype, bytes, out)?,
    }
    Ok(())
}

/// The first NaN or infinity among stored elements: where it is, and what. Bytes behind the last whole block are not
/// looked at, and integers are all numbers.
#[must_use]
pub fn not_finite(dtype: DType, bytes: &[u8]) -> Option<(usize, f32)> {
    let (len, size) = (dtype.block_len(), dtype.block_bytes());
    let mut values = [0.0; SUPER_BLOCK];
    let (mut from, values) = (0, &mut values[..len]);
    loop {
        let block = from + suspect(dtype, &bytes[from * size..])?;
        dequantise(dtype, &bytes[block * size..][..size], values).ok()?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Some((block * len + at, values[at]));
        }
        from = block + 1;
    }
}

/// The first block whose numbers may not all be finite, by its scales alone.
fn suspect(dtype: DType, bytes: &[u8]) -> Option<usize> {
    match dtype {
        _ if dtype.is_integer() => None,
        DType::F32 => first(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        DType::F16 => first(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        DType::BF16 => first(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        _ => formats::with_format!(dtype, first_suspect(bytes)),
    }
}

fn first_suspect<F: Format<N>, const N: usize>(bytes: &[u8]) -> Option<usize> {
    blocks::<F, N>(bytes).iter().position(F::is_suspect)
}

/// The first element of which that is true; looked for in runs, since all of a run are compared at once.
fn first<const N: usize>(bytes: &[u8], is: impl Fn([u8; N]) -> bool) -> Option<usize> {
    const RUN: usize = 256;
    let runs = bytes.as_chunks().0.chunks(RUN);
    let any = |run: &[[u8; N]]| run.iter().fold(false, |any, element| any | is(*element));
    let (number, run) = runs.enumerate().find(|(_, run)| any(run))?;
    run.iter().position(|element| is(*element)).map(|at| number * RUN + at)
}

/// Stores numbers as elements of `dtype`. The same numbers always give the same bytes.
///
/// # Errors
/// [`Error::NotReal`] for integer types, [`Error::Length`] unless `out` has room for exactly
/// `values.len()` elements, [`Error::Range`] for a number that is not finite or too large for a
/// block's scale (`F32`, `F16` and `BF16` take any number and round as IEEE 754 says),
/// [`Error::NoQuantiser`] for what can only be read.
pub fn quantise(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), Error> {
    check(dtype, values.len(), out.len())?;
    match dtype {
        DType::F32 => encode(values, out, f32::to_le_bytes),
        DType::F16 => encode(values, out, |v| f16::from_f32(v).to_le_bytes()),
        DType::BF16 => encode(values, out, |v| bf16::from_f32(v).to_le_bytes()),
        _ if dtype.is_integer() => return Err(Error::NotReal { dtype }),
        _ => formats::with_format!(dtype, make(values, out))?,
    }
    Ok(())
}

/// [`quantise`] for what is computed and not given, `Q8_0` or `Q4_0`: a block with a value that its type cannot store
/// becomes NaN throughout.
///
/// # Panics
/// Values and bytes are not of as many whole blocks, or the type is another.
pub fn store(dtype: DType, values: &[f32], out: &mut [u8]) {
    assert!(matches!(dtype, DType::Q8_0 | DType::Q4_0), "{dtype} is none of a cache's types");
    match quantise(dtype, values, out) {
        Ok(()) => {}
        Err(Error::Range { .. }) => {
            let blocks = values.chunks_exact(dtype.block_len());
            for (values, block) in blocks.zip(out.chunks_exact_mut(dtype.block_bytes())) {
                if quantise(dtype, values, block).is_err() {
                    // Both begin with the scale.
                    block.fill(0);
                    block[..2].copy_from_slice(&f16::NAN.to_le_bytes());
                }
            }
        }
        Err(error) => panic!("{error}"),
    }
}

fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (from, to) in bytes.as_chunks().0.iter().zip(out) {
        *to = decode(*from);
    }
}

fn encode<const N: usize>(values: &[f32], out: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    for (from, to) in values.iter().zip(out.as_chunks_mut().0) {
        *to = encode(*from);
    }
}

fn multiply_out<F: Format<N>, const N: usize>(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<F, N>(bytes).iter().zip(out.as_chunks_mut::<N>().0) {
        let parts = block.parts();
        let subs = out.as_chunks_mut::<SUB_BLOCK>().0.iter_mut();
        for ((to, codes), (scale, minimum)) in subs
            .zip(parts.codes.as_chunks::<SUB_BLOCK>().0)
            .zip(parts.scales.into_iter().zip(parts.minima))
        {
            let (d, minimum) = (parts.d * f32::from(scale), parts.dmin * f32::from(minimum));
            *to = codes.map(|code| d * f32::from(F::LEVELS.of(code)) - minimum);
        }
    }
}

fn make<F: Format<N>, const N: usize>(values: &[f32], out: &mut [u8]) -> Result<(), Error> {
    let dtype = F::DTYPE;
    for (i, (from, to)) in values.as_chunks().0.iter().zip(blocks_mut::<F, N>(out)).enumerate() {
        *to = F::quantise(from).map_err(|error| match error {
            Unstorable::OutOfRange => worst(dtype, i * N, from),
            Unstorable::NoQuantiser => Error::NoQuantiser { dtype },
        })?;
    }
    Ok(())
}

/// Names the element that made a block's scale not finite: the first NaN or the largest.
fn worst(dtype: DType, first: usize, values: &[f32]) -> Error {
    let rank = |v: f32| if v.is_nan() { f32::INFINITY } else { v.abs() };
    let (mut at, mut value) = (first, 0.0);
    for (i, v) in values.iter().enumerate() {
        if rank(*v) > rank(value) {
            (at, value) = (first + i, *v);
        }
    }
    Error::Range { dtype, at, value }
}
