//! Recurrent operators (GRU, LSTM, RNN): a body that runs for each step of the sequence. Short
//! sequences are unrolled.

use nn::functions::{self as f, add, mul, sub};
use nn::shape::{concat, stack, transpose};
use plan::DType;
use plan::graph::{BodyEnds, Graph, Tensor};

use crate::array::Elem;
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] =
    &[("GRU", recurrent), ("LSTM", recurrent), ("RNN", recurrent)];

/// Longest sequence that is unrolled.
const UNROLLED: usize = 4;

/// Weights and settings of one direction.
struct Cell<'a> {
    op: &'a str,
    /// `[gates H, I]`, `[gates H, H]`, and biases `[gates H]` of both.
    input: Tensor,
    hidden: Tensor,
    biases: Option<[Tensor; 2]>,
    /// LSTM only: weights from the cell state to the input, output and forget gate, `[3 H]`.
    peepholes: Option<Tensor>,
    /// GRU only: true if the reset gate applies after the matrix product.
    reset_last: bool,
    activations: Vec<Activation>,
    width: usize,
    clip: Option<f32>,
    /// Length of each sequence, `[N, 1]`; `None` if all have the full length.
    lengths: Option<Tensor>,
    /// True if the hidden state is rounded to bytes before each product.
    rounded: bool,
    /// LSTM only: true if the forget gate is what the input gate leaves of 1.
    coupled: bool,
}

/// An activation function and its parameters.
#[derive(Clone)]
struct Activation {
    name: String,
    alpha: Option<f32>,
    beta: Option<f32>,
}

fn recurrent(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    layer(im, node, node.op(), false)
}

/// Builds a recurrent operator; `rounded` for inputs and states that are rounded to bytes.
pub(in crate::ops) fn layer(
    im: &mut Import,
    node: &Node<'_>,
    op: &str,
    rounded: bool,
) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let by_batch = node.flag("layout");
    let width = usize::try_from(node.integer("hidden_size", 0)).unwrap_or(0);
    let direction = node.text("direction", "forward")?;
    let (gates, defaults): (usize, &[&str]) = match op {
        "LSTM" => (4, &["Sigmoid", "Tanh", "Tanh"]),
        "GRU" => (3, &["Sigmoid", "Tanh"]),
        _ => (1, &["Tanh"]),
    };
    let coupled = node.flag("input_forget");
    let clip = node.float_if("clip");
    let mut x = im.float(node.input(0)?)?;
    if by_batch {
        x = transpose(&mut im.g, x, 0, 1)?;
    }
    let &[length, batch, _] = im.g.shape(x) else { return Err("[T, N, I] expected".into()) };
    let lengths = lengths(im, node, [length, batch])?;
    if rounded {
        x = bytes(im, elem, x)?;
    }
    let directions = if direction == "bidirectional" { 2 } else { 1 };
    let all_activations = activations(node, directions * defaults.len(), defaults)?;
    let reset_last = node.flag("linear_before_reset");
    let mut outputs = Vec::new();
    let mut last = Vec::new();
    let mut cells = Vec::new();
    for d in 0..directions {
        let missing = |what: &str| invalid(format!("{what} is missing"));
        let input = part(im, node, 1, d)?.ok_or_else(|| missing("W"))?;
        let hidden = part(im, node, 2, d)?.ok_or_else(|| missing("R"))?;
        if im.g.shape(hidden) != [gates * width, width] {
            return Err(invalid(format!(
                "R has shape {:?}, which does not fit hidden_size {width}",
                im.g.shape(hidden)
            )));
        }
        let biases = match part(im, node, 3, d)? {
            Some(all) => Some([
                im.g.slice(all, 0, 0, gates * width)?,
                im.g.slice(all, 0, gates * width, gates * width)?,
            ]),
            None => None,
        };
        let peepholes = if op == "LSTM" { part(im, node, 7, d)? } else { None };
        let activations = all_activations[d * defaults.len()..][..defaults.len()].to_vec();
        let cell = Cell {
            op,
            input,
            hidden,
            biases,
            peepholes,
            reset_last,
            activations,
            width,
            clip,
            lengths,
            rounded,
            coupled,
        };
        let zero = im.g.constant(0.0);
        let start = im.g.expand(zero, &[batch, width])?;
        let first = |im: &mut Import, place: usize| -> NodeResult<Tensor> {
            let Some(value) = node.optional(place) else { return Ok(start) };
            let all = im.float(value)?;
            let all = if by_batch { transpose(&mut im.g, all, 0, 1)? } else { all };
            let own = im.g.slice(all, 0, d, 1)?;
            Ok(im.g.reshape(own, &[batch, width])?)
        };
        let h = first(im, 5)?;
        let c = if op == "LSTM" { first(im, 6)? } else { start };
        let backward = direction == "reverse" || d == 1;
        let from_x = cell.input_gates(&mut im.g, x)?;
        let (y, [h, c]) = if length > UNROLLED && !im.g.is_repeating() {
            cell.repeated(im, from_x, [h, c], backward)?
        } else {
            cell.unrolled(im, from_x, [h, c], backward)?
        };
        outputs.push(y);
        last.push(h);
        cells.push(c);
    }
    let made = joined(&mut im.g, outputs, [&last, &cells], by_batch)?;
    let count = if op == "LSTM" { 3 } else { 2 };
    let made = made.into_iter().take(count);
    Ok(made.map(|tensor| Value::Device { elem, tensor }).collect())
}

