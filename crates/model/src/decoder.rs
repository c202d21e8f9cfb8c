//! The graph of one step of a decoder-only transformer, from the parts that its hyperparameters name. What the
//! graph asks for are the model's weights: there is no other list.

use std::collections::BTreeMap;

use super::adapter::{Adapters, Selection, Side, Stack};
use super::hyper::{
    Attention, Experts, FeedForward, Hyperparameters, Keys, Layer, QkNorm, Ranks, Recurrent,
};
use super::weights::{Kind, Weights};
use super::{Error, KvLayout, Result, ports};
use crate::gguf::Gguf;
use plan::graph::{
    Caches, DeltaGates, DeltaOperands, Graph, MixtureWeights, Norm, Recurrence, Rows, SampleInputs,
    Tensor,
};
use plan::sample::Adjustment;
use plan::{
    Activation, Binary, Bucket, Buffer, Class, DType, DeltaHeads, NormKind, Outputs, Reduce,
    Scalar, Unary,
};

/// The output projection; where a file lacks it, the embedding serves for both.
const OUTPUT: &str = "output";
const EMBEDDING: &str = "token_embd";

/// What a step is drawn for.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) layout: KvLayout,
    pub(super) bucket: Bucket,
    /// What keys and values are stored in.
    pub(super) cache: DType,
}

/// The graph of a step, with adapters or without; weights that it asks for first are looked up in the file and added to
/// the list.
pub(super) fn graph(
    gguf: &Gguf,
    hyper: &Hyperparameters,
    adapters: Option<&Adapters>,
    weights: &mut Weights,
    step: Step,
) -> Result<Graph> {
    let mut decoder = Decoder::new(gguf, hyper, adapters, weights, step);
    decoder.draw()?;
    Ok(decoder.g)
}

/// The graph of a draft by the nextn layer `i`: one token for one sequence, without adapters.
pub(super) fn draft_graph(
    gguf: &Gguf,
    hyper: &Hyperparameters,
    layer: &Layer,
    weights: &mut Weights,
    step: Step,
) -> Result<Graph> {
    let mut decoder = Decoder::new(gguf, hyper, None, weights, step);
    decoder.draw_draft(layer)?;
    Ok(decoder.g)
}

impl<'a> Decoder<'a> {
    fn new(
        gguf: &'a Gguf,
        hyper: &'a Hyperparameters,
        adapters: Option<&'a Adapters>,
        weights: &'a mut Weights,
        step: Step,
    ) -> Self {
        Self {
            g: Graph::new(),
            gguf,
            hyper,
            adapters,
            weights,
            step,
            caches: BTreeMap::new(),
            first_values: None,
            shares: BTreeMap::new(),
        }
    }
}

struct Decoder<'a> {
    g: Graph,
    gguf: &'a Gguf,
    hyper: &'a Hyperparameters,
    adapters: Option<&'a Adapters>,
    weights: &'a mut Weights,
    step: Step,
    /// Of each layer so far, as they are after its keys and values have been written.
    caches: BTreeMap<usize, Caches>,
    /// The values of the first layer that mixes in time.
    first_values: Option<Tensor>,
    /// What each row takes of each adapter, by the name of their factors and the number of rows.
    shares: BTreeMap<(String, usize), Tensor>,
}

#[derive(Clone, Copy)]
struct Inputs {
    tokens: Tensor,
    rows: Rows,
    /// Present when only some rows get logits.
    logit_rows: Option<Tensor>,
}

