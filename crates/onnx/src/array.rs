//! Arrays on the host: ONNX element types, and the values of a file's tensors.
//!
//! Devices compute in `f32` and `i32`: all floating-point types become `f32`, integers `i32`.
//! Values known to the host are `f64`, which represents both, and axis sizes, exactly.

use std::sync::Arc;

use half::{bf16, f16};
use ndarray::{ArrayD, IxDyn};
use prost::Message as _;

use crate::error::{Error, NodeResult, Result, invalid};
use crate::proto::TensorProto;

/// Most elements of one tensor: what 32 bits can count.
const MOST: usize = 1 << 31;

/// Element type, numbered like `TensorProto.DataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    F32,
    U8,
    I8,
    U16,
    I16,
    I32,
    I64,
    Bool,
    F16,
    F64,
    U32,
    U64,
    BF16,
    U4,
    I4,
    U2,
    I2,
}

impl Elem {
    pub(crate) fn of(number: i32) -> Option<Self> {
        Some(match number {
            1 => Self::F32,
            2 => Self::U8,
            3 => Self::I8,
            4 => Self::U16,
            5 => Self::I16,
            6 => Self::I32,
            7 => Self::I64,
            9 => Self::Bool,
            10 => Self::F16,
            11 => Self::F64,
            12 => Self::U32,
            13 => Self::U64,
            16 => Self::BF16,
            21 => Self::U4,
            22 => Self::I4,
            25 => Self::U2,
            26 => Self::I2,
            _ => return None,
        })
    }

    /// The type of that number, or the reason why it is not supported.
    pub(crate) fn named(number: i32) -> std::result::Result<Self, String> {
        let other = match number {
            8 => "strings are not supported: convert text to numbers before the network",
            14 | 15 => "complex numbers are not supported",
            17..=20 | 23 | 24 => "floating point of 4 and 8 bits is not supported",
            _ => "",
        };
        match Self::of(number) {
            Some(elem) => Ok(elem),
            None if other.is_empty() => Err(format!("element type {number} is not supported")),
            None => Err(other.to_owned()),
        }
    }

    /// Number of the type with that name in ONNX.
    pub(crate) fn by_name(name: &str) -> Option<i32> {
        (1..32).find(|number| Self::of(*number).is_some_and(|elem| elem.name() == name))
    }

    /// Name in ONNX.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::Bool => "bool",
            Self::F16 => "float16",
            Self::F64 => "double",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::BF16 => "bfloat16",
            Self::U4 => "uint4",
            Self::I4 => "int4",
            Self::U2 => "uint2",
            Self::I2 => "int2",
        }
    }

    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::F64 | Self::BF16)
    }

    /// True for integer types; `Bool` is not one.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, Self::Bool)
    }

    pub(crate) const fn bits(self) -> usize {
        match self {
            Self::U2 | Self::I2 => 2,
            Self::U4 | Self::I4 => 4,
            Self::U8 | Self::I8 | Self::Bool => 8,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 16,
            Self::F32 | Self::I32 | Self::U32 => 32,
            Self::I64 | Self::F64 | Self::U64 => 64,
        }
    }

    /// Bytes of `count` elements in a file, where narrow ones are packed.
    pub(crate) const fn bytes(self, count: usize) -> usize {
        count.saturating_mul(self.bits()).div_ceil(8)
    }

    /// Smallest and largest value of an integer type.
    pub(crate) const fn range(self) -> Option<(f64, f64)> {
        Some(match self {
            Self::U2 => (0.0, 3.0),
            Self::I2 => (-2.0, 1.0),
            Self::U4 => (0.0, 15.0),
            Self::I4 => (-8.0, 7.0),
            Self::U8 => (0.0, u8::MAX as f64),
            Self::I8 => (i8::MIN as f64, i8::MAX as f64),
            Self::U16 => (0.0, u16::MAX as f64),
            Self::I16 => (i16::MIN as f64, i16::MAX as f64),
            Self::I32 => (i32::MIN as f64, i32::MAX as f64),
            Self::U32 => (0.0, u32::MAX as f64),
            Self::I64 => (i64::MIN as f64, i64::MAX as f64),
            Self::U64 => (0.0, u64::MAX as f64),
            _ => return None,
        })
    }
}