/// The outputs, last hidden states and cells of all directions.
fn joined(
    g: &mut Graph,
    outputs: Vec<Tensor>,
    [last, cells]: [&[Tensor]; 2],
    by_batch: bool,
) -> NodeResult<[Tensor; 3]> {
    // [T, D, N, H]
    let apart = outputs
        .into_iter()
        .map(|y| {
            let mut shape = g.shape(y).to_vec();
            shape.insert(1, 1);
            g.reshape(y, &shape)
        })
        .collect::<plan::graph::Result<Vec<_>>>()?;
    let mut y = concat(g, &apart, 1)?;
    let (mut h, mut c) = (stack(g, last, 0)?, stack(g, cells, 0)?);
    if by_batch {
        y = g.permute(y, &[2, 0, 1, 3])?;
        h = transpose(g, h, 0, 1)?;
        c = transpose(g, c, 0, 1)?;
    }
    Ok([y, h, c])
}

/// Lengths of the sequences as `[N, 1]`, unless all have the full length.
fn lengths(
    im: &mut Import,
    node: &Node<'_>,
    [length, batch]: [usize; 2],
) -> NodeResult<Option<Tensor>> {
    let Some(lengths) = node.optional(4) else { return Ok(None) };
    if let Value::Known(known) = lengths {
        let all = known.integers();
        if all.iter().any(|n| !(0..=length as i64).contains(n)) {
            return Err(invalid(format!("lengths {all:?} of sequences of at most {length} steps")));
        }
        if all.iter().all(|n| *n == length as i64) {
            return Ok(None);
        }
    }
    let lengths = im.float(lengths)?;
    Ok(Some(im.g.reshape(lengths, &[batch, 1])?))
}

/// Values rounded to unsigned bytes over their range, as floats.
fn bytes(im: &mut Import, elem: Elem, x: Tensor) -> NodeResult<Tensor> {
    let value = Some(Value::Device { elem, tensor: x });
    let made = im.outputs_of("DynamicQuantizeLinear", &[value], &[], 3)?;
    let made: Vec<_> = made.into_iter().map(Some).collect();
    let made = im.outputs_of("DequantizeLinear", &made, &[], 1)?;
    im.float(&made[0])
}

fn activations(node: &Node<'_>, count: usize, defaults: &[&str]) -> NodeResult<Vec<Activation>> {
    let names = match node.texts("activations")? {
        Some(names) if names.len() == count => names,
        Some(names) => {
            return Err(invalid(format!("{} activations, {count} expected", names.len())));
        }
        None => defaults.iter().cycle().take(count).map(|&name| name.to_owned()).collect(),
    };
    // The lists have values only for the functions that have parameters.
    let mut alphas = node.floats("activation_alpha").unwrap_or_default().into_iter();
    let mut betas = node.floats("activation_beta").unwrap_or_default().into_iter();
    let of = |name: String| {
        let (first, second) = match &*name.to_lowercase() {
            "leakyrelu" | "thresholdedrelu" | "elu" => (true, false),
            "affine" | "scaledtanh" | "hardsigmoid" => (true, true),
            _ => (false, false),
        };
        let alpha = first.then(|| alphas.next()).flatten();
        let beta = second.then(|| betas.next()).flatten();
        Activation { name, alpha, beta }
    };
    Ok(names.into_iter().map(of).collect())
}

