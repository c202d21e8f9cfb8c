//! Layers: named parameters and their forward computation. Names and shapes match PyTorch's
//! (`fc.weight`, `[O, I]`), so that its weight files fit.

use plan::graph::{Error, Graph, Result, Tensor};
use plan::{Class, DType};

use super::conv::{self, Windows};
use super::functions::{add, matmul, mul, softmax, times};
use super::init::Init;
use super::norm;
use super::shape::{lower_triangle, transpose};

/// A network under construction: its graph and its states.
#[derive(Debug, Default)]
pub struct Net {
    pub g: Graph,
    /// True for a training graph: dropout is active, batch norm uses batch statistics.
    pub training: bool,
    pub(crate) states: Vec<State>,
}

/// A state of the network.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) init: Init,
    pub(crate) tensor: Tensor,
    /// True if an optimiser updates it.
    pub(crate) trained: bool,
}

impl Net {
    #[must_use]
    pub fn new(training: bool) -> Self {
        Self { g: Graph::new(), training, states: Vec::new() }
    }

    /// Adds a parameter, which training updates.
    ///
    /// # Errors
    /// A parameter of that name has another shape.
    pub fn parameter(&mut self, name: &str, shape: &[usize], init: Init) -> Result {
        self.declare(name, shape, init, true)
    }

    /// Adds a buffer, which no optimiser updates: running means, momenta.
    ///
    /// # Errors
    /// A buffer of that name has another shape.
    pub fn buffer(&mut self, name: &str, shape: &[usize], init: Init) -> Result {
        self.declare(name, shape, init, false)
    }

    fn declare(&mut self, name: &str, shape: &[usize], init: Init, trained: bool) -> Result {
        let tensor = self.g.source(Class::State, name, DType::F32, shape)?;
        if self.states.iter().all(|state| state.name != name) {
            let (name, shape) = (name.to_owned(), shape.to_vec());
            self.states.push(State { name, shape, init, tensor, trained });
        }
        Ok(tensor)
    }

    /// Adds an input, which the host writes before a step.
    ///
    /// # Errors
    /// An input of that name has another shape or type.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result {
        self.g.source(Class::Mailbox, name, dtype, shape)
    }
}

/// `x weight^T + bias`
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
}

impl Linear {
    /// Creates a layer that maps `inputs` values to `outputs` values.
    ///
    /// # Errors
    /// As for [`Net::parameter`].
    pub fn new(net: &mut Net, name: &str, inputs: usize, outputs: usize) -> Result<Self> {
        let weight = net.parameter(&format!("{name}.weight"), &[outputs, inputs], Init::Fan)?;
        let bound = Init::Uniform(1.0 / (inputs as f32).sqrt());
        let bias = Some(net.parameter(&format!("{name}.bias"), &[outputs], bound)?);
        Ok(Self { weight, bias })
    }

    /// `x [.., I]` to `[.., O]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, net: &mut Net, x: Tensor) -> Result {
        let g = &mut net.g;
        let shape = g.shape(x).to_vec();
        let Some((&inputs, rows)) = shape.split_last() else {
            let reason = "at least one axis";
            return Err(Error::Shape { op: "linear", shapes: vec![shape], reason });
        };
        let flat = g.reshape(x, &[rows.iter().product(), inputs])?;
        let mut y = g.matmul(flat, self.weight)?;
        if let Some(bias) = self.bias {
            y = g.bias(y, bias)?;
        }
        let outputs = g.shape(self.weight)[0];
        g.reshape(y, &[rows, &[outputs]].concat())
    }
}

/// A convolution, or a transposed one.
#[derive(Clone, Debug)]
pub struct Conv {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub windows: Windows,
    pub transposed: bool,
}

