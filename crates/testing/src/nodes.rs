//! ONNX's backend tests of nodes, as packed by `tests/data/onnx/make.py`.

use std::path::{Path, PathBuf};

use miniz_oxide::inflate::decompress_to_vec_zlib;

/// A model, its inputs and its expected outputs: `ModelProto` and `TensorProto`s.
pub struct Case {
    pub name: String,
    pub model: Vec<u8>,
    pub inputs: Vec<Vec<u8>>,
    pub outputs: Vec<Vec<u8>>,
}

/// All cases; those of the file `ORIND_ONNX_NODES` if set.
pub fn cases() -> Vec<Case> {
    let other = std::env::var_os("ORIND_ONNX_NODES").map(PathBuf::from);
    packed(&other.unwrap_or_else(|| crate::data("onnx/nodes.bin.z")))
}

/// Models as exporters and optimisers write them, with onnxruntime's answers
/// (`tests/data/onnx/kinds.py`).
pub fn kinds() -> Vec<Case> {
    packed(&crate::data("onnx/kinds.bin.z"))
}

/// The cases of a file.
fn packed(path: &Path) -> Vec<Case> {
    let data = decompress_to_vec_zlib(&std::fs::read(path).unwrap()).unwrap();
    let mut rest = &data[..];
    let chunks = std::iter::from_fn(|| {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (chunk, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        rest = after;
        Some(chunk.to_vec())
    });
    let mut chunks = chunks.collect::<Vec<_>>().into_iter();
    let mut cases = Vec::new();
    while let Some(name) = chunks.next() {
        let (model, counts) = (chunks.next().unwrap(), chunks.next().unwrap());
        let mut take = |count: u8| chunks.by_ref().take(count.into()).collect();
        let (inputs, outputs) = (take(counts[0]), take(counts[1]));
        cases.push(Case { name: String::from_utf8(name).unwrap(), model, inputs, outputs });
    }
    cases
}

/// True if a value matches within the tolerance of ONNX's own tests.
pub fn close(have: f32, want: f32) -> bool {
    have == want
        || (have.is_nan() && want.is_nan())
        || (have - want).abs() <= 1e-3 * want.abs() + 1e-5
}
