//! Errors of reading and writing GGUF files, with the offset and the field.

use std::io;
use std::path::PathBuf;

use plan::DType;

/// A failure to read, interpret or write a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open {}: {cause}", .path.display())]
    Open { path: PathBuf, cause: io::Error },
    #[error("{}: byte {offset}: {field}: cannot read: {cause}", .path.display())]
    Read { path: PathBuf, offset: u64, field: String, cause: io::Error },
    #[error("{}: byte {offset}: {field}: {defect}", .path.display())]
    Malformed {
        path: PathBuf,
        /// Offset of the field, or of the part of it that is wrong.
        offset: u64,
        /// The field: a header field, a metadata key, a tensor.
        field: String,
        defect: Defect,
    },
    #[error("{}: {defect}", .path.display())]
    Split { path: PathBuf, defect: SplitDefect },
    #[error("metadata key `{key}` is missing (expected {expected})")]
    MissingKey { key: String, expected: &'static str },
    /// The key has another type than the caller needs, or a value out of range.
    #[error("metadata key `{key}`: expected {expected}, found {found}")]
    KeyType {
        key: String,
        expected: &'static str,
        /// The type in the file; for integers with the value.
        found: String,
    },
    #[error("tensor `{tensor}`: bytes {at}..{at}+{len} requested, it has {bytes}")]
    OutsideTensor { tensor: String, at: u64, len: usize, bytes: u64 },
    #[error("cannot write {}: {cause}", .path.display())]
    Write { path: PathBuf, cause: io::Error },
    #[error("cannot write {}: {name}: {defect}", .path.display())]
    Content { path: PathBuf, name: String, defect: WriteDefect },
}

/// Defect of a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// Shows no byte of the file: a client may name one that only the daemon can read.
    #[error("this is not a GGUF file")]
    Magic,
    #[error("big-endian file; only little-endian files are supported")]
    BigEndian,
    #[error("version {found} is not supported (supported: 2, 3); convert the model again")]
    Version { found: u32 },
    #[error("{need} bytes needed, {have} left: the file is truncated or was changed while in use")]
    Ends {
        need: u64,
        /// Bytes from the start of the field to the end of the file.
        have: u64,
    },
    #[error("the header is longer than {limit} bytes")]
    HeaderTooLong { limit: u64 },
    #[error("{count} entries of at least {each} bytes cannot fit in the {have} bytes left")]
    Count { count: u64, each: u64, have: u64 },
    #[error("{len} bytes long, the limit is {limit}")]
    NameTooLong { len: u64, limit: u64 },
    #[error("not UTF-8 from its byte {valid} on")]
    Utf8 { valid: usize },
    #[error("unknown metadata type {found} (known: 0 to 12)")]
    ValueType { found: u32 },
    #[error("a boolean must be 0 or 1, found {found}")]
    Bool { found: u8 },
    #[error("arrays nested more than {limit} deep")]
    Depth { limit: u32 },
    #[error("appears twice")]
    Duplicate,
    #[error("the alignment must be a UINT32 power of two, found {found}")]
    Alignment { found: String },
    #[error("{found} dimensions, supported are 1 to {limit}")]
    Dims { found: u32, limit: u32 },
    #[error("dimension {index} is zero")]
    ZeroDim {
        /// Index of the dimension in the file's order: 0 is the row.
        index: u32,
    },
    /// The product of the dimensions, or the size in bytes, exceeds 64 bits.
    #[error("dimensions {dims:?} overflow")]
    Overflow { dims: Vec<u64> },
    #[error("type {name} is not supported (supported: {})", supported())]
    UnsupportedType { name: &'static str },
    #[error("unknown tensor type {found} (supported: {})", supported())]
    UnknownType { found: u32 },
    #[error("rows of {row} elements are not whole blocks of {block} elements")]
    Row { row: u64, block: usize },
    #[error("offset {found} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The offset within the data section.
        found: u64,
        alignment: u32,
    },
    #[error("data at {start} of {bytes} bytes ends after the file's {file} bytes")]
    OutOfRange {
        /// The offset within the data section.
        start: u64,
        bytes: u64,
        file: u64,
    },
    #[error("data overlaps that of `{other}`")]
    Overlap { other: String },
}

/// Defect of a shard of a split model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitDefect {
    #[error(
        "`split.count` is {count}, but the name is not of the form NAME-00001-of-{count:05}.gguf; give the shards their original names"
    )]
    Name { count: u64 },
    #[error("`split.no` is {found}, by the name it should be {expected}")]
    Number {
        found: u64,
        /// The number in the file name, counted from 0.
        expected: u64,
    },
    #[error("`split.count` is {found}, in the first shard it is {expected}")]
    ShardCount { found: u64, expected: u64 },
    #[error("the shards have {found} tensors, `split.tensors.count` says {expected}")]
    TensorCount { found: u64, expected: u64 },
    #[error("tensor `{tensor}` is also in an earlier shard")]
    Duplicate { tensor: String },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteDefect {
    #[error("added twice")]
    Duplicate,
    #[error("names must have 1 to {limit} bytes, this one has {len}")]
    Name { len: usize, limit: usize },
    #[error("expected {expected}, found {found}")]
    Value { expected: &'static str, found: &'static str },
    /// No dimension, too many, a zero, overflow, rows that are not whole blocks, or a type without a number in files.
    #[error("shape {shape:?} cannot be stored as {dtype}")]
    Shape { shape: Vec<usize>, dtype: DType },
    #[error("{written} bytes of {bytes} written")]
    Bytes { written: u64, bytes: u64 },
}

/// Names of the tensor types that are supported in files.
fn supported() -> String {
    let in_files = DType::ALL.into_iter().filter(|dtype| dtype.ggml().is_some());
    in_files.map(DType::name).collect::<Vec<_>>().join(", ")
}
