//! Matrix products and convolutions of tensors, tile by tile: see `simd::dense` for packed operands.
//!
//! Rows are packed before the product: weights at upload, others by a kernel call. Columns that are not weights are
//! packed by the thread that multiplies them, a chunk at a time; windows are packed by `simd::windows`. Epilogues
//! are applied while results are in cache.

use std::ops::Range;

use super::conv_shape::axes;
use super::epilogue::Epilogue;
use super::group::BLOCK;
use super::pool::Worker;
use plan::Conv;
use simd::Isa;
use simd::dense::{
    self, COLUMNS, ColumnLayout, Destination, Lines, Onto, Operands, SPAN, TileEpilogue,
};
use simd::vector::LANES;
use simd::windows::{self, Image, pack_windows};

const _: () = assert!(COLUMNS <= BLOCK, "what follows a product takes a block at a time");

/// Spans of columns that are packed at a time: these fit into the second-level cache while rows stream through it.
const SPANS: usize = 2;

/// Scratch values of a thread for packed columns.
pub(super) const TILE_SCRATCH: usize = SPANS * SPAN * COLUMNS;

/// Scratch values of a thread for a convolution's columns.
pub(super) fn scratch(conv: &Conv) -> usize {
    let [rows, columns] = axes(conv, &[0; 4]);
    TILE_SCRATCH + windows::scratch(&rows, &columns)
}

/// Source of the columns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Columns {
    /// Packed as a [`PackedOperand`](super::packed_operand::PackedOperand).
    Packed(*const f32),
    Lines(Lines),
    Windows(Image),
}

/// Axes of matrix pairs: extent, distance in the packed rows, and distance in the columns.
pub(super) type Pairs = Vec<(usize, usize, usize)>;

/// Rows `[m, k]` times columns `[k, n]`, for several pairs of matrices.
pub(super) struct MatMul {
    pub(super) rows: *const f32,
    /// For unpacked rows, the distance between them.
    pub(super) apart: Option<usize>,
    pub(super) columns: Columns,
    pub(super) pairs: Pairs,
    /// `[m, n, k]`
    pub(super) shape: [usize; 3],
    /// One value per row of this number of pairs.
    pub(super) bias: Option<(*const f32, usize)>,
    pub(super) out: *mut f32,
    pub(super) epilogue: Epilogue,
}

impl MatMul {
    /// Computes this thread's share. Scratch contains packed columns, the lines under windows, and the registers of the
    /// epilogue.
    ///
    /// # Safety
    ///
    /// The addresses are valid, all threads are here, and no other code accesses what it writes.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        let m = self.shape[0];
        let lines = match &self.columns {
            Columns::Windows(image) => windows::scratch(&image.rows, &image.columns),
            Columns::Packed(_) | Columns::Lines(_) => 0,
        };
        // SAFETY: the caller's contract.
        let registers = unsafe { scratch.add(TILE_SCRATCH + lines) };
        if let Epilogue::Kernel(kernel) = &self.epilogue {
            // SAFETY: as above.
            unsafe { kernel.begin(registers) };
        }
        let count = self.count();
        let chunks = self.chunks(count, w.threads());
        // Rows are divided if there are too few column chunks for all threads. Each part packs its columns again.
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

    /// Number of matrix pairs.
    pub(super) fn count(&self) -> usize {
        self.pairs.iter().map(|(n, ..)| n).product()
    }

    /// Multiplies some row tiles of a pair with all columns, which are packed, and applies the epilogue.
    ///
    /// # Safety
    ///
    /// As for [`MatMul::run`], and no other thread computes these rows.
    pub(super) unsafe fn rows(
        &self,
        isa: Isa,
        pair: usize,
        row_tiles: Range<usize>,
        registers: *mut f32,
    ) {
        // SAFETY: the caller's contract; rows that are packed already are not packed into scratch.
        unsafe {
            if let Epilogue::Kernel(kernel) = &self.epilogue {
                kernel.begin(registers);
            }
            let chunks = self.chunks(1, 1);
            for chunk in 0..chunks.count {
                let (columns, scratch) = (chunks.columns(chunk), (registers, registers));
                self.item(isa, pair, row_tiles.clone(), columns, scratch);
            }
        }
    }

