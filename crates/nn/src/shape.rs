//! Operations on shape and order: concat, transpose, repeat, sort, cumulative sums.

use plan::graph::{Error, Graph, Result, Tensor};
use plan::{Binary, DType, Window};

use super::functions::{add, mul, not_of, times};

fn refused(g: &Graph, op: &'static str, x: Tensor, reason: &'static str) -> Error {
    Error::Shape { op, shapes: vec![g.shape(x).to_vec()], reason }
}

/// Swaps two axes.
pub fn transpose(g: &mut Graph, x: Tensor, a: usize, b: usize) -> Result {
    let mut axes: Vec<usize> = (0..g.shape(x).len()).collect();
    if a.max(b) >= axes.len() {
        return Err(refused(g, "transpose", x, "no such axis"));
    }
    axes.swap(a, b);
    g.permute(x, &axes)
}

/// Inserts an axis of extent 1.
pub fn unsqueeze(g: &mut Graph, x: Tensor, axis: usize) -> Result {
    let mut shape = g.shape(x).to_vec();
    if axis > shape.len() {
        return Err(refused(g, "unsqueeze", x, "no such axis"));
    }
    shape.insert(axis, 1);
    g.reshape(x, &shape)
}

/// Removes an axis of extent 1.
pub fn squeeze(g: &mut Graph, x: Tensor, axis: usize) -> Result {
    let mut shape = g.shape(x).to_vec();
    if shape.get(axis) != Some(&1) {
        return Err(refused(g, "squeeze", x, "the axis must have extent 1"));
    }
    shape.remove(axis);
    g.reshape(x, &shape)
}

/// Flattens the axes from `first` on.
pub fn flatten(g: &mut Graph, x: Tensor, first: usize) -> Result {
    let shape = g.shape(x);
    if first > shape.len() {
        return Err(refused(g, "flatten", x, "no such axis"));
    }
    let rest = shape[first..].iter().product();
    let shape = [&shape[..first], &[rest]].concat();
    g.reshape(x, &shape)
}

/// Concatenates tensors along an axis.
pub fn concat(g: &mut Graph, all: &[Tensor], axis: usize) -> Result {
    g.concat(all, axis)
}

/// Stacks tensors along a new axis.
pub fn stack(g: &mut Graph, all: &[Tensor], axis: usize) -> Result {
    let apart = all.iter().map(|&x| unsqueeze(g, x, axis)).collect::<Result<Vec<_>>>()?;
    concat(g, &apart, axis)
}

/// Repeats the tensor along each axis.
pub fn repeat(g: &mut Graph, x: Tensor, times: &[usize]) -> Result {
    let shape = g.shape(x).to_vec();
    if times.len() != shape.len() {
        return Err(refused(g, "repeat", x, "a number for each axis expected"));
    }
    let apart: Vec<usize> = shape.iter().flat_map(|&n| [1, n]).collect();
    let wide: Vec<usize> = shape.iter().zip(times).flat_map(|(&n, &t)| [t, n]).collect();
    let whole: Vec<usize> = shape.iter().zip(times).map(|(n, t)| n * t).collect();
    let x = g.reshape(x, &apart)?;
    let x = g.expand(x, &wide)?;
    g.reshape(x, &whole)
}

/// Every `step`th entry of an axis.
pub fn every(g: &mut Graph, x: Tensor, axis: usize, step: usize) -> Result {
    let mut shape = g.shape(x).to_vec();
    let taken = g.window(x, axis, Window { size: 1, stride: step, dilation: 1 })?;
    shape[axis] = g.shape(taken)[axis];
    g.reshape(taken, &shape)
}

/// Inserts zeroes between the entries of an axis: `step` from one to the next.
pub fn spread(g: &mut Graph, x: Tensor, axis: usize, step: usize) -> Result {
    let mut shape = g.shape(x).to_vec();
    if step == 0 || axis >= shape.len() || shape[axis] == 0 {
        return Err(refused(g, "spread", x, "an axis with entries, and a step, expected"));
    }
    let apart = unsqueeze(g, x, axis + 1)?;
    let apart = g.pad(apart, axis + 1, 0, step - 1)?;
    let extent = shape[axis];
    shape[axis] = extent * step;
    let apart = g.reshape(apart, &shape)?;
    g.slice(apart, axis, 0, (extent - 1) * step + 1)
}

/// Gathers entries of an axis by indices `[M]`; a negative index yields zeroes.
pub fn take(g: &mut Graph, x: Tensor, axis: usize, indices: Tensor) -> Result {
    let front = transpose(g, x, 0, axis)?;
    let rows = g.gather(front, &[indices])?;
    transpose(g, rows, 0, axis)
}

/// `0, 1, 2, ..` as integers.
fn counted(g: &mut Graph, extent: usize) -> Result {
    let at = g.iota(extent);
    g.cast(at, DType::I32)
}

/// Reverses an axis.
pub fn flip(g: &mut Graph, x: Tensor, axis: usize) -> Result {
    g.flip(x, axis)
}

/// Rotates an axis by `by` entries.
pub fn roll(g: &mut Graph, x: Tensor, axis: usize, by: isize) -> Result {
    let Some(extent) = g.shape(x).get(axis).copied().filter(|n| *n > 0) else {
        return Err(refused(g, "roll", x, "an axis with entries expected"));
    };
    let cut = (-by).rem_euclid(extent.cast_signed()).cast_unsigned();
    let (head, tail) = (g.slice(x, axis, 0, cut)?, g.slice(x, axis, cut, extent - cut)?);
    concat(g, &[tail, head], axis)
}

