//! Evaluates expressions: names, operators, attributes, calls.

use std::sync::Arc;

use crate::args::{Args, int, needed};
use crate::ast::{Arguments, Comparison, Expression, Postfix};
use crate::meter::{Fault, Result, check_depth, fail};
use crate::methods;
use crate::objects::{Function, Object};
use crate::ops;
use crate::print;
use crate::run::Run;
use crate::value::{ListKind, Value};

/// The most items of a `range`, as in Jinja's sandbox.
const RANGE: usize = 100_000;
const GLOBALS: [&str; 7] =
    ["range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now"];

impl Run<'_> {
    pub(crate) fn expression(&mut self, expression: &Expression) -> Result<Value> {
        match expression {
            Expression::Constant(value) => return Ok(value.clone()),
            Expression::Name(name) => return Ok(self.name(name)),
            _ => {}
        }
        self.meter.work(1)?;
        self.meter.enter()?;
        let value = self.compound(expression);
        self.meter.leave();
        value
    }

    fn name(&self, name: &str) -> Value {
        if let Some(value) = self.variable(name) {
            return value;
        }
        match GLOBALS.iter().find(|known| **known == name) {
            Some(known) => Value::Function(Arc::new(Function::Global(known))),
            None => Value::missing("", name),
        }
    }

    fn all(&mut self, expressions: &[Expression]) -> Result<Vec<Value>> {
        expressions.iter().map(|expression| self.expression(expression)).collect()
    }

    fn compound(&mut self, expression: &Expression) -> Result<Value> {
        match expression {
            Expression::Constant(_) | Expression::Name(_) => self.expression(expression),
            Expression::List(items) => {
                let items = self.all(items)?;
                self.meter.list(items)
            }
            Expression::Tuple(items) => {
                let items = self.all(items)?;
                self.meter.tuple(items)
            }
            Expression::Dict(pairs) => {
                let mut all = Vec::with_capacity(pairs.len());
                for (key, value) in pairs {
                    let key = self.expression(key)?;
                    if !key.is_key() {
                        return fail(format!("unhashable type: '{}'", key.type_name()));
                    }
                    all.push((key, self.expression(value)?));
                }
                self.meter.dict(all)
            }
            Expression::Not(operand) => Ok(Value::Bool(!self.expression(operand)?.is_true())),
            Expression::Negative(operand) => {
                let value = self.expression(operand)?;
                ops::defined(&value)?;
                match (value.as_int().map(i128::checked_neg), value.as_float()) {
                    (Some(Some(number)), _) => Ok(Value::Int(number)),
                    (None, Some(number)) => Ok(Value::Float(-number)),
                    _ => fail(format!("bad operand type for unary -: '{}'", value.type_name())),
                }
            }
            Expression::Positive(operand) => self.expression(operand),
            Expression::And(operands) => self.until(operands, false),
            Expression::Or(operands) => self.until(operands, true),
            Expression::Conditional(parts) => {
                let (condition, value, otherwise) = &**parts;
                match (self.expression(condition)?.is_true(), otherwise) {
                    (true, _) => self.expression(value),
                    (false, Some(otherwise)) => self.expression(otherwise),
                    (false, None) => Ok(Value::missing(
                        "#",
                        "the inline if-expression evaluated to false and no else section was defined.",
                    )),
                }
            }
            Expression::Chain(first, more) => {
                let mut value = self.expression(first)?;
                for (operator, operand) in more {
                    let operand = self.expression(operand)?;
                    value = ops::binary(self.meter, *operator, &value, &operand)?;
                }
                Ok(value)
            }
            Expression::Concat(operands) => {
                let values = self.all(operands)?;
                let mut out = self.meter.builder();
                for value in &values {
                    out.push(&print::text(self.meter, value)?)?;
                }
                out.finish()
            }
            Expression::Compare(first, more) => self.compare(first, more),
            Expression::Postfix(operand, more) => {
                let value = self.expression(operand)?;
                self.postfix(value, more)
            }
        }
    }

    /// The first operand with this truth value, or else the last.
    fn until(&mut self, operands: &[Expression], truth: bool) -> Result<Value> {
        let mut value = Value::None;
        for operand in operands {
            value = self.expression(operand)?;
            if value.is_true() == truth {
                break;
            }
        }
        Ok(value)
    }

    fn compare(&mut self, first: &Expression, more: &[(Comparison, Expression)]) -> Result<Value> {
        let mut left = self.expression(first)?;
        for (how, operand) in more {
            let right = self.expression(operand)?;
            if !ops::compare(self.meter, *how, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn arguments(&mut self, arguments: &Arguments) -> Result<Args> {
        let mut args = Args { positional: self.all(&arguments.positional)?, named: Vec::new() };
        for (name, expression) in &arguments.named {
            args.named.push((Arc::clone(name), self.expression(expression)?));
        }
        if let Some(spread) = &arguments.spread {
            let value = self.expression(spread)?;
            args.positional.extend(ops::items(self.meter, &value)?);
        }
        if let Some(spread) = &arguments.spread_named {
            let Value::Dict(dict) = self.expression(spread)? else {
                return fail("argument after ** must be a mapping");
            };
            for (key, value) in &dict.pairs {
                let Some(name) = key.as_str() else { return fail("keywords must be strings") };
                args.named.push((name.into(), value.clone()));
            }
        }
        Ok(args)
    }

    pub(crate) fn postfix(&mut self, value: Value, operations: &[Postfix]) -> Result<Value> {
        let mut value = value;
        let mut operations = operations.iter().peekable();
        while let Some(operation) = operations.next() {
            self.meter.work(1)?;
            value = match operation {
                Postfix::Attribute(name) => match operations.peek() {
                    Some(Postfix::Call(arguments)) if methods::exists(&value, name) => {
                        operations.next();
                        let args = self.arguments(arguments)?;
                        methods::call(self.meter, &value, name, args)?
                    }
                    _ => self.attribute(&value, name)?,
                },
                Postfix::Item(key) => {
                    let key = self.expression(key)?;
                    self.item(&value, &key)?
                }
                Postfix::Slice(parts) => {
                    let mut bounds = [const { None }; 3];
                    for (bound, part) in bounds.iter_mut().zip(parts) {
                        *bound = part.as_ref().map(|part| self.expression(part)).transpose()?;
                    }
                    ops::slice(self.meter, &value, &bounds)?
                }
                Postfix::Call(arguments) => {
                    let args = self.arguments(arguments)?;
                    self.call(&value, args)?
                }
                Postfix::Filter(name, arguments) => {
                    let args = self.arguments(arguments)?;
                    self.filter(name, value, args)?
                }
                Postfix::Test { name, arguments, negated } => {
                    let args = self.arguments(arguments)?;
                    Value::Bool(self.test(name, &value, args)? != *negated)
                }
            };
        }
        Ok(value)
    }

    /// `value.name`: an attribute, or else an item.
    pub(crate) fn attribute(&self, value: &Value, name: &str) -> Result<Value> {
        ops::defined(value)?;
        if methods::exists(value, name) {
            return Ok(Value::Function(Arc::new(Function::Method {
                receiver: value.clone(),
                name: name.into(),
            })));
        }
        let found = match value {
            Value::Dict(dict) => dict.get_text(name).cloned(),
            Value::Object(at) => match self.objects.get(*at) {
                Some(Object::Namespace(fields)) => fields
                    .iter()
                    .find(|(known, _)| &**known == name)
                    .map(|(_, value)| value.clone()),
                Some(Object::Cycler { items, at }) if name == "current" => items.get(*at).cloned(),
                Some(Object::Cycler { .. }) if ["next", "reset"].contains(&name) => {
                    let receiver = value.clone();
                    let method = Function::Method { receiver, name: name.into() };
                    Some(Value::Function(Arc::new(method)))
                }
                _ => None,
            },
            Value::Loop(state) => {
                let number =
                    |number: usize| Value::Int(i128::try_from(number).unwrap_or(i128::MAX));
                let missing = |value: &Option<Value>, name| {
                    value.clone().unwrap_or_else(|| Value::missing("#", name))
                };
                Some(match name {
                    "index" => number(state.index + 1),
                    "index0" => number(state.index),
                    "revindex" => number(state.length - state.index),
                    "revindex0" => number(state.length - state.index - 1),
                    "first" => Value::Bool(state.index == 0),
                    "last" => Value::Bool(state.index + 1 == state.length),
                    "length" => number(state.length),
                    "depth" => number(state.level),
                    "depth0" => number(state.level - 1),
                    "previtem" => missing(&state.previous, "there is no previous item"),
                    "nextitem" => missing(&state.next, "there is no next item"),
                    "cycle" | "changed" => Value::Function(Arc::new(Function::Method {
                        receiver: value.clone(),
                        name: name.into(),
                    })),
                    _ => Value::missing("LoopContext", name),
                })
            }
            Value::Function(function) => match &**function {
                Function::Macro(of) if name == "name" => {
                    Some(self.meter.text(of.definition.name.to_string())?)
                }
                _ => None,
            },
            _ => None,
        };
        Ok(found.unwrap_or_else(|| Value::missing(owner(value), name)))
    }

    /// `value[key]`: an item, or else an attribute.
    pub(crate) fn item(&self, value: &Value, key: &Value) -> Result<Value> {
        ops::defined(value)?;
        let found = match (value, key) {
            (Value::Dict(_), key) if !key.is_key() => {
                return fail(format!("unhashable type: '{}'", key.type_name()));
            }
            (Value::Dict(dict), key) => dict.get(key).cloned(),
            (Value::List(list), key) => {
                let at = key.as_int().and_then(|index| ops::place(index, list.items.len()));
                at.map(|at| list.items[at].clone())
            }
            (Value::Text(text), key) => match key.as_int() {
                Some(index) => {
                    let length = ops::length(self.meter, value)?;
                    let c = ops::place(index, length).and_then(|at| text.text.chars().nth(at));
                    c.map(|c| self.meter.text(c)).transpose()?
                }
                None => None,
            },
            _ => None,
        };
        match (found, key) {
            (Some(found), _) => Ok(found),
            (None, Value::Text(name)) => self.attribute_of_item(value, &name.text),
            (None, key) => {
                let mut shown = self.meter.builder();
                print::repr(&mut shown, key, 0)?;
                let message =
                    format!("{} object has no element {}", owner(value), shown.into_text());
                Ok(Value::missing("#", &message))
            }
        }
    }

    fn attribute_of_item(&self, value: &Value, name: &str) -> Result<Value> {
        match value {
            // The item does not exist, so only a method is left.
            Value::Dict(_) if !methods::exists(value, name) => {
                Ok(Value::missing(owner(value), name))
            }
            _ => self.attribute(value, name),
        }
    }

    pub(crate) fn call_with_caller(&mut self, call: &Expression, caller: Value) -> Result<Value> {
        let Expression::Postfix(operand, operations) = call else { return fail("expected a call") };
        let Some((Postfix::Call(arguments), before)) = operations.split_last() else {
            return fail("expected a call");
        };
        let value = self.expression(operand)?;
        let function = self.postfix(value, before)?;
        let mut args = self.arguments(arguments)?;
        args.named.push(("caller".into(), caller));
        self.call(&function, args)
    }

    pub(crate) fn call(&mut self, function: &Value, args: Args) -> Result<Value> {
        self.meter.work(1)?;
        match function {
            Value::Function(function) => match &**function {
                Function::Global(name) => self.global(name, args),
                Function::Macro(value) => self.call_macro(value, args),
                Function::Method { receiver: Value::Loop(state), name } => {
                    self.loop_method(state, name, args)
                }
                Function::Method { receiver: Value::Object(at), name } => {
                    self.object_method(*at, name)
                }
                Function::Method { receiver, name } => {
                    methods::call(self.meter, receiver, name, args)
                }
            },
            Value::Loop(state) => {
                let [items] = args.bind("loop", ["iterable"])?;
                self.recurse(state, &needed(items, "loop", "iterable")?)
            }
            Value::Object(at) => self.joiner(*at),
            other => {
                ops::defined(other)?;
                fail(format!("'{}' object is not callable", other.type_name()))
            }
        }
    }

    fn global(&mut self, name: &str, args: Args) -> Result<Value> {
        match name {
            "range" => self.range(args),
            "dict" | "namespace" => {
                let Args { positional, named } = args;
                let mut pairs = Vec::new();
                for value in &positional {
                    pairs.extend(self.pairs(value)?);
                }
                let named =
                    named.into_iter().map(|(key, value)| (Value::constant(key.to_string()), value));
                pairs.extend(named);
                if name == "dict" {
                    return self.meter.dict(pairs);
                }
                for (_, value) in &pairs {
                    check_depth(value.depth())?;
                }
                let field = |(key, value): (Value, Value)| Some((key.as_str()?.into(), value));
                let fields = pairs.into_iter().filter_map(field).collect();
                self.object(Object::Namespace(fields))
            }
            "cycler" => self.object(Object::Cycler { items: args.positional, at: 0 }),
            "joiner" => {
                let [separator] = args.bind(name, ["sep"])?;
                let separator = separator.unwrap_or_else(|| Value::constant(", ".into()));
                self.object(Object::Joiner { separator, used: false })
            }
            "raise_exception" => {
                let [message] = args.bind(name, ["message"])?;
                let message = needed(message, name, "message")?;
                Err(Fault::Raised(print::text(self.meter, &message)?.into_owned()))
            }
            _ => {
                let [format] = args.bind(name, ["format"])?;
                let format = needed(format, name, "format")?;
                let Some(format) = format.as_str() else { return fail("strftime_now needs a str") };
                match (self.clock)(format) {
                    Ok(text) => self.meter.text(text),
                    Err(why) => fail(format!("strftime_now: {why}")),
                }
            }
        }
    }

    /// Pairs of a dictionary or of a list of pairs.
    fn pairs(&self, value: &Value) -> Result<Vec<(Value, Value)>> {
        if let Value::Dict(dict) = value {
            self.meter.work(dict.pairs.len())?;
            return Ok(dict.pairs.clone());
        }
        let pair = |item: &Value| match ops::items(self.meter, item)?.as_slice() {
            [key, value] if key.is_key() => Ok((key.clone(), value.clone())),
            _ => fail("dict() needs pairs"),
        };
        ops::items(self.meter, value)?.iter().map(pair).collect()
    }

    fn range(&self, args: Args) -> Result<Value> {
        let [a, b, step] = args.bind("range", ["start", "stop", "step"])?;
        let step = int(step, 1)?;
        let (start, stop) = match b {
            None => (0, int(Some(needed(a, "range", "stop")?), 0)?),
            Some(b) => (int(a, 0)?, int(Some(b), 0)?),
        };
        if step == 0 {
            return fail("range() arg 3 must not be zero");
        }
        let span = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
        let stride = i128::try_from(step.unsigned_abs()).unwrap_or(i128::MAX);
        let count = span.max(0) / stride + i128::from(span > 0 && span % stride != 0);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > RANGE {
            return fail(format!("Range too big. The sandbox blocks ranges larger than {RANGE}."));
        }
        let numbers = std::iter::successors(Some(start), |at| at.checked_add(step)).take(count);
        self.meter.sequence(numbers.map(Value::Int).collect(), ListKind::View("range"))
    }

    fn loop_method(
        &mut self,
        state: &crate::objects::Loop,
        name: &str,
        args: Args,
    ) -> Result<Value> {
        if name == "cycle" {
            return match args.positional.len() {
                0 => fail("no items for cycling given"),
                length => Ok(args.positional[state.index % length].clone()),
            };
        }
        let value = self.meter.tuple(args.positional)?;
        let run = self.loops.get(state.run).filter(|run| run.serial == state.serial);
        let same = match run.and_then(|run| run.changed.as_ref()) {
            Some(last) => ops::equal(self.meter, last, &value)?,
            None => false,
        };
        if let Some(run) = self.loops.get_mut(state.run) {
            run.changed = Some(value);
        }
        Ok(Value::Bool(!same))
    }

    fn object_method(&mut self, at: usize, name: &str) -> Result<Value> {
        match self.objects.get_mut(at) {
            Some(Object::Cycler { items, at }) if !items.is_empty() => {
                let current = items[*at].clone();
                *at = if name == "reset" { 0 } else { (*at + 1) % items.len() };
                Ok(if name == "reset" { Value::None } else { current })
            }
            _ => fail(format!("no method `{name}`")),
        }
    }

    fn joiner(&mut self, at: usize) -> Result<Value> {
        match self.objects.get_mut(at) {
            Some(Object::Joiner { separator, used }) => {
                let first = !std::mem::replace(used, true);
                Ok(if first { Value::constant(String::new()) } else { separator.clone() })
            }
            _ => fail("'Namespace' object is not callable"),
        }
    }

    /// The attribute or item that a path such as `a.0.b` names.
    pub(crate) fn path(&self, value: &Value, path: &Value) -> Result<Value> {
        let Some(text) = path.as_str() else { return self.item(value, path) };
        let mut value = value.clone();
        for part in text.split('.') {
            value = match part.parse::<i128>() {
                Ok(index) => self.item(&value, &Value::Int(index))?,
                // As Jinja's filters: the item comes before the attribute.
                Err(_) => self.item(&value, &Value::constant(part.to_owned()))?,
            };
        }
        Ok(value)
    }
}

/// Python's name of a type in messages about attributes.
fn owner(value: &Value) -> &'static str {
    match value {
        Value::None => "None",
        other => other.type_name(),
    }
}
