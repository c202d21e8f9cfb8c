//! Packing of convolution windows as the columns of a matrix product (im2col).
//!
//! Neighbouring windows share most of their elements. The kernel first copies the image lines under some windows to
//! scratch, surrounded by the image's zero padding, with elements that are a stride apart next to each other. Each
//! step of a packed column tile is then a copy.

use super::dense::{COLUMNS, Tile, strided_copy_in};
use super::isa::dispatch;
use super::vector::{LANES, Simd, load_first};

/// Windows along one axis of an image.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub extent: usize,
    /// Distance between neighbouring elements in memory.
    pub step: usize,
    /// Zeroes before the first element.
    pub before: usize,
    pub stride: usize,
    pub dilation: usize,
    /// Elements of a window.
    pub size: usize,
    /// Number of windows.
    pub count: usize,
}

/// Channels of an image whose windows are columns. Along the sum, a window's elements are ordered by channel.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    pub at: *const f32,
    /// Distance between channels in memory.
    pub channel: usize,
    pub rows: Axis,
    pub columns: Axis,
}

dispatch! {
    /// Writes register tiles of columns, which are windows of an image: at most [`COLUMNS`] from the first on, over
    /// a range of steps. The tiles are those of the instruction set, one after another; lanes without a window are
    /// zero.
    ///
    /// # Safety
    ///
    /// The image is as described, the columns are some of its windows, the steps some of their elements; `lines` is
    /// valid for [`scratch`] values, `out` for one row per step, with the columns rounded up to whole vectors.
    pub unsafe fn pack_windows(x: &Image, columns: [usize; 2], steps: [usize; 2], lines: *mut f32, out: *mut f32) = pack_in;
}

/// Values of scratch that [`pack_windows`] needs.
#[must_use]
pub const fn scratch(rows: &Axis, columns: &Axis) -> usize {
    if rows.count == 0 || columns.count == 0 {
        return 0;
    }
    let high = COLUMNS.div_ceil(columns.count) + 1;
    let high = if high < rows.count { high } else { rows.count };
    rows.reach(high) * columns.part(columns.count) * columns.stride + COLUMNS + 2 * LANES
}

impl Axis {
    /// Elements that `count` windows cover.
    const fn reach(&self, count: usize) -> usize {
        (count - 1) * self.stride + (self.size - 1) * self.dilation + 1
    }

    /// Number of these per phase of the stride.
    const fn part(&self, count: usize) -> usize {
        self.reach(count).div_ceil(self.stride)
    }

    /// True if a window has an element at this offset: an element of the first window, shifted by a multiple of the
    /// stride.
    fn is_used(&self, at: usize) -> bool {
        (0..self.size).any(|element| element * self.dilation % self.stride == at % self.stride)
    }
}

#[inline(always)]
unsafe fn pack_in<S: Simd>(
    x: &Image,
    [first, count]: [usize; 2],
    [step, steps]: [usize; 2],
    lines: *mut f32,
    out: *mut f32,
) {
    let (rows, columns, stride) = (&x.rows, &x.columns, x.columns.stride);
    let [top, bottom] = [first, first + count - 1].map(|column| column / columns.count);
    let high = bottom - top + 1;
    let left = first % columns.count;
    // Windows in several lines use whole lines.
    let (from, wide) = if high == 1 { (left, count) } else { (0, columns.count) };
    let (part, reach) = (columns.part(wide), rows.reach(high));
    let line = part * stride;
    // SAFETY: the caller's contract.
    let row = unsafe {
        lines.write_bytes(0, reach * line);
        lines.add(reach * line + LANES)
    };
    let mut places = [(0, 0); COLUMNS / LANES];
    for (before, vectors) in Tile::of::<S>().column_tiles(count) {
        for v in 0..vectors {
            places[before + v] = ((before * steps + v) * LANES, vectors * LANES);
        }
    }
    let places = &places[..count.div_ceil(LANES)];
    let taps = rows.size * columns.size;
    let mut done = 0;
    while done < steps {
        let (channel, tap) = ((step + done) / taps, (step + done) % taps);
        let plane = x.at.wrapping_add(channel * x.channel);
        for at in (0..reach).filter(|at| rows.is_used(*at)) {
            let y = (top * rows.stride + at).wrapping_sub(rows.before);
            if y >= rows.extent {
                continue;
            }
            for phase in (0..stride).filter(|phase| columns.is_used(*phase)) {
                // Elements before the line, and up to its end.
                let skip = from * stride + phase;
                let before = columns.before.saturating_sub(skip).div_ceil(stride).min(part);
                let end = (columns.before + columns.extent).saturating_sub(skip);
                let end = end.div_ceil(stride).clamp(before, part);
                if before == end {
                    continue;
                }
                let place = before * stride + skip - columns.before;
                // SAFETY: the caller's contract: only elements inside the image are read.
                unsafe {
                    let x = plane.add(y * rows.step + place * columns.step);
                    let to = lines.add(at * line + phase * part + before);
                    strided_copy_in::<S>(x, stride * columns.step, to, end - before);
                }
            }
        }
        for tap in tap..taps.min(tap + steps - done) {
            let (down, along) = (tap / columns.size, tap % columns.size * columns.dilation);
            let at = down * rows.dilation * line + along % stride * part + along / stride;
            // SAFETY: the caller's contract; the lines have all elements of the windows, and room for a vector behind them.
            unsafe {
                let mut x = lines.add(at).cast_const();
                if high > 1 {
                    let (mut place, mut skip) = (0, left);
                    for i in 0..high {
                        let x = x.add(i * rows.stride * line + skip);
                        let n = (columns.count - skip).min(count - place);
                        for i in (0..n).step_by(LANES) {
                            S::store(row.add(place + i), S::load(x.add(i)));
                        }
                        (place, skip) = (place + n, 0);
                    }
                    x = row;
                }
                for (v, (place, width)) in places.iter().enumerate() {
                    let value = load_first::<S>(x.add(v * LANES), count - v * LANES);
                    S::store(out.add(place + done * width), value);
                }
            }
            done += 1;
        }
    }
}
