//! Inputs of the first layer: mailboxes, token and position embeddings, per-layer embeddings, rotary tables.

use super::builder::Builder;
use crate::error::Result;
use crate::hyper::Hyperparameters;
use crate::ports;
use plan::graph::{Rows, Tensor};
use plan::{Binary, DType, Outputs};

/// The token embedding, which is also the output projection of files without one.
pub(super) const EMBEDDING: &str = "token_embd";

/// Mailboxes of a step.
#[derive(Clone, Copy)]
pub(super) struct Inputs {
    pub(super) tokens: Tensor,
    pub(super) rows: Rows,
    /// Rows that get logits; `None` if all do.
    pub(super) logit_rows: Option<Tensor>,
}

impl Builder<'_> {
    pub(super) fn inputs(&mut self) -> Result<Inputs> {
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

    pub(super) fn embedding(&mut self, inputs: Inputs) -> Result<Tensor> {
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

    /// Per-layer embeddings of each token, `[M, layers * width]`: the sum of a table's row and a projection of the
    /// token embedding `x`.
    pub(super) fn per_layer_inputs(&mut self, inputs: Inputs, x: Tensor) -> Result<Option<Tensor>> {
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

    /// Cosines and sines of each of the model's rotations.
    pub(super) fn rope_tables(&mut self, positions: Tensor) -> Result<Vec<Tensor>> {
        let mut tables = Vec::new();
        for (i, rope) in self.hyper.ropes.iter().enumerate() {
            self.g.at("rope_table");
            let mut frequencies = self.derived(&ports::rope_frequencies(i), &rope.frequencies)?;
            if let Some((long, limit)) = &rope.long {
                let long = self.derived(&ports::long_rope_frequencies(i), long)?;
                if self.step.layout.context > *limit {
                    frequencies = long;
                }
            }
            tables.push(self.g.rope_table(positions, frequencies, rope.magnitude)?);
        }
        Ok(tables)
    }
}
