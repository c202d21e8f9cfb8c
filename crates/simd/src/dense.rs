//! Products of matrices of `f32` that lie in panels: tiles of results that stay in registers.
//!
//! Rows (the left operand) lie in panels of a few rows, columns in panels of a few vectors; within a panel the values of
//! one step along the sum are neighbours. Sums are over spans of [`SPAN`] steps, one fused multiply-add after the other,
//! and the spans are added in their order: the same bits whatever the instruction set and however the work is divided.
//! Which part of a product is computed where, and what is packed when, is the CPU device's business.

use std::ops::Range;

use super::isa::{Isa, Vectors, dispatch};
use super::scores::sigmoid_of;
use super::vector::{LANES, Simd, load_first, store_first};

/// Steps along the sum whose products are added up in registers: what a panel of columns leaves of the first-level cache.
pub const SPAN: usize = 128;

/// Columns that are packed and computed together: whole panels on every instruction set.
pub const COLUMNS: usize = 240;

/// Rows of a tile, and its vectors of columns: what registers hold beside the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    pub rows: usize,
    pub vectors: usize,
}

impl Isa {
    /// The tile of [`product`].
    #[must_use]
    pub const fn tile(self) -> Tile {
        match self.vectors {
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => Tile::WIDE,
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => Tile::NARROW,
            #[cfg(target_arch = "aarch64")]
            Vectors::Neon => Tile::NARROW,
            Vectors::Scalar => Tile::NARROW,
        }
    }
}

impl Tile {
    const NARROW: Self = Self { rows: 6, vectors: 1 };
    const WIDE: Self = Self { rows: 8, vectors: 3 };
    /// Values of the larger one.
    const VALUES: usize = Self::WIDE.rows * Self::WIDE.vectors * LANES;

    pub(crate) const fn of<S: Simd>() -> Self {
        if S::ACCUMULATORS >= 16 { Self::WIDE } else { Self::NARROW }
    }

    /// Panels of columns: vectors before each, and its own.
    #[inline(always)]
    pub fn panels(self, columns: usize) -> impl Iterator<Item = (usize, usize)> {
        let panels = self.columns(columns);
        panels.parts(0..panels.count)
    }

    const fn columns(self, columns: usize) -> Even {
        Even::of(columns.div_ceil(LANES), self.vectors)
    }

    /// Panels of rows.
    #[inline(always)]
    #[must_use]
    pub const fn rows(self, rows: usize) -> Even {
        Even::of(rows, self.rows)
    }
}

/// Parts that are as even as can be, the larger ones first: a tile of few rows or columns waits for its own sums.
#[derive(Clone, Copy, Debug)]
pub struct Even {
    /// How many parts there are.
    pub count: usize,
    each: usize,
    /// The first so many have one more.
    more: usize,
}

impl Even {
    const fn of(all: usize, most: usize) -> Self {
        let count = all.div_ceil(most);
        if count == 0 {
            return Self { count, each: 0, more: 0 };
        }
        Self { count, each: all / count, more: all % count }
    }

    /// What comes before a part, the end of the last for one behind it.
    #[inline(always)]
    #[must_use]
    pub const fn before(self, part: usize) -> usize {
        part * self.each + if part < self.more { part } else { self.more }
    }

    /// What comes before each of some parts, and how much it has.
    #[inline(always)]
    pub fn parts(self, parts: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
        parts.map(move |part| (self.before(part), self.each + usize::from(part < self.more)))
    }
}

/// Operands over the same steps along the sum: a panel of rows, and columns.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// `[steps][rows]`, or the rows where they lie.
    pub rows: *const f32,
    /// Elements from row to row, where they are in no panel; the steps of each follow each other.
    pub apart: Option<usize>,
    /// How many rows there are.
    pub count: usize,
    pub columns: *const f32,
    pub lie: Lie,
    /// Steps along the sum.
    pub steps: usize,
}

