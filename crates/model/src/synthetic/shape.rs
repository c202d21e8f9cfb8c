//! Shapes of synthetic models: dimensions, tensors, quantisation types.

use crate::mix::{Mix, Sizes};
use plan::DType;

/// Family of a model's vocabulary and chat template, and of a planted model's rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Qwen3,
}

/// Dimensions of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    /// NAME in `synthetic:NAME:TYPE`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Value of `general.architecture`.
    pub(super) architecture: &'static str,
    pub(super) family: Family,
    pub(super) layers: usize,
    pub(super) dim: usize,
    pub(super) ffn: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) vocab: usize,
    /// Number of text tokens, which precede special and unused ones.
    pub(super) text_tokens: usize,
    pub(super) context: u32,
    pub(super) rope_base: f32,
    /// Factor of Llama 3's RoPE scaling, 0 without scaling.
    pub(super) rope_factor: f64,
    /// Size of the sliding window, 0 without one.
    pub(super) window: u32,
    /// Experts of each layer, in MoE models.
    pub(super) experts: Option<Experts>,
    /// Gated DeltaNet in three of four layers: key heads, value heads, head size, taps of the convolution.
    pub(super) delta: Option<[usize; 4]>,
    /// True if the model has a nextn (MTP) layer in addition.
    pub(super) nextn: bool,
    /// The embedding is also the output projection.
    pub(super) tied: bool,
    pub(super) epsilon: f32,
    /// Weights with a planted rule instead of plain noise.
    pub(super) planted: bool,
}

/// Experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Experts {
    pub(super) count: usize,
    pub(super) chosen: usize,
    pub(super) ffn: usize,
    /// Width of the shared expert, 0 without one.
    pub(super) shared: usize,
}

/// Low-rank products of RWKV-7 1.5B: letter in tensor names, metadata key, rank.
pub(super) const RANKS: [(&str, &str, usize); 4] = [
    ("w", "attention.decay_lora_rank", 96),
    ("a", "attention.iclr_lora_rank", 96),
    ("v", "attention.value_residual_mix_lora_rank", 64),
    ("g", "attention.gate_lora_rank", 256),
];

