//! Matrix products and `Einsum`.

use nn::functions::{self as f, add, times};
use nn::shape::transpose;
use plan::DType;
use plan::graph::Tensor;

use super::bytes::{
    Centred, byte_product, centred, dequantised, integer_bias, product_of_parts, scaled,
};
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
    let (alpha, beta) = (node.float("alpha", 1.0), node.float("beta", 1.0));
    if [alpha, beta] == [1.0, 1.0]
        && !node.flag("transA")
        && let Some(made) = quantised_gemm(im, node)?
    {
        return Ok(device(elem, made));
    }
    let (a, b) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
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

/// A product of dequantised matrices plus a bias, computed on the integers.
fn quantised_gemm(im: &mut Import, node: &Node<'_>) -> NodeResult<Option<Tensor>> {
    let rows = node.flag("transB");
    let operands = [node.input(0)?, node.input(1)?];
    let [axis, behind] = if rows { [0, 1] } else { [1, 0] };
    let Some((a, b, scale)) = dequantised(im, operands, axis, behind)? else { return Ok(None) };
    let sums = if rows {
        let &[outputs, depth] = im.g.shape(b.tensor) else { return Ok(None) };
        let columns = transpose(&mut im.g, b.tensor, 0, 1)?;
        product_of_parts(im, [a.tensor, columns], b.exact_rows(outputs, depth))?
    } else {
        byte_product(im, &a, &b)?
    };
    let Some(bias) = node.optional(2) else { return scaled(im, sums, None, scale, 0).map(Some) };
    let line = im.shape(bias).len() < 2;
    match integer_bias(im, bias)? {
        Some(bias) if line => scaled(im, sums, Some(bias), scale, 0).map(Some),
        _ => {
            let (made, bias) = (scaled(im, sums, None, scale, 0)?, im.float(bias)?);
            Ok(Some(add(&mut im.g, made, bias)?))
        }
    }
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
    if elem.is_integer() {
        let (a, b) = (im.tensor(node.input(0)?)?, im.tensor(node.input(1)?)?);
        return Ok(device(elem, integer_product(im, a, b)?));
    }
    let (a, b) = (node.input(0)?, node.input(1)?);
    if let Some(rank @ 2..) = Some(im.shape(b).len())
        && let Some((a, b, scale)) = dequantised(im, [a, b], rank - 1, 0)?
    {
        let sums = byte_product(im, &a, &b)?;
        return Ok(device(elem, scaled(im, sums, None, scale, 0)?));
    }
    let (a, b) = (im.float(a)?, im.float(b)?);
    Ok(device(elem, product(im, a, b)?))
}

/// The product of integer matrices of any size, exact as far as 32 bits represent the sums.
fn integer_product(im: &mut Import, a: Tensor, b: Tensor) -> NodeResult<Tensor> {
    let g = &mut im.g;
    let (rank_a, rank_b) = (g.shape(a).len(), g.shape(b).len());
    if rank_a == 0 || rank_b == 0 {
        return Err("a matrix product needs at least one axis".into());
    }
    // a [.., M, K, 1] times b [.., 1, K, N], summed over K.
    let a = if rank_a == 1 { nn::shape::unsqueeze(g, a, 0)? } else { a };
    let b = if rank_b == 1 { nn::shape::unsqueeze(g, b, 1)? } else { b };
    let (last_a, last_b) = (g.shape(a).len(), g.shape(b).len());
    let a = nn::shape::unsqueeze(g, a, last_a)?;
    let b = nn::shape::unsqueeze(g, b, last_b - 2)?;
    let products = f::mul(g, a, b)?;
    let rank = g.shape(products).len();
    let made = f::sum(g, products, &[rank - 2])?;
    let mut shape = g.shape(made).to_vec();
    shape.remove(rank - 2);
    if rank_b == 1 {
        shape.pop();
    }
    if rank_a == 1 {
        shape.remove(rank - 3);
    }
    Ok(g.reshape(made, &shape)?)
}

/// A byte input minus its zero point (input `zero`): a scalar, or one value per entry of an axis
/// that has `behind` axes after it.
pub(in crate::ops) fn minus_zero_point(
    im: &mut Import,
    node: &Node<'_>,
    places: [usize; 2],
    behind: usize,
) -> NodeResult<Tensor> {
    Ok(byte_operand(im, node, places, behind)?.tensor)
}

