//! Matrix products of `f32`, with packed operands and register tiles of results.
//!
//! The left operand's rows are packed in *row tiles*, the columns in *column tiles* of a few vectors. Within a
//! tile, the values of one step along the sum are adjacent. Sums are over spans of [`SPAN`] steps, one fused
//! multiply-add after another, and spans are added in order. Results therefore have the same bits on every
//! instruction set and for every division of work. The CPU device decides the division among threads, and the time
//! of packing.

use std::ops::Range;

use super::isa::{Isa, Vectors, dispatch};
use super::scores::sigmoid_of;
use super::tensor::at_least;
use super::vector::{LANES, Simd, load_first, store_first};

/// Steps along the sum that are added up in registers: a column tile of this length leaves space in the first-level
/// cache.
pub const SPAN: usize = 128;

/// Columns that are packed and computed together: a whole number of column tiles on every instruction set.
pub const COLUMNS: usize = 240;

/// Register tile of results: rows, and vectors of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    pub rows: usize,
    pub vectors: usize,
}

impl Isa {
    /// The register tile of [`product`].
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
    /// Values of the larger tile.
    const VALUES: usize = Self::WIDE.rows * Self::WIDE.vectors * LANES;

    pub(crate) const fn of<S: Simd>() -> Self {
        if S::ACCUMULATORS >= 16 { Self::WIDE } else { Self::NARROW }
    }

    /// Column tiles: vectors before each, and its own.
    #[inline(always)]
    pub fn column_tiles(self, columns: usize) -> impl Iterator<Item = (usize, usize)> {
        let tiles = self.columns(columns);
        tiles.parts(0..tiles.count)
    }

    const fn columns(self, columns: usize) -> Even {
        Even::of(columns.div_ceil(LANES), self.vectors)
    }

    /// Row tiles.
    #[inline(always)]
    #[must_use]
    pub const fn rows(self, rows: usize) -> Even {
        Even::of(rows, self.rows)
    }
}

/// Parts of nearly equal size, the larger ones first. A tile with few rows or columns would wait for its own sums.
#[derive(Clone, Copy, Debug)]
pub struct Even {
    /// Number of parts.
    pub count: usize,
    each: usize,
    /// Number of parts that have one element more.
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

    /// Elements before a part; for one behind the last, the total.
    #[inline(always)]
    #[must_use]
    pub const fn before(self, part: usize) -> usize {
        part * self.each + if part < self.more { part } else { self.more }
    }

    /// Elements before each part of a range, and its own.
    #[inline(always)]
    pub fn parts(self, parts: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
        parts.map(move |part| (self.before(part), self.each + usize::from(part < self.more)))
    }
}

/// Operands over the same steps along the sum: a row tile, and columns.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// `[steps][rows]`, or unpacked rows.
    pub rows: *const f32,
    /// For unpacked rows, the distance between them; the steps of a row are adjacent.
    pub apart: Option<usize>,
    /// Number of rows.
    pub count: usize,
    pub columns: *const f32,
    pub layout: ColumnLayout,
    /// Steps along the sum.
    pub steps: usize,
}

/// Memory layout of columns.
#[derive(Clone, Copy, Debug)]
pub enum ColumnLayout {
    /// Column tiles, one after another, of `steps` steps; the first `before` are skipped.
    Tiles { steps: usize, before: usize },
    /// Row-major steps, this many values apart.
    Steps(usize),
}

impl ColumnLayout {
    /// Offset of the column tile of `vectors` vectors at a column, from a step on; distance to the next tile, and
    /// between steps.
    const fn of(self, column: usize, step: usize, vectors: usize) -> (usize, usize, usize) {
        let width = vectors * LANES;
        match self {
            Self::Tiles { steps, before } => {
                (column * steps + (before + step) * width, steps * width, width)
            }
            Self::Steps(values) => (column + step * values, width, values),
        }
    }
}

/// Destination of results: address of the first, distance between rows, number of columns.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    pub out: *mut f32,
    pub stride: usize,
    pub columns: usize,
}

/// Initial value of a tile's results.
#[derive(Clone, Copy, Debug)]
pub enum Onto {
    Nothing,
    /// One value per row.
    Rows(*const f32),
    /// The results in memory.
    Itself,
}

/// Epilogue of results before they are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct TileEpilogue {
    /// Added first, one after another.
    pub plus: [Option<Addend>; 2],
    pub function: Function,
    /// Added after the function.
    pub last: Option<Addend>,
}