/// How columns lie.
#[derive(Clone, Copy, Debug)]
pub enum Lie {
    /// Each of the tile's panels behind the one before, over so many steps, of which some come first that do not count.
    Panels { steps: usize, before: usize },
    /// So many values of a step before those of the next.
    Steps(usize),
}

impl Lie {
    /// Of the panel of so many vectors that begins at a column, where it is from a step on; elements from there to the next
    /// panel, and from step to step.
    const fn of(self, column: usize, step: usize, vectors: usize) -> (usize, usize, usize) {
        let width = vectors * LANES;
        match self {
            Self::Panels { steps, before } => {
                (column * steps + (before + step) * width, steps * width, width)
            }
            Self::Steps(values) => (column + step * values, width, values),
        }
    }
}

/// Where results go: the first, elements from row to row, and how many columns there are.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub out: *mut f32,
    pub stride: usize,
    pub columns: usize,
}

/// What a tile's products are added to.
#[derive(Clone, Copy, Debug)]
pub enum Onto {
    Nothing,
    /// A value for each row.
    Rows(*const f32),
    /// What is there.
    Itself,
}

/// What becomes of results before they are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finish {
    /// Added first, one after the other.
    pub plus: [Option<Addend>; 2],
    pub function: Function,
    /// Added to what the function gives.
    pub last: Option<Addend>,
}

/// A value for each result: that of the first, and elements from row to row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addend {
    pub at: *const f32,
    pub stride: usize,
}

impl Finish {
    /// Whether results stay what they are.
    fn is_nothing(&self) -> bool {
        self.plus == [None; 2] && self.last.is_none() && self.function == Function::Same
    }

    /// Of results some rows and columns further on.
    #[inline]
    #[must_use]
    pub fn at(self, row: usize, column: usize) -> Self {
        let of = |x: Addend| Addend { at: x.at.wrapping_add(row * x.stride + column), ..x };
        let plus = self.plus.map(|plus| plus.map(of));
        Self { plus, last: self.last.map(of), ..self }
    }
}

/// A function of each result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Function {
    #[default]
    Same,
    /// No less than one value and no more than another, as [`bounded`](super::tensor::bounded) has it.
    Between(f32, f32),
    /// Times its [`sigmoid`](super::scores::sigmoid).
    Silu,
}

/// The products of a panel of rows with columns, and what becomes of them.
///
/// # Safety
///
/// The operands are as they say, no more rows than the set's [`Tile`] has, columns for the place's rounded up to whole
/// vectors; every row of the place has its columns, and so has what is added.
pub unsafe fn product(isa: Isa, x: Operands, onto: Onto, finish: Finish, to: Place) {
    let bounds = match finish {
        Finish { plus: [None, None], function: Function::Between(least, most), last: None } => {
            Some((least, most))
        }
        _ => None,
    };
    macro_rules! strips {
        ($($rows:literal)+) => {
            match x.count {
                // SAFETY: the caller's contract.
                $($rows => unsafe { strips::<$rows>(isa, &x, onto, bounds, to) },)+
                rows => unreachable!("a tile of {rows} rows"),
            }
        };
    }
    strips!(1 2 3 4 5 6 7 8);
    if bounds.is_none() && !finish.is_nothing() {
        for r in 0..x.count {
            // SAFETY: as above.
            unsafe { self::finish(isa, finish.at(r, 0), to.out.add(r * to.stride), to.columns) };
        }
    }
}

