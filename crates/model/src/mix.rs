//! llama.cpp's quantisation mixes (`Q4_K_M` and others): the type of each tensor.
//!
//! The rules are those of llama.cpp's `llama-quant.cpp` without an importance matrix. Its exceptions for
//! models of 80 layers or of 8 experts are left out.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::gguf::Gguf;
use plan::DType;

/// Declares [`Mix`]: each name, its number for `general.file_type`, and the type of most matrices.
macro_rules! mixes {
    ($($name:ident = $number:literal, $dtype:ident;)*) => {
        /// Quantisation of a model: one type, or a mix with llama.cpp's name (`enum llama_ftype`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(non_camel_case_types, reason = "the field's names are Q4_K_M and Q6_K")]
        pub enum Mix {
            $($name,)*
        }

        impl Mix {
            /// Every mix, roughly from the largest to the smallest.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$name),*];

            const fn row(self) -> (&'static str, u32, DType) {
                match self {
                    $(Self::$name => (stringify!($name), $number, DType::$dtype),)*
                }
            }
        }
    };
}
mixes! {
    F32 = 0, F32;
    F16 = 1, F16;
    BF16 = 32, BF16;
    Q8_0 = 7, Q8_0;
    Q6_K = 18, Q6_K;
    Q5_1 = 9, Q5_1;
    Q5_K_M = 17, Q5_K;
    Q5_K_S = 16, Q5_K;
    Q5_0 = 8, Q5_0;
    Q4_1 = 3, Q4_1;
    Q4_K_M = 15, Q4_K;
    Q4_K_S = 14, Q4_K;
    Q4_0 = 2, Q4_0;
    IQ4_NL = 25, IQ4_NL;
    IQ4_XS = 30, IQ4_XS;
    MXFP4_MOE = 38, MXFP4;
    Q3_K_L = 13, Q3_K;
    Q3_K_M = 12, Q3_K;
    Q3_K_S = 11, Q3_K;
    Q2_K = 10, Q2_K;
    Q2_K_S = 21, Q2_K;
    TQ2_0 = 37, TQ2_0;
    TQ1_0 = 36, TQ1_0;
}

/// Properties of the model that the rules depend on.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub layers: usize,
    /// Query heads for each KV head.
    pub grouping: usize,
    /// The embedding is also the output projection.
    pub tied: bool,
}

impl Mix {
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The number for `general.file_type`.
    #[must_use]
    pub const fn file_type(self) -> u32 {
        self.row().1
    }

