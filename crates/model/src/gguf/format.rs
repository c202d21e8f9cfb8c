//! Constants of the format, and limits on what is accepted.

/// Alignment of tensor data in files without `general.alignment`.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// Metadata key of the alignment of tensor data.
pub const ALIGNMENT_KEY: &str = "general.alignment";

pub(super) const MAGIC: [u8; 4] = *b"GGUF";

/// Longest header accepted, bytes. The largest vocabularies in use take about 20 MB.
pub(super) const MAX_HEADER: u64 = 256 << 20;

/// Longest metadata key or tensor name accepted when reading, bytes (the format's limit for keys).
pub(super) const MAX_NAME: u64 = 65_535;

/// Most dimensions of a tensor (ggml's `GGML_MAX_DIMS`).
pub(super) const MAX_DIMS: u32 = 4;

/// Deepest nesting of arrays in arrays.
pub(super) const MAX_DEPTH: u32 = 8;