/// Tiles next to each other, span by span.
///
/// # Safety
///
/// As for [`product`], of so many rows.
unsafe fn strips<const R: usize>(
    isa: Isa,
    x: &Operands,
    onto: Onto,
    bounds: Option<(f32, f32)>,
    to: Place,
) {
    let panels = isa.tile().columns(to.columns);
    // A panel that has lanes without a column is brought out by itself.
    let whole = panels.count - usize::from(!to.columns.is_multiple_of(LANES));
    // Of no steps there is one span, of nothing.
    for start in (0..x.steps.max(1)).step_by(SPAN) {
        let steps = SPAN.min(x.steps - start);
        let onto = if start > 0 { Onto::Itself } else { onto };
        let strip = |panel: usize, count: usize, vectors: usize, (out, stride)| {
            let (at, panel, width) = x.lie.of(panels.before(panel) * LANES, start, vectors);
            Strip {
                rows: x.rows.wrapping_add(if x.apart.is_none() { start * R } else { start }),
                apart: x.apart,
                columns: x.columns.wrapping_add(at),
                panel,
                width,
                steps,
                onto,
                bounds: bounds.filter(|_| start + steps == x.steps),
                out,
                stride,
                count,
            }
        };
        // SAFETY: the caller's contract.
        unsafe {
            let runs = [(0..panels.more, panels.each + 1), (panels.more..whole, panels.each)];
            for (run, vectors) in runs.into_iter().filter(|(run, _)| !run.is_empty()) {
                let out = to.out.wrapping_add(panels.before(run.start) * LANES);
                strip(run.start, run.len(), vectors, (out, to.stride)).run::<R>(isa, vectors);
            }
            if whole < panels.count {
                let (first, width) = (panels.before(whole) * LANES, panels.each * LANES);
                let n = to.columns - first;
                let mut lines = [0.0; Tile::VALUES];
                let lines = lines.as_mut_ptr();
                let place = |r: usize| to.out.wrapping_add(r * to.stride + first);
                if let Onto::Itself = onto {
                    for r in 0..R {
                        lines.add(r * width).copy_from_nonoverlapping(place(r), n);
                    }
                }
                strip(whole, 1, panels.each, (lines, width)).run::<R>(isa, panels.each);
                for r in 0..R {
                    place(r).copy_from_nonoverlapping(lines.add(r * width), n);
                }
            }
        }
    }
}

/// Tiles next to each other, over one span.
struct Strip {
    rows: *const f32,
    apart: Option<usize>,
    columns: *const f32,
    /// Elements from panel to panel, and within one from step to step.
    panel: usize,
    width: usize,
    steps: usize,
    onto: Onto,
    bounds: Option<(f32, f32)>,
    out: *mut f32,
    stride: usize,
    count: usize,
}

impl Strip {
    /// # Safety
    ///
    /// As for [`product`], of panels that have all their columns.
    unsafe fn run<const R: usize>(&self, isa: Isa, vectors: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match vectors {
                1 => strip::<R, 1>(isa, self),
                2 => strip::<R, 2>(isa, self),
                3 => strip::<R, 3>(isa, self),
                _ => unreachable!("a tile of {vectors} vectors"),
            }
        }
    }
}

dispatch! {
    /// The tiles of a strip.
    ///
    /// # Safety
    ///
    /// As for [`product`]; the set's tile is no smaller.
    unsafe fn strip[const R: usize, const V: usize](x: &Strip) = strip_in<R, V>;

    /// What becomes of `n` results that have been written.
    ///
    /// # Safety
    ///
    /// They are there, and as many values of what is added.
    pub unsafe fn finish(finish: Finish, y: *mut f32, n: usize) = finish_in;

    /// Copies `n` values that lie `apart` values from each other.
    ///
    /// # Safety
    ///
    /// The values are there, and room for them elsewhere.
    pub unsafe fn every(x: *const f32, apart: usize, out: *mut f32, n: usize) = every_in;

    /// The same for so many lines, whose beginnings are as far apart as the second number of each pair says.
    ///
    /// # Safety
    ///
    /// As for [`every`], of each line.
    pub unsafe fn every_of_lines(x: (*const f32, usize), apart: usize, out: (*mut f32, usize), n: usize, lines: usize) = every_of_lines_in;

    /// Writes the panels of columns of a matrix, each behind the one before; lanes without a column are zeroes.
    ///
    /// # Safety
    ///
    /// The matrix has those columns and steps; `out` is valid for as many rows as there are steps, of the columns rounded up to
    /// whole vectors.
    pub unsafe fn pack_columns(x: Lines, columns: usize, steps: usize, out: *mut f32) = columns_in;
}

