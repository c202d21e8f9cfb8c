//! Control flow: the branch of an `If` is chosen, and `Loop` and `Scan` are repeated or unrolled
//! while the graph is built; functions of the model are inlined.

use std::collections::HashMap;
use std::rc::Rc;

use crate::array::{Elem, Known};
use crate::error::{Built, NodeResult, Stop, invalid};
use crate::graph::{Builder, Frame};
use crate::import::{Import, Value};
use crate::item::Item;
use crate::node::{axis, node_name, resolved};
use crate::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use crate::repeat::Repeat;

/// Builds a node that has graphs inside it.
type Operator = for<'m> fn(&mut Builder<'m>, &'m NodeProto) -> Built<Vec<Item<'m>>>;

/// Names of the operators.
pub(crate) const NAMES: &[&str] = &["If", "Loop", "Scan"];

pub(crate) fn find(name: &str) -> Option<Operator> {
    Some(match name {
        "If" => choose,
        "Loop" => repeat,
        "Scan" => scan,
        _ => return None,
    })
}

impl<'m> Builder<'m> {
    fn attribute(&self, proto: &'m NodeProto, name: &str) -> Option<&'m AttributeProto> {
        let found = proto.attribute.iter().find(|a| a.name == name)?;
        resolved(found, &self.frame.attributes)
    }

    fn body(&self, proto: &'m NodeProto, name: &str) -> NodeResult<&'m GraphProto> {
        let found = self.attribute(proto, name).and_then(|a| a.g.as_ref());
        found.ok_or_else(|| invalid(format!("{name} is missing")))
    }

    /// Items of a node's inputs; `None` for omitted ones.
    pub(crate) fn items(&mut self, proto: &'m NodeProto) -> NodeResult<Vec<Option<Item<'m>>>> {
        let names = proto.input.iter();
        names
            .map(|name| if name.is_empty() { Ok(None) } else { self.item(name).map(Some) })
            .collect()
    }

    /// Builds a graph inside a node, in a scope of its own, which sees the names around it.
    pub(crate) fn graph(
        &mut self,
        graph: &'m GraphProto,
        inputs: Vec<Item<'m>>,
    ) -> Built<Vec<Item<'m>>> {
        if inputs.len() > graph.input.len() {
            let (have, want) = (inputs.len(), graph.input.len());
            return Err(invalid(format!("{have} values for a body of {want} inputs")).into());
        }
        self.scopes.push(HashMap::new());
        self.initializers(graph);
        for (info, item) in graph.input.iter().zip(inputs) {
            self.set(&info.name, item);
        }
        self.nodes(&graph.node)?;
        let made = graph.output.iter().map(|output| Ok(self.item(&output.name)?)).collect();
        self.scopes.pop();
        made
    }

    fn nodes(&mut self, nodes: &'m [NodeProto]) -> Built<()> {
        for (i, node) in nodes.iter().enumerate() {
            self.charge(0)?;
            self.step(node).map_err(|stop| match stop {
                // The innermost node is named.
                Stop::Failed(mut why) if !why.what.starts_with("node `") => {
                    let (name, op) = (node_name(node, i), &node.op_type);
                    why.what = format!("node `{name}` ({op}): {}", why.what);
                    Stop::Failed(why)
                }
                other => other,
            })?;
        }
        Ok(())
    }

    /// Inlines a function of the model.
    pub(crate) fn call(
        &mut self,
        function: &'m FunctionProto,
        proto: &'m NodeProto,
    ) -> Built<Vec<Item<'m>>> {
        let mut inputs = self.items(proto)?.into_iter();
        let defaults = function.attribute_proto.iter().map(|a| (&*a.name, a));
        let mut attributes: HashMap<&str, &AttributeProto> = defaults.collect();
        for attribute in &proto.attribute {
            if let Some(value) = resolved(attribute, &self.frame.attributes) {
                attributes.insert(&attribute.name, value);
            }
        }
        let opset = crate::model::own_opset(&function.opset_import).unwrap_or(self.frame.opset);
        self.frame = Frame { base: self.scopes.len(), opset, attributes: Rc::new(attributes) };
        self.scopes.push(HashMap::new());
        for name in &function.input {
            self.set(name, inputs.next().flatten().unwrap_or(Item::Nothing));
        }
        self.nodes(&function.node)?;
        function.output.iter().map(|name| Ok(self.item(name)?)).collect()
    }

    /// Truth of a condition. `None` if it is optional to know it, and it changes with the data.
    fn truth(&mut self, value: &Value, optional: bool) -> Built<Option<bool>> {
        let known = match value {
            Value::Known(known) => known.clone(),
            Value::Device { .. } => {
                let what = "the condition depends on data";
                match self.need(std::slice::from_ref(value), optional, what)?.as_deref() {
                    Some([known]) => known.clone(),
                    _ => return Ok(None),
                }
            }
        };
        let value =
            known.scalar().ok_or_else(|| invalid("the condition is not a scalar".into()))?;
        Ok(Some(value != 0.0))
    }
}

/// Input `place` as a tensor.
fn tensor(items: &[Option<Item<'_>>], place: usize) -> NodeResult<Option<Value>> {
    match items.get(place).cloned().flatten() {
        Some(item) => item.value(),
        None => Ok(None),
    }
}

/// `If`: the branch that a known condition names, or else both, of whose results each element is
/// selected.
fn choose<'m>(builder: &mut Builder<'m>, proto: &'m NodeProto) -> Built<Vec<Item<'m>>> {
    let items = builder.items(proto)?;
    let condition = tensor(&items, 0)?.ok_or_else(|| invalid("the condition is missing".into()))?;
    let branches = [builder.body(proto, "then_branch")?, builder.body(proto, "else_branch")?];
    if let Some(truth) = builder.truth(&condition, true)? {
        return builder.graph(branches[usize::from(!truth)], Vec::new());
    }
    let first = builder.im.checks();
    let then = builder.graph(branches[0], Vec::new());
    let second = builder.im.checks();
    let other = builder.graph(branches[1], Vec::new());
    if let (Ok(then), Ok(other)) = (then, other)
        && let Ok(made) = select(&mut builder.im, &condition, [first, second], then, other)
    {
        return Ok(made);
    }
    builder.im.drop_checks(first);
    match builder.truth(&condition, false)? {
        Some(truth) => builder.graph(branches[usize::from(!truth)], Vec::new()),
        None => Err("the condition depends on data".into()),
    }
}

fn select<'m>(
    im: &mut Import,
    condition: &Value,
    [first, second]: [usize; 2],
    then: Vec<Item<'m>>,
    other: Vec<Item<'m>>,
) -> NodeResult<Vec<Item<'m>>> {
    let condition = im.float(condition)?;
    let condition = im.g.reshape(condition, &[])?;
    let (one, zero) = (im.g.constant(1.0), im.g.constant(0.0));
    let checks = im.checks();
    for (range, values) in [(first..second, [one, zero]), (second..checks, [zero, one])] {
        if !range.is_empty() {
            let taken = im.g.select(condition, values[0], values[1])?;
            im.restrict_checks(range, taken)?;
        }
    }
    let mut made = Vec::new();
    for (a, b) in then.into_iter().zip(other) {
        let (Some(a), Some(b)) = (a.value()?, b.value()?) else {
            return Err("an optional output".into());
        };
        let elem = a.elem();
        if b.elem() != elem || im.shape(&a) != im.shape(&b) {
            return Err("the branches have different shapes".into());
        }
        let (a, b) = (im.tensor(&a)?, im.tensor(&b)?);
        let tensor = im.g.select(condition, a, b)?;
        made.push(Item::Value(Value::Device { elem, tensor }));
    }
    Ok(made)
}

