//! The architectures that can be made: their dimensions, their tensors, their types.

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
    /// 0 outside the layers.
    pub(super) layer: usize,
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
                layer: layer.unwrap_or(0),
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

/// How a model is quantised: one type, or llama.cpp's mix of types of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    F16,
    Q8_0,
    Q6K,
    Q4KM,
    F32,
    BF16,
    Q4_0,
    Q5K,
}

impl Mix {
    /// Every mix; the first four are for all models, the rest for the tiny ones.
    pub(super) const ALL: [Self; 8] = [
        Self::F16,
        Self::Q8_0,
        Self::Q6K,
        Self::Q4KM,
        Self::F32,
        Self::BF16,
        Self::Q4_0,
        Self::Q5K,
    ];

    /// The mixes in which `shape` can be had.
    pub(super) fn of(shape: &Shape) -> &'static [Self] {
        if shape.planted { &Self::ALL } else { &Self::ALL[..4] }
    }

    /// The name as in `synthetic:NAME:TYPE`, the number for `general.file_type` (llama.cpp `enum
    /// llama_ftype`; `q5_k` is its Q5_K_S), and the type that most matrices are stored in.
    const fn row(self) -> (&'static str, u32, DType) {
        match self {
            Self::F32 => ("f32", 0, DType::F32),
            Self::F16 => ("f16", 1, DType::F16),
            Self::Q4_0 => ("q4_0", 2, DType::Q4_0),
            Self::Q8_0 => ("q8_0", 7, DType::Q8_0),
            Self::Q4KM => ("q4_k_m", 15, DType::Q4_K),
            Self::Q5K => ("q5_k", 16, DType::Q5_K),
            Self::Q6K => ("q6_k", 18, DType::Q6_K),
            Self::BF16 => ("bf16", 32, DType::BF16),
        }
    }

    pub(super) const fn name(self) -> &'static str {
        self.row().0
    }

    pub(super) const fn file_type(self) -> u32 {
        self.row().1
    }

    /// The type in which llama.cpp's quantiser stores a tensor of a model with `layers` layers.
    ///
    /// (Its fallback for rows that are not whole super-blocks does not arise: every row of these
    /// models is a multiple of 256.)
    pub(super) fn dtype(self, tensor: &Tensor, layers: usize) -> DType {
        let (_, _, base) = self.row();
        match tensor.role {
            Role::Norm | Role::RopeFactors => DType::F32,
            // The embedding is the output too, which is never stored in less than Q6_K.
            Role::Embedding if base.is_quantised() && base != DType::Q8_0 => DType::Q6_K,
            Role::Value | Role::Down if self == Self::Q4KM && more_bits(tensor.layer, layers) => {
                DType::Q6_K
            }
            _ => base,
        }
    }
}

/// The layers to which the `_M` mixes give more bits: the first and last eighth and every third
/// between.
const fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(name: &str, mix: Mix) -> u64 {
        let shape = SHAPES.iter().find(|s| s.name == name).unwrap();
        let size = |t: &Tensor| {
            let elements = t.shape.iter().product::<usize>() as u64;
            mix.dtype(t, shape.layers).size_of(elements).unwrap()
        };
        shape.tensors().iter().map(size).sum()
    }

    #[test]
    fn sizes_are_those_of_the_real_files() {
        // Published files, in units of 10 MB and without their header of 6 to 8 MB.
        for (name, mix, published) in [
            ("llama-3.2-1b", Mix::Q6K, 1_020_000_000_u64),
            ("qwen3-0.6b", Mix::Q8_0, 640_000_000),
            ("qwen3-1.7b", Mix::Q4KM, 1_110_000_000),
        ] {
            let found = bytes(name, mix);
            assert!(published.abs_diff(found) < 13_000_000, "{name}: {found} for {published}");
        }
    }

    #[test]
    fn the_mix_is_llama_cpps() {
        // As in the file that llama.cpp's quantiser made of a model of this shape.
        let shape = SHAPES.iter().find(|s| s.name == "tiny-llama").unwrap();
        for tensor in shape.tensors() {
            let expected = match tensor.name.as_str() {
                "token_embd.weight" | "blk.1.attn_v.weight" | "blk.1.ffn_down.weight" => {
                    DType::Q6_K
                }
                "rope_freqs.weight" => DType::F32,
                name if name.contains("norm") => DType::F32,
                _ => DType::Q4_K,
            };
            assert_eq!(Mix::Q4KM.dtype(&tensor, shape.layers), expected, "{}", tensor.name);
        }
        let more: Vec<usize> = (0..28).filter(|l| more_bits(*l, 28)).collect();
        assert_eq!(more, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]);
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
