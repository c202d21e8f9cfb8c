//! Depthwise convolutions, one plane at a time. A thread copies the plane to its scratch with zero padding, and
//! reorders each line so that the elements that one tap reads are adjacent.

use super::epilogue::Epilogue;
use super::group::BLOCK;
use super::pool::Worker;
use plan::Conv;
use simd::Isa;
use simd::dense;
use simd::depthwise::{BEHIND, Tap, line};
use simd::vector::LANES;
use simd::windows::Axis;

pub(super) struct Depthwise {
    pub(super) x: *const f32,
    /// Number of images and distance between them; number of channels and distance between them.
    pub(super) images: (usize, usize),
    pub(super) channels: (usize, usize),
    pub(super) rows: Axis,
    pub(super) columns: Axis,
    /// `[channels][rows][columns]`
    pub(super) weight: *const f32,
    pub(super) bias: Option<*const f32>,
    pub(super) out: *mut f32,
    pub(super) epilogue: Epilogue,
}

/// Number of elements that all windows cover along an axis.
const fn reach(axis: &Axis) -> usize {
    (axis.count - 1) * axis.stride + (axis.size - 1) * axis.dilation + 1
}

/// Number of elements per phase of the stride.
const fn part(columns: &Axis) -> usize {
    reach(columns).div_ceil(columns.stride)
}

/// Scratch values for a padded plane and its results, for any stride of the convolution's windows.
pub(super) fn scratch(conv: &Conv) -> usize {
    let (x, sizes, w) = (&conv.x.shape, &conv.weight.shape, &conv.windows);
    // Upper bound of the total length of a line's phases.
    let lines = (2..x.len()).map(|axis| {
        let [before, after] = w.pads[axis - 2];
        x[axis] + before + after + w.stride[axis - 2] + sizes[axis]
    });
    2 * (lines.product::<usize>() + BEHIND)
}

impl Depthwise {
    /// Computes this thread's share. Scratch contains a plane, its results, and the registers of the epilogue.
    ///
    /// # Safety
    ///
    /// The addresses are valid, all threads are here, and no other code accesses what it writes.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        let (rows, columns) = (&self.rows, &self.columns);
        let (part, stride) = (part(columns), columns.stride);
        let wide = part * stride;
        let plane = reach(rows) * wide + BEHIND;
        let results = rows.count * columns.count;
        // SAFETY: the caller's contract.
        let (whole, registers) = unsafe { (scratch.add(plane), scratch.add(2 * plane)) };
        if let Epilogue::Kernel(kernel) = &self.epilogue {
            // SAFETY: as above.
            unsafe { kernel.begin(registers) };
        }
        let (function, then) = self.epilogue.parts();
        // SAFETY: as above. The zero padding of every plane has the same place, so it is cleared once.
        unsafe { scratch.write_bytes(0, plane) };
        let mut taps = Vec::with_capacity(rows.size * columns.size);
        while let Some(items) = w.claim(self.images.0 * self.channels.0, 1) {
            let (item, channel) = (items.start, items.start % self.channels.0);
            // SAFETY: the caller's contract: a plane is one thread's.
            unsafe {
                let image = item / self.channels.0 * self.images.1;
                self.load_plane(isa, self.x.add(image + channel * self.channels.1), scratch);
                let weights = self.weight.add(channel * rows.size * columns.size);
                taps.clear();
                for tap in 0..rows.size * columns.size {
                    let down = tap / columns.size * rows.dilation;
                    let along = tap % columns.size * columns.dilation;
                    let at = down * wide + along % stride * part + along / stride;
                    taps.push(Tap { at, weight: *weights.add(tap) });
                }
                let bias = self.bias.map_or(0.0, |bias| *bias.add(channel));
                let out = self.out.add(item * results);
                if columns.count < LANES {
                    // Short lines are computed as one long line, including the padding between them.
                    let n = (rows.count - 1) * rows.stride * wide + columns.count;
                    line(isa, &taps, bias, function, scratch, whole, n);
                    let from = (whole.cast_const(), rows.stride * wide);
                    let to = (out, columns.count);
                    dense::strided_copy_lines(isa, from, 1, to, columns.count, rows.count);
                } else {
                    for row in 0..rows.count {
                        let x = scratch.add(row * rows.stride * wide);
                        let out = out.add(row * columns.count);
                        line(isa, &taps, bias, function, x, out, columns.count);
                    }
                }
                if let Some(finish) = then {
                    dense::finish(isa, finish.at(0, item * results), out, results);
                }
                if let Epilogue::Kernel(kernel) = &self.epilogue {
                    for start in (0..results).step_by(BLOCK) {
                        let n = BLOCK.min(results - start);
                        kernel.piece(isa, registers, item * results + start, n);
                    }
                }
            }
        }
    }

    /// Copies a plane, each line split by phase of the stride. The zero padding around it is already in place.
    ///
    /// # Safety
    ///
    /// The plane is readable, and the scratch has space for it.
    unsafe fn load_plane(&self, isa: Isa, x: *const f32, to: *mut f32) {
        let (rows, columns) = (&self.rows, &self.columns);
        let (part, stride) = (part(columns), columns.stride);
        let wide = part * stride;
        let before = rows.before.min(reach(rows));
        let lines = reach(rows).min(rows.before + rows.extent) - before;
        for phase in 0..stride {
            // Elements of this phase before the line, and up to its end.
            let skip = columns.before.saturating_sub(phase).div_ceil(stride).min(part);
            let end = (columns.before + columns.extent).saturating_sub(phase);
            let end = end.div_ceil(stride).clamp(skip, part);
            if skip == end {
                continue;
            }
            let first = (skip * stride + phase - columns.before) * columns.step;
            // SAFETY: the caller's contract: only elements inside the plane are read.
            unsafe {
                let to = (to.add(before * wide + phase * part + skip), wide);
                let from = (x.add(first), rows.step);
                dense::strided_copy_lines(isa, from, stride * columns.step, to, end - skip, lines);
            }
        }
    }
}