/// Lines of a matrix in memory: its first element, and elements from line to line and from step to step.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    pub at: *const f32,
    pub line: usize,
    pub step: usize,
}

#[inline(always)]
unsafe fn strip_in<S: Simd, const R: usize, const V: usize>(x: &Strip) {
    if const { R > Tile::of::<S>().rows || V > Tile::of::<S>().vectors } {
        unreachable!("a tile of {R} rows and {V} vectors");
    }
    // SAFETY: the caller's contract.
    unsafe {
        match x.apart {
            None => tiles::<S, R, V>(x, |step, row| x.rows.add(step * R + row)),
            Some(apart) => {
                let rows: [_; R] = std::array::from_fn(|row| x.rows.add(row * apart));
                tiles::<S, R, V>(x, |step, row| rows[row].add(step));
            }
        }
    }
}

/// The tiles of a strip; `value` says where a row's value of a step is.
#[inline(always)]
unsafe fn tiles<S: Simd, const R: usize, const V: usize>(
    x: &Strip,
    value: impl Fn(usize, usize) -> *const f32,
) {
    let (mut columns, mut out) = (x.columns, x.out);
    for _ in 0..x.count {
        // SAFETY: the caller's contract.
        unsafe {
            let mut sums = sums::<S, R, V>(columns, x.width, x.steps, &value);
            macro_rules! each {
                ($r:ident, $v:ident, $sum:ident => $what:expr) => {
                    for ($r, sums) in sums.iter_mut().enumerate() {
                        for ($v, $sum) in sums.iter_mut().enumerate() {
                            $what;
                        }
                    }
                };
            }
            match x.onto {
                Onto::Nothing => {}
                Onto::Rows(bias) => {
                    each!(r, _v, sum => *sum = S::add(*sum, S::splat(*bias.add(r))));
                }
                Onto::Itself => {
                    each!(r, v, sum => *sum = S::add(*sum, S::load(out.add(r * x.stride + v * LANES))));
                }
            }
            if let Some((least, most)) = x.bounds {
                each!(_r, _v, sum => *sum = applied::<S>(Function::Between(least, most), *sum));
            }
            each!(r, v, sum => S::store(out.add(r * x.stride + v * LANES), *sum));
        }
        columns = columns.wrapping_add(x.panel);
        out = out.wrapping_add(V * LANES);
    }
}

/// A function of values.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn applied<S: Simd>(function: Function, x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        match function {
            Function::Same => x,
            Function::Between(least, most) => S::min(S::max(x, S::splat(least)), S::splat(most)),
            Function::Silu => S::mul(x, sigmoid_of::<S>(x)),
        }
    }
}

#[inline(always)]
unsafe fn finish_in<S: Simd>(finish: Finish, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        for i in (0..n).step_by(LANES) {
            let value = |x: Addend| load_first::<S>(x.at.add(i), n - i);
            let mut x = load_first::<S>(y.add(i), n - i);
            for plus in finish.plus.into_iter().flatten() {
                x = S::add(x, value(plus));
            }
            x = applied::<S>(finish.function, x);
            if let Some(last) = finish.last {
                x = S::add(x, value(last));
            }
            store_first::<S>(y.add(i), x, n - i);
        }
    }
}

