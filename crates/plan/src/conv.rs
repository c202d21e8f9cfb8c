//! [`Op::Conv`](crate::Op::Conv): how windows lie over spatial axes, and what is made of them.

use crate::View;

/// How windows lie over each spatial axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Elements from one window to the next.
    pub stride: Vec<usize>,
    /// Zeroes before and after.
    pub pads: Vec<[usize; 2]>,
    /// Elements from one of a window to its next.
    pub dilation: Vec<usize>,
    /// Parts of the channels that know nothing of each other.
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
