//! Blocks with a recurrent state of fixed size in place of a KV cache: short convolution (LFM2), Gated DeltaNet
//! (Qwen3-Next, Qwen3.5), and the choice between them and RWKV-7.

use super::builder::Builder;
use crate::error::Result;
use crate::hyper::Recurrent;
use crate::ports;
use plan::graph::{DeltaGates, Recurrence, Rows, Tensor};
use plan::{Activation, Binary, DeltaHeads};

impl Builder<'_> {
    /// Output of a recurrent block before its output projection, the name of that projection, and its columns.
    pub(super) fn recurrent(
        &mut self,
        i: usize,
        recurrent: Recurrent,
        h: Tensor,
        rows: Rows,
    ) -> Result<(Tensor, &'static str, usize)> {
        let width = self.hyper.width;
        let (columns, taps) = recurrent.convolution(width);
        match recurrent {
            Recurrent::TimeMix { heads, head_size, ranks } => {
                let mixed = self.time_mix(i, [heads, head_size], ranks, h, rows)?;
                Ok((mixed, "time_mix_output", width))
            }
            Recurrent::ShortConv { .. } => {
                let last = self.recurrence(&ports::conv_state(i), &[taps - 1, columns], rows)?;
                Ok((self.gated_convolution(i, h, taps, last)?, "shortconv.out_proj", width))
            }
            Recurrent::GatedDelta { heads, .. } => {
                let last = self.recurrence(&ports::conv_state(i), &[taps - 1, columns], rows)?;
                let y = self.gated_delta_net(i, heads, taps, h, last)?;
                Ok((y, "ssm_out", heads.values * heads.value_size))
            }
        }
    }

    /// LFM2's `after * conv(before * x)`.
    fn gated_convolution(
        &mut self,
        i: usize,
        h: Tensor,
        taps: usize,
        last: Recurrence,
    ) -> Result<Tensor> {
        let width = self.hyper.width;
        let whole = format!("blk.{i}.shortconv.in_proj");
        let mut part = |name: &str, at: usize| {
            let name = format!("blk.{i}.shortconv.{name}");
            self.product_of_rows(&name, &whole, h, [at * width, width, 3 * width], width)
        };
        let (before, after, x) = (part("before", 0)?, part("after", 1)?, part("x", 2)?);
        let x = self.g.binary(Binary::Mul, before, x)?;
        let name = format!("blk.{i}.shortconv.conv");
        let y = self.convolution(&name, x, [width, taps], last)?;
        Ok(self.g.binary(Binary::Mul, after, y)?)
    }

    fn gated_delta_net(
        &mut self,
        i: usize,
        heads: DeltaHeads,
        taps: usize,
        h: Tensor,
        last: Recurrence,
    ) -> Result<Tensor> {
        let (m, width) = (self.step.bucket.rows(), self.hyper.width);
        let DeltaHeads { values, key_size, value_size, .. } = heads;
        let (columns, inner) = (heads.columns(), values * value_size);
        let mixed = self.product(&format!("blk.{i}.attn_qkv"), h, columns, width)?;
        let z = self.product(&format!("blk.{i}.attn_gate"), h, inner, width)?;
        let (step, strength) = self.delta_gates(i, h, heads)?;
        let name = format!("blk.{i}.ssm_conv1d");
        let mixed = self.convolution(&name, mixed, [columns, taps], last)?;
        let mixed = self.g.activate(Activation::Silu, mixed)?;
        let rate = self.vector(&format!("blk.{i}.ssm_a"), values)?;
        let bias = self.vector(&format!("blk.{i}.ssm_dt.bias"), values)?;
        let shape = [values, key_size, value_size];
        let state = self.recurrence(&ports::delta_state(i), &shape, last.rows)?;
        self.g.at(format!("blk.{i}.gated_delta"));
        let gates = DeltaGates { step, strength, rate, bias };
        let y = self.g.gated_delta(mixed, gates, heads, self.hyper.norm.eps, state)?;
        let y = self.norm(&format!("blk.{i}.ssm_norm"), y, value_size)?;
        let z = self.g.reshape(z, &[m, values, value_size])?;
        let y = self.g.glu(Activation::Silu, z, y)?;
        Ok(self.g.reshape(y, &[m, inner])?)
    }

    /// Step (`ssm_alpha`) and strength (`ssm_beta`) of each value head. One tensor may have the rows of both,
    /// grouped by the key head that the value heads share.
    fn delta_gates(&mut self, i: usize, h: Tensor, heads: DeltaHeads) -> Result<(Tensor, Tensor)> {
        let DeltaHeads { keys, values, grouped, .. } = heads;
        let (step, strength) = (format!("blk.{i}.ssm_alpha"), format!("blk.{i}.ssm_beta"));
        if !grouped {
            let width = self.hyper.width;
            let step = self.product(&step, h, values, width)?;
            return Ok((step, self.product(&strength, h, values, width)?));
        }
        let both = format!("blk.{i}.ssm_ba.weight");
        let strength = self.product_of_halves(&strength, &both, h, values, [keys, 0])?;
        Ok((self.product_of_halves(&step, &both, h, values, [keys, 1])?, strength))
    }

    /// Causal convolution of each channel with its own `taps` weights.
    fn convolution(
        &mut self,
        name: &str,
        x: Tensor,
        [channels, taps]: [usize; 2],
        last: Recurrence,
    ) -> Result<Tensor> {
        self.g.at(name);
        let weight = self.flat(&format!("{name}.weight"), &[channels, taps])?;
        Ok(self.g.short_conv(x, weight, last)?)
    }
}
