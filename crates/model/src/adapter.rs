//! LoRA adapters: files with two small matrices for a matrix of the model, as llama.cpp's `convert_lora_to_gguf`
//! writes them. To the product of `x` with the model's matrix `NAME`, an adapter adds
//! `scale * alpha / rank * B (A x)`. A is its tensor `NAME.lora_a`, B is `NAME.lora_b`.
//!
//! All adapters of a model are computed as one: their matrices A are stacked by rows, their matrices B by columns.
//! Each row multiplies the inner product by its own scale of each adapter, so rows with different adapters share a
//! step. This file reads adapters and their stacks; `decoder/products.rs` computes with them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::error::{AdapterError, Error, MAX_ADAPTERS, Result};
use crate::gguf::{Gguf, TensorInfo};
use files::RegularFile;
use plan::{DType, quant};

/// Columns of stacked matrices B are a multiple of this, which the prefill kernels require.
const COLUMNS: usize = 32;

const SUFFIXES: [&str; 2] = [".lora_a", ".lora_b"];

/// An open adapter with checked metadata and pairs of tensors.
#[derive(Debug)]
pub struct Adapter {
    gguf: Gguf,
    /// 0 if the file has none.
    alpha: f32,
    /// The rank of each pair, by the name of the model's tensor.
    ranks: BTreeMap<String, usize>,
}

impl Adapter {
    /// Opens an adapter and checks everything that can be checked without its model.
    ///
    /// # Errors
    /// [`AdapterError`] names the key or the tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, AdapterError> {
        Self::from_gguf(Gguf::open(path)?)
    }

    pub fn from_gguf(gguf: Gguf) -> Result<Self, AdapterError> {
        for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            let found = gguf.metadata().str(key)?;
            if found != expected {
                return Err(AdapterError::Kind { key, found: found.to_owned(), expected });
            }
        }
        if gguf.metadata().get("adapter.alora.invocation_tokens").is_some() {
            return Err(AdapterError::Activated);
        }
        let alpha = gguf.metadata().f32_opt("adapter.lora.alpha")?.unwrap_or(0.0);
        if !alpha.is_finite() {
            return Err(AdapterError::Alpha { found: alpha });
        }
        let mut ranks = BTreeMap::new();
        for tensor in gguf.tensors() {
            let name = &tensor.name;
            let of = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
            let Some(of) = of else { return Err(AdapterError::Suffix { name: name.clone() }) };
            let [a, b] = SUFFIXES.map(|suffix| format!("{of}{suffix}"));
            let missing = if gguf.tensor(&a).is_none() { a } else { b.clone() };
            let Some(pair) = gguf.tensor(&missing).and_then(|_| gguf.tensor(&b)) else {
                return Err(AdapterError::Unpaired { name: name.clone(), missing });
            };
            if tensor.dtype == DType::I32 {
                return Err(AdapterError::Type { name: name.clone(), found: tensor.dtype });
            }
            // The rank is the columns of B; a tensor has at least one axis.
            ranks.insert(of.to_owned(), pair.shape.last().copied().unwrap_or(0));
        }
        if ranks.is_empty() {
            return Err(AdapterError::Empty);
        }
        Ok(Self { gguf, alpha, ranks })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        self.gguf.path()
    }

    /// Its file, as it was opened.
    pub fn files(&self) -> impl Iterator<Item = &RegularFile> {
        self.gguf.files()
    }

    fn reject(&self, defect: AdapterError) -> AdapterError {
        AdapterError::File { path: self.path().display().to_string(), defect: Box::new(defect) }
    }

    /// Factor on the adapter's product at a scale of 1: alpha / rank, or 1 without alpha; 0 if it has no such tensor.
    fn factor(&self, tensor: &str) -> f32 {
        match self.ranks.get(tensor) {
            Some(&rank) if self.alpha != 0.0 => self.alpha / rank as f32,
            Some(_) => 1.0,
            None => 0.0,
        }
    }

    fn tensor(&self, tensor: &str, side: Side) -> Option<&TensorInfo> {
        self.gguf.tensor(&format!("{tensor}{}", side.suffix()))
    }

    /// Rows of one of its matrices.
    fn rows(&self, tensor: &TensorInfo, rows: Range<usize>) -> Result<Vec<f32>> {
        let row = tensor.bytes / tensor.shape[0] as u64;
        let mut bytes = vec![0; row as usize * rows.len()];
        self.gguf.read(tensor, row * rows.start as u64, &mut bytes)?;
        let columns = tensor.shape[1];
        let mut values = vec![0.0; columns * rows.len()];
        let decoded = quant::dequantise(tensor.dtype, &bytes, &mut values);
        debug_assert!(decoded.is_ok(), "`from_gguf` rejects other types");
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => Err(Error::NotFinite {
                tensor: tensor.name.clone(),
                at: (rows.start * columns + at) as u64,
                value: values[at],
            }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    const fn suffix(self) -> &'static str {
        match self {
            Self::A => SUFFIXES[0],
            Self::B => SUFFIXES[1],
        }
    }
}

/// Rows of a matrix: runs of `run` rows that begin `stride` rows apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) start: usize,
    pub(crate) run: usize,
    pub(crate) stride: usize,
}

impl Selection {
    /// All rows of a matrix.
    pub(crate) const fn all(rows: usize) -> Self {
        Self { start: 0, run: rows, stride: rows }
    }

    const fn of(self, row: usize) -> usize {
        self.start + row / self.run * self.stride + row % self.run
    }
}

