//! The feed-forward block: gated, plain, RWKV's channel mixing, and mixture of experts (MoE).

use super::builder::Builder;
use crate::error::Result;
use crate::hyper::{Experts, FeedForward, Layer};
use crate::weights::WeightKind;
use plan::graph::{self, MixtureWeights, Tensor};
use plan::{Activation, Binary};

impl Builder<'_> {
    /// Output of the feed-forward block; `h` is the normalised residual stream `x`.
    pub(super) fn feed_forward(
        &mut self,
        i: usize,
        layer: &Layer,
        x: Tensor,
        h: Tensor,
    ) -> Result<Tensor> {
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
            FeedForward::Experts(experts) => {
                let name = format!("blk.{i}.ffn_gate_inp");
                let logits = self.product(&name, h, experts.count, width)?;
                self.experts(i, rows, &experts, h, logits)
            }
            FeedForward::DenseAndExperts { activation, experts, width: expert_rows } => {
                let dense = self.gated(i, rows, activation, false, h)?;
                let dense = self.norm(&format!("blk.{i}.post_ffw_norm_1"), dense, width)?;
                let h = self.norm(&format!("blk.{i}.pre_ffw_norm_2"), x, width)?;
                let name = format!("blk.{i}.ffn_gate_inp");
                let scale = self.vector(&format!("{name}.scale"), width)?;
                self.g.at(&*name);
                let routed = self.g.rms_norm(x, scale, self.hyper.norm.eps)?;
                let routed = self.g.scale(routed, 1.0 / (width as f32).sqrt())?;
                let logits = self.product(&name, routed, experts.count, width)?;
                let sparse = self.experts(i, expert_rows, &experts, h, logits)?;
                let sparse = self.norm(&format!("blk.{i}.post_ffw_norm_2"), sparse, width)?;
                Ok(self.g.binary(Binary::Add, dense, sparse)?)
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
        // A file with one matrix for both names it `up` and has no `gate`.
        let whole = if fused { up.clone() } else { String::new() };
        let gate = self.product_of(&gate, &whole, h, [0, rows, 2 * rows], width)?;
        let up = self.product_of(&up, &whole, h, [rows, rows, 2 * rows], width)?;
        self.down(&down, activation, [gate, up], rows)
    }

    /// `down(activation(gate) * up)`.
    fn down(
        &mut self,
        name: &str,
        activation: Activation,
        [gate, up]: [Tensor; 2],
        rows: usize,
    ) -> Result<Tensor> {
        let inner = self.g.glu(activation, gate, up)?;
        self.product(name, inner, self.hyper.width, rows)
    }

    /// Output of the experts of `rows` rows each that the router's logits select, plus the shared expert.
    fn experts(
        &mut self,
        i: usize,
        rows: usize,
        experts: &Experts,
        h: Tensor,
        logits: Tensor,
    ) -> Result<Tensor> {
        let (count, width) = (experts.count, self.hyper.width);
        let gate = self.expert_matrices(i, "ffn_gate_exps", 0, [count, rows, width])?;
        let up = self.expert_matrices(i, "ffn_up_exps", 1, [count, rows, width])?;
        let down = self.expert_matrices(i, "ffn_down_exps", 0, [count, width, rows])?;
        let preference = self.optional_vector(&format!("blk.{i}.exp_probs_b.bias"), count)?;
        let scales = match experts.scaled {
            true => Some(self.vector(&format!("blk.{i}.ffn_down_exps.scale"), count)?),
            false => None,
        };
        self.g.at(format!("blk.{i}.ffn_exps"));
        let weights = MixtureWeights { preference, scales, gate, up, down };
        let routed = self.g.mixture(h, logits, weights, experts.routing, experts.gating)?;
        let Some(rows) = experts.shared else { return Ok(routed) };
        let gate = self.product(&format!("blk.{i}.ffn_gate_shexp"), h, rows, width)?;
        let up = self.product(&format!("blk.{i}.ffn_up_shexp"), h, rows, width)?;
        let name = format!("blk.{i}.ffn_down_shexp");
        let shared = self.down(&name, Activation::Silu, [gate, up], rows)?;
        let name = format!("blk.{i}.ffn_gate_inp_shexp");
        let shapes = [&[width][..], &[1, width]];
        let tensor = format!("{name}.weight");
        let gate = self.weights.reshaped(self.gguf, &tensor, shapes, WeightKind::Matrix)?;
        self.g.at(name);
        let gate = self.weight(&gate)?;
        let gate = self.g.matmul(h, gate)?;
        let shared = self.g.gate(gate, shared)?;
        Ok(self.g.binary(Binary::Add, routed, shared)?)
    }

    /// The same matrix of every expert, with its biases if the file has them. Gate and up may be the halves of one
    /// tensor.
    fn expert_matrices(
        &mut self,
        i: usize,
        name: &str,
        half: usize,
        shape: [usize; 3],
    ) -> Result<graph::Experts> {
        let [count, rows, columns] = shape;
        self.g.at(format!("blk.{i}.{name}"));
        let (own, both) =
            (format!("blk.{i}.{name}.weight"), format!("blk.{i}.ffn_gate_up_exps.weight"));
        let halved = name != "ffn_down_exps" && self.gguf.tensor(&both).is_some();
        let buffer = if halved {
            let found = [count, 2 * rows, columns];
            self.weights.halves(self.gguf, [&own, &both], [&found, &shape], [count, half])?
        } else {
            self.weights.tensor(self.gguf, &own, &shape, WeightKind::Matrix)?
        };
        let weight = self.weight(&buffer)?;
        let bias = format!("blk.{i}.{name}.bias");
        let bias = match self.gguf.tensor(&bias) {
            Some(_) => Some(self.flat(&bias, &[count, rows])?),
            None => None,
        };
        Ok(graph::Experts { weight, bias })
    }
}
