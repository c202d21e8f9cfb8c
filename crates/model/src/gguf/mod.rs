//! The GGUF file format: reading (v2 and v3, split files) and writing (v3).
//!
//! Owns the container: header, metadata, tensor directory, tensor bytes. What the bytes of a
//! tensor mean belongs to [`plan::quant`], what the metadata keys mean to `model` and
//! `tokenizer`.
//!
//! A file is untrusted input. Every count and offset is checked against the file before it is
//! used, and nothing is mapped into memory (`source.rs` says why): the header is read in bounded
//! chunks and tensor data with positional reads into the caller's memory, so a file that shrinks
//! while it is open gives an [`Error`], never a signal.
//!
//! Layout (ggml `docs/gguf.md`): magic, version, tensor count, metadata count, the metadata, the
//! tensor directory, padding to `general.alignment`, the tensor data.

mod error;
mod header;
mod metadata;
mod reader;
mod source;
mod strings;
mod types;
mod writer;

#[cfg(test)]
mod tests;

pub use error::{Defect, Error, SplitDefect, WriteDefect};
pub use metadata::{Array, Metadata, Value, ValueType};
pub use reader::{Gguf, TensorInfo};
pub use strings::Strings;
pub use writer::{DataWriter, TensorId, Writer};

/// The alignment of tensor data where `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// The metadata key that sets the alignment of tensor data.
pub const ALIGNMENT_KEY: &str = "general.alignment";

const MAGIC: [u8; 4] = *b"GGUF";

/// Longest header accepted, bytes. The largest vocabularies in use take about 20 MB.
const MAX_HEADER: u64 = 256 << 20;

/// Longest metadata key or tensor name accepted when reading, bytes (the format's limit for keys).
const MAX_NAME: u64 = 65_535;

/// Most dimensions of a tensor (ggml's `GGML_MAX_DIMS`).
const MAX_DIMS: u32 = 4;

/// Deepest nesting of arrays in arrays.
const MAX_DEPTH: u32 = 8;
