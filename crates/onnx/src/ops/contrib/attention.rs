//! Attention in the forms that onnxruntime fuses, built with ONNX's own operator.

use super::quantised::dequantised;
use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value};
use crate::node::{Node, Operator};
use crate::ops::compose::Setting;

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("Attention", packed),
    ("GroupQueryAttention", grouped),
    ("MultiHeadAttention", multi_head),
    ("QAttention", packed),
    ("RotaryEmbedding", rotary),
];

fn heads(node: &Node<'_>, name: &str) -> NodeResult<usize> {
    let count = usize::try_from(node.integer(name, 0)).ok().filter(|n| *n > 0);
    count.ok_or_else(|| invalid(format!("{name} must be at least 1")))
}

/// `[B, S, H D]` as `[B, H, S, D]`.
fn apart(im: &mut Import, x: &Value, heads: usize) -> NodeResult<Value> {
    let shape = im.shape(x);
    let [b, s, wide] = match shape[..] {
        [_, _, _, _] => return Ok(x.clone()),
        [b, s, wide] if wide.is_multiple_of(heads) => [b, s, wide],
        ref have => return Err(invalid(format!("{have:?} cannot be split into {heads} heads"))),
    };
    let x = im.reshaped(x, &[b, s, heads, wide / heads])?;
    im.apply("Transpose", &[&x], &[("perm", Setting::Ints(vec![0, 2, 1, 3]))])
}

/// `[B, H, S, D]` as `[B, S, H D]`.
fn together(im: &mut Import, x: &Value) -> NodeResult<Value> {
    let [b, h, s, d] = im.shape(x)[..] else { return Err("four axes expected".into()) };
    let x = im.apply("Transpose", &[x], &[("perm", Setting::Ints(vec![0, 2, 1, 3]))])?;
    im.reshaped(&x, &[b, s, h * d])
}

/// Settings of ONNX's operator.
struct Settings {
    causal: bool,
    scale: Option<f32>,
    softcap: f32,
    window: i64,
}

/// Attention over `[B, H, S, D]`; returns the result as `[B, S, H D]`, and the keys and values with
/// those of the cache.
fn attend(
    im: &mut Import,
    [query, key, value]: [Value; 3],
    bias: Option<Value>,
    past: [Option<Value>; 2],
    settings: &Settings,
) -> NodeResult<[Value; 3]> {
    let [key_past, value_past] = past.map(|past| past.filter(|past| !im.shape(past).contains(&0)));
    let inputs = [Some(query), Some(key), Some(value), bias, key_past, value_past];
    let mut all = vec![
        ("is_causal", Setting::Int(i64::from(settings.causal))),
        ("softcap", Setting::Float(settings.softcap)),
    ];
    all.extend(settings.scale.map(|scale| ("scale", Setting::Float(scale))));
    if settings.window > 0 {
        all.push(("left_window_size", Setting::Int(settings.window)));
    }
    let made = im.outputs_of("Attention", &inputs, &all, 3)?;
    let [made, key, value, ..] = &made[..] else { return Err("three outputs expected".into()) };
    Ok([together(im, made)?, key.clone(), value.clone()])
}

/// A mask of ones and zeroes as a bias: 0, or `filter` for hidden keys.
fn bias_of(im: &mut Import, mask: &Value, filter: f32) -> NodeResult<Value> {
    let mask = im.apply("Cast", &[mask], &[("to", Setting::Int(9))])?;
    let of = |value: f32| Value::Known(Known::of(Elem::F32, f64::from(value)));
    im.apply("Where", &[&mask, &of(0.0), &of(filter)], &[])
}