/// Dimensions from published configurations, and tiny models of each family.
pub(super) const SHAPES: [Shape; 17] = [
    LLAMA,
    QWEN3,
    Shape { name: "qwen3-1.7b", title: "Qwen3 1.7B", dim: 2048, ffn: 6144, ..QWEN3 },
    Shape {
        name: "llama-3.2-3b",
        title: "Llama 3.2 3B",
        layers: 28,
        dim: 3072,
        heads: 24,
        head_dim: 128,
        ..LLAMA
    },
    Shape {
        name: "llama-3.1-8b",
        title: "Llama 3.1 8B",
        layers: 32,
        dim: 4096,
        ffn: 14_336,
        head_dim: 128,
        rope_factor: 8.0,
        tied: false,
        ..LLAMA
    },
    Shape {
        name: "qwen2.5-1.5b",
        title: "Qwen2.5 1.5B",
        architecture: "qwen2",
        dim: 1536,
        ffn: 8960,
        heads: 12,
        kv_heads: 2,
        context: 32_768,
        ..QWEN3
    },
    Shape {
        name: "phi-3-mini",
        title: "Phi-3 mini 4K",
        architecture: "phi3",
        layers: 32,
        dim: 3072,
        ffn: 8192,
        heads: 32,
        kv_heads: 32,
        head_dim: 96,
        vocab: 32_064,
        text_tokens: 32_000,
        context: 4096,
        rope_base: 10_000.0,
        rope_factor: 0.0,
        window: 2047,
        tied: false,
        ..LLAMA
    },
    Shape {
        name: "smollm3-3b",
        title: "SmolLM3 3B",
        architecture: "smollm3",
        layers: 36,
        ffn: 11_008,
        heads: 16,
        kv_heads: 4,
        head_dim: 128,
        context: 65_536,
        rope_base: 5_000_000.0,
        rope_factor: 0.0,
        epsilon: 1e-6,
        ..LLAMA
    },
    Shape {
        name: "gemma3-4b",
        title: "Gemma 3 4B",
        architecture: "gemma3",
        layers: 34,
        dim: 2560,
        ffn: 10_240,
        heads: 8,
        kv_heads: 4,
        head_dim: 256,
        vocab: 262_208,
        text_tokens: 262_144,
        context: 131_072,
        window: 1024,
        ..QWEN3
    },
    Shape {
        name: "qwen3-30b-a3b",
        title: "Qwen3 30B A3B",
        architecture: "qwen3moe",
        layers: 48,
        dim: 2048,
        ffn: 6144,
        heads: 32,
        kv_heads: 4,
        experts: Some(Experts { count: 128, chosen: 8, ffn: 768, shared: 0 }),
        tied: false,
        ..QWEN3
    },
    Shape {
        name: "qwen35-35b-a3b",
        title: "Qwen3.5 35B A3B",
        architecture: "qwen35moe",
        layers: 40,
        dim: 2048,
        ffn: 512,
        heads: 16,
        kv_heads: 2,
        head_dim: 256,
        vocab: 248_320,
        text_tokens: 248_044,
        context: 262_144,
        rope_base: 10_000_000.0,
        experts: Some(Experts { count: 256, chosen: 8, ffn: 512, shared: 512 }),
        delta: Some([16, 32, 128, 4]),
        tied: false,
        ..QWEN3
    },
    QWEN35,
    Shape {
        name: "gpt-oss-20b",
        title: "gpt-oss 20B",
        architecture: "gpt-oss",
        layers: 24,
        dim: 2880,
        ffn: 2880,
        heads: 64,
        kv_heads: 8,
        head_dim: 64,
        vocab: 201_088,
        text_tokens: 199_998,
        context: 131_072,
        rope_base: 150_000.0,
        window: 128,
        experts: Some(Experts { count: 32, chosen: 4, ffn: 2880, shared: 0 }),
        tied: false,
        epsilon: 1e-5,
        ..QWEN3
    },
    Shape {
        name: "rwkv7-1.5b",
        title: "RWKV-7 1.5B",
        architecture: "rwkv7",
        layers: 24,
        dim: 2048,
        ffn: 8192,
        heads: 32,
        kv_heads: 32,
        head_dim: 64,
        vocab: 65_536,
        text_tokens: 65_024,
        context: 4096,
        tied: false,
        epsilon: 1e-5,
        ..QWEN3
    },
    Shape { name: "tiny-llama", title: "tiny llama", ..LLAMA.tiny() },
    Shape { name: "tiny-qwen3", title: "tiny qwen3", ..QWEN3.tiny() },
    Shape {
        name: "tiny-qwen35",
        title: "tiny qwen3.5",
        layers: 4,
        head_dim: 64,
        delta: Some([2, 4, 32, 4]),
        planted: false,
        ..QWEN35.tiny()
    },
];

const LLAMA: Shape = Shape {
    name: "llama-3.2-1b",
    title: "Llama 3.2 1B",
    architecture: "llama",
    family: Family::Llama,
    layers: 16,
    dim: 2048,
    ffn: 8192,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    vocab: 128_256,
    text_tokens: 128_000,
    context: 131_072,
    rope_base: 500_000.0,
    rope_factor: 32.0,
    window: 0,
    experts: None,
    delta: None,
    nextn: false,
    tied: true,
    epsilon: 1e-5,
    planted: false,
};

const QWEN3: Shape = Shape {
    name: "qwen3-0.6b",
    title: "Qwen3 0.6B",
    architecture: "qwen3",
    family: Family::Qwen3,
    layers: 28,
    dim: 1024,
    ffn: 3072,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
    text_tokens: 151_643,
    context: 40_960,
    rope_base: 1_000_000.0,
    rope_factor: 0.0,
    window: 0,
    experts: None,
    delta: None,
    nextn: false,
    tied: true,
    epsilon: 1e-6,
    planted: false,
};