/// `Loop`: as many copies of the body as there are iterations.
fn repeat<'m>(builder: &mut Builder<'m>, proto: &'m NodeProto) -> Built<Vec<Item<'m>>> {
    let body = builder.body(proto, "body")?;
    let items = builder.items(proto)?;
    let most = match tensor(&items, 0)? {
        None => None,
        Some(Value::Known(known)) => known.scalar(),
        Some(value) => {
            let found =
                builder.need(&[value], false, "the number of iterations depends on data")?;
            found.and_then(|all| all.first()?.scalar())
        }
    };
    let mut condition = tensor(&items, 1)?;
    let states = items.iter().skip(2).cloned().map(|item| item.unwrap_or(Item::Nothing));
    let mut states: Vec<Item<'_>> = states.collect();
    let count = states.len();
    let Some(scans) = body.output.len().checked_sub(1 + count) else {
        return Err("the body has fewer outputs than the loop has states".into());
    };
    if let Some(most) = most.filter(|most| *most >= 1.0)
        && is_true(condition.as_ref())
    {
        let repeat = Repeat {
            body,
            count: most as usize,
            condition: Some(Value::Known(Known::of(Elem::Bool, 1.0))),
            states: &states,
            scans: &[],
            backward: &vec![false; scans],
        };
        if let Some((mut states, outputs)) = builder.repeated(&repeat)? {
            states.extend(outputs.into_iter().map(Item::Value));
            return Ok(states);
        }
    }
    let mut rows: Vec<Vec<Value>> = vec![Vec::new(); scans];
    let mut i = 0.0;
    builder.unrolled += 1;
    while most.is_none_or(|most| i < most) {
        if let Some(value) = &condition
            && builder.truth(value, false)? != Some(true)
        {
            break;
        }
        builder.charge(0)?;
        let number = Value::Known(Known::of(Elem::I64, i));
        let first = condition.clone().unwrap_or_else(|| Value::Known(Known::of(Elem::Bool, 1.0)));
        let mut inputs = vec![Item::Value(number), Item::Value(first)];
        inputs.append(&mut states);
        let mut made = builder.graph(body, inputs)?.into_iter();
        condition = made.next().map(Item::value).transpose()?.flatten();
        states = made.by_ref().take(count).collect();
        for (row, item) in rows.iter_mut().zip(made) {
            row.extend(item.value()?);
        }
        i += 1.0;
    }
    builder.unrolled -= 1;
    let declared = body.output.iter().skip(1 + count);
    for (row, info) in rows.into_iter().zip(declared) {
        let value = if row.is_empty() {
            Value::Known(builder.model.empty(info)?)
        } else {
            stacked(&mut builder.im, row, 0)?
        };
        states.push(Item::Value(value));
    }
    Ok(states)
}