impl Conv {
    /// A convolution from `inputs` to `outputs` channels with windows of `size`.
    ///
    /// # Errors
    /// As for [`Net::parameter`].
    pub fn new(
        net: &mut Net,
        name: &str,
        [inputs, outputs]: [usize; 2],
        size: &[usize],
        windows: Windows,
    ) -> Result<Self> {
        let shape = [&[outputs, inputs / windows.groups.max(1)], size].concat();
        Self::of(net, name, &shape, outputs, windows, false)
    }

    /// A transposed convolution from `inputs` to `outputs` channels.
    ///
    /// # Errors
    /// As for [`Net::parameter`].
    pub fn transposed(
        net: &mut Net,
        name: &str,
        [inputs, outputs]: [usize; 2],
        size: &[usize],
        windows: Windows,
    ) -> Result<Self> {
        let shape = [&[inputs, outputs / windows.groups.max(1)], size].concat();
        Self::of(net, name, &shape, outputs, windows, true)
    }

    fn of(
        net: &mut Net,
        name: &str,
        shape: &[usize],
        outputs: usize,
        windows: Windows,
        transposed: bool,
    ) -> Result<Self> {
        let weight = net.parameter(&format!("{name}.weight"), shape, Init::Fan)?;
        let seen = shape[1..].iter().product::<usize>() as f32;
        let bound = Init::Uniform(1.0 / seen.sqrt());
        let bias = Some(net.parameter(&format!("{name}.bias"), &[outputs], bound)?);
        Ok(Self { weight, bias, windows, transposed })
    }

    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, net: &mut Net, x: Tensor) -> Result {
        let Self { weight, bias, windows, transposed } = self;
        if *transposed {
            conv::conv_transpose(&mut net.g, x, *weight, *bias, windows, 0)
        } else {
            conv::conv(&mut net.g, x, *weight, *bias, windows)
        }
    }
}

/// Batch normalisation: batch statistics in training, running means otherwise.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm {
    pub weight: Tensor,
    pub bias: Tensor,
    pub mean: Tensor,
    pub variance: Tensor,
    pub eps: f32,
    /// Weight of the current batch in the running means.
    pub momentum: f32,
}

impl BatchNorm {
    /// # Errors
    /// As for [`Net::parameter`].
    pub fn new(net: &mut Net, name: &str, channels: usize) -> Result<Self> {
        let [zero, one] = [0.0, 1.0].map(Init::Constant);
        Ok(Self {
            weight: net.parameter(&format!("{name}.weight"), &[channels], one)?,
            bias: net.parameter(&format!("{name}.bias"), &[channels], zero)?,
            mean: net.buffer(&format!("{name}.running_mean"), &[channels], zero)?,
            variance: net.buffer(&format!("{name}.running_var"), &[channels], one)?,
            eps: 1e-5,
            momentum: 0.1,
        })
    }

    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, net: &mut Net, x: Tensor) -> Result {
        let Self { weight, bias, mean, variance, eps, momentum } = *self;
        let (training, g) = (net.training, &mut net.g);
        if !training {
            return norm::batch_norm_by(g, x, [mean, variance], weight, bias, eps);
        }
        let [y, of_mean, of_variance] = norm::batch_norm(g, x, weight, bias, eps)?;
        // Like PyTorch, the running variance is the unbiased estimate.
        let shape = g.shape(x);
        let count = (shape.iter().product::<usize>() / shape[1].max(1)) as f32;
        let of_variance = times(g, of_variance, count / (count - 1.0).max(1.0))?;
        for (running, of_batch) in [(mean, of_mean), (variance, of_variance)] {
            let (old, new) = (times(g, running, 1.0 - momentum)?, times(g, of_batch, momentum)?);
            let next = add(g, old, new)?;
            g.assign(running, next)?;
        }
        Ok(y)
    }
}

/// Rows of a table, selected by index.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    pub weight: Tensor,
}

impl Embedding {
    /// # Errors
    /// As for [`Net::parameter`].
    pub fn new(net: &mut Net, name: &str, rows: usize, width: usize) -> Result<Self> {
        let init = Init::Normal(1.0);
        Ok(Self { weight: net.parameter(&format!("{name}.weight"), &[rows, width], init)? })
    }