/// One value per result: address of the first, and distance between rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addend {
    pub at: *const f32,
    pub stride: usize,
}

impl TileEpilogue {
    /// True if the epilogue changes nothing.
    fn is_nothing(&self) -> bool {
        self.plus == [None; 2] && self.last.is_none() && self.function == Function::Same
    }

    /// The epilogue for results that are some rows and columns further on.
    #[inline]
    #[must_use]
    pub fn at(self, row: usize, column: usize) -> Self {
        let of = |x: Addend| Addend { at: x.at.wrapping_add(row * x.stride + column), ..x };
        let plus = self.plus.map(|plus| plus.map(of));
        Self { plus, last: self.last.map(of), ..self }
    }
}

/// Function of each result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Function {
    #[default]
    Same,
    /// Clamped to a range, as [`bounded`](super::tensor::bounded) does it.
    Between(f32, f32),
    /// Multiplied with its [`sigmoid`](super::scores::sigmoid).
    Silu,
}

/// Multiplies a row tile with columns, and applies the epilogue.
///
/// # Safety
///
/// The operands are as described, with no more rows than the set's [`Tile`]; columns are rounded up to whole
/// vectors; every row of the destination has its columns, and so have the addends.
pub unsafe fn product(isa: Isa, x: Operands, onto: Onto, finish: TileEpilogue, to: Destination) {
    let bounds = match finish {
        TileEpilogue {
            plus: [None, None],
            function: Function::Between(least, most),
            last: None,
        } => Some((least, most)),
        _ => None,
    };
    macro_rules! tile_rows {
        ($($rows:literal)+) => {
            match x.count {
                // SAFETY: the caller's contract.
                $($rows => unsafe { tile_rows::<$rows>(isa, &x, onto, bounds, to) },)+
                rows => unreachable!("a tile of {rows} rows"),
            }
        };
    }
    tile_rows!(1 2 3 4 5 6 7 8);
    if bounds.is_none() && !finish.is_nothing() {
        for r in 0..x.count {
            // SAFETY: as above.
            unsafe { self::finish(isa, finish.at(r, 0), to.out.add(r * to.stride), to.columns) };
        }
    }
}

/// Computes a row of register tiles, span by span.
///
/// # Safety
///
/// As for [`product`], with `R` rows.
unsafe fn tile_rows<const R: usize>(
    isa: Isa,
    x: &Operands,
    onto: Onto,
    bounds: Option<(f32, f32)>,
    to: Destination,
) {
    let tiles = isa.tile().columns(to.columns);
    // A tile with padding lanes is computed in a buffer.
    let whole = tiles.count - usize::from(!to.columns.is_multiple_of(LANES));
    // A sum without steps has one empty span.
    for start in (0..x.steps.max(1)).step_by(SPAN) {
        let steps = SPAN.min(x.steps - start);
        let onto = if start > 0 { Onto::Itself } else { onto };
        let tile_row = |next: usize, count: usize, vectors: usize, (out, stride)| {
            let (at, next, width) = x.layout.of(tiles.before(next) * LANES, start, vectors);
            TileRow {
                rows: x.rows.wrapping_add(if x.apart.is_none() { start * R } else { start }),
                apart: x.apart,
                columns: x.columns.wrapping_add(at),
                next,
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
            let runs = [(0..tiles.more, tiles.each + 1), (tiles.more..whole, tiles.each)];
            for (run, vectors) in runs.into_iter().filter(|(run, _)| !run.is_empty()) {
                let out = to.out.wrapping_add(tiles.before(run.start) * LANES);
                tile_row(run.start, run.len(), vectors, (out, to.stride)).run::<R>(isa, vectors);
            }
            if whole < tiles.count {
                let (first, width) = (tiles.before(whole) * LANES, tiles.each * LANES);
                let n = to.columns - first;
                let mut lines = [0.0; Tile::VALUES];
                let lines = lines.as_mut_ptr();
                let place = |r: usize| to.out.wrapping_add(r * to.stride + first);
                if let Onto::Itself = onto {
                    for r in 0..R {
                        lines.add(r * width).copy_from_nonoverlapping(place(r), n);
                    }
                }
                tile_row(whole, 1, tiles.each, (lines, width)).run::<R>(isa, tiles.each);
                for r in 0..R {
                    place(r).copy_from_nonoverlapping(lines.add(r * width), n);
                }
            }
        }
    }
}

/// A row of register tiles, over one span.
struct TileRow {
    rows: *const f32,
    apart: Option<usize>,
    columns: *const f32,
    /// Distance between column tiles, and between steps within one.
    next: usize,
    width: usize,
    steps: usize,
    onto: Onto,
    bounds: Option<(f32, f32)>,
    out: *mut f32,
    stride: usize,
    count: usize,
}

impl TileRow {
    /// # Safety
    ///
    /// As for [`product`], for tiles without padding lanes.
    unsafe fn run<const R: usize>(&self, isa: Isa, vectors: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match vectors {
                1 => tile_row::<R, 1>(isa, self),
                2 => tile_row::<R, 2>(isa, self),
                3 => tile_row::<R, 3>(isa, self),
                _ => unreachable!("a tile of {vectors} vectors"),
            }
        }
    }
}

