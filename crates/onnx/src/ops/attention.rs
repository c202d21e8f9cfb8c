//! The `Attention` operator, with an optional KV cache.

use nn::functions::{self as f, add, times};
use nn::shape::concat;
use plan::graph::Tensor;

use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] = &[("Attention", attention)];

/// Reshapes an input to `[batch, heads, length, size]`, if its heads are still packed in rows.
fn heads(im: &mut Import, node: &Node<'_>, place: usize, name: &str) -> NodeResult<Tensor> {
    let count = usize::try_from(node.integer(name, 0)).unwrap_or(0);
    let x = im.float(node.input(place)?)?;
    match im.g.shape(x)[..] {
        [_, _, _, _] => Ok(x),
        [b, n, wide] if count > 0 && wide.is_multiple_of(count) => {
            let apart = im.g.reshape(x, &[b, n, count, wide / count])?;
            Ok(im.g.permute(apart, &[0, 2, 1, 3])?)
        }
        ref have => Err(invalid(format!("{have:?} cannot be split into {count} heads"))),
    }
}

/// Appends keys or values to those of the cache.
fn append(im: &mut Import, node: &Node<'_>, past: usize, x: Tensor) -> NodeResult<Tensor> {
    let Some(past) = node.optional(past) else { return Ok(x) };
    let past = im.float(past)?;
    Ok(concat(&mut im.g, &[past, x], 2)?)
}

/// Repeats KV heads for the query heads that share them (grouped-query attention).
fn repeat_heads(im: &mut Import, x: Tensor, by: usize) -> NodeResult<Tensor> {
    let [b, h, n, d] = im.g.shape(x)[..] else { return Err("four axes expected".into()) };
    let apart = im.g.reshape(x, &[b, h, 1, n, d])?;
    let wide = im.g.expand(apart, &[b, h, by, n, d])?;
    Ok(im.g.reshape(wide, &[b, h * by, n, d])?)
}

/// Positional mask: 0 for visible keys, minus infinity for the others; `None` if all are visible.
fn positional_mask(
    im: &mut Import,
    node: &Node<'_>,
    [q, kv, past]: [usize; 3],
) -> NodeResult<Option<Tensor>> {
    let causal = node.flag("is_causal");
    let [left, right] = ["left_window_size", "right_window_size"].map(|n| node.integer(n, -1));
    let valid = match node.optional(6) {
        Some(_) => Some(node.known_integers(6, "the number of keys")?),
        None => None,
    };
    if !causal && left < 0 && right < 0 && valid.is_none() {
        return Ok(None);
    }
    let whole = vec![kv as i64];
    let counts = valid.as_ref().unwrap_or(&whole);
    let mut values = Vec::new();
    for &count in counts {
        let offset = if valid.is_some() { count - q as i64 } else { past as i64 };
        for i in 0..q as i64 {
            for j in 0..kv as i64 {
                let apart = i + offset - j;
                let seen = (!causal || apart >= 0)
                    && (left < 0 || apart <= left)
                    && (right < 0 || -apart <= right)
                    && j < count;
                values.push(if seen { 0.0 } else { f64::NEG_INFINITY });
            }
        }
    }
    let known = Known::new(Elem::F32, &[counts.len(), 1, q, kv], values);
    let known = known.unwrap_or_else(|| unreachable!("one for each"));
    Ok(Some(im.tensor(&Value::Known(known))?))
}

/// The given mask as an additive bias.
fn mask(im: &mut Import, node: &Node<'_>, kv: usize) -> NodeResult<Option<Tensor>> {
    let Some(given) = node.optional(3) else { return Ok(None) };
    let elem = given.elem();
    let mut made = im.float(given)?;
    let g = &mut im.g;
    let (zero, none) = (g.constant(0.0), g.constant(f32::NEG_INFINITY));
    if elem == Elem::Bool {
        made = g.select(made, zero, none)?;
    }
    let mut shape = g.shape(made).to_vec();
    let Some(last) = shape.last_mut() else { return Err("the mask has no axes".into()) };
    if *last < kv {
        *last = kv - *last;
        let rest = g.expand(none, &shape)?;
        made = concat(g, &[made, rest], shape.len() - 1)?;
    }
    Ok(Some(made))
}

fn attention(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (elem, rank) = (node.input(0)?.elem(), im.shape(node.input(0)?).len());
    node.ignore(&["softmax_precision"]);
    let query = heads(im, node, 0, "q_num_heads")?;
    let (key, value) = (heads(im, node, 1, "kv_num_heads")?, heads(im, node, 2, "kv_num_heads")?);
    let new = im.g.shape(key)[2];
    let (key, value) = (append(im, node, 4, key)?, append(im, node, 5, value)?);
    let [b, h, q, d] = im.g.shape(query)[..] else { return Err("four axes expected".into()) };
    let (kv, held) = (im.g.shape(key)[2], im.g.shape(key)[1]);
    if held == 0 || !h.is_multiple_of(held) {
        return Err(invalid(format!("{h} query heads are not a multiple of {held} key heads")));
    }
    let bias = match (positional_mask(im, node, [q, kv, kv - new])?, mask(im, node, kv)?) {
        (Some(a), Some(b)) => Some(add(&mut im.g, a, b)?),
        (a, b) => a.or(b),
    };
    let [keys, values] = [repeat_heads(im, key, h / held)?, repeat_heads(im, value, h / held)?];
    let scale = node.float_if("scale").unwrap_or_else(|| 1.0 / (d as f32).sqrt()).sqrt();
    let (cap, mode) = (node.float("softcap", 0.0), node.integer("qk_matmul_output_mode", 0));
    let g = &mut im.g;
    let (query, keys) = (times(g, query, scale)?, times(g, keys, scale)?);
    let mut scores = g.matmul(query, keys)?;
    if cap > 0.0 {
        let bent = times(g, scores, 1.0 / cap)?;
        let bent = f::tanh(g, bent)?;
        scores = times(g, bent, cap)?;
    }
    let biased = match bias {
        Some(bias) => add(g, scores, bias)?,
        None => scores,
    };
    let mut shares = f::softmax(g, biased, 3)?;
    if let Some(bias) = bias {
        // A row that sees no key yields zeroes.
        let bias = g.expand(bias, &[b, h, q, kv])?;
        let most = f::amax(g, bias, &[3])?;
        let none = g.constant(f32::NEG_INFINITY);
        let (blind, zero) = (f::less_equal(g, most, none)?, g.constant(0.0));
        shares = g.select(blind, zero, shares)?;
    }
    let across = g.permute(values, &[0, 1, 3, 2])?;
    let mut made = g.matmul(shares, across)?;
    if rank == 3 {
        let wide = g.shape(made)[3];
        made = g.permute(made, &[0, 2, 1, 3])?;
        made = g.reshape(made, &[b, q, h * wide])?;
    }
    let seen = match mode {
        2 => biased,
        3 => shares,
        _ => scores,
    };
    let all = [made, key, value, seen];
    Ok(all.map(|tensor| Value::Device { elem, tensor }).to_vec())
}
