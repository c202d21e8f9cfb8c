//! A loaded model: hyperparameters, weights, states, and the plans of its steps.

use std::path::Path;

use crate::adapter::{Adapter, Adapters};
use crate::architecture::Architecture;
use crate::decoder::{self, Step};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, TensorInfo};
use crate::hyper::{Attention, FeedForward, Hyperparameters, Layer};
use crate::layout::{KvLayout, SPAN};
use crate::pooling::Pooling;
use crate::ports;
use crate::weights::{Origin, Weight, Weights};
use plan::graph::{self, Graph};
use plan::{Bucket, Buffer, Class, DType, Plan, Precision};

/// A model: hyperparameters, weights, and the plan of each step. The file stays open; tensors are read when a device
/// requests them.
#[derive(Debug)]
pub struct Model {
    gguf: Gguf,
    architecture: Architecture,
    hyper: Hyperparameters,
    /// The file's nextn layer while it is not used; `hyper.nextn` has it once it is.
    nextn: Option<Layer>,
    pooling: Option<Pooling>,
    weights: Weights,
    /// Tensors that are not weights.
    ignored: Vec<String>,
    adapters: Adapters,
    /// Type of the KV cache.
    cache: DType,
    precision: Precision,
}

/// Smallest step that needs every weight.
const SMALLEST: Step = Step {
    layout: KvLayout { slots: 1, context: 1, ring: None },
    bucket: Bucket::decode(1, 1),
    cache: DType::F16,
};

