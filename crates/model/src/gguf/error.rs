//! What can be wrong with a file, and where.

use std::io;
use std::path::PathBuf;

use super::ValueType;

/// A failure to read, interpret or write a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened or its length not be had.
    #[error("cannot open {}: {cause}", .path.display())]
    Open { path: PathBuf, cause: io::Error },
    /// Reading failed.
    #[error("{}: byte {offset}: {field}: cannot read: {cause}", .path.display())]
    Read { path: PathBuf, offset: u64, field: String, cause: io::Error },
    /// The file does not hold what the format asks for.
    #[error("{}: byte {offset}: {field}: {defect}", .path.display())]
    Malformed {
        path: PathBuf,
        /// Where the field, or the part of it that is wrong, begins.
        offset: u64,
        /// The field: a header field, a metadata key, a tensor.
        field: String,
        /// What is wrong with it.
        defect: Defect,
    },
    /// The shards of a split model do not fit together.
    #[error("{}: {defect}", .path.display())]
    Split {
        path: PathBuf,
        /// What is wrong with it.
        defect: SplitDefect,
    },
    /// A metadata key that the caller needs is absent.
    #[error("metadata key `{key}` is missing (expected {expected})")]
    MissingKey {
        key: String,
        /// The type that the caller needs.
        expected: &'static str,
    },
    /// A metadata key has another type, or a value outside the range, of what the caller needs.
    #[error("metadata key `{key}`: expected {expected}, found {found}")]
    KeyType {
        key: String,
        /// The type that the caller needs.
        expected: &'static str,
        /// The type in the file; for integers with the value.
        found: String,
    },
    /// A read outside a tensor's bytes.
    #[error("tensor `{tensor}`: bytes {at}..{at}+{len} asked for, it has {bytes}")]
    OutsideTensor {
        tensor: String,
        /// First byte asked for.
        at: u64,
        /// Number of bytes asked for.
        len: usize,
        /// Bytes of the tensor.
        bytes: u64,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {cause}", .path.display())]
    Write { path: PathBuf, cause: io::Error },
    /// What the caller asked to be written is not a valid file.
    #[error("cannot write {}: {name}: {defect}", .path.display())]
    Content {
        path: PathBuf,
        /// The metadata key or tensor.
        name: String,
        /// What is wrong with it.
        defect: WriteDefect,
    },
}

