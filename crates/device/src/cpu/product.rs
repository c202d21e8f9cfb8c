//! Products of matrices and convolutions, tile by tile: see `simd::dense` for how operands lie in panels.
//!
//! Rows are packed before the product: weights when they are uploaded, others by a stage of their own. Columns that are no
//! weights are packed a chunk at a time by whoever multiplies it, windows as `simd::windows` finds them. What follows element
//! by element is done to results while they are in the cache.

use std::ops::Range;

use super::group::{BLOCK, Kernel};
use super::pool::Worker;
use super::winograd;
use plan::{Buffer, Class, Conv, DType, Group, Op, Plan, Step, View};
use simd::Isa;
use simd::dense::{self, COLUMNS, Finish, Function, Lie, Lines, Onto, Operands, Place, SPAN};
use simd::vector::LANES;
use simd::windows::{self, Axis, Image, pack_windows};
use simd::winograd::TAPS;

const _: () = assert!(COLUMNS <= BLOCK, "what follows a product takes a block at a time");

/// Spans of columns that are packed at a time: what stays in the second-level cache beside rows that stream by.
const SPANS: usize = 2;

/// Scratch of a thread for panels of columns, in `f32` values.
pub(super) const PANELS: usize = SPANS * SPAN * COLUMNS;

/// Scratch of a thread for a convolution's columns.
pub(super) fn scratch(conv: &Conv) -> usize {
    let [rows, columns] = axes(conv, &[0; 4]);
    PANELS + windows::scratch(&rows, &columns)
}

/// How a convolution's windows lie in an image of these strides.
pub(super) fn axes(conv: &Conv, strides: &[usize]) -> [Axis; 2] {
    let Conv { windows, x, weight, out, .. } = conv;
    let axis = |i: usize| Axis {
        extent: x.shape[2 + i],
        step: strides[2 + i],
        before: windows.pads[i][0],
        stride: windows.stride[i],
        dilation: windows.dilation[i],
        size: weight.shape[2 + i],
        count: out.shape[2 + i],
    };
    let one = Axis { extent: 1, step: 0, before: 0, stride: 1, dilation: 1, size: 1, count: 1 };
    match x.shape.len() {
        3 => [one, axis(0)],
        _ => [axis(0), axis(1)],
    }
}

/// Where columns come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Columns {
    /// As [`Panels`] leave them.
    Packed(*const f32),
    Lines(Lines),
    Windows(Image),
}

/// Matrices that lie as far apart: how many, elements between them in the packed rows, and in the columns.
pub(super) type Pairs = Vec<(usize, usize, usize)>;

/// What follows a product element by element.
pub(super) enum After {
    /// What a tile does before it writes its results.
    Finish(Finish),
    Kernel(Kernel),
}

impl Default for After {
    fn default() -> Self {
        Self::Finish(Finish::default())
    }
}

impl After {
    /// The function that results become as they are written, and what is done to them then.
    pub(super) fn parts(&self) -> (Function, Option<Finish>) {
        match *self {
            Self::Finish(Finish { plus: [None, None], function, last: None }) => (function, None),
            Self::Finish(finish) => (Function::Same, Some(finish)),
            Self::Kernel(_) => (Function::Same, None),
        }
    }
}

/// Rows `[m, k]` times columns `[k, n]`, for each of some pairs.
pub(super) struct MatMul {
    pub(super) rows: *const f32,
    /// Elements from row to row, where they are in no panels.
    pub(super) apart: Option<usize>,
    pub(super) columns: Columns,
    pub(super) pairs: Pairs,
    /// `[m, n, k]`
    pub(super) shape: [usize; 3],
    /// A value for each row of so many pairs.
    pub(super) bias: Option<(*const f32, usize)>,
    pub(super) out: *mut f32,
    pub(super) after: After,
}

/// Lines of as many steps, of some matrices, and how they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panels {
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
    pub(super) panels: Panels,
    /// Axes of matrices: how many, and elements between them.
    pub(super) axes: Vec<(usize, usize)>,
    pub(super) from: *const f32,
    pub(super) to: *mut f32,
}