/// Mask `[rows, columns]` that is 1 on and below the diagonal `above` columns to the right.
pub fn lower_triangle(g: &mut Graph, rows: usize, columns: usize, above: isize) -> Result {
    let (row, column) = (g.iota(rows), g.iota(columns));
    let row = g.reshape(row, &[rows, 1])?;
    let offset = g.constant(above as f32);
    let row = g.binary(Binary::Add, row, offset)?;
    g.binary(Binary::LessEqual, column, row)
}

/// Keeps the elements on and below a diagonal of the last two axes; zeroes above.
pub fn tril(g: &mut Graph, x: Tensor, above: isize) -> Result {
    let &[.., rows, columns] = g.shape(x) else {
        return Err(refused(g, "tril", x, "two axes expected"));
    };
    let (mask, zero) = (lower_triangle(g, rows, columns, above)?, g.constant(0.0));
    g.select(mask, x, zero)
}

/// Keeps the elements on and above a diagonal of the last two axes; zeroes below.
pub fn triu(g: &mut Graph, x: Tensor, above: isize) -> Result {
    let &[.., rows, columns] = g.shape(x) else {
        return Err(refused(g, "triu", x, "two axes expected"));
    };
    let (mask, zero) = (lower_triangle(g, rows, columns, above - 1)?, g.constant(0.0));
    g.select(mask, zero, x)
}

/// Cumulative sums along an axis: in each round an element adds that of twice the distance of the
/// round before (Hillis and Steele, "Data parallel algorithms", 1986).
pub fn cumsum(g: &mut Graph, x: Tensor, axis: usize) -> Result {
    let Some(&extent) = g.shape(x).get(axis) else {
        return Err(refused(g, "cumsum", x, "no such axis"));
    };
    let (mut sums, mut apart) = (x, 1);
    while apart < extent {
        let before = g.slice(sums, axis, 0, extent - apart)?;
        let before = g.pad(before, axis, apart, 0)?;
        sums = add(g, sums, before)?;
        apart *= 2;
    }
    Ok(sums)
}

/// Indices (`I32`) and values (`F32`) of the `count` largest entries of an axis, largest first.
pub fn top_k(g: &mut Graph, x: Tensor, axis: usize, count: usize) -> Result<(Tensor, Tensor)> {
    let rank = g.shape(x).len();
    if axis >= rank {
        return Err(refused(g, "top_k", x, "no such axis"));
    }
    let x = transpose(g, x, axis, rank - 1)?;
    let mut shape = g.shape(x).to_vec();
    let (n, rows) = (shape[rank - 1], shape[..rank - 1].iter().product::<usize>());
    let flat = g.reshape(x, &[rows, n])?;
    let best = g.top_k(flat, count)?;
    let row = counted(g, rows)?;
    let row = g.reshape(row, &[rows, 1])?;
    let row = g.expand(row, &[rows, count])?;
    let row = g.reshape(row, &[rows * count])?;
    let places = g.reshape(best, &[rows * count])?;
    let values = g.gather(flat, &[row, places])?;
    shape[rank - 1] = count;
    let (best, values) = (g.reshape(best, &shape)?, g.reshape(values, &shape)?);
    Ok((transpose(g, best, axis, rank - 1)?, transpose(g, values, axis, rank - 1)?))
}

/// Indices and values of an axis, sorted from largest to smallest.
pub fn sort(g: &mut Graph, x: Tensor, axis: usize) -> Result<(Tensor, Tensor)> {
    let count = g.shape(x).get(axis).copied().unwrap_or(0);
    top_k(g, x, axis, count)
}

/// Index of the largest entry of an axis, which stays with extent 1: `I32`.
pub fn argmax(g: &mut Graph, x: Tensor, axis: usize) -> Result {
    Ok(top_k(g, x, axis, 1)?.0)
}

/// One-hot encoding of `indices [M]` over `classes`: `[M, classes]`.
pub fn one_hot(g: &mut Graph, indices: Tensor, classes: usize) -> Result {
    let rows = g.shape(indices).first().copied().unwrap_or(0);
    let indices = g.cast(indices, DType::F32)?;
    let indices = g.reshape(indices, &[rows, 1])?;
    let class = g.iota(classes);
    super::functions::equal(g, indices, class)
}

/// `x` where a mask is 0, `value` where it is 1.
pub fn masked_fill(g: &mut Graph, x: Tensor, mask: Tensor, value: f32) -> Result {
    let value = g.constant(value);
    g.select(mask, value, x)
}

/// Linear interpolation from `a` (`weight` 0) to `b` (`weight` 1).
pub fn lerp(g: &mut Graph, a: Tensor, b: Tensor, weight: Tensor) -> Result {
    let rest = not_of(g, weight)?;
    let (a, b) = (mul(g, a, rest)?, mul(g, b, weight)?);
    add(g, a, b)
}

/// `count` numbers from `start`, `step` apart.
pub fn arange(g: &mut Graph, start: f32, step: f32, count: usize) -> Result {
    let at = g.iota(count);
    let at = times(g, at, step)?;
    super::functions::plus(g, at, start)
}
