//! Quantises a GGUF file: copies its metadata, converts its tensors piece by piece.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::gguf::{self, DataWriter, Gguf, TensorId, TensorInfo, Writer};
use crate::mix::{Mix, Sizes};
use crate::pieces::{self, Scratch};
use plan::DType;
use plan::quant;

#[cfg(test)]
mod tests;

/// ggml's `GGML_QNT_VERSION`, the version of the block layouts.
pub(crate) const QUANTIZATION_VERSION: u32 = 2;

const FILE_TYPE_KEY: &str = "general.file_type";
const QUANTIZATION_VERSION_KEY: &str = "general.quantization_version";

/// Reason why a model cannot be quantised.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    #[error(
        "tensor `{tensor}` is already {from}: {to} would add its error to that of {from}; quantise the model's F16, BF16 or F32 file"
    )]
    Quantised { tensor: String, from: DType, to: DType },
    #[error("tensor `{tensor}`, element {at}, is {value}: the file or the model is damaged")]
    NotFinite { tensor: String, at: u64, value: f32 },
    #[error("tensor `{tensor}`, element {at}, is {value}: {dtype} cannot represent it")]
    Range { tensor: String, at: u64, value: f32, dtype: DType },
    #[error("tensor `{tensor}`: {source}")]
    Quant { tensor: String, source: quant::Error },
    #[error("stopped")]
    Stopped,
}

/// A file to convert, and the new type of each tensor.
#[derive(Debug)]
pub struct Conversion {
    gguf: Gguf,
    mix: Mix,
    dtypes: Vec<DType>,
}

impl Conversion {
    /// Selects the type of every tensor. With `again`, quantised tensors may be quantised again.
    ///
    /// # Errors
    /// [`Error::Quantised`] for a quantised tensor without `again`; [`Error::Gguf`] if the number of layers is
    /// missing.
    pub fn new(gguf: Gguf, mix: Mix, again: bool) -> Result<Self, Error> {
        let metadata = gguf.metadata();
        let architecture = metadata.str("general.architecture")?;
        let layers = metadata.u32(&format!("{architecture}.block_count"))? as usize;
        let heads = |key: &str| metadata.u32(&format!("{architecture}.attention.{key}")).ok();
        let grouping = heads("head_count")
            .zip(heads("head_count_kv"))
            .and_then(|(all, shared)| all.checked_div(shared))
            .unwrap_or(1) as usize;
        let sizes = Sizes { layers, grouping, tied: gguf.tensor("output.weight").is_none() };
        let mut dtypes = Vec::with_capacity(gguf.tensors().len());
        for tensor in gguf.tensors() {
            let from = tensor.dtype;
            let wanted = mix.dtype(&tensor.name, &tensor.shape, sizes);
            let to = wanted.filter(|_| !from.is_integer()).unwrap_or(from);
            if from.is_quantised() && from != to && !again {
                return Err(Error::Quantised { tensor: tensor.name.clone(), from, to });
            }
            dtypes.push(to);
        }
        Ok(Self { gguf, mix, dtypes })
    }

