//! Fourier transforms (DFT, STFT), as products with a matrix of cosines and sines.

use std::f64::consts::TAU;

use plan::Window;
use plan::graph::Tensor;

use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator, axis};

pub(super) const OPERATORS: &[(&str, Operator)] = &[("DFT", dft), ("STFT", stft)];

/// Most elements of a transform's matrix.
const MOST: usize = 1 << 24;

/// A transform of `length` elements.
#[derive(Clone, Copy)]
struct Transform {
    length: usize,
    inverse: bool,
    /// True if the half of the spectrum that determines the rest is computed, or read by an inverse.
    onesided: bool,
    /// Numbers of an element of the input: 2 if it is complex.
    parts: usize,
}

impl Transform {
    const fn half(self) -> usize {
        self.length / 2 + 1
    }

    /// Elements of the input and of the output, and numbers of each of the output's.
    const fn sizes(self) -> (usize, usize, usize) {
        match (self.onesided, self.inverse) {
            (true, false) => (self.length, self.half(), 2),
            (true, true) => (self.half(), self.length, 1),
            (false, _) => (self.length, self.length, 2),
        }
    }

    /// The matrix, a row for each number of the output and a column for each of the input, which is
    /// scaled by `window`.
    fn matrix(self, window: Option<&[f64]>) -> NodeResult<Vec<f32>> {
        let (inputs, outputs, numbers) = self.sizes();
        let size = (inputs * self.parts).checked_mul(outputs * numbers);
        if size.is_none_or(|size| size > MOST) {
            return Err(invalid(format!("a transform of {} elements", self.length)));
        }
        let mut all = Vec::new();
        for k in 0..outputs {
            for number in 0..numbers {
                for n in 0..inputs {
                    let scale = window.map_or(1.0, |window| window[n]) * self.weight(n);
                    let turn = (k * n % self.length) as f64 / self.length as f64;
                    let (sin, cos) = (TAU * turn).sin_cos();
                    let sin = if self.inverse { sin } else { -sin };
                    // (cos + i sin)(x + i y)
                    let pair = if number == 0 { [cos, -sin] } else { [sin, cos] };
                    all.extend(pair[..self.parts].iter().map(|x| (scale * x) as f32));
                }
            }
        }
        Ok(all)
    }

    /// Weight of an element: an inverse divides by the length, and counts the conjugates that a
    /// half of the spectrum stands for.
    fn weight(self, n: usize) -> f64 {
        let twice = self.onesided && n > 0 && 2 * n < self.length;
        let count = if twice { 2.0 } else { 1.0 };
        if self.inverse { count / self.length as f64 } else { 1.0 }
    }

    /// Transforms rows `[.., inputs * parts]`: `[.., outputs, numbers]`.
    fn apply(self, im: &mut Import, x: Tensor, window: Option<&[f64]>) -> NodeResult<Tensor> {
        let (inputs, outputs, numbers) = self.sizes();
        let mut shape = im.g.shape(x).to_vec();
        let columns = inputs * self.parts;
        let rows = shape.iter().product::<usize>() / columns;
        let matrix = im.floats(&[outputs * numbers, columns], self.matrix(window)?)?;
        let x = im.g.reshape(x, &[rows, columns])?;
        let made = im.g.matmul(x, matrix)?;
        shape.pop();
        shape.extend([outputs, numbers]);
        Ok(im.g.reshape(made, &shape)?)
    }
}

/// A positive length.
fn length(value: i64) -> NodeResult<usize> {
    let length = usize::try_from(value).ok().filter(|length| *length > 0);
    length.ok_or_else(|| invalid(format!("a transform of {value} elements")))
}

/// The last axis, of real or complex numbers.
fn parts(shape: &[usize]) -> NodeResult<usize> {
    match shape.last() {
        Some(parts @ (1 | 2)) => Ok(*parts),
        _ => Err(invalid(format!("{shape:?}: a last axis of 1 or 2 numbers expected"))),
    }
}

fn dft(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (inverse, onesided) = (node.flag("inverse"), node.flag("onesided"));
    let elem = node.input(0)?.elem();
    let x = im.float(node.input(0)?)?;
    let shape = im.g.shape(x).to_vec();
    let parts = parts(&shape)?;
    let place = match node.optional(2) {
        Some(_) => node.known_integers(2, "the axis")?.first().copied().unwrap_or(-2),
        None if node.opset < 20 => node.integer("axis", 1),
        None => -2,
    };
    let place = axis(place, shape.len())?;
    if place + 1 == shape.len() {
        return Err(invalid("a transform of the parts of complex numbers".into()));
    }
    let extent = shape[place];
    let length = match node.optional(1) {
        Some(_) => length(node.known_integers(1, "the length")?.first().copied().unwrap_or(0))?,
        None if inverse && onesided => 2 * extent.saturating_sub(1).max(1),
        None => length(extent as i64)?,
    };
    let transform = Transform { length, inverse, onesided, parts };
    let (inputs, ..) = transform.sizes();
    // [.., axis, parts]
    let mut order: Vec<usize> = (0..shape.len()).filter(|i| *i != place).collect();
    order.insert(shape.len() - 2, place);
    let g = &mut im.g;
    let mut x = g.permute(x, &order)?;
    let at = shape.len() - 2;
    x = if inputs <= extent {
        g.slice(x, at, 0, inputs)?
    } else {
        g.pad(x, at, 0, inputs - extent)?
    };
    let mut rows = g.shape(x)[..at].to_vec();
    rows.push(inputs * parts);
    let x = g.reshape(x, &rows)?;
    let made = transform.apply(im, x, None)?;
    let mut back: Vec<usize> = (0..shape.len() - 2).collect();
    back.insert(place, shape.len() - 2);
    back.push(shape.len() - 1);
    Ok(device(elem, im.g.permute(made, &back)?))
}

fn stft(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let onesided = node.integer("onesided", 1) != 0;
    let elem = node.input(0)?.elem();
    let x = im.float(node.input(0)?)?;
    let mut shape = im.g.shape(x).to_vec();
    if shape.len() == 2 {
        shape.push(1);
    }
    let parts = parts(&shape)?;
    let step = length(node.known_integers(1, "the step")?.first().copied().unwrap_or(0))?;
    let window = node.optional(2);
    let length = match (node.optional(3), window) {
        (Some(_), _) => {
            length(node.known_integers(3, "the length")?.first().copied().unwrap_or(0))?
        }
        (None, Some(window)) => length(im.shape(window).iter().product::<usize>() as i64)?,
        (None, None) => return Err(invalid("neither a window nor a length".into())),
    };
    let known: Option<Vec<f64>> = match window {
        Some(Value::Known(known)) => Some(known.values.iter().copied().collect()),
        _ => None,
    };
    if known.as_ref().is_some_and(|window| window.len() != length) {
        return Err(invalid(format!("a window of another length than {length}")));
    }
    let transform = Transform { length, inverse: false, onesided, parts };
    let g = &mut im.g;
    let x = g.reshape(x, &shape)?;
    // [N, frames, parts, length]
    let x = g.window(x, 1, Window { size: length, stride: step, dilation: 1 })?;
    let mut x = g.permute(x, &[0, 1, 3, 2])?;
    if let (Some(window), None) = (window, &known) {
        let window = im.float(window)?;
        let window = im.g.reshape(window, &[length, 1])?;
        x = nn::functions::mul(&mut im.g, x, window)?;
    }
    let frames = im.g.shape(x)[..2].to_vec();
    let x = im.g.reshape(x, &[frames[0], frames[1], length * parts])?;
    Ok(device(elem, transform.apply(im, x, known.as_deref())?))
}
