//! Products of matrices of `f32` that lie in panels: tiles of results that stay in registers.
//!
//! Rows (the left operand) lie in panels of a few rows, columns in panels of a few vectors; within a panel the values of
//! one step along the sum are neighbours. Sums are over spans of [`SPAN`] steps, one fused multiply-add after the other,
//! and the spans are added in their order: the same bits whatever the instruction set and however the work is divided.
//! Which part of a product is computed where, and what is packed when, is the CPU device's business.

use super::isa::{Isa, Vectors, dispatch};
use super::scores::sigmoid_of;
use super::vector::{LANES, Simd, load_first, store_first};

/// Steps along the sum whose products are added up in registers: what a panel of columns leaves of the first-level cache.
pub const SPAN: usize = 128;

/// Columns that are packed and computed together: whole panels on every instruction set.
pub const COLUMNS: usize = 240;

/// Most vectors of columns that a tile has on any instruction set.
pub const WIDEST: usize = 3;

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
            Vectors::Avx512 => Tile { rows: 8, vectors: 3 },
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => Tile { rows: 6, vectors: 1 },
            #[cfg(target_arch = "aarch64")]
            Vectors::Neon => Tile { rows: 6, vectors: 1 },
            Vectors::Scalar => Tile { rows: 6, vectors: 1 },
        }
    }
}

impl Tile {
    /// Panels of up to [`COLUMNS`] columns: vectors before each, and its own, which are as even as can be.
    pub fn panels(self, columns: usize) -> impl Iterator<Item = (usize, usize)> {
        let vectors = columns.div_ceil(LANES);
        let panels = vectors.div_ceil(self.vectors).max(1);
        let before = move |panel: usize| vectors * panel / panels;
        (0..panels).map(move |panel| (before(panel), before(panel + 1) - before(panel)))
    }
}

/// A tile's operands: a panel of rows and one of columns, over the same steps along the sum.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// `[steps][rows]`, or the rows where they lie.
    pub rows: *const f32,
    /// Elements from row to row, where they are in no panel; the steps of each follow each other.
    pub apart: Option<usize>,
    /// How many rows there are.
    pub count: usize,
    /// `[steps][width]`, of which the first `vectors` count.
    pub columns: *const f32,
    pub width: usize,
    pub vectors: usize,
    /// Steps along the sum, at most [`SPAN`].
    pub steps: usize,
}

/// Where a tile's results go: its first, elements from row to row, and how many columns there are.
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

dispatch! {
    /// The products of a panel of rows with a panel of columns, and what becomes of them.
    ///
    /// # Safety
    ///
    /// The operands are as they say, no larger than the set's [`Tile`]; every row of the place has its columns, which
    /// are those of the panel but for the last few, and so has what is added.
    pub unsafe fn product(x: Operands, onto: Onto, finish: Finish, to: Place) = product_in;

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

    /// Writes a panel of columns of a matrix: `count` of them (the others are zeroes) from a multiple of nothing on.
    ///
    /// # Safety
    ///
    /// The matrix has those columns and steps; `out` is valid for `steps` rows of `16 * vectors` values.
    pub unsafe fn pack_columns(x: Lines, count: usize, vectors: usize, steps: usize, out: *mut f32) = columns_in;
}

/// Lines of a matrix in memory: its first element, and elements from line to line and from step to step.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    pub at: *const f32,
    pub line: usize,
    pub step: usize,
}

#[inline(always)]
unsafe fn product_in<S: Simd>(x: Operands, onto: Onto, finish: Finish, to: Place) {
    macro_rules! tiles {
        ($($rows:literal)+) => {
            // SAFETY: the caller's contract.
            unsafe {
                match (x.count, x.vectors) {
                    $(
                        ($rows, 1) => tile::<S, $rows, 1>(x, onto, finish, to),
                        ($rows, 2) if const { S::ACCUMULATORS >= 16 } => tile::<S, $rows, 2>(x, onto, finish, to),
                        ($rows, 3) if const { S::ACCUMULATORS >= 16 } => tile::<S, $rows, 3>(x, onto, finish, to),
                    )+
                    (7, 1) if const { S::ACCUMULATORS >= 16 } => tile::<S, 7, 1>(x, onto, finish, to),
                    (7, 2) if const { S::ACCUMULATORS >= 16 } => tile::<S, 7, 2>(x, onto, finish, to),
                    (7, 3) if const { S::ACCUMULATORS >= 16 } => tile::<S, 7, 3>(x, onto, finish, to),
                    (8, 1) if const { S::ACCUMULATORS >= 16 } => tile::<S, 8, 1>(x, onto, finish, to),
                    (8, 2) if const { S::ACCUMULATORS >= 16 } => tile::<S, 8, 2>(x, onto, finish, to),
                    (8, 3) if const { S::ACCUMULATORS >= 16 } => tile::<S, 8, 3>(x, onto, finish, to),
                    (rows, vectors) => unreachable!("a tile of {rows} rows by {vectors} vectors"),
                }
            }
        };
    }
    tiles!(1 2 3 4 5 6);
}

