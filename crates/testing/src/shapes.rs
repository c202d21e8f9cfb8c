//! Models of real shapes without their bytes.

use std::path::{Path, PathBuf};

use model::Model;
use model::gguf::Writer;
use plan::DType;

/// Llama-3.2-1B in Q6_K.
pub const LLAMA_3_2_1B: Sizes = Sizes {
    architecture: "llama",
    dtype: DType::Q6_K,
    layers: 16,
    width: 2048,
    feed_forward: 8192,
    heads: 32,
    kv_heads: 8,
    head_size: 64,
    vocabulary: 128_256,
};

/// A file with the shapes of a real model and room for its data, which stays a hole.
pub struct Shapes {
    _dir: tempfile::TempDir,
    pub model: Model,
}

/// What a model's file says of its shapes.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// `llama` or `qwen3`.
    pub architecture: &'static str,
    /// Of every matrix; vectors are `F32`.
    pub dtype: DType,
    pub layers: usize,
    pub width: usize,
    /// Rows of gate and up.
    pub feed_forward: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub vocabulary: usize,
}

impl Shapes {
    pub fn new(sizes: &Sizes) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path().join("shapes.gguf"));
        writer.metadata("general.architecture", sizes.architecture).unwrap();
        for (key, value) in [
            ("block_count", sizes.layers),
            ("embedding_length", sizes.width),
            ("feed_forward_length", sizes.feed_forward),
            ("attention.head_count", sizes.heads),
            ("attention.head_count_kv", sizes.kv_heads),
            ("attention.key_length", sizes.head_size),
            ("attention.value_length", sizes.head_size),
            ("context_length", 32_768),
        ] {
            writer.metadata(&format!("{}.{key}", sizes.architecture), value as u32).unwrap();
        }
        let eps = format!("{}.attention.layer_norm_rms_epsilon", sizes.architecture);
        writer.metadata(&eps, 1e-6f32).unwrap();
        let (q, kv) = (sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size);
        let mut tensor = |name: &str, shape: &[usize]| {
            let dtype = if shape.len() == 1 { DType::F32 } else { sizes.dtype };
            writer.tensor(&format!("{name}.weight"), shape, dtype).unwrap();
        };
        tensor("token_embd", &[sizes.vocabulary, sizes.width]);
        tensor("output_norm", &[sizes.width]);
        for i in 0..sizes.layers {
            let mut part = |name: &str, shape: &[usize]| tensor(&format!("blk.{i}.{name}"), shape);
            part("attn_norm", &[sizes.width]);
            part("attn_q", &[q, sizes.width]);
            part("attn_k", &[kv, sizes.width]);
            part("attn_v", &[kv, sizes.width]);
            if sizes.architecture == "qwen3" {
                part("attn_q_norm", &[sizes.head_size]);
                part("attn_k_norm", &[sizes.head_size]);
            }
            part("attn_output", &[sizes.width, q]);
            part("ffn_norm", &[sizes.width]);
            part("ffn_gate", &[sizes.feed_forward, sizes.width]);
            part("ffn_up", &[sizes.feed_forward, sizes.width]);
            part("ffn_down", &[sizes.width, sizes.feed_forward]);
        }
        // The header and a hole of the data's size are there before any data is written.
        let unfinished = writer.begin().unwrap();
        let model = Model::open(only_file(dir.path())).unwrap();
        drop(unfinished);
        Self { _dir: dir, model }
    }
}

fn only_file(dir: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(dir).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    file
}
