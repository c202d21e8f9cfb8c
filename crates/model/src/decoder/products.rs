//! Matrix products with the model's weights, their biases and LoRA adapters; norms.

use super::builder::Builder;
use crate::adapter::{Selection, Side, Stack};
use crate::error::Result;
use crate::hyper;
use crate::ports;
use crate::weights::WeightKind;
use plan::graph::{Norm, Tensor};
use plan::{Binary, DType, NormKind, Scalar};

impl Builder<'_> {
    /// The model's kind of norm over rows of `n`, with the weights of this name.
    pub(super) fn norm(&mut self, name: &str, x: Tensor, n: usize) -> Result<Tensor> {
        self.g.at(name);
        let hyper::Norm { kind, eps } = self.hyper.norm;
        let weight = self.vector(&format!("{name}.weight"), n)?;
        let bias = match kind {
            NormKind::Layer => Some(self.vector(&format!("{name}.bias"), n)?),
            NormKind::Rms => None,
        };
        Ok(self.g.normalise(x, Norm { kind, weight, bias, eps: Scalar::new(eps) })?)
    }

    /// Product with a matrix of `rows` rows, plus its bias if the file has one.
    pub(super) fn product(
        &mut self,
        name: &str,
        x: Tensor,
        rows: usize,
        columns: usize,
    ) -> Result<Tensor> {
        self.g.at(name);
        let weight = self.matrix(name, rows, columns)?;
        let y = self.g.matmul(x, weight)?;
        let y = self.adapted([name, name], [x, y], [rows, columns], Selection::all(rows))?;
        self.biased(name, y, rows)
    }

    /// As [`Self::product_of_rows`] if the file has the matrix `whole`, else [`Self::product`].
    pub(super) fn product_of(
        &mut self,
        name: &str,
        whole: &str,
        x: Tensor,
        [at, n, all]: [usize; 3],
        columns: usize,
    ) -> Result<Tensor> {
        if self.gguf.tensor(&format!("{whole}.weight")).is_none() {
            return self.product(name, x, n, columns);
        }
        self.product_of_rows(name, whole, x, [at, n, all], columns)
    }

    /// Product with the rows `at..at + n` of the matrix `whole`, which has `all` rows.
    pub(super) fn product_of_rows(
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
        let buffer = self.weights.rows(
            self.gguf,
            &own,
            &tensor,
            &shape,
            rows.clone(),
            WeightKind::Matrix,
        )?;
        let weight = self.weight(&buffer)?;
        let y = self.g.matmul(x, weight)?;
        let selection = Selection { start: at, run: n, stride: n };
        let y = self.adapted([name, whole], [x, y], shape, selection)?;
        let tensor = format!("{whole}.bias");
        if self.gguf.tensor(&tensor).is_none() {
            return self.biased(name, y, n);
        }
        let own = format!("{name}.bias");
        let buffer =
            self.weights.rows(self.gguf, &own, &tensor, &[all], rows, WeightKind::Vector)?;
        let bias = self.weight(&buffer)?;
        Ok(self.g.bias(y, bias)?)
    }

    /// Product with half of a tensor of `2 * rows` rows: from each of its groups the first half (0) or the second
    /// (1).
    pub(super) fn product_of_halves(
        &mut self,
        name: &str,
        tensor: &str,
        h: Tensor,
        rows: usize,
        [groups, half]: [usize; 2],
    ) -> Result<Tensor> {
        let (found, shape) = ([2 * rows, self.hyper.width], [rows, self.hyper.width]);
        let (own, place) = (format!("{name}.rows"), [groups, half]);
        let buffer = self.weights.halves(self.gguf, [&own, tensor], [&found, &shape], place)?;
        self.g.at(name);
        let weight = self.weight(&buffer)?;
        let y = self.g.matmul(h, weight)?;
        let run = rows / groups;
        let selection = Selection { start: run * half, run, stride: 2 * run };
        self.adapted([name, tensor.trim_end_matches(".weight")], [h, y], found, selection)
    }

    /// Adds the bias of this name, if the file has one.
    pub(super) fn biased(&mut self, name: &str, x: Tensor, n: usize) -> Result<Tensor> {
        match self.optional_vector(&format!("{name}.bias"), n)? {
            Some(bias) => Ok(self.g.bias(x, bias)?),
            None => Ok(x),
        }
    }

    /// Adds the adapters' products to `y`, the product of `x` with the `rows` of a `[all, columns]` matrix `whole`.
    pub(super) fn adapted(
        &mut self,
        [name, whole]: [&str; 2],
        [x, y]: [Tensor; 2],
        [all, columns]: [usize; 2],
        rows: Selection,
    ) -> Result<Tensor> {
        let Some(adapters) = self.adapters else { return Ok(y) };
        let (tensor, n) = (format!("{whole}.weight"), adapters.len());
        let Some((rank, dtype)) = adapters.stacked(&tensor, [all, columns])? else {
            return Ok(y);
        };
        let &[m, selected] = self.g.shape(y) else { unreachable!("a product has two axes") };
        let stack = |side| Stack { tensor: tensor.clone(), side, rank, rows };
        let (down, up) = (format!("{whole}.lora_a"), format!("{name}.lora_b"));
        let a = self.weights.stacked(&down, stack(Side::A), dtype, [n * rank, columns]);
        let b = self.weights.stacked(&up, stack(Side::B), dtype, [selected, n * rank]);
        self.g.at(down);
        let a = self.weight(&a)?;
        let inner = self.g.matmul(x, a)?;
        let inner = self.g.reshape(inner, &[m, n, rank])?;
        let scales = self.adapter_scales(&adapters.factors(&tensor), m)?;
        let scaled = self.g.binary(Binary::Mul, inner, scales)?;
        // An adapter's infinity must not reach a row that does not use the adapter: 0 * inf is NaN.
        let zero = self.g.constant(0.0);
        let scaled = self.g.select(scales, scaled, zero)?;
        let scaled = self.g.reshape(scaled, &[m, n * rank])?;
        self.g.at(up);
        let b = self.weight(&b)?;
        let low_rank = self.g.matmul(scaled, b)?;
        Ok(self.g.binary(Binary::Add, y, low_rank)?)
    }

    /// Scale of each adapter in each of `m` rows, `[M, n, 1]`: the request's scale times the adapter's factor.
    fn adapter_scales(&mut self, factors: &[f32], m: usize) -> Result<Tensor> {
        let name = ports::adapter_factors(factors);
        if let Some(scales) = self.adapter_scales.get(&(name.clone(), m)) {
            return Ok(*scales);
        }
        let (rows, n) = (self.step.bucket.rows(), factors.len());
        let mut scales = self.mailbox(ports::ADAPTERS, DType::F32, &[rows, n])?;
        if m != rows {
            let selected = self.mailbox(ports::LOGIT_ROWS, DType::I32, &[m])?;
            scales = self.g.gather(scales, &[selected])?;
        }
        let factors = self.derived(&name, factors)?;
        let scales = self.g.binary(Binary::Mul, scales, factors)?;
        let scales = self.g.reshape(scales, &[m, n, 1])?;
        self.adapter_scales.insert((name, m), scales);
        Ok(scales)
    }
}
