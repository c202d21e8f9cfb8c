//! The architectures that can be made: their dimensions, their tensors, their types.

use crate::mix::{Mix, Sizes};
use plan::DType;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Qwen3,
}

/// Dimensions of a model. The output is tied to the embedding in all of them.
#[derive(Debug, PartialEq)]
pub(super) struct Shape {
    /// As in `synthetic:NAME:TYPE`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) family: Family,
    pub(super) layers: usize,
    pub(super) dim: usize,
    pub(super) ffn: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) vocab: usize,
    /// Tokens that are text; special and unused ones follow.
    pub(super) text_tokens: usize,
    pub(super) context: u32,
    pub(super) rope_base: f32,
    pub(super) epsilon: f32,
    /// Weights with a planted rule instead of plain noise.
    pub(super) planted: bool,
}

/// The models' dimensions: Llama-3.2-1B, Qwen3-0.6B and Qwen3-1.7B by their published
/// configurations, and a tiny one of each family.
pub(super) const SHAPES: [Shape; 5] = [
    LLAMA,
    QWEN3,
    Shape { name: "qwen3-1.7b", title: "Qwen3 1.7B", dim: 2048, ffn: 6144, ..QWEN3 },
    Shape { name: "tiny-llama", title: "tiny llama", ..LLAMA.tiny() },
    Shape { name: "tiny-qwen3", title: "tiny qwen3", ..QWEN3.tiny() },
];

const LLAMA: Shape = Shape {
    name: "llama-3.2-1b",
    title: "Llama 3.2 1B",
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
    epsilon: 1e-5,
    planted: false,
};

const QWEN3: Shape = Shape {
    name: "qwen3-0.6b",
    title: "Qwen3 0.6B",
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
    epsilon: 1e-6,
    planted: false,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Norm,
    RopeFactors,
    Embedding,
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
    /// A planted model of the family, as small as the rule allows.
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

    /// The architecture's name in metadata and keys.
    pub(super) const fn architecture(&self) -> &'static str {
        match self.family {
            Family::Llama => "llama",
            Family::Qwen3 => "qwen3",
        }
    }

    /// All tensors, in the order in which llama.cpp's quantiser writes them.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let (dim, ffn) = (self.dim, self.ffn);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let qk_norm = self.family == Family::Qwen3;
        let mut tensors = Vec::new();
        let mut add = |layer: Option<usize>, name: &str, shape: &[usize], role| {
            let prefix = layer.map_or(String::new(), |layer| format!("blk.{layer}."));
            tensors.push(Tensor {
                name: format!("{prefix}{name}.weight"),
                shape: shape.to_vec(),
                role,
            });
        };
        add(None, "output_norm", &[dim], Role::Norm);
        if self.family == Family::Llama {
            add(None, "rope_freqs", &[self.head_dim / 2], Role::RopeFactors);
        }
        add(None, "token_embd", &[self.vocab, dim], Role::Embedding);
        for layer in (0..self.layers).map(Some) {
            add(layer, "attn_k", &[kv, dim], Role::Key);
            if qk_norm {
                add(layer, "attn_k_norm", &[self.head_dim], Role::Norm);
            }
            add(layer, "attn_norm", &[dim], Role::Norm);
            add(layer, "attn_output", &[dim, q], Role::AttentionOutput);
            add(layer, "attn_q", &[q, dim], Role::Query);
            if qk_norm {
                add(layer, "attn_q_norm", &[self.head_dim], Role::Norm);
            }
            add(layer, "attn_v", &[kv, dim], Role::Value);
            add(layer, "ffn_down", &[dim, ffn], Role::Down);
            add(layer, "ffn_gate", &[ffn, dim], Role::Gate);
            add(layer, "ffn_norm", &[dim], Role::Norm);
            add(layer, "ffn_up", &[ffn, dim], Role::Up);
        }
        tensors
    }

    /// The rotation per position of each pair of a head's elements, as the model must apply it.
    pub(super) fn rope_frequencies(&self) -> Vec<f64> {
        let factors = self.rope_factors();
        (0..self.head_dim / 2)
            .map(|i| self.rope_frequency(i) / f64::from(factors.get(i).copied().unwrap_or(1.0)))
            .collect()
    }

    /// The values of `rope_freqs.weight`: what Llama 3 divides each rotation by (factor 32, low
    /// 1, high 4, original context 8,192; Llama 3.2's `rope_scaling`). Empty for other families.
    pub(super) fn rope_factors(&self) -> Vec<f32> {
        const FACTOR: f64 = 32.0;
        const LOW: f64 = 1.0;
        const HIGH: f64 = 4.0;
        const ORIGINAL_CONTEXT: f64 = 8192.0;
        if self.family != Family::Llama {
            return Vec::new();
        }
        (0..self.head_dim / 2)
            .map(|i| {
                // Turns within the context on which the model was first trained.
                let turns = ORIGINAL_CONTEXT * self.rope_frequency(i) / std::f64::consts::TAU;
                let smooth = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
                (1.0 / ((1.0 - smooth) / FACTOR + smooth)) as f32
            })
            .collect()
    }

    fn rope_frequency(&self, pair: usize) -> f64 {
        f64::from(self.rope_base).powf(-2.0 * pair as f64 / self.head_dim as f64)
    }
}

/// How a model is quantised: the name as in `synthetic:NAME:TYPE`, and the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) name: &'static str,
    pub(super) mix: Mix,
}

/// Every type; the first four are for all models, the rest for the tiny ones.
const TYPES: [Type; 8] = [
    Type { name: "f16", mix: Mix::F16 },
    Type { name: "q8_0", mix: Mix::Q8_0 },
    Type { name: "q6_k", mix: Mix::Q6_K },
    Type { name: "q4_k_m", mix: Mix::Q4_K_M },
    Type { name: "f32", mix: Mix::F32 },
    Type { name: "bf16", mix: Mix::BF16 },
    Type { name: "q4_0", mix: Mix::Q4_0 },
    Type { name: "q5_k", mix: Mix::Q5_K_S },
];

impl Type {
    /// The types in which `shape` can be had.
    pub(super) fn of(shape: &Shape) -> &'static [Self] {
        if shape.planted { &TYPES } else { &TYPES[..4] }
    }

    /// The type of one tensor. The output is tied in all models.
    pub(super) fn dtype(self, tensor: &Tensor, shape: &Shape) -> DType {
        let (layers, grouping) = (shape.layers, shape.heads / shape.kv_heads);
        let sizes = Sizes { layers, grouping, tied: true };
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
    fn sizes_are_those_of_the_real_files() {
        // Published files, in units of 10 MB and without their header of 6 to 8 MB.
        for (name, mix, published) in [
            ("llama-3.2-1b", Mix::Q6_K, 1_020_000_000_u64),
            ("qwen3-0.6b", Mix::Q8_0, 640_000_000),
            ("qwen3-1.7b", Mix::Q4_K_M, 1_110_000_000),
        ] {
            let found = bytes(name, mix);
            assert!(published.abs_diff(found) < 13_000_000, "{name}: {found} for {published}");
        }
    }

    #[test]
    fn rope_factors_are_those_of_llama_3() {
        let factors = SHAPES[0].rope_factors();
        assert_eq!(factors.len(), 32);
        // As llama.cpp's converter computes them.
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