const QWEN35: Shape = Shape {
    name: "qwen35-0.8b",
    title: "Qwen3.5 0.8B",
    architecture: "qwen35",
    layers: 24,
    ffn: 3584,
    heads: 8,
    kv_heads: 2,
    head_dim: 256,
    vocab: 248_320,
    text_tokens: 248_044,
    context: 262_144,
    rope_base: 10_000_000.0,
    delta: Some([16, 16, 128, 4]),
    nextn: true,
    ..QWEN3
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Norm,
    Bias,
    /// Attention sink.
    Sink,
    RopeFactors,
    /// Decay rate of a delta rule.
    Rate,
    /// Share of the previous row in token shift.
    Lerp,
    Convolution,
    Embedding,
    Output,
    Query,
    Key,
    Value,
    AttentionOutput,
    Gate,
    Up,
    Down,
}

#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// Outermost dimension first.
    pub(super) shape: Vec<usize>,
    pub(super) role: Role,
}

impl Shape {
    /// A planted model of the family, with the smallest dimensions that the rule allows.
    const fn tiny(self) -> Self {
        Self {
            layers: 2,
            dim: 256,
            ffn: 768,
            heads: 4,
            kv_heads: 2,
            vocab: 1024,
            text_tokens: 1019,
            context: 8192,
            planted: true,
            ..self
        }
    }

    /// True if the vocabulary is too small for special tokens at the ids of the real one.
    pub(super) const fn is_tiny(&self) -> bool {
        self.vocab - self.text_tokens < 8
    }