dispatch! {
    /// Computes a row of register tiles.
    ///
    /// # Safety
    ///
    /// As for [`product`]; the set's tile is not smaller.
    unsafe fn tile_row[const R: usize, const V: usize](x: &TileRow) = tile_row_in<R, V>;

    /// Applies an epilogue to `n` results in memory.
    ///
    /// # Safety
    ///
    /// The results and addends are valid for `n` values.
    pub unsafe fn finish(finish: TileEpilogue, y: *mut f32, n: usize) = finish_in;

    /// Copies `n` values that are `apart` elements apart.
    ///
    /// # Safety
    ///
    /// The values are readable, and the destination has space for them.
    pub unsafe fn strided_copy(x: *const f32, apart: usize, out: *mut f32, n: usize) = strided_copy_in;

    /// The same for `lines` lines; the second number of each pair is the distance between lines.
    ///
    /// # Safety
    ///
    /// As for [`strided_copy`], for each line.
    pub unsafe fn strided_copy_lines(x: (*const f32, usize), apart: usize, out: (*mut f32, usize), n: usize, lines: usize) = strided_copy_lines_in;

    /// Packs the columns of a matrix into column tiles, one after another; padding lanes are zero.
    ///
    /// # Safety
    ///
    /// The matrix has those columns and steps; `out` is valid for one row per step, with the columns rounded up to
    /// whole vectors.
    pub unsafe fn pack_columns(x: Lines, columns: usize, steps: usize, out: *mut f32) = columns_in;
}

/// Matrix in memory with any strides: address of the first element, distances between lines and between steps.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    pub at: *const f32,
    pub line: usize,
    pub step: usize,
}

#[inline(always)]
unsafe fn tile_row_in<S: Simd, const R: usize, const V: usize>(x: &TileRow) {
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

/// Computes a row of register tiles; `value` returns the address of a row's value at a step.
#[inline(always)]
unsafe fn tiles<S: Simd, const R: usize, const V: usize>(
    x: &TileRow,
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
        columns = columns.wrapping_add(x.next);
        out = out.wrapping_add(V * LANES);
    }
}

/// Applies a function to values.
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
            Function::Between(least, most) => S::min(S::splat(most), at_least::<S>(least, x)),
            Function::Silu => S::mul(x, sigmoid_of::<S>(x)),
        }
    }
}

#[inline(always)]
unsafe fn finish_in<S: Simd>(finish: TileEpilogue, y: *mut f32, n: usize) {
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

/// Sums of products over the steps; `value` returns the address of a row's value at a step.
#[inline(always)]
unsafe fn sums<S: Simd, const R: usize, const V: usize>(
    mut columns: *const f32,
    width: usize,
    steps: usize,
    value: &impl Fn(usize, usize) -> *const f32,
) -> [[S::F; V]; R] {
    /// Steps per iteration of the unrolled loop.
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

/// Adds the products of one step.
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
            // The inner loop reads adjacent memory.
            for step in 0..steps {
                let from = x.at.add(step * x.step);
                for (before, vectors) in Tile::of::<S>().column_tiles(columns) {
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
        for (before, vectors) in Tile::of::<S>().column_tiles(columns) {
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
unsafe fn strided_copy_lines_in<S: Simd>(
    x: (*const f32, usize),
    apart: usize,
    out: (*mut f32, usize),
    n: usize,
    lines: usize,
) {
    for line in 0..lines {
        // SAFETY: the caller's contract.
        unsafe { strided_copy_in::<S>(x.0.add(line * x.1), apart, out.0.add(line * out.1), n) }
    }
}

#[inline(always)]
pub(crate) unsafe fn strided_copy_in<S: Simd>(
    x: *const f32,
    apart: usize,
    out: *mut f32,
    n: usize,
) {
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
                    // Up to the last value that is used, which has an even index.
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
