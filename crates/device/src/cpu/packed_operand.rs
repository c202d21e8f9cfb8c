//! Operands of matrix products, packed into the order in which the kernels of `simd::dense` read them.

use super::conv_shape;
use super::pool::Worker;
use plan::{Buffer, Conv, Op, View};
use simd::Isa;
use simd::dense::{self, COLUMNS, Lines};
use simd::vector::LANES;
use simd::winograd::TAPS;

/// Lines of as many steps, of some matrices, and how they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedOperand {
    pub(super) side: Side,
    /// How many, and elements between them.
    pub(super) matrices: (usize, usize),
    pub(super) lines: (usize, usize),
    pub(super) steps: (usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Rows,
    Columns,
    /// Rows of each tap of `simd::winograd`, the steps being channels.
    Tiles,
}

/// Rows brought into panels, for the product after it.
pub(super) struct Pack {
    pub(super) panels: PackedOperand,
    /// Axes of matrices: how many, and elements between them.
    pub(super) axes: Vec<(usize, usize)>,
    pub(super) from: *const f32,
    pub(super) to: *mut f32,
}

impl PackedOperand {
    /// How a weight lies that a step reads, where its panels can be made beforehand.
    pub(super) fn of(op: &Op, view: &View, buffer: &Buffer) -> Option<Self> {
        let whole = view.offset == 0 && view.distinct_elements() == buffer.elements();
        let of = |side| Self::of_matrix(view, side);
        match op {
            _ if !whole => None,
            Op::Conv(conv) if conv.weight == *view && !conv_shape::is_depthwise(conv) => {
                let panels = Self::of_convolution(conv);
                Some(if conv_shape::is_winograd(conv) { panels.of_tiles() } else { panels })
            }
            Op::MatMul { a, b, .. } if a == view && b != view => of(Side::Rows),
            Op::MatMul { a, b, .. } if b == view && a != view => of(Side::Columns),
            // A table that is a product's weight too.
            Op::Gather(gather) if gather.indices.len() == 1 && view.shape.len() == 2 => {
                of(Side::Columns)
            }
            _ => None,
        }
    }

    /// Of a convolution's weights.
    pub(super) fn of_convolution(conv: &Conv) -> Self {
        let shape = &conv.weight.shape;
        let (groups, taps) = (conv.windows.groups, shape[1..].iter().product());
        let rows = shape[0] / groups;
        let (lines, steps) = ((rows, taps), (taps, 1));
        Self { side: Side::Rows, matrices: (groups, rows * taps), lines, steps }
    }

    /// The same weights for tiles of 3 by 3 windows.
    const fn of_tiles(self) -> Self {
        Self { side: Side::Tiles, steps: (self.steps.0 / 9, 9), ..self }
    }

    /// Of the same matrix for every pair.
    fn of_matrix(view: &View, side: Side) -> Option<Self> {
        let axes: Vec<(usize, usize)> = view.shape.iter().copied().zip(view.forward()?).collect();
        let (heads, &[lines, steps]) = axes.split_last_chunk()?;
        let one = heads.iter().all(|(extent, stride)| *extent == 1 || *stride == 0);
        one.then_some(Self { side, matrices: (1, 0), lines, steps })
    }

    /// Elements of a matrix in panels.
    pub(super) const fn matrix(&self) -> usize {
        let lines = match self.side {
            Side::Rows => self.lines.0,
            Side::Columns => self.lines.0.next_multiple_of(LANES),
            Side::Tiles => TAPS * self.lines.0,
        };
        lines * self.steps.0
    }

    /// A line of columns, out of the panels that hold it.
    ///
    /// # Safety
    ///
    /// The panels are those of the instruction set, the line is one of theirs, and there is room for its steps.
    pub(super) unsafe fn line(&self, isa: Isa, panels: *const f32, line: usize, out: *mut f32) {
        let (steps, first) = (self.steps.0, line / COLUMNS * COLUMNS);
        let own = (line - first) / LANES;
        let mut all = isa.tile().panels(COLUMNS.min(self.lines.0 - first));
        let Some((before, vectors)) = all.find(|(before, vectors)| own < before + vectors) else {
            unreachable!("a line of another matrix")
        };
        let lane = line - first - before * LANES;
        // SAFETY: the caller's contract.
        unsafe {
            let panel = panels.add((first + before * LANES) * steps + lane);
            for step in 0..steps {
                *out.add(step) = *panel.add(step * vectors * LANES);
            }
        }
    }

    /// Elements of all, as they come.
    pub(super) const fn elements(&self) -> usize {
        let taps = if matches!(self.side, Side::Tiles) { 9 } else { 1 };
        self.matrices.0 * self.lines.0 * self.steps.0 * taps
    }

    pub(super) fn bytes(&self) -> Option<usize> {
        self.matrix().checked_mul(self.matrices.0)?.checked_mul(4)
    }

    /// This thread's share of the panels of so many matrices, each where `from` says.
    ///
    /// # Safety
    ///
    /// The lines are there, and room for the panels, which nobody else touches; all threads are here.
    unsafe fn pack(
        &self,
        isa: Isa,
        w: &Worker<'_>,
        matrices: usize,
        from: &dyn Fn(usize) -> *const f32,
        to: *mut f32,
    ) {
        let ((lines, line), (steps, step)) = (self.lines, self.steps);
        let rows = isa.tile().rows(lines);
        let chunks = match self.side {
            Side::Rows | Side::Tiles => rows.count,
            Side::Columns => lines.div_ceil(COLUMNS),
        };
        while let Some(items) = w.claim(matrices * chunks, 1) {
            let (matrix, chunk) = (items.start / chunks, items.start % chunks);
            let (first, end) = match self.side {
                Side::Rows | Side::Tiles => (rows.before(chunk), rows.before(chunk + 1)),
                Side::Columns => (chunk * COLUMNS, lines.min((chunk + 1) * COLUMNS)),
            };
            let count = end - first;
            // SAFETY: the caller's contract; each chunk is claimed once.
            unsafe {
                let to = to.add(matrix * self.matrix() + first * steps);
                let at = from(matrix).add(first * line);
                match self.side {
                    Side::Rows => {
                        for row in 0..count {
                            for s in 0..steps {
                                *to.add(s * count + row) = *at.add(row * line + s * step);
                            }
                        }
                    }
                    Side::Tiles => {
                        for (row, s) in (0..count).flat_map(|row| (0..steps).map(move |s| (row, s)))
                        {
                            let window = at.add(row * line + s * step).cast::<[[f32; 3]; 3]>();
                            let taps = simd::winograd::weights(window.read_unaligned());
                            for (tap, value) in taps.into_iter().enumerate() {
                                *to.add(tap * lines * steps + s * count + row) = value;
                            }
                        }
                    }
                    Side::Columns => {
                        dense::pack_columns(isa, Lines { at, line, step }, count, steps, to);
                    }
                }
            }
        }
    }
}

// SAFETY: whoever runs it answers for the pointers.
unsafe impl Sync for Pack {}

impl Pack {
    /// This thread's share.
    ///
    /// # Safety
    ///
    /// The lines are there, and room for the panels, which nobody else touches; all threads are here.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>) {
        let from = |matrix: usize| {
            let (mut left, mut at) = (matrix, self.from);
            for &(extent, step) in self.axes.iter().rev() {
                at = at.wrapping_add(left % extent * step);
                left /= extent;
            }
            at
        };
        let count = self.axes.iter().map(|(extent, _)| extent).product();
        // SAFETY: the caller's contract.
        unsafe { self.panels.pack(isa, w, count, &from, self.to) }
    }
}
