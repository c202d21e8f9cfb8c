//! Variants of models with unusual contents: weights that are not finite or overflow, or additional
//! metadata.

use std::ops::Range;
use std::path::Path;

use model::gguf::{Gguf, TensorInfo, Value, Writer};
use plan::DType;

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// Copies a model's file to `dir` with rows of a tensor starting with `odd` (a NaN, an infinity or
/// the greatest number): the first value, or the first scale of block types.
pub fn odd(from: &str, dir: &Path, tensor: &str, rows: Range<usize>, odd: f32) -> String {
    let half = match odd {
        odd if odd.is_nan() => 0x7e00_u16,
        f32::INFINITY => 0x7c00,
        _ => 0x7bff,
    };
    copy(from, &dir.join("odd.gguf"), &[], &|name, of, bytes| {
        if name != tensor {
            return;
        }
        let stride = bytes.len() / if of.shape.len() > 1 { of.shape[0] } else { 1 };
        for row in rows.clone() {
            let row = &mut bytes[row * stride..(row + 1) * stride];
            match of.dtype {
                DType::F32 => row[..4].copy_from_slice(&odd.to_le_bytes()),
                DType::F16 | DType::Q8_0 => row[..2].copy_from_slice(&half.to_le_bytes()),
                other => panic!("{tensor} is of {other:?}"),
            }
        }
    })
}

/// Copies a model's file to `dir`, with Q8_0 embeddings that overflow for `token` and for no other
/// token. The first norm multiplies the first element of an embedding by the greatest number, and
/// only this token's first element is not 0. A tied output becomes a tensor of its own.
pub fn overflowing(from: &str, dir: &Path, token: Option<u32>) -> String {
    let name = if token.is_some() { "odd.gguf" } else { "even.gguf" };
    copy(from, &dir.join(name), &[], &|name, of, bytes| match name {
        EMBEDDING => {
            assert_eq!(of.dtype, DType::Q8_0, "{name}");
            for (row, bytes) in (0..).zip(bytes.chunks_mut(of.bytes as usize / of.shape[0])) {
                // The first code, after the block's scale.
                bytes[2] = if token == Some(row) { 127 } else { 0 };
            }
        }
        "blk.0.attn_norm.weight" => bytes[..4].copy_from_slice(&f32::MAX.to_le_bytes()),
        _ => {}
    })
}

/// Copies a model's file to `dir`, in Q8_0, with layers that add nothing: each token predicts the
/// next token of the vocabulary. Its MTP layer only sees the token's embedding, so it predicts the
/// same.
pub fn of_pairs(from: &str, dir: &Path) -> String {
    copy(from, &dir.join("pairs.gguf"), &[], &|name, of, bytes| {
        let part = name.rsplit_once(".weight").map_or(name, |(part, _)| part);
        let norm = ["enorm", "shared_head_norm", "output_norm"].iter().any(|n| part.ends_with(n));
        let adds = ["attn_output", "ssm_out", "ffn_down"].iter().any(|n| part.ends_with(n));
        if norm {
            bytes.chunks_mut(4).for_each(|value| value.copy_from_slice(&1.0f32.to_le_bytes()));
        } else if adds || part.ends_with("eh_proj") {
            bytes.fill(0);
        }
        if name == OUTPUT {
            bytes.rotate_right(bytes.len() / of.shape[0]);
        }
        if part.ends_with("eh_proj") {
            assert_eq!(of.dtype, DType::Q8_0, "{name}");
            let stride = bytes.len() / of.shape[0];
            for (row, bytes) in bytes.chunks_mut(stride).enumerate() {
                // Scale 1/64 and value 64, in the row's own column.
                let block = &mut bytes[row / 32 * 34..][..34];
                block[..2].copy_from_slice(&0x2400_u16.to_le_bytes());
                block[2 + row % 32] = 64;
            }
        }
    })
}

/// Copies a model's file to `dir` with additional metadata.
pub fn saying(from: &str, dir: &Path, more: &[(&str, Value)]) -> String {
    copy(from, &dir.join("saying.gguf"), more, &|_, _, _| {})
}

/// Copies a model of `tests/data/architectures` to `dir` with a vocabulary of 128 tokens and a
/// context of 4096; the originals have no vocabulary and a short context.
pub fn speaking(architecture: &str, dir: &Path) -> String {
    let from = crate::data(&format!("architectures/{architecture}.gguf"));
    let tokens: Vec<String> = (0..128).map(|id| format!("t{id}")).collect();
    let context = format!("{architecture}.context_length");
    let more = [
        (&*context, Value::U32(4096)),
        ("tokenizer.ggml.model", "rwkv".into()),
        ("tokenizer.ggml.tokens", tokens.into()),
    ];
    copy(from.to_str().unwrap(), &dir.join(format!("{architecture}.gguf")), &more, &|_, _, _| {})
}

fn copy(
    from: &str,
    path: &Path,
    more: &[(&str, Value)],
    change: &dyn Fn(&str, &TensorInfo, &mut [u8]),
) -> String {
    let from = Gguf::open(from).unwrap();
    let mut to = Writer::new(path);
    let stays = |key: &str| more.iter().all(|(other, _)| *other != key);
    for (key, value) in from.metadata().iter().filter(|(key, _)| stays(key)) {
        to.metadata(key, value.clone()).unwrap();
    }
    for (key, value) in more {
        to.metadata(key, value.clone()).unwrap();
    }
    let output = from.tensor(EMBEDDING).filter(|_| from.tensor(OUTPUT).is_none());
    let output = output.map(|embedding| (OUTPUT, embedding));
    let tensors: Vec<_> =
        from.tensors().iter().map(|t| (t.name.as_str(), t)).chain(output).collect();
    let ids: Vec<_> =
        tensors.iter().map(|(name, t)| to.tensor(name, &t.shape, t.dtype).unwrap()).collect();
    let to = to.begin().unwrap();
    for ((name, of), id) in tensors.into_iter().zip(ids) {
        let mut bytes = vec![0; of.bytes as usize];
        from.read(of, 0, &mut bytes).unwrap();
        change(name, of, &mut bytes);
        to.write(id, 0, &bytes).unwrap();
    }
    to.finish().unwrap();
    path.to_str().unwrap().to_owned()
}