/// The stacked matrices A, or B, of all adapters for one matrix of the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stack {
    /// The model's tensor.
    pub(crate) tensor: String,
    pub(crate) side: Side,
    /// Rows of A, or columns of B, for each adapter; zeroes after its own rank.
    pub(crate) rank: usize,
    /// Rows of the model's matrix that the stack of matrices B covers.
    pub(crate) rows: Selection,
}

/// The adapters of a model, in the order of their numbers in requests.
#[derive(Debug, Default)]
pub(crate) struct Adapters(Vec<Adapter>);

impl Adapters {
    /// Checks that the adapters were made for this architecture.
    pub(crate) fn new(all: Vec<Adapter>, architecture: &'static str) -> Result<Self, AdapterError> {
        if all.len() > MAX_ADAPTERS {
            return Err(AdapterError::TooMany { found: all.len() });
        }
        for adapter in &all {
            let found = adapter.gguf.metadata().str("general.architecture");
            let found = found.map_err(|error| adapter.reject(error.into()))?.to_owned();
            if found != architecture {
                let expected = architecture;
                return Err(adapter.reject(AdapterError::Architecture { found, expected }));
            }
        }
        Ok(Self(all))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Adapter> {
        self.0.iter()
    }

    /// Factor of each adapter at a scale of 1 for a tensor of the model; 0 if it does not adapt that tensor.
    pub(crate) fn factors(&self, tensor: &str) -> Vec<f32> {
        self.iter().map(|adapter| adapter.factor(tensor)).collect()
    }

    /// Rank and type of the stacks for a matrix of the model; `None` if no adapter adapts it.
    ///
    /// # Errors
    /// [`AdapterError::Shape`] if a pair does not fit the matrix.
    pub(crate) fn stacked(
        &self,
        tensor: &str,
        [rows, columns]: [usize; 2],
    ) -> Result<Option<(usize, DType)>, AdapterError> {
        let (mut most, mut half) = (0, true);
        for (adapter, rank) in self.iter().filter_map(|a| Some((a, *a.ranks.get(tensor)?))) {
            most = most.max(rank);
            for (side, expected) in [(Side::A, [rank, columns]), (Side::B, [rows, rank])] {
                let Some(found) = adapter.tensor(tensor, side) else { continue };
                half &= found.dtype == DType::F16;
                if found.shape != expected {
                    let (name, found) = (found.name.clone(), found.shape.clone());
                    let (expected, target) = (expected.to_vec(), tensor.to_owned());
                    let defect = AdapterError::Shape { name, found, expected, target };
                    return Err(adapter.reject(defect));
                }
            }
        }
        let whole = |rank: &usize| (rank * self.len()).is_multiple_of(COLUMNS);
        let rank = (most..).find(whole).filter(|_| most > 0);
        Ok(rank.map(|rank| (rank, if half { DType::F16 } else { DType::F32 })))
    }

    /// Rejects adapters of tensors that are not `known` to the model, because nothing would apply them.
    pub(crate) fn check_used(
        &self,
        model: &Gguf,
        known: impl Fn(&str) -> bool,
    ) -> Result<(), AdapterError> {
        for adapter in self.iter() {
            let Some(tensor) = adapter.ranks.keys().find(|tensor| !known(tensor)) else { continue };
            let name = format!("{tensor}{}", Side::A.suffix());
            let unsupported = |of| AdapterError::Unsupported { name: name.clone(), of };
            return Err(adapter.reject(match model.tensor(tensor) {
                None => AdapterError::UnknownTensor { name, wanted: tensor.clone() },
                Some(_) if tensor == "token_embd.weight" => unsupported("embeddings"),
                Some(found) if found.shape.len() == 3 => unsupported("experts"),
                Some(_) => unsupported("tensors that are not matrices"),
            }));
        }
        Ok(())
    }

    /// Fills `buf` from byte `offset` of a stack of `dtype` (F16 or F32) with `columns` columns.
    pub(crate) fn read(
        &self,
        stack: &Stack,
        dtype: DType,
        columns: usize,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let size = dtype.block_bytes();
        let row = (columns * size) as u64;
        let end = offset + buf.len() as u64;
        let rows = (offset / row) as usize..end.div_ceil(row) as usize;
        let mut values = vec![0.0; columns * rows.len()];
        for (number, adapter) in self.iter().enumerate() {
            let Some(tensor) = adapter.tensor(&stack.tensor, stack.side) else { continue };
            let first = number * stack.rank;
            match stack.side {
                Side::A => {
                    let own = first..first + tensor.shape[0];
                    let some = rows.start.max(own.start)..rows.end.min(own.end);
                    if !some.is_empty() {
                        let read = adapter.rows(tensor, some.start - first..some.end - first)?;
                        let at = columns * (some.start - rows.start);
                        values[at..at + read.len()].copy_from_slice(&read);
                    }
                }
                Side::B => {
                    let rank = tensor.shape[1];
                    let begin = stack.rows.of(rows.start);
                    let read = adapter.rows(tensor, begin..stack.rows.of(rows.end - 1) + 1)?;
                    for (to, row) in values.chunks_exact_mut(columns).zip(rows.clone()) {
                        let from = &read[(stack.rows.of(row) - begin) * rank..][..rank];
                        to[first..first + rank].copy_from_slice(from);
                    }
                }
            }
        }
        let mut bytes = vec![0; size * values.len()];
        let stored = quant::quantise(dtype, &values, &mut bytes);
        debug_assert!(stored.is_ok(), "F16 and F32 take any number");
        let skipped = (offset - rows.start as u64 * row) as usize;
        buf.copy_from_slice(&bytes[skipped..][..buf.len()]);
        Ok(())
    }
}