fn activated(g: &mut Graph, activation: &Activation, x: Tensor) -> NodeResult<Tensor> {
    let Activation { name, alpha, beta } = activation;
    let of = |value: &Option<f32>, default: f32| value.unwrap_or(default);
    Ok(match &*name.to_lowercase() {
        "sigmoid" => f::sigmoid(g, x)?,
        "tanh" => f::tanh(g, x)?,
        "relu" => f::relu(g, x)?,
        "softsign" => {
            let size = f::abs(g, x)?;
            let below = f::plus(g, size, 1.0)?;
            f::div(g, x, below)?
        }
        "softplus" => f::softplus(g, x)?,
        "leakyrelu" => f::leaky_relu(g, x, of(alpha, 0.01))?,
        "elu" => f::elu(g, x, of(alpha, 1.0))?,
        "thresholdedrelu" => {
            let (bound, zero) = (g.constant(of(alpha, 1.0)), g.constant(0.0));
            let open = f::less(g, bound, x)?;
            g.select(open, x, zero)?
        }
        "affine" => {
            let scaled = f::times(g, x, of(alpha, 1.0))?;
            f::plus(g, scaled, of(beta, 0.0))?
        }
        "scaledtanh" => {
            let scaled = f::times(g, x, of(beta, 1.0))?;
            let bent = f::tanh(g, scaled)?;
            f::times(g, bent, of(alpha, 1.0))?
        }
        "hardsigmoid" => {
            let scaled = f::times(g, x, of(alpha, 0.2))?;
            let moved = f::plus(g, scaled, of(beta, 0.5))?;
            f::clamp(g, moved, 0.0, 1.0)?
        }
        _ => return Err(invalid(format!("activation {name} is not supported"))),
    })
}

/// Direction `d` of an input that has one entry for each.
fn part(im: &mut Import, node: &Node<'_>, place: usize, d: usize) -> NodeResult<Option<Tensor>> {
    let Some(value) = node.optional(place) else { return Ok(None) };
    let all = im.float(value)?;
    let shape = im.g.shape(all).to_vec();
    let own = im.g.slice(all, 0, d, 1)?;
    Ok(Some(im.g.reshape(own, &shape[1..])?))
}

