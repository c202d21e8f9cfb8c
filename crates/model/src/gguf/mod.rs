//! The GGUF file format: reading (v2 and v3, split files) and writing (v3).
//!
//! Owns the container: header, metadata, tensor directory, tensor bytes. [`plan::quant`] interprets the bytes of
//! tensors; `architecture` and `tokenizer` interpret metadata.
//!
//! A file is untrusted input. Every count and offset is checked against the file's size before it is used. Nothing
//! is mapped into memory (`source.rs` explains why). The header is read in bounded chunks, tensor data with
//! positional reads into the caller's memory, so a file that shrinks while it is open causes an [`Error`], never a
//! signal.
//!
//! Layout (ggml `docs/gguf.md`): magic, version, tensor count, metadata count, the metadata, the tensor directory,
//! padding to `general.alignment`, the tensor data.

mod error;
mod format;
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
pub use format::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
pub use metadata::{Array, Metadata, Value, ValueType};
pub use reader::{Gguf, TensorInfo};
pub use strings::Strings;
pub use writer::{DataWriter, TensorId, Writer};
