//! Sizes and constants of a model, from GGUF metadata.

use super::{Architecture, Error};
use crate::gguf::Gguf;

#[derive(Clone, Debug, PartialEq)]
pub struct Hyperparameters {
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    pub feed_forward: usize,
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    pub head_size: usize,
    pub vocabulary: usize,
    /// Tokens the model was trained for.
    pub context: usize,
    /// Added to the mean square in every RMSNorm.
    pub norm_eps: f32,
}

/// Bounds against absurd files; every model in the field is far below.
const MAX_LAYERS: usize = 1024;
const MAX_EXTENT: usize = 1 << 24;

impl Hyperparameters {
    pub(super) fn read(gguf: &Gguf, architecture: Architecture) -> Result<Self, Error> {
        let meta = gguf.metadata();
        let key = |name: &str| format!("{}.{name}", architecture.name());
        let number = |name: &str, value: u32, limit: usize| match value as usize {
            value if (1..=limit).contains(&value) => Ok(value),
            value => Err(Error::hyperparameter(key(name), &value, &format!("1 to {limit}"))),
        };
        let required = |name: &str, limit: usize| number(name, meta.u32(&key(name))?, limit);
        let optional = |name: &str, default: usize, limit: usize| match meta.u32_opt(&key(name))? {
            Some(value) => number(name, value, limit),
            None => Ok(default),
        };

        let width = required("embedding_length", MAX_EXTENT)?;
        let heads = required("attention.head_count", MAX_EXTENT)?;
        let kv_heads = optional("attention.head_count_kv", heads, heads)?;
        let head_size = optional("attention.key_length", width / heads, 256)?;
        let value_size = optional("attention.value_length", head_size, 256)?;
        let rotated = optional("rope.dimension_count", head_size, MAX_EXTENT)?;
        let vocabulary = match gguf.tensor("token_embd.weight").map(|t| &t.shape[..]) {
            Some([rows, _]) => *rows,
            _ => return Err(Error::missing_tensor(gguf, "token_embd.weight")),
        };
        let divisor = format!("a divisor of {heads} heads");
        let key_length = format!("{head_size} (the key length)");
        for (name, value, fits, expected) in [
            ("head_count_kv", kv_heads, heads.is_multiple_of(kv_heads), &*divisor),
            ("key_length", head_size, head_size.is_multiple_of(16), "a multiple of 16"),
            ("value_length", value_size, value_size == head_size, &key_length),
        ] {
            if !fits {
                let key = key(&format!("attention.{name}"));
                return Err(Error::hyperparameter(key, &value, expected));
            }
        }
        if rotated != head_size {
            return Err(Error::hyperparameter(key("rope.dimension_count"), &rotated, &key_length));
        }
        let eps_key = key("attention.layer_norm_rms_epsilon");
        let norm_eps = meta.f32(&eps_key)?;
        if !(norm_eps > 0.0 && norm_eps < 1.0) {
            return Err(Error::hyperparameter(eps_key, &norm_eps, "a number between 0 and 1"));
        }
        Ok(Self {
            layers: required("block_count", MAX_LAYERS)?,
            width,
            feed_forward: required("feed_forward_length", MAX_EXTENT)?,
            heads,
            kv_heads,
            head_size,
            vocabulary,
            context: required("context_length", u32::MAX as usize)?,
            norm_eps,
        })
    }
}