/// The same, with its values, if they are known.
pub(super) fn byte_operand(
    im: &mut Import,
    node: &Node<'_>,
    [place, zero]: [usize; 2],
    behind: usize,
) -> NodeResult<Centred> {
    centred(im, node.input(place)?, node.optional(zero), behind)
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

fn matmul_integer(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (a, b) = (byte_operand(im, node, [0, 2], 1)?, byte_operand(im, node, [1, 3], 0)?);
    let made = byte_product(im, &a, &b)?;
    Ok(device(Elem::I32, im.g.cast(made, DType::I32)?))
}

/// The same for scaled bytes, with a requantised result.
fn matmul_quantised(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (a, b) = (byte_operand(im, node, [0, 2], 1)?, byte_operand(im, node, [3, 5], 0)?);
    let made = byte_product(im, &a, &b)?;
    let made = im.g.cast(made, DType::F32)?;
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
    let (mut operands, mut all) = (Vec::new(), Vec::new());
    for (place, term) in terms.iter().enumerate() {
        let x = im.float(node.input(place)?)?;
        let own = letters(term, im.g.shape(x).len())?;
        all.extend(own.iter().copied());
        operands.push(diagonal(im, x, own)?);
    }
    let want = results(right, &all)?;
    let mut operands = operands.into_iter();
    let Some(mut made) = operands.next() else { return Err("no operands".into()) };
    while let Some(next) = operands.next() {
        let later = |c: &char| {
            want.contains(c) || operands.as_slice().iter().any(|(_, own)| own.contains(c))
        };
        made = contracted(im, made, next, later)?;
    }
    let (x, have) = summed(im, made, |c| want.contains(c))?;
    let order = want.iter().map(|c| have.iter().position(|k| k == c)).collect::<Option<Vec<_>>>();
    let order =
        order.ok_or_else(|| invalid(format!("{equation}: an output letter is in no operand")))?;
    let mut made = im.g.permute(x, &order)?;
    if elem.is_integer() {
        made = im.g.cast(made, DType::I32)?;
    }
    Ok(device(elem, made))
}

/// Letters of the result; without a right side, the axes of an ellipsis and the letters that occur
/// once.
fn results(right: Option<&str>, all: &[char]) -> NodeResult<Vec<char>> {
    let Some(right) = right else {
        let once = |c: &&char| c.is_ascii_digit() || all.iter().filter(|d| d == c).count() == 1;
        let mut once: Vec<char> = all.iter().filter(once).copied().collect();
        // Digits first, in descending order, then letters in alphabetical order.
        once.sort_by_key(|c| c.to_digit(10).map_or((1, *c as u32), |d| (0, 9 - d)));
        once.dedup();
        return Ok(once);
    };
    let dots = all.iter().filter_map(|c| c.to_digit(10)).map(|d| d as usize + 1).max();
    let dots = dots.filter(|_| right.contains("...")).unwrap_or(0);
    letters(right, right.chars().filter(|c| *c != '.').count() + dots)
}

/// An operand without the axes that nothing needs any more, which are summed.
fn summed(
    im: &mut Import,
    (x, own): (Tensor, Vec<char>),
    needed: impl Fn(&char) -> bool,
) -> NodeResult<(Tensor, Vec<char>)> {
    let sums: Vec<usize> = (0..own.len()).filter(|i| !needed(&own[*i])).collect();
    if sums.is_empty() {
        return Ok((x, own));
    }
    let x = f::sum(&mut im.g, x, &sums)?;
    let kept: Vec<usize> = (0..own.len()).filter(|i| !sums.contains(i)).collect();
    let shape: Vec<usize> = kept.iter().map(|i| im.g.shape(x)[*i]).collect();
    let x = im.g.reshape(x, &shape)?;
    Ok((x, kept.into_iter().map(|i| own[i]).collect()))
}

/// The product of two operands, summed over the axes that only they have: a matrix product if there
/// are any.
fn contracted(
    im: &mut Import,
    a: (Tensor, Vec<char>),
    b: (Tensor, Vec<char>),
    later: impl Fn(&char) -> bool,
) -> NodeResult<(Tensor, Vec<char>)> {
    let (of_a, of_b) = (a.1.clone(), b.1.clone());
    let a = summed(im, a, |c| later(c) || of_b.contains(c))?;
    let b = summed(im, b, |c| later(c) || of_a.contains(c))?;
    let both: Vec<char> = a.1.iter().copied().filter(|c| b.1.contains(c)).collect();
    let (batch, inner): (Vec<char>, Vec<char>) = both.into_iter().partition(|c| later(c));
    let alone = |own: &[char], other: &[char]| -> Vec<char> {
        own.iter().copied().filter(|c| !other.contains(c)).collect()
    };
    let (rows, columns) = (alone(&a.1, &b.1), alone(&b.1, &a.1));
    if inner.is_empty() || (rows.is_empty() && columns.is_empty()) {
        let whole = outer(im, a, b)?;
        return summed(im, whole, later);
    }
    let extent = |im: &Import, c: char| {
        let of = |(x, own): &(Tensor, Vec<char>)| {
            own.iter().position(|o| *o == c).map_or(1, |at| im.g.shape(*x)[at])
        };
        of(&a).max(of(&b))
    };
    let extents = |im: &Import, of: &[char]| of.iter().map(|c| extent(im, *c)).collect::<Vec<_>>();
    let (batches, depth) = (extents(im, &batch), extents(im, &inner));
    let matrix = |im: &mut Import, (x, own): &(Tensor, Vec<char>), side: &[char]| {
        let axes = [&batch[..], side, &inner].concat();
        let order: Vec<usize> =
            axes.iter().filter_map(|c| own.iter().position(|o| o == c)).collect();
        let (x, whole) = (im.g.permute(*x, &order)?, extents(im, &axes));
        let x = im.g.expand(x, &whole)?;
        let count = extents(im, side).iter().product::<usize>();
        let shape = [&batches[..], &[count, depth.iter().product()]].concat();
        NodeResult::Ok(im.g.reshape(x, &shape)?)
    };
    let (left, right) = (matrix(im, &a, &rows)?, matrix(im, &b, &columns)?);
    let made = im.g.matmul(left, right)?;
    let axes = [&batch[..], &rows, &columns].concat();
    let shape = extents(im, &axes);
    Ok((im.g.reshape(made, &shape)?, axes))
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
