//! One layer: attention or a recurrent block, then the feed-forward block, with norms and residual connections.

use super::builder::Builder;
use crate::error::Result;
use crate::hyper::{FeedForward, Layer};
use crate::ports;
use plan::graph::{Rows, Tensor};
use plan::{Activation, Binary};

impl Builder<'_> {
    /// One layer. After the last block that reads other rows, only the `selected` rows are computed.
    #[expect(clippy::too_many_arguments, reason = "all that layers share")]
    pub(super) fn layer(
        &mut self,
        i: usize,
        layer: &Layer,
        mut x: Tensor,
        mut per_layer: Option<Tensor>,
        table: Option<Tensor>,
        rows: Rows,
        selected: Option<Tensor>,
    ) -> Result<Tensor> {
        let mut h = self.norm(&format!("blk.{i}.attn_norm"), x, self.hyper.width)?;
        let (mut mixed, output, inner) = match layer.recurrent {
            None => {
                let table = table.unwrap_or_else(|| unreachable!("attention names a rotation"));
                let inner = layer.attention.heads * layer.attention.head_size;
                (self.attention(i, &layer.attention, h, table, rows)?, "attn_output", inner)
            }
            Some(recurrent) => self.recurrent(i, recurrent, h, rows)?,
        };
        let channel_mix = layer.feed_forward == FeedForward::ChannelMix;
        if let Some(selected) = selected.filter(|_| !channel_mix) {
            self.g.at(format!("blk.{i}.select"));
            mixed = self.g.gather(mixed, &[selected])?;
            x = self.g.gather(x, &[selected])?;
            if layer.parallel {
                h = self.g.gather(h, &[selected])?;
            }
            if let Some(per_layer) = &mut per_layer {
                *per_layer = self.g.gather(*per_layer, &[selected])?;
            }
        }
        let attention =
            self.product(&format!("blk.{i}.{output}"), mixed, self.hyper.width, inner)?;
        x = self.residual(layer, x, attention, &format!("blk.{i}.post_attention_norm"))?;
        if !layer.parallel {
            let name = format!("blk.{i}.{}", layer.feed_forward_norm);
            h = self.norm(&name, x, self.hyper.width)?;
        }
        if channel_mix {
            let difference = self.token_shift(&ports::channel_state(i), h, rows)?;
            let name = format!("blk.{i}.channel_mix_lerp_k");
            h = self.lerp(&name, h, difference, 0, &[1, 1, self.hyper.width])?;
            if let Some(selected) = selected {
                self.g.at(format!("blk.{i}.select"));
                x = self.g.gather(x, &[selected])?;
                h = self.g.gather(h, &[selected])?;
            }
        }
        let y = self.feed_forward(i, layer, x, h)?;
        x = self.residual(layer, x, y, &format!("blk.{i}.post_ffw_norm"))?;
        if let (Some(per_layer), Some(part)) = (per_layer, self.hyper.embedding.per_layer) {
            x = self.add_per_layer(i, x, per_layer, part)?;
        }
        match layer.output_scale {
            Some(factor) => Ok(self.g.scale(x, factor)?),
            None => Ok(x),
        }
    }

    /// Adds a block's output `y` to the residual stream, after its norm and scale if the layer has them.
    fn residual(&mut self, layer: &Layer, x: Tensor, mut y: Tensor, norm: &str) -> Result<Tensor> {
        if layer.norm_after {
            y = self.norm(norm, y, self.hyper.width)?;
        }
        if let Some(factor) = layer.residual_scale {
            y = self.g.scale(y, factor)?;
        }
        Ok(self.g.binary(Binary::Add, x, y)?)
    }

    /// Adds the layer's `part` columns of the per-layer embeddings `all`, gated by the residual stream.
    fn add_per_layer(&mut self, i: usize, x: Tensor, all: Tensor, part: usize) -> Result<Tensor> {
        let width = self.hyper.width;
        let own = self.g.slice(all, 1, i * part, part)?;
        let gate = self.product(&format!("blk.{i}.inp_gate"), x, part, width)?;
        let gated = self.g.glu(Activation::Gelu, gate, own)?;
        let y = self.product(&format!("blk.{i}.proj"), gated, width, part)?;
        let y = self.norm(&format!("blk.{i}.post_norm"), y, width)?;
        Ok(self.g.binary(Binary::Add, x, y)?)
    }
}
