//! Hyperparameters: sizes of a model, and the building blocks of each layer. `architecture` reads them from a file's
//! metadata; `decoder` builds the graph from them.

use plan::{Activation, DeltaHeads, Gating, NormKind, RopeStyle, Routing, Scores};

#[derive(Clone, Debug, PartialEq)]
pub struct Hyperparameters {
    /// Width of the residual stream.
    pub width: usize,
    pub vocabulary: usize,
    /// Context length that the model was trained with.
    pub context: usize,
    pub norm: Norm,
    pub embedding: Embedding,
    pub layers: Vec<Layer>,
    /// The nextn layer (multi-token prediction, MTP), which predicts one more token; `None` if missing or disabled.
    pub nextn: Option<Layer>,
    /// Name of the norm before the output projection.
    pub output_norm: &'static str,
    pub logits: Logits,
    /// Rotations; layers refer to them by index.
    pub(crate) ropes: Vec<Rope>,
}

/// Rotary position embedding (RoPE).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    /// Radians per position, one per pair.
    pub(crate) frequencies: Vec<f32>,
    /// Other frequencies, for contexts longer than this number of tokens.
    pub(crate) long: Option<(Vec<f32>, usize)>,
    /// Factor on cosines and sines.
    pub(crate) magnitude: f32,
}

/// Kind of all norms of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    pub kind: NormKind,
    /// Epsilon, added to the mean square.
    pub eps: f32,
}

/// Input of the first layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Embedding {
    /// Factor on the token embedding.
    pub scale: Option<f32>,
    /// The embedding is normalised.
    pub norm: bool,
    /// Learned position embeddings are added.
    pub positions: bool,
    /// Width of the per-layer embedding of a token, in models that have them.
    pub per_layer: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub attention: Attention,
    /// Recurrent block in place of attention.
    pub recurrent: Option<Recurrent>,
    pub feed_forward: FeedForward,
    /// Rows of its first matrices; with experts, of each expert's.
    pub feed_forward_width: usize,
    /// Name of the norm before the feed-forward block.
    pub feed_forward_norm: &'static str,
    /// Attention and feed-forward block have the same input; the residual stream is the sum of both.
    pub parallel: bool,
    /// Each block's output is normalised before it is added to the residual stream.
    pub norm_after: bool,
    /// Factor on each block's output before it is added.
    pub residual_scale: Option<f32>,
    /// Factor on the layer's output.
    pub output_scale: Option<f32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    pub head_size: usize,
    pub style: RopeStyle,
    /// Index of its rotation among the rotations of the model.
    pub rope: usize,
    /// QK norm: queries and keys are normalised before rotation.
    pub qk_norm: Option<QkNorm>,
    /// The output is multiplied by the sigmoid of a gate. `attn_q` has the gate's rows of each head after its
    /// query's.
    pub gated: bool,
    /// Values are normalised too, without a weight.
    pub value_norm: bool,
    pub kv: KvSource,
    pub scores: Scores,
    /// Attention sinks: each head has an additional score in its softmax, without a value.
    pub sinks: bool,
}

/// Values of queries and keys that are normalised together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself.
    Head,
    /// All heads together.
    Row,
}

/// Source of a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// Two matrices, and a cache of its own.
    Own,
    /// One matrix for both: values are the keys before norm and rotation.
    OneMatrix,
    /// The cache of an earlier layer.
    Layer(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// `down(activation(gate(x)) * up(x))`.
    Gated {
        activation: Activation,
        /// Gate and up are the halves of one matrix of the file.
        fused: bool,
    },
    /// `down(activation(up(x)))`.
    Plain {
        activation: Activation,
    },
    /// RWKV's channel mixing: `value(relu(key(x))^2)`, `x` being each row blended with the previous one.
    ChannelMix,
    Experts(Experts),
    /// The sum of a gated block and of experts, each with norms of its own.
    DenseAndExperts {
        activation: Activation,
        experts: Experts,
        width: usize,
    },
}

/// Mixture of experts (MoE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    pub count: usize,
    pub routing: Routing,
    pub gating: Gating,
    /// Rows of the shared expert's first matrices, if there is a shared expert. It has a gate.
    pub shared: Option<usize>,
    /// The file has a factor on each expert's output.
    pub scaled: bool,
}

/// Block with a recurrent state of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrent {
    /// Gated DeltaNet: a short convolution over queries, keys and values, then linear attention.
    GatedDelta { heads: DeltaHeads, taps: usize },
    /// Short convolution between two gates.
    ShortConv { taps: usize },
    /// RWKV-7's time mixing.
    TimeMix { heads: usize, head_size: usize, ranks: Ranks },
}

/// Ranks of RWKV-7's low-rank products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    pub decay: usize,
    pub rate: usize,
    pub value: usize,
    pub gate: usize,
}

impl Attention {
    /// Attention to all earlier positions, with keys, values and a cache of its own.
    pub(crate) const fn new(
        heads: [usize; 2],
        head_size: usize,
        style: RopeStyle,
        scale: f32,
    ) -> Self {
        let [heads, kv_heads] = heads;
        Self {
            heads,
            kv_heads,
            head_size,
            style,
            rope: 0,
            qk_norm: None,
            gated: false,
            value_norm: false,
            kv: KvSource::Own,
            scores: Scores::scaled(scale),
            sinks: false,
        }
    }
}

impl Recurrent {
    /// Channels and taps of its convolution in a model of this width.
    #[must_use]
    pub const fn convolution(&self, width: usize) -> (usize, usize) {
        match self {
            Self::GatedDelta { heads, taps } => (heads.columns(), *taps),
            Self::ShortConv { taps } => (width, *taps),
            Self::TimeMix { .. } => (width, 2),
        }
    }

    /// Heads, and rows and columns of each head's matrix, if its state has matrices.
    #[must_use]
    pub const fn matrices(&self) -> Option<[usize; 3]> {
        match *self {
            Self::GatedDelta { heads, .. } => {
                Some([heads.values, heads.key_size, heads.value_size])
            }
            Self::ShortConv { .. } => None,
            Self::TimeMix { heads, head_size, .. } => Some([heads, head_size, head_size]),
        }
    }
}

/// Postprocessing of logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Logits {
    pub scale: Option<f32>,
    /// Soft cap, after the scale.
    pub cap: Option<f32>,
}

impl Hyperparameters {
    /// The attention of each layer that has a cache of its own, with the layer's number.
    pub fn caches(&self) -> impl Iterator<Item = (usize, &Attention)> {
        let own = |layer: &Layer| {
            layer.recurrent.is_none() && !matches!(layer.attention.kv, KvSource::Layer(_))
        };
        let all = self.layers.iter().chain(&self.nextn);
        let layers = all.enumerate().filter(move |(_, layer)| own(layer));
        layers.map(|(i, layer)| (i, &layer.attention))
    }

    /// The recurrent block of each layer that has one, with the layer's number.
    pub fn recurrent(&self) -> impl Iterator<Item = (usize, &Recurrent)> {
        let layers = self.layers.iter().enumerate();
        layers.filter_map(|(i, layer)| Some((i, layer.recurrent.as_ref()?)))
    }
}
