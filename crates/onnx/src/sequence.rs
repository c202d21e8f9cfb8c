//! Sequences of tensors and optionals, which exist only while the graph is built.

use crate::array::{Elem, Known};
use crate::error::{Built, NodeResult, invalid};
use crate::graph::Builder;
use crate::import::{Import, Value};
use crate::item::Item;
use crate::node::axis;
use crate::proto::NodeProto;

/// Names of the operators.
pub(crate) const NAMES: &[&str] = &[
    "ConcatFromSequence",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SplitToSequence",
];

/// Builds a node on sequences or optionals; `None` if it is another one.
pub(crate) fn build<'m>(
    builder: &mut Builder<'m>,
    proto: &'m NodeProto,
) -> Built<Option<Vec<Item<'m>>>> {
    let op = &*proto.op_type;
    if op != "Identity" && !NAMES.contains(&op) {
        return Ok(None);
    }
    let items: Vec<Item<'m>> =
        builder.items(proto)?.into_iter().map(|item| item.unwrap_or(Item::Nothing)).collect();
    let of = |name: &str| proto.attribute.iter().find(|a| a.name == name).map(|a| a.i);
    let made = match op {
        "Identity" | "Optional" | "OptionalGetElement" => {
            let item = items.into_iter().next().unwrap_or(Item::Nothing);
            if op == "OptionalGetElement" && matches!(item, Item::Nothing) {
                return Err("the optional is empty".into());
            }
            item
        }
        "OptionalHasElement" => {
            let has = items.first().is_some_and(|item| !matches!(item, Item::Nothing));
            Item::Value(Value::Known(Known::of(Elem::Bool, f64::from(u8::from(has)))))
        }
        "SequenceEmpty" => Item::Sequence(Vec::new()),
        "SequenceConstruct" => {
            let values = items.into_iter().map(Item::value);
            Item::Sequence(values.filter_map(Result::transpose).collect::<NodeResult<_>>()?)
        }
        "SequenceLength" => {
            let count = sequence(items.first())?.len();
            Item::Value(Value::Known(Known::of(Elem::I64, count as f64)))
        }
        "SequenceAt" => {
            let all = sequence(items.first())?;
            let at = position(builder, items.get(1), all.len())?;
            let at = at.ok_or_else(|| invalid("the position is missing".into()))?;
            let found = all.get(at).ok_or_else(|| outside(at, all.len()))?;
            Item::Value(found.clone())
        }
        "SequenceInsert" => {
            let mut all = sequence(items.first())?.to_vec();
            let at = position(builder, items.get(2), all.len())?.unwrap_or(all.len());
            let Some(value) = items.into_iter().nth(1).map(Item::value).transpose()?.flatten()
            else {
                return Err("the tensor is missing".into());
            };
            if at > all.len() {
                return Err(outside(at, all.len()).into());
            }
            all.insert(at, value);
            Item::Sequence(all)
        }
        "SequenceErase" => {
            let mut all = sequence(items.first())?.to_vec();
            let last = all.len().saturating_sub(1);
            let at = position(builder, items.get(1), all.len())?.unwrap_or(last);
            if at >= all.len() {
                return Err(outside(at, all.len()).into());
            }
            all.remove(at);
            Item::Sequence(all)
        }
        "ConcatFromSequence" => {
            let all = sequence(items.first())?;
            let new = of("new_axis").unwrap_or(0) != 0;
            let at = of("axis").ok_or_else(|| invalid("axis is missing".into()))?;
            Item::Value(joined(&mut builder.im, all, at, new)?)
        }
        _ => return split(builder, items, of("axis"), of("keepdims")).map(|made| Some(vec![made])),
    };
    Ok(Some(vec![made]))
}

fn outside(at: usize, count: usize) -> crate::error::NodeError {
    invalid(format!("position {at} is out of range for a sequence of {count}"))
}

fn sequence<'a>(item: Option<&'a Item<'_>>) -> NodeResult<&'a [Value]> {
    match item {
        Some(Item::Sequence(all)) => Ok(all),
        _ => Err(invalid("a sequence is expected".into())),
    }
}

/// A known position, counted from the end if it is negative.
fn position<'m>(
    builder: &mut Builder<'m>,
    item: Option<&Item<'m>>,
    count: usize,
) -> Built<Option<usize>> {
    let Some(value) = item.cloned().map(Item::value).transpose()?.flatten() else {
        return Ok(None);
    };
    let at = numbers(builder, value, "the position depends on data")?.first().copied();
    let at = at.ok_or_else(|| invalid("the position is empty".into()))?;
    let front = if at < 0 { at.saturating_add(count as i64) } else { at };
    let front = usize::try_from(front);
    Ok(Some(front.map_err(|_| invalid(format!("position {at} is out of range")))?))
}

fn numbers(builder: &mut Builder<'_>, value: Value, what: &str) -> Built<Vec<i64>> {
    Ok(match value {
        Value::Known(known) => known.integers(),
        value @ Value::Device { .. } => {
            let found = builder.need(&[value], false, what)?.unwrap_or_default();
            found.first().map(Known::integers).unwrap_or_default()
        }
    })
}

fn joined(im: &mut Import, all: &[Value], at: i64, new: bool) -> NodeResult<Value> {
    let Some(first) = all.first() else { return Err("the sequence is empty".into()) };
    let rank = im.shape(first).len() + usize::from(new);
    let at = axis(at, rank)?;
    let mut parts = Vec::new();
    for value in all {
        let mut shape = im.shape(value);
        if new {
            shape.insert(at, 1);
        }
        parts.push(im.reshaped(value, &shape)?);
    }
    im.joined(&parts, at)
}

/// `SplitToSequence`: parts of one size, of given sizes, or single entries.
fn split<'m>(
    builder: &mut Builder<'m>,
    items: Vec<Item<'m>>,
    at: Option<i64>,
    keep: Option<i64>,
) -> Built<Item<'m>> {
    let mut values = items.into_iter().map(Item::value);
    let Some(x) = values.next().transpose()?.flatten() else {
        return Err("input 0 is missing".into());
    };
    let shape = builder.im.shape(&x);
    let at = axis(at.unwrap_or(0), shape.len())?;
    let extent = shape[at];
    let sizes = match values.next().transpose()?.flatten() {
        None => None,
        Some(value) => {
            let single = builder.im.shape(&value).is_empty();
            let all = numbers(builder, value, "the sizes depend on data")?;
            let all = crate::array::shape(&all)?;
            Some(match all[..] {
                [size] if single && size > 0 => {
                    (0..extent.div_ceil(size)).map(|i| size.min(extent - i * size)).collect()
                }
                _ => all,
            })
        }
    };
    let mut parts = Vec::new();
    let Some(sizes) = sizes else {
        for i in 0..extent {
            builder.charge(0)?;
            let part = match keep.unwrap_or(1) {
                0 => builder.im.entry(&x, at, i)?,
                _ => builder.im.part(&x, at, i, 1)?,
            };
            parts.push(part);
        }
        return Ok(Item::Sequence(parts));
    };
    if sizes.iter().sum::<usize>() != extent {
        return Err(invalid(format!("parts {sizes:?} do not fill an axis of {extent}")).into());
    }
    let mut begin = 0;
    for size in sizes {
        builder.charge(0)?;
        parts.push(builder.im.part(&x, at, begin, size)?);
        begin += size;
    }
    Ok(Item::Sequence(parts))
}
