//! Operators on positions: rotary embedding and affine grids.

use nn::functions::{add, mul, sub};
use nn::shape::{concat, stack};

use super::gather::indices;
use crate::array::{self, Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] =
    &[("AffineGrid", affine_grid), ("RotaryEmbedding", rotary_embedding)];

/// Points of a grid from -1 to 1 on each axis, transformed by an affine map: `[N, extents..,
/// axes]`, the last axis first.
fn affine_grid(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let size = array::shape(&node.known_integers(1, "the size")?).map_err(invalid)?;
    let Some((&count, extents)) = size.get(2..).and_then(|extents| Some((size.first()?, extents)))
    else {
        return Err(invalid(format!("invalid grid size {size:?}: [N, C, extents..] expected")));
    };
    let (corners, points) = (node.flag("align_corners"), extents.iter().product::<usize>());
    let mut values = Vec::new();
    for point in 0..points {
        let mut left = point;
        for &n in extents.iter().rev() {
            let (i, n) = ((left % n) as f64, n as f64);
            left /= n as usize;
            values.push(match corners {
                true => 2.0 * i / (n - 1.0).max(1.0) - 1.0,
                false => (2.0 * i + 1.0) / n - 1.0,
            });
        }
        values.push(1.0);
    }
    let wide = extents.len() + 1;
    let grid = Known::new(Elem::F32, &[1, points, wide], values);
    let grid = grid.ok_or_else(|| invalid(format!("invalid grid size {size:?}")))?;
    let grid = im.tensor(&Value::Known(grid))?;
    let theta = im.float(node.input(0)?)?;
    let grid = im.g.expand(grid, &[count, points, wide])?;
    let made = im.g.matmul(grid, theta)?;
    let tensor = im.g.reshape(made, &[&[count], extents, &[extents.len()]].concat())?;
    Ok(device(elem, tensor))
}

/// Rotates pairs of each head's first values by the angles of the row's position.
fn rotary_embedding(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (elem, have) = (node.input(0)?.elem(), im.shape(node.input(0)?));
    let whole = |name| usize::try_from(node.integer(name, 0)).unwrap_or(0);
    let (heads, interleaved) = (whole("num_heads"), node.flag("interleaved"));
    let x = im.float(node.input(0)?)?;
    let (x, [b, s, h, d]) = match have[..] {
        [b, h, s, d] => (im.g.permute(x, &[0, 2, 1, 3])?, [b, s, h, d]),
        [b, s, wide] if heads > 0 && wide.is_multiple_of(heads) => {
            let apart = [b, s, heads, wide / heads];
            (im.g.reshape(x, &apart)?, apart)
        }
        _ => return Err(invalid(format!("{have:?} cannot be split into {heads} heads"))),
    };
    let turned = Some(whole("rotary_embedding_dim")).filter(|n| *n > 0).unwrap_or(d);
    if turned > d || !turned.is_multiple_of(2) {
        return Err(invalid(format!("cannot rotate {turned} of {d} values per head in pairs")));
    }
    let half = turned / 2;
    let mut tables = Vec::new();
    for place in [1, 2] {
        let mut table = im.float(node.input(place)?)?;
        if let Some(positions) = node.optional(3) {
            let at = indices(im, positions, im.g.shape(table).first().copied().unwrap_or(0))?;
            let at = im.g.reshape(at, &[b * s])?;
            table = im.g.gather(table, &[at])?;
        }
        tables.push(im.g.reshape(table, &[b, s, 1, half])?);
    }
    let (cosine, sine) = (tables[0], tables[1]);
    let g = &mut im.g;
    let first = g.slice(x, 3, 0, turned)?;
    let [left, right] = if interleaved {
        let pairs = g.reshape(first, &[b, s, h, half, 2])?;
        let [left, right] = [g.slice(pairs, 4, 0, 1)?, g.slice(pairs, 4, 1, 1)?];
        [g.reshape(left, &[b, s, h, half])?, g.reshape(right, &[b, s, h, half])?]
    } else {
        [g.slice(first, 3, 0, half)?, g.slice(first, 3, half, half)?]
    };
    let (a, c) = (mul(g, cosine, left)?, mul(g, sine, right)?);
    let real = sub(g, a, c)?;
    let (a, c) = (mul(g, sine, left)?, mul(g, cosine, right)?);
    let imaginary = add(g, a, c)?;
    let mut made = if interleaved {
        let pairs = stack(g, &[real, imaginary], 4)?;
        g.reshape(pairs, &[b, s, h, turned])?
    } else {
        concat(g, &[real, imaginary], 3)?
    };
    if turned < d {
        let rest = g.slice(x, 3, turned, d - turned)?;
        made = concat(g, &[made, rest], 3)?;
    }
    let tensor = match have.len() {
        4 => g.permute(made, &[0, 2, 1, 3])?,
        _ => g.reshape(made, &have)?,
    };
    Ok(device(elem, tensor))
}