    /// All tensors, in the order in which llama.cpp's quantiser writes them.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let dim = self.dim;
        let mut tensors = Vec::new();
        let mut add = |prefix: &str, name: &str, shape: &[usize], role| {
            let ending = match role {
                Role::Bias => ".bias",
                Role::Rate => "",
                _ => ".weight",
            };
            let name = format!("{prefix}{name}{ending}");
            tensors.push(Tensor { name, shape: shape.to_vec(), role });
        };
        if !self.tied {
            add("", "output", &[self.vocab, dim], Role::Output);
        }
        add("", "output_norm", &[dim], Role::Norm);
        if self.rope_factor > 0.0 {
            add("", "rope_freqs", &[self.head_dim / 2], Role::RopeFactors);
        }
        add("", "token_embd", &[self.vocab, dim], Role::Embedding);
        let rwkv = self.architecture == "rwkv7";
        if rwkv {
            for norm in ["output_norm", "token_embd_norm"] {
                add("", norm, &[dim], Role::Bias);
            }
            add("", "token_embd_norm", &[dim], Role::Norm);
        }
        for layer in 0..self.layers + usize::from(self.nextn) {
            let prefix = format!("blk.{layer}.");
            let mut add = |name: &str, shape: &[usize], role| add(&prefix, name, shape, role);
            if rwkv {
                time_mix(layer, dim, self.ffn, add);
            } else {
                self.layer(layer, &mut add);
            }
        }
        tensors
    }

    fn layer(&self, layer: usize, add: &mut impl FnMut(&str, &[usize], Role)) {
        let dim = self.dim;
        let after = self.delta.is_some() || self.architecture == "gpt-oss";
        let norm = if after { "post_attention_norm" } else { "ffn_norm" };
        if let Some(heads) = self.delta
            && layer < self.layers
            && !(layer + 1).is_multiple_of(4)
        {
            delta(dim, heads, &mut *add);
            add(norm, &[dim], Role::Norm);
            match self.experts {
                Some(experts) => experts.tensors(dim, add),
                None => {
                    add("ffn_down", &[dim, self.ffn], Role::Down);
                    add("ffn_gate", &[self.ffn, dim], Role::Gate);
                    add("ffn_up", &[self.ffn, dim], Role::Up);
                }
            }
            return;
        }
        if layer == self.layers {
            for norm in ["enorm", "hnorm", "shared_head_norm"] {
                add(&format!("nextn.{norm}"), &[dim], Role::Norm);
            }
            add("nextn.eh_proj", &[dim, 2 * dim], Role::Gate);
        }
        self.attention(add);
        self.feed_forward(norm, add);
    }

    fn attention(&self, add: &mut impl FnMut(&str, &[usize], Role)) {
        let dim = self.dim;
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let qk_norm =
            self.delta.is_some() || matches!(self.architecture, "qwen3" | "gemma3" | "qwen3moe");
        let gpt_oss = self.architecture == "gpt-oss";
        let fused = self.architecture == "phi3";
        let biases = self.architecture == "qwen2" || gpt_oss;
        if biases {
            add("attn_k", &[kv], Role::Bias);
        }
        if !fused {
            add("attn_k", &[kv, dim], Role::Key);
        }
        if qk_norm {
            add("attn_k_norm", &[self.head_dim], Role::Norm);
        }
        add("attn_norm", &[dim], Role::Norm);
        if gpt_oss {
            add("attn_output", &[dim], Role::Bias);
        }
        add("attn_output", &[dim, q], Role::AttentionOutput);
        if biases {
            add("attn_q", &[q], Role::Bias);
        }
        if fused {
            add("attn_qkv", &[q + 2 * kv, dim], Role::Query);
        } else {
            // Gated attention has a gate for each query.
            let rows = if self.delta.is_some() { 2 * q } else { q };
            add("attn_q", &[rows, dim], Role::Query);
        }
        if qk_norm {
            add("attn_q_norm", &[self.head_dim], Role::Norm);
        }
        if gpt_oss {
            add("attn_sinks", &[self.heads], Role::Sink);
        }
        if biases {
            add("attn_v", &[kv], Role::Bias);
        }
        if !fused {
            add("attn_v", &[kv, dim], Role::Value);
        }
    }

    fn feed_forward(&self, norm: &str, add: &mut impl FnMut(&str, &[usize], Role)) {
        let (dim, ffn) = (self.dim, self.ffn);
        if let Some(experts) = self.experts {
            experts.tensors(dim, &mut *add);
            if self.architecture == "gpt-oss" {
                experts.biases(dim, &mut *add);
            }
            add(norm, &[dim], Role::Norm);
            return;
        }
        let fused = self.architecture == "phi3";
        add("ffn_down", &[dim, ffn], Role::Down);
        if !fused {
            add("ffn_gate", &[ffn, dim], Role::Gate);
        }
        add(norm, &[dim], Role::Norm);
        add("ffn_up", &[if fused { 2 * ffn } else { ffn }, dim], Role::Up);
        if self.architecture == "gemma3" {
            add("post_attention_norm", &[dim], Role::Norm);
            add("post_ffw_norm", &[dim], Role::Norm);
        }
    }

    /// Radians per position of each rotary pair.
    pub(super) fn rope_frequencies(&self) -> Vec<f64> {
        let factors = self.rope_factors();
        (0..self.head_dim / 2)
            .map(|i| self.rope_frequency(i) / f64::from(factors.get(i).copied().unwrap_or(1.0)))
            .collect()
    }

    /// Values of `rope_freqs.weight`, the divisors of Llama 3's rotations (low 1, high 4, original context 8,192, the
    /// factor of `rope_scaling`). Empty for other families.
    pub(super) fn rope_factors(&self) -> Vec<f32> {
        const LOW: f64 = 1.0;
        const HIGH: f64 = 4.0;
        const ORIGINAL_CONTEXT: f64 = 8192.0;
        if self.rope_factor == 0.0 {
            return Vec::new();
        }
        (0..self.head_dim / 2)
            .map(|i| {
                // Turns within the original training context.
                let turns = ORIGINAL_CONTEXT * self.rope_frequency(i) / std::f64::consts::TAU;
                let smooth = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
                (1.0 / ((1.0 - smooth) / self.rope_factor + smooth)) as f32
            })
            .collect()
    }

    fn rope_frequency(&self, pair: usize) -> f64 {
        f64::from(self.rope_base).powf(-2.0 * pair as f64 / self.head_dim as f64)
    }
}

impl Experts {
    fn tensors(&self, dim: usize, add: &mut impl FnMut(&str, &[usize], Role)) {
        let Self { count, ffn, shared, .. } = *self;
        add("ffn_down_exps", &[count, dim, ffn], Role::Down);
        add("ffn_gate_exps", &[count, ffn, dim], Role::Gate);
        add("ffn_gate_inp", &[count, dim], Role::Gate);
        add("ffn_up_exps", &[count, ffn, dim], Role::Up);
        if shared > 0 {
            add("ffn_down_shexp", &[dim, shared], Role::Down);
            add("ffn_gate_inp_shexp", &[dim], Role::Gate);
            add("ffn_gate_shexp", &[shared, dim], Role::Gate);
            add("ffn_up_shexp", &[shared, dim], Role::Up);
        }
    }