/// The sums of products over the steps; `value` says where a row's value of a step is.
#[inline(always)]
unsafe fn sums<S: Simd, const R: usize, const V: usize>(
    mut columns: *const f32,
    width: usize,
    steps: usize,
    value: &impl Fn(usize, usize) -> *const f32,
) -> [[S::F; V]; R] {
    /// Steps between two looks at how many are left.
    const TURN: usize = 4;
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[S::splat(0.0); V]; R];
        let whole = steps / TURN * TURN;
        for first in (0..whole).step_by(TURN) {
            for step in first..first + TURN {
                add::<S, R, V>(&mut sums, std::array::from_fn(|row| *value(step, row)), columns);
                columns = columns.wrapping_add(width);
            }
        }
        for step in whole..steps {
            add::<S, R, V>(&mut sums, std::array::from_fn(|row| *value(step, row)), columns);
            columns = columns.wrapping_add(width);
        }
        sums
    }
}

/// The products of one step.
#[inline(always)]
unsafe fn add<S: Simd, const R: usize, const V: usize>(
    sums: &mut [[S::F; V]; R],
    rows: [f32; R],
    columns: *const f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut b = [S::splat(0.0); V];
        for (v, b) in b.iter_mut().enumerate() {
            *b = S::load(columns.add(v * LANES));
        }
        for (sums, a) in sums.iter_mut().zip(rows) {
            let a = S::splat(a);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = S::fma(a, b, *sum);
            }
        }
    }
}

#[inline(always)]
unsafe fn columns_in<S: Simd>(x: Lines, columns: usize, steps: usize, out: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        if x.line == 1 {
            // A line of memory is read from end to end.
            for step in 0..steps {
                let from = x.at.add(step * x.step);
                for (before, vectors) in Tile::of::<S>().panels(columns) {
                    let to = out.add((before * steps + step * vectors) * LANES);
                    for v in 0..vectors {
                        let first = (before + v) * LANES;
                        let value = load_first::<S>(from.add(first), columns - first);
                        S::store(to.add(v * LANES), value);
                    }
                }
            }
            return;
        }
        for (before, vectors) in Tile::of::<S>().panels(columns) {
            for v in 0..vectors {
                let first = (before + v) * LANES;
                let (from, to) = (x.at.add(first * x.line), out.add((before * steps + v) * LANES));
                let n = (columns - first).min(LANES);
                for step in 0..steps {
                    let from = from.add(step * x.step);
                    let mut line = [0.0; LANES];
                    if n == LANES {
                        for (column, value) in line.iter_mut().enumerate() {
                            *value = *from.add(column * x.line);
                        }
                    } else {
                        for (column, value) in line.iter_mut().enumerate().take(n) {
                            *value = *from.add(column * x.line);
                        }
                    }
                    S::store(to.add(step * vectors * LANES), S::load(line.as_ptr()));
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn every_of_lines_in<S: Simd>(
    x: (*const f32, usize),
    apart: usize,
    out: (*mut f32, usize),
    n: usize,
    lines: usize,
) {
    for line in 0..lines {
        // SAFETY: the caller's contract.
        unsafe { every_in::<S>(x.0.add(line * x.1), apart, out.0.add(line * out.1), n) }
    }
}

#[inline(always)]
pub(crate) unsafe fn every_in<S: Simd>(x: *const f32, apart: usize, out: *mut f32, n: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match apart {
            1 => {
                for i in (0..n).step_by(LANES) {
                    let value = load_first::<S>(x.add(i), n - i);
                    store_first::<S>(out.add(i), value, n - i);
                }
            }
            2 => {
                for i in (0..n).step_by(LANES) {
                    // Up to the last that counts, which is an even one.
                    let have = 2 * (n - i) - 1;
                    let a = load_first::<S>(x.add(2 * i), have);
                    let b = match have.saturating_sub(LANES) {
                        0 => S::splat(0.0),
                        more => load_first::<S>(x.add(2 * i + LANES), more),
                    };
                    store_first::<S>(out.add(i), S::evens(a, b), n - i);
                }
            }
            apart => {
                for i in 0..n {
                    *out.add(i) = *x.add(i * apart);
                }
            }
        }
    }
}
