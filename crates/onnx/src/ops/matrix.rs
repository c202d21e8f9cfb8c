//! Products: matrices, and sums over named axes.

use nn::functions::{self as f, add, times};
use nn::shape::transpose;
use plan::DType;
use plan::graph::Tensor;

use super::Operator;
use super::quantise::requantised;
use crate::array::Elem;
use crate::import::{Import, Value};
use crate::node::{Made, Node, why};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("Einsum", einsum),
    ("Gemm", gemm),
    ("MatMul", matmul),
    ("MatMulInteger", matmul_integer),
    ("QLinearMatMul", matmul_quantised),
];

fn device(elem: Elem, tensor: Tensor) -> Vec<Value> {
    vec![Value::Device { elem, tensor }]
}

fn gemm(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
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

/// `a` times `b` as NumPy has it: vectors are rows and columns, and lose that axis again.
pub(super) fn product(im: &mut Import, a: Tensor, b: Tensor) -> Made<Tensor> {
    let g = &mut im.g;
    let (of_a, of_b) = (g.shape(a).to_vec(), g.shape(b).to_vec());
    if of_a.is_empty() || of_b.is_empty() {
        return Err("a number has no product of matrices".into());
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

fn matmul(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (a, b) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let made = product(im, a, b)?;
    let made = if elem.is_integer() { im.g.cast(made, DType::I32)? } else { made };
    Ok(device(elem, made))
}

/// Bytes of an input less their zero point, input `zero`: one, or one for each of an axis with `behind` axes behind it.
pub(super) fn from_zero(
    im: &mut Import,
    node: &Node<'_>,
    [place, zero]: [usize; 2],
    behind: usize,
) -> Made<Tensor> {
    let x = im.float(node.input(place)?)?;
    if node.optional(zero).is_none() {
        return Ok(x);
    }
    let zero = along(im, node, zero, behind)?;
    Ok(f::sub(&mut im.g, x, zero)?)
}

/// An input of one number, or of one for each of an axis with `behind` axes behind it, to be broadcast.
pub(super) fn along(im: &mut Import, node: &Node<'_>, place: usize, behind: usize) -> Made<Tensor> {
    let x = im.float(node.input(place)?)?;
    let shape = im.g.shape(x).to_vec();
    let count: usize = shape.iter().product();
    match shape.len() {
        // Matrices have theirs as columns and rows already.
        2.. if count > 1 => Ok(x),
        _ => {
            let behind = if count == 1 { 0 } else { behind };
            Ok(im.g.reshape(x, &[&[count][..], &vec![1; behind]].concat())?)
        }
    }
}

/// In sums that `f32` has exactly up to 2^24.
fn matmul_integer(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
    let (a, b) = (from_zero(im, node, [0, 2], 1)?, from_zero(im, node, [1, 3], 0)?);
    let made = product(im, a, b)?;
    let made = im.g.cast(made, DType::I32)?;
    Ok(device(Elem::I32, made))
}

/// The same of scaled bytes, to scaled bytes.
fn matmul_quantised(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
    let (a, b) = (from_zero(im, node, [0, 2], 1)?, from_zero(im, node, [3, 5], 0)?);
    let made = product(im, a, b)?;
    let scales = [along(im, node, 1, 1)?, along(im, node, 4, 0)?];
    requantised(im, node, made, scales)
}

/// The letters of an operand, one for each axis; those that the three dots stand for are digits.
fn letters(term: &str, rank: usize) -> Made<Vec<char>> {
    let plain = term.chars().filter(|c| *c != '.').count();
    let mut letters = Vec::new();
    let mut rest = term;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            let dots =
                rank.checked_sub(plain).ok_or_else(|| why(format!("{term} for {rank} axes")))?;
            // Counted from the back, so that operands of different ranks meet.
            letters.extend((0..dots).rev().filter_map(|i| char::from_digit(i as u32, 10)));
            rest = after;
        } else {
            letters.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    if letters.len() == rank { Ok(letters) } else { Err(why(format!("{term} for {rank} axes"))) }
}

fn einsum(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let equation = node.text("equation", "")?.replace(' ', "");
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&*equation, None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != node.inputs.len() {
        return Err(why(format!("{equation} for {} operands", node.inputs.len())));
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
            // Digits come first and the greater before the less, letters after them in their order.
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
    let order = order.ok_or_else(|| why(format!("{equation}: a letter comes from nowhere")))?;
    let made = im.g.permute(x, &order)?;
    Ok(device(elem, made))
}

/// A letter that stands twice is one axis, the diagonal of both.
fn diagonal(im: &mut Import, x: Tensor, own: Vec<char>) -> Made<(Tensor, Vec<char>)> {
    let twice =
        (0..own.len()).find_map(|i| (i + 1..own.len()).find(|&j| own[i] == own[j]).map(|j| (i, j)));
    let Some((i, j)) = twice else { return Ok((x, own)) };
    let g = &mut im.g;
    let shape = g.shape(x).to_vec();
    let n = shape[i];
    if shape[j] != n {
        return Err("axes of one letter have different extents".into());
    }
    let mut order: Vec<usize> = (0..own.len()).filter(|a| *a != i && *a != j).collect();
    let rest = order.clone();
    order.extend([i, j]);
    let x = g.permute(x, &order)?;
    let outer: Vec<usize> = rest.iter().map(|a| shape[*a]).collect();
    // Every (n + 1)th element of a square in a row.
    let flat = g.reshape(x, &[&outer[..], &[n * n]].concat())?;
    let made = nn::shape::every(g, flat, outer.len(), n + 1)?;
    let mut letters: Vec<char> = rest.iter().map(|a| own[*a]).collect();
    letters.push(own[i]);
    diagonal(im, made, letters)
}

/// Two operands with all axes of both; what is summed is summed at the end, which the schedule makes one step of.
fn outer(
    im: &mut Import,
    (a, of_a): (Tensor, Vec<char>),
    (b, of_b): (Tensor, Vec<char>),
) -> Made<(Tensor, Vec<char>)> {
    let mut all = of_a.clone();
    all.extend(of_b.iter().copied().filter(|c| !of_a.contains(c)));
    let mut wide = |x: Tensor, own: &[char]| -> Made<Tensor> {
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
