//! Array files: safetensors (many arrays by name) and NumPy's `.npy` (one array).
//!
//! Owns the conversion of number types to `f32`, errors that name file and array, and the `.npy`
//! format (`numpy.lib.format`), since crates for it depend on parser generators.
//! [`Trainer::load`](crate::Trainer::load) and [`Trainer::save`](crate::Trainer::save) use the same
//! arrays.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Numbers in row-major order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Array {
    /// Extents, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// One value per element of the shape.
    pub values: Vec<f32>,
}

/// Reason why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Not a safetensors file, or a damaged one.
    #[error("{} is not a safetensors file, or is damaged", path.display())]
    Safetensors { path: PathBuf, source: safetensors::SafeTensorError },
    /// Not an `.npy` file, or a damaged one.
    #[error("{} is not a NumPy array, or is damaged: {what}", path.display())]
    Npy { path: PathBuf, what: &'static str },
    /// An array with an unsupported element type.
    #[error(
        "{}: `{name}` has type {dtype}; supported are F32, F16, BF16, F64, integers of 8 to 64 bits and BOOL (NumPy: f2, f4, f8, i1 to i8, u1 to u8, b1)",
        path.display()
    )]
    Type { path: PathBuf, name: String, dtype: String },
    /// An integer that `f32` would round.
    #[error("{}: the integer {value} is not exact as f32", path.display())]
    Integer { path: PathBuf, value: i128 },
    /// An array whose number of values differs from its shape.
    #[error("`{name}` has {values} numbers, which do not fill shape {shape:?}")]
    Shape { name: String, shape: Vec<usize>, values: usize },
}

/// Result of reading or writing a file.
pub type Result<T> = std::result::Result<T, Error>;

/// Reads the arrays of a safetensors file, by name. Integers beyond 2^24 and 64-bit numbers are
/// rounded.
///
/// # Errors
/// The file cannot be read, is damaged, or has an array of an unsupported type.
pub fn read_safetensors(path: &Path) -> Result<BTreeMap<String, Array>> {
    let bytes = fs::read(path).map_err(|source| io_error(path, source))?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|source| Error::Safetensors { path: path.to_owned(), source })?;
    let read = |(name, view): (&str, TensorView<'_>)| {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => numbers(data, f32::from_le_bytes),
            Dtype::F16 => numbers(data, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => numbers(data, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Dtype::F64 => numbers(data, |bytes| f64::from_le_bytes(bytes) as f32),
            Dtype::I32 => numbers(data, |bytes| i32::from_le_bytes(bytes) as f32),
            Dtype::I64 => numbers(data, |bytes| i64::from_le_bytes(bytes) as f32),
            Dtype::I8 => numbers(data, |bytes| f32::from(i8::from_le_bytes(bytes))),
            Dtype::U8 | Dtype::BOOL => numbers(data, |[byte]| f32::from(byte)),
            other => {
                let (path, name, dtype) = (path.to_owned(), name.to_owned(), format!("{other:?}"));
                return Err(Error::Type { path, name, dtype });
            }
        };
        Ok((name.to_owned(), Array { shape: view.shape().to_vec(), values }))
    };
    file.iter().map(read).collect()
}

/// Writes arrays as `F32`.
///
/// # Errors
/// An array's number of values differs from its shape, or the file cannot be written.
pub fn write_safetensors(path: &Path, arrays: &BTreeMap<String, Array>) -> Result<()> {
    let mut data = Vec::new();
    for (name, array) in arrays {
        checked(name, array)?;
        data.push(array.values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
    }
    let damaged = |source| Error::Safetensors { path: path.to_owned(), source };
    let views = arrays.iter().zip(&data).map(|((name, array), data)| {
        Ok((name, TensorView::new(Dtype::F32, array.shape.clone(), data).map_err(damaged)?))
    });
    let views = views.collect::<Result<Vec<_>>>()?;
    let bytes = safetensors::serialize(views, None).map_err(damaged)?;
    fs::write(path, bytes).map_err(|source| io_error(path, source))
}

/// Reads the array of an `.npy` file, in C or Fortran order. 64-bit floats are rounded.
///
/// # Errors
/// The file cannot be read, is damaged, has an unsupported type, or an integer that `f32` would
/// round.
pub fn read_npy(path: &Path) -> Result<Array> {
    parse_npy(path, &fs::read(path).map_err(|source| io_error(path, source))?)
}

/// Like [`read_npy`], from bytes; errors name `path`.
///
/// # Errors
/// As for [`read_npy`].
pub fn parse_npy(path: &Path, bytes: &[u8]) -> Result<Array> {
    let damaged = |what| Error::Npy { path: path.to_owned(), what };
    let (header, data) = parts(bytes).ok_or_else(|| damaged("it has no header"))?;
    let Header { dtype, fortran, shape } =
        Header::parse(header).ok_or_else(|| damaged("its header is not NumPy's"))?;
    let count = shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n));
    let values = match dtype {
        "<f4" => numbers(data, f32::from_le_bytes),
        "<f2" => numbers(data, |bytes| f16::from_le_bytes(bytes).to_f32()),
        "<f8" => numbers(data, |bytes| f64::from_le_bytes(bytes) as f32),
        "<i2" => numbers(data, |bytes| f32::from(i16::from_le_bytes(bytes))),
        "<u2" => numbers(data, |bytes| f32::from(u16::from_le_bytes(bytes))),
        "<i4" => exact(path, data, |bytes| i32::from_le_bytes(bytes).into())?,
        "<u4" => exact(path, data, |bytes| u32::from_le_bytes(bytes).into())?,
        "<i8" => exact(path, data, |bytes| i64::from_le_bytes(bytes).into())?,
        "<u8" => exact(path, data, |bytes| u64::from_le_bytes(bytes).into())?,
        "|u1" | "|b1" => numbers(data, |[byte]| f32::from(byte)),
        "|i1" => numbers(data, |bytes| f32::from(i8::from_le_bytes(bytes))),
        other => {
            let (path, name) = (path.to_owned(), "the array".to_owned());
            return Err(Error::Type { path, name, dtype: other.to_owned() });
        }
    };
    let size = usize::from(dtype.as_bytes()[2] - b'0');
    if count.and_then(|count| count.checked_mul(size)) != Some(data.len()) {
        return Err(damaged("its size differs from its shape"));
    }
    let values = if fortran { row_major(&shape, &values) } else { values };
    Ok(Array { shape, values })
}

