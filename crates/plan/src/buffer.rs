//! Buffers of a plan and strided views of them. Who allocates them, and where, is the device's
//! business.

use super::DType;

/// Index of a buffer in [`super::Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a buffer is for; decides its lifetime and who may touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Written once at load, read by every step. Shared by name between all plans of a model.
    Weight,
    /// Survives from step to step (KV cache). Shared by name between all plans of a model. The
    /// shape is the logical one; the device may lay it out as it likes.
    State,
    /// Small inputs that host and device both write: tokens, positions, slots. One per prepared
    /// plan.
    Mailbox,
    /// Results the host may read after a step: logits, sampled tokens. One per prepared plan.
    Output,
    /// A single `f32` known when the plan is made.
    Constant(Scalar),
    /// Lives within one execution of the plan; the device may alias it.
    Scratch,
}

/// An `f32` that compares by its bits, so that plans compare exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scalar(u32);

impl Scalar {
    #[must_use]
    pub const fn new(value: f32) -> Self {
        Self(value.to_bits())
    }

    #[must_use]
    pub const fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Unique within its class; for weights, the GGUF tensor name.
    pub name: String,
    pub class: Class,
    pub dtype: DType,
    /// Row-major shape, outermost dimension first.
    pub shape: Vec<usize>,
}

impl Buffer {
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes when stored contiguously in the plan's own element type.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes_of(self.dtype, self.elements())
    }
}

/// Bytes of `elements` elements, rounded up to whole blocks.
#[must_use]
pub(super) fn bytes_of(dtype: DType, elements: usize) -> u64 {
    (elements.div_ceil(dtype.block_len()) * dtype.block_bytes()) as u64
}

/// A strided window into a buffer. Offsets and strides are in elements; a stride of 0 repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub buffer: BufferId,
    pub offset: usize,
    /// Extent of each dimension, outermost first.
    pub shape: Vec<usize>,
    /// Distance between neighbours of each dimension.
    pub strides: Vec<usize>,
}

/// What slides along an axis: so many elements, `dilation` apart, from every `stride`th element on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub size: usize,
    pub stride: usize,
    pub dilation: usize,
}

impl Window {
    /// Neighbouring elements, from each one on.
    #[must_use]
    pub const fn of(size: usize) -> Self {
        Self { size, stride: 1, dilation: 1 }
    }

    /// How many lie within `extent` elements; `None` when none does, or it is no window.
    #[must_use]
    pub fn count(&self, extent: usize) -> Option<usize> {
        if self.stride == 0 || self.dilation == 0 {
            return None;
        }
        let span = self.size.checked_sub(1)?.checked_mul(self.dilation)?;
        Some(extent.checked_sub(span)?.checked_sub(1)? / self.stride + 1)
    }
}

#[must_use]
pub fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

impl View {
    #[must_use]
    pub fn whole(buffer: BufferId, shape: &[usize]) -> Self {
        Self { buffer, offset: 0, shape: shape.to_vec(), strides: row_major(shape) }
    }

    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of different elements of the buffer seen through the view.
    #[must_use]
    pub fn distinct_elements(&self) -> usize {
        let extents = self.shape.iter().zip(&self.strides);
        extents.filter(|(_, stride)| **stride != 0).map(|(n, _)| n).product()
    }