/// What is wrong with a field of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// Not a GGUF file.
    #[error("magic is {found:02x?}, not `GGUF`: this is not a GGUF file")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A file for big-endian machines.
    #[error("big-endian file; only little-endian files are supported")]
    BigEndian,
    /// A version other than 2 and 3.
    #[error("version {found} is not supported (supported: 2, 3); convert the model again")]
    Version { found: u32 },
    /// The file ends too early.
    #[error("{need} bytes needed, {have} left: the file is truncated or was changed while in use")]
    Ends {
        /// Bytes that the field needs.
        need: u64,
        /// Bytes between the field's beginning and the file's end.
        have: u64,
    },
    /// The header goes on for longer than any real one.
    #[error("the header is longer than {limit} bytes")]
    HeaderTooLong { limit: u64 },
    /// A count that the file cannot hold.
    #[error("{count} entries of at least {each} bytes cannot fit in the {have} bytes left")]
    Count {
        /// The count in the file.
        count: u64,
        /// The least size of an entry.
        each: u64,
        /// Bytes left for them.
        have: u64,
    },
    /// A key or name that is longer than the format allows.
    #[error("{len} bytes long, the limit is {limit}")]
    NameTooLong { len: u64, limit: u64 },
    /// A string that is not UTF-8.
    #[error("not UTF-8 from its byte {valid} on")]
    Utf8 {
        /// Bytes that are valid.
        valid: usize,
    },
    /// A metadata type that does not exist.
    #[error("unknown metadata type {found} (known: 0 to 12)")]
    ValueType { found: u32 },
    /// A boolean that is neither 0 nor 1.
    #[error("a boolean must be 0 or 1, found {found}")]
    Bool {
        /// The byte.
        found: u8,
    },
    /// Arrays in arrays in arrays.
    #[error("arrays nested more than {limit} deep")]
    Depth { limit: u32 },
    /// A key or a tensor name that was there before.
    #[error("appears twice")]
    Duplicate,
    /// `general.alignment` is not a `u32` power of two.
    #[error("the alignment must be a UINT32 power of two, found {found}")]
    Alignment {
        /// The value or type in the file.
        found: String,
    },
    /// No dimension, or too many.
    #[error("{found} dimensions, supported are 1 to {limit}")]
    Dims { found: u32, limit: u32 },
    #[error("dimension {index} is zero")]
    ZeroDim {
        /// Which dimension, counted as in the file: 0 is the row.
        index: u32,
    },
    /// The dimensions' product, or the size in bytes, is beyond 64 bits.
    #[error("dimensions {dims:?} overflow")]
    Overflow {
        /// The dimensions as in the file.
        dims: Vec<u64>,
    },
    /// A tensor type that is known but not supported.
    #[error("type {name} is not supported (supported: {})", super::types::supported())]
    UnsupportedType { name: &'static str },
    /// A tensor type that does not exist.
    #[error("unknown tensor type {found} (supported: {})", super::types::supported())]
    UnknownType { found: u32 },
    /// A row that is not made of whole blocks.
    #[error("rows of {row} elements are not whole blocks of {block} elements")]
    Row { row: u64, block: usize },
    /// A tensor's offset is not a multiple of the alignment.
    #[error("offset {found} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The offset within the data section.
        found: u64,
        alignment: u32,
    },
    /// A tensor's data does not lie within the file.
    #[error("data at {start} of {bytes} bytes ends after the file's {file} bytes")]
    OutOfRange {
        /// The offset within the data section.
        start: u64,
        /// Bytes of the tensor.
        bytes: u64,
        /// Bytes of the file.
        file: u64,
    },
    /// Two tensors share bytes.
    #[error("data overlaps that of `{other}`")]
    Overlap { other: String },
}

/// What is wrong with a shard of a split model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitDefect {
    /// The name does not follow the pattern by which the other shards are found.
    #[error(
        "`split.count` is {count}, but the name is not of the form NAME-00001-of-{count:05}.gguf; give the shards their original names"
    )]
    Name {
        /// Number of shards by the metadata.
        count: u64,
    },
    /// A shard's number differs from the one in its name.
    #[error("`split.no` is {found}, by the name it should be {expected}")]
    Number {
        /// The number in the metadata.
        found: u64,
        /// The number by the name, counted from 0.
        expected: u64,
    },
    /// The shards disagree about how many there are.
    #[error("`split.count` is {found}, in the first shard it is {expected}")]
    ShardCount {
        /// The count in this shard.
        found: u64,
        /// The count in the first shard.
        expected: u64,
    },
    /// The shards together do not have the promised tensors.
    #[error("the shards have {found} tensors, `split.tensors.count` says {expected}")]
    TensorCount {
        found: u64,
        /// Tensors by the first shard's metadata.
        expected: u64,
    },
    /// A tensor is in two shards.
    #[error("tensor `{tensor}` is also in an earlier shard")]
    Duplicate { tensor: String },
}

/// Why something cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteDefect {
    /// A key or a tensor of this name was added before.
    #[error("added twice")]
    Duplicate,
    /// The name is empty or too long.
    #[error("names must have 1 to {limit} bytes, this one has {len}")]
    Name { len: usize, limit: usize },
    /// The value cannot be written.
    #[error("expected {expected}, found {found}")]
    Value {
        /// What the key must have.
        expected: &'static str,
        /// The type that was given.
        found: ValueType,
    },
    /// The shape has no dimension, too many, a zero, overflows, or its rows are not whole blocks.
    #[error("shape {shape:?} cannot be stored as {dtype}")]
    Shape { shape: Vec<usize>, dtype: plan::DType },
    /// Not all, or more than all, of the tensor's bytes were written.
    #[error("{written} bytes of {bytes} written")]
    Bytes {
        /// Bytes written.
        written: u64,
        /// Bytes of the tensor.
        bytes: u64,
    },
}
