//! An architecture's metadata, checked where it is read: a value out of bounds is an error that names its key.

use std::cell::RefCell;

use crate::Error;
use crate::gguf::{Array, Gguf, Value};
use crate::hyper::{
    Attention, Embedding, Experts, FeedForward, Hyperparameters, Keys as KeysOf, Layer, Logits,
    Norm,
};
use crate::rope::Rope;
use crate::weights::check;
use plan::{Activation, DType, Gating, NormKind, RopeStyle, RouterScores, Routing, Scalar, Scores};

/// Bounds against absurd files; every model in the field is far below.
const MAX_LAYERS: usize = 1024;
pub(super) const MAX_EXTENT: usize = 1 << 24;
const MAX_HEAD: usize = 512;
const MAX_EXPERTS: usize = 4096;

/// The keys of one file under its architecture's name.
pub(crate) struct Keys<'a> {
    pub(crate) gguf: &'a Gguf,
    architecture: &'static str,
    /// Tensors whose values were read here.
    read: RefCell<Vec<String>>,
}

impl<'a> Keys<'a> {
    pub(super) const fn new(gguf: &'a Gguf, architecture: &'static str) -> Self {
        Self { gguf, architecture, read: RefCell::new(Vec::new()) }
    }

    /// The whole key: `llama.` before it.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// The error of a value that is not as expected.
    pub(crate) fn refuse(
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

    /// The same of a key that need not be there.
    pub(crate) fn number_opt(&self, name: &str, limit: usize) -> Result<Option<usize>, Error> {
        let value = self.gguf.metadata().u32_opt(&self.key(name))?;
        value.map(|value| self.within(name, value as usize, limit)).transpose()
    }

    fn within(&self, name: &str, value: usize, limit: usize) -> Result<usize, Error> {
        match value {
            1.. if value <= limit => Ok(value),
            _ => Err(self.refuse(name, value, &format!("1 to {limit}"))),
        }
    }

    /// A number of 1 to `limit` for each of `layers` layers: an array, or one for all.
    pub(super) fn each(
        &self,
        name: &str,
        layers: usize,
        limit: usize,
    ) -> Result<Option<Vec<usize>>, Error> {
        let numbers: Vec<u64> = match self.gguf.metadata().get(&self.key(name)) {
            Some(Value::Array(Array::U32(all))) => all.iter().map(|&n| n.into()).collect(),
            // A negative one is out of bounds either way.
            Some(Value::Array(Array::I32(all))) => {
                all.iter().map(|&n| n.try_into().unwrap_or(0)).collect()
            }
            _ => return Ok(self.number_opt(name, limit)?.map(|number| vec![number; layers])),
        };
        if numbers.len() < layers {
            let expected = format!("one for each of {layers} layers");
            return Err(self.refuse(name, format!("{} numbers", numbers.len()), &expected));
        }
        let number = |&n: &u64| self.within(name, usize::try_from(n).unwrap_or(usize::MAX), limit);
        numbers[..layers].iter().map(number).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// A finite number above 0.
    pub(crate) fn positive(&self, name: &str) -> Result<Option<f32>, Error> {
        match self.gguf.metadata().f32_opt(&self.key(name))? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.refuse(name, value, "a positive number"))
            }
            value => Ok(value),
        }
    }

    /// A number up to `limit`, 0 where there is no such key.
    pub(super) fn count(&self, name: &str, limit: usize) -> Result<usize, Error> {
        match self.gguf.metadata().u32_opt(&self.key(name))?.unwrap_or(0) as usize {
            value if value <= limit => Ok(value),
            value => Err(self.refuse(name, value, &format!("at most {limit}"))),
        }
    }

    /// The same, 0 standing for "not set", as some converters write it.
    pub(crate) fn set(&self, name: &str) -> Result<Option<f32>, Error> {
        match self.gguf.metadata().f32_opt(&self.key(name))? {
            Some(0.0) => Ok(None),
            _ => self.positive(name),
        }
    }

    /// Refuses a number that would change the result if it were ignored.
    pub(super) fn without(&self, name: &str, feature: &str) -> Result<(), Error> {
        match self.gguf.metadata().u32_opt(&self.key(name))? {
            None | Some(0) => Ok(()),
            Some(value) => {
                let architecture = self.architecture;
                let expected = format!("{feature} not supported for `{architecture}`; 0");
                Err(self.refuse(name, value, &expected))
            }
        }
    }

    /// The values of a vector that is needed to understand the file, where it is there.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, Error> {
        let Some(tensor) = self.gguf.tensor(name) else { return Ok(None) };
        check(tensor, &[len], "F32", |dtype| dtype == DType::F32)?;
        let mut bytes = vec![0; 4 * len];
        self.gguf.read(tensor, 0, &mut bytes)?;
        self.read.borrow_mut().push(name.to_owned());
        Ok(Some(bytes.as_chunks::<4>().0.iter().map(|quad| f32::from_le_bytes(*quad)).collect()))
    }

    /// Names of the tensors that [`Keys::vector`] read.
    pub(super) fn into_read(self) -> Vec<String> {
        self.read.into_inner()
    }

    pub(super) fn layers(&self) -> Result<usize, Error> {
        self.number("block_count", MAX_LAYERS)
    }

    pub(crate) fn context(&self) -> Result<usize, Error> {
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
        Err(self.refuse(name, eps, "a number between 0 and 1"))
    }

    /// Layers whose heads are of one size, that attend to everything and have one rotation.
    pub(super) fn attention(&self, style: RopeStyle) -> Result<Attention, Error> {
        let width = self.number("embedding_length", MAX_EXTENT)?;
        let heads = self.number("attention.head_count", MAX_EXTENT)?;
        let kv_heads = self.kv_heads(heads)?[0];
        let head_size = self.head_size("", Some(width / heads))?;
        let scale = self.set("attention.scale")?.unwrap_or(1.0 / (head_size as f32).sqrt());
        Ok(Attention {
            heads,
            kv_heads,
            head_size,
            style,
            rope: 0,
            qk_norm: None,
            gated: false,
            value_norm: false,
            keys: KeysOf::Own,
            scores: Scores::scaled(scale),
            sinks: false,
        })
    }

    /// Key and value heads of each layer with `heads` heads; where there is no attention as many as in the first
    /// layer that has it.
    pub(super) fn kv_heads(&self, heads: usize) -> Result<Vec<usize>, Error> {
        let (name, layers) = ("attention.head_count_kv", self.layers()?);
        let headless = self.headless(layers)?;
        let mut all = match self.gguf.metadata().get(&self.key(name)) {
            Some(Value::Array(all)) if headless.contains(&true) => heads_of(all),
            _ => self.each(name, layers, heads)?.unwrap_or_else(|| vec![heads; layers]),
        };
        all.truncate(layers);
        let some = all.iter().copied().find(|&kv_heads| kv_heads > 0).unwrap_or(heads);
        all.iter_mut().filter(|kv_heads| **kv_heads == 0).for_each(|kv_heads| *kv_heads = some);
        match all.iter().find(|&&kv_heads| !heads.is_multiple_of(kv_heads)) {
            None => Ok(all),
            Some(kv_heads) => {
                Err(self.refuse(name, kv_heads, &format!("a divisor of {heads} heads")))
            }
        }
    }

    /// Which layers have no attention: the file says 0 key and value heads of them.
    pub(super) fn headless(&self, layers: usize) -> Result<Vec<bool>, Error> {
        let name = "attention.head_count_kv";
        match self.gguf.metadata().get(&self.key(name)) {
            Some(Value::Array(all)) if self.architecture == "lfm2" => {
                let all = heads_of(all);
                if all.len() < layers {
                    let expected = format!("one for each of {layers} layers");
                    return Err(self.refuse(name, format!("{} numbers", all.len()), &expected));
                }
                Ok(all[..layers].iter().map(|&kv_heads| kv_heads == 0).collect())
            }
            _ => Ok(vec![false; layers]),
        }
    }

    /// Values of a head, as keys with an ending say.
    pub(super) fn head_size(&self, ending: &str, default: Option<usize>) -> Result<usize, Error> {
        let name = format!("attention.key_length{ending}");
        let head_size = match (self.number_opt(&name, MAX_HEAD)?, default) {
            (Some(size), _) | (None, Some(size)) => size,
            (None, None) => self.number(&name, MAX_HEAD)?,
        };
        if !(1..=MAX_HEAD).contains(&head_size) || !head_size.is_multiple_of(16) {
            let expected = format!("a multiple of 16, at most {MAX_HEAD},");
            return Err(self.refuse(&name, head_size, &expected));
        }
        let name = format!("attention.value_length{ending}");
        match self.number_opt(&name, MAX_EXTENT)? {
            Some(size) if size != head_size => {
                Err(self.refuse(&name, size, &format!("{head_size} (the key length)")))
            }
            _ => Ok(head_size),
        }
    }

    /// Values of a head of `head_size` that are rotated.
    pub(super) fn rotated(&self, ending: &str, head_size: usize) -> Result<usize, Error> {
        let name = format!("rope.dimension_count{ending}");
        match self.number_opt(&name, MAX_EXTENT)? {
            None => Ok(head_size),
            Some(n) if n <= head_size && n.is_multiple_of(2) => Ok(n),
            Some(n) => {
                let expected = format!("an even number, at most {head_size} (the key length),");
                Err(self.refuse(&name, n, &expected))
            }
        }
    }

    /// Width of each layer's feed-forward part.
    pub(super) fn widths(&self) -> Result<Vec<usize>, Error> {
        let (name, layers) = ("feed_forward_length", self.layers()?);
        match self.each(name, layers, MAX_EXTENT)? {
            Some(widths) => Ok(widths),
            None => Ok(vec![self.number(name, MAX_EXTENT)?; layers]),
        }
    }

    /// A mixture with softmax over all experts' logits, as most families have it.
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

    /// Gives experts the width that the feed-forward part would have without them.
    pub(super) fn whole_experts(&self, hyper: &mut Hyperparameters) -> Result<(), Error> {
        for (layer, width) in hyper.layers.iter_mut().zip(self.widths()?) {
            layer.feed_forward_width = width;
        }
        Ok(())
    }

    /// Whether the file has a mixture of experts.
    pub(super) fn mixed(&self) -> Result<bool, Error> {
        Ok(self.count("expert_count", MAX_EXPERTS)? > 0)
    }

    /// Says that the tensors whose names begin so are not part of what is computed.
    pub(super) fn pass_over(&self, prefix: &str) {
        let names = self.gguf.tensors().iter().map(|tensor| &tensor.name);
        let names = names.filter(|name| name.starts_with(prefix)).cloned();
        self.read.borrow_mut().extend(names);
    }

    /// The window of sliding attention, where the file has one.
    pub(super) fn window(&self) -> Result<Option<usize>, Error> {
        self.number_opt("attention.sliding_window", u32::MAX as usize)
    }

    /// Which of the layers have a window: a list in the file, or all but every `period`th.
    pub(super) fn windowed(&self, layers: usize, period: usize) -> Result<Vec<bool>, Error> {
        let name = "attention.sliding_window_pattern";
        let period = match self.gguf.metadata().get(&self.key(name)) {
            Some(Value::Array(Array::Bool(all))) if all.len() >= layers => {
                return Ok(all[..layers].to_vec());
            }
            Some(Value::Array(all)) => {
                let value = format!("{} values of {}", all.len(), all.element_type());
                let expected = format!("a truth value for each of {layers} layers");
                return Err(self.refuse(name, value, &expected));
            }
            _ => self.number_opt(name, MAX_LAYERS)?.unwrap_or(period),
        };
        Ok((1..=layers).map(|layer| !layer.is_multiple_of(period)).collect())
    }

    /// Rows of the embedding, at least as many as there are tokens.
    fn vocabulary(&self) -> Result<usize, Error> {
        let embedding = "token_embd.weight";
        let Some([rows, _]) = self.gguf.tensor(embedding).map(|tensor| &tensor.shape[..]) else {
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

    /// A model of layers that differ in nothing but widths, one part after the other.
    pub(super) fn model(
        &self,
        norm: Norm,
        attention: &Attention,
        feed_forward: FeedForward,
        rope: Rope,
    ) -> Result<Hyperparameters, Error> {
        let widths = match feed_forward {
            FeedForward::Experts(experts) => self.expert_widths(&experts)?,
            FeedForward::Both { .. } => self.widths()?,
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

/// Numbers of heads, whatever their type.
fn heads_of(all: &Array) -> Vec<usize> {
    match all {
        Array::U32(all) => all.iter().map(|&n| n as usize).collect(),
        Array::I32(all) => all.iter().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect(),
        _ => Vec::new(),
    }
}
