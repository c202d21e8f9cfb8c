//! Buffers of a plan and strided views of them. The device decides how and where they are
//! allocated.

use std::ops::Range;

use crate::dtype::DType;

/// Index of a buffer in [`Plan::buffers`](crate::Plan::buffers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Purpose of a buffer; determines its lifetime and its writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Written once at load, read by every step. Shared by name between all plans of a model.
    Weight,
    /// Kept from step to step (KV cache). Shared by name between all plans of a model. The shape is
    /// logical; the device chooses the memory layout.
    State,
    /// Small inputs that host and device both write: tokens, positions, slots. One per prepared
    /// plan.
    Mailbox,
    /// Results that the host may read after a step: logits, sampled tokens. One per prepared plan.
    Output,
    /// A single `f32` that is known when the plan is made.
    Constant(Scalar),
    /// Alive within one execution of the plan; the device may alias it.
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

    /// Bytes when stored contiguously in the buffer's own element type.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes_of(self.dtype, self.elements())
    }
}

/// Bytes of `elements` elements, rounded up to whole blocks.
#[must_use]
pub(crate) fn bytes_of(dtype: DType, elements: usize) -> u64 {
    (elements.div_ceil(dtype.block_len()) * dtype.block_bytes()) as u64
}

/// A strided view of a buffer. Offsets and strides are in elements. Stride 0 repeats an element; a
/// negative stride walks backward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub buffer: BufferId,
    /// Index of the first element.
    pub offset: usize,
    /// Extent of each dimension, outermost first.
    pub shape: Vec<usize>,
    /// Distance between neighbours along each dimension.
    pub strides: Vec<isize>,
}

/// A window that slides along an axis: `size` elements, `dilation` apart, starting at every
/// `stride`th element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub size: usize,
    pub stride: usize,
    pub dilation: usize,
}

impl Window {
    /// Windows of neighbouring elements, one starting at each element.
    #[must_use]
    pub const fn of(size: usize) -> Self {
        Self { size, stride: 1, dilation: 1 }
    }

    /// Number of windows within `extent` elements; `None` if none fits or the window is invalid.
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

/// Strides of contiguous elements.
fn dense(shape: &[usize]) -> Vec<isize> {
    row_major(shape).into_iter().map(usize::cast_signed).collect()
}

impl View {
    #[must_use]
    pub fn whole(buffer: BufferId, shape: &[usize]) -> Self {
        Self { buffer, offset: 0, shape: shape.to_vec(), strides: dense(shape) }
    }

    /// The strides, if none is negative.
    #[must_use]
    pub fn forward(&self) -> Option<Vec<usize>> {
        self.strides.iter().map(|&stride| usize::try_from(stride).ok()).collect()
    }

    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of distinct elements of the buffer that the view reaches.
    #[must_use]
    pub fn distinct_elements(&self) -> usize {
        let extents = self.shape.iter().zip(&self.strides);
        extents.filter(|(_, stride)| **stride != 0).map(|(n, _)| n).product()
    }

    /// True if the elements are contiguous in row-major order.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let dense = dense(&self.shape);
        let mut axes = self.shape.iter().zip(self.strides.iter().zip(&dense));
        axes.all(|(n, (have, want))| *n == 1 || have == want)
    }

    /// Range from the smallest element index that the view reaches to one past the largest; `None`
    /// if the smallest would be negative.
    #[must_use]
    pub fn span(&self) -> Option<Range<usize>> {
        if self.elements() == 0 {
            return Some(self.offset..self.offset);
        }
        let (mut start, mut end) = (self.offset, self.offset + 1);
        for (n, stride) in self.shape.iter().zip(&self.strides) {
            let far = (n - 1) * stride.unsigned_abs();
            if *stride < 0 {
                start = start.checked_sub(far)?;
            } else {
                end += far;
            }
        }
        Some(start..end)
    }