/// Values in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub elem: Elem,
    /// Extents, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// One value per element of the shape; `Bool` as 0 or 1, all other types converted to `f32`.
    pub values: Vec<f32>,
}

/// Integers of this magnitude and more may have been rounded to `f32`.
const ROUNDED: f32 = 16_777_216.0;

impl Array {
    /// Why values cannot be those of an integer type, if they cannot: fractions, or magnitudes from
    /// 2^24 on, which `f32` rounds.
    pub(crate) fn check(elem: Elem, values: &[f32]) -> std::result::Result<(), String> {
        if !elem.is_integer() {
            return Ok(());
        }
        let whole = |value: f32| value.fract() == 0.0 && value.abs() < ROUNDED;
        match values.iter().position(|value| !whole(*value)) {
            None => Ok(()),
            Some(at) => Err(format!(
                "element {at} is {}, and integers below {ROUNDED} are exact",
                values[at]
            )),
        }
    }

    /// Parses a tensor in ONNX's own form (`TensorProto`, as in `.pb` files); returns it with its
    /// name.
    ///
    /// # Errors
    /// The bytes are not a tensor, are damaged, or have an unsupported element type.
    pub fn parse(bytes: &[u8]) -> Result<(String, Self)> {
        let tensor = TensorProto::decode(bytes)?;
        let (elem, shape, values) = read(&tensor)?;
        let exact = |value: &&f64| f64::from(**value as f32) == **value;
        if elem.is_integer()
            && let Some(value) = values.iter().find(|value| !exact(value))
        {
            let what = format!("the integer {value} is not exact as f32, which inputs have");
            return Err(Error::Tensor { name: tensor.name, what });
        }
        let values = values.into_iter().map(|value| value as f32).collect();
        Ok((tensor.name, Self { elem, shape, values }))
    }

    /// As a known value; `None` if the values do not fill the shape.
    pub(crate) fn known(&self) -> Option<Known> {
        let values = self.values.iter().map(|value| f64::from(*value)).collect();
        Known::new(self.elem, &self.shape, values)
    }
}

/// A tensor with values known on the host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    pub(crate) elem: Elem,
    /// Shared by all nodes that read it.
    pub(crate) values: Arc<ArrayD<f64>>,
}

impl Known {
    pub(crate) fn new(elem: Elem, shape: &[usize], values: Vec<f64>) -> Option<Self> {
        let values = ArrayD::from_shape_vec(IxDyn(shape), values).ok()?;
        Some(Self { elem, values: Arc::new(values) })
    }

    /// A scalar.
    pub(crate) fn of(elem: Elem, value: f64) -> Self {
        Self { elem, values: Arc::new(ArrayD::from_elem(IxDyn(&[]), value)) }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.values.shape()
    }

    /// The same values in another shape.
    pub(crate) fn reshaped(&self, shape: &[usize]) -> NodeResult<Self> {
        let flat: Vec<f64> = self.values.iter().copied().collect();
        Self::new(self.elem, shape, flat)
            .ok_or_else(|| invalid(format!("{:?} cannot be {shape:?}", self.shape())))
    }

    /// The values as integers, saturated.
    pub(crate) fn integers(&self) -> Vec<i64> {
        self.values.iter().map(|value| *value as i64).collect()
    }

    /// The value, if there is exactly one.
    pub(crate) fn scalar(&self) -> Option<f64> {
        (self.values.len() == 1).then(|| self.values.iter().copied().next()).flatten()
    }

    /// The value that all elements share, if they do.
    pub(crate) fn uniform(&self) -> Option<f64> {
        let mut all = self.values.iter();
        let first = *all.next()?;
        all.all(|value| value.to_bits() == first.to_bits()).then_some(first)
    }

    /// The values in row-major order.
    pub(crate) fn floats(&self) -> Vec<f32> {
        self.values.iter().map(|value| *value as f32).collect()
    }
}

