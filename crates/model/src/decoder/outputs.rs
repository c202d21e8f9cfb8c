//! Outputs of a step: logits, sampled tokens, hidden states, and the nextn (MTP) layer with its drafts.

use super::builder::Builder;
use super::inputs::{EMBEDDING, Inputs};
use crate::adapter::Selection;
use crate::error::{Error, Result};
use crate::hyper::Layer;
use crate::ports;
use plan::graph::{Rows, SampleInputs, Tensor};
use plan::sample::Adjustment;
use plan::{Binary, DType, Outputs};

/// The output projection; files without it use the embedding.
const OUTPUT: &str = "output";

impl Builder<'_> {
    /// Outputs of a step from `x`, the residual stream after the last layer.
    pub(super) fn outputs(&mut self, x: Tensor, inputs: Inputs, tables: &[Tensor]) -> Result<()> {
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
        // A copy, because sampling advances the positions.
        let zero = self.g.constant(0.0);
        let positions = self.g.binary(Binary::Add, inputs.rows.positions, zero)?;
        let rows = Rows { positions, ..inputs.rows };
        let mut next = None;
        if outputs != Outputs::None {
            let selected = match inputs.logit_rows {
                Some(selected) => self.g.gather(h, &[selected])?,
                None => h,
            };
            let sampled = self.head(selected, inputs)?;
            self.store_hidden(selected)?;
            next = Some(sampled).filter(|_| inputs.logit_rows.is_none());
        }
        let next = match next {
            Some(sampled) => sampled,
            None => self.mailbox(ports::NEXT, DType::I32, &[self.step.bucket.rows()])?,
        };
        let table = tables.get(layer.attention.rope).copied();
        let i = layers.len();
        let x = self.nextn_input(i, h, next, inputs)?;
        // Only the keys and values that the layer writes are used, not its output.
        self.layer(i, layer, x, None, table, rows, None).map(drop)
    }

    /// A draft by the nextn layer, as in llama.cpp (`llama_model_qwen35::graph_mtp`). Its inputs are the embedding
    /// of the newest token and the hidden state from which that token was sampled; its row has that state's
    /// position. The draft's own hidden state replaces it, as the input of the next draft.
    pub(super) fn draft(&mut self, layer: &Layer) -> Result<()> {
        let (i, width) = (self.hyper.layers.len(), self.hyper.width);
        let inputs = self.inputs()?;
        let one = self.g.constant(1.0);
        let positions = self.g.binary(Binary::Sub, inputs.rows.positions, one)?;
        let rows = Rows { positions, ..inputs.rows };
        let (hidden, row) = (self.hidden()?, self.mailbox(ports::HIDDEN_ROW, DType::I32, &[1])?);
        let h = self.g.gather(hidden, &[row])?;
        let tables = self.rope_tables(positions)?;
        let table = tables.get(layer.attention.rope).copied();
        let x = self.nextn_input(i, h, inputs.tokens, inputs)?;
        let x = self.layer(i, layer, x, None, table, rows, None)?;
        let own = format!("blk.{i}.nextn.shared_head_norm");
        let own = self.gguf.tensor(&format!("{own}.weight")).map(|_| own);
        let h = self.norm(own.as_deref().unwrap_or(self.hyper.output_norm), x, width)?;
        self.g.scatter(hidden, &[row], h)?;
        self.head(h, inputs).map(drop)
    }

    /// Input of the nextn layer: the hidden states `h` and the embeddings of the `next` tokens, each normalised,
    /// through one projection.
    fn nextn_input(&mut self, i: usize, h: Tensor, next: Tensor, inputs: Inputs) -> Result<Tensor> {
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
            let (own, found, shape) = (part(name), [width, 2 * width], [width, width]);
            let place = [width, second];
            let buffer = self.weights.halves(self.gguf, [&own, &whole], [&found, &shape], place)?;
            self.g.at(own);
            let weight = self.weight(&buffer)?;
            Ok::<_, Error>(self.g.matmul(x, weight)?)
        };
        let (from_e, from_h) = (half("e_proj", e, 0)?, half("h_proj", h, 1)?);
        Ok(self.g.binary(Binary::Add, from_e, from_h)?)
    }

    /// Stores the hidden states of rows with logits, which drafts start from.
    fn store_hidden(&mut self, h: Tensor) -> Result<()> {
        let hidden = self.hidden()?;
        let rows = self.g.shape(h)[0].min(self.g.shape(hidden)[0]);
        let h = self.g.slice(h, 0, 0, rows)?;
        let place = self.g.slice(hidden, 0, 0, rows)?;
        self.g.assign(place, h)?;
        Ok(())
    }

    /// The residual stream after the last layer, which one plan stores and another computes logits from.
    pub(super) fn deferred(&mut self) -> Result<Tensor> {
        let shape = [self.step.layout.slots, self.hyper.width];
        let all = self.state(ports::DEFERRED, DType::F32, &shape)?;
        Ok(self.g.slice(all, 0, 0, self.step.bucket.rows())?)
    }

    fn hidden(&mut self) -> Result<Tensor> {
        let shape = [self.step.layout.hidden_rows(), self.hyper.width];
        self.state(ports::NEXTN_HIDDEN, DType::F32, &shape)
    }

    /// Logits and sampled tokens; a decode step also writes the next step's tokens and positions.
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
}
