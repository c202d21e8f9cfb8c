//! The graph of one step of a decoder-only transformer, from the parts that its hyperparameters name. What the
//! graph asks for are the model's weights: there is no other list.

use super::hyper::{Attention, FeedForward, Hyperparameters, Keys, Layer};
use super::weights::{Kind, Weights};
use super::{Error, KvLayout, Result, ports};
use crate::gguf::Gguf;
use plan::graph::{Caches, Graph, Norm, Rows, SampleInputs, Tensor};
use plan::{Binary, Bucket, Buffer, Class, DType, NormKind, Outputs, Scalar};

/// The output projection; where a file lacks it, the embedding serves for both.
const OUTPUT: &str = "output";
const EMBEDDING: &str = "token_embd";

/// What a step is drawn for.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) layout: KvLayout,
    pub(super) bucket: Bucket,
}

/// The graph of a step; weights that it asks for first are looked up in the file and added to the list.
pub(super) fn graph(
    gguf: &Gguf,
    hyper: &Hyperparameters,
    weights: &mut Weights,
    step: Step,
) -> Result<Graph> {
    let mut decoder = Decoder { g: Graph::new(), gguf, hyper, weights, step, caches: Vec::new() };
    decoder.draw()?;
    Ok(decoder.g)
}

struct Decoder<'a> {
    g: Graph,
    gguf: &'a Gguf,
    hyper: &'a Hyperparameters,
    weights: &'a mut Weights,
    step: Step,
    /// Of each layer so far, as they are after its keys and values have been written.
    caches: Vec<Caches>,
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
        let mut x = self.embedding(inputs)?;
        let beside = self.beside(inputs, x)?;
        let tables = self.rotations(inputs.rows.positions)?;
        let layers = &self.hyper.layers;
        for (i, layer) in layers.iter().enumerate() {
            let selected = if i + 1 == layers.len() { inputs.logit_rows } else { None };
            let table = tables[layer.attention.rope];
            x = self.layer(i, layer, x, beside, table, inputs.rows, selected)?;
        }
        if self.step.bucket.logit_rows() > 0 {
            self.head(x, inputs)?;
        }
        Ok(())
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

    /// One layer. After its attention only the `selected` rows go on.
    #[expect(clippy::too_many_arguments, reason = "all that layers share")]
    fn layer(
        &mut self,
        i: usize,
        layer: &Layer,
        x: Tensor,
        beside: Option<Tensor>,
        table: Tensor,
        rows: Rows,
        selected: Option<Tensor>,
    ) -> Result<Tensor> {
        let (mut x, mut beside) = (x, beside);
        let mut h = self.norm(&format!("blk.{i}.attn_norm"), x, self.hyper.width)?;
        let mut mixed = self.attention(i, &layer.attention, h, table, rows)?;
        if let Some(selected) = selected {
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
        let inner = layer.attention.heads * layer.attention.head_size;
        let attention =
            self.product(&format!("blk.{i}.attn_output"), mixed, self.hyper.width, inner)?;
        let after = format!("blk.{i}.post_attention_norm");
        x = self.add(layer, x, attention, &after)?;
        if !layer.parallel {
            h = self.norm(&format!("blk.{i}.ffn_norm"), x, self.hyper.width)?;
        }
        let given = self.feed_forward(i, layer, h)?;
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
        let mut q = part(self, "attn_q", 0, q_rows, heads)?;
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
        if attention.qk_norm {
            q = self.norm(&format!("blk.{i}.attn_q_norm"), q, head_size)?;
        }
        let own = match own {
            Some((k, v)) => {
                let mut k = k;
                if attention.qk_norm {
                    k = self.norm(&format!("blk.{i}.attn_k_norm"), k, head_size)?;
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
                let keys = self.g.kv_write(keys, rows, k)?;
                Caches { keys, values: self.g.kv_write(values, rows, v)? }
            }
            (None, Keys::OfLayer(layer)) => self.caches[layer],
            (None, _) => unreachable!("other layers made keys and values above"),
        };
        self.caches.push(caches);
        self.g.at(format!("blk.{i}.attention"));
        let mixed = self.g.attention(q, caches, rows, scores, self.step.bucket.context)?;
        Ok(self.g.reshape(mixed, &[m, q_rows])?)
    }

    fn feed_forward(&mut self, i: usize, layer: &Layer, h: Tensor) -> Result<Tensor> {
        let (rows, width) = (layer.feed_forward_width, self.hyper.width);
        let [gate_name, up_name, down] =
            ["gate", "up", "down"].map(|part| format!("blk.{i}.ffn_{part}"));
        let inner = match layer.feed_forward {
            FeedForward::Gated { activation, fused } => {
                // Where the file has one matrix for both it is called `up`, and there is no `gate`.
                let whole = if fused { up_name.clone() } else { String::new() };
                let gate = self.product_of(&gate_name, &whole, h, [0, rows, 2 * rows], width)?;
                let up = self.product_of(&up_name, &whole, h, [rows, rows, 2 * rows], width)?;
                self.g.glu(activation, gate, up)?
            }
            FeedForward::Plain { activation } => {
                let up = self.product(&up_name, h, rows, width)?;
                self.g.activate(activation, up)?
            }
        };
        self.product(&down, inner, width, rows)
    }

    /// `x` plus what a layer makes of its own part of the token.
    fn take_beside(&mut self, i: usize, x: Tensor, all: Tensor, part: usize) -> Result<Tensor> {
        let width = self.hyper.width;
        let own = self.g.slice(all, 1, i * part, part)?;
        let gate = self.product(&format!("blk.{i}.inp_gate"), x, part, width)?;
        let gated = self.g.glu(plan::Activation::Gelu, gate, own)?;
        let given = self.product(&format!("blk.{i}.proj"), gated, width, part)?;
        let given = self.norm(&format!("blk.{i}.post_norm"), given, width)?;
        Ok(self.g.binary(Binary::Add, x, given)?)
    }

    /// Logits, sampled tokens, and in decode the next step's inputs.
    fn head(&mut self, x: Tensor, inputs: Inputs) -> Result<()> {
        let (n, width, vocabulary) =
            (self.step.bucket.logit_rows(), self.hyper.width, self.hyper.vocabulary);
        let h = self.norm("output_norm", x, width)?;
        let tied = self.gguf.tensor(&format!("{OUTPUT}.weight")).is_none();
        self.g.at(OUTPUT);
        let weight = self.matrix(if tied { EMBEDDING } else { OUTPUT }, vocabulary, width)?;
        let mut logits = self.g.matmul(h, weight)?;
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
        let parameters = SampleInputs {
            temperature: self.mailbox(ports::TEMPERATURE, DType::F32, &[n])?,
            top_k: self.mailbox(ports::TOP_K, DType::I32, &[n])?,
            top_p: self.mailbox(ports::TOP_P, DType::F32, &[n])?,
            seed: self.mailbox(ports::SEED, DType::I32, &[n, 2])?,
            positions,
        };
        let sampled = self.g.sample(logits, parameters)?;
        self.g.output(ports::SAMPLED, sampled);
        if self.step.bucket.chunk == 1 {
            let one = self.g.constant(1.0);
            let next = self.g.binary(Binary::Add, inputs.rows.positions, one)?;
            self.g.assign(inputs.tokens, sampled)?;
            self.g.assign(inputs.rows.positions, next)?;
        }
        Ok(())
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
        self.biased(name, made, rows)
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
        self.g.at(name);
        let (own, rows) = (format!("{name}.weight"), at..at + n);
        let shape = [all, columns];
        let buffer =
            self.weights.rows(self.gguf, &own, &tensor, &shape, rows.clone(), Kind::Matrix)?;
        let weight = self.source(&buffer)?;
        let made = self.g.matmul(x, weight)?;
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

    fn cache(&mut self, name: &str, attention: &Attention) -> Result<Tensor> {
        let shape = self.step.layout.shape(attention);
        Ok(self.g.source(Class::State, name, DType::F16, &shape)?)
    }
}