impl Panels {
    /// How a weight lies that a step reads, where its panels can be made beforehand.
    pub(super) fn of(op: &Op, view: &View, buffer: &Buffer) -> Option<Self> {
        let whole = view.offset == 0 && view.distinct_elements() == buffer.elements();
        let of = |side| Self::of_matrix(view, side);
        match op {
            _ if !whole => None,
            Op::Conv(conv) if conv.weight == *view && !is_depthwise(conv) => {
                let panels = Self::of_convolution(conv);
                Some(if winograd::fits(conv) { panels.of_tiles() } else { panels })
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

impl MatMul {
    /// This thread's share, with scratch for panels and the lines under windows, and behind them for the registers of what follows.
    ///
    /// # Safety
    ///
    /// The addresses are valid, all threads are here, and nobody else touches what it writes.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        let m = self.shape[0];
        let lines = match &self.columns {
            Columns::Windows(image) => windows::scratch(&image.rows, &image.columns),
            Columns::Packed(_) | Columns::Lines(_) => 0,
        };
        // SAFETY: the caller's contract.
        let registers = unsafe { scratch.add(PANELS + lines) };
        if let After::Kernel(after) = &self.after {
            // SAFETY: as above.
            unsafe { after.begin(registers) };
        }
        let count = self.count();
        let chunks = self.chunks(count, w.threads());
        // Rows are divided where columns alone do not keep the threads busy; whoever packs columns does so for each part.
        let busy = if chunks.packed { 2 * w.threads() } else { w.threads() };
        let parts = busy.div_ceil((count * chunks.count).max(1));
        let all = isa.tile().rows(m).count;
        let part = if w.threads() == 1 { all } else { all.div_ceil(parts) }.max(1);
        let parts = all.div_ceil(part);
        while let Some(items) = w.claim(count * chunks.count * parts, 1) {
            let (item, first) = (items.start / parts, items.start % parts * part);
            let (pair, [column, columns]) =
                (item / chunks.count, chunks.columns(item % chunks.count));
            let rows = first..all.min(first + part);
            // SAFETY: the caller's contract: an item is one thread's.
            unsafe { self.item(isa, pair, rows, [column, columns], (scratch, registers)) };
        }
    }

    /// Pairs of matrices.
    pub(super) fn count(&self) -> usize {
        self.pairs.iter().map(|(n, ..)| n).product()
    }

    /// Some panels of rows of a pair times all columns, which are in panels, and what follows, with scratch for its registers.
    ///
    /// # Safety
    ///
    /// As for [`MatMul::run`], and nobody else does these rows.
    pub(super) unsafe fn rows(
        &self,
        isa: Isa,
        pair: usize,
        panels: Range<usize>,
        registers: *mut f32,
    ) {
        // SAFETY: the caller's contract; what is in panels is not packed into scratch.
        unsafe {
            if let After::Kernel(after) = &self.after {
                after.begin(registers);
            }
            let chunks = self.chunks(1, 1);
            for chunk in 0..chunks.count {
                let (columns, scratch) = (chunks.columns(chunk), (registers, registers));
                self.item(isa, pair, panels.clone(), columns, scratch);
            }
        }
    }

    /// How columns are divided: as they were packed, or so that each thread has as many.
    fn chunks(&self, pairs: usize, threads: usize) -> Chunks {
        let n = self.shape[1];
        let (count, vectors) = (n.div_ceil(COLUMNS), n.div_ceil(LANES));
        let packed = matches!(self.columns, Columns::Packed(_));
        let items = pairs * count;
        let divided = !packed && threads > 1 && items < 4 * threads && vectors >= 2 * threads;
        let count = match items.next_multiple_of(threads) / pairs.max(1) {
            more if divided => more.clamp(count, vectors),
            _ => count,
        };
        Chunks { n, count, packed }
    }

    /// Some panels of rows times at most [`COLUMNS`] columns of a pair, and what follows.
    ///
    /// # Safety
    ///
    /// As for [`MatMul::run`].
    unsafe fn item(
        &self,
        isa: Isa,
        pair: usize,
        panels: Range<usize>,
        [column, columns]: [usize; 2],
        (scratch, registers): (*mut f32, *mut f32),
    ) {
        let [m, n, k] = self.shape;
        let (mut of_rows, mut of_columns, mut left) = (0, 0, pair);
        for &(extent, rows, columns) in self.pairs.iter().rev() {
            let at = left % extent;
            (of_rows, of_columns) = (of_rows + at * rows, of_columns + at * columns);
            left /= extent;
        }
        let most = PANELS / columns.next_multiple_of(LANES) / SPAN * SPAN;
        let rows = isa.tile().rows(m);
        // Of no steps there is one part, of nothing.
        for begin in (0..k.max(1)).step_by(most) {
            let end = k.min(begin + most);
            // SAFETY: the caller's contract: all that is touched is of these rows and columns.
            unsafe {
                let (of, over) = ([column, columns], [begin, end - begin]);
                let (at, lie) = self.panels(isa, of_columns, of, over, scratch);
                let bias = self.bias.map(|(bias, pairs)| bias.add(pair % pairs * m));
                let out = self.out.add(pair * m * n + column);
                // A panel of rows stays in the first-level cache; results are written from end to end.
                for (row, count) in rows.parts(panels.clone()) {
                    let first = match self.apart {
                        None => row * k + begin * count,
                        Some(apart) => row * apart + begin,
                    };
                    let operands = Operands {
                        rows: self.rows.add(of_rows + first),
                        apart: self.apart,
                        count,
                        columns: at,
                        lie,
                        steps: end - begin,
                    };
                    let onto = match bias {
                        _ if begin > 0 => Onto::Itself,
                        Some(bias) => Onto::Rows(bias.add(row)),
                        None => Onto::Nothing,
                    };
                    let finish = match self.after {
                        After::Finish(finish) if end == k => finish.at(pair * m + row, column),
                        _ => Finish::default(),
                    };
                    let to = Place { out: out.add(row * n), stride: n, columns };
                    dense::product(isa, operands, onto, finish, to);
                    if let After::Kernel(after) = &self.after
                        && end == k
                    {
                        for row in row..row + count {
                            after.piece(isa, registers, (pair * m + row) * n + column, columns);
                        }
                    }
                }
            }
        }
    }

    /// Where panels of some columns are over some steps, and how they lie: in `scratch`, if they had to be packed.
    ///
    /// # Safety
    ///
    /// The columns are there, and room for the panels.
    unsafe fn panels(
        &self,
        isa: Isa,
        of_columns: usize,
        [column, columns]: [usize; 2],
        [start, steps]: [usize; 2],
        scratch: *mut f32,
    ) -> (*const f32, Lie) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.columns {
                Columns::Packed(at) => {
                    let steps = self.shape[2];
                    return (
                        at.add(of_columns + column * steps),
                        Lie::Panels { steps, before: start },
                    );
                }
                Columns::Lines(Lines { at, line, step }) => {
                    let at = at.add(of_columns + column * line + start * step);
                    dense::pack_columns(isa, Lines { at, line, step }, columns, steps, scratch);
                }
                Columns::Windows(image) => {
                    let image = Image { at: image.at.add(of_columns), ..image };
                    let (of, over) = ([column, columns], [start, steps]);
                    let lines = scratch.add(PANELS);
                    pack_windows(isa, &image, of, over, lines, scratch);
                }
            }
        }
        (scratch, Lie::Panels { steps, before: 0 })
    }
}

/// Columns in chunks of at most [`COLUMNS`].
#[derive(Clone, Copy)]
struct Chunks {
    n: usize,
    count: usize,
    /// Whether they are those that the columns were packed in.
    packed: bool,
}

impl Chunks {
    /// The first of a chunk, and how many.
    fn columns(self, chunk: usize) -> [usize; 2] {
        let before = |chunk: usize| match self.packed {
            true => chunk * COLUMNS,
            false => self.n.div_ceil(LANES) * chunk / self.count * LANES,
        };
        let first = before(chunk);
        [first, before(chunk + 1).min(self.n) - first]
    }
}

/// Whether every channel is by itself.
pub(super) fn is_depthwise(conv: &Conv) -> bool {
    let shape = &conv.weight.shape;
    conv.windows.groups == shape[0] && shape[1] == 1 && shape[0] > 1
}

/// A plan's steps in groups, where a product takes what follows it element by element.
pub(super) fn groups(plan: &Plan) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for group in plan::schedule(plan) {
        match groups.last_mut() {
            Some(product) if follows(plan, product, &group) => {
                (product.steps.end, product.inner) = (group.steps.end, group.inner);
            }
            _ => groups.push(group),
        }
    }
    groups
}