#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const V: usize>(
    x: Operands,
    onto: Onto,
    finish: Finish,
    to: Place,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = match x.apart {
            None => sums::<S, R, V>(x, |step, row| x.rows.add(step * R + row)),
            Some(apart) => {
                let rows: [_; R] = std::array::from_fn(|row| x.rows.add(row * apart));
                sums::<S, R, V>(x, |step, row| rows[row].add(step))
            }
        };
        if let Onto::Rows(bias) = onto {
            for (r, sums) in sums.iter_mut().enumerate() {
                let bias = S::splat(*bias.add(r));
                for sum in sums {
                    *sum = S::add(*sum, bias);
                }
            }
        }
        if to.columns >= V * LANES {
            write::<S, R, V>(sums, [LANES; V], onto, finish, to);
        } else {
            let have = std::array::from_fn(|v| LANES.min(to.columns - v * LANES));
            write::<S, R, V>(sums, have, onto, finish, to);
        }
        if finish.function == Function::Silu {
            // Too much to be done to registers.
            let later = Finish { plus: [None; 2], ..finish };
            for r in 0..R {
                finish_in::<S>(later.at(r, 0), to.out.add(r * to.stride), to.columns);
            }
        }
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
    x: Operands,
    value: impl Fn(usize, usize) -> *const f32,
) -> [[S::F; V]; R] {
    /// Steps between two looks at how many are left.
    const TURN: usize = 4;
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[S::splat(0.0); V]; R];
        let mut columns = x.columns;
        let whole = x.steps / TURN * TURN;
        for first in (0..whole).step_by(TURN) {
            for step in first..first + TURN {
                add::<S, R, V>(&mut sums, std::array::from_fn(|row| *value(step, row)), columns);
                columns = columns.wrapping_add(x.width);
            }
        }
        for step in whole..x.steps {
            add::<S, R, V>(&mut sums, std::array::from_fn(|row| *value(step, row)), columns);
            columns = columns.wrapping_add(x.width);
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

/// Writes a tile's sums, of each vector the first so many lanes.
#[inline(always)]
unsafe fn write<S: Simd, const R: usize, const V: usize>(
    mut sums: [[S::F; V]; R],
    have: [usize; V],
    onto: Onto,
    finish: Finish,
    to: Place,
) {
    // SAFETY: the caller's contract.
    unsafe {
        macro_rules! each {
            ($stride:expr, $sum:ident, $at:ident, $n:ident => $what:expr) => {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (v, $sum) in sums.iter_mut().enumerate() {
                        let ($at, $n) = (r * $stride + v * LANES, have[v]);
                        $what;
                    }
                }
            };
        }
        macro_rules! added {
            ($x:expr) => {
                each!($x.stride, sum, at, n => *sum = S::add(*sum, load_first::<S>($x.at.add(at), n)))
            };
        }
        if let Onto::Itself = onto {
            each!(to.stride, sum, at, n => *sum = S::add(*sum, load_first::<S>(to.out.add(at), n)));
        }
        for plus in finish.plus.into_iter().flatten() {
            added!(plus);
        }
        if let Function::Between(..) = finish.function {
            for sum in sums.as_flattened_mut() {
                *sum = applied::<S>(finish.function, *sum);
            }
        }
        if let Some(last) = finish.last
            && finish.function != Function::Silu
        {
            added!(last);
        }
        each!(to.stride, sum, at, n => store_first::<S>(to.out.add(at), *sum, n));
    }
}

#[inline(always)]
unsafe fn columns_in<S: Simd>(x: Lines, count: usize, vectors: usize, steps: usize, out: *mut f32) {
    let width = vectors * LANES;
    // SAFETY: the caller's contract.
    unsafe {
        if x.line == 1 {
            for step in 0..steps {
                let (from, to) = (x.at.add(step * x.step), out.add(step * width));
                for first in (0..width).step_by(LANES) {
                    let n = count.saturating_sub(first).min(LANES);
                    let from = from.add(if n == 0 { 0 } else { first });
                    S::store(to.add(first), load_first::<S>(from, n));
                }
            }
            return;
        }
        for first in (0..width).step_by(LANES) {
            let n = count.saturating_sub(first).min(LANES);
            let (from, to) = (x.at.add(if n == 0 { 0 } else { first * x.line }), out.add(first));
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
                S::store(to.add(step * width), S::load(line.as_ptr()));
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
