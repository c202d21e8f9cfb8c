//! What a model is made of: sizes, and for each layer which of the shared parts it has. An architecture
//! fills this in from metadata; `decoder` draws the graph from it.

use crate::rope::Rope;
use plan::{Activation, DeltaHeads, Gating, NormKind, RopeStyle, Routing, Scores};

#[derive(Clone, Debug, PartialEq)]
pub struct Hyperparameters {
    /// Width of the residual stream.
    pub width: usize,
    pub vocabulary: usize,
    /// Tokens the model was trained for.
    pub context: usize,
    pub norm: Norm,
    pub embedding: Embedding,
    pub layers: Vec<Layer>,
    /// The layer behind the last that predicts a further token, of a model that is used with it.
    pub nextn: Option<Layer>,
    /// Name of the norm before the logits.
    pub output_norm: &'static str,
    pub logits: Logits,
    /// The rotations that layers name by number.
    pub(crate) ropes: Vec<Rope>,
}

/// The norm of all rows of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    pub kind: NormKind,
    /// Added to the mean square.
    pub eps: f32,
}

/// What a token becomes before the first layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Embedding {
    /// Factor on the row of the table.
    pub scale: Option<f32>,
    /// It is normalised.
    pub norm: bool,
    /// A second table has a row for each position, which is added.
    pub positions: bool,
    /// Width of what each layer gets of the token beside the residual stream, if it does.
    pub per_layer: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub attention: Attention,
    /// What it has instead of attention, if it has.
    pub recurrent: Option<Recurrent>,
    pub feed_forward: FeedForward,
    /// Rows of its first matrices; of a mixture, of each expert's.
    pub feed_forward_width: usize,
    /// Name of the norm before it.
    pub feed_forward_norm: &'static str,
    /// The feed-forward part takes what attention takes, and both are added to the residual stream.
    pub parallel: bool,
    /// What each part gives is normalised before it is added.
    pub norm_after: bool,
    /// Factor on what each part adds.
    pub residual_scale: Option<f32>,
    /// Factor on what leaves the layer.
    pub output_scale: Option<f32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    pub head_size: usize,
    pub style: RopeStyle,
    /// Which of the model's rotations.
    pub rope: usize,
    /// How queries and keys are normalised before rotation, if they are.
    pub qk_norm: Option<QkNorm>,
    /// What the heads give is multiplied by the sigmoid of a gate, whose rows lie with those of the queries, head
    /// by head.
    pub gated: bool,
    /// So are its values, without a weight.
    pub value_norm: bool,
    pub keys: Keys,
    pub scores: Scores,
    /// Each head has a score of its own that takes weight and has no value.
    pub sinks: bool,
}

/// What of queries and keys is normalised together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// The values of a head.
    Head,
    /// Those of all heads.
    Row,
}

/// Where the keys and values of a layer come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Its own matrices; its own cache.
    Own,
    /// One matrix for both: values are keys before norm and rotation.
    Shared,
    /// The cache of an earlier layer.
    OfLayer(usize),
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
    /// RWKV's channel mixing: `value(relu(key(x))^2)` of a mix of each row with the one before it.
    ChannelMix,
    Experts(Experts),
    /// Gated, and experts beside it, which see the residual stream through norms of their own.
    Both {
        activation: Activation,
        experts: Experts,
        width: usize,
    },
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    pub count: usize,
    pub routing: Routing,
    pub gating: Gating,
    /// Rows of the first matrices of the expert that every row goes through, where there is one. It has a gate
    /// of its own.
    pub shared: Option<usize>,
    /// What each gives is multiplied by a number of the file.
    pub scaled: bool,
}

/// A layer that remembers in a state of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrent {
    /// Gated DeltaNet: a short convolution over queries, keys and values, then linear attention.
    GatedDelta { heads: DeltaHeads, taps: usize },
    /// A short convolution between two gates.
    ShortConv { taps: usize },
    /// RWKV-7's time mixing, with the ranks of the products that make decay, learning rate, value and gate.
    TimeMix { heads: usize, head_size: usize, ranks: Ranks },
}

/// Columns between the two matrices of a product of low rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    pub decay: usize,
    pub rate: usize,
    pub value: usize,
    pub gate: usize,
}

impl Recurrent {
    /// Columns of what its convolution goes over, and how many values it sees, in a model of this width.
    #[must_use]
    pub const fn convolution(&self, width: usize) -> (usize, usize) {
        match self {
            Self::GatedDelta { heads, taps } => (heads.columns(), *taps),
            Self::ShortConv { taps } => (width, *taps),
            Self::TimeMix { .. } => (width, 2),
        }
    }

    /// Heads, and rows and columns of their matrices, where it keeps such.
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

/// What becomes of the product with the output matrix.
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
            layer.recurrent.is_none() && !matches!(layer.attention.keys, Keys::OfLayer(_))
        };
        let all = self.layers.iter().chain(&self.nextn);
        let layers = all.enumerate().filter(move |(_, layer)| own(layer));
        layers.map(|(i, layer)| (i, &layer.attention))
    }

    /// The layers that remember in a state of fixed size, with the layer's number.
    pub fn recurrent(&self) -> impl Iterator<Item = (usize, &Recurrent)> {
        let layers = self.layers.iter().enumerate();
        layers.filter_map(|(i, layer)| Some((i, layer.recurrent.as_ref()?)))
    }
}