impl Model {
    /// Opens a GGUF file and checks that it has everything the architecture needs.
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
        let architecture = Architecture::parse(name).ok_or_else(|| Error::Architecture {
            found: name.to_owned(),
            supported: Architecture::names(),
        })?;
        let (mut hyper, ignored) = architecture.describe(&gguf)?;
        let nextn = hyper.nextn.take();
        let pooling = Pooling::from_metadata(&gguf, architecture.name())?;
        let mut weights = Weights::default();
        decoder::graph(&gguf, &hyper, None, &mut weights, SMALLEST)?;
        weights.check_complete(&gguf, &ignored, architecture.name())?;
        let (adapters, cache, precision) = (Adapters::default(), DType::F16, Precision::default());
        Ok(Self {
            gguf,
            architecture,
            hyper,
            nextn,
            pooling,
            weights,
            ignored,
            adapters,
            cache,
            precision,
        })
    }

    /// The same model with its nextn (MTP) layer, if the file has one: its steps store the hidden states that
    /// [`Self::draft_plan`] starts from. No logits change.
    ///
    /// # Errors
    /// [`Error`] names that layer's tensor that is missing or wrong.
    pub fn with_nextn(mut self) -> Result<Self, Error> {
        let Some(layer) = self.nextn.take() else { return Ok(self) };
        let hyper = Hyperparameters { nextn: Some(layer.clone()), ..self.hyper };
        let mut weights = self.weights;
        decoder::graph(&self.gguf, &hyper, None, &mut weights, SMALLEST)?;
        decoder::draft_graph(&self.gguf, &hyper, &layer, &mut weights, SMALLEST)?;
        Ok(Self { weights, hyper, ..self })
    }

    /// The same model with additional adapters, which rows of [`Self::adapted_plan`] can use.
    ///
    /// # Errors
    /// [`Error::Adapter`] names an adapter that does not fit this model.
    pub fn with_adapters(self, all: Vec<Adapter>) -> Result<Self, Error> {
        let adapters = Adapters::new(all, self.architecture.name())?;
        let mut weights = self.weights;
        decoder::graph(&self.gguf, &self.hyper, Some(&adapters), &mut weights, SMALLEST)?;
        let adapts = |weight: &Weight, tensor: &str| match &weight.origin {
            Origin::Adapters(stack) => stack.tensor == tensor,
            Origin::File { .. } | Origin::Derived(_) => false,
        };
        adapters.check_used(&self.gguf, |tensor| {
            self.ignored.iter().any(|name| name == tensor)
                || weights.iter().any(|weight| adapts(weight, tensor))
        })?;
        Ok(Self { weights, adapters, ..self })
    }

    /// The adapters, in the order of their scales in [`ports::ADAPTERS`].
    pub fn adapters(&self) -> impl ExactSizeIterator<Item = &Adapter> {
        self.adapters.iter()
    }

    /// The same model with another type of KV cache: F16, Q8_0 or Q4_0.
    ///
    /// # Errors
    /// [`Error::CacheType`] names a layer with heads that the type cannot store.
    pub fn with_cache_type(self, dtype: DType) -> Result<Self, Error> {
        let supported = matches!(dtype, DType::F16 | DType::Q8_0 | DType::Q4_0);
        let fits = |head_size: usize| supported && head_size.is_multiple_of(dtype.block_len());
        let other = self.hyper.caches().find(|(_, attention)| !fits(attention.head_size));
        let other = other.map(|(layer, attention)| (layer, attention.head_size));
        match other {
            Some((layer, head_size)) => Err(Error::CacheType { dtype, layer, head_size }),
            None => Ok(Self { cache: dtype, ..self }),
        }
    }

    /// The same model with plans of this precision.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Type of the KV cache.
    #[must_use]
    pub const fn cache(&self) -> DType {
        self.cache
    }

    /// Precision of the model's plans.
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

    /// Pooling of an embedding model.
    #[must_use]
    pub const fn pooling(&self) -> Option<Pooling> {
        self.pooling
    }

    /// The weights that a device must load.
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
        self.gguf.tensors().iter().map(TensorInfo::elements).sum()
    }

    /// Fills `buf` from byte `offset` of a weight. Checks that all numbers are finite, except in blocks that `buf`
    /// contains only in part.
    ///
    /// # Errors
    /// [`Error::Weight`] if the model has no such bytes, [`Error::Gguf`] if the file cannot be read or has shrunk,
    /// [`Error::NotFinite`] for a NaN or an infinity.
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

    /// The KV cache: a key and a value buffer for each layer that has its own,
    /// `[slots, positions, kv heads, head size]`. Then the recurrent states, which have a fixed size.
    #[must_use]
    pub fn states(&self, layout: KvLayout) -> Vec<Buffer> {
        let buffers = |(i, attention): (usize, &Attention)| {
            let shape = layout.shape(attention);
            [ports::key_cache(i), ports::value_cache(i)]
                .map(|name| state(&name, self.cache, &shape))
        };
        let hidden = self.hidden(layout).into_iter().chain([self.deferred(layout)]);
        let fixed = self.fixed_states(layout.slots).into_iter().chain(hidden);
        self.hyper.caches().flat_map(buffers).chain(fixed).collect()
    }

    /// Hidden states that drafts of the nextn layer start from.
    fn hidden(&self, layout: KvLayout) -> Option<Buffer> {
        let shape = [layout.hidden_rows(), self.hyper.width];
        self.hyper.nextn.as_ref().map(|_| state(ports::NEXTN_HIDDEN, DType::F32, &shape))
    }

    /// Residual stream after the last layer, for another plan that computes the logits.
    fn deferred(&self, layout: KvLayout) -> Buffer {
        state(ports::DEFERRED, DType::F32, &[layout.slots, self.hyper.width])
    }

    /// The recurrent states, which do not grow with the context.
    fn fixed_states(&self, slots: usize) -> Vec<Buffer> {
        let versions = |name: String, shape: &[usize]| {
            let held = state(&ports::held(&name), DType::I32, &[slots, 2]);
            [held, state(&name, DType::F32, &[&[slots, 2], shape].concat())]
        };
        let mut states = Vec::new();
        for (i, recurrent) in self.hyper.recurrent() {
            let (columns, taps) = recurrent.convolution(self.hyper.width);
            states.extend(versions(ports::conv_state(i), &[taps - 1, columns]));
            if let Some(shape) = recurrent.matrices() {
                states.extend(versions(ports::delta_state(i), &shape));
            }
            if self.hyper.layers[i].feed_forward == FeedForward::ChannelMix {
                states.extend(versions(ports::channel_state(i), &[1, self.hyper.width]));
            }
        }
        states
    }

    /// True if a slot with `held` tokens of a sequence can continue after the first `from`, provided that its caches
    /// [still have](Self::keeps) them. A recurrent state cannot be rolled back: it continues only after the last
    /// token.
    #[must_use]
    pub fn can_resume_at(&self, held: usize, from: usize) -> bool {
        from == held || self.hyper.recurrent().next().is_none()
    }

    /// Bytes of all states, or `None` if the number overflows.
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

    /// Number of layers whose cache is a ring, and positions of the longest ring.
    #[must_use]
    pub fn rings(&self, layout: KvLayout) -> (usize, usize) {
        let all = self.hyper.caches().map(|(_, attention)| layout.positions(attention));
        all.filter(|(_, ring)| *ring).fold((0, 0), |(n, most), (len, _)| (n + 1, most.max(len)))
    }

    /// True if a slot with `written` positions written still has the spans that a row at `from` reads. A ring
    /// overwrites positions older than its length.
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

    /// Bytes of one position in a layer's cache.
    fn position_bytes(&self, attention: &Attention) -> u64 {
        let values = 2 * (attention.kv_heads * attention.head_size) as u64;
        values / self.cache.block_len() as u64 * self.cache.block_bytes() as u64
    }

    /// Bytes of the KV cache for each position, in all layers together, without rings.
    #[must_use]
    pub fn state_bytes_per_token(&self) -> u64 {
        self.hyper.caches().map(|(_, attention)| self.position_bytes(attention)).sum()
    }

    /// The graph of one step in a bucket, without adapters.
    ///
    /// # Errors
    /// [`graph::Error`] for a context band wider than the layout's context; any other is a bug.
    pub fn graph(&self, layout: KvLayout, bucket: Bucket) -> graph::Result<Graph> {
        self.build(layout, bucket, None, &self.hyper)
    }

    fn build(
        &self,
        layout: KvLayout,
        bucket: Bucket,
        adapters: Option<&Adapters>,
        hyper: &Hyperparameters,
    ) -> graph::Result<Graph> {
        let step = Step { layout, bucket, cache: self.cache };
        built(decoder::graph(&self.gguf, hyper, adapters, &mut self.weights.clone(), step))
    }

    /// The plan of one step in a bucket, in primitives, without adapters.
    pub fn plan(&self, layout: KvLayout, bucket: Bucket) -> graph::Result<Plan> {
        self.lowered(&self.graph(layout, bucket)?, bucket)
    }

    fn lowered(&self, graph: &Graph, bucket: Bucket) -> graph::Result<Plan> {
        Ok(Plan { precision: self.precision, ..graph.lower(bucket)? })
    }

    /// The plan that drafts one token of one sequence; `None` without [`Self::with_nextn`]. Inputs are the newest
    /// token, its position, and the row of [`ports::NEXTN_HIDDEN`] that it was sampled from. Another run drafts the
    /// next token.
    ///
    /// # Errors
    /// As [`Self::graph`].
    pub fn draft_plan(&self, layout: KvLayout) -> graph::Result<Option<Plan>> {
        let Some(layer) = &self.hyper.nextn else { return Ok(None) };
        let bucket = Bucket::decode(1, layout.context);
        let step = Step { layout, bucket, cache: self.cache };
        let mut weights = self.weights.clone();
        built(decoder::draft_graph(&self.gguf, &self.hyper, layer, &mut weights, step))?
            .lower(bucket)
            .map(Some)
    }

    /// The plan of a step with the nextn layer disabled, with or without adapters; `None` without
    /// [`Self::with_nextn`]. Drafts after such a step lack the keys and values of its rows.
    ///
    /// # Errors
    /// As [`Self::graph`].
    pub fn plan_without_nextn(
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
        self.lowered(&self.build(layout, bucket, adapters, &hyper)?, bucket).map(Some)
    }

    /// The plan of a step with adapters. Rows with scales of 0 compute the same bits as in [`Self::plan`].
    pub fn adapted_plan(&self, layout: KvLayout, bucket: Bucket) -> graph::Result<Plan> {
        self.lowered(&self.build(layout, bucket, Some(&self.adapters), &self.hyper)?, bucket)
    }
}

