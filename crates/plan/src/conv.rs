//! Operands of [`Op::Conv`](crate::Op::Conv): the geometry of its windows, input, weight, bias and
//! output.

use crate::buffer::View;

/// Geometry of the windows over each spatial axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Elements from one window to the next.
    pub stride: Vec<usize>,
    /// Zeroes before and after.
    pub pads: Vec<[usize; 2]>,
    /// Elements from one element of a window to the next.
    pub dilation: Vec<usize>,
    /// Number of independent groups of channels.
    pub groups: usize,
}

/// Windows of `x [N, C, spatial..]` times `weight [O, C / groups, sizes..]`, and `bias [O]`: `out [N, O, counts..]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv<T = View> {
    pub windows: Windows,
    pub x: T,
    pub weight: T,
    pub bias: Option<T>,
    pub out: T,
}

impl<T> Conv<T> {
    pub(crate) fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        write: impl FnOnce(&'a T) -> U,
    ) -> Conv<U> {
        Conv {
            windows: self.windows.clone(),
            x: read(&self.x),
            weight: read(&self.weight),
            bias: self.bias.as_ref().map(read),
            out: write(&self.out),
        }
    }
}