/// The mask of keys as a bias: counts of keys `[B]`, or a mask `[B, T]`, `[B, S, T]` or of four axes.
fn key_bias(
    im: &mut Import,
    mask: Option<&Value>,
    [batch, keys]: [usize; 2],
    filter: f32,
) -> NodeResult<Option<Value>> {
    let Some(mask) = mask else { return Ok(None) };
    let shape = im.shape(mask);
    let mask = match shape[..] {
        [count] if count == batch => {
            let places: Vec<f64> = (0..keys).map(|i| i as f64).collect();
            let places = super::vector(Elem::I32, &places)?;
            let ends = im.reshaped(mask, &[batch, 1])?;
            let seen = im.apply("Less", &[&places, &ends], &[])?;
            im.reshaped(&seen, &[batch, 1, 1, keys])?
        }
        [b, t] => im.reshaped(mask, &[b, 1, 1, t])?,
        [b, s, t] => im.reshaped(mask, &[b, 1, s, t])?,
        [_, _, _, _] => mask.clone(),
        ref have => return Err(invalid(format!("mask {have:?} is not supported"))),
    };
    bias_of(im, &mask, filter).map(Some)
}

fn sum(im: &mut Import, a: Option<Value>, b: Option<Value>) -> NodeResult<Option<Value>> {
    Ok(match (a, b) {
        (Some(a), Some(b)) => Some(im.apply("Add", &[&a, &b], &[])?),
        (a, b) => a.or(b),
    })
}

/// `Attention` of an input with a joint weight for queries, keys and values.
fn packed(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let quantised = node.op() == "QAttention";
    node.ignore(&["past_present_share_buffer"]);
    if node.flag("do_rotary") || node.flag("past_present_share_buffer") {
        return Err("do_rotary and a shared buffer are not supported".into());
    }
    node.ignore(&["rotary_embedding_dim"]);
    let count = heads(node, "num_heads")?;
    let (x, weight) = if quantised {
        (dequantised(im, node, [0, 3, 6])?, dequantised(im, node, [1, 4, 7])?)
    } else {
        (node.input(0)?.clone(), node.input(1)?.clone())
    };
    let mut made = im.apply("MatMul", &[&x, &weight], &[])?;
    if let Some(bias) = node.optional(2) {
        made = im.apply("Add", &[&made, bias], &[])?;
    }
    let [batch, length, wide] = im.shape(&made)[..] else {
        return Err("[B, S, I] expected".into());
    };
    let sizes = match node.integers("qkv_hidden_sizes") {
        Some(sizes) => crate::array::shape(&sizes)?,
        None => vec![wide / 3; 3],
    };
    if sizes.len() != 3 || sizes.iter().sum::<usize>() != wide {
        return Err(invalid(format!("sizes {sizes:?} do not fill {wide}")));
    }
    let mut begin = 0;
    let mut parts = Vec::new();
    for size in sizes {
        let part = im.part(&made, 2, begin, size)?;
        parts.push(apart(im, &part, count)?);
        begin += size;
    }
    let [query, key, value] = parts.try_into().map_err(|_| invalid("three parts".into()))?;
    let (mask, past) = if quantised { (5, 8) } else { (3, 4) };
    let past = match node.optional(past) {
        Some(past) => [Some(im.entry(past, 0, 0)?), Some(im.entry(past, 0, 1)?)],
        None => [None, None],
    };
    let before = past[0].as_ref().map_or(0, |past| im.shape(past)[2]);
    let filter = node.float("mask_filter_value", -10000.0);
    let bias = key_bias(im, node.optional(mask), [batch, before + length], filter)?;
    let more = if quantised { None } else { node.optional(5).cloned() };
    let bias = sum(im, bias, more)?;
    let settings = Settings {
        causal: node.flag("unidirectional"),
        scale: node.float_if("scale").filter(|scale| *scale != 0.0),
        softcap: 0.0,
        window: -1,
    };
    let [made, key, value] = attend(im, [query, key, value], bias, past, &settings)?;
    if !node.has_output(1) {
        return Ok(vec![made]);
    }
    let mut both = Vec::new();
    for each in [key, value] {
        let shape = [&[1][..], &im.shape(&each)].concat();
        both.push(im.reshaped(&each, &shape)?);
    }
    Ok(vec![made, im.joined(&both, 0)?])
}

