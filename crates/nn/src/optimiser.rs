//! Optimisers, as part of a training step's graph. Their moments are states like the parameters.
//! Formulas and defaults are PyTorch's; LAMB follows You et al. (arXiv 1904.00962).

use plan::graph::{Graph, Result, Tensor};

use super::functions::{add, div, less, mul, plus, sqrt, square, sub, times, total};
use super::init::Init;
use super::layers::Net;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimiser {
    Sgd {
        rate: f32,
        momentum: f32,
        nesterov: bool,
        decay: f32,
    },
    Adam(Moments),
    /// Adam with decoupled weight decay.
    AdamW(Moments),
    /// Adam's step for each parameter, scaled to the parameter's norm.
    Lamb(Moments),
}

/// Settings of Adam and its variants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    pub rate: f32,
    /// Decay of the running means of the gradients and of their squares.
    pub betas: [f32; 2],
    pub eps: f32,
    /// Weight decay.
    pub decay: f32,
}

impl Moments {
    #[must_use]
    pub const fn new(rate: f32) -> Self {
        Self { rate, betas: [0.9, 0.999], eps: 1e-8, decay: 0.0 }
    }

    #[must_use]
    pub const fn with_decay(self, decay: f32) -> Self {
        Self { decay, ..self }
    }
}

impl Optimiser {
    #[must_use]
    pub const fn sgd(rate: f32) -> Self {
        Self::Sgd { rate, momentum: 0.0, nesterov: false, decay: 0.0 }
    }

    /// Updates every parameter with the gradient of `loss`. The graph must not read the step's
    /// tensors afterwards.
    ///
    /// # Errors
    /// An operation between the loss and a parameter has no derivative.
    pub fn step(&self, net: &mut Net, loss: Tensor) -> Result<()> {
        let trained: Vec<(String, Tensor)> = net
            .states
            .iter()
            .filter(|state| state.trained)
            .map(|state| (state.name.clone(), state.tensor))
            .collect();
        let tensors: Vec<Tensor> = trained.iter().map(|(_, tensor)| *tensor).collect();
        let gradients = net.g.gradients(loss, &tensors)?;
        let corrections = match self {
            Self::Sgd { .. } => None,
            Self::Adam(m) | Self::AdamW(m) | Self::Lamb(m) => Some(corrections(net, m)?),
        };
        for ((name, tensor), gradient) in trained.into_iter().zip(gradients) {
            net.g.at(format!("{name} update"));
            let next = match (*self, corrections) {
                (Self::Sgd { rate, momentum, nesterov, decay }, _) => {
                    let gradient = decayed(&mut net.g, gradient, tensor, decay)?;
                    let by = with_momentum(net, &name, gradient, momentum, nesterov)?;
                    let by = times(&mut net.g, by, rate)?;
                    sub(&mut net.g, tensor, by)?
                }
                (Self::Adam(m), Some(corrections)) => {
                    let gradient = decayed(&mut net.g, gradient, tensor, m.decay)?;
                    let by = adam(net, &name, gradient, &m, corrections)?;
                    let by = times(&mut net.g, by, m.rate)?;
                    sub(&mut net.g, tensor, by)?
                }
                (Self::AdamW(m), Some(corrections)) => {
                    let by = adam(net, &name, gradient, &m, corrections)?;
                    let by = times(&mut net.g, by, m.rate)?;
                    let kept = times(&mut net.g, tensor, 1.0 - m.rate * m.decay)?;
                    sub(&mut net.g, kept, by)?
                }
                (Self::Lamb(m), Some(corrections)) => {
                    let by = adam(net, &name, gradient, &m, corrections)?;
                    let g = &mut net.g;
                    let by = decayed(g, by, tensor, m.decay)?;
                    let trust = trust(g, tensor, by)?;
                    let by = times(g, by, m.rate)?;
                    let rank = g.shape(by).len();
                    let trust = g.reshape(trust, &vec![1; rank])?;
                    let by = mul(g, by, trust)?;
                    sub(g, tensor, by)?
                }
                (_, None) => unreachable!("moments have corrections"),
            };
            net.g.assign(tensor, next)?;
        }
        Ok(())
    }
}