/// True if a condition is omitted, or known to be true.
fn is_true(condition: Option<&Value>) -> bool {
    match condition {
        None => true,
        Some(Value::Known(known)) => known.scalar().is_some_and(|value| value != 0.0),
        Some(Value::Device { .. }) => false,
    }
}

/// Joins values along a new axis.
fn stacked(im: &mut Import, values: Vec<Value>, at: i64) -> NodeResult<Value> {
    let rank = values.first().map_or(0, |value| im.shape(value).len());
    let at = axis(at, rank + 1)?;
    let mut wide = Vec::new();
    for value in values {
        let mut shape = im.shape(&value);
        shape.insert(at, 1);
        wide.push(im.reshaped(&value, &shape)?);
    }
    im.joined(&wide, at)
}

/// The value with its first axis at another place.
fn moved(im: &mut Import, value: &Value, at: i64) -> NodeResult<Value> {
    let elem = value.elem();
    let tensor = im.tensor(value)?;
    let rank = im.g.shape(tensor).len();
    let mut order: Vec<usize> = (1..rank).collect();
    order.insert(axis(at, rank)?, 0);
    Ok(Value::Device { elem, tensor: im.g.permute(tensor, &order)? })
}

/// `Scan`: one copy of the body for each element of the scanned axes. Opset 8 has a batch axis.
fn scan<'m>(builder: &mut Builder<'m>, proto: &'m NodeProto) -> Built<Vec<Item<'m>>> {
    let mut items = builder.items(proto)?;
    if builder.frame.opset >= 9 {
        return scanned(builder, proto, items);
    }
    if items.is_empty() || items.remove(0).is_some() {
        return Err("sequence_lens is not supported".into());
    }
    let mut values = Vec::new();
    for item in items {
        values.extend(item.map(Item::value).transpose()?.flatten());
    }
    let batch = values.first().map_or(0, |value| builder.im.shape(value)[0]);
    let mut rows: Vec<Vec<Value>> = Vec::new();
    for i in 0..batch {
        let mut own = Vec::new();
        for value in &values {
            own.push(Some(Item::Value(builder.im.entry(value, 0, i)?)));
        }
        let made = scanned(builder, proto, own)?;
        rows.resize(made.len(), Vec::new());
        for (row, item) in rows.iter_mut().zip(made) {
            row.extend(item.value()?);
        }
    }
    let mut made = Vec::new();
    for row in rows {
        made.push(Item::Value(stacked(&mut builder.im, row, 0)?));
    }
    Ok(made)
}

