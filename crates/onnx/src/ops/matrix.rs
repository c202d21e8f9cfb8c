//! Matrix products and `Einsum`.

use nn::functions::{self as f, add, times};
use nn::shape::transpose;
use plan::DType;
use plan::graph::Tensor;

use super::quantise::requantised;
use crate::array::Elem;
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("Einsum", einsum),
    ("Gemm", gemm),
    ("MatMul", matmul),
    ("MatMulInteger", matmul_integer),
    ("QLinearMatMul", matmul_quantised),
];

pub(in crate::ops) fn gemm(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (a, b) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let (alpha, beta) = (node.float("alpha", 1.0), node.float("beta", 1.0));
    let g = &mut im.g;
    let a = if node.flag("transA") { transpose(g, a, 0, 1)? } else { a };
    let b = if node.flag("transB") { b } else { transpose(g, b, 0, 1)? };
    let mut made = g.matmul(a, b)?;
    if alpha != 1.0 {
        made = times(g, made, alpha)?;
    }
    if let Some(c) = node.optional(2) {
        let c = im.float(c)?;
        let c = if beta == 1.0 { c } else { times(&mut im.g, c, beta)? };
        made = add(&mut im.g, made, c)?;
    }
    let made = if elem.is_integer() { im.g.cast(made, DType::I32)? } else { made };
    Ok(device(elem, made))
}

/// `a` times `b` like NumPy's `matmul`: vectors are treated as rows and columns, and lose that axis
/// again.
pub(in crate::ops) fn product(im: &mut Import, a: Tensor, b: Tensor) -> NodeResult<Tensor> {
    let g = &mut im.g;
    let (of_a, of_b) = (g.shape(a).to_vec(), g.shape(b).to_vec());
    if of_a.is_empty() || of_b.is_empty() {
        return Err("a matrix product needs at least one axis".into());
    }
    let wide_a = if of_a.len() == 1 { g.reshape(a, &[1, of_a[0]])? } else { a };
    let wide_b = if of_b.len() == 1 { g.reshape(b, &[of_b[0], 1])? } else { b };
    let made = f::matmul(g, wide_a, wide_b)?;
    let mut shape = g.shape(made).to_vec();
    if of_b.len() == 1 {
        shape.pop();
    }
    if of_a.len() == 1 {
        shape.remove(shape.len() - if of_b.len() == 1 { 1 } else { 2 });
    }
    Ok(g.reshape(made, &shape)?)
}

fn matmul(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (a, b) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let made = product(im, a, b)?;
    let made = if elem.is_integer() { im.g.cast(made, DType::I32)? } else { made };
    Ok(device(elem, made))
}

/// A byte input minus its zero point (input `zero`): a scalar, or one value per entry of an axis
/// that has `behind` axes after it.
pub(in crate::ops) fn minus_zero_point(
    im: &mut Import,
    node: &Node<'_>,
    [place, zero]: [usize; 2],
    behind: usize,
) -> NodeResult<Tensor> {
    let x = im.float(node.input(place)?)?;
    if node.optional(zero).is_none() {
        return Ok(x);
    }
    let zero = along(im, node, zero, behind)?;
    Ok(f::sub(&mut im.g, x, zero)?)
}

/// An input that is a scalar, or has one value per entry of an axis with `behind` axes after it,
/// reshaped to broadcast.
pub(super) fn along(
    im: &mut Import,
    node: &Node<'_>,
    place: usize,
    behind: usize,
) -> NodeResult<Tensor> {
    let x = im.float(node.input(place)?)?;
    let shape = im.g.shape(x).to_vec();
    let count: usize = shape.iter().product();
    match shape.len() {
        // Matrices already have theirs as columns or rows.
        2.. if count > 1 => Ok(x),
        _ => {
            let behind = if count == 1 { 0 } else { behind };
            Ok(im.g.reshape(x, &[&[count][..], &vec![1; behind]].concat())?)
        }
    }
}

/// The sums are exact in `f32` up to 2^24.
fn matmul_integer(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (a, b) = (minus_zero_point(im, node, [0, 2], 1)?, minus_zero_point(im, node, [1, 3], 0)?);
    let made = product(im, a, b)?;
    let made = im.g.cast(made, DType::I32)?;
    Ok(device(Elem::I32, made))
}

/// The same for scaled bytes, with a requantised result.
fn matmul_quantised(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (a, b) = (minus_zero_point(im, node, [0, 2], 1)?, minus_zero_point(im, node, [3, 5], 0)?);
    let made = product(im, a, b)?;
    let scales = [along(im, node, 1, 1)?, along(im, node, 4, 0)?];
    requantised(im, node, made, scales)
}

/// Letters of an operand's axes; the axes of an ellipsis get digits.
fn letters(term: &str, rank: usize) -> NodeResult<Vec<char>> {
    let plain = term.chars().filter(|c| *c != '.').count();
    let mut letters = Vec::new();
    let mut rest = term;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            let dots = rank
                .checked_sub(plain)
                .ok_or_else(|| invalid(format!("{term} does not fit {rank} axes")))?;
            // Counts from the back, so that operands of different ranks align.
            letters.extend((0..dots).rev().filter_map(|i| char::from_digit(i as u32, 10)));
            rest = after;
        } else {
            letters.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    if letters.len() == rank {
        Ok(letters)
    } else {
        Err(invalid(format!("{term} does not fit {rank} axes")))
    }
}

