//! Winograd convolutions with `simd::winograd`, one block of tiles at a time, so that the block's values, sums and
//! results stay in a core's cache.

use std::ops::Range;

use super::conv_shape::is_winograd;
use super::epilogue::Epilogue;
use super::group::BLOCK;
use super::pool::Worker;
use plan::Conv;
use simd::Isa;
use simd::dense::{self, COLUMNS, ColumnLayout, Destination, Onto, Operands, TileEpilogue};
use simd::vector::LANES;
use simd::windows::Axis;
use simd::winograd::{TAPS, results, tiles};

/// Bytes of a block's values and sums: these fit into a core's caches while weights stream through.
const BYTES: usize = 3 << 19;

pub(super) struct Winograd {
    pub(super) x: *const f32,
    /// Number of images and distance between them; number of channels and distance between them.
    pub(super) images: (usize, usize),
    pub(super) channels: (usize, usize),
    pub(super) rows: Axis,
    pub(super) columns: Axis,
    /// Packed as [`Side::Winograd`](super::packed_operand::Side::Winograd).
    pub(super) weights: *const f32,
    /// Number of output channels.
    pub(super) outputs: usize,
    pub(super) bias: Option<*const f32>,
    pub(super) out: *mut f32,
    pub(super) epilogue: Epilogue,
}

/// Division of an image into blocks of tiles: whole tile lines, if these are short enough.
#[derive(Clone, Copy)]
struct Blocks {
    /// Tiles of a line, and number of lines.
    wide: usize,
    high: usize,
    /// Tiles of a line in a block, and number of lines in a block.
    columns: usize,
    lines: usize,
}

impl Blocks {
    fn of([high, wide]: [usize; 2], inputs: usize, outputs: usize) -> Self {
        let (high, wide) = (high.div_ceil(2), wide.div_ceil(2));
        let most = BYTES / (4 * TAPS * (inputs + outputs)) / LANES * LANES;
        let most = most.clamp(LANES, COLUMNS);
        let columns = wide.min(most);
        let lines = if columns < wide { 1 } else { (most / wide).clamp(1, high) };
        Self { wide, high, columns, lines }
    }

    /// Smaller blocks, if all threads then get the same number of them, and they still fill vectors.
    fn shared(self, images: usize, threads: usize) -> Self {
        let across = images * self.wide.div_ceil(self.columns);
        let items = across * self.high.div_ceil(self.lines);
        let down = items.next_multiple_of(threads) / across.max(1);
        let lines = self.high.div_ceil(down.clamp(1, self.high.max(1)));
        let divided = items < 4 * threads && lines * self.columns >= LANES && lines > 0;
        if divided { Self { lines, ..self } } else { self }
    }

    const fn count(&self) -> usize {
        self.wide.div_ceil(self.columns) * self.high.div_ceil(self.lines)
    }

    /// Values of a channel's tap: one vector more than a block has, because tiles are written by whole vectors.
    const fn apart(&self) -> usize {
        (self.columns * self.lines).next_multiple_of(LANES) + LANES
    }

    /// Values of every second element of a line, which are read by whole vectors, and one more vector.
    const fn part(&self) -> usize {
        self.columns.next_multiple_of(LANES) + LANES
    }

    /// Values of the image lines under a block.
    const fn under(&self) -> usize {
        (2 * self.lines + 2) * 2 * self.part()
    }
}

/// Scratch values of a thread.
pub(super) fn scratch(conv: &Conv) -> usize {
    let out = &conv.out.shape;
    if !is_winograd(conv) {
        return 0;
    }
    let (inputs, outputs) = (conv.weight.shape[1], conv.weight.shape[0]);
    let blocks = Blocks::of([out[2], out[3]], inputs, outputs);
    TAPS * (inputs + outputs) * blocks.apart() + blocks.under() + 4 * blocks.apart()
}