/// Adds the gradient of the weight decay.
fn decayed(g: &mut Graph, gradient: Tensor, tensor: Tensor, decay: f32) -> Result {
    if decay == 0.0 {
        return Ok(gradient);
    }
    let more = times(g, tensor, decay)?;
    add(g, gradient, more)
}

/// Adds a state of the optimiser, updated by `next`.
fn moved(
    net: &mut Net,
    name: &str,
    shape: &[usize],
    first: f32,
    next: impl FnOnce(&mut Graph, Tensor) -> Result,
) -> Result {
    let state = net.buffer(name, shape, Init::Constant(first))?;
    let value = next(&mut net.g, state)?;
    net.g.assign(state, value)
}

fn with_momentum(
    net: &mut Net,
    name: &str,
    gradient: Tensor,
    momentum: f32,
    nesterov: bool,
) -> Result {
    if momentum == 0.0 {
        return Ok(gradient);
    }
    let shape = net.g.shape(gradient).to_vec();
    let speed = moved(net, &format!("{name}.momentum"), &shape, 0.0, |g, speed| {
        let kept = times(g, speed, momentum)?;
        add(g, kept, gradient)
    })?;
    if !nesterov {
        return Ok(speed);
    }
    let ahead = times(&mut net.g, speed, momentum)?;
    add(&mut net.g, gradient, ahead)
}

/// Bias corrections `1 - beta^t` of both moments after step `t`: `[1]` each.
fn corrections(net: &mut Net, m: &Moments) -> Result<[Tensor; 2]> {
    let mut both = Vec::new();
    for (beta, name) in m.betas.iter().zip(["first", "second"]) {
        let power =
            moved(net, &format!("moments.{name}"), &[1], 1.0, |g, power| times(g, power, *beta))?;
        let one = net.g.constant(1.0);
        both.push(sub(&mut net.g, one, power)?);
    }
    Ok([both[0], both[1]])
}

/// Adam's step: the mean gradient over its root mean square, both with bias correction.
fn adam(
    net: &mut Net,
    name: &str,
    gradient: Tensor,
    m: &Moments,
    corrections: [Tensor; 2],
) -> Result {
    let mean = moment(net, &format!("{name}.mean"), m.betas[0], gradient)?;
    let squares = square(&mut net.g, gradient)?;
    let spread = moment(net, &format!("{name}.square"), m.betas[1], squares)?;
    let g = &mut net.g;
    let rank = g.shape(gradient).len();
    let [first, second] = corrections.map(|correction| g.reshape(correction, &vec![1; rank]));
    let (mean, spread) = (div(g, mean, first?)?, div(g, spread, second?)?);
    let root = sqrt(g, spread)?;
    let root = plus(g, root, m.eps)?;
    div(g, mean, root)
}

/// Exponential moving average with decay `beta`.
fn moment(net: &mut Net, name: &str, beta: f32, of: Tensor) -> Result {
    let shape = net.g.shape(of).to_vec();
    moved(net, name, &shape, 0.0, |g, moment| {
        let (kept, new) = (times(g, moment, beta)?, times(g, of, 1.0 - beta)?);
        add(g, kept, new)
    })
}

/// LAMB's trust ratio: the parameter's norm over its step's norm, `[1]`; 1 if either is 0.
fn trust(g: &mut Graph, tensor: Tensor, by: Tensor) -> Result {
    let mut length = |x: Tensor| {
        let squares = square(g, x)?;
        let sum = total(g, squares)?;
        sqrt(g, sum)
    };
    let (own, step) = (length(tensor)?, length(by)?);
    let (zero, one) = (g.constant(0.0), g.constant(1.0));
    let (some, moves) = (less(g, zero, own)?, less(g, zero, step)?);
    let ratio = div(g, own, step)?;
    let both = mul(g, some, moves)?;
    g.select(both, ratio, one)
}
