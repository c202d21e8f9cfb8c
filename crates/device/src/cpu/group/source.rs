//! Operands of any layout: strides, padding, narrow types and concatenations, read into registers.

use std::ops::Range;

use crate::Result;
use crate::axes::merged;
use crate::cpu::errors::unsupported;
use crate::cpu::width::Width;
use plan::View;
use simd::Isa;
use simd::dense;
use simd::tensor::{self, Narrow};

/// Most axes of a view that is not dense, after merging.
const RANK: usize = 12;

/// Longest last axis whose lines are written several at a time.
const SHORT: usize = 16;

/// Elements of a shape in order, with any strides.
#[derive(Clone, Debug)]
pub(in crate::cpu) struct Source {
    base: *const u8,
    width: Width,
    shape: Vec<usize>,
    strides: Vec<isize>,
    /// Axis with zero padding: elements outside of the range are zero, the first one inside is at `base`.
    inside: Option<(usize, Range<usize>)>,
    /// True if the elements are already in place.
    in_place: bool,
}

impl Source {
    /// Elements with strides from `base` on; contiguous neighbouring axes are merged.
    ///
    /// # Errors
    /// More axes than [`RANK`] are left.
    pub(in crate::cpu) fn new(
        base: *const u8,
        width: Width,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self> {
        let (mut axes, mut steps) = merged(shape, strides);
        if axes.is_empty() {
            (axes, steps) = (vec![1], vec![0]);
        }
        Self { base, width, shape: axes, strides: steps, inside: None, in_place: false }.checked()
    }

    /// Elements of a view, zero-padded to `shape`: they begin `before` places into the axis.
    pub(super) fn padded(
        base: *const u8,
        width: Width,
        x: &View,
        shape: &[usize],
        axis: usize,
        before: usize,
    ) -> Result<Self> {
        // Merges contiguous axes before the padded one, and after it.
        let part = |range: Range<usize>| {
            let (shape, strides) = (&shape[range.clone()], &x.strides[range]);
            Self::new(base, width, shape, strides)
        };
        let (heads, mut tail) = (part(0..axis)?, part(axis + 1..shape.len())?);
        if tail.shape == [1] {
            (tail.shape, tail.strides) = (vec![], vec![]);
        }
        let inside = Some((heads.shape.len(), before..before + x.shape[axis]));
        let shape = [&heads.shape[..], &[shape[axis]], &tail.shape].concat();
        let strides = [&heads.strides[..], &[x.strides[axis]], &tail.strides].concat();
        Self { base, width, shape, strides, inside, in_place: false }.checked()
    }

    fn checked(self) -> Result<Self> {
        if self.shape.len() <= RANK {
            return Ok(self);
        }
        Err(unsupported(format!("a view of {} axes, {RANK} are the most", self.shape.len())))
    }

    /// For a padded source: elements per index of the axis, its extent, and the range inside.
    fn part(&self) -> Option<(usize, usize, Range<usize>)> {
        let (axis, inside) = self.inside.clone()?;
        Some((self.shape[axis + 1..].iter().product(), self.shape[axis], inside))
    }

    /// True if two padded sources do not overlap, so that a concatenation can join them.
    pub(super) fn is_disjoint(&self, other: &Self) -> bool {
        let (Some((inner, extent, own)), Some((i, e, theirs))) = (self.part(), other.part()) else {
            return false;
        };
        let plain = |source: &Self| {
            matches!(source.width, Width::Word | Width::Less(Narrow::Half | Narrow::Brain))
        };
        let apart = own.end <= theirs.start || theirs.end <= own.start;
        (inner, extent) == (i, e) && apart && plain(self) && plain(other)
    }

    /// Checks if the elements are already in place in a concatenation that begins at `out`.
    pub(super) fn check_in_place(&mut self, out: *mut f32) {
        let dense = |axis: usize| {
            let behind = &self.shape[axis + 1..];
            self.shape[axis] == 1
                || self.strides[axis] == behind.iter().product::<usize>().cast_signed()
        };
        let part = self.inside.as_ref().zip(self.part());
        self.in_place = part.is_some_and(|((axis, _), (inner, _, own))| {
            let place = out.wrapping_add(own.start * inner).cast_const().cast();
            self.shape[..*axis].iter().all(|extent| *extent == 1)
                && (*axis..self.shape.len()).all(dense)
                && self.width == Width::Word
                && self.base == place
        });
    }

    /// Number of elements that are already in place.
    pub(super) fn elements_in_place(&self) -> usize {
        self.part().filter(|_| self.in_place).map_or(0, |(inner, _, own)| inner * own.len())
    }

    /// Address of a row of `columns` elements that is repeated for all rows.
    pub(super) fn row(&self, columns: usize) -> Option<*const f32> {
        let row = self.inside.is_none() && self.width == Width::Word;
        let repeats = matches!(self.strides[..], [0, 1]) && self.shape[1] == columns;
        (row && repeats).then_some(self.base.cast())
    }

    /// Address of one value per row of `columns` elements.
    pub(super) fn by_row(&self, columns: usize) -> Option<*const f32> {
        let plain = self.inside.is_none() && self.width == Width::Word;
        let repeats = matches!(self.strides[..], [1, 0]) && self.shape[1] == columns;
        (plain && repeats).then_some(self.base.cast())
    }

    /// True if the elements are contiguous.
    pub(in crate::cpu) fn is_dense(&self) -> bool {
        self.inside.is_none() && self.strides == [1]
    }

    /// Writes `n` values from index `start` on to `out`, widened to 4 bytes; the source is shifted by `shift`
    /// elements.
    ///
    /// # Safety
    ///
    /// The elements are readable, and there is at least one; `out` is valid for `n` values.
    pub(in crate::cpu) unsafe fn fill(
        &self,
        isa: Isa,
        shift: usize,
        start: usize,
        n: usize,
        out: *mut f32,
    ) {
        let last = self.shape.len() - 1;
        let mut index = [0; RANK];
        let mut left = start;
        for axis in (0..=last).rev() {
            index[axis] = left % self.shape[axis];
            left /= self.shape[axis];
        }
        let mut done = 0;
        while done < n {
            if let Some(lines) = self.short_lines(&index[..=last], n - done) {
                // SAFETY: the caller's contract; the lines stay in the last two axes.
                unsafe { self.lines(shift, &index[..=last], lines, out.add(done)) };
                done += lines * self.shape[last];
                index[last - 1] += lines - 1;
                index[last] = self.shape[last];
            }
            let run = (self.shape[last] - index[last]).min(n - done);
            if run > 0 {
                // SAFETY: the caller's contract; the run stays in the last axis.
                unsafe { self.run(isa, shift, &index[..=last], run, out.add(done)) };
            }
            done += run;
            index[last] += run;
            let mut axis = last;
            while axis > 0 && index[axis] == self.shape[axis] {
                index[axis] = 0;
                axis -= 1;
                index[axis] += 1;
            }
        }
    }

    /// Number of whole lines of the last axis among the next `n` elements, if lines are short.
    fn short_lines(&self, index: &[usize], n: usize) -> Option<usize> {
        let [.., line, 0] = index else { return None };
        let [.., lines, length] = self.shape[..] else { return None };
        let plain = self.inside.is_none() && self.width == Width::Word && length <= SHORT;
        Some((lines - line).min(n / length)).filter(|lines| plain && *lines > 1)
    }

    /// Writes whole lines of the last axis.
    ///
    /// # Safety
    ///
    /// As for [`Source::fill`].
    unsafe fn lines(&self, shift: usize, index: &[usize], lines: usize, out: *mut f32) {
        let places = index.iter().zip(&self.strides).map(|(i, stride)| i.cast_signed() * stride);
        let at = shift.cast_signed() + places.sum::<isize>();
        let last = self.strides.len() - 1;
        let (line, step, length) = (self.strides[last - 1], self.strides[last], self.shape[last]);
        // SAFETY: the caller's contract.
        unsafe {
            let base = self.base.cast::<f32>().offset(at);
            if let (2, 0, 1) = (length, step, line) {
                for i in 0..lines {
                    let value = *base.add(i);
                    out.add(2 * i).cast::<[f32; 2]>().write_unaligned([value, value]);
                }
                return;
            }
            for i in 0..lines {
                let base = base.offset(i.cast_signed() * line);
                for j in 0..length {
                    *out.add(i * length + j) = *base.offset(j.cast_signed() * step);
                }
            }
        }
    }

    /// Writes `n` values along the last axis.
    ///
    /// # Safety
    ///
    /// As for [`Source::fill`].
    unsafe fn run(&self, isa: Isa, shift: usize, index: &[usize], n: usize, out: *mut f32) {
        let last = self.shape.len() - 1;
        let mut at = shift.cast_signed();
        let mut from = 0..n;
        for (axis, (&i, &stride)) in index.iter().zip(&self.strides).enumerate() {
            let mut place = i;
            if let Some((_, inside)) = self.inside.as_ref().filter(|(of, _)| *of == axis) {
                if axis == last {
                    let start = inside.start.clamp(i, i + n);
                    from = start - i..inside.end.clamp(start, i + n) - i;
                    place = start.wrapping_sub(inside.start);
                } else if inside.contains(&i) {
                    place = i - inside.start;
                } else {
                    from = 0..0;
                }
            }
            if !from.is_empty() {
                at += place.cast_signed() * stride;
            }
        }
        let (step, count) = (self.strides[last], from.len());
        // SAFETY: the caller's contract: the elements of the range are there.
        unsafe {
            out.write_bytes(0, from.start);
            out.add(from.end).write_bytes(0, n - from.end);
            let out = out.add(from.start);
            let bytes = self.width.bytes().cast_signed();
            let base = self.base.offset(if count == 0 { 0 } else { at * bytes });
            match (self.width, step) {
                (Width::Word, 1) => out.copy_from_nonoverlapping(base.cast(), count),
                (Width::Word, 0) if count > 0 => {
                    let value = *base.cast::<f32>();
                    std::slice::from_raw_parts_mut(out, count).fill(value);
                }
                (Width::Word, step) if step > 0 => {
                    dense::strided_copy(isa, base.cast(), step.unsigned_abs(), out, count);
                }
                (Width::Word, step) => {
                    for i in 0..count {
                        *out.add(i) = *base.cast::<f32>().offset(i.cast_signed() * step);
                    }
                }
                (Width::Less(from), 1) => tensor::widen(isa, from, base, out, count),
                (Width::Less(from), step) => {
                    for i in 0..count {
                        let at = base.offset(i.cast_signed() * step * bytes);
                        *out.add(i) = tensor::widened(from, at);
                    }
                }
            }
        }
    }
}

/// Writes `n` elements of a concatenation from index `start` on.
///
/// # Safety
///
/// The elements are readable, and `out` has space for them.
pub(super) unsafe fn concat(parts: &[Source], isa: Isa, start: usize, n: usize, out: *mut f32) {
    let mut done = 0;
    while done < n {
        let at = start + done;
        let mut next = usize::MAX;
        let mut here = None;
        for part in parts {
            let Some((inner, extent, inside)) = part.part() else { continue };
            let (place, within) = (at / inner % extent, at % inner);
            if inside.contains(&place) {
                here = Some(part);
                next = (inside.end - place) * inner - within;
                break;
            }
            let end = if place < inside.start { inside.start } else { extent };
            next = next.min((end - place) * inner - within);
        }
        let count = next.min(n - done);
        // SAFETY: the caller's contract.
        unsafe {
            let out = out.add(done);
            match here {
                Some(part) if part.in_place => {}
                Some(part) => part.fill(isa, 0, at, count, out),
                None => out.write_bytes(0, count),
            }
        }
        done += count;
    }
}