/// What a product of tensors writes.
pub(super) fn result(op: &Op) -> Option<&View> {
    match op {
        Op::MatMul { out, .. } => Some(out),
        Op::Conv(conv) => Some(&conv.out),
        _ => None,
    }
}

/// Whether a group does something with each element of a product's result, and nothing with its operands.
fn follows(plan: &Plan, product: &Group, group: &Group) -> bool {
    let op = &plan.steps[product.steps.start].op;
    let Some(out) = result(op).filter(|_| product.steps.len() == 1) else { return false };
    let steps = &plan.steps[group.steps.clone()];
    let dense = |view: &View| view.offset == 0 && view.is_contiguous();
    let fits = |step: &Step| {
        let of_result = |view: &&View| view.buffer == out.buffer;
        let reads = step.op.reads();
        let over = plan::elementwise(&step.op).is_some_and(|o| o.elements() == out.elements());
        let places = matches!(step.op, Op::Pad { .. });
        over && reads.iter().filter(|view| of_result(view)).all(|view| dense(view) && !places)
            && step.op.writes().iter().all(|view| {
                !of_result(view) && op.reads().iter().all(|read| read.buffer != view.buffer)
            })
    };
    let reads_it = |step: &Step| step.op.reads().iter().any(|view| view.buffer == out.buffer);
    group.reduce.is_none()
        && group.is_kernel(plan)
        && dense(out)
        && steps.iter().any(reads_it)
        && steps.iter().all(fits)
}

/// The buffer that a product's result may take the place of until what follows is done: the last that is written, where
/// nobody else wants the result.
pub(super) fn place<'a>(plan: &'a Plan, group: &Group) -> Option<&'a View> {
    let out = result(&plan.steps[group.steps.start].op)?;
    let [last] = plan.steps[group.steps.end - 1].op.writes()[..] else { return None };
    let mut others = plan.steps.iter().enumerate().filter(|(at, _)| !group.steps.contains(at));
    let inner = plan.buffer(out.buffer).class == Class::Scratch
        && others.all(|(_, step)| step.op.reads().iter().all(|view| view.buffer != out.buffer));
    let steps = &plan.steps[group.steps.clone()];
    let unread = |step: &Step| step.op.reads().iter().all(|view| view.buffer != last.buffer);
    let plain = plan.buffer(last.buffer).dtype == DType::F32
        && last.is_contiguous()
        && steps.iter().all(unread);
    (group.steps.len() > 1 && inner && plain).then_some(last)
}