fn multi_head(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let count = heads(node, "num_heads")?;
    let mut query = node.input(0)?.clone();
    let (mut key, mut value) = (node.optional(1).cloned(), node.optional(2).cloned());
    // Packed: [B, S, H, 3, D], or keys and values as [B, T, H, 2, D].
    let unpack = |im: &mut Import, all: &Value, i: usize| -> NodeResult<Value> {
        let [b, s, h, _, d] = im.shape(all)[..] else { return Err("five axes expected".into()) };
        let one = im.part(all, 3, i, 1)?;
        im.reshaped(&one, &[b, s, h * d])
    };
    if im.shape(&query).len() == 5 {
        let all = query;
        query = unpack(im, &all, 0)?;
        (key, value) = (Some(unpack(im, &all, 1)?), Some(unpack(im, &all, 2)?));
    } else if let Some(all) = key.clone().filter(|key| im.shape(key).len() == 5) {
        (key, value) = (Some(unpack(im, &all, 0)?), Some(unpack(im, &all, 1)?));
    }
    let (Some(mut key), Some(mut value)) = (key, value) else {
        return Err("keys and values are missing".into());
    };
    if let Some(bias) = node.optional(3) {
        let mut begin = 0;
        for each in [&mut query, &mut key, &mut value] {
            let shape = im.shape(each);
            let wide = match shape[..] {
                [_, h, _, d] => h * d,
                _ => shape.last().copied().unwrap_or(0),
            };
            let mut own = im.part(bias, 0, begin, wide)?;
            if let [_, h, _, d] = shape[..] {
                own = im.reshaped(&own, &[h, 1, d])?;
            }
            *each = im.apply("Add", &[each, &own], &[])?;
            begin += wide;
        }
    }
    let [query, key, value] =
        [apart(im, &query, count)?, apart(im, &key, count)?, apart(im, &value, count)?];
    let past = [node.optional(6).cloned(), node.optional(7).cloned()];
    let before = past[0].as_ref().map_or(0, |past| im.shape(past)[2]);
    let (batch, keys) = (im.shape(&query)[0], before + im.shape(&key)[2]);
    let filter = node.float("mask_filter_value", -10000.0);
    let bias = key_bias(im, node.optional(4), [batch, keys], filter)?;
    let bias = sum(im, bias, node.optional(5).cloned())?;
    let settings = Settings {
        causal: node.flag("unidirectional"),
        scale: node.float_if("scale").filter(|scale| *scale != 0.0),
        softcap: 0.0,
        window: -1,
    };
    Ok(attend(im, [query, key, value], bias, past, &settings)?.to_vec())
}

/// Grouped-query attention with a cache, and maybe rotary embedding. All sequences of a batch have
/// the same length.
fn grouped(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&[
        "smooth_softmax",
        "qk_output",
        "k_quant_type",
        "v_quant_type",
        "kv_cache_bit_width",
    ]);
    if node.integer("smooth_softmax", 0) > 0 || node.optional(11).is_some() {
        return Err("smooth_softmax and sinks are not supported".into());
    }
    let (count, shared) = (heads(node, "num_heads")?, heads(node, "kv_num_heads")?);
    let query = node.input(0)?;
    let [batch, length, wide] = im.shape(query)[..] else {
        return Err("[B, S, D] expected".into());
    };
    let [mut query, mut key, value] = match (node.optional(1), node.optional(2)) {
        (Some(key), Some(value)) => [query.clone(), key.clone(), value.clone()],
        _ => {
            let each = wide / (count + 2 * shared);
            let query_part = im.part(query, 2, 0, count * each)?;
            let key = im.part(query, 2, count * each, shared * each)?;
            [query_part, key, im.part(query, 2, (count + shared) * each, shared * each)?]
        }
    };
    let lengths = node.known_integers(5, "the lengths of the sequences")?;
    let past = [node.optional(3).cloned(), node.optional(4).cloned()];
    let held = past[0].as_ref().map_or(0, |past| im.shape(past)[2]);
    let total = lengths.first().map_or(-1, |last| last.saturating_add(1));
    if lengths.iter().any(|n| *n + 1 != total) {
        return Err("sequences of different lengths are not supported".into());
    }
    let before = usize::try_from(total - length as i64).ok().filter(|before| *before <= held);
    let Some(before) = before else {
        return Err(invalid(format!(
            "{total} keys do not fit {length} new and {held} cached ones"
        )));
    };
    let mut cut = [None, None];
    for (cut, past) in cut.iter_mut().zip(&past) {
        if let Some(past) = past.as_ref().filter(|_| before > 0) {
            *cut = Some(im.part(past, 2, 0, before)?);
        }
    }
    if node.flag("do_rotary") {
        let ids: Vec<f64> = (before..before + length).map(|i| i as f64).collect();
        let ids = Known::new(Elem::I64, &[1, length], ids);
        let ids = Value::Known(ids.ok_or_else(|| invalid("positions".into()))?);
        let ids = match node.optional(9) {
            Some(ids) => ids.clone(),
            None => {
                let shape = [batch as f64, length as f64];
                im.apply("Expand", &[&ids, &super::vector(Elem::I64, &shape)?], &[])?
            }
        };
        let interleaved = node.flag("rotary_interleaved");
        for (each, heads) in [(&mut query, count), (&mut key, shared)] {
            *each = rotated(im, each, [node.input(7)?, node.input(8)?], &ids, heads, interleaved)?;
        }
    } else {
        node.ignore(&["rotary_interleaved"]);
    }
    let parts = [apart(im, &query, count)?, apart(im, &key, shared)?, apart(im, &value, shared)?];
    let window = node.integer("local_window_size", -1);
    let settings = Settings {
        causal: true,
        scale: node.float_if("scale").filter(|scale| *scale != 0.0),
        softcap: node.float("softcap", 0.0),
        window: if window > 0 { window - 1 } else { -1 },
    };
    let bias = node.optional(10).cloned();
    let [made, mut key, mut value] = attend(im, parts, bias, cut, &settings)?;
    // The cache has the size that it came with, if that is larger.
    let now = before + length;
    for (each, past) in [&mut key, &mut value].into_iter().zip(past) {
        if let Some(past) = past.filter(|_| held > now) {
            let rest = im.part(&past, 2, now, held - now)?;
            *each = im.joined(&[each.clone(), rest], 2)?;
        }
    }
    Ok(vec![made, key, value])
}

