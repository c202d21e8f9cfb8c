//! Reads and checks an architecture's metadata. Each error names its key.

use std::cell::RefCell;

use crate::error::Error;
use crate::gguf::{Array, Gguf, Value};
use crate::hyper::{
    Attention, Embedding, Experts, FeedForward, Hyperparameters, Layer, Logits, Norm, Rope,
};
use crate::weights::check;
use plan::{Activation, DType, Gating, NormKind, RopeStyle, RouterScores, Routing, Scalar};

/// Limits that reject damaged files; real models are far below.
const MAX_LAYERS: usize = 1024;
pub(super) const MAX_EXTENT: usize = 1 << 24;
const MAX_HEAD: usize = 512;
const MAX_EXPERTS: usize = 4096;

/// Metadata and tensors of a file with this architecture.
pub(super) struct Keys<'a> {
    pub(super) gguf: &'a Gguf,
    architecture: &'static str,
    /// Tensors that are not weights, because their values are read here or are not needed.
    ignored: RefCell<Vec<String>>,
}

impl<'a> Keys<'a> {
    pub(super) const fn new(gguf: &'a Gguf, architecture: &'static str) -> Self {
        Self { gguf, architecture, ignored: RefCell::new(Vec::new()) }
    }

    /// The full key, such as `llama.NAME`.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// The error for a value that is not as expected.
    pub(super) fn reject(
        &self,
        name: &str,
        value: impl std::fmt::Display,
        expected: &str,
    ) -> Error {
        Error::hyperparameter(self.key(name), &value, expected)
    }

    /// A number of 1 to `limit`.
    pub(super) fn number(&self, name: &str, limit: usize) -> Result<usize, Error> {
        let value = self.gguf.metadata().u32(&self.key(name))?;
        self.within(name, value as usize, limit)
    }

    /// The same for an optional key.
    pub(super) fn number_opt(&self, name: &str, limit: usize) -> Result<Option<usize>, Error> {
        let value = self.gguf.metadata().u32_opt(&self.key(name))?;
        value.map(|value| self.within(name, value as usize, limit)).transpose()
    }

    fn within(&self, name: &str, value: usize, limit: usize) -> Result<usize, Error> {
        match value {
            1.. if value <= limit => Ok(value),
            _ => Err(self.reject(name, value, &format!("1 to {limit}"))),
        }
    }

