//! `Loop` and `Scan` as a repeated body: the body is built once and runs for each iteration.
//!
//! Shapes, branches and results of such a body do not depend on the number of the iteration. `control`
//! unrolls other bodies.

use std::collections::HashMap;

use plan::graph::{BodyEnds, Tensor};

use crate::array::{Elem, Known};
use crate::error::{Built, NodeResult, Stop};
use crate::graph::Builder;
use crate::import::{Import, Saved, Value};
use crate::item::Item;
use crate::proto::GraphProto;

/// Most iterations that are always unrolled.
const FEW: usize = 4;

/// Most nodes that all iterations execute together: the count is a number of the file.
const MOST_EXECUTIONS: usize = 1 << 24;

/// Most elements of an integer state that shapes may depend on after the loop.
const FEW_INTEGERS: usize = 16;

/// A `Loop` or `Scan`.
pub(crate) struct Repeat<'b, 'm> {
    pub(crate) body: &'m GraphProto,
    pub(crate) count: usize,
    /// Condition of a `Loop` for its body; `None` for a `Scan`.
    pub(crate) condition: Option<Value>,
    pub(crate) states: &'b [Item<'m>],
    /// Values of which each iteration gets an entry of an axis, and true if from the end.
    pub(crate) scans: &'b [(Value, usize, bool)],
    /// True for each scanned output that is filled from the end.
    pub(crate) backward: &'b [bool],
}

/// State of a builder before an attempt.
struct Before<'m> {
    import: Saved,
    scopes: Vec<HashMap<&'m str, Item<'m>>>,
}

impl<'m> Builder<'m> {
    /// Builds the body once: the last states, and the scanned outputs with a leading axis. `None`
    /// if it must be unrolled; the builder is then as before.
    pub(crate) fn repeated(
        &mut self,
        repeat: &Repeat<'_, 'm>,
    ) -> Built<Option<(Vec<Item<'m>>, Vec<Value>)>> {
        if self.unrolled > 0 || !worthwhile(repeat) || self.im.g.is_repeating() {
            return Ok(None);
        }
        // Most bodies compute no indices, so they carry no result of checks.
        for checked in [false, true] {
            let before = Before { import: self.im.save(), scopes: self.scopes.clone() };
            let (frame, checks) = (self.frame.clone(), self.im.checks());
            match self.attempt(repeat, checked) {
                Ok(made) => return Ok(Some(made)),
                // The unrolled form may not need what is missing, or reports the error.
                Err(Stop::Failed(_) | Stop::Needs { .. }) => {
                    let checks = self.im.checks() > checks;
                    self.im.restore(before.import);
                    (self.scopes, self.frame) = (before.scopes, frame);
                    self.charge(0)?;
                    if !checks {
                        break;
                    }
                }
            }
        }
        Ok(None)
    }