    /// The same elements in another shape, if that needs no copy. Dimensions are split and merged
    /// only where the strides allow it.
    #[must_use]
    pub fn reshape(&self, shape: &[usize]) -> Option<Self> {
        if shape.iter().product::<usize>() != self.elements() {
            return None;
        }
        if self.elements() == 0 {
            return Some(Self { shape: shape.to_vec(), strides: dense(shape), ..*self });
        }
        // Merge the old dimensions into maximal dense runs (extent, stride of the innermost).
        let mut runs: Vec<(usize, isize)> = Vec::new();
        for (&n, &stride) in self.shape.iter().zip(&self.strides).filter(|(n, _)| **n != 1) {
            match runs.last_mut() {
                Some((extent, inner)) if *inner == stride * n.cast_signed() => {
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
            step *= n.cast_signed();
        }
        Some(Self { shape: shape.to_vec(), strides, ..*self })
    }

    /// Dimensions reordered: dimension `i` of the result is `axes[i]` of this view.
    #[must_use]
    pub fn permute(&self, axes: &[usize]) -> Self {
        let shape = axes.iter().map(|&axis| self.shape[axis]).collect();
        let strides = axes.iter().map(|&axis| self.strides[axis]).collect();
        Self { shape, strides, ..*self }
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
        view.offset = view.offset.wrapping_add_signed(start.cast_signed() * view.strides[axis]);
        view.shape[axis] = len;
        view
    }

    /// `axis` in reverse order.
    #[must_use]
    pub fn flip(&self, axis: usize) -> Self {
        let mut view = self.slice(axis, self.shape[axis].saturating_sub(1), self.shape[axis]);
        view.strides[axis] = -view.strides[axis];
        view
    }

    /// Windows over `axis`. The axis becomes the window count, and a new last axis indexes within a
    /// window. `None` if no window fits.
    #[must_use]
    pub fn window(&self, axis: usize, window: Window) -> Option<Self> {
        let count = window.count(self.shape[axis])?;
        let mut view = self.clone();
        view.shape[axis] = count;
        view.shape.push(window.size);
        view.strides.push(self.strides[axis] * window.dilation.cast_signed());
        view.strides[axis] *= window.stride.cast_signed();
        Some(view)
    }

    /// True if both views may reach a common element of the same buffer (conservative).
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (self.span(), other.span()) else { return true };
        self.buffer == other.buffer && own.start < others.end && others.start < own.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(view: &View) -> Vec<usize> {
        let mut all = vec![view.offset];
        for (&n, &stride) in view.shape.iter().zip(&view.strides) {
            let next = |at: usize, i: usize| at.wrapping_add_signed(i.cast_signed() * stride);
            all = all.iter().flat_map(|&at| (0..n).map(move |i| next(at, i))).collect();
        }
        all
    }

    #[test]
    fn flipped_views_stay_inside_the_buffer() {
        let view = View::whole(BufferId(0), &[2, 3]);
        let flipped = view.flip(1);
        assert_eq!(indices(&flipped), [2, 1, 0, 5, 4, 3]);
        assert_eq!((flipped.span(), flipped.forward()), (Some(0..6), None));
        assert_eq!(indices(&flipped.slice(1, 1, 2)), [1, 0, 4, 3]);
        assert_eq!(flipped.slice(1, 2, 1).span(), Some(0..4));
        assert_eq!(flipped.flip(1), view);
        // Reversed on all axes, the view merges into one reversed axis; reversed on one axis only,
        // it cannot merge.
        let around = flipped.flip(0).reshape(&[6]).unwrap();
        assert_eq!(indices(&around), [5, 4, 3, 2, 1, 0]);
        assert_eq!(indices(&around.reshape(&[3, 2]).unwrap()), [5, 4, 3, 2, 1, 0]);
        assert_eq!(flipped.reshape(&[6]), None);
        assert_eq!(
            indices(&around.window(0, Window::of(5)).unwrap()),
            [5, 4, 3, 2, 1, 4, 3, 2, 1, 0]
        );
        let none = View::whole(BufferId(0), &[2, 0]).flip(1);
        assert_eq!((none.elements(), none.span()), (0, Some(0..0)));
        assert!(!view.slice(0, 0, 1).overlaps(&flipped.slice(0, 1, 1)));
        assert!(view.slice(0, 1, 1).overlaps(&flipped.slice(0, 1, 1)));
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
    fn windows_overlap_and_stay_inside_the_buffer() {
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
        assert_eq!(view.span(), Some(0..6));
    }

    #[test]
    fn slices_of_different_rows_do_not_overlap() {
        let view = View::whole(BufferId(0), &[4, 6]);
        assert!(!view.slice(0, 0, 2).overlaps(&view.slice(0, 2, 2)));
        assert!(view.slice(0, 0, 3).overlaps(&view.slice(0, 2, 2)));
    }
}