    /// The mix with this `general.file_type`.
    #[must_use]
    pub fn from_file_type(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mix| mix.file_type() == number)
    }

    /// The type of a tensor, or `None` if its type is not changed: norms, vectors, the MoE router, short
    /// convolutions, and the small tensors of RWKV.
    #[must_use]
    pub fn dtype(self, name: &str, shape: &[usize], sizes: Sizes) -> Option<DType> {
        let unchanged = shape.len() < 2
            || !name.ends_with("weight")
            || name.contains("_norm.weight")
            || name.contains("ffn_gate_inp.weight")
            || name.contains("ssm_conv1d.weight")
            || name.contains("shortconv.conv.weight")
            || is_small_rwkv_tensor(name);
        if unchanged {
            return None;
        }
        let row = shape.last().copied().unwrap_or(0);
        let fits = |dtype: &DType| row.is_multiple_of(dtype.block_len());
        let wanted = self.wanted(name, shape, sizes);
        [wanted, with_smaller_blocks(wanted)].into_iter().find(fits).or(Some(DType::F16))
    }

    /// The type that the mix assigns to the tensor if its rows are whole blocks.
    fn wanted(self, name: &str, shape: &[usize], Sizes { layers, grouping, tied }: Sizes) -> DType {
        let (_, _, base) = self.row();
        let is = |part: &str| name.contains(part);
        if !base.is_quantised() {
            return base;
        }
        let moe = self == Self::MXFP4_MOE;
        if name == "output.weight" || (tied && name == "token_embd.weight") {
            return if moe || base == DType::Q8_0 { DType::Q8_0 } else { DType::Q6_K };
        }
        if moe {
            return if shape.len() > 2 { base } else { DType::Q8_0 };
        }
        if name == "token_embd.weight" && matches!(self, Self::TQ1_0 | Self::TQ2_0) {
            return DType::Q4_K;
        }
        let Some(layer) = layer(name) else { return base };
        if is("attn_v.weight") || is("attn_qkv.weight") || is("attn_kv_b.weight") {
            return match self {
                Self::Q2_K if grouping >= 4 => DType::Q4_K,
                Self::Q2_K => DType::Q3_K,
                Self::Q2_K_S if grouping >= 4 => DType::Q4_K,
                Self::Q3_K_M if layer < 2 => DType::Q5_K,
                Self::Q3_K_M => DType::Q4_K,
                Self::Q3_K_L => DType::Q5_K,
                Self::IQ4_NL | Self::IQ4_XS if grouping >= 4 => DType::Q5_K,
                Self::Q4_K_M | Self::Q5_K_M if more_bits(layer, layers) => DType::Q6_K,
                Self::Q4_K_S if layer < 4 => DType::Q5_K,
                _ => base,
            };
        }
        if is("ffn_down") {
            let first_eighth = layer < layers / 8;
            return match self {
                Self::Q2_K => DType::Q3_K,
                Self::Q2_K_S if first_eighth => DType::Q4_K,
                Self::Q3_K_M if layer < layers / 16 => DType::Q5_K,
                Self::Q3_K_M => DType::Q4_K,
                Self::Q3_K_L => DType::Q5_K,
                Self::Q4_K_M | Self::Q5_K_M if more_bits(layer, layers) => DType::Q6_K,
                Self::IQ4_NL | Self::IQ4_XS | Self::Q4_K_S if first_eighth => DType::Q5_K,
                _ => base,
            };
        }
        match self {
            Self::Q2_K if is("attn_output.weight") => DType::Q3_K,
            Self::Q3_K_M if is("attn_output.weight") => DType::Q4_K,
            Self::Q3_K_L if is("attn_output.weight") => DType::Q5_K,
            _ => base,
        }
    }
}

/// True for RWKV's token-shift weights and low-rank matrices.
fn is_small_rwkv_tensor(name: &str) -> bool {
    let part = name.split("time_mix_").nth(1).and_then(|part| part.strip_suffix(".weight"));
    name.contains("mix_lerp_")
        || part.is_some_and(|part| part.len() == 2 && part.ends_with(['0', '1', '2']))
}

/// Type with smaller blocks, for rows that are not whole blocks of `dtype`.
const fn with_smaller_blocks(dtype: DType) -> DType {
    match dtype {
        DType::IQ4_XS => DType::IQ4_NL,
        DType::Q2_K | DType::Q3_K | DType::TQ1_0 | DType::TQ2_0 => DType::Q4_0,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        small => small,
    }
}

/// Display name of a file's quantisation: that of its `general.file_type`, or else the type of most elements.
#[must_use]
pub fn name_of(gguf: &Gguf) -> &'static str {
    let number = gguf.metadata().u32("general.file_type").ok();
    if let Some(mix) = number.and_then(Mix::from_file_type) {
        return mix.name();
    }
    let mut elements = BTreeMap::new();
    for tensor in gguf.tensors() {
        *elements.entry(tensor.dtype).or_insert(0) += tensor.elements();
    }
    elements.into_iter().max_by_key(|(_, n)| *n).map_or("F32", |(dtype, _)| dtype.name())
}

/// Number of a tensor's layer: 3 for `blk.3.attn_q.weight`.
fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// True for layers that get more bits in the `_M` mixes: the first and the last eighth, and every third between them.
const fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no type `{name}`; there are: {}", Mix::ALL.map(Mix::name).join(", "))]
pub struct UnknownMix {
    pub name: String,
}

impl FromStr for Mix {
    type Err = UnknownMix;