    /// Builds the body, which may compute indices only if it is `checked`.
    fn attempt(
        &mut self,
        repeat: &Repeat<'_, 'm>,
        checked: bool,
    ) -> Built<(Vec<Item<'m>>, Vec<Value>)> {
        let Repeat { body, count, condition, states, scans, backward } = repeat;
        let last = i32::try_from(count - 1).map_err(|_| "too many iterations")?;
        let mut carried = Vec::new();
        for state in *states {
            carried.push(Carried::new(&mut self.im, state.clone())?);
        }
        let g = &mut self.im.g;
        let counters = [g.counter(0, 1)?, g.counter(last, -1)?];
        let mut tables = Vec::new();
        for (value, axis, from_end) in *scans {
            let tensor = self.im.tensor(value)?;
            let rank = self.im.g.shape(tensor).len();
            let order: Vec<_> =
                [*axis].into_iter().chain((0..rank).filter(|i| i != axis)).collect();
            let table = self.im.g.permute(tensor, &order)?;
            tables.push((value.elem(), self.im.g.contiguous(table), *from_end));
        }
        let mut outside = None;
        if checked {
            let zero = self.im.g.constant(0.0);
            let zero = self.im.g.reshape(zero, &[1])?;
            outside = Some(self.im.g.carried(zero)?);
        }
        let checks = self.im.checks();
        let used = [true, scans.iter().any(|scan| scan.2) || backward.contains(&true)];
        self.im.g.begin_repeat(*count);
        let mut inputs = Vec::new();
        if let Some(condition) = condition {
            let tensor = self.im.g.reshape(counters[0].value, &[])?;
            inputs.push(Item::Value(Value::Device { elem: Elem::I64, tensor }));
            inputs.push(Item::Value(condition.clone()));
        }
        for state in &carried {
            inputs.push(Item::Value(state.value(&mut self.im)?));
        }
        for (elem, table, from_end) in tables {
            let index = counters[usize::from(from_end)].value;
            let row = self.im.g.gather(table, &[index])?;
            let shape = self.im.g.shape(row)[1..].to_vec();
            let tensor = self.im.g.reshape(row, &shape)?;
            inputs.push(Item::Value(Value::Device { elem, tensor }));
        }
        let before = self.work;
        let mut made = self.graph(body, inputs)?.into_iter();
        if (self.work - before).saturating_mul(*count) > MOST_EXECUTIONS {
            return Err("too many iterations".into());
        }
        if condition.is_some() {
            let next = made.next().map(Item::value).transpose()?.flatten();
            let goes_on =
                matches!(&next, Some(Value::Known(k)) if k.scalar().is_some_and(|n| n != 0.0));
            if !goes_on {
                return Err("the condition changes".into());
            }
        }
        let mut next = Vec::new();
        for (state, item) in carried.iter().zip(made.by_ref()) {
            next.push((state.tensor, state.next(&mut self.im, item)?));
        }
        if let Some(outside) = outside {
            next.push((outside, self.im.join_checks(checks, outside)?));
        } else if self.im.checks() > checks {
            return Err("computed indices".into());
        }
        let (mut rows, mut elems) = (Vec::new(), Vec::new());
        for (item, from_end) in made.zip(*backward) {
            let value = item.value()?.ok_or("an optional output")?;
            let row = self.im.tensor(&value)?;
            let shape = [&[*count], self.im.g.shape(row)].concat();
            if shape.contains(&0) {
                return Err("an empty output".into());
            }
            let dtype = self.im.g.dtype(row);
            let table = self.im.g.filled(&shape, dtype)?;
            rows.push((table, counters[usize::from(*from_end)].value, row));
            elems.push(value.elem());
        }
        let counters = if used[1] { &counters[..] } else { &counters[..1] };
        let ends = BodyEnds { next: &next, rows: &rows, counters };
        let (mut last, tables) = self.im.g.end_repeat(&ends)?;
        if let Some(outside) = last.pop_if(|_| checked) {
            self.im.add_check(outside);
        }
        let mut states = Vec::new();
        for (state, tensor) in carried.into_iter().zip(last) {
            let state = Carried { tensor, ..state };
            states.push(Item::Value(state.value(&mut self.im)?));
        }
        let outputs = elems.into_iter().zip(tables);
        let outputs = outputs.map(|(elem, tensor)| Value::Device { elem, tensor });
        Ok((states, outputs.collect()))
    }
}

/// False for few iterations, and where all values are known: shapes may follow from these.
fn worthwhile(repeat: &Repeat<'_, '_>) -> bool {
    let open = |value: &Value| matches!(value, Value::Device { .. });
    let mut any = repeat.scans.iter().any(|(value, ..)| open(value));
    for state in repeat.states {
        match state {
            Item::Value(value @ Value::Device { .. }) => any |= open(value),
            Item::Value(Value::Known(Known { elem, values })) => {
                if elem.is_integer() && values.len() <= FEW_INTEGERS {
                    return false;
                }
            }
            _ => return false,
        }
    }
    any && repeat.count > FEW
}

/// A state of the loop.
struct Carried {
    elem: Elem,
    shape: Vec<usize>,
    /// At least one axis.
    tensor: Tensor,
}

impl Carried {
    fn new(im: &mut Import, state: Item<'_>) -> NodeResult<Self> {
        let value = state.value()?.ok_or("an optional state")?;
        let tensor = im.tensor(&value)?;
        let shape = im.g.shape(tensor).to_vec();
        if shape.contains(&0) {
            return Err("an empty state".into());
        }
        let tensor = im.g.reshape(tensor, stored(&shape))?;
        Ok(Self { elem: value.elem(), tensor: im.g.carried(tensor)?, shape })
    }

    fn value(&self, im: &mut Import) -> NodeResult<Value> {
        let tensor = im.g.reshape(self.tensor, &self.shape)?;
        Ok(Value::Device { elem: self.elem, tensor })
    }

    /// The replacement that the body computes, if it has the state's shape and type.
    fn next(&self, im: &mut Import, item: Item<'_>) -> NodeResult<Tensor> {
        let value = item.value()?.ok_or("an optional state")?;
        let tensor = im.tensor(&value)?;
        if value.elem() != self.elem || im.g.shape(tensor) != self.shape {
            return Err("a state changes its shape or type".into());
        }
        Ok(im.g.reshape(tensor, stored(&self.shape))?)
    }
}

const fn stored(shape: &[usize]) -> &[usize] {
    if shape.is_empty() { &[1] } else { shape }
}