    /// A number of 1 to `limit` for each of `layers` layers: an array, or one number for all.
    pub(super) fn each(
        &self,
        name: &str,
        layers: usize,
        limit: usize,
    ) -> Result<Option<Vec<usize>>, Error> {
        let numbers: Vec<u64> = match self.gguf.metadata().get(&self.key(name)) {
            Some(Value::Array(Array::U32(all))) => all.iter().map(|&n| n.into()).collect(),
            // Negative numbers become 0, which is out of bounds too.
            Some(Value::Array(Array::I32(all))) => {
                all.iter().map(|&n| n.try_into().unwrap_or(0)).collect()
            }
            _ => return Ok(self.number_opt(name, limit)?.map(|number| vec![number; layers])),
        };
        if numbers.len() < layers {
            let expected = format!("one for each of {layers} layers");
            return Err(self.reject(name, format!("{} numbers", numbers.len()), &expected));
        }
        let number = |&n: &u64| self.within(name, usize::try_from(n).unwrap_or(usize::MAX), limit);
        numbers[..layers].iter().map(number).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, name: &str) -> Result<Option<f32>, Error> {
        match self.gguf.metadata().f32_opt(&self.key(name))? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.reject(name, value, "a positive number"))
            }
            value => Ok(value),
        }
    }

    /// A number up to `limit`; 0 without the key.
    pub(super) fn count(&self, name: &str, limit: usize) -> Result<usize, Error> {
        match self.gguf.metadata().u32_opt(&self.key(name))?.unwrap_or(0) as usize {
            value if value <= limit => Ok(value),
            value => Err(self.reject(name, value, &format!("at most {limit}"))),
        }
    }

    /// As [`Self::positive`], but 0 counts as missing, because some converters write it for that.
    pub(super) fn set(&self, name: &str) -> Result<Option<f32>, Error> {
        match self.gguf.metadata().f32_opt(&self.key(name))? {
            Some(0.0) => Ok(None),
            _ => self.positive(name),
        }
    }

    /// Rejects a number other than 0, because ignoring it would change the result.
    pub(super) fn without(&self, name: &str, feature: &str) -> Result<(), Error> {
        match self.gguf.metadata().u32_opt(&self.key(name))? {
            None | Some(0) => Ok(()),
            Some(value) => {
                let architecture = self.architecture;
                let expected = format!("{feature} not supported for `{architecture}`; 0");
                Err(self.reject(name, value, &expected))
            }
        }
    }

    /// The values of an optional vector.
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, Error> {
        let Some(tensor) = self.gguf.tensor(name) else { return Ok(None) };
        check(tensor, &[len], "F32", |dtype| dtype == DType::F32)?;
        let mut bytes = vec![0; 4 * len];
        self.gguf.read(tensor, 0, &mut bytes)?;
        self.ignored.borrow_mut().push(name.to_owned());
        Ok(Some(bytes.as_chunks::<4>().0.iter().map(|quad| f32::from_le_bytes(*quad)).collect()))
    }

    /// Names of the tensors that are not weights.
    pub(super) fn into_ignored(self) -> Vec<String> {
        self.ignored.into_inner()
    }

    pub(super) fn layers(&self) -> Result<usize, Error> {
        self.number("block_count", MAX_LAYERS)
    }

    pub(super) fn context(&self) -> Result<usize, Error> {
        self.number("context_length", u32::MAX as usize)
    }

    pub(super) fn rms_norm(&self) -> Result<Norm, Error> {
        self.norm("attention.layer_norm_rms_epsilon", NormKind::Rms)
    }

    pub(super) fn layer_norm(&self) -> Result<Norm, Error> {
        self.norm("attention.layer_norm_epsilon", NormKind::Layer)
    }

    fn norm(&self, name: &str, kind: NormKind) -> Result<Norm, Error> {
        let eps = self.gguf.metadata().f32(&self.key(name))?;
        if eps > 0.0 && eps < 1.0 {
            return Ok(Norm { kind, eps });
        }
        Err(self.reject(name, eps, "a number between 0 and 1"))
    }

    /// Attention to all earlier positions, as the file describes it.
    pub(super) fn attention(&self, style: RopeStyle) -> Result<Attention, Error> {
        let width = self.number("embedding_length", MAX_EXTENT)?;
        let heads = self.number("attention.head_count", MAX_EXTENT)?;
        let kv_heads = self.kv_heads(heads)?[0];
        let head_size = self.head_size("", Some(width / heads))?;
        let scale = self.set("attention.scale")?.unwrap_or(1.0 / (head_size as f32).sqrt());
        Ok(Attention::new([heads, kv_heads], head_size, style, scale))
    }

    /// KV heads of each layer with `heads` heads. Layers without attention get the number of the first layer that
    /// has it.
    pub(super) fn kv_heads(&self, heads: usize) -> Result<Vec<usize>, Error> {
        let (name, layers) = ("attention.head_count_kv", self.layers()?);
        let without_attention = self.without_attention(layers)?;
        let mut all = match self.gguf.metadata().get(&self.key(name)) {
            Some(Value::Array(all)) if without_attention.contains(&true) => heads_of(all),
            _ => self.each(name, layers, heads)?.unwrap_or_else(|| vec![heads; layers]),
        };
        all.truncate(layers);
        let some = all.iter().copied().find(|&kv_heads| kv_heads > 0).unwrap_or(heads);
        all.iter_mut().filter(|kv_heads| **kv_heads == 0).for_each(|kv_heads| *kv_heads = some);
        match all.iter().find(|&&kv_heads| !heads.is_multiple_of(kv_heads)) {
            None => Ok(all),
            Some(kv_heads) => {
                Err(self.reject(name, kv_heads, &format!("a divisor of {heads} heads")))
            }
        }
    }

    /// For each layer, true if it has no attention, which is 0 KV heads in the file.
    pub(super) fn without_attention(&self, layers: usize) -> Result<Vec<bool>, Error> {
        let name = "attention.head_count_kv";
        match self.gguf.metadata().get(&self.key(name)) {
            Some(Value::Array(all)) if self.architecture == "lfm2" => {
                let all = heads_of(all);
                if all.len() < layers {
                    let expected = format!("one for each of {layers} layers");
                    return Err(self.reject(name, format!("{} numbers", all.len()), &expected));
                }
                Ok(all[..layers].iter().map(|&kv_heads| kv_heads == 0).collect())
            }
            _ => Ok(vec![false; layers]),
        }
    }

    /// Size of a head, from keys with this ending.
    pub(super) fn head_size(&self, ending: &str, default: Option<usize>) -> Result<usize, Error> {
        let name = format!("attention.key_length{ending}");
        let head_size = match (self.number_opt(&name, MAX_HEAD)?, default) {
            (Some(size), _) | (None, Some(size)) => size,
            (None, None) => self.number(&name, MAX_HEAD)?,
        };
        if !(1..=MAX_HEAD).contains(&head_size) || !head_size.is_multiple_of(16) {
            let expected = format!("a multiple of 16, at most {MAX_HEAD},");
            return Err(self.reject(&name, head_size, &expected));
        }
        let name = format!("attention.value_length{ending}");
        match self.number_opt(&name, MAX_EXTENT)? {
            Some(size) if size != head_size => {
                Err(self.reject(&name, size, &format!("{head_size} (the key length)")))
            }
            _ => Ok(head_size),
        }
    }

    /// Number of rotated values in a head of `head_size`.
    pub(super) fn rotated(&self, ending: &str, head_size: usize) -> Result<usize, Error> {
        let name = format!("rope.dimension_count{ending}");
        match self.number_opt(&name, MAX_EXTENT)? {
            None => Ok(head_size),
            Some(n) if n <= head_size && n.is_multiple_of(2) => Ok(n),
            Some(n) => {
                let expected = format!("an even number, at most {head_size} (the key length),");
                Err(self.reject(&name, n, &expected))
            }
        }
    }

    /// Width of each layer's feed-forward block.
    pub(super) fn widths(&self) -> Result<Vec<usize>, Error> {
        let (name, layers) = ("feed_forward_length", self.layers()?);
        match self.each(name, layers, MAX_EXTENT)? {
            Some(widths) => Ok(widths),
            None => Ok(vec![self.number(name, MAX_EXTENT)?; layers]),
        }
    }

    /// Experts routed by a softmax over all logits, as in most families.
    pub(super) fn experts(&self, normalised: bool, shared: bool) -> Result<Experts, Error> {
        let count = self.number("expert_count", MAX_EXPERTS)?;
        let chosen = self.number("expert_used_count", count)?;
        let scale = Scalar::new(self.set("expert_weights_scale")?.unwrap_or(1.0));
        let routing = Routing { chosen, scores: RouterScores::Softmax, normalised, scale };
        let shared = match shared {
            true => {
                let width = self.number_opt("expert_shared_feed_forward_length", MAX_EXTENT)?;
                Some(width.map_or_else(|| self.number("feed_forward_length", MAX_EXTENT), Ok)?)
            }
            false => None,
        };
        let gating = Gating::Glu(Activation::Silu);
        Ok(Experts { count, routing, gating, shared, scaled: false })
    }

    /// Rows of each layer's experts' first matrices.
    fn expert_widths(&self, experts: &Experts) -> Result<Vec<usize>, Error> {
        let (name, layers) = ("expert_feed_forward_length", self.layers()?);
        if let Some(widths) = self.each(name, layers, MAX_EXTENT)? {
            return Ok(widths);
        }
        let all = self.widths()?;
        Ok(all.into_iter().map(|width| width / experts.routing.chosen).collect())
    }

    /// Sets the width of experts to that of a dense feed-forward block.
    pub(super) fn whole_experts(&self, hyper: &mut Hyperparameters) -> Result<(), Error> {
        for (layer, width) in hyper.layers.iter_mut().zip(self.widths()?) {
            layer.feed_forward_width = width;
        }
        Ok(())
    }

    /// True if the file has experts.
    pub(super) fn has_experts(&self) -> Result<bool, Error> {
        Ok(self.count("expert_count", MAX_EXPERTS)? > 0)
    }

    /// Accepts tensors with this prefix without using them.
    pub(super) fn ignore(&self, prefix: &str) {
        let names = self.gguf.tensors().iter().map(|tensor| &tensor.name);
        let names = names.filter(|name| name.starts_with(prefix)).cloned();
        self.ignored.borrow_mut().extend(names);
    }

    /// Size of the sliding window, if the file has one.
    pub(super) fn window(&self) -> Result<Option<usize>, Error> {
        self.number_opt("attention.sliding_window", u32::MAX as usize)
    }

    pub(super) fn required_window(&self) -> Result<usize, Error> {
        let missing = || self.reject("attention.sliding_window", "missing", "a number");
        self.window()?.ok_or_else(missing)
    }

    /// For each layer, true if it has a sliding window: all but every `period`th, unless the file has its own pattern.
    pub(super) fn windowed(&self, layers: usize, period: usize) -> Result<Vec<bool>, Error> {
        let name = "attention.sliding_window_pattern";
        self.layer_flags([name, name], layers, period)
    }

    /// A flag for each layer: from the array `list`, or else true for all but every nth layer, `n` being the number
    /// `interval` or the default.
    pub(super) fn layer_flags(
        &self,
        [list, interval]: [&str; 2],
        layers: usize,
        default: usize,
    ) -> Result<Vec<bool>, Error> {
        let found = match self.gguf.metadata().get(&self.key(list)) {
            Some(Value::Array(Array::Bool(all))) if all.len() >= layers => {
                return Ok(all[..layers].to_vec());
            }
            Some(Value::Array(all)) => format!("{} values of {}", all.len(), all.element_type()),
            Some(other) if list != interval => other.value_type().to_string(),
            _ => {
                let period = self.number_opt(interval, MAX_LAYERS)?.unwrap_or(default);
                return Ok((1..=layers).map(|layer| !layer.is_multiple_of(period)).collect());
            }
        };
        Err(self.reject(list, found, &format!("a truth value for each of {layers} layers")))
    }

    /// Rows of the embedding, at least the number of tokens.
    fn vocabulary(&self) -> Result<usize, Error> {
        let embedding = "token_embd.weight";
        let Some([.., rows, _]) = self.gguf.tensor(embedding).map(|tensor| &tensor.shape[..])
        else {
            return Err(Error::missing_tensor(self.gguf, embedding));
        };
        let name = "tokenizer.ggml.tokens";
        match self.gguf.metadata().get(name) {
            Some(Value::Array(tokens)) if tokens.len() > *rows => {
                let found = format!("{} tokens", tokens.len());
                let expected = format!("at most {rows}, the rows of `{embedding}`,");
                Err(Error::hyperparameter(name.into(), &found, &expected))
            }
            _ => Ok(*rows),
        }
    }

    /// A model of sequential layers that differ only in widths and KV heads.
    pub(super) fn model(
        &self,
        norm: Norm,
        attention: &Attention,
        feed_forward: FeedForward,
        rope: Rope,
    ) -> Result<Hyperparameters, Error> {
        let widths = match feed_forward {
            FeedForward::Experts(experts) => self.expert_widths(&experts)?,
            FeedForward::DenseAndExperts { .. } => self.widths()?,
            FeedForward::Gated { .. } | FeedForward::Plain { .. } | FeedForward::ChannelMix => {
                self.without("expert_count", "mixtures of experts are")?;
                self.widths()?
            }
        };
        let kv_heads = self.kv_heads(attention.heads)?;
        let vocabulary = self.vocabulary()?;
        let layer = |(feed_forward_width, kv_heads)| Layer {
            attention: Attention { kv_heads, ..attention.clone() },
            recurrent: None,
            feed_forward,
            feed_forward_width,
            feed_forward_norm: "ffn_norm",
            parallel: false,
            norm_after: false,
            residual_scale: None,
            output_scale: None,
        };
        Ok(Hyperparameters {
            width: self.number("embedding_length", MAX_EXTENT)?,
            vocabulary,
            context: self.context()?,
            norm,
            embedding: Embedding::default(),
            output_norm: "output_norm",
            layers: widths.into_iter().zip(kv_heads).map(layer).collect(),
            nextn: None,
            logits: Logits::default(),
            ropes: vec![rope],
        })
    }
}

/// Numbers of heads, of either integer type.
fn heads_of(all: &Array) -> Vec<usize> {
    match all {
        Array::U32(all) => all.iter().map(|&n| n as usize).collect(),
        Array::I32(all) => all.iter().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect(),
        _ => Vec::new(),
    }
}