    /// True when the elements lie one after the other in row-major order.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let dense = row_major(&self.shape);
        let mut axes = self.shape.iter().zip(self.strides.iter().zip(&dense));
        axes.all(|(n, (have, want))| *n == 1 || have == want)
    }

    /// One past the largest element index the view reaches.
    #[must_use]
    pub fn end(&self) -> usize {
        if self.elements() == 0 {
            return self.offset;
        }
        let steps = self.shape.iter().zip(&self.strides).map(|(n, stride)| (n - 1) * stride);
        self.offset + steps.sum::<usize>() + 1
    }

    /// The same elements under another shape, when no copy is needed for it.
    ///
    /// Dimensions are split and merged only where the strides allow.
    #[must_use]
    pub fn reshape(&self, shape: &[usize]) -> Option<Self> {
        if shape.iter().product::<usize>() != self.elements() {
            return None;
        }
        if self.elements() == 0 {
            return Some(Self { shape: shape.to_vec(), strides: row_major(shape), ..*self });
        }
        // Merge the old dimensions into maximal dense runs (extent, stride of the innermost).
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (&n, &stride) in self.shape.iter().zip(&self.strides).filter(|(n, _)| **n != 1) {
            match runs.last_mut() {
                Some((extent, inner)) if *inner == stride * n => {
                    *extent *= n;
                    *inner = stride;
                }
                _ => runs.push((n, stride)),
            }
        }
        // Cut each run into the new dimensions, innermost first.
        let mut strides = vec![0; shape.len()];
        let mut run = runs.pop();
        let (mut left, mut step) = run.take().unwrap_or((1, 1));
        for axis in (0..shape.len()).rev() {
            let n = shape[axis];
            if n == 1 {
                strides[axis] = step;
                continue;
            }
            if left == 1 {
                (left, step) = runs.pop()?;
            }
            if !left.is_multiple_of(n) {
                return None;
            }
            strides[axis] = step;
            left /= n;
            step *= n;
        }
        Some(Self { shape: shape.to_vec(), strides, ..*self })
    }

    /// Dimensions reordered: dimension `i` of the result is `axes[i]` of this view.
    #[must_use]
    pub fn permute(&self, axes: &[usize]) -> Self {
        let of = |all: &[usize]| axes.iter().map(|&axis| all[axis]).collect();
        Self { shape: of(&self.shape), strides: of(&self.strides), ..*self }
    }

    /// Dimensions of extent 1 repeated to `shape`.
    #[must_use]
    pub fn expand(&self, shape: &[usize]) -> Self {
        let stride = |((have, want), s)| if have == want { s } else { 0 };
        let strides = self.shape.iter().zip(shape).zip(self.strides.iter().copied());
        Self { shape: shape.to_vec(), strides: strides.map(stride).collect(), ..*self }
    }

    /// `len` entries of `axis`, from `start`.
    #[must_use]
    pub fn slice(&self, axis: usize, start: usize, len: usize) -> Self {
        let mut view = self.clone();
        view.offset += start * view.strides[axis];
        view.shape[axis] = len;
        view
    }

    /// Windows over `axis`, which becomes their number; the place in a window is a last axis. `None` when none fits.
    #[must_use]
    pub fn window(&self, axis: usize, window: Window) -> Option<Self> {
        let count = window.count(self.shape[axis])?;
        let mut view = self.clone();
        view.shape[axis] = count;
        view.shape.push(window.size);
        view.strides.push(self.strides[axis] * window.dilation);
        view.strides[axis] *= window.stride;
        Some(view)
    }

    /// True when both views can reach a common element of the same buffer (conservative).
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.buffer == other.buffer && self.offset < other.end() && other.offset < self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(view: &View) -> Vec<usize> {
        let mut all = vec![view.offset];
        for (&n, &stride) in view.shape.iter().zip(&view.strides) {
            all = all.iter().flat_map(|&at| (0..n).map(move |i| at + i * stride)).collect();
        }
        all
    }

    #[test]
    fn reshape_of_a_contiguous_view_keeps_the_order() {
        let view = View::whole(BufferId(0), &[4, 6]);
        for shape in [&[24][..], &[2, 12], &[2, 2, 3, 2], &[4, 1, 6], &[1, 24, 1]] {
            let reshaped = view.reshape(shape).unwrap();
            assert_eq!(indices(&reshaped), (0..24).collect::<Vec<_>>(), "{shape:?}");
        }
        assert_eq!(view.reshape(&[5, 5]), None);
        let none = View::whole(BufferId(0), &[0, 6]).permute(&[1, 0]);
        assert_eq!(none.reshape(&[3, 0, 2]).unwrap().shape, [3, 0, 2]);
    }

    #[test]
    fn reshape_of_a_permuted_view_splits_but_does_not_merge() {
        let view = View::whole(BufferId(0), &[4, 6]).permute(&[1, 0]);
        let split = view.reshape(&[3, 2, 4]).unwrap();
        assert_eq!(indices(&split), indices(&view));
        assert_eq!(view.reshape(&[24]), None);
    }

    #[test]
    fn windows_overlap_and_stay_inside() {
        let view = View::whole(BufferId(0), &[2, 7]);
        let windows = view.window(1, Window { size: 3, stride: 2, dilation: 2 }).unwrap();
        assert_eq!(windows.shape, [2, 2, 3]);
        assert_eq!(indices(&windows), [0, 2, 4, 2, 4, 6, 7, 9, 11, 9, 11, 13]);
        for wrong in [Window::of(8), Window::of(0), Window { stride: 0, ..Window::of(1) }] {
            assert_eq!(view.window(1, wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn expanded_views_count_each_element_once() {
        let view = View::whole(BufferId(0), &[1, 6]).expand(&[8, 6]);
        assert_eq!((view.elements(), view.distinct_elements()), (48, 6));
        assert!(!view.is_contiguous());
        assert_eq!(view.end(), 6);
    }

    #[test]
    fn slices_of_different_rows_do_not_overlap() {
        let view = View::whole(BufferId(0), &[4, 6]);
        assert!(!view.slice(0, 0, 2).overlaps(&view.slice(0, 2, 2)));
        assert!(view.slice(0, 0, 3).overlaps(&view.slice(0, 2, 2)));
    }
}