    /// The source file.
    #[must_use]
    pub const fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Every source tensor with its new type.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&TensorInfo, DType)> {
        self.gguf.tensors().iter().zip(self.dtypes.iter().copied())
    }

    /// Size of the new file.
    ///
    /// # Errors
    /// [`Error::Gguf`] for a header that cannot be written.
    pub fn file_bytes(&self, path: &Path) -> Result<u64, Error> {
        Ok(self.header(path)?.0.file_bytes()?)
    }

    /// Writes the new file. It replaces the file at `path` when it is complete; after an error nothing has changed.
    /// Uses a few MiB of memory per thread. `progress` receives the number of bytes read.
    ///
    /// # Errors
    /// Any [`Error`] but [`Error::Quantised`]. [`Error::Stopped`] soon after `stop` is set.
    pub fn write(
        &self,
        path: &Path,
        threads: usize,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let (writer, ids) = self.header(path)?;
        let data = writer.begin()?;
        let mut all = Vec::new();
        for ((tensor, to), id) in self.tensors().zip(ids) {
            let elements = usize::try_from(tensor.elements()).unwrap_or(usize::MAX);
            all.extend(pieces::of(elements).map(|(first, count)| Piece {
                tensor,
                to,
                id,
                first,
                count,
            }));
        }
        let work = |piece: &Piece<'_>, scratch: &mut Scratch| {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            piece.convert(&self.gguf, &data, scratch)
        };
        let mut report = |done| {
            progress(done);
            Ok(())
        };
        pieces::run(&all, threads, work, &mut report)?;
        Ok(data.finish()?)
    }

    fn header(&self, path: &Path) -> Result<(Writer, Vec<TensorId>), Error> {
        let mut writer = Writer::new(path);
        let ours = [FILE_TYPE_KEY, QUANTIZATION_VERSION_KEY];
        for (key, value) in self.gguf.metadata().iter() {
            // The new file is not split.
            if !ours.contains(&key) && !key.starts_with("split.") {
                writer.metadata(key, value.clone())?;
            }
        }
        writer.metadata(FILE_TYPE_KEY, self.mix.file_type())?;
        writer.metadata(QUANTIZATION_VERSION_KEY, QUANTIZATION_VERSION)?;
        let declare = |(tensor, to): (&TensorInfo, DType)| {
            Ok(writer.tensor(&tensor.name, &tensor.shape, to)?)
        };
        let ids = self.tensors().map(declare).collect::<Result<_, Error>>()?;
        Ok((writer, ids))
    }
}

/// Part of a tensor.
struct Piece<'a> {
    tensor: &'a TensorInfo,
    to: DType,
    id: TensorId,
    first: usize,
    count: usize,
}

impl Piece<'_> {
    /// Reads, checks, quantises and writes the piece. Returns the number of bytes read.
    fn convert(&self, gguf: &Gguf, data: &DataWriter, scratch: &mut Scratch) -> Result<u64, Error> {
        let Self { tensor, to, id, first, count } = *self;
        let Scratch { values, bytes } = scratch;
        let size = |dtype: DType, n: usize| n / dtype.block_len() * dtype.block_bytes();
        let from = tensor.dtype;
        let read = size(from, count);
        bytes.resize(read, 0);
        gguf.read(tensor, size(from, first) as u64, bytes)?;
        if !from.is_integer() {
            values.resize(count, 0.0);
            quant::dequantise(from, bytes, values).map_err(|e| self.failed(e))?;
            if let Some((at, value)) = quant::not_finite(from, bytes) {
                let tensor = tensor.name.clone();
                return Err(Error::NotFinite { tensor, at: (first + at) as u64, value });
            }
        }
        if from != to {
            bytes.resize(size(to, count), 0);
            quant::quantise(to, values, bytes).map_err(|e| self.failed(e))?;
            self.check(values, bytes)?;
        }
        data.write(id, size(to, first) as u64, bytes)?;
        Ok(read as u64)
    }

    /// Floating-point types store a number that is too large as infinity.
    fn check(&self, values: &[f32], stored: &[u8]) -> Result<(), Error> {
        match quant::not_finite(self.to, stored) {
            None => Ok(()),
            Some((at, _)) => Err(self.out_of_range(at, values[at])),
        }
    }

    fn out_of_range(&self, at: usize, value: f32) -> Error {
        let (tensor, dtype) = (self.tensor.name.clone(), self.to);
        Error::Range { tensor, at: (self.first + at) as u64, value, dtype }
    }

    fn failed(&self, error: quant::Error) -> Error {
        match error {
            quant::Error::Range { at, value, .. } => self.out_of_range(at, value),
            source => Error::Quant { tensor: self.tensor.name.clone(), source },
        }
    }
}
