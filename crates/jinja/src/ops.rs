//! Operators: arithmetic, comparison, membership, indexing.

use std::cmp::Ordering;

use crate::ast::{Comparison, Operator};
use crate::format;
use crate::meter::{Meter, Result, VALUE_DEPTH, fail};
use crate::number::{Pair, pair};
use crate::print::undefined;
use crate::value::{ListKind, Value};

/// Fails if the value is undefined.
pub(crate) fn defined(value: &Value) -> Result<()> {
    match value {
        Value::Undefined(missing) => fail(undefined(missing)),
        _ => Ok(()),
    }
}

pub(crate) fn binary(meter: &Meter<'_>, operator: Operator, a: &Value, b: &Value) -> Result<Value> {
    defined(a)?;
    match (operator, a, b) {
        (Operator::Remainder, Value::Text(text), _) => {
            return format::percent(meter, &text.text, b);
        }
        (Operator::Add, Value::Text(_), Value::Text(_)) => {
            let mut out = meter.builder();
            out.push(a.as_str().unwrap_or_default())?;
            out.push(b.as_str().unwrap_or_default())?;
            return out.finish();
        }
        (Operator::Add, Value::List(x), Value::List(y)) if x.kind == y.kind => {
            meter.room((x.items.len() + y.items.len()) * size_of::<Value>())?;
            return meter.sequence([&x.items[..], &y.items[..]].concat(), x.kind);
        }
        (Operator::Multiply, Value::Text(_) | Value::List(_), count)
        | (Operator::Multiply, count, Value::Text(_) | Value::List(_)) => {
            let many = if count.as_int().is_some() && matches!(b, Value::Text(_) | Value::List(_)) {
                b
            } else {
                a
            };
            if let Some(count) = count.as_int() {
                return repeat(meter, many, usize::try_from(count.max(0)).unwrap_or(usize::MAX));
            }
        }
        _ => {}
    }
    defined(b)?;
    let numbers = pair(a, b);
    match numbers {
        Some(Pair::Ints(a, b)) => integers(operator, a, b),
        Some(Pair::Floats(a, b)) => floats(operator, a, b),
        None => fail(format!(
            "unsupported operand type(s) for {}: '{}' and '{}'",
            operator.symbol(),
            a.type_name(),
            b.type_name()
        )),
    }
}

fn repeat(meter: &Meter<'_>, value: &Value, count: usize) -> Result<Value> {
    match value {
        Value::Text(text) => {
            let mut out = meter.builder();
            out.repeat(&text.text, if text.text.is_empty() { 0 } else { count })?;
            out.finish()
        }
        Value::List(list) => {
            let length = list.items.len().saturating_mul(count);
            meter.room(length.saturating_mul(size_of::<Value>()))?;
            meter.work(length)?;
            let items = list.items.iter().cycle().take(length).cloned().collect();
            meter.sequence(items, list.kind)
        }
        _ => fail("only a text or a list can be repeated"),
    }
}

fn integers(operator: Operator, a: i128, b: i128) -> Result<Value> {
    if b == 0 && matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder)
    {
        return fail("division by zero");
    }
    let done = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::Divide => return floats(operator, as_float(a), as_float(b)),
        Operator::FloorDivide => {
            a.checked_div_euclid(b).map(|q| if b < 0 && a.rem_euclid(b) != 0 { q - 1 } else { q })
        }
        Operator::Remainder => {
            a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
        }
        Operator::Power if b < 0 => return floats(operator, as_float(a), as_float(b)),
        Operator::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    done.map_or_else(|| fail("the integer is too large"), |number| Ok(Value::Int(number)))
}

#[expect(clippy::cast_precision_loss, reason = "as Python converts")]
const fn as_float(number: i128) -> f64 {
    number as f64
}

fn floats(operator: Operator, a: f64, b: f64) -> Result<Value> {
    if b == 0.0
        && matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder)
    {
        return fail("division by zero");
    }
    let remainder = || {
        let r = a % b;
        if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
    };
    Ok(Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => ((a - remainder()) / b).round(),
        Operator::Remainder => remainder(),
        Operator::Power => a.powf(b),
    }))
}

/// `a == b`.
pub(crate) fn equal(meter: &Meter<'_>, a: &Value, b: &Value) -> Result<bool> {
    equal_at(meter, a, b, 0)
}

