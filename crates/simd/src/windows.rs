//! Windows of an image as columns of a product.
//!
//! Windows next to each other share most of their elements. The lines under some of them are brought into scratch first, between
//! the zeroes around the image, elements that are a stride apart next to each other: then a step of a panel is a copy.

use super::dense::{COLUMNS, Tile, every_in};
use super::isa::dispatch;
use super::vector::{LANES, Simd, load_first};

/// How windows lie along an axis of an image.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub extent: usize,
    /// Elements of memory from one to the next.
    pub step: usize,
    /// Zeroes before the first.
    pub before: usize,
    pub stride: usize,
    pub dilation: usize,
    /// Elements of a window.
    pub size: usize,
    /// How many windows there are.
    pub count: usize,
}

/// Channels of an image, whose windows are columns: along the sum go a window's elements of one channel after the other.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    pub at: *const f32,
    /// Elements of memory from channel to channel.
    pub channel: usize,
    pub rows: Axis,
    pub columns: Axis,
}

dispatch! {
    /// Writes panels of columns, which are windows of an image: at most [`COLUMNS`] from the first on, over so many steps. The panels are
    /// those of the tile, each behind the one before; lanes without a window are zeroes.
    ///
    /// # Safety
    ///
    /// The image is as it says, the columns are some of its windows, the steps some of their elements; `lines` is valid for
    /// [`scratch`] values, `out` for as many rows as there are steps, of the columns rounded up to whole vectors.
    pub unsafe fn pack_windows(x: &Image, columns: [usize; 2], steps: [usize; 2], lines: *mut f32, out: *mut f32) = pack_in;
}

/// Values of scratch that [`pack_windows`] takes.
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
    /// Elements that so many windows reach over.
    const fn reach(&self, count: usize) -> usize {
        (count - 1) * self.stride + (self.size - 1) * self.dilation + 1
    }

    /// Those of them that are a stride apart.
    const fn part(&self, count: usize) -> usize {
        self.reach(count).div_ceil(self.stride)
    }

    /// Whether a window may have an element there, of those that they reach over: so many strides behind one of the first's.
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
    // Of several lines all is brought.
    let (from, wide) = if high == 1 { (left, count) } else { (0, columns.count) };
    let (part, reach) = (columns.part(wide), rows.reach(high));
    let line = part * stride;
    // SAFETY: the caller's contract.
    let row = unsafe {
        lines.write_bytes(0, reach * line);
        lines.add(reach * line + LANES)
    };
    let mut places = [(0, 0); COLUMNS / LANES];
    for (before, vectors) in Tile::of::<S>().panels(count) {
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
                // SAFETY: the caller's contract: what is read lies inside of the image.
                unsafe {
                    let x = plane.add(y * rows.step + place * columns.step);
                    let to = lines.add(at * line + phase * part + before);
                    every_in::<S>(x, stride * columns.step, to, end - before);
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
