//! Operands of tensor products, packed into the register tiles that the kernels of `simd::dense` read.

use super::conv_shape;
use super::pool::Worker;
use plan::{Buffer, Conv, Op, View};
use simd::Isa;
use simd::dense::{self, COLUMNS, Lines};
use simd::vector::LANES;
use simd::winograd::TAPS;

/// Packed operand: several matrices of lines with several steps each, and their strides before packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedOperand {
    pub(super) side: Side,
    /// Number of matrices, and distance between them. The fields below have the same form.
    pub(super) matrices: (usize, usize),
    pub(super) lines: (usize, usize),
    pub(super) steps: (usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Rows,
    Columns,
    /// Transformed weights of `simd::winograd`: one matrix per tap, with channels as steps.
    Winograd,
}

/// Packs an operand for the product after it.
pub(super) struct Pack {
    pub(super) operand: PackedOperand,
    /// Axes of matrices: extent, and distance between them.
    pub(super) axes: Vec<(usize, usize)>,
    pub(super) from: *const f32,
    pub(super) to: *mut f32,
}

impl PackedOperand {
    /// The packed form of a weight that a step reads, if it can be packed at upload.
    pub(super) fn of(op: &Op, view: &View, buffer: &Buffer) -> Option<Self> {
        let whole = view.offset == 0 && view.distinct_elements() == buffer.elements();
        let of = |side| Self::of_matrix(view, side);
        match op {
            _ if !whole => None,
            Op::Conv(conv) if conv.weight == *view && !conv_shape::is_depthwise(conv) => {
                let packed = Self::of_convolution(conv);
                Some(if conv_shape::is_winograd(conv) { packed.for_winograd() } else { packed })
            }
            Op::MatMul { a, b, .. } if a == view && b != view => of(Side::Rows),
            Op::MatMul { a, b, .. } if b == view && a != view => of(Side::Columns),
            // A table that is also a product's weight.
            Op::Gather(gather) if gather.indices.len() == 1 && view.shape.len() == 2 => {
                of(Side::Columns)
            }
            _ => None,
        }
    }

    /// The weights of a convolution.
    pub(super) fn of_convolution(conv: &Conv) -> Self {
        let shape = &conv.weight.shape;
        let (groups, taps) = (conv.windows.groups, shape[1..].iter().product());
        let rows = shape[0] / groups;
        let (lines, steps) = ((rows, taps), (taps, 1));
        Self { side: Side::Rows, matrices: (groups, rows * taps), lines, steps }
    }

    /// Weights of `self`, transformed for 3 by 3 Winograd tiles.
    const fn for_winograd(self) -> Self {
        Self { side: Side::Winograd, steps: (self.steps.0 / 9, 9), ..self }
    }

    /// An operand that is the same matrix for every pair.
    fn of_matrix(view: &View, side: Side) -> Option<Self> {
        let axes: Vec<(usize, usize)> = view.shape.iter().copied().zip(view.forward()?).collect();
        let (heads, &[lines, steps]) = axes.split_last_chunk()?;
        let one = heads.iter().all(|(extent, stride)| *extent == 1 || *stride == 0);
        one.then_some(Self { side, matrices: (1, 0), lines, steps })
    }

    /// Elements of one packed matrix.
    pub(super) const fn matrix(&self) -> usize {
        let lines = match self.side {
            Side::Rows => self.lines.0,
            Side::Columns => self.lines.0.next_multiple_of(LANES),
            Side::Winograd => TAPS * self.lines.0,
        };
        lines * self.steps.0
    }

    /// Unpacks one line of columns.
    ///
    /// # Safety
    ///
    /// The operand was packed for the instruction set, it has the line, and `out` has space for its steps.
    pub(super) unsafe fn line(&self, isa: Isa, tiles: *const f32, line: usize, out: *mut f32) {
        let (steps, first) = (self.steps.0, line / COLUMNS * COLUMNS);
        let own = (line - first) / LANES;
        let mut all = isa.tile().column_tiles(COLUMNS.min(self.lines.0 - first));
        let Some((before, vectors)) = all.find(|(before, vectors)| own < before + vectors) else {
            unreachable!("a line of another matrix")
        };
        let lane = line - first - before * LANES;
        // SAFETY: the caller's contract.
        unsafe {
            let tile = tiles.add((first + before * LANES) * steps + lane);
            for step in 0..steps {
                *out.add(step) = *tile.add(step * vectors * LANES);
            }
        }
    }

    /// Elements of all matrices before packing.
    pub(super) const fn elements(&self) -> usize {
        let taps = if matches!(self.side, Side::Winograd) { 9 } else { 1 };
        self.matrices.0 * self.lines.0 * self.steps.0 * taps
    }

    pub(super) fn bytes(&self) -> Option<usize> {
        self.matrix().checked_mul(self.matrices.0)?.checked_mul(4)
    }

    /// This thread's share of packing `matrices` matrices; `from` returns the address of each.
    ///
    /// # Safety
    ///
    /// The lines are readable, and the destination has space, which no other code accesses; all threads are here.
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
            Side::Rows | Side::Winograd => rows.count,
            Side::Columns => lines.div_ceil(COLUMNS),
        };
        while let Some(items) = w.claim(matrices * chunks, 1) {
            let (matrix, chunk) = (items.start / chunks, items.start % chunks);
            let (first, end) = match self.side {
                Side::Rows | Side::Winograd => (rows.before(chunk), rows.before(chunk + 1)),
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
                    Side::Winograd => {
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

// SAFETY: the caller of `run` is responsible for the pointers.
unsafe impl Sync for Pack {}

impl Pack {
    /// This thread's share.
    ///
    /// # Safety
    ///
    /// The lines are readable, and the destination has space, which no other code accesses; all threads are here.
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
        unsafe { self.operand.pack(isa, w, count, &from, self.to) }
    }
}