fn equal_at(meter: &Meter<'_>, a: &Value, b: &Value, depth: usize) -> Result<bool> {
    meter.work(1)?;
    if depth > VALUE_DEPTH {
        return fail("a value is nested too deeply");
    }
    match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => Ok(true),
        (Value::Text(a), Value::Text(b)) => {
            meter.work(a.text.len().min(b.text.len()) / 16)?;
            Ok(a.text == b.text)
        }
        (Value::List(a), Value::List(b)) => {
            if a.items.len() != b.items.len() || a.kind != b.kind {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal_at(meter, a, b, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.pairs.len() != b.pairs.len() {
                return Ok(false);
            }
            for (key, value) in &a.pairs {
                match b.get(key) {
                    Some(other) if equal_at(meter, value, other, depth + 1)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (Value::Object(a), Value::Object(b)) => Ok(a == b),
        (Value::Function(a), Value::Function(b)) => Ok(std::sync::Arc::ptr_eq(a, b)),
        _ => Ok(match pair(a, b) {
            Some(Pair::Ints(a, b)) => a == b,
            Some(Pair::Floats(a, b)) => a.partial_cmp(&b) == Some(Ordering::Equal),
            None => false,
        }),
    }
}

/// The order of two values; fails if they have none.
pub(crate) fn order(meter: &Meter<'_>, a: &Value, b: &Value) -> Result<Ordering> {
    order_at(meter, a, b, 0)
}

fn order_at(meter: &Meter<'_>, a: &Value, b: &Value, depth: usize) -> Result<Ordering> {
    meter.work(1)?;
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            meter.work(a.text.len().min(b.text.len()) / 16)?;
            Ok(a.text.cmp(&b.text))
        }
        (Value::List(a), Value::List(b)) if a.kind == b.kind && depth <= VALUE_DEPTH => {
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal_at(meter, a, b, depth + 1)? {
                    return order_at(meter, a, b, depth + 1);
                }
            }
            Ok(a.items.len().cmp(&b.items.len()))
        }
        _ => {
            defined(a)?;
            defined(b)?;
            match pair(a, b) {
                Some(Pair::Ints(a, b)) => Ok(a.cmp(&b)),
                Some(Pair::Floats(a, b)) => Ok(a.partial_cmp(&b).unwrap_or(Ordering::Greater)),
                None => fail(format!(
                    "'<' not supported between instances of '{}' and '{}'",
                    a.type_name(),
                    b.type_name()
                )),
            }
        }
    }
}

/// Sorts by a comparison that may fail; equal items stay in their order.
pub(crate) fn sort<T>(
    meter: &Meter<'_>,
    items: &mut [T],
    mut compare: impl FnMut(&T, &T) -> Result<Ordering>,
) -> Result<()> {
    meter.work(items.len())?;
    let mut failed = None;
    items.sort_by(|a, b| {
        if failed.is_some() {
            return Ordering::Equal;
        }
        compare(a, b).unwrap_or_else(|fault| {
            failed = Some(fault);
            Ordering::Equal
        })
    });
    failed.map_or(Ok(()), Err)
}

pub(crate) fn compare(meter: &Meter<'_>, how: Comparison, a: &Value, b: &Value) -> Result<bool> {
    Ok(match how {
        Comparison::Equal => equal(meter, a, b)?,
        Comparison::NotEqual => !equal(meter, a, b)?,
        Comparison::In => contains(meter, b, a)?,
        Comparison::NotIn => !contains(meter, b, a)?,
        Comparison::Less => order(meter, a, b)? == Ordering::Less,
        Comparison::LessEqual => order(meter, a, b)? != Ordering::Greater,
        Comparison::Greater => order(meter, a, b)? == Ordering::Greater,
        Comparison::GreaterEqual => order(meter, a, b)? != Ordering::Less,
    })
}

/// `item in container`.
pub(crate) fn contains(meter: &Meter<'_>, container: &Value, item: &Value) -> Result<bool> {
    match container {
        Value::Undefined(_) => Ok(false),
        Value::Text(text) => match item {
            Value::Text(part) => {
                meter.work(text.text.len() / 8 + 1)?;
                Ok(text.text.contains(&part.text))
            }
            other => {
                defined(other)?;
                let name = other.type_name();
                fail(format!("'in <string>' requires string as left operand, not {name}"))
            }
        },
        Value::List(list) => {
            for known in &list.items {
                if equal(meter, known, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Dict(dict) if item.is_key() => Ok(dict.get(item).is_some()),
        Value::Dict(_) => fail(format!("unhashable type: '{}'", item.type_name())),
        other => fail(format!("argument of type '{}' is not iterable", other.type_name())),
    }
}

/// The items of a value in a loop: characters of a text, keys of a dictionary.
pub(crate) fn items(meter: &Meter<'_>, value: &Value) -> Result<Vec<Value>> {
    match value {
        Value::Undefined(_) => Ok(Vec::new()),
        Value::List(list) => {
            meter.work(list.items.len())?;
            meter.room(list.items.len().saturating_mul(size_of::<Value>()))?;
            Ok(list.items.clone())
        }
        Value::Dict(dict) => {
            meter.work(dict.pairs.len())?;
            meter.room(dict.pairs.len().saturating_mul(size_of::<Value>()))?;
            Ok(dict.pairs.iter().map(|(key, _)| key.clone()).collect())
        }
        Value::Text(text) => {
            meter.room(text.text.len().saturating_mul(2 * size_of::<Value>()))?;
            text.text.chars().map(|c| meter.text(c)).collect()
        }
        other => fail(format!("'{}' object is not iterable", other.type_name())),
    }
}

/// `len(value)`.
pub(crate) fn length(meter: &Meter<'_>, value: &Value) -> Result<usize> {
    match value {
        Value::Undefined(_) => Ok(0),
        Value::Text(text) => {
            meter.work(text.text.len() / 16)?;
            Ok(text.text.chars().count())
        }
        Value::List(list) => Ok(list.items.len()),
        Value::Dict(dict) => Ok(dict.pairs.len()),
        other => fail(format!("object of type '{}' has no len()", other.type_name())),
    }
}

/// The place of an index that may count from the end.
pub(crate) fn place(index: i128, length: usize) -> Option<usize> {
    let length = i128::try_from(length).ok()?;
    let at = if index < 0 { index + length } else { index };
    usize::try_from(at).ok().filter(|_| at < length)
}

/// `value[start:stop:step]`.
pub(crate) fn slice(meter: &Meter<'_>, value: &Value, parts: &[Option<Value>; 3]) -> Result<Value> {
    defined(value)?;
    let bound = |part: &Option<Value>| match part {
        None | Some(Value::None) => Ok(None),
        Some(value) => {
            defined(value)?;
            match value.as_int() {
                Some(number) => Ok(Some(number)),
                None => fail("slice indices must be integers or None or have an __index__ method"),
            }
        }
    };
    let [start, stop, step] = parts;
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return fail("slice step cannot be zero");
    }
    match value {
        Value::Text(text) if step == 1 => {
            let text = &text.text;
            meter.work(text.len() / 16)?;
            let length = if text.is_ascii() { text.len() } else { text.chars().count() };
            let (from, to) = range(start, stop, 1, length);
            let offset = |at: usize| match text.is_ascii() {
                true => at,
                false => text.char_indices().nth(at).map_or(text.len(), |(at, _)| at),
            };
            let (from, to) = (offset(from), offset(to.max(from)));
            meter.text(&text[from..to])
        }
        Value::Text(text) => {
            meter.room(text.text.len().saturating_mul(4))?;
            let characters: Vec<char> = text.text.chars().collect();
            meter.text(picked(&characters, start, stop, step).into_iter().collect::<String>())
        }
        Value::List(list) => {
            meter.room(list.items.len().saturating_mul(size_of::<Value>()))?;
            let kind = if list.kind == ListKind::Tuple { ListKind::Tuple } else { ListKind::List };
            meter.sequence(picked(&list.items, start, stop, step), kind)
        }
        other => fail(format!("'{}' object is not subscriptable", other.type_name())),
    }
}

/// First place and the place after the last one, in the direction of the step.
fn range(start: Option<i128>, stop: Option<i128>, step: i128, length: usize) -> (usize, usize) {
    let length = i128::try_from(length).unwrap_or(i128::MAX);
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |at: i128| (if at < 0 { at + length } else { at }).clamp(low, high);
    let start = start.map_or(if step > 0 { low } else { high }, clamp);
    let stop = stop.map_or(if step > 0 { high } else { low }, clamp);
    // Shifted by one for negative steps, so that both are natural numbers.
    let shift = i128::from(step < 0);
    let natural = |at: i128| usize::try_from(at + shift).unwrap_or(0);
    (natural(start), natural(stop))
}

fn picked<T: Clone>(all: &[T], start: Option<i128>, stop: Option<i128>, step: i128) -> Vec<T> {
    let (from, to) = range(start, stop, step, all.len());
    let stride = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
    if step > 0 {
        return all.get(from..to).unwrap_or_default().iter().step_by(stride).cloned().collect();
    }
    all.get(to..from).unwrap_or_default().iter().rev().step_by(stride).cloned().collect()
}