impl Winograd {
    /// Computes this thread's share. Scratch contains [`scratch`] values, and the registers of the epilogue.
    ///
    /// # Safety
    ///
    /// The addresses are valid, all threads are here, and no other code accesses what it writes.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        let (inputs, rows) = (self.channels.0, isa.tile().rows(self.outputs));
        let of = [self.rows.count, self.columns.count];
        let blocks = Blocks::of(of, inputs, self.outputs).shared(self.images.0, w.threads());
        let apart = blocks.apart();
        // SAFETY: the caller's contract: the scratch has space for these arrays.
        let (values, sums, lines, results, registers) = unsafe {
            let sums = scratch.add(TAPS * inputs * apart);
            let lines = sums.add(TAPS * self.outputs * apart);
            let results = lines.add(blocks.under());
            (scratch, sums, lines, results, results.add(4 * apart))
        };
        if let Epilogue::Kernel(kernel) = &self.epilogue {
            // SAFETY: as above.
            unsafe { kernel.begin(registers) };
        }
        let count = self.images.0 * blocks.count();
        // Output channels are divided if there are fewer blocks than threads: each thread transforms the block's
        // tiles again.
        let parts = w.threads().div_ceil(count.max(1));
        let part = rows.count.div_ceil(parts);
        let parts = rows.count.div_ceil(part);
        while let Some(items) = w.claim(count * parts, 1) {
            let (item, first) = (items.start / parts, items.start % parts * part);
            let last = rows.count.min(first + part);
            let (image, block) = (item / blocks.count(), item % blocks.count());
            let across = blocks.wide.div_ceil(blocks.columns);
            let (top, left) = (block / across * blocks.lines, block % across * blocks.columns);
            let of = TileBlock {
                image,
                top,
                left,
                lines: blocks.lines.min(blocks.high - top),
                columns: blocks.columns.min(blocks.wide - left),
                row_tiles: first..last,
                first: rows.before(first),
                count: rows.before(last) - rows.before(first),
                apart,
                part: blocks.part(),
            };
            // SAFETY: the caller's contract: an item is one thread's.
            unsafe {
                self.transform_tiles(isa, &of, lines, values);
                self.multiply(isa, &of, values, sums);
                self.finish(isa, &of, sums, results, registers);
            }
        }
    }

    /// Transforms a block's tiles: `[taps][channels][tiles]`.
    ///
    /// # Safety
    ///
    /// As for [`Winograd::run`].
    unsafe fn transform_tiles(&self, isa: Isa, of: &TileBlock, lines: *mut f32, values: *mut f32) {
        let (inputs, stride) = self.channels;
        let (rows, columns) = (&self.rows, &self.columns);
        let wide = 2 * of.part;
        for channel in 0..inputs {
            // SAFETY: the caller's contract; only elements inside the image are read.
            unsafe {
                let x = self.x.add(of.image * self.images.1 + channel * stride);
                for line in 0..2 * of.lines + 2 {
                    let y = (2 * of.top + line).wrapping_sub(rows.before);
                    let to = lines.add(line * wide);
                    if y >= rows.extent {
                        to.write_bytes(0, wide);
                        continue;
                    }
                    let from = x.add(y * rows.step);
                    for odd in 0..2 {
                        // Elements `2 i + odd + skip - before` of the line, for one more `i` than tiles.
                        let (to, n) = (to.add(odd * of.part), of.columns + 1);
                        let at = 2 * of.left + odd;
                        let before = columns.before.saturating_sub(at).div_ceil(2).min(n);
                        let end = (columns.before + columns.extent).saturating_sub(at).div_ceil(2);
                        let end = end.clamp(before, n);
                        to.write_bytes(0, before);
                        to.add(end).write_bytes(0, of.part - end);
                        if before < end {
                            let first = 2 * before + at - columns.before;
                            let from = from.add(first * columns.step);
                            dense::strided_copy(
                                isa,
                                from,
                                2 * columns.step,
                                to.add(before),
                                end - before,
                            );
                        }
                    }
                }
                for line in 0..of.lines {
                    let under: [*const f32; 4] =
                        std::array::from_fn(|i| lines.add((2 * line + i) * wide).cast_const());
                    let out = values.add(channel * of.apart + line * of.columns);
                    tiles(isa, under, of.part, of.columns, out, inputs * of.apart);
                }
            }
        }
    }

    /// Sums over the channels: `[taps][results][tiles]`.
    ///
    /// # Safety
    ///
    /// As for [`Winograd::run`].
    unsafe fn multiply(&self, isa: Isa, of: &TileBlock, values: *const f32, sums: *mut f32) {
        let (inputs, rows) = (self.channels.0, isa.tile().rows(self.outputs));
        let columns = (of.lines * of.columns).next_multiple_of(LANES);
        for tap in 0..TAPS {
            // SAFETY: the caller's contract.
            unsafe {
                let weights = self.weights.add(tap * self.outputs * inputs);
                let values = values.add(tap * inputs * of.apart);
                let sums = sums.add(tap * of.count * of.apart);
                for (row, count) in rows.parts(of.row_tiles.clone()) {
                    let operands = Operands {
                        rows: weights.add(row * inputs),
                        apart: None,
                        count,
                        columns: values,
                        layout: ColumnLayout::Steps(of.apart),
                        steps: inputs,
                    };
                    let out = sums.add((row - of.first) * of.apart);
                    let to = Destination { out, stride: of.apart, columns };
                    dense::product(isa, operands, Onto::Nothing, TileEpilogue::default(), to);
                }
            }
        }
    }

    /// Transforms the sums to results, and applies the epilogue.
    ///
    /// # Safety
    ///
    /// As for [`Winograd::run`].
    unsafe fn finish(
        &self,
        isa: Isa,
        of: &TileBlock,
        sums: *const f32,
        pair: *mut f32,
        registers: *mut f32,
    ) {
        let (high, wide) = (self.rows.count, self.columns.count);
        let n = of.lines * of.columns;
        let pair = [pair, pair.wrapping_add(2 * of.apart)];
        let (function, then) = self.epilogue.parts();
        let (top, left) = (2 * of.top, 2 * of.left);
        let (lines, columns) = ((2 * of.lines).min(high - top), (2 * of.columns).min(wide - left));
        for output in 0..of.count {
            let plane = (of.image * self.outputs + of.first + output) * high * wide;
            // SAFETY: the caller's contract: these results are this thread's.
            unsafe {
                let bias = self.bias.map_or(0.0, |bias| *bias.add(of.first + output));
                let sums = sums.add(output * of.apart);
                results(isa, sums, of.count * of.apart, n, bias, function, pair);
                for line in 0..lines {
                    let from = pair[line % 2].add(line / 2 * 2 * of.columns);
                    let at = plane + (top + line) * wide + left;
                    let to = self.out.add(at);
                    to.copy_from_nonoverlapping(from, columns);
                    if let Some(finish) = then {
                        dense::finish(isa, finish.at(0, at), to, columns);
                    }
                }
                let Epilogue::Kernel(kernel) = &self.epilogue else { continue };
                // Whole lines are contiguous.
                let (pieces, each) =
                    if columns == wide { (1, lines * wide) } else { (lines, columns) };
                for piece in 0..pieces {
                    let start = plane + (top + piece) * wide + left;
                    for at in (0..each).step_by(BLOCK) {
                        kernel.piece(isa, registers, start + at, BLOCK.min(each - at));
                    }
                }
            }
        }
    }
}

/// A block of tiles, and the output channels to compute.
struct TileBlock {
    image: usize,
    top: usize,
    left: usize,
    lines: usize,
    columns: usize,
    row_tiles: Range<usize>,
    first: usize,
    count: usize,
    apart: usize,
    part: usize,
}