fn scanned<'m>(
    builder: &mut Builder<'m>,
    proto: &'m NodeProto,
    items: Vec<Option<Item<'m>>>,
) -> Built<Vec<Item<'m>>> {
    let body = builder.body(proto, "body")?;
    let inputs = builder.attribute(proto, "num_scan_inputs").map_or(0, |a| a.i);
    let inputs = usize::try_from(inputs).ok().filter(|n| *n > 0 && *n <= items.len());
    let inputs = inputs.ok_or_else(|| invalid("num_scan_inputs does not fit".into()))?;
    let count = items.len() - inputs;
    let Some(outputs) = body.output.len().checked_sub(count) else {
        return Err("the body has fewer outputs than the scan has states".into());
    };
    let builder_numbers = |builder: &Builder<'m>, name: &str, count: usize| {
        let given = builder.attribute(proto, name).map(|a| a.ints.clone()).unwrap_or_default();
        (0..count).map(|i| given.get(i).copied().unwrap_or(0)).collect::<Vec<i64>>()
    };
    let axes = builder_numbers(builder, "scan_input_axes", inputs);
    let old = builder_numbers(builder, "directions", inputs);
    let directions = builder_numbers(builder, "scan_input_directions", inputs);
    let out_axes = builder_numbers(builder, "scan_output_axes", outputs);
    let out_directions = builder_numbers(builder, "scan_output_directions", outputs);
    let mut states: Vec<Item<'m>> = Vec::new();
    let mut scans = Vec::new();
    for (place, item) in items.into_iter().enumerate() {
        let item = item.ok_or_else(|| invalid(format!("input {place} is missing")))?;
        if place < count {
            states.push(item);
        } else {
            scans.extend(item.value()?);
        }
    }
    let mut places = Vec::new();
    for (value, at) in scans.iter().zip(axes) {
        let shape = builder.im.shape(value);
        let at = axis(at, shape.len())?;
        places.push((at, shape[at]));
    }
    let length = places.first().map_or(0, |(_, extent)| *extent);
    if places.iter().any(|(_, extent)| *extent != length) {
        return Err("the scanned axes have different extents".into());
    }
    let from_end: Vec<bool> = (0..inputs).map(|i| directions[i] != 0 || old[i] != 0).collect();
    let scanned = scans.iter().zip(&places).zip(&from_end);
    let scanned: Vec<_> =
        scanned.map(|((value, place), from_end)| (value.clone(), place.0, *from_end)).collect();
    let repeat = Repeat {
        body,
        count: length,
        condition: None,
        states: &states,
        scans: &scanned,
        backward: &out_directions.iter().map(|way| *way != 0).collect::<Vec<_>>(),
    };
    if let Some((mut states, outputs)) = builder.repeated(&repeat)? {
        for (value, at) in outputs.into_iter().zip(out_axes) {
            states.push(Item::Value(moved(&mut builder.im, &value, at)?));
        }
        return Ok(states);
    }
    let mut rows: Vec<Vec<Value>> = vec![Vec::new(); outputs];
    builder.unrolled += 1;
    for step in 0..length {
        builder.charge(0)?;
        let mut inputs = std::mem::take(&mut states);
        for (i, value) in scans.iter().enumerate() {
            let at = if from_end[i] { length - 1 - step } else { step };
            inputs.push(Item::Value(builder.im.entry(value, places[i].0, at)?));
        }
        let mut made = builder.graph(body, inputs)?.into_iter();
        states = made.by_ref().take(count).collect();
        for (row, item) in rows.iter_mut().zip(made) {
            row.extend(item.value()?);
        }
    }
    builder.unrolled -= 1;
    for (i, mut row) in rows.into_iter().enumerate() {
        if out_directions[i] != 0 {
            row.reverse();
        }
        let value = if row.is_empty() {
            Value::Known(builder.model.empty(&body.output[count + i])?)
        } else {
            stacked(&mut builder.im, row, out_axes[i])?
        };
        states.push(Item::Value(value));
    }
    Ok(states)
}