fn einsum(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let equation = node.text("equation", "")?.replace(' ', "");
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&*equation, None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != node.inputs.len() {
        return Err(invalid(format!("{equation} does not fit {} operands", node.inputs.len())));
    }
    let mut made: Option<(Tensor, Vec<char>)> = None;
    let mut all = Vec::new();
    for (place, term) in terms.iter().enumerate() {
        let x = im.float(node.input(place)?)?;
        let own = letters(term, im.g.shape(x).len())?;
        all.extend(own.iter().copied());
        let (x, own) = diagonal(im, x, own)?;
        made = Some(match made {
            Some((y, before)) => outer(im, (y, before), (x, own))?,
            None => (x, own),
        });
    }
    let Some((mut x, have)) = made else { return Err("no operands".into()) };
    let want: Vec<char> = match right {
        Some(right) => {
            let dots = all.iter().filter(|c| c.is_ascii_digit());
            let dots =
                dots.map(|c| c.to_digit(10).map_or(0, |d| d as usize + 1)).max().unwrap_or(0);
            letters(
                right,
                right.chars().filter(|c| *c != '.').count()
                    + if right.contains("...") { dots } else { 0 },
            )?
        }
        None => {
            let mut once: Vec<char> = all
                .iter()
                .copied()
                .filter(|c| c.is_ascii_digit() || all.iter().filter(|d| *d == c).count() == 1)
                .collect();
            // Digits first, in descending order, then letters in alphabetical order.
            once.sort_by_key(|c| c.to_digit(10).map_or((1, *c as u32), |d| (0, 9 - d)));
            once.dedup();
            once
        }
    };
    let sums: Vec<usize> = (0..have.len()).filter(|i| !want.contains(&have[*i])).collect();
    x = f::sum(&mut im.g, x, &sums)?;
    let kept: Vec<char> = have.iter().copied().filter(|c| want.contains(c)).collect();
    let shape: Vec<usize> =
        (0..have.len()).filter(|i| !sums.contains(i)).map(|i| im.g.shape(x)[i]).collect();
    x = im.g.reshape(x, &shape)?;
    let order = want.iter().map(|c| kept.iter().position(|k| k == c)).collect::<Option<Vec<_>>>();
    let order =
        order.ok_or_else(|| invalid(format!("{equation}: an output letter is in no operand")))?;
    let made = im.g.permute(x, &order)?;
    Ok(device(elem, made))
}

/// A repeated letter is one axis, the diagonal of both.
fn diagonal(im: &mut Import, x: Tensor, own: Vec<char>) -> NodeResult<(Tensor, Vec<char>)> {
    let twice =
        (0..own.len()).find_map(|i| (i + 1..own.len()).find(|&j| own[i] == own[j]).map(|j| (i, j)));
    let Some((i, j)) = twice else { return Ok((x, own)) };
    let g = &mut im.g;
    let shape = g.shape(x).to_vec();
    let n = shape[i];
    if shape[j] != n {
        return Err("axes with the same letter have different extents".into());
    }
    let mut order: Vec<usize> = (0..own.len()).filter(|a| *a != i && *a != j).collect();
    let rest = order.clone();
    order.extend([i, j]);
    let x = g.permute(x, &order)?;
    let outer: Vec<usize> = rest.iter().map(|a| shape[*a]).collect();
    // The diagonal is every (n + 1)th element of the flattened square.
    let flat = g.reshape(x, &[&outer[..], &[n * n]].concat())?;
    let made = nn::shape::every(g, flat, outer.len(), n + 1)?;
    let mut letters: Vec<char> = rest.iter().map(|a| own[*a]).collect();
    letters.push(own[i]);
    diagonal(im, made, letters)
}

/// Multiplies two operands over the union of their axes. The sum comes last; the schedule fuses
/// both into one step.
fn outer(
    im: &mut Import,
    (a, of_a): (Tensor, Vec<char>),
    (b, of_b): (Tensor, Vec<char>),
) -> NodeResult<(Tensor, Vec<char>)> {
    let mut all = of_a.clone();
    all.extend(of_b.iter().copied().filter(|c| !of_a.contains(c)));
    let mut wide = |x: Tensor, own: &[char]| -> NodeResult<Tensor> {
        let order: Vec<usize> =
            all.iter().filter_map(|c| own.iter().position(|o| o == c)).collect();
        let x = im.g.permute(x, &order)?;
        let extents = im.g.shape(x).to_vec();
        let mut extents = extents.into_iter();
        let shape: Vec<usize> = all
            .iter()
            .map(|c| if own.contains(c) { extents.next().unwrap_or(1) } else { 1 })
            .collect();
        Ok(im.g.reshape(x, &shape)?)
    };
    let (a, b) = (wide(a, &of_a)?, wide(b, &of_b)?);
    Ok((f::mul(&mut im.g, a, b)?, all))
}