fn state(name: &str, dtype: DType, shape: &[usize]) -> Buffer {
    Buffer { name: name.to_owned(), class: Class::State, dtype, shape: shape.to_vec() }
}

/// The graph, which can only fail as a graph: loading the model has found every weight.
fn built(graph: Result<Graph>) -> graph::Result<Graph> {
    match graph {
        Ok(graph) => Ok(graph),
        Err(Error::Graph(error)) => Err(error),
        Err(error) => unreachable!("loading built it with the same weights: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recurrent_models_continue_only_after_their_last_token() {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/architectures");
        for (name, recurrent) in
            [("llama", false), ("gemma3", false), ("qwen35", true), ("lfm2", true), ("rwkv7", true)]
        {
            let model = Model::open(files.join(format!("{name}.gguf"))).unwrap();
            assert!(model.can_resume_at(9, 9) && model.can_resume_at(0, 0), "{name}");
            assert_eq!(model.can_resume_at(9, 8), !recurrent, "{name}");
        }
    }

    #[test]
    fn a_nextn_layer_adds_a_cache_and_weights_only_if_enabled() {
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
        // Files without a nextn layer draft nothing.
        let other = open("llama").with_nextn().unwrap();
        assert!(other.draft_plan(layout).unwrap().is_none());
    }

    #[test]
    fn reading_a_weight_or_bytes_that_do_not_exist_fails() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/models");
        let model = Model::open(models.join("tiny-llama-f16.gguf")).unwrap();
        let mut buf = [7; 4];
        let missing =
            |name: &str, offset, buf: &mut [u8]| match model.read_weight(name, offset, buf) {
                Err(Error::Weight { name, .. }) => Some(name),
                _ => None,
            };
        let unknown = "blk.0.attn_z.weight";
        assert_eq!(missing(unknown, 0, &mut buf).as_deref(), Some(unknown));
        // A derived weight is not in the file, so `Gguf::read` does not check its bounds.
        let derived = &*ports::rope_frequencies(0);
        let bytes = model.weights().find(|weight| weight.name == derived).unwrap().bytes();
        for offset in [bytes - 3, bytes + 1, u64::MAX] {
            assert_eq!(missing(derived, offset, &mut buf).as_deref(), Some(derived), "{offset}");
        }
        assert_eq!(buf, [7; 4], "nothing was written");
        model.read_weight(derived, bytes - 4, &mut buf).unwrap();
        assert_ne!(buf, [7; 4]);
    }

    /// Gemma 3's window of 9 with chunks of 20 needs a ring of 64.
    #[test]
    fn a_ring_has_the_window_of_each_row_of_a_chunk() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/architectures");
        let model = Model::open(data.join("gemma3.gguf")).unwrap();
        let ring = KvLayout { slots: 1, context: 100, ring: Some(20) };
        assert_eq!(model.rings(ring), (3, 64));
        for (written, from, cached) in [
            (96, 96, true),
            (96, 40, true),
            (96, 39, false),
            (97, 71, false),
            (97, 72, true),
            (96, 0, true),
            (64, 1, true),
            (65, 1, false),
        ] {
            assert_eq!(model.keeps(ring, written, from), cached, "{written}, {from}");
            assert!(model.keeps(KvLayout { ring: None, ..ring }, written, from));
        }
        // After a chunk's last row is written, its first row still finds its window.
        for chunk in 1..70 {
            let layout = KvLayout { ring: Some(chunk), context: 1000, ..ring };
            assert!((0..200).all(|from| model.keeps(layout, from + chunk, from)), "{chunk}");
        }
        // A context that is not longer needs no ring.
        assert_eq!(model.rings(KvLayout { context: 64, ..ring }), (0, 0));
    }

    #[test]
    fn the_kv_cache_has_the_requested_type_or_it_is_rejected() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/architectures");
        let open = |name: &str| Model::open(data.join(format!("{name}.gguf"))).unwrap();
        let layout = KvLayout { slots: 2, context: 64, ring: None };
        for (dtype, percent) in [(DType::F16, 100), (DType::Q8_0, 53), (DType::Q4_0, 28)] {
            let model = open("qwen3").with_cache_type(dtype).unwrap();
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
                "Q8_0 cannot store the keys and values of layer 0, which has heads of 16",
            ),
            (
                "gemma4",
                DType::Q4_0,
                "Q4_0 cannot store the keys and values of layer 0, which has heads",
            ),
            (
                "qwen3",
                DType::Q6_K,
                "Q6_K cannot store the keys and values of layer 0, which has heads of 32",
            ),
        ] {
            let error = open(name).with_cache_type(dtype).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