impl Cell<'_> {
    fn activate(&self, g: &mut Graph, which: usize, x: Tensor) -> NodeResult<Tensor> {
        let x = match self.clip {
            Some(clip) => f::clamp(g, x, -clip, clip)?,
            None => x,
        };
        activated(g, &self.activations[which], x)
    }

    /// Columns of gate `i`.
    fn gate(&self, g: &mut Graph, all: Tensor, i: usize) -> NodeResult<Tensor> {
        Ok(g.slice(all, 1, i * self.width, self.width)?)
    }

    /// Adds the cell state's contribution to gate `i`.
    fn peep(&self, g: &mut Graph, gate: Tensor, i: usize, c: Tensor) -> NodeResult<Tensor> {
        let Some(peepholes) = self.peepholes else { return Ok(gate) };
        let own = g.slice(peepholes, 0, i * self.width, self.width)?;
        let seen = mul(g, c, own)?;
        Ok(add(g, gate, seen)?)
    }

    /// Contribution of the inputs `x [T, N, I]` to the gates, `[T, N, gates H]`.
    fn input_gates(&self, g: &mut Graph, x: Tensor) -> NodeResult<Tensor> {
        let &[length, batch, inputs] = g.shape(x) else { return Err("[T, N, I] expected".into()) };
        let gates = g.shape(self.input)[0];
        let rows = g.reshape(x, &[length * batch, inputs])?;
        let mut all = g.matmul(rows, self.input)?;
        if let Some([of_x, _]) = self.biases {
            all = add(g, all, of_x)?;
        }
        Ok(g.reshape(all, &[length, batch, gates])?)
    }

    /// The output, next hidden state and next cell of the step at `place`, a scalar tensor.
    fn advance(
        &self,
        im: &mut Import,
        from_x: Tensor,
        place: Tensor,
        [h, c]: [Tensor; 2],
    ) -> NodeResult<[Tensor; 3]> {
        let &[_, batch, gates] = im.g.shape(from_x) else {
            return Err("[1, N, gates H] expected".into());
        };
        let from_x = im.g.reshape(from_x, &[batch, gates])?;
        let seen = if self.rounded { bytes(im, Elem::F32, h)? } else { h };
        let g = &mut im.g;
        let [next, cell] = self.step(g, from_x, [h, seen], c)?;
        let Some(lengths) = self.lengths else { return Ok([next, next, cell]) };
        // A sequence that has ended keeps its state, and its output is 0.
        let zero = g.constant(0.0);
        let runs = f::less(g, place, lengths)?;
        let output = g.select(runs, next, zero)?;
        Ok([output, g.select(runs, next, h)?, g.select(runs, cell, c)?])
    }

    /// Runs the cell step by step: the outputs `[T, N, H]`, and the last hidden and cell state.
    fn unrolled(
        &self,
        im: &mut Import,
        from_x: Tensor,
        [mut h, mut c]: [Tensor; 2],
        backward: bool,
    ) -> NodeResult<(Tensor, [Tensor; 2])> {
        let length = im.g.shape(from_x)[0];
        let mut steps = vec![h; length];
        for i in 0..length {
            let t = if backward { length - 1 - i } else { i };
            let own = im.g.slice(from_x, 0, t, 1)?;
            let place = im.g.constant(t as f32);
            [steps[t], h, c] = self.advance(im, own, place, [h, c])?;
        }
        Ok((stack(&mut im.g, &steps, 0)?, [h, c]))
    }

    /// Like [`Self::unrolled`], by a body that runs for each step.
    fn repeated(
        &self,
        im: &mut Import,
        from_x: Tensor,
        [h, c]: [Tensor; 2],
        backward: bool,
    ) -> NodeResult<(Tensor, [Tensor; 2])> {
        let &[length, batch, _] = im.g.shape(from_x) else {
            return Err("[T, N, gates H] expected".into());
        };
        let g = &mut im.g;
        let counter = match i32::try_from(length).map_err(|e| invalid(e.to_string()))? {
            length if backward => g.counter(length - 1, -1)?,
            _ => g.counter(0, 1)?,
        };
        let h = g.carried(h)?;
        let is_lstm = self.op == "LSTM";
        let c = if is_lstm { g.carried(c)? } else { c };
        let outputs = g.filled(&[length, batch, self.width], DType::F32)?;
        g.begin_repeat(length);
        let own = g.gather(from_x, &[counter.value])?;
        let place = g.cast(counter.value, DType::F32)?;
        let [output, next, cell] = self.advance(im, own, place, [h, c])?;
        let next = [(h, next), (c, cell)];
        let (last, tables) = im.g.end_repeat(&BodyEnds {
            next: &next[..1 + usize::from(is_lstm)],
            rows: &[(outputs, counter.value, output)],
            counters: &[counter],
        })?;
        Ok((tables[0], [last[0], if is_lstm { last[1] } else { c }]))
    }

    /// The next hidden state and the next cell; the products read the hidden state as `seen`.
    fn step(
        &self,
        g: &mut Graph,
        from_x: Tensor,
        [h, seen]: [Tensor; 2],
        c: Tensor,
    ) -> NodeResult<[Tensor; 2]> {
        let mut from_h = g.matmul(seen, self.hidden)?;
        if let Some([_, of_h]) = self.biases {
            from_h = add(g, from_h, of_h)?;
        }
        match self.op {
            "LSTM" => {
                let all = add(g, from_x, from_h)?;
                let [input, output, forget, cell] = [0, 1, 2, 3];
                let (i, o) = (self.gate(g, all, input)?, self.gate(g, all, output)?);
                let (k, new) = (self.gate(g, all, forget)?, self.gate(g, all, cell)?);
                let (i, k) = (self.peep(g, i, 0, c)?, self.peep(g, k, 2, c)?);
                let (i, mut k) = (self.activate(g, 0, i)?, self.activate(g, 0, k)?);
                if self.coupled {
                    let rest = f::neg(g, i)?;
                    k = f::plus(g, rest, 1.0)?;
                }
                let new = self.activate(g, 1, new)?;
                let (kept, taken) = (mul(g, k, c)?, mul(g, i, new)?);
                let c = add(g, kept, taken)?;
                let o = self.peep(g, o, 1, c)?;
                let o = self.activate(g, 0, o)?;
                let seen = activated(g, &self.activations[2], c)?;
                Ok([mul(g, o, seen)?, c])
            }
            "GRU" => {
                let (zx, zh) = (self.gate(g, from_x, 0)?, self.gate(g, from_h, 0)?);
                let (rx, rh) = (self.gate(g, from_x, 1)?, self.gate(g, from_h, 1)?);
                let (z, r) = (add(g, zx, zh)?, add(g, rx, rh)?);
                let (z, r) = (self.activate(g, 0, z)?, self.activate(g, 0, r)?);
                let nx = self.gate(g, from_x, 2)?;
                let behind = if self.reset_last {
                    let own = self.gate(g, from_h, 2)?;
                    mul(g, r, own)?
                } else {
                    let reset = mul(g, r, h)?;
                    let own = g.slice(self.hidden, 0, 2 * self.width, self.width)?;
                    let mut own = g.matmul(reset, own)?;
                    if let Some([_, of_h]) = self.biases {
                        let bias = g.slice(of_h, 0, 2 * self.width, self.width)?;
                        own = add(g, own, bias)?;
                    }
                    own
                };
                let new = add(g, nx, behind)?;
                let new = self.activate(g, 1, new)?;
                let apart = sub(g, h, new)?;
                let kept = mul(g, z, apart)?;
                Ok([add(g, new, kept)?, c])
            }
            _ => {
                let all = add(g, from_x, from_h)?;
                Ok([self.activate(g, 0, all)?, c])
            }
        }
    }
}
