//! Products of matrices and convolutions, tile by tile: see `simd::dense` for how operands lie in panels.
//!
//! Rows are packed before the product: weights when they are uploaded, others by a stage of their own. Columns that are no
//! weights are packed a chunk at a time by whoever multiplies it, windows as `simd::windows` finds them. What follows element
//! by element is done to results while they are in the cache.

use std::ops::Range;

use super::conv_shape::axes;
use super::epilogue::Epilogue;
use super::group::BLOCK;
use super::pool::Worker;
use plan::Conv;
use simd::Isa;
use simd::dense::{self, COLUMNS, Finish, Lie, Lines, Onto, Operands, Place, SPAN};
use simd::vector::LANES;
use simd::windows::{self, Image, pack_windows};

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
    pub(super) after: Epilogue,
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
        if let Epilogue::Kernel(after) = &self.after {
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
            if let Epilogue::Kernel(after) = &self.after {
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
                        Epilogue::Finish(finish) if end == k => finish.at(pair * m + row, column),
                        _ => Finish::default(),
                    };
                    let to = Place { out: out.add(row * n), stride: n, columns };
                    dense::product(isa, operands, onto, finish, to);
                    if let Epilogue::Kernel(after) = &self.after
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