    /// Ignores case. Q3_K, Q4_K and Q5_K mean their `_M`, as in llama.cpp's quantiser.
    fn from_str(name: &str) -> Result<Self, UnknownMix> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        match Self::ALL.into_iter().find(|mix| is(mix.name())) {
            Some(mix) => Ok(mix),
            None if is("Q3_K") => Ok(Self::Q3_K_M),
            None if is("Q4_K") => Ok(Self::Q4_K_M),
            None if is("Q5_K") => Ok(Self::Q5_K_M),
            None => Err(UnknownMix { name: name.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: Sizes = Sizes { layers: 2, grouping: 2, tied: true };
    const LARGE: Sizes = Sizes { layers: 28, ..TINY };

    #[test]
    fn every_tensor_has_the_same_type_as_in_llama_cpps_file() {
        for (model, mix) in [
            ("tiny-llama-Q4_K_M", Mix::Q4_K_M),
            ("tiny-llama-Q6_K", Mix::Q6_K),
            ("tiny-llama-Q8_0", Mix::Q8_0),
            ("tiny-llama-f16", Mix::F16),
            ("tiny-qwen3-Q4_K_M", Mix::Q4_K_M),
            ("tiny-qwen3-Q8_0", Mix::Q8_0),
        ] {
            let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/models");
            let gguf = Gguf::open(format!("{data}/{model}.gguf")).unwrap();
            let found = gguf.metadata().u32("general.file_type").unwrap();
            assert_eq!(Mix::from_file_type(found), Some(mix), "{model}");
            for tensor in gguf.tensors() {
                let dtype = mix.dtype(&tensor.name, &tensor.shape, TINY);
                let expected = dtype.unwrap_or(DType::F32);
                assert_eq!(tensor.dtype, expected, "{model}: {}", tensor.name);
            }
        }
    }

    #[test]
    fn the_same_layers_get_more_bits_as_in_llama_cpp() {
        let more: Vec<usize> = (0..28).filter(|l| more_bits(*l, 28)).collect();
        assert_eq!(more, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]);
        let of =
            |mix: Mix, name: &str| mix.dtype(name, &[512, 512], Sizes { tied: false, ..LARGE });
        assert_eq!(of(Mix::Q5_K_M, "blk.0.attn_v.weight"), Some(DType::Q6_K));
        assert_eq!(of(Mix::Q5_K_S, "blk.0.attn_v.weight"), Some(DType::Q5_K));
        assert_eq!(of(Mix::Q4_K_S, "blk.3.attn_v.weight"), Some(DType::Q5_K));
        assert_eq!(of(Mix::Q4_K_S, "blk.4.attn_v.weight"), Some(DType::Q4_K));
        assert_eq!(of(Mix::Q4_K_S, "blk.2.ffn_down.weight"), Some(DType::Q5_K));
        assert_eq!(of(Mix::Q4_K_S, "blk.3.ffn_down.weight"), Some(DType::Q4_K));
    }

    #[test]
    fn values_shared_by_more_heads_get_more_bits() {
        let of = |mix: Mix, grouping, name: &str| {
            mix.dtype(name, &[512, 512], Sizes { grouping, ..LARGE }).unwrap()
        };
        let v = "blk.5.attn_v.weight";
        for (mix, few, many) in [
            (Mix::Q2_K, DType::Q3_K, DType::Q4_K),
            (Mix::Q2_K_S, DType::Q2_K, DType::Q4_K),
            (Mix::Q3_K_S, DType::Q3_K, DType::Q3_K),
            (Mix::Q3_K_M, DType::Q4_K, DType::Q4_K),
            (Mix::Q3_K_L, DType::Q5_K, DType::Q5_K),
            (Mix::IQ4_NL, DType::IQ4_NL, DType::Q5_K),
            (Mix::IQ4_XS, DType::IQ4_XS, DType::Q5_K),
        ] {
            assert_eq!((of(mix, 3, v), of(mix, 4, v)), (few, many), "{mix}");
        }
        let at = |mix, layer| of(mix, 2, &format!("blk.{layer}.ffn_down.weight"));
        assert_eq!([at(Mix::Q3_K_M, 0), at(Mix::Q3_K_M, 1)], [DType::Q5_K, DType::Q4_K]);
        assert_eq!([at(Mix::IQ4_XS, 2), at(Mix::IQ4_XS, 3)], [DType::Q5_K, DType::IQ4_XS]);
        assert_eq!([at(Mix::Q2_K, 9), at(Mix::Q2_K_S, 2)], [DType::Q3_K, DType::Q4_K]);
    }

    #[test]
    fn only_expert_tensors_are_mxfp4() {
        let of = |name: &str, shape: &[usize]| Mix::MXFP4_MOE.dtype(name, shape, LARGE).unwrap();
        assert_eq!(of("blk.0.ffn_up_exps.weight", &[32, 64, 512]), DType::MXFP4);
        assert_eq!(of("blk.0.attn_q.weight", &[64, 512]), DType::Q8_0);
        assert_eq!(of("token_embd.weight", &[64, 512]), DType::Q8_0);
    }

    #[test]
    fn an_untied_embedding_gets_the_base_type() {
        let of = |name: &str, tied| Mix::Q4_K_M.dtype(name, &[1000, 512], Sizes { tied, ..LARGE });
        assert_eq!(of("output.weight", false), Some(DType::Q6_K));
        assert_eq!(of("token_embd.weight", false), Some(DType::Q4_K));
        assert_eq!(of("token_embd.weight", true), Some(DType::Q6_K));
        let half =
            |tied| Mix::F16.dtype("token_embd.weight", &[1000, 512], Sizes { tied, ..LARGE });
        assert_eq!((half(true), half(false)), (Some(DType::F16), Some(DType::F16)));
    }

    #[test]
    fn rows_that_are_not_whole_blocks_get_smaller_blocks() {
        let of = |mix: Mix, row| mix.dtype("blk.4.attn_q.weight", &[64, row], LARGE);
        for (mix, whole, partial) in [
            (Mix::Q4_K_M, DType::Q4_K, DType::Q5_0),
            (Mix::Q5_K_M, DType::Q5_K, DType::Q5_1),
            (Mix::Q6_K, DType::Q6_K, DType::Q8_0),
            (Mix::Q3_K_S, DType::Q3_K, DType::Q4_0),
            (Mix::IQ4_XS, DType::IQ4_XS, DType::IQ4_NL),
            (Mix::Q5_1, DType::Q5_1, DType::Q5_1),
        ] {
            assert_eq!((of(mix, 512), of(mix, 96)), (Some(whole), Some(partial)), "{mix}");
            assert_eq!(of(mix, 80), Some(DType::F16), "{mix}");
        }
        assert_eq!(of(Mix::F32, 80), Some(DType::F32));
    }

    #[test]
    fn norms_vectors_and_routers_are_not_quantised() {
        for (name, shape) in [
            ("blk.0.attn_norm.weight", &[512][..]),
            ("blk.0.attn_q.bias", &[512]),
            ("rope_freqs.weight", &[64]),
            ("blk.0.attn_q_norm.weight", &[8, 64]),
            ("blk.0.ffn_gate_inp.weight", &[8, 512]),
            ("blk.0.time_mix_g2.weight", &[512, 64]),
            ("blk.0.time_mix_lerp_fused.weight", &[6, 1, 1, 512]),
        ] {
            assert_eq!(Mix::Q4_0.dtype(name, shape, LARGE), None, "{name}");
        }
    }

    #[test]
    fn names_round_trip_in_any_case() {
        for mix in Mix::ALL {
            assert_eq!(mix.name().to_lowercase().parse(), Ok(mix));
        }
        assert_eq!("q4_k".parse(), Ok(Mix::Q4_K_M));
        assert_eq!("q3_k".parse(), Ok(Mix::Q3_K_M));
        let error = "q9_k_m".parse::<Mix>().unwrap_err().to_string();
        assert!(error.starts_with("no type `q9_k_m`; there are: F32, F16, BF16, Q8_0"), "{error}");
    }
}