impl Decoder<'_> {
    fn draw(&mut self) -> Result<()> {
        let inputs = self.inputs()?;
        let outputs = self.step.bucket.outputs;
        if outputs == Outputs::Resumed {
            let tables = self.rotations(inputs.rows.positions)?;
            let x = self.deferred()?;
            return self.draw_outputs(x, inputs, &tables);
        }
        let mut x = self.embedding(inputs)?;
        let beside = self.beside(inputs, x)?;
        let tables = self.rotations(inputs.rows.positions)?;
        let layers = &self.hyper.layers;
        for (i, layer) in layers.iter().enumerate() {
            // The nextn layer sees every row.
            let last = i + 1 == layers.len() && self.hyper.nextn.is_none();
            let selected = if last { inputs.logit_rows } else { None };
            let table = tables.get(layer.attention.rope).copied();
            x = self.layer(i, layer, x, beside, table, inputs.rows, selected)?;
        }
        if outputs == Outputs::Deferred {
            let place = self.deferred()?;
            self.g.assign(place, x)?;
            return Ok(());
        }
        self.draw_outputs(x, inputs, &tables)
    }

    /// What of a step follows from `x`, its rows behind the last layer.
    fn draw_outputs(&mut self, x: Tensor, inputs: Inputs, tables: &[Tensor]) -> Result<()> {
        let layers = &self.hyper.layers;
        let (outputs, width) = (self.step.bucket.outputs, self.hyper.width);
        let nextn = self.hyper.nextn.as_ref().filter(|_| outputs != Outputs::Hidden);
        if outputs == Outputs::None && nextn.is_none() {
            return Ok(());
        }
        let h = self.norm(self.hyper.output_norm, x, width)?;
        if outputs == Outputs::Hidden {
            self.g.output(ports::HIDDEN, h);
            return Ok(());
        }
        let Some(layer) = nextn else { return self.head(h, inputs).map(drop) };
        // Sampling moves the positions on.
        let zero = self.g.constant(0.0);
        let positions = self.g.binary(Binary::Add, inputs.rows.positions, zero)?;
        let rows = Rows { positions, ..inputs.rows };
        let mut next = None;
        if outputs != Outputs::None {
            let asked = match inputs.logit_rows {
                Some(selected) => self.g.gather(h, &[selected])?,
                None => h,
            };
            let sampled = self.head(asked, inputs)?;
            self.leave_hidden(asked)?;
            next = Some(sampled).filter(|_| inputs.logit_rows.is_none());
        }
        let next = match next {
            Some(sampled) => sampled,
            None => self.mailbox(ports::NEXT, DType::I32, &[self.step.bucket.rows()])?,
        };
        let table = tables.get(layer.attention.rope).copied();
        let i = layers.len();
        let x = self.joined(i, h, next, inputs)?;
        // Of this row nobody asks what it predicts: its keys and values are all that stays.
        self.layer(i, layer, x, None, table, rows, None).map(drop)
    }

    /// What a draft of the nextn layer is made of, as llama.cpp has it (`llama_model_qwen35::graph_mtp`): the embedding
    /// of the newest token and what the logits were made of that it was sampled from, each through a norm of its own and
    /// one projection; a layer; a norm; the logits of the model's output. What they are made of is what the next
    /// draft goes on from. The row has the position of the token before.
    fn draw_draft(&mut self, layer: &Layer) -> Result<()> {
        let (i, width) = (self.hyper.layers.len(), self.hyper.width);
        let inputs = self.inputs()?;
        let one = self.g.constant(1.0);
        let positions = self.g.binary(Binary::Sub, inputs.rows.positions, one)?;
        let rows = Rows { positions, ..inputs.rows };
        let (hidden, row) = (self.hidden()?, self.mailbox(ports::HIDDEN_ROW, DType::I32, &[1])?);
        let h = self.g.gather(hidden, &[row])?;
        let tables = self.rotations(positions)?;
        let table = tables.get(layer.attention.rope).copied();
        let x = self.joined(i, h, inputs.tokens, inputs)?;
        let x = self.layer(i, layer, x, None, table, rows, None)?;
        let own = format!("blk.{i}.nextn.shared_head_norm");
        let own = self.gguf.tensor(&format!("{own}.weight")).map(|_| own);
        let h = self.norm(own.as_deref().unwrap_or(self.hyper.output_norm), x, width)?;
        self.g.scatter(hidden, &[row], h)?;
        self.head(h, inputs).map(drop)
    }

    /// What goes into the nextn layer for the rows of `h` and the token behind each.
    fn joined(&mut self, i: usize, h: Tensor, next: Tensor, inputs: Inputs) -> Result<Tensor> {
        let (width, vocabulary) = (self.hyper.width, self.hyper.vocabulary);
        let part = |name: &str| format!("blk.{i}.nextn.{name}");
        let own = part("embed_tokens");
        let e = if self.gguf.tensor(&format!("{own}.weight")).is_some() {
            let table = self.matrix(&own, vocabulary, width)?;
            self.g.gather(table, &[next])?
        } else {
            self.embedding(Inputs { tokens: next, ..inputs })?
        };
        let (e, h) = (self.norm(&part("enorm"), e, width)?, self.norm(&part("hnorm"), h, width)?);
        let whole = part("eh_proj.weight");
        let mut half = |name: &str, x: Tensor, second: usize| {
            let (own, shapes) = (part(name), [[width, 2 * width], [width, width]]);
            let place = [width, second];
            let [found, shape] = &shapes;
            let buffer = self.weights.alternate(self.gguf, &own, &whole, found, shape, place)?;
            self.g.at(own);
            let weight = self.source(&buffer)?;
            Ok::<_, Error>(self.g.matmul(x, weight)?)
        };
        let (of_e, of_h) = (half("e_proj", e, 0)?, half("h_proj", h, 1)?);
        Ok(self.g.binary(Binary::Add, of_e, of_h)?)
    }

    /// Leaves what rows of logits are made of where drafts find it.
    fn leave_hidden(&mut self, h: Tensor) -> Result<()> {
        let hidden = self.hidden()?;
        let rows = self.g.shape(h)[0].min(self.g.shape(hidden)[0]);
        let h = self.g.slice(h, 0, 0, rows)?;
        let place = self.g.slice(hidden, 0, 0, rows)?;
        self.g.assign(place, h)?;
        Ok(())
    }

    /// Where the rows of a step stay whose logits are made by another plan.
    fn deferred(&mut self) -> Result<Tensor> {
        let shape = [self.step.layout.slots, self.hyper.width];
        let all = self.g.source(Class::State, ports::DEFERRED, DType::F32, &shape)?;
        Ok(self.g.slice(all, 0, 0, self.step.bucket.rows())?)
    }

    fn hidden(&mut self) -> Result<Tensor> {
        let shape = [self.step.layout.hidden_rows(), self.hyper.width];
        Ok(self.g.source(Class::State, ports::NEXTN_HIDDEN, DType::F32, &shape)?)
    }

    fn inputs(&mut self) -> Result<Inputs> {
        let bucket = self.step.bucket;
        let rows = [bucket.rows()];
        let partial = bucket.outputs == Outputs::Last && bucket.chunk > 1;
        Ok(Inputs {
            tokens: self.mailbox(ports::TOKENS, DType::I32, &rows)?,
            rows: Rows {
                slots: self.mailbox(ports::SLOTS, DType::I32, &rows)?,
                positions: self.mailbox(ports::POSITIONS, DType::I32, &rows)?,
            },
            logit_rows: if partial {
                Some(self.mailbox(ports::LOGIT_ROWS, DType::I32, &[bucket.logit_rows()])?)
            } else {
                None
            },
        })
    }

    fn embedding(&mut self, inputs: Inputs) -> Result<Tensor> {
        let Hyperparameters { width, vocabulary, context, embedding, .. } = *self.hyper;
        let table = self.matrix(EMBEDDING, vocabulary, width)?;
        let mut x = self.g.gather(table, &[inputs.tokens])?;
        if let Some(factor) = embedding.scale {
            x = self.g.scale(x, factor)?;
        }
        if embedding.norm {
            x = self.norm("token_embd_norm", x, width)?;
        }
        if embedding.positions {
            let table = self.matrix("position_embd", context, width)?;
            let positions = self.g.gather(table, &[inputs.rows.positions])?;
            x = self.g.binary(Binary::Add, x, positions)?;
        }
        Ok(x)
    }

    /// What each layer gets of the token beside the residual stream: `[M, layers * width]`, from a table of its
    /// own and from the embedding.
    fn beside(&mut self, inputs: Inputs, x: Tensor) -> Result<Option<Tensor>> {
        let Some(part) = self.hyper.embedding.per_layer else { return Ok(None) };
        let (m, layers, width) =
            (self.step.bucket.rows(), self.hyper.layers.len(), self.hyper.width);
        let all = layers * part;
        let table = self.matrix("per_layer_token_embd", self.hyper.vocabulary, all)?;
        let looked_up = self.g.gather(table, &[inputs.tokens])?;
        let looked_up = self.g.scale(looked_up, (part as f32).sqrt())?;
        let projected = self.product("per_layer_model_proj", x, all, width)?;
        let projected = self.g.scale(projected, 1.0 / (width as f32).sqrt())?;
        let projected = self.g.reshape(projected, &[m, layers, part])?;
        let projected = self.norm("per_layer_proj_norm", projected, part)?;
        let projected = self.g.reshape(projected, &[m, all])?;
        let sum = self.g.binary(Binary::Add, projected, looked_up)?;
        Ok(Some(self.g.scale(sum, std::f32::consts::FRAC_1_SQRT_2)?))
    }

    /// The table of each rotation.
    fn rotations(&mut self, positions: Tensor) -> Result<Vec<Tensor>> {
        let mut tables = Vec::new();
        for (i, rope) in self.hyper.ropes.iter().enumerate() {
            self.g.at("rope_table");
            let mut frequencies = self.derived(&ports::rope_frequencies(i), &rope.frequencies)?;
            if let Some((long, beyond)) = &rope.long {
                let long = self.derived(&ports::long_rope_frequencies(i), long)?;
                if self.step.layout.context > *beyond {
                    frequencies = long;
                }
            }
            tables.push(self.g.rope_table(positions, frequencies, rope.magnitude)?);
        }
        Ok(tables)
    }

    /// One layer. After its last part that looks at other rows only the `selected` ones go on.
    #[expect(clippy::too_many_arguments, reason = "all that layers share")]
    fn layer(
        &mut self,
        i: usize,
        layer: &Layer,
        x: Tensor,
        beside: Option<Tensor>,
        table: Option<Tensor>,
        rows: Rows,
        selected: Option<Tensor>,
    ) -> Result<Tensor> {
        let (mut x, mut beside) = (x, beside);
        let mut h = self.norm(&format!("blk.{i}.attn_norm"), x, self.hyper.width)?;
        let (mut mixed, output, inner) = match layer.recurrent {
            None => {
                let table = table.unwrap_or_else(|| unreachable!("attention names a rotation"));
                let inner = layer.attention.heads * layer.attention.head_size;
                (self.attention(i, &layer.attention, h, table, rows)?, "attn_output", inner)
            }
            Some(recurrent) => self.recurrent(i, recurrent, h, rows)?,
        };
        let mixes = layer.feed_forward == FeedForward::ChannelMix;
        if let Some(selected) = selected.filter(|_| !mixes) {
            self.g.at(format!("blk.{i}.select"));
            mixed = self.g.gather(mixed, &[selected])?;
            x = self.g.gather(x, &[selected])?;
            if layer.parallel {
                h = self.g.gather(h, &[selected])?;
            }
            if let Some(beside) = &mut beside {
                *beside = self.g.gather(*beside, &[selected])?;
            }
        }
        let attention =
            self.product(&format!("blk.{i}.{output}"), mixed, self.hyper.width, inner)?;
        let after = format!("blk.{i}.post_attention_norm");
        x = self.add(layer, x, attention, &after)?;
        if !layer.parallel {
            let name = format!("blk.{i}.{}", layer.feed_forward_norm);
            h = self.norm(&name, x, self.hyper.width)?;
        }
        if mixes {
            let before = self.before(&ports::channel_state(i), h, rows)?;
            h = self.lerp(
                &format!("blk.{i}.channel_mix_lerp_k"),
                h,
                before,
                0,
                &[1, 1, self.hyper.width],
            )?;
            if let Some(selected) = selected {
                self.g.at(format!("blk.{i}.select"));
                x = self.g.gather(x, &[selected])?;
                h = self.g.gather(h, &[selected])?;
            }
        }
        let given = self.feed_forward(i, layer, x, h)?;
        x = self.add(layer, x, given, &format!("blk.{i}.post_ffw_norm"))?;
        if let (Some(beside), Some(part)) = (beside, self.hyper.embedding.per_layer) {
            x = self.take_beside(i, x, beside, part)?;
        }
        match layer.output_scale {
            Some(factor) => Ok(self.g.scale(x, factor)?),
            None => Ok(x),
        }
    }

    /// What a part of a layer gives, added to the residual stream.
    fn add(&mut self, layer: &Layer, x: Tensor, given: Tensor, norm: &str) -> Result<Tensor> {
        let mut given = given;
        if layer.norm_after {
            given = self.norm(norm, given, self.hyper.width)?;
        }
        if let Some(factor) = layer.residual_scale {
            given = self.g.scale(given, factor)?;
        }
        Ok(self.g.binary(Binary::Add, x, given)?)
    }

    /// Heads' mixed values `[M, H * D]` of `h`.
    fn attention(
        &mut self,
        i: usize,
        attention: &Attention,
        h: Tensor,
        table: Tensor,
        rows: Rows,
    ) -> Result<Tensor> {
        let Attention { heads, kv_heads, head_size, style, scores, .. } = *attention;
        let m = self.step.bucket.rows();
        let (q_rows, kv_rows) = (heads * head_size, kv_heads * head_size);
        let all = q_rows + 2 * kv_rows;
        let part = |decoder: &mut Self, name: &str, at: usize, n: usize, heads: usize| {
            let (name, width) = (format!("blk.{i}.{name}"), decoder.hyper.width);
            let whole = format!("blk.{i}.attn_qkv");
            let made = decoder.product_of(&name, &whole, h, [at, n, all], width)?;
            Ok::<_, Error>(decoder.g.reshape(made, &[m, heads, head_size])?)
        };
        let mut q = match attention.gated {
            false => part(self, "attn_q", 0, q_rows, heads)?,
            true => {
                let (name, both) = (format!("blk.{i}.attn_q"), format!("blk.{i}.attn_q.weight"));
                let q = self.alternate(&name, &both, h, q_rows, [heads, 0])?;
                self.g.reshape(q, &[m, heads, head_size])?
            }
        };
        let own = match attention.keys {
            Keys::Own => {
                let k = part(self, "attn_k", q_rows, kv_rows, kv_heads)?;
                Some((k, part(self, "attn_v", q_rows + kv_rows, kv_rows, kv_heads)?))
            }
            Keys::Shared => {
                let k = part(self, "attn_k", q_rows, kv_rows, kv_heads)?;
                Some((k, k))
            }
            Keys::OfLayer(_) => None,
        };
        if let Some(kind) = attention.qk_norm {
            q = self.qk_norm(&format!("blk.{i}.attn_q_norm"), q, kind)?;
        }
        let own = match own {
            Some((k, v)) => {
                let mut k = k;
                if let Some(kind) = attention.qk_norm {
                    k = self.qk_norm(&format!("blk.{i}.attn_k_norm"), k, kind)?;
                }
                let mut v = v;
                if attention.value_norm {
                    self.g.at(format!("blk.{i}.attn_v_norm"));
                    let ones = self.derived(&ports::ones(head_size), &vec![1.0; head_size])?;
                    v = self.g.rms_norm(v, ones, self.hyper.norm.eps)?;
                }
                Some((k, v))
            }
            None => None,
        };
        self.g.at(format!("blk.{i}.rope"));
        let q = self.g.rope(q, table, style)?;
        let caches = match (own, attention.keys) {
            (Some((k, v)), _) => {
                let k = self.g.rope(k, table, style)?;
                self.g.at(format!("blk.{i}.kv"));
                let keys = self.cache(&ports::key_cache(i), attention)?;
                let values = self.cache(&ports::value_cache(i), attention)?;
                let (_, ring) = self.layout().positions(attention);
                let keys = self.g.kv_write(keys, rows, k, ring)?;
                Caches { keys, values: self.g.kv_write(values, rows, v, ring)?, ring }
            }
            (None, Keys::OfLayer(layer)) => self.caches[&layer],
            (None, _) => unreachable!("other layers made keys and values above"),
        };
        self.caches.insert(i, caches);
        self.g.at(format!("blk.{i}.attention"));
        let sinks = match attention.sinks {
            true => Some(self.vector(&format!("blk.{i}.attn_sinks.weight"), heads)?),
            false => None,
        };
        let mixed = self.g.attention(q, caches, rows, sinks, scores, self.step.bucket.context)?;
        let mixed = self.g.reshape(mixed, &[m, q_rows])?;
        if !attention.gated {
            return Ok(mixed);
        }
        let (name, both) = (format!("blk.{i}.attn_gate"), format!("blk.{i}.attn_q.weight"));
        let gate = self.alternate(&name, &both, h, q_rows, [heads, 1])?;
        Ok(self.g.gate(gate, mixed)?)
    }

    /// Queries or keys `[M, H, D]`, normalised.
    fn qk_norm(&mut self, name: &str, x: Tensor, kind: QkNorm) -> Result<Tensor> {
        let &[m, heads, size] = self.g.shape(x) else { unreachable!("`attention` made them") };
        match kind {
            QkNorm::Head => self.norm(name, x, size),
            QkNorm::Row => {
                let x = self.g.reshape(x, &[m, heads * size])?;
                let x = self.norm(name, x, heads * size)?;
                Ok(self.g.reshape(x, &[m, heads, size])?)
            }
        }
    }

    /// Product with `rows` rows of a tensor that has twice as many: of each of its groups the first half, or the
    /// second.
    fn alternate(
        &mut self,
        name: &str,
        tensor: &str,
        h: Tensor,
        rows: usize,
        place: [usize; 2],
    ) -> Result<Tensor> {
        let (found, shape) = ([2 * rows, self.hyper.width], [rows, self.hyper.width]);
        let own = format!("{name}.rows");
        let buffer = self.weights.alternate(self.gguf, &own, tensor, &found, &shape, place)?;
        self.g.at(name);
        let weight = self.source(&buffer)?;
        let made = self.g.matmul(h, weight)?;
        let [groups, second] = place;
        let run = rows / groups;
        let selection = Selection { start: run * second, run, stride: 2 * run };
        self.adapted([name, tensor.trim_end_matches(".weight")], [h, made], found, selection)
    }

    /// What a layer that remembers makes of `h`, the name of the matrix behind it, and its columns.
    fn recurrent(
        &mut self,
        i: usize,
        recurrent: Recurrent,
        h: Tensor,
        rows: Rows,
    ) -> Result<(Tensor, &'static str, usize)> {
        let (m, width) = (self.step.bucket.rows(), self.hyper.width);
        if let Recurrent::TimeMix { heads, head_size, ranks } = recurrent {
            let mixed = self.time_mix(i, [heads, head_size], ranks, h, rows)?;
            return Ok((mixed, "time_mix_output", width));
        }
        let (columns, taps) = recurrent.convolution(width);
        let last = self.memory(&ports::conv_state(i), &[taps - 1, columns], rows)?;
        match recurrent {
            Recurrent::ShortConv { .. } => {
                let whole = format!("blk.{i}.shortconv.in_proj");
                let mut part = |name: &str, at: usize| {
                    let name = format!("blk.{i}.shortconv.{name}");
                    self.product_of_rows(&name, &whole, h, [at * width, width, 3 * width], width)
                };
                let (before, after, x) = (part("before", 0)?, part("after", 1)?, part("x", 2)?);
                let x = self.g.binary(Binary::Mul, before, x)?;
                let name = format!("blk.{i}.shortconv.conv.weight");
                let y = self.convolution(&name, x, columns, taps, last)?;
                let y = self.g.binary(Binary::Mul, after, y)?;
                Ok((y, "shortconv.out_proj", width))
            }
            Recurrent::GatedDelta { heads, .. } => {
                let DeltaHeads { values, key_size, value_size, .. } = heads;
                let inner = values * value_size;
                let mixed = self.product(&format!("blk.{i}.attn_qkv"), h, columns, width)?;
                let z = self.product(&format!("blk.{i}.attn_gate"), h, inner, width)?;
                let (step, strength) = self.delta_gates(i, h, heads)?;
                let name = format!("blk.{i}.ssm_conv1d.weight");
                let mixed = self.convolution(&name, mixed, columns, taps, last)?;
                let mixed = self.g.activate(Activation::Silu, mixed)?;
                let rate = self.vector(&format!("blk.{i}.ssm_a"), values)?;
                let bias = self.vector(&format!("blk.{i}.ssm_dt.bias"), values)?;
                let shape = [values, key_size, value_size];
                let memory = self.memory(&ports::delta_state(i), &shape, rows)?;
                self.g.at(format!("blk.{i}.gated_delta"));
                let gates = DeltaGates { step, strength, rate, bias };
                let y = self.g.gated_delta(mixed, gates, heads, self.hyper.norm.eps, memory)?;
                let y = self.norm(&format!("blk.{i}.ssm_norm"), y, value_size)?;
                let z = self.g.reshape(z, &[m, values, value_size])?;
                let y = self.g.glu(Activation::Silu, z, y)?;
                Ok((self.g.reshape(y, &[m, inner])?, "ssm_out", inner))
            }
            Recurrent::TimeMix { .. } => unreachable!("returned above"),
        }
    }

    /// RWKV-7's time mixing (Peng et al., 2025, section 4), before its last matrix.
    fn time_mix(
        &mut self,
        i: usize,
        [heads, size]: [usize; 2],
        ranks: Ranks,
        h: Tensor,
        rows: Rows,
    ) -> Result<Tensor> {
        /// The negative logarithm of the smallest decay: `exp(-1/2)`, which llama.cpp has to six digits.
        const MOST_DECAY: f32 = 0.606_530_66;
        /// Of the norm of a head's result, where heads have 64 values.
        const EPS: f32 = 64e-5;
        let (m, width) = (self.step.bucket.rows(), self.hyper.width);
        let part = |name: &str| format!("blk.{i}.time_mix_{name}");
        let back = self.before(&ports::conv_state(i), h, rows)?;
        let mut mixes = Vec::new();
        for at in 0..6 {
            mixes.push(self.lerp(&part("lerp_fused"), h, back, at, &[6, 1, 1, width])?);
        }
        let [xr, xw, xk, xv, xa, xg] = mixes[..] else { unreachable!("six were pushed") };
        let query = self.product(&part("receptance"), xr, width, width)?;
        let mut key = self.product(&part("key"), xk, width, width)?;
        let mut value = self.product(&part("value"), xv, width, width)?;

        let decay = self.product(&part("w1"), xw, ranks.decay, width)?;
        let decay = self.g.soft_cap(decay, 1.0)?;
        let decay = self.raised(&part("w"), decay, ranks.decay)?;
        let most = self.g.constant(-MOST_DECAY);
        let decay = self.g.binary(Binary::Mul, decay, most)?;
        let decay = self.g.unary(Unary::Exp, decay)?;
        let rate = self.product(&part("a1"), xa, ranks.rate, width)?;
        let rate = self.raised(&part("a"), rate, ranks.rate)?;
        match self.first_values {
            None => self.first_values = Some(value),
            Some(first) => {
                let share = self.product(&part("v1"), xv, ranks.value, width)?;
                let share = self.raised(&part("v"), share, ranks.value)?;
                let off = self.g.binary(Binary::Sub, first, value)?;
                let off = self.g.binary(Binary::Mul, off, share)?;
                value = self.g.binary(Binary::Add, value, off)?;
            }
        }

        self.g.at(part("wkv"));
        let of_heads = |decoder: &mut Self, x| decoder.g.reshape(x, &[m, heads, size]);
        let scale = self.vector(&format!("{}.weight", part("k_k")), width)?;
        let take = self.g.binary(Binary::Mul, key, scale)?;
        let take = of_heads(self, take)?;
        let take = self.g.of_length_1(take, 1e-24)?;
        let share = self.vector(&format!("{}.weight", part("k_a")), width)?;
        let share = self.g.binary(Binary::Mul, key, share)?;
        let scaled = self.g.binary(Binary::Mul, rate, share)?;
        let scaled = self.g.binary(Binary::Sub, scaled, share)?;
        key = self.g.binary(Binary::Add, key, scaled)?;
        let rate = of_heads(self, rate)?;
        let add = self.g.binary(Binary::Mul, take, rate)?;
        let take = self.g.unary(Unary::Neg, take)?;
        let (query, decay) = (of_heads(self, query)?, of_heads(self, decay)?);
        let (key, value) = (of_heads(self, key)?, of_heads(self, value)?);
        let memory = self.memory(&ports::delta_state(i), &[heads, size, size], rows)?;
        let operands = DeltaOperands { query, decay, key, value, take, add };
        let y = self.g.delta_rule(operands, memory)?;

        // A norm of each head; its weights are those of all.
        let ones = self.derived(&ports::ones(size), &vec![1.0; size])?;
        let norm = Norm { kind: NormKind::Layer, weight: ones, bias: None, eps: Scalar::new(EPS) };
        let y = self.g.normalise(y, norm)?;
        let y = self.g.reshape(y, &[m, width])?;
        let weight = self.vector(&format!("{}.weight", part("ln")), width)?;
        let y = self.g.binary(Binary::Mul, y, weight)?;
        let y = self.biased(&part("ln"), y, width)?;

        let bonus = self.vector(&format!("{}.weight", part("r_k")), width)?;
        let bonus = self.g.reshape(bonus, &[1, heads, size])?;
        let asked = self.g.binary(Binary::Mul, key, query)?;
        let asked = self.g.binary(Binary::Mul, asked, bonus)?;
        let asked = self.g.reduce(Reduce::Sum, asked, 2)?;
        let own = self.g.binary(Binary::Mul, value, asked)?;
        let own = self.g.reshape(own, &[m, width])?;
        let y = self.g.binary(Binary::Add, y, own)?;

        let gate = self.product(&part("g1"), xg, ranks.gate, width)?;
        let gate = self.g.sigmoid(gate)?;
        let gate = self.product(&part("g2"), gate, width, ranks.gate)?;
        Ok(self.g.binary(Binary::Mul, y, gate)?)
    }

    /// The second matrix of a product of low rank, what is added to it, and the sigmoid of both.
    fn raised(&mut self, name: &str, x: Tensor, rank: usize) -> Result<Tensor> {
        let width = self.hyper.width;
        let x = self.product(&format!("{name}2"), x, width, rank)?;
        let bias = self.vector(&format!("{name}0.weight"), width)?;
        let x = self.g.bias(x, bias)?;
        Ok(self.g.sigmoid(x)?)
    }

    /// What the row before each has more than it; before the first there are zeroes.
    fn before(&mut self, state: &str, x: Tensor, rows: Rows) -> Result<Tensor> {
        let width = self.hyper.width;
        self.g.at(state);
        let memory = self.memory(state, &[1, width], rows)?;
        let weight = self.derived(&ports::step_back(width), &[1.0, -1.0].repeat(width))?;
        let weight = self.g.reshape(weight, &[width, 2])?;
        Ok(self.g.short_conv(x, weight, memory)?)
    }

    /// `x + back * share`, the share of each column in row `at` of a tensor of that shape.
    fn lerp(
        &mut self,
        name: &str,
        x: Tensor,
        back: Tensor,
        at: usize,
        shape: &[usize],
    ) -> Result<Tensor> {
        self.g.at(name);
        let shares = self.flat(&format!("{name}.weight"), shape)?;
        let width = self.hyper.width;
        let shares = self.g.reshape(shares, &[shape[0], width])?;
        let share = self.g.slice(shares, 0, at, 1)?;
        let back = self.g.binary(Binary::Mul, back, share)?;
        Ok(self.g.binary(Binary::Add, x, back)?)
    }

    /// The step and the strength of each head of values; the rows of both may lie in one tensor, those of the heads
    /// that share keys together.
    fn delta_gates(&mut self, i: usize, h: Tensor, heads: DeltaHeads) -> Result<(Tensor, Tensor)> {
        let DeltaHeads { keys, values, grouped, .. } = heads;
        let (step, strength) = (format!("blk.{i}.ssm_alpha"), format!("blk.{i}.ssm_beta"));
        if !grouped {
            let width = self.hyper.width;
            return Ok((
                self.product(&step, h, values, width)?,
                self.product(&strength, h, values, width)?,
            ));
        }
        let both = format!("blk.{i}.ssm_ba.weight");
        let strength = self.alternate(&strength, &both, h, values, [keys, 0])?;
        Ok((self.alternate(&step, &both, h, values, [keys, 1])?, strength))
    }

    fn convolution(
        &mut self,
        name: &str,
        x: Tensor,
        channels: usize,
        taps: usize,
        memory: Recurrence,
    ) -> Result<Tensor> {
        self.g.at(name.trim_end_matches(".weight"));
        let weight = self.flat(name, &[channels, taps])?;
        Ok(self.g.short_conv(x, weight, memory)?)
    }

    /// A state of fixed size, of which each slot has two versions.
    fn memory(&mut self, name: &str, size: &[usize], rows: Rows) -> Result<Recurrence> {
        let slots = self.step.layout.slots;
        let shape = [&[slots, 2], size].concat();
        let state = self.g.source(Class::State, name, DType::F32, &shape)?;
        let held = self.g.source(Class::State, &ports::held(name), DType::I32, &[slots, 2])?;
        Ok(Recurrence { state, held, rows, chunk: self.step.bucket.chunk })
    }

    /// What the feed-forward part makes of the residual stream, `h` with its norm.
    fn feed_forward(&mut self, i: usize, layer: &Layer, x: Tensor, h: Tensor) -> Result<Tensor> {
        let (rows, width) = (layer.feed_forward_width, self.hyper.width);
        match layer.feed_forward {
            FeedForward::Gated { activation, fused } => self.gated(i, rows, activation, fused, h),
            FeedForward::Plain { activation } => {
                let up = self.product(&format!("blk.{i}.ffn_up"), h, rows, width)?;
                let inner = self.g.activate(activation, up)?;
                self.product(&format!("blk.{i}.ffn_down"), inner, width, rows)
            }
            FeedForward::ChannelMix => {
                let key = self.product(&format!("blk.{i}.channel_mix_key"), h, rows, width)?;
                let zero = self.g.constant(0.0);
                let key = self.g.binary(Binary::Max, key, zero)?;
                let key = self.g.binary(Binary::Mul, key, key)?;
                self.product(&format!("blk.{i}.channel_mix_value"), key, width, rows)
            }
            FeedForward::Experts(of) => {
                let logits = self.product(&format!("blk.{i}.ffn_gate_inp"), h, of.count, width)?;
                self.experts(i, rows, &of, h, logits)
            }
            FeedForward::Both { activation, experts, width: expert_rows } => {
                let given = self.gated(i, rows, activation, false, h)?;
                let given = self.norm(&format!("blk.{i}.post_ffw_norm_1"), given, width)?;
                let h = self.norm(&format!("blk.{i}.pre_ffw_norm_2"), x, width)?;
                let name = format!("blk.{i}.ffn_gate_inp");
                let scale = self.vector(&format!("{name}.scale"), width)?;
                self.g.at(&*name);
                let seen = self.g.rms_norm(x, scale, self.hyper.norm.eps)?;
                let seen = self.g.scale(seen, 1.0 / (width as f32).sqrt())?;
                let logits = self.product(&name, seen, experts.count, width)?;
                let mixed = self.experts(i, expert_rows, &experts, h, logits)?;
                let mixed = self.norm(&format!("blk.{i}.post_ffw_norm_2"), mixed, width)?;
                Ok(self.g.binary(Binary::Add, given, mixed)?)
            }
        }
    }

    /// `down(activation(gate(h)) * up(h))`.
    fn gated(
        &mut self,
        i: usize,
        rows: usize,
        activation: Activation,
        fused: bool,
        h: Tensor,
    ) -> Result<Tensor> {
        let width = self.hyper.width;
        let [gate, up, down] = ["gate", "up", "down"].map(|part| format!("blk.{i}.ffn_{part}"));
        // Where the file has one matrix for both it is called `up`, and there is no `gate`.
        let whole = if fused { up.clone() } else { String::new() };
        let gate = self.product_of(&gate, &whole, h, [0, rows, 2 * rows], width)?;
        let up = self.product_of(&up, &whole, h, [rows, rows, 2 * rows], width)?;
        let inner = self.g.glu(activation, gate, up)?;
        self.product(&down, inner, width, rows)
    }

    /// What the experts that the router's logits choose give, each with `rows` rows; and the one that takes every
    /// row.
    fn experts(
        &mut self,
        i: usize,
        rows: usize,
        of: &Experts,
        h: Tensor,
        logits: Tensor,
    ) -> Result<Tensor> {
        let width = self.hyper.width;
        let gate = self.expert_matrices(i, "ffn_gate_exps", 0, [of.count, rows, width])?;
        let up = self.expert_matrices(i, "ffn_up_exps", 1, [of.count, rows, width])?;
        let down = self.expert_matrices(i, "ffn_down_exps", 0, [of.count, width, rows])?;
        let preference = format!("blk.{i}.exp_probs_b.bias");
        let preference = match self.gguf.tensor(&preference) {
            Some(_) => Some(self.vector(&preference, of.count)?),
            None => None,
        };
        let scales = match of.scaled {
            true => Some(self.vector(&format!("blk.{i}.ffn_down_exps.scale"), of.count)?),
            false => None,
        };
        self.g.at(format!("blk.{i}.ffn_exps"));
        let weights = MixtureWeights { preference, scales, gate, up, down };
        let given = self.g.mixture(h, logits, weights, of.routing, of.gating)?;
        let Some(rows) = of.shared else { return Ok(given) };
        let gate = self.product(&format!("blk.{i}.ffn_gate_shexp"), h, rows, width)?;
        let up = self.product(&format!("blk.{i}.ffn_up_shexp"), h, rows, width)?;
        let inner = self.g.glu(Activation::Silu, gate, up)?;
        let shared = self.product(&format!("blk.{i}.ffn_down_shexp"), inner, width, rows)?;
        let name = format!("blk.{i}.ffn_gate_inp_shexp.weight");
        let shapes = [&[width][..], &[1, width]];
        let gate = self.weights.reshaped(self.gguf, &name, shapes, Kind::Matrix)?;
        self.g.at(name.trim_end_matches(".weight"));
        let gate = self.source(&gate)?;
        let gate = self.g.matmul(h, gate)?;
        let shared = self.g.gate(gate, shared)?;
        Ok(self.g.binary(Binary::Add, given, shared)?)
    }

    /// The same matrix of every expert, with its biases where the file has them; gate and up may be halves of
    /// one.
    fn expert_matrices(
        &mut self,
        i: usize,
        name: &str,
        half: usize,
        shape: [usize; 3],
    ) -> Result<plan::graph::Experts> {
        let [count, rows, columns] = shape;
        self.g.at(format!("blk.{i}.{name}"));
        let (own, both) =
            (format!("blk.{i}.{name}.weight"), format!("blk.{i}.ffn_gate_up_exps.weight"));
        let halved = name != "ffn_down_exps" && self.gguf.tensor(&both).is_some();
        let buffer = if halved {
            let found = [count, 2 * rows, columns];
            self.weights.alternate(self.gguf, &own, &both, &found, &shape, [count, half])?
        } else {
            self.weights.tensor(self.gguf, &own, &shape, Kind::Matrix)?
        };
        let weight = self.source(&buffer)?;
        let bias = format!("blk.{i}.{name}.bias");
        let bias = match self.gguf.tensor(&bias) {
            Some(_) => Some(self.flat(&bias, &[count, rows])?),
            None => None,
        };
        Ok(plan::graph::Experts { weight, bias })
    }

    /// Numbers that no product is made with, which lie as they are whatever their shape.
    fn flat(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let all = [shape.iter().product()];
        let buffer = self.weights.reshaped(self.gguf, name, [shape, &all], Kind::Vector)?;
        let flat = self.source(&buffer)?;
        Ok(self.g.reshape(flat, shape)?)
    }

    /// `x` plus what a layer makes of its own part of the token.
    fn take_beside(&mut self, i: usize, x: Tensor, all: Tensor, part: usize) -> Result<Tensor> {
        let width = self.hyper.width;
        let own = self.g.slice(all, 1, i * part, part)?;
        let gate = self.product(&format!("blk.{i}.inp_gate"), x, part, width)?;
        let gated = self.g.glu(Activation::Gelu, gate, own)?;
        let given = self.product(&format!("blk.{i}.proj"), gated, width, part)?;
        let given = self.norm(&format!("blk.{i}.post_norm"), given, width)?;
        Ok(self.g.binary(Binary::Add, x, given)?)
    }

    /// Logits, sampled tokens, and in decode the next step's inputs.
    fn head(&mut self, h: Tensor, inputs: Inputs) -> Result<Tensor> {
        let (n, width, vocabulary) =
            (self.step.bucket.logit_rows(), self.hyper.width, self.hyper.vocabulary);
        let tied = self.gguf.tensor(&format!("{OUTPUT}.weight")).is_none();
        self.g.at(OUTPUT);
        let weight = self.matrix(if tied { EMBEDDING } else { OUTPUT }, vocabulary, width)?;
        let mut logits = self.g.matmul(h, weight)?;
        if !tied {
            let (names, shape) = ([OUTPUT, OUTPUT], [vocabulary, width]);
            logits = self.adapted(names, [h, logits], shape, Selection::all(vocabulary))?;
        }
        logits = self.biased(OUTPUT, logits, vocabulary)?;
        if let Some(factor) = self.hyper.logits.scale {
            logits = self.g.scale(logits, factor)?;
        }
        if let Some(cap) = self.hyper.logits.cap {
            logits = self.g.soft_cap(logits, cap)?;
        }
        self.g.output(ports::LOGITS, logits);
        self.g.at("sample");
        let positions = match inputs.logit_rows {
            Some(rows) => self.g.gather(inputs.rows.positions, &[rows])?,
            None => inputs.rows.positions,
        };
        let adjustments = match self.step.bucket.outputs {
            Outputs::Last | Outputs::Resumed => {
                let words = Adjustment::words(self.hyper.vocabulary);
                Some(self.mailbox(ports::ADJUSTMENTS, DType::I32, &[n, words])?)
            }
            _ => None,
        };
        let parameters = SampleInputs {
            temperature: self.mailbox(ports::TEMPERATURE, DType::F32, &[n])?,
            top_k: self.mailbox(ports::TOP_K, DType::I32, &[n])?,
            top_p: self.mailbox(ports::TOP_P, DType::F32, &[n])?,
            min_p: self.mailbox(ports::MIN_P, DType::F32, &[n])?,
            seed: self.mailbox(ports::SEED, DType::I32, &[n, 2])?,
            positions,
            adjustments,
        };
        let sampled = self.g.sample(logits, parameters)?;
        self.g.output(ports::SAMPLED, sampled);
        if self.step.bucket.chunk == 1 {
            let one = self.g.constant(1.0);
            let next = self.g.binary(Binary::Add, inputs.rows.positions, one)?;
            self.g.assign(inputs.tokens, sampled)?;
            self.g.assign(inputs.rows.positions, next)?;
        }
        Ok(sampled)
    }

    /// The model's kind of norm over rows of `n`, by the weights with this name.
    fn norm(&mut self, name: &str, x: Tensor, n: usize) -> Result<Tensor> {
        self.g.at(name);
        let super::hyper::Norm { kind, eps } = self.hyper.norm;
        let weight = self.vector(&format!("{name}.weight"), n)?;
        let bias = match kind {
            NormKind::Layer => Some(self.vector(&format!("{name}.bias"), n)?),
            NormKind::Rms => None,
        };
        Ok(self.g.normalise(x, Norm { kind, weight, bias, eps: Scalar::new(eps) })?)
    }

    /// Product with a matrix of `rows` rows, and its bias where the file has one.
    fn product(&mut self, name: &str, x: Tensor, rows: usize, columns: usize) -> Result<Tensor> {
        self.g.at(name);
        let weight = self.matrix(name, rows, columns)?;
        let made = self.g.matmul(x, weight)?;
        let made = self.adapted([name, name], [x, made], [rows, columns], Selection::all(rows))?;
        self.biased(name, made, rows)
    }

    /// `made`, the product of `x` with some rows of a matrix of the model, with what the adapters add to it.
    fn adapted(
        &mut self,
        [name, whole]: [&str; 2],
        [x, made]: [Tensor; 2],
        [all, columns]: [usize; 2],
        rows: Selection,
    ) -> Result<Tensor> {
        let Some(adapters) = self.adapters else { return Ok(made) };
        let (tensor, n) = (format!("{whole}.weight"), adapters.len());
        let Some((rank, dtype)) = adapters.stacked(&tensor, [all, columns])? else {
            return Ok(made);
        };
        let &[m, given] = self.g.shape(made) else { unreachable!("a product has two axes") };
        let stack = |side| Stack { tensor: tensor.clone(), side, rank, rows };
        let (down, up) = (format!("{whole}.lora_a"), format!("{name}.lora_b"));
        let a = self.weights.stacked(&down, stack(Side::A), dtype, [n * rank, columns]);
        let b = self.weights.stacked(&up, stack(Side::B), dtype, [given, n * rank]);
        self.g.at(down);
        let a = self.source(&a)?;
        let inner = self.g.matmul(x, a)?;
        let inner = self.g.reshape(inner, &[m, n, rank])?;
        let share = self.share(&adapters.factors(&tensor), m)?;
        let taken = self.g.binary(Binary::Mul, inner, share)?;
        // Not even an infinity of an adapter gets through to a row that takes nothing of it.
        let nothing = self.g.constant(0.0);
        let taken = self.g.select(share, taken, nothing)?;
        let taken = self.g.reshape(taken, &[m, n * rank])?;
        self.g.at(up);
        let b = self.source(&b)?;
        let more = self.g.matmul(taken, b)?;
        Ok(self.g.binary(Binary::Add, made, more)?)
    }

    /// What each of `m` rows takes of each adapter, `[M, n, 1]`: its scale times the adapter's factor.
    fn share(&mut self, factors: &[f32], m: usize) -> Result<Tensor> {
        let name = ports::adapter_factors(factors);
        if let Some(share) = self.shares.get(&(name.clone(), m)) {
            return Ok(*share);
        }
        let (rows, n) = (self.step.bucket.rows(), factors.len());
        let mut scales = self.mailbox(ports::ADAPTERS, DType::F32, &[rows, n])?;
        if m != rows {
            let selected = self.mailbox(ports::LOGIT_ROWS, DType::I32, &[m])?;
            scales = self.g.gather(scales, &[selected])?;
        }
        let of_one = self.derived(&name, factors)?;
        let share = self.g.binary(Binary::Mul, scales, of_one)?;
        let share = self.g.reshape(share, &[m, n, 1])?;
        self.shares.insert((name, m), share);
        Ok(share)
    }

    /// The same with `n` rows from `at` of the `all` rows of another matrix, where the file has that.
    fn product_of(
        &mut self,
        name: &str,
        whole: &str,
        x: Tensor,
        [at, n, all]: [usize; 3],
        columns: usize,
    ) -> Result<Tensor> {
        let tensor = format!("{whole}.weight");
        if self.gguf.tensor(&tensor).is_none() {
            return self.product(name, x, n, columns);
        }
        self.product_of_rows(name, whole, x, [at, n, all], columns)
    }

    /// Product with `n` rows from `at` of the `all` rows of another matrix.
    fn product_of_rows(
        &mut self,
        name: &str,
        whole: &str,
        x: Tensor,
        [at, n, all]: [usize; 3],
        columns: usize,
    ) -> Result<Tensor> {
        let tensor = format!("{whole}.weight");
        self.g.at(name);
        let (own, rows) = (format!("{name}.weight"), at..at + n);
        let shape = [all, columns];
        let buffer =
            self.weights.rows(self.gguf, &own, &tensor, &shape, rows.clone(), Kind::Matrix)?;
        let weight = self.source(&buffer)?;
        let made = self.g.matmul(x, weight)?;
        let selection = Selection { start: at, run: n, stride: n };
        let made = self.adapted([name, whole], [x, made], shape, selection)?;
        let tensor = format!("{whole}.bias");
        if self.gguf.tensor(&tensor).is_none() {
            return self.biased(name, made, n);
        }
        let own = format!("{name}.bias");
        let buffer = self.weights.rows(self.gguf, &own, &tensor, &[all], rows, Kind::Vector)?;
        let bias = self.source(&buffer)?;
        Ok(self.g.bias(made, bias)?)
    }

    fn biased(&mut self, name: &str, x: Tensor, n: usize) -> Result<Tensor> {
        let name = format!("{name}.bias");
        if self.gguf.tensor(&name).is_none() {
            return Ok(x);
        }
        let bias = self.vector(&name, n)?;
        Ok(self.g.bias(x, bias)?)
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Tensor> {
        self.g.at(name);
        let name = format!("{name}.weight");
        let buffer = self.weights.tensor(self.gguf, &name, &[rows, columns], Kind::Matrix)?;
        self.source(&buffer)
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Tensor> {
        let buffer = self.weights.tensor(self.gguf, name, &[len], Kind::Vector)?;
        self.source(&buffer)
    }

    fn derived(&mut self, name: &str, values: &[f32]) -> Result<Tensor> {
        let buffer = self.weights.derived(name, values);
        self.source(&buffer)
    }

    fn source(&mut self, weight: &Buffer) -> Result<Tensor> {
        Ok(self.g.source(Class::Weight, &weight.name, weight.dtype, &weight.shape)?)
    }

    fn mailbox(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        Ok(self.g.source(Class::Mailbox, name, dtype, shape)?)
    }

    /// A ring has room for this step's rows too.
    fn layout(&self) -> KvLayout {
        let Step { layout, bucket, .. } = self.step;
        KvLayout { ring: layout.ring.map(|chunk| chunk.max(bucket.chunk)), ..layout }
    }

    fn cache(&mut self, name: &str, attention: &Attention) -> Result<Tensor> {
        let shape = self.layout().shape(attention);
        Ok(self.g.source(Class::State, name, self.step.cache, &shape)?)
    }
}