fn rotated(
    im: &mut Import,
    x: &Value,
    [cosine, sine]: [&Value; 2],
    ids: &Value,
    heads: usize,
    interleaved: bool,
) -> NodeResult<Value> {
    let half = im.shape(cosine).last().copied().unwrap_or(0);
    let settings = [
        ("num_heads", Setting::Int(heads as i64)),
        ("interleaved", Setting::Int(i64::from(interleaved))),
        ("rotary_embedding_dim", Setting::Int(2 * half as i64)),
    ];
    im.apply("RotaryEmbedding", &[x, cosine, sine, ids], &settings)
}

/// Positions are given for each row, or as the first one.
fn rotary(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["scale", "is_packed_batching"]);
    if node.float("scale", 1.0) != 1.0 || node.flag("is_packed_batching") {
        return Err("a scale and packed batches are not supported".into());
    }
    let x = node.input(0)?;
    let (shape, half) = (im.shape(x), im.shape(node.input(2)?).last().copied().unwrap_or(0));
    let (batch, length, heads) = match shape[..] {
        [b, s, wide] => {
            let heads = usize::try_from(node.integer("num_heads", 0)).unwrap_or(0);
            (b, s, if heads > 0 { heads } else { wide / (2 * half).max(1) })
        }
        [b, h, s, _] => (b, s, h),
        ref have => return Err(invalid(format!("{have:?}: three or four axes expected"))),
    };
    node.ignore(&["num_heads", "rotary_embedding_dim"]);
    let mut ids = node.input(1)?.clone();
    if im.shape(&ids).len() < 2 {
        let elem = ids.elem();
        let places: Vec<f64> = (0..length).map(|i| i as f64).collect();
        let first = im.reshaped(&ids, &[1])?;
        let all = im.apply("Add", &[&super::vector(elem, &places)?, &first], &[])?;
        let all = im.reshaped(&all, &[1, length])?;
        let shape = super::vector(Elem::I64, &[batch as f64, length as f64])?;
        ids = im.apply("Expand", &[&all, &shape], &[])?;
    }
    let interleaved = node.flag("interleaved");
    let tables = [node.input(2)?, node.input(3)?];
    Ok(vec![rotated(im, x, tables, &ids, heads, interleaved)?])
}