/// Type, shape and values of a file's tensor.
pub(crate) fn read(tensor: &TensorProto) -> Result<(Elem, Vec<usize>, Vec<f64>)> {
    let wrong = |what: String| Error::Tensor { name: tensor.name.clone(), what };
    let elem = Elem::named(tensor.data_type).map_err(&wrong)?;
    if tensor.data_location != 0 {
        let file = tensor.external_data.iter().find(|entry| entry.key == "location");
        let file = file.map_or("another file", |entry| &entry.value);
        return Err(wrong(format!(
            "its values are in {file}, and only those of a model's initializers are read from there, of a model that is a file itself"
        )));
    }
    let shape = shape(&tensor.dims).map_err(&wrong)?;
    let count: usize = shape.iter().product();
    let values: Vec<f64> = if tensor.raw_data.is_empty() {
        match elem {
            Elem::F32 => tensor.float_data.iter().map(|v| f64::from(*v)).collect(),
            Elem::F64 => tensor.double_data.clone(),
            Elem::I64 => tensor.int64_data.iter().map(|v| *v as f64).collect(),
            Elem::U32 | Elem::U64 => tensor.uint64_data.iter().map(|v| *v as f64).collect(),
            Elem::F16 => {
                tensor.int32_data.iter().map(|v| f16::from_bits(*v as u16).to_f64()).collect()
            }
            Elem::BF16 => {
                tensor.int32_data.iter().map(|v| bf16::from_bits(*v as u16).to_f64()).collect()
            }
            Elem::U2 | Elem::I2 | Elem::U4 | Elem::I4 => {
                let bytes: Vec<u8> = tensor.int32_data.iter().map(|v| *v as u8).collect();
                narrow(elem, &bytes, count)
            }
            _ => tensor.int32_data.iter().map(|v| f64::from(*v)).collect(),
        }
    } else {
        if tensor.raw_data.len() != elem.bytes(count) {
            let have = tensor.raw_data.len();
            return Err(wrong(format!(
                "{have} bytes of {} do not fill shape {shape:?}",
                elem.name()
            )));
        }
        raw(elem, &tensor.raw_data, count)
    };
    if values.len() != count {
        return Err(wrong(format!("{} values do not fill shape {shape:?}", values.len())));
    }
    Ok((elem, shape, values))
}

/// Converts extents; an error names those that a device cannot have.
pub(crate) fn shape(dims: &[i64]) -> std::result::Result<Vec<usize>, String> {
    let extents = dims.iter().map(|&n| usize::try_from(n));
    let shape: Vec<usize> =
        extents.collect::<std::result::Result<_, _>>().map_err(|_| format!("shape {dims:?}"))?;
    let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
    match count {
        Some(count) if count < MOST => Ok(shape),
        _ => Err(format!("shape {dims:?} has {MOST} elements or more")),
    }
}

/// Elements of 2 or 4 bits, the lowest bits of a byte first.
fn narrow(elem: Elem, bytes: &[u8], count: usize) -> Vec<f64> {
    let bits = elem.bits();
    let signed = matches!(elem, Elem::I2 | Elem::I4);
    let of = |i: usize| {
        let byte = *bytes.get(i * bits / 8)? >> (i * bits % 8);
        let up = byte << (8 - bits);
        Some(if signed { f64::from(up as i8 >> (8 - bits)) } else { f64::from(up >> (8 - bits)) })
    };
    (0..count.min(bytes.len() * 8 / bits)).filter_map(of).collect()
}

/// Decodes little-endian values.
fn raw(elem: Elem, bytes: &[u8], count: usize) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|bytes| value(*bytes)).collect()
    }
    match elem {
        Elem::F32 => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
        Elem::F64 => each(bytes, f64::from_le_bytes),
        Elem::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f64()),
        Elem::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f64()),
        Elem::U8 => each(bytes, |[b]| f64::from(b)),
        Elem::Bool => each(bytes, |[b]| f64::from(b != 0)),
        Elem::I8 => each(bytes, |b| f64::from(i8::from_le_bytes(b))),
        Elem::U16 => each(bytes, |b| f64::from(u16::from_le_bytes(b))),
        Elem::I16 => each(bytes, |b| f64::from(i16::from_le_bytes(b))),
        Elem::U32 => each(bytes, |b| f64::from(u32::from_le_bytes(b))),
        Elem::I32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        Elem::U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
        Elem::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        Elem::U2 | Elem::I2 | Elem::U4 | Elem::I4 => narrow(elem, bytes, count),
    }
}
