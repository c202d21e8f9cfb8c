//! Language models: hyperparameters and weights from a GGUF file, and the graph of one step.
//!
//! Nothing here knows of devices, or of text: a model maps token ids to logits and sampled ids.

#![forbid(unsafe_code)]

mod adapter;
mod architecture;
mod decoder;
pub mod gguf;
pub mod hyper;
pub mod mix;
mod pieces;
mod pooling;
pub mod ports;
pub mod quantise;
mod rope;
pub mod synthetic;
pub mod tokenizer;
mod weights;

use std::fmt::Display;
use std::path::Path;

use crate::decoder::Step;
use crate::gguf::Gguf;
use plan::graph::{self, Graph};
use plan::{Bucket, Buffer, Class, DType, Plan, Precision};

use adapter::Adapters;
pub use adapter::{Adapter, AdapterError, MAX_ADAPTERS};
pub use architecture::Architecture;
pub use hyper::Hyperparameters;
pub use pooling::Pooling;
use weights::{Origin, Weights};

/// Why a file is not a model this program can run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    #[error("architecture `{found}` is not supported; supported: {}", Architecture::names())]
    Architecture { found: String },
    #[error("`{key}` is {value}, {expected}")]
    Hyperparameter { key: String, value: String, expected: String },
    #[error("tensor `{name}` is missing from {path}")]
    MissingTensor { name: String, path: String },
    #[error("tensor `{name}` has shape {found:?}, {expected:?} expected from the metadata")]
    TensorShape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor `{name}` is {found}, {expected} expected")]
    TensorType { name: String, found: DType, expected: &'static str },
    #[error("tensor `{name}` is not part of what is supported of architecture `{architecture}`")]
    UnknownTensor { name: String, architecture: &'static str },
    #[error(
        "{dtype} cannot hold the keys and values of layer {layer}, whose heads have {head_size}: F16 holds any, \
         Q8_0 and Q4_0 multiples of 32"
    )]
    CacheType { dtype: DType, layer: usize, head_size: usize },
    #[error("tensor `{tensor}`, element {at}, is {value}: the file is damaged, or the model is")]
    NotFinite { tensor: String, at: u64, value: f32 },
    #[error("{bytes} bytes from {offset} of weight `{name}` are not in the model")]
    Weight { name: String, offset: u64, bytes: usize },
    #[error("this is an adapter, not a model: load it beside one, with `--lora`")]
    IsAdapter,
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A definition of this program is wrong.
    #[error("building the graph")]
    Graph(#[from] graph::Error),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    fn hyperparameter(key: String, value: &dyn Display, expected: &str) -> Self {
        let expected = format!("{expected} expected");
        Self::Hyperparameter { key, value: value.to_string(), expected }
    }

    fn missing_tensor(gguf: &Gguf, name: &str) -> Self {
        Self::MissingTensor { name: name.into(), path: gguf.path().display().to_string() }
    }
}

/// KV slots that a plan's caches have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    pub slots: usize,
    pub context: usize,
    /// Layers with a window keep it in a ring, with room for the rows of the longest chunk beside it: this many.
    pub ring: Option<usize>,
}

/// Rows of logits of which a model with a nextn layer keeps what they were made of, where it has fewer slots.
pub const HIDDEN_ROWS: usize = 16;

/// Positions that devices read at once, a span: those of a ring are a multiple of it, so that a span lies together.
const SPAN: usize = 32;

impl KvLayout {
    /// Positions of a layer's cache in a slot, and whether it is a ring. The span that a window begins in is read
    /// whole, if without weight: until a chunk's first row has seen it, no row of the chunk may have taken its place.
    fn positions(self, attention: &hyper::Attention) -> (usize, bool) {
        let (Some(chunk), Some(window)) = (self.ring, attention.scores.window) else {
            return (self.context, false);
        };
        let needed = (window - 1).saturating_add(SPAN - 1).saturating_add(chunk);
        let needed = needed.checked_next_multiple_of(SPAN);
        needed.filter(|needed| *needed < self.context).map_or((self.context, false), |n| (n, true))
    }