    fn biases(&self, dim: usize, add: &mut impl FnMut(&str, &[usize], Role)) {
        let Self { count, ffn, .. } = *self;
        add("ffn_down_exps", &[count, dim], Role::Bias);
        add("ffn_gate_exps", &[count, ffn], Role::Bias);
        add("ffn_gate_inp", &[count], Role::Bias);
        add("ffn_up_exps", &[count, ffn], Role::Bias);
    }
}

/// Tensors of Gated DeltaNet.
fn delta(
    dim: usize,
    [keys, values, size, taps]: [usize; 4],
    mut add: impl FnMut(&str, &[usize], Role),
) {
    let (inner, mixed) = (values * size, (2 * keys + values) * size);
    add("attn_gate", &[inner, dim], Role::Gate);
    add("attn_norm", &[dim], Role::Norm);
    add("attn_qkv", &[mixed, dim], Role::Query);
    add("ssm_a", &[values], Role::Rate);
    add("ssm_alpha", &[values, dim], Role::Gate);
    add("ssm_beta", &[values, dim], Role::Gate);
    add("ssm_conv1d", &[mixed, taps], Role::Convolution);
    add("ssm_dt", &[values], Role::Bias);
    add("ssm_norm", &[size], Role::Norm);
    add("ssm_out", &[dim, inner], Role::AttentionOutput);
}

/// Tensors of a layer of RWKV-7. The first layer does not blend its values.
fn time_mix(layer: usize, dim: usize, ffn: usize, mut add: impl FnMut(&str, &[usize], Role)) {
    for norm in ["attn_norm", "attn_norm_2", "time_mix_ln"] {
        add(norm, &[dim], Role::Norm);
        add(norm, &[dim], Role::Bias);
    }
    add("channel_mix_key", &[ffn, dim], Role::Up);
    add("channel_mix_lerp_k", &[1, 1, dim], Role::Lerp);
    add("channel_mix_value", &[dim, ffn], Role::Down);
    add("time_mix_lerp_fused", &[6, 1, 1, dim], Role::Lerp);
    add("time_mix_k_a", &[dim], Role::Norm);
    add("time_mix_k_k", &[dim], Role::Norm);
    add("time_mix_r_k", &[dim], Role::Lerp);
    add("time_mix_receptance", &[dim, dim], Role::Query);
    add("time_mix_key", &[dim, dim], Role::Key);
    add("time_mix_value", &[dim, dim], Role::Value);
    add("time_mix_output", &[dim, dim], Role::AttentionOutput);
    for (part, _, rank) in RANKS.into_iter().filter(|(part, ..)| layer > 0 || *part != "v") {
        if part != "g" {
            add(&format!("time_mix_{part}0"), &[dim], Role::Lerp);
        }
        add(&format!("time_mix_{part}1"), &[rank, dim], Role::Gate);
        add(&format!("time_mix_{part}2"), &[dim, rank], Role::Gate);
    }
}

/// Quantisation of a model: TYPE in `synthetic:NAME:TYPE`, and the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) name: &'static str,
    pub(super) mix: Mix,
}

/// All types. The first five are for all models, `mxfp4` for MoE models, the rest for tiny ones.
const TYPES: [Type; 18] = [
    Type { name: "f16", mix: Mix::F16 },
    Type { name: "q8_0", mix: Mix::Q8_0 },
    Type { name: "q6_k", mix: Mix::Q6_K },
    Type { name: "q4_k_m", mix: Mix::Q4_K_M },
    Type { name: "q4_0", mix: Mix::Q4_0 },
    Type { name: "f32", mix: Mix::F32 },
    Type { name: "bf16", mix: Mix::BF16 },
    Type { name: "q5_1", mix: Mix::Q5_1 },
    Type { name: "q5_0", mix: Mix::Q5_0 },
    Type { name: "q4_1", mix: Mix::Q4_1 },
    Type { name: "iq4_nl", mix: Mix::IQ4_NL },
    Type { name: "iq4_xs", mix: Mix::IQ4_XS },
    Type { name: "q5_k", mix: Mix::Q5_K_S },
    Type { name: "q3_k_m", mix: Mix::Q3_K_M },
    Type { name: "q2_k", mix: Mix::Q2_K },
    Type { name: "tq2_0", mix: Mix::TQ2_0 },
    Type { name: "tq1_0", mix: Mix::TQ1_0 },
    Type { name: "mxfp4", mix: Mix::MXFP4_MOE },
];

