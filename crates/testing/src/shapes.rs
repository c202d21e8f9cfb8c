//! Models with real shapes and sparse data.

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

/// A file with the shapes of a real model; its data is a hole.
pub struct Shapes {
    _dir: tempfile::TempDir,
    pub model: Model,
}

/// Sizes of a model.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// `llama` or `qwen3`.
    pub architecture: &'static str,
    /// Type of every matrix; vectors are `F32`.
    pub dtype: DType,
    pub layers: usize,
    pub width: usize,
    /// Rows of the gate and up matrices.
    pub feed_forward: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub vocabulary: usize,
}

impl Shapes {
    pub fn new(sizes: &Sizes) -> Self {
        let numbers = [
            ("block_count", sizes.layers),
            ("embedding_length", sizes.width),
            ("feed_forward_length", sizes.feed_forward),
            ("attention.head_count", sizes.heads),
            ("attention.head_count_kv", sizes.kv_heads),
            ("attention.key_length", sizes.head_size),
            ("attention.value_length", sizes.head_size),
        ];
        let (q, kv) = (sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size);
        let mut tensors = Vec::new();
        let mut tensor = |name: String, shape: &[usize]| {
            let dtype = if shape.len() == 1 { DType::F32 } else { sizes.dtype };
            tensors.push((name, shape.to_vec(), dtype));
        };
        tensor("token_embd".into(), &[sizes.vocabulary, sizes.width]);
        tensor("output_norm".into(), &[sizes.width]);
        for i in 0..sizes.layers {
            let mut part = |name: &str, shape: &[usize]| tensor(format!("blk.{i}.{name}"), shape);
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
        Self::of(sizes.architecture, &numbers, &tensors)
    }

    /// One layer of Qwen3 30B A3B in Q4_K, with `experts` of its 128 experts and a vocabulary of
    /// `vocabulary`.
    pub fn layer_of_a_mixture(experts: usize, vocabulary: usize) -> Self {
        let (width, hidden, q, kv, head) = (2048, 768, 4096, 512, 128);
        let numbers = [
            ("block_count", 1),
            ("embedding_length", width),
            ("feed_forward_length", 6144),
            ("attention.head_count", q / head),
            ("attention.head_count_kv", kv / head),
            ("attention.key_length", head),
            ("attention.value_length", head),
            ("expert_count", experts),
            ("expert_used_count", 8),
            ("expert_feed_forward_length", hidden),
        ];
        let mut tensors = around(width, vocabulary);
        let mut part = |name: &str, shape: &[usize], dtype| {
            tensors.push((format!("blk.0.{name}"), shape.to_vec(), dtype));
        };
        for (name, n) in [("attn_norm", width), ("attn_q_norm", head), ("attn_k_norm", head)] {
            part(name, &[n], DType::F32);
        }
        for (name, n) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
            part(name, &[n, width], DType::Q4_K);
        }
        part("attn_output", &[width, q], DType::Q4_K);
        part("ffn_norm", &[width], DType::F32);
        parts_of_experts([experts, width, hidden], part);
        Self::of("qwen3moe", &numbers, &tensors)
    }

    /// The first layer of Qwen3.5 35B A3B in Q4_K, with gated DeltaNet and MoE, and `experts` of
    /// its 256 experts.
    pub fn layer_of_a_hybrid(experts: usize, vocabulary: usize) -> Self {
        let (width, hidden, keys, values, size) = (2048, 512, 16, 32, 128);
        let numbers = [
            ("block_count", 1),
            ("embedding_length", width),
            ("feed_forward_length", hidden),
            ("attention.head_count", 16),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 256),
            ("attention.value_length", 256),
            ("rope.dimension_count", 64),
            ("expert_count", experts),
            ("expert_used_count", 8),
            ("expert_feed_forward_length", hidden),
            ("expert_shared_feed_forward_length", hidden),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", size),
            ("ssm.group_count", keys),
            ("ssm.time_step_rank", values),
            ("ssm.inner_size", values * size),
        ];
        let mut tensors = around(width, vocabulary);
        let mut part = |name: &str, shape: &[usize], dtype| {
            tensors.push((format!("blk.0.{name}"), shape.to_vec(), dtype));
        };
        let (inner, mixed) = (values * size, (2 * keys + values) * size);
        for (name, n) in [("attn_norm", width), ("post_attention_norm", width), ("ssm_norm", size)]
        {
            part(name, &[n], DType::F32);
        }
        for (name, n) in [
            ("attn_qkv", mixed),
            ("attn_gate", inner),
            ("ssm_alpha", values),
            ("ssm_beta", values),
            ("ffn_gate_shexp", hidden),
            ("ffn_up_shexp", hidden),
        ] {
            part(name, &[n, width], DType::Q4_K);
        }
        part("ssm_out", &[width, inner], DType::Q4_K);
        part("ffn_down_shexp", &[width, hidden], DType::Q4_K);
        part("ssm_conv1d", &[mixed, 4], DType::F32);
        part("ffn_gate_inp_shexp", &[width], DType::F16);
        parts_of_experts([experts, width, hidden], &mut part);
        for (name, n) in [("ssm_a", values), ("ssm_dt.bias", values)] {
            tensors.push((format!("blk.0.{name}"), vec![n], DType::F32));
        }
        Self::of("qwen35moe", &numbers, &tensors)
    }

    /// A file with these metadata numbers and tensors; most names end in `.weight`.
    fn of(architecture: &str, numbers: &[(&str, usize)], tensors: &[Described]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path().join("shapes.gguf"));
        writer.metadata("general.architecture", architecture).unwrap();
        for (key, value) in numbers.iter().copied().chain([("context_length", 32_768)]) {
            writer.metadata(&format!("{architecture}.{key}"), value as u32).unwrap();
        }
        let eps = format!("{architecture}.attention.layer_norm_rms_epsilon");
        writer.metadata(&eps, 1e-6f32).unwrap();
        for (name, shape, dtype) in tensors {
            let whole = name.ends_with(".bias") || name.ends_with("ssm_a");
            let name = if whole { name.clone() } else { format!("{name}.weight") };
            writer.tensor(&name, shape, *dtype).unwrap();
        }
        // `begin` writes the header and reserves the data's size as a hole.
        let writing = writer.begin().unwrap();
        let model = Model::open(writing.unfinished()).unwrap();
        drop(writing);
        Self { _dir: dir, model }
    }
}

/// Name, shape and type of a tensor.
type Described = (String, Vec<usize>, DType);

/// Tensors outside the layers: the embedding, which is also the output.
fn around(width: usize, vocabulary: usize) -> Vec<Described> {
    vec![
        ("token_embd".into(), vec![vocabulary, width], DType::Q6_K),
        ("output_norm".into(), vec![width], DType::F32),
    ]
}

fn parts_of_experts(
    [experts, width, hidden]: [usize; 3],
    mut part: impl FnMut(&str, &[usize], DType),
) {
    part("ffn_gate_inp", &[experts, width], DType::F16);
    part("ffn_gate_exps", &[experts, hidden, width], DType::Q4_K);
    part("ffn_up_exps", &[experts, hidden, width], DType::Q4_K);
    part("ffn_down_exps", &[experts, width, hidden], DType::Q4_K);
}
