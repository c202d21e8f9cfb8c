//! A model's file written anew in other types: metadata copied, tensors one piece at a time.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::gguf::{self, DataWriter, Gguf, TensorId, TensorInfo, Writer};
use crate::mix::{Mix, Sizes};
use crate::pieces::{self, Scratch};
use plan::DType;
use plan::quant;

#[cfg(test)]
mod tests;

/// ggml's `GGML_QNT_VERSION`: the layout of the blocks.
pub(crate) const QUANTIZATION_VERSION: u32 = 2;

const FILE_TYPE_KEY: &str = "general.file_type";
const QUANTIZATION_VERSION_KEY: &str = "general.quantization_version";

/// Why a model cannot be quantised.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    #[error(
        "tensor `{tensor}` is {from} already: to {to} it would have the error of both; quantise the model's F16, BF16 or F32 file"
    )]
    Quantised { tensor: String, from: DType, to: DType },
    #[error("tensor `{tensor}`, element {at}, is {value}: the file is damaged, or the model is")]
    NotFinite { tensor: String, at: u64, value: f32 },
    #[error("tensor `{tensor}`, element {at}, is {value}: {dtype} cannot represent it")]
    Range { tensor: String, at: u64, value: f32, dtype: DType },
    #[error("tensor `{tensor}`: {source}")]
    Quant { tensor: String, source: quant::Error },
    #[error("stopped")]
    Stopped,
}

/// A file, and the type that each of its tensors is to have.
#[derive(Debug)]
pub struct Conversion {
    gguf: Gguf,
    mix: Mix,
    dtypes: Vec<DType>,
}

impl Conversion {
    /// Decides the type of every tensor. With `again`, tensors that are quantised are quantised once more.
    ///
    /// # Errors
    /// [`Error::Quantised`] without `again`, [`Error::Gguf`] when the file does not say how many layers it has.
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

    /// The file that is read.
    #[must_use]
    pub const fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Every tensor as it is, and the type that it gets.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&TensorInfo, DType)> {
        self.gguf.tensors().iter().zip(self.dtypes.iter().copied())
    }

    /// Bytes of the whole file at `path`.
    ///
    /// # Errors
    /// [`Error::Gguf`] for a head that cannot be written.
    pub fn file_bytes(&self, path: &Path) -> Result<u64, Error> {
        Ok(self.head(path)?.0.file_bytes()?)
    }

    /// Writes the file at `path`, replacing what has that name when it is complete. Before that, and after a
    /// failure, nothing has changed. Memory is a few MiB for each thread; `progress` is told the bytes read.
    ///
    /// # Errors
    /// [`Error`]: all but [`Error::Quantised`]; [`Error::Stopped`] soon after `stop` was set.
    pub fn write(
        &self,
        path: &Path,
        threads: usize,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let (writer, ids) = self.head(path)?;
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
        pieces::run(&all, threads, work, progress)?;
        Ok(data.finish()?)
    }

    fn head(&self, path: &Path) -> Result<(Writer, Vec<TensorId>), Error> {
        let mut writer = Writer::new(path);
        let ours = [FILE_TYPE_KEY, QUANTIZATION_VERSION_KEY];
        for (key, value) in self.gguf.metadata().iter() {
            // The result is one file.
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

/// Some elements of a tensor.
struct Piece<'a> {
    tensor: &'a TensorInfo,
    to: DType,
    id: TensorId,
    first: usize,
    count: usize,
}

impl Piece<'_> {
    /// Reads, checks, quantises and writes it; the bytes read.
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

    /// Plain types take any number, and make infinity of one that is too large.
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