/// Decodes integers that `f32` represents.
fn exact<const N: usize>(
    path: &Path,
    data: &[u8],
    number: impl Fn([u8; N]) -> i128,
) -> Result<Vec<f32>> {
    let convert = |bytes: &[u8; N]| {
        let value = number(*bytes);
        let float = value as f32;
        if float as i128 == value {
            return Ok(float);
        }
        Err(Error::Integer { path: path.to_owned(), value })
    };
    data.as_chunks::<N>().0.iter().map(convert).collect()
}

/// Reorders values from column-major to row-major order.
fn row_major(shape: &[usize], values: &[f32]) -> Vec<f32> {
    let place = |mut index: usize| {
        let mut steps = vec![0; shape.len()];
        for (step, extent) in steps.iter_mut().zip(shape).rev() {
            (*step, index) = (index % extent, index / extent);
        }
        steps.iter().zip(shape).rev().fold(0, |at, (step, extent)| at * extent + step)
    };
    (0..values.len()).map(|index| values[place(index)]).collect()
}

/// Writes an array as `f4`.
///
/// # Errors
/// The number of values differs from the shape, or the file cannot be written.
pub fn write_npy(path: &Path, array: &Array) -> Result<()> {
    /// The data starts at a multiple of this.
    const ALIGNED: usize = 64;
    checked("the array", array)?;
    let shape: String = array.shape.iter().map(|n| format!("{n}, ")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    let length = (PREFIX + header.len() + 1).next_multiple_of(ALIGNED) - PREFIX;
    // NumPy supports at most 64 axes.
    let Ok(fits) = u16::try_from(length) else {
        return Err(Error::Npy {
            path: path.to_owned(),
            what: "its shape does not fit in a header",
        });
    };
    header += &" ".repeat(length - 1 - header.len());
    header.push('\n');
    let mut bytes = [&MAGIC[..], &[1, 0]].concat();
    bytes.extend(fits.to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(array.values.iter().flat_map(|value| value.to_le_bytes()));
    fs::write(path, bytes).map_err(|source| io_error(path, source))
}

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Bytes before the header of version 1: magic, version, length.
const PREFIX: usize = 10;

/// Splits an `.npy` file of version 1 or 2 into header and data.
fn parts(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (version, rest) = rest.split_at_checked(2)?;
    let (length, rest) = if version[0] == 1 {
        let (length, rest) = rest.split_first_chunk::<2>()?;
        (u32::from(u16::from_le_bytes(*length)), rest)
    } else {
        let (length, rest) = rest.split_first_chunk::<4>()?;
        (u32::from_le_bytes(*length), rest)
    };
    let (header, data) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((std::str::from_utf8(header).ok()?, data))
}

/// Header of an `.npy` file: a Python dictionary literal with three keys.
struct Header<'a> {
    dtype: &'a str,
    fortran: bool,
    shape: Vec<usize>,
}

impl<'a> Header<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let value = |key: &str| Some(text.split_once(key)?.1.trim_start());
        let dtype = value("'descr':")?.strip_prefix('\'')?.split_once('\'')?.0;
        let fortran = value("'fortran_order':")?.starts_with("True");
        let extents = value("'shape':")?.strip_prefix('(')?.split_once(')')?.0;
        let extents = extents.split(',').map(str::trim).filter(|extent| !extent.is_empty());
        let shape = extents.map(|extent| extent.parse().ok()).collect::<Option<_>>()?;
        Some(Self { dtype, fortran, shape })
    }
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

fn checked(name: &str, array: &Array) -> Result<()> {
    let Array { shape, values } = array;
    if shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n)) == Some(values.len()) {
        return Ok(());
    }
    Err(Error::Shape { name: name.to_owned(), shape: shape.clone(), values: values.len() })
}

/// Decodes a whole count of little-endian numbers, N bytes each.
fn numbers<const N: usize>(data: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    data.as_chunks::<N>().0.iter().map(|bytes| number(*bytes)).collect()
}