impl Type {
    /// The types available for `shape`.
    pub(super) fn of(shape: &Shape) -> impl Iterator<Item = &'static Self> + use<> {
        let (planted, moe) = (shape.planted, shape.experts.is_some());
        TYPES.iter().enumerate().filter_map(move |(at, kind)| {
            let fits = if kind.mix == Mix::MXFP4_MOE { moe } else { planted || at < 5 };
            fits.then_some(kind)
        })
    }

    /// The type of one tensor.
    pub(super) fn dtype(self, tensor: &Tensor, shape: &Shape) -> DType {
        let Shape { layers, heads, kv_heads, tied, .. } = *shape;
        let sizes = Sizes { layers, grouping: heads / kv_heads, tied };
        self.mix.dtype(&tensor.name, &tensor.shape, sizes).unwrap_or(DType::F32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(name: &str, mix: Mix) -> u64 {
        let kind = TYPES.into_iter().find(|kind| kind.mix == mix).unwrap();
        let shape = SHAPES.iter().find(|s| s.name == name).unwrap();
        let size = |t: &Tensor| {
            let elements = t.shape.iter().product::<usize>() as u64;
            kind.dtype(t, shape).size_of(elements).unwrap()
        };
        shape.tensors().iter().map(size).sum()
    }

    #[test]
    fn sizes_match_published_files() {
        // Sizes of published files, rounded to 10 MB, with headers of 6 to 13 MB.
        for (name, mix, published) in [
            ("llama-3.2-1b", Mix::Q6_K, 1_020_000_000_u64),
            ("qwen3-0.6b", Mix::Q8_0, 640_000_000),
            ("qwen3-1.7b", Mix::Q4_K_M, 1_110_000_000),
            ("llama-3.2-3b", Mix::Q4_K_M, 2_020_000_000),
            ("llama-3.1-8b", Mix::Q8_0, 8_540_000_000),
            ("qwen2.5-1.5b", Mix::Q8_0, 1_650_000_000),
            ("phi-3-mini", Mix::Q8_0, 4_060_000_000),
            ("smollm3-3b", Mix::Q8_0, 3_280_000_000),
            ("gemma3-4b", Mix::Q8_0, 4_130_000_000),
            ("gpt-oss-20b", Mix::MXFP4_MOE, 12_110_000_000),
        ] {
            let found = bytes(name, mix);
            assert!(published.abs_diff(found) < 14_000_000, "{name}: {found} for {published}");
        }
    }

    /// Number in the table of the RWKV-7 paper (arXiv:2503.14456).
    #[test]
    fn rwkv_7_has_the_published_number_of_parameters() {
        let shape = SHAPES.iter().find(|shape| shape.name == "rwkv7-1.5b").unwrap();
        let tensors = shape.tensors();
        let parameters: usize = tensors.iter().map(|t| t.shape.iter().product::<usize>()).sum();
        assert_eq!(parameters, 1_527_404_544);
    }

    #[test]
    fn rope_factors_match_llama_3() {
        let factors = SHAPES[0].rope_factors();
        assert_eq!(factors.len(), 32);
        // Computed by llama.cpp's converter.
        let between = [1.651_329_3, 3.292_262, 9.666_729];
        for (i, factor) in factors.into_iter().enumerate() {
            let expected = match i {
                0..15 => 1.0,
                15..18 => between[i - 15],
                _ => 32.0,
            };
            assert!((factor - expected).abs() < 1e-4 * expected, "{i}: {factor} for {expected}");
        }
    }
}