    /// Rows of [`ports::NEXTN_HIDDEN`].
    fn hidden_rows(self) -> usize {
        self.slots.max(HIDDEN_ROWS)
    }

    /// Shape of a layer's keys, and of its values.
    fn shape(self, attention: &hyper::Attention) -> [usize; 4] {
        let (positions, _) = self.positions(attention);
        [self.slots, positions, attention.kv_heads, attention.head_size]
    }
}

/// A model: what it is, which weights it needs, how a step computes. The file stays open; its
/// tensors are read when a device asks for them.
#[derive(Debug)]
pub struct Model {
    gguf: Gguf,
    architecture: Architecture,
    hyper: Hyperparameters,
    /// A layer of the file that it can be used with, and is not.
    nextn: Option<hyper::Layer>,
    pooling: Option<Pooling>,
    weights: Weights,
    /// Tensors that take no part as weights.
    passed_over: Vec<String>,
    adapters: Adapters,
    /// What keys and values are stored in.
    cache: DType,
    precision: Precision,
}

/// Any step with logits asks for all weights.
const SMALLEST: Step = Step {
    layout: KvLayout { slots: 1, context: 1, ring: None },
    bucket: Bucket::decode(1, 1),
    cache: DType::F16,
};

impl Model {
    /// Opens a GGUF file and checks that it holds everything the architecture needs.
    ///
    /// # Errors
    /// [`Error`] names the key or tensor that is missing or wrong, and what is supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::from_gguf(Gguf::open(path)?)
    }

    pub fn from_gguf(gguf: Gguf) -> Result<Self, Error> {
        if gguf.metadata().str("general.type").is_ok_and(|kind| kind == "adapter") {
            return Err(Error::IsAdapter);
        }
        let name = gguf.metadata().str("general.architecture")?;
        let architecture = Architecture::parse(name)
            .ok_or_else(|| Error::Architecture { found: name.to_owned() })?;
        let (mut hyper, passed_over) = architecture.describe(&gguf)?;
        let nextn = hyper.nextn.take();
        let pooling = Pooling::of(&gguf, architecture.name())?;
        let mut weights = Weights::default();
        decoder::graph(&gguf, &hyper, None, &mut weights, SMALLEST)?;
        weights.check_complete(&gguf, &passed_over, architecture.name())?;
        let (adapters, cache, precision) = (Adapters::default(), DType::F16, Precision::default());
        Ok(Self {
            gguf,
            architecture,
            hyper,
            nextn,
            pooling,
            weights,
            passed_over,
            adapters,
            cache,
            precision,
        })
    }

    /// The same model with its layer that predicts a further token, if the file has one: its steps leave that layer
    /// what [`Self::draft_plan`] goes on from. No logits change.
    ///
    /// # Errors
    /// [`Error`] names the tensor of that layer that is missing or wrong.
    pub fn with_nextn(mut self) -> Result<Self, Error> {
        let Some(layer) = self.nextn.take() else { return Ok(self) };
        let hyper = Hyperparameters { nextn: Some(layer.clone()), ..self.hyper };
        let mut weights = self.weights;
        decoder::graph(&self.gguf, &hyper, None, &mut weights, SMALLEST)?;
        decoder::draft_graph(&self.gguf, &hyper, &layer, &mut weights, SMALLEST)?;
        Ok(Self { weights, hyper, ..self })
    }

    /// The same model with adapters beside it, which rows of [`Self::adapted_plan`] may take something of.
    ///
    /// # Errors
    /// [`Error::Adapter`] for one that is not made for this model.
    pub fn with_adapters(self, all: Vec<Adapter>) -> Result<Self, Error> {
        let adapters = Adapters::new(all, self.architecture.name())?;
        let mut weights = self.weights;
        decoder::graph(&self.gguf, &self.hyper, Some(&adapters), &mut weights, SMALLEST)?;
        let stands_beside = |weight: &weights::Weight, tensor: &str| match &weight.origin {
            Origin::Adapters(stack) => stack.tensor == tensor,
            Origin::File { .. } | Origin::Derived(_) => false,
        };
        adapters.check_used(&self.gguf, |tensor| {
            self.passed_over.iter().any(|name| name == tensor)
                || weights.iter().any(|weight| stands_beside(weight, tensor))
        })?;
        Ok(Self { weights, adapters, ..self })
    }

    /// Its adapters, in the order of their scales in a plan's rows.
    pub fn adapters(&self) -> impl ExactSizeIterator<Item = &Adapter> {
        self.adapters.iter()
    }

    /// The same model with its keys and values stored in another type: F16, Q8_0 or Q4_0.
    ///
    /// # Errors
    /// [`Error::CacheType`] names a layer whose heads the type cannot hold.
    pub fn cached_in(self, dtype: DType) -> Result<Self, Error> {
        let held = matches!(dtype, DType::F16 | DType::Q8_0 | DType::Q4_0);
        let fits = |head_size: usize| held && head_size.is_multiple_of(dtype.block_len());
        let other = self.hyper.caches().find(|(_, attention)| !fits(attention.head_size));
        let other = other.map(|(layer, attention)| (layer, attention.head_size));
        match other {
            Some((layer, head_size)) => Err(Error::CacheType { dtype, layer, head_size }),
            None => Ok(Self { cache: dtype, ..self }),
        }
    }

    /// The same model, whose plans leave a device the choice that [`Precision`] names.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// What keys and values are stored in.
    #[must_use]
    pub const fn cache(&self) -> DType {
        self.cache
    }

    /// What its plans leave a device to choose.
    #[must_use]
    pub const fn precision(&self) -> Precision {
        self.precision
    }

    #[must_use]
    pub const fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    #[must_use]
    pub const fn architecture(&self) -> Architecture {
        self.architecture
    }

    #[must_use]
    pub const fn hyperparameters(&self) -> &Hyperparameters {
        &self.hyper
    }

    /// How it makes embeddings, if it does.
    #[must_use]
    pub const fn pooling(&self) -> Option<Pooling> {
        self.pooling
    }

    /// The weights a device must be given.
    pub fn weights(&self) -> impl ExactSizeIterator<Item = &Buffer> {
        self.weights.iter().map(|weight| &weight.buffer)
    }

    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.weights().map(Buffer::bytes).sum()
    }

    /// Number of parameters: elements of all tensors in the file.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.gguf.tensors().iter().map(gguf::TensorInfo::elements).sum()
    }

    /// Fills `buf` from byte `offset` of a weight. In the blocks that lie in it whole every number is finite.
    ///
    /// # Errors
    /// [`Error::Weight`] when the model has no such weight or not as many bytes of it, [`Error::Gguf`] when
    /// the file cannot be read, or has shrunk, [`Error::NotFinite`] for a NaN or an infinity.
    pub fn read_weight(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let bytes = buf.len();
        let missing = || Error::Weight { name: name.to_owned(), offset, bytes };
        let weight = self.weights.get(name).ok_or_else(missing)?;
        let end = offset.checked_add(bytes as u64);
        if end.is_none_or(|end| end > weight.buffer.bytes()) {
            return Err(missing());
        }
        match &weight.origin {
            Origin::File { tensor, start, run, stride } => {
                let tensor = self.gguf.tensor(tensor).ok_or_else(missing)?;
                let place = |at: u64| start + at / run * stride + at % run;
                let (mut at, mut rest) = (offset, &mut *buf);
                while !rest.is_empty() {
                    let left =
                        usize::try_from(run - at % run).map_or(rest.len(), |n| n.min(rest.len()));
                    let (piece, behind) = rest.split_at_mut(left);
                    self.gguf.read(tensor, place(at), piece)?;
                    (at, rest) = (at + left as u64, behind);
                }
                let (dtype, len) = (tensor.dtype, tensor.dtype.block_len() as u64);
                let size = dtype.block_bytes() as u64;
                let first = offset.next_multiple_of(size);
                let whole = buf.get((first - offset) as usize..).unwrap_or_default();
                plan::quant::not_finite(dtype, whole).map_or(Ok(()), |(i, value)| {
                    let (block, i) = (i as u64 / len, i as u64 % len);
                    let at = place(first + block * size) / size * len + i;
                    Err(Error::NotFinite { tensor: tensor.name.clone(), at, value })
                })
            }
            Origin::Derived(weight) => {
                let start = usize::try_from(offset).map_err(|_| missing())?;
                let from = weight.get(start..).and_then(|rest| rest.get(..bytes));
                buf.copy_from_slice(from.ok_or_else(missing)?);
                Ok(())
            }
            Origin::Adapters(stack) => {
                let Buffer { dtype, shape, .. } = &weight.buffer;
                self.adapters.read(stack, *dtype, shape[1], offset, buf)
            }
        }
    }

    /// The KV cache: one key and one value buffer per layer that has its own, logically `[slots, context, kv
    /// heads, head size]`, in a ring fewer positions. Then the states of fixed size of the layers that have those.
    #[must_use]
    pub fn states(&self, layout: KvLayout) -> Vec<Buffer> {
        let buffers = |(i, attention): (usize, &hyper::Attention)| {
            let shape = layout.shape(attention).to_vec();
            [ports::key_cache(i), ports::value_cache(i)].map(|name| Buffer {
                name,
                class: Class::State,
                dtype: self.cache,
                shape: shape.clone(),
            })
        };
        let left = self.hidden(layout).into_iter().chain([self.deferred(layout)]);
        let fixed = self.fixed_states(layout.slots).into_iter().chain(left);
        self.hyper.caches().flat_map(buffers).chain(fixed).collect()
    }

    /// What drafts of the nextn layer go on from.
    fn hidden(&self, layout: KvLayout) -> Option<Buffer> {
        self.hyper.nextn.as_ref().map(|_| Buffer {
            name: ports::NEXTN_HIDDEN.to_owned(),
            class: Class::State,
            dtype: DType::F32,
            shape: vec![layout.hidden_rows(), self.hyper.width],
        })
    }

    /// What a step leaves whose logits are made by another plan.
    fn deferred(&self, layout: KvLayout) -> Buffer {
        Buffer {
            name: ports::DEFERRED.to_owned(),
            class: Class::State,
            dtype: DType::F32,
            shape: vec![layout.slots, self.hyper.width],
        }
    }

    /// The states that do not grow with the context.
    fn fixed_states(&self, slots: usize) -> Vec<Buffer> {
        let buffer = |name: String, dtype, shape: &[usize]| Buffer {
            name,
            class: Class::State,
            dtype,
            shape: [&[slots, 2], shape].concat(),
        };
        let state = |name: String, shape: &[usize]| {
            [buffer(ports::held(&name), DType::I32, &[]), buffer(name, DType::F32, shape)]
        };
        let mut states = Vec::new();
        for (i, recurrent) in self.hyper.recurrent() {
            let (columns, taps) = recurrent.convolution(self.hyper.width);
            states.extend(state(ports::conv_state(i), &[taps - 1, columns]));
            if let Some(shape) = recurrent.matrices() {
                states.extend(state(ports::delta_state(i), &shape));
            }
            if self.hyper.layers[i].feed_forward == hyper::FeedForward::ChannelMix {
                states.extend(state(ports::channel_state(i), &[1, self.hyper.width]));
            }
        }
        states
    }

    /// Whether a slot that holds `held` tokens of a sequence can go on behind the first `from` of them, as far as
    /// its caches [keep](Self::keeps) those: a state of fixed size is where its last token left it.
    #[must_use]
    pub fn goes_on(&self, held: usize, from: usize) -> bool {
        from == held || self.hyper.recurrent().next().is_none()
    }

    /// Bytes of the KV cache and of the states of fixed size, `None` when the product overflows.
    #[must_use]
    pub fn state_bytes(&self, layout: KvLayout) -> Option<u64> {
        let slots = layout.slots as u64;
        let fixed: u64 = self.fixed_states(1).iter().map(Buffer::bytes).sum();
        let hidden = self.hidden(layout).as_ref().map_or(0, Buffer::bytes);
        let left = hidden.checked_add(self.deferred(layout).bytes())?;
        let mut bytes = fixed.checked_mul(slots)?.checked_add(left)?;
        for (_, attention) in self.hyper.caches() {
            let (positions, _) = layout.positions(attention);
            let cache = self.position_bytes(attention).checked_mul(positions as u64)?;
            bytes = bytes.checked_add(cache.checked_mul(slots)?)?;
        }
        Some(bytes)
    }

    /// How many layers keep no more than their window in a ring, and of how many positions the longest is.
    #[must_use]
    pub fn rings(&self, layout: KvLayout) -> (usize, usize) {
        let all = self.hyper.caches().map(|(_, attention)| layout.positions(attention));
        all.filter(|(_, ring)| *ring).fold((0, 0), |(n, most), (len, _)| (n + 1, most.max(len)))
    }

    /// Whether a slot of which the first `written` positions have been written still has the spans that a row at
    /// `from` reads: a ring has lost what lies more than its length behind.
    #[must_use]
    pub fn keeps(&self, layout: KvLayout, written: usize, from: usize) -> bool {
        self.hyper.caches().all(|(_, attention)| match layout.positions(attention) {
            (positions, true) => {
                let window = attention.scores.window.unwrap_or(positions);
                from == 0 || written <= from.saturating_sub(window - 1) / SPAN * SPAN + positions
            }
            (_, false) => true,
        })
    }

    /// Bytes of a position of a layer's keys and values.
    fn position_bytes(&self, attention: &hyper::Attention) -> u64 {
        let values = 2 * (attention.kv_heads * attention.head_size) as u64;
        values / self.cache.block_len() as u64 * self.cache.block_bytes() as u64
    }

    /// Bytes of the KV cache for each position of a slot that no window bounds.
    #[must_use]
    pub fn state_bytes_per_token(&self) -> u64 {
        self.hyper.caches().map(|(_, attention)| self.position_bytes(attention)).sum()
    }

    /// The graph of one step in a bucket, without adapters.
    ///
    /// # Errors
    /// [`graph::Error`] would be a bug of a definition, or a band wider than the layout's context.
    pub fn graph(&self, layout: KvLayout, bucket: Bucket) -> graph::Result<Graph> {
        self.drawn(layout, bucket, None, &self.hyper)
    }

    fn drawn(
        &self,
        layout: KvLayout,
        bucket: Bucket,
        adapters: Option<&Adapters>,
        hyper: &Hyperparameters,
    ) -> graph::Result<Graph> {
        let step = Step { layout, bucket, cache: self.cache };
        match decoder::graph(&self.gguf, hyper, adapters, &mut self.weights.clone(), step) {
            Ok(graph) => Ok(graph),
            Err(Error::Graph(error)) => Err(error),
            Err(error) => unreachable!("`from_gguf` drew with the same weights: {error}"),
        }
    }

    /// The plan of one step in a bucket, in primitives, without adapters.
    pub fn plan(&self, layout: KvLayout, bucket: Bucket) -> graph::Result<Plan> {
        self.lowered(&self.graph(layout, bucket)?, bucket)
    }

    fn lowered(&self, graph: &Graph, bucket: Bucket) -> graph::Result<Plan> {
        Ok(Plan { precision: self.precision, ..graph.lower(bucket)? })
    }

    /// The plan of a draft of one token for one sequence, where the model is used with its nextn layer
    /// ([`Self::with_nextn`]): the token and its position go in, and the row of [`ports::NEXTN_HIDDEN`] that it was
    /// sampled from. Run again, it drafts the one behind.
    ///
    /// # Errors
    /// As [`Self::graph`].
    pub fn draft_plan(&self, layout: KvLayout) -> graph::Result<Option<Plan>> {
        let Some(layer) = &self.hyper.nextn else { return Ok(None) };
        let bucket = Bucket::decode(1, layout.context);
        let step = Step { layout, bucket, cache: self.cache };
        let mut weights = self.weights.clone();
        match decoder::draft_graph(&self.gguf, &self.hyper, layer, &mut weights, step) {
            Ok(graph) => graph.lower(bucket).map(Some),
            Err(Error::Graph(error)) => Err(error),
            Err(error) => unreachable!("`with_nextn` drew with the same weights: {error}"),
        }
    }

    /// The plan of a step that leaves nothing for drafts, where the model is used with its nextn layer: drafts behind it know
    /// less. With adapters or without.
    ///
    /// # Errors
    /// As [`Self::graph`].
    pub fn resting_plan(
        &self,
        layout: KvLayout,
        bucket: Bucket,
        adapted: bool,
    ) -> graph::Result<Option<Plan>> {
        if self.hyper.nextn.is_none() {
            return Ok(None);
        }
        let hyper = Hyperparameters { nextn: None, ..self.hyper.clone() };
        let adapters = adapted.then_some(&self.adapters);
        self.lowered(&self.drawn(layout, bucket, adapters, &hyper)?, bucket).map(Some)
    }

    /// The same of a step whose rows may take something of the adapters. A row that takes nothing of them computes what
    /// it does without.
    pub fn adapted_plan(&self, layout: KvLayout, bucket: Bucket) -> graph::Result<Plan> {
        self.lowered(&self.drawn(layout, bucket, Some(&self.adapters), &self.hyper)?, bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_remembers_goes_on_from_its_end_alone() {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/architectures");
        for (name, remembers) in
            [("llama", false), ("gemma3", false), ("qwen35", true), ("lfm2", true), ("rwkv7", true)]
        {
            let model = Model::open(files.join(format!("{name}.gguf"))).unwrap();
            assert!(model.goes_on(9, 9) && model.goes_on(0, 0), "{name}");
            assert_eq!(model.goes_on(9, 8), !remembers, "{name}");
        }
    }

    #[test]
    fn a_nextn_layer_is_a_cache_and_weights_more_for_who_wants_it() {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/architectures");
        let open = |name: &str| Model::open(files.join(format!("{name}.gguf"))).unwrap();
        let layout = KvLayout { slots: 20, context: 64, ring: None };
        let bytes = |model: &Model| -> u64 { model.states(layout).iter().map(Buffer::bytes).sum() };
        let without = open("qwen35");
        assert!(without.draft_plan(layout).unwrap().is_none());
        let with = open("qwen35").with_nextn().unwrap();
        // Keys and values of 2 heads of 32 in F16, and 64 numbers for each slot.
        let more = 20 * 64 * 2 * 2 * 32 * 2 + 20 * 64 * 4;
        assert_eq!(bytes(&with) - bytes(&without), more);
        assert_eq!(with.state_bytes(layout), Some(bytes(&with)));
        let of_layer = |weight: &&Buffer| weight.name.starts_with("blk.5.");
        assert_eq!(without.weights().filter(of_layer).count(), 0);
        let before: Vec<_> = without.weights().cloned().collect();
        let rest: Vec<_> = with.weights().filter(|weight| !of_layer(weight)).cloned().collect();
        assert_eq!(before, rest);
        assert!(with.draft_plan(layout).unwrap().is_some());
        // Where there is none, nothing is.
        let other = open("llama").with_nextn().unwrap();
        assert!(other.draft_plan(layout).unwrap().is_none());
    }

    #[test]
    fn what_a_model_does_not_have_is_refused() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/models");
        let model = Model::open(models.join("tiny-llama-f16.gguf")).unwrap();
        let mut buf = [7; 4];
        let refused =
            |name: &str, offset, buf: &mut [u8]| match model.read_weight(name, offset, buf) {
                Err(Error::Weight { name, .. }) => Some(name),
                _ => None,
            };
        let unknown = "blk.0.attn_z.weight";
        assert_eq!(refused(unknown, 0, &mut buf).as_deref(), Some(unknown));
        // Not in the file, so not the reader's to refuse.
        let derived = &*ports::rope_frequencies(0);
        let bytes = model.weights().find(|weight| weight.name == derived).unwrap().bytes();
        for offset in [bytes - 3, bytes + 1, u64::MAX] {
            assert_eq!(refused(derived, offset, &mut buf).as_deref(), Some(derived), "{offset}");
        }
        assert_eq!(buf, [7; 4], "nothing was written");
        model.read_weight(derived, bytes - 4, &mut buf).unwrap();
        assert_ne!(buf, [7; 4]);
    }

    /// Gemma 3's window of 9 with chunks of 20 is a ring of 64: what a row at `from` reads must still be in it.
    #[test]
    fn a_ring_keeps_what_a_window_behind_a_position_needs() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/architectures");
        let model = Model::open(data.join("gemma3.gguf")).unwrap();
        let ring = KvLayout { slots: 1, context: 100, ring: Some(20) };
        assert_eq!(model.rings(ring), (3, 64));
        for (written, from, kept) in [
            (96, 96, true),
            (96, 40, true),
            (96, 39, false),
            (97, 71, false),
            (97, 72, true),
            (96, 0, true),
            (64, 1, true),
            (65, 1, false),
        ] {
            assert_eq!(model.keeps(ring, written, from), kept, "{written}, {from}");
            assert!(model.keeps(KvLayout { ring: None, ..ring }, written, from));
        }
        // Of every chunk the first row finds what it reads when the last one is written.
        for chunk in 1..70 {
            let layout = KvLayout { ring: Some(chunk), context: 1000, ..ring };
            assert!((0..200).all(|from| model.keeps(layout, from + chunk, from)), "{chunk}");
        }
        // A context that is no longer than that needs no ring.
        assert_eq!(model.rings(KvLayout { context: 64, ..ring }), (0, 0));
    }

    #[test]
    fn keys_and_values_lie_in_the_type_that_is_asked_for_or_it_is_refused() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/architectures");
        let open = |name: &str| Model::open(data.join(format!("{name}.gguf"))).unwrap();
        let layout = KvLayout { slots: 2, context: 64, ring: None };
        for (dtype, percent) in [(DType::F16, 100), (DType::Q8_0, 53), (DType::Q4_0, 28)] {
            let model = open("qwen3").cached_in(dtype).unwrap();
            let (rows, caches): (Vec<_>, Vec<_>) =
                model.states(layout).into_iter().partition(|state| state.name == ports::DEFERRED);
            assert!(caches.iter().all(|cache| cache.dtype == dtype), "{dtype}");
            let [bytes, rows] =
                [caches, rows].map(|all| all.iter().map(Buffer::bytes).sum::<u64>());
            assert_eq!(model.state_bytes(layout), Some(bytes + rows));
            let whole = open("qwen3").state_bytes(layout).unwrap() - rows;
            assert_eq!(100 * bytes / whole, percent, "{dtype}");
        }
        for (name, dtype, expected) in [
            (
                "llama",
                DType::Q8_0,
                "Q8_0 cannot hold the keys and values of layer 0, whose heads have 16",
            ),
            ("gemma4", DType::Q4_0, "Q4_0 cannot hold the keys and values of layer 0, whose heads"),
            (
                "qwen3",
                DType::Q6_K,
                "Q6_K cannot hold the keys and values of layer 0, whose heads have 32",
            ),
        ] {
            let error = open(name).cached_in(dtype).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