    /// `ids`, `I32` of any shape, to `[ids.., width]`.
    ///
    /// # Errors
    /// The types do not fit.
    pub fn forward(&self, net: &mut Net, ids: Tensor) -> Result {
        let g = &mut net.g;
        let (shape, width) = (g.shape(ids).to_vec(), g.shape(self.weight)[1]);
        let flat = g.reshape(ids, &[shape.iter().product()])?;
        let rows = g.gather(self.weight, &[flat])?;
        g.reshape(rows, &[&shape[..], &[width]].concat())
    }
}

/// Softmax attention of `q [.., M, D]` over `k [.., N, D]` and `v [.., N, E]`: `[.., M, E]`. If
/// `causal`, a row sees itself and the rows before it.
///
/// # Errors
/// The shapes do not fit.
pub fn attention(g: &mut Graph, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Result {
    let (rank, dim) = (g.shape(q).len(), g.shape(q).last().copied().unwrap_or(1));
    let scores = g.matmul(q, k)?;
    let mut scores = times(g, scores, 1.0 / (dim as f32).sqrt())?;
    if causal {
        let (rows, columns) = (g.shape(scores)[rank - 2], g.shape(scores)[rank - 1]);
        let seen = lower_triangle(g, rows, columns, 0)?;
        let none = g.constant(f32::NEG_INFINITY);
        scores = g.select(seen, scores, none)?;
    }
    let weights = softmax(g, scores, rank - 1)?;
    matmul(g, weights, v)
}

/// Multi-head self-attention over one sequence, with projections for queries, keys, values and
/// results.
#[derive(Clone, Copy, Debug)]
pub struct MultiHead {
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub out: Linear,
    pub heads: usize,
    pub causal: bool,
}

impl MultiHead {
    /// # Errors
    /// As for [`Net::parameter`].
    pub fn new(
        net: &mut Net,
        name: &str,
        width: usize,
        heads: usize,
        causal: bool,
    ) -> Result<Self> {
        let mut linear = |part: &str| Linear::new(net, &format!("{name}.{part}"), width, width);
        let (query, key) = (linear("query")?, linear("key")?);
        let (value, out) = (linear("value")?, linear("out")?);
        Ok(Self { query, key, value, out, heads, causal })
    }

    /// `x [B, M, width]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, net: &mut Net, x: Tensor) -> Result {
        let &[batch, rows, width] = net.g.shape(x) else {
            let shapes = vec![net.g.shape(x).to_vec()];
            return Err(Error::Shape { op: "attention", shapes, reason: "[B, M, D] expected" });
        };
        let mut heads = |linear: &Linear| {
            let y = linear.forward(net, x)?;
            let y = net.g.reshape(y, &[batch, rows, self.heads, width / self.heads.max(1)])?;
            transpose(&mut net.g, y, 1, 2)
        };
        let (q, k, v) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let mixed = attention(&mut net.g, q, k, v, self.causal)?;
        let mixed = transpose(&mut net.g, mixed, 1, 2)?;
        let mixed = net.g.reshape(mixed, &[batch, rows, width])?;
        self.out.forward(net, mixed)
    }
}

/// Dropout in training: zeroes the elements whose random number in `unit` (0 to 1, same shape as
/// `x`, written by the host) is below `share`, and scales up the others.
///
/// # Errors
/// The shapes do not fit.
pub fn dropout(net: &mut Net, x: Tensor, unit: Tensor, share: f32) -> Result {
    if !net.training || share <= 0.0 {
        return Ok(x);
    }
    let g = &mut net.g;
    let limit = g.constant(share);
    let kept = g.binary(plan::Binary::LessEqual, limit, unit)?;
    let kept = times(g, kept, 1.0 / (1.0 - share))?;
    mul(g, x, kept)
}
