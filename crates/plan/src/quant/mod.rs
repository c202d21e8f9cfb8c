//! Block formats: layouts, the reference dequantiser, the quantisers.
//!
//! Owns how bits become numbers. Every format is a file in `formats`: block layout, levels,
//! unpacking, quantiser. [`dequantise`] is scalar and agrees bit for bit with ggml's reference.
//! Devices have their own fast paths, which are tested against it, and repack weights from the same
//! parts. [`quantise`] is deterministic and takes one to three least-squares steps instead of
//! ggml's searches.
//!
//! Rows are stored as consecutive blocks, so everything here works on flat slices.

mod fit;
mod format;
mod formats;

#[cfg(test)]
mod tests;

pub use format::{BLOCK, Format, Levels, Parts, SUB_BLOCK, SUPER_BLOCK, Unstorable, blocks};
pub use formats::*;

use half::{bf16, f16};

use crate::DType;
use format::{blocks_mut, half_to_f32};

/// A slice or value that a format cannot store.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("{dtype} is not a type of real numbers; expected one of: {}", real())]
    NotReal { dtype: DType },
    #[error("{elements} elements of {dtype} are not {bytes} bytes ({} elements take {})", .dtype.block_len(), .dtype.block_bytes())]
    Length { dtype: DType, elements: usize, bytes: usize },
    /// A number that is not finite, or too large for the format's half-precision scale.
    #[error("element {at} is {value}: {dtype} cannot represent it")]
    Range { dtype: DType, at: usize, value: f32 },
    #[error("{dtype} can be read but not written: its quantiser needs an importance matrix")]
    NoQuantiser { dtype: DType },
}

/// Names of all real-number types.
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

/// Dequantises stored elements, bit for bit like ggml's reference (except for NaN payloads).
///
/// # Errors
/// [`Error::NotReal`] for integer types, [`Error::Length`] unless `bytes` contains exactly `out.len()`
/// elements.
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

/// Widens stored elements to 4 bytes each: real numbers as in [`dequantise`], integers as the bits
/// of an `i32`.
///
/// # Errors
/// [`Error::Length`] unless `bytes` contains exactly `out.len()` elements.
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

/// Index and value of the first NaN or infinity among stored elements. Ignores bytes after the last
/// whole block; integers are always finite.
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

/// First block whose scales allow a number that is not finite.
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

/// First element for which the predicate is true. Tests runs of elements at once.
fn first<const N: usize>(bytes: &[u8], is: impl Fn([u8; N]) -> bool) -> Option<usize> {
    const RUN: usize = 256;
    let runs = bytes.as_chunks().0.chunks(RUN);
    let any = |run: &[[u8; N]]| run.iter().fold(false, |any, element| any | is(*element));
    let (number, run) = runs.enumerate().find(|(_, run)| any(run))?;
    run.iter().position(|element| is(*element)).map(|at| number * RUN + at)
}

/// Stores numbers as elements of `dtype`. The same numbers always produce the same bytes.
///
/// # Errors
/// [`Error::NotReal`] for integer types, [`Error::Length`] unless `out` has room for exactly
/// `values.len()` elements, [`Error::Range`] for a number that is not finite or too large for a
/// block's scale (`F32`, `F16` and `BF16` accept any number and round like IEEE 754),
/// [`Error::NoQuantiser`] for read-only formats.
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

/// [`quantise`] for computed values, to `Q8_0` or `Q4_0`: a block with a value that the type cannot
/// store becomes NaN throughout.
///
/// # Panics
/// If values and bytes are not the same number of whole blocks, or for other types.
pub fn store(dtype: DType, values: &[f32], out: &mut [u8]) {
    assert!(matches!(dtype, DType::Q8_0 | DType::Q4_0), "{dtype} is not a KV cache type");
    match quantise(dtype, values, out) {
        Ok(()) => {}
        Err(Error::Range { .. }) => {
            let blocks = values.chunks_exact(dtype.block_len());
            for (values, block) in blocks.zip(out.chunks_exact_mut(dtype.block_bytes())) {
                if quantise(dtype, values, block).is_err() {
                    // Both formats begin with the scale.
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

/// The element that made a block's scale not finite: the first NaN, or the largest.
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
