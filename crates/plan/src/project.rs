//! Operands of norms and of projections: products with weights, and the operations fused into them.

use crate::buffer::{Scalar, View};
use crate::elementwise::Activation;

/// Most weights of an [`Op::Project`](crate::Op::Project): queries, keys and values.
pub const MAX_WEIGHTS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// RMSNorm: `x / sqrt(mean(x^2) + eps)`.
    Rms,
    /// LayerNorm: subtracts the mean of `x` first.
    Layer,
}

impl NormKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rms => "rms-norm",
            Self::Layer => "layer-norm",
        }
    }
}

/// Operands of a norm other than its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Norm<T = View> {
    pub kind: NormKind,
    /// Factor on each column, `F32 [D]`.
    pub weight: T,
    /// Added to each column after the factor, `F32 [D]`.
    pub bias: Option<T>,
    /// Added to the mean square.
    pub eps: Scalar,
}

impl<T> Norm<T> {
    pub(crate) fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> Norm<U> {
        let (kind, eps) = (self.kind, self.eps);
        Norm { kind, weight: f(&self.weight), bias: self.bias.as_ref().map(f), eps }
    }
}

/// [`Op::Normalise`](crate::Op::Normalise): over the last axis of `x [.., D]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Normalise<T = View> {
    pub x: T,
    pub norm: Norm<T>,
    pub out: T,
}

/// [`Op::Project`](crate::Op::Project): products of one operand with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project<T = View> {
    pub x: T,
    /// Norm of `x` before the products.
    pub norm: Option<Norm<T>>,
    pub product: Product<T>,
}

/// Weights of a projection, and the epilogue of their products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Product<T = View> {
    /// One result per weight, at most [`MAX_WEIGHTS`].
    Each(Vec<Linear<T>>),
    /// `activation(x gate^T) * (x up^T)`.
    Glu { activation: Activation, gate: T, up: T, out: T },
    /// `residual + (x weight^T + bias)`.
    Residual { weight: T, bias: Option<T>, residual: T, out: T },
}

impl<T> Product<T> {
    pub(crate) fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        mut write: impl FnMut(&'a T) -> U,
    ) -> Product<U> {
        match self {
            Self::Each(each) => {
                let linear = |l: &'a Linear<T>| Linear {
                    weight: read(&l.weight),
                    bias: l.bias.as_ref().map(&mut read),
                    activation: l.activation,
                    out: write(&l.out),
                };
                Product::Each(each.iter().map(linear).collect())
            }
            Self::Glu { activation, gate, up, out } => Product::Glu {
                activation: *activation,
                gate: read(gate),
                up: read(up),
                out: write(out),
            },
            Self::Residual { weight, bias, residual, out } => Product::Residual {
                weight: read(weight),
                bias: bias.as_ref().map(&mut read),
                residual: read(residual),
                out: write(out),
            },
        }
    }

    /// Weight matrices, in the order in which a step reads them.
    #[must_use]
    pub fn weights(&self) -> Vec<&T> {
        match self {
            Self::Each(each) => each.iter().map(|linear| &linear.weight).collect(),
            Self::Glu { gate, up, .. } => vec![gate, up],
            Self::Residual { weight, .. } => vec![weight],
        }
    }
}

/// `activation(x weight^T + bias)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linear<T = View> {
    pub weight: T,
    pub bias: Option<T>,
    pub activation: Option<Activation>,
    pub out: T,
}