    /// The division of columns: as they were packed, or evenly among threads.
    fn chunks(&self, pairs: usize, threads: usize) -> ColumnChunks {
        let n = self.shape[1];
        let (count, vectors) = (n.div_ceil(COLUMNS), n.div_ceil(LANES));
        let packed = matches!(self.columns, Columns::Packed(_));
        let items = pairs * count;
        let divided = !packed && threads > 1 && items < 4 * threads && vectors >= 2 * threads;
        let count = match items.next_multiple_of(threads) / pairs.max(1) {
            more if divided => more.clamp(count, vectors),
            _ => count,
        };
        ColumnChunks { n, count, packed }
    }

    /// Multiplies some row tiles with at most [`COLUMNS`] columns of a pair, and applies the epilogue.
    ///
    /// # Safety
    ///
    /// As for [`MatMul::run`].
    unsafe fn item(
        &self,
        isa: Isa,
        pair: usize,
        row_tiles: Range<usize>,
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
        let most = TILE_SCRATCH / columns.next_multiple_of(LANES) / SPAN * SPAN;
        let rows = isa.tile().rows(m);
        // A sum without steps has one empty part.
        for begin in (0..k.max(1)).step_by(most) {
            let end = k.min(begin + most);
            // SAFETY: the caller's contract: all that is touched is of these rows and columns.
            unsafe {
                let (of, over) = ([column, columns], [begin, end - begin]);
                let (at, layout) = self.column_tiles(isa, of_columns, of, over, scratch);
                let bias = self.bias.map(|(bias, pairs)| bias.add(pair % pairs * m));
                let out = self.out.add(pair * m * n + column);
                // A row tile stays in the first-level cache; results are written in memory order.
                for (row, count) in rows.parts(row_tiles.clone()) {
                    let first = match self.apart {
                        None => row * k + begin * count,
                        Some(apart) => row * apart + begin,
                    };
                    let operands = Operands {
                        rows: self.rows.add(of_rows + first),
                        apart: self.apart,
                        count,
                        columns: at,
                        layout,
                        steps: end - begin,
                    };
                    let onto = match bias {
                        _ if begin > 0 => Onto::Itself,
                        Some(bias) => Onto::Rows(bias.add(row)),
                        None => Onto::Nothing,
                    };
                    let finish = match self.epilogue {
                        Epilogue::Tile(finish) if end == k => finish.at(pair * m + row, column),
                        _ => TileEpilogue::default(),
                    };
                    let to = Destination { out: out.add(row * n), stride: n, columns };
                    dense::product(isa, operands, onto, finish, to);
                    if let Epilogue::Kernel(kernel) = &self.epilogue
                        && end == k
                    {
                        for row in row..row + count {
                            kernel.piece(isa, registers, (pair * m + row) * n + column, columns);
                        }
                    }
                }
            }
        }
    }

    /// Address and layout of some columns over some steps; packs them to `scratch` if necessary.
    ///
    /// # Safety
    ///
    /// The columns are readable, and the scratch has space for them.
    unsafe fn column_tiles(
        &self,
        isa: Isa,
        of_columns: usize,
        [column, columns]: [usize; 2],
        [start, steps]: [usize; 2],
        scratch: *mut f32,
    ) -> (*const f32, ColumnLayout) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.columns {
                Columns::Packed(at) => {
                    let steps = self.shape[2];
                    return (
                        at.add(of_columns + column * steps),
                        ColumnLayout::Tiles { steps, before: start },
                    );
                }
                Columns::Lines(Lines { at, line, step }) => {
                    let at = at.add(of_columns + column * line + start * step);
                    dense::pack_columns(isa, Lines { at, line, step }, columns, steps, scratch);
                }
                Columns::Windows(image) => {
                    let image = Image { at: image.at.add(of_columns), ..image };
                    let (of, over) = ([column, columns], [start, steps]);
                    let lines = scratch.add(TILE_SCRATCH);
                    pack_windows(isa, &image, of, over, lines, scratch);
                }
            }
        }
        (scratch, ColumnLayout::Tiles { steps, before: 0 })
    }
}

/// Columns in chunks of at most [`COLUMNS`].
#[derive(Clone, Copy)]
struct ColumnChunks {
    n: usize,
    count: usize,
    /// True if the chunks are those that the columns were packed in.
    packed: bool,
}

impl ColumnChunks {
    /// First column of a chunk, and number of columns.
    fn columns(self, chunk: usize) -> [usize; 2] {
        let before = |chunk: usize| match self.packed {
            true => chunk * COLUMNS,
            false => self.n.div_ceil(LANES) * chunk / self.count * LANES,
        };
        let first = before(chunk);
        [first, before(chunk + 1).min(self.n) - first]
    }
}
