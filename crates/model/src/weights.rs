//! The weights of a model: looked up in the file when the graph requests them, with checked shape and type.

use std::ops::Range;

use crate::adapter::Stack;
use crate::error::{Error, Result};
use crate::gguf::{Gguf, TensorInfo};
use plan::{Buffer, Class, DType};

/// Source of a weight's bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    /// Runs of `run` bytes of a tensor that begin `stride` bytes apart. A whole tensor, or adjacent rows of it, is
    /// one run.
    File { tensor: String, start: u64, run: u64, stride: u64 },
    /// Computed from metadata.
    Derived(Vec<u8>),
    /// Stacked from the files of adapters.
    Adapters(Stack),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weight {
    pub(crate) buffer: Buffer,
    pub(crate) origin: Origin,
}

/// Types that a weight may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightKind {
    Matrix,
    Vector,
}

impl WeightKind {
    const fn expected(self) -> &'static str {
        match self {
            Self::Matrix => "floating-point or quantised",
            Self::Vector => "F32",
        }
    }

    fn fits(self, dtype: DType) -> bool {
        match self {
            Self::Matrix => dtype != DType::I32,
            Self::Vector => dtype == DType::F32,
        }
    }
}

/// The weights requested so far, in the order of requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weights(Vec<Weight>);

impl Weights {
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Weight> {
        self.0.iter()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Weight> {
        self.0.iter().find(|weight| weight.buffer.name == name)
    }

    /// A tensor of the file.
    pub(crate) fn tensor(
        &mut self,
        gguf: &Gguf,
        name: &str,
        shape: &[usize],
        kind: WeightKind,
    ) -> Result<Buffer> {
        self.rows(gguf, name, name, shape, 0..shape[0], kind)
    }

    /// Rows of a tensor of this shape, as a weight with its own name.
    pub(crate) fn rows(
        &mut self,
        gguf: &Gguf,
        name: &str,
        tensor: &str,
        shape: &[usize],
        rows: Range<usize>,
        kind: WeightKind,
    ) -> Result<Buffer> {
        let selected = [&[rows.len()], &shape[1..]].concat();
        self.part(gguf, [name, tensor], [shape, &selected], kind, |bytes| {
            let (row, run) = (bytes / shape[0] as u64, rows.len() as u64);
            [row * rows.start as u64, row * run, row * run]
        })
    }

    /// A tensor of the file with another shape.
    pub(crate) fn reshaped(
        &mut self,
        gguf: &Gguf,
        name: &str,
        shapes: [&[usize]; 2],
        kind: WeightKind,
    ) -> Result<Buffer> {
        self.part(gguf, [name, name], shapes, kind, |bytes| [0, bytes, bytes])
    }

    /// Half of a tensor of shape `[groups, 2, rows, columns]`: the first half (0) or the second (1) of each group.
    pub(crate) fn halves(
        &mut self,
        gguf: &Gguf,
        names: [&str; 2],
        shapes: [&[usize]; 2],
        [groups, half]: [usize; 2],
    ) -> Result<Buffer> {
        self.part(gguf, names, shapes, WeightKind::Matrix, |bytes| {
            let stride = bytes / groups as u64;
            [stride / 2 * half as u64, stride / 2, stride]
        })
    }

    /// The weight `name`: runs of the bytes of `tensor`, as [`Origin::File`] defines them. The tensor must have the
    /// shape `found`.
    fn part(
        &mut self,
        gguf: &Gguf,
        [name, tensor]: [&str; 2],
        [found, shape]: [&[usize]; 2],
        kind: WeightKind,
        runs: impl FnOnce(u64) -> [u64; 3],
    ) -> Result<Buffer> {
        if let Some(weight) = self.get(name) {
            return Ok(weight.buffer.clone());
        }
        let info = gguf.tensor(tensor).ok_or_else(|| Error::missing_tensor(gguf, tensor))?;
        check(info, found, kind.expected(), |dtype| kind.fits(dtype))?;
        let [start, run, stride] = runs(info.bytes);
        let origin = || Origin::File { tensor: tensor.into(), start, run, stride };
        Ok(self.add(name, info.dtype, shape, origin))
    }

    /// A constant vector that is not in the file.
    pub(crate) fn derived(&mut self, name: &str, values: &[f32]) -> Buffer {
        let bytes = || values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.add(name, DType::F32, &[values.len()], || Origin::Derived(bytes()))
    }

    /// Stacked matrices of adapters.
    pub(crate) fn stacked(
        &mut self,
        name: &str,
        stack: Stack,
        dtype: DType,
        shape: [usize; 2],
    ) -> Buffer {
        self.add(name, dtype, &shape, || Origin::Adapters(stack))
    }

    /// The weight of this name, added if it is new.
    fn add(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        origin: impl FnOnce() -> Origin,
    ) -> Buffer {
        if let Some(weight) = self.get(name) {
            return weight.buffer.clone();
        }
        let buffer =
            Buffer { name: name.into(), class: Class::Weight, dtype, shape: shape.to_vec() };
        self.0.push(Weight { buffer: buffer.clone(), origin: origin() });
        buffer
    }

    /// Rejects a file with a tensor that is neither a weight nor `ignored`, because leaving it out may change the
    /// result.
    pub(crate) fn check_complete(
        &self,
        gguf: &Gguf,
        ignored: &[String],
        architecture: &'static str,
    ) -> Result<()> {
        let requested = |name: &str| {
            self.iter().any(|weight| match &weight.origin {
                Origin::File { tensor, .. } => tensor == name,
                Origin::Derived(_) | Origin::Adapters(_) => false,
            })
        };
        let known = |name: &String| ignored.contains(name) || requested(name);
        match gguf.tensors().iter().find(|tensor| !known(&tensor.name)) {
            None => Ok(()),
            Some(tensor) => Err(Error::UnknownTensor { name: tensor.name.clone(), architecture }),
        }
    }
}

fn without_outer_ones(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().take_while(|extent| **extent == 1).count();
    // A tensor has at least one dimension.
    &shape[ones.min(shape.len().saturating_sub(1))..]
}

pub(crate) fn check(
    tensor: &TensorInfo,
    shape: &[usize],
    expected: &'static str,
    fits: impl Fn(DType) -> bool,
) -> Result<()> {
    let (name, found) = (tensor.name.clone(), tensor.dtype);
    // Tools such as llama-quantize drop outer dimensions of one row.
    if without_outer_ones(&tensor.shape) != without_outer_ones(shape) {
        let (found, expected) = (tensor.shape.clone(), shape.to_vec());
        return Err(Error::TensorShape { name, found, expected });
    }
    if fits(found) { Ok(()) } else { Err(Error::TensorType { name, found, expected }) }
}
