//! Runs statements: scopes, loops, macros, output.

use std::sync::Arc;

use crate::Clock;
use crate::args::Args;
use crate::ast::{Body, ForLoop, Macro, Name, Statement, StatementKind, Target};
use crate::meter::{Fault, Meter, Result, charge, check_depth, discharge, fail};
use crate::objects::{Function, Loop, LoopRun, MacroValue, Object};
use crate::ops;
use crate::print;
use crate::value::{List, Value};

/// Variables of a block.
#[derive(Debug)]
struct Scope {
    variables: Vec<(Name, Value)>,
    parent: Option<usize>,
    serial: u64,
}

/// Continuation after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    Break,
    Continue,
}

pub(crate) struct Run<'a> {
    pub(crate) meter: &'a Meter<'a>,
    pub(crate) clock: Clock<'a>,
    pub(crate) objects: Vec<Object>,
    pub(crate) loops: Vec<LoopRun>,
    scopes: Vec<Scope>,
    /// Number of the current scope.
    scope: usize,
    serial: u64,
    output: String,
    /// Texts of blocks whose output is a value.
    captured: Vec<String>,
    line: usize,
    loop_name: Name,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        meter: &'a Meter<'a>,
        clock: Clock<'a>,
        variables: Vec<(&str, Value)>,
        reserve: usize,
    ) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let scope = |variables, parent, serial| Scope { variables, parent, serial };
        Self {
            meter,
            clock,
            objects: Vec::new(),
            loops: Vec::new(),
            scopes: vec![scope(variables, None, 0), scope(Vec::new(), Some(0), 1)],
            scope: 1,
            serial: 1,
            output: String::with_capacity(reserve.min(meter.output())),
            captured: Vec::new(),
            line: 1,
            loop_name: "loop".into(),
        }
    }

    pub(crate) const fn line(&self) -> usize {
        self.line
    }

    pub(crate) fn into_output(self) -> String {
        self.output
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.meter.work(1 + text.len() / 16)?;
        match self.captured.last_mut() {
            Some(captured) => {
                self.meter.room(captured.len().saturating_add(text.len()))?;
                charge(text.len());
                captured.push_str(text);
            }
            None if text.len() > self.meter.output() - self.output.len() => {
                return Err(Fault::Output);
            }
            None => self.output.push_str(text),
        }
        Ok(())
    }

    /// Runs `f` in a scope of its own within `parent`.
    fn scoped<T>(&mut self, parent: usize, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.meter.work(1)?;
        self.serial += 1;
        let (outer, length) = (self.scope, self.scopes.len());
        self.scopes.push(Scope {
            variables: Vec::new(),
            parent: Some(parent),
            serial: self.serial,
        });
        self.scope = length;
        let result = f(self);
        self.scopes.truncate(length);
        self.scope = outer;
        result
    }

    /// Output of `f` as a value.
    fn capture(&mut self, f: impl FnOnce(&mut Self) -> Result<Flow>) -> Result<Value> {
        self.captured.push(String::new());
        let done = f(self);
        let text = self.captured.pop().unwrap_or_default();
        discharge(text.len());
        done?;
        self.meter.text(text)
    }

    pub(crate) fn variable(&self, name: &str) -> Option<Value> {
        let mut at = Some(self.scope);
        while let Some(scope) = at.and_then(|at| self.scopes.get(at)) {
            let found = scope.variables.iter().find(|(known, _)| &**known == name);
            if let Some((_, value)) = found {
                return Some(value.clone());
            }
            at = scope.parent;
        }
        None
    }

    fn assign(&mut self, name: &Name, value: Value) {
        let variables = &mut self.scopes[self.scope].variables;
        match variables.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => variables.push((Arc::clone(name), value)),
        }
    }

    fn set(&mut self, target: &Target, value: Value) -> Result<()> {
        match target {
            Target::Name(name) => self.assign(name, value),
            Target::Attribute(name, attribute) => {
                check_depth(value.depth())?;
                let object = match self.variable(name) {
                    Some(Value::Object(at)) => self.objects.get_mut(at),
                    _ => None,
                };
                let Some(Object::Namespace(fields)) = object else {
                    return fail("cannot assign attribute on non-namespace object");
                };
                match fields.iter_mut().find(|(known, _)| known == attribute) {
                    Some((_, old)) => *old = value,
                    None => fields.push((Arc::clone(attribute), value)),
                }
            }
            Target::Tuple(targets) => {
                let items = ops::items(self.meter, &value)?;
                if items.len() != targets.len() {
                    let (found, expected) = (items.len(), targets.len());
                    return fail(format!("cannot unpack {found} values to {expected} names"));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.set(target, item)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn body(&mut self, body: &Body) -> Result<Flow> {
        for statement in body {
            let flow = self.statement(statement)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &Statement) -> Result<Flow> {
        self.line = statement.line;
        self.meter.work(1)?;
        match &statement.kind {
            StatementKind::Data(text) => self.write(text)?,
            StatementKind::Print(expression) => {
                let value = self.expression(expression)?;
                let text = print::text(self.meter, &value)?;
                self.write(&text)?;
            }
            StatementKind::If(branches) => return self.branch(branches),
            StatementKind::For(node) => {
                let items = self.expression(&node.items)?;
                self.meter.enter()?;
                let done = self.for_loop(node, &items, self.scope, 1);
                self.meter.leave();
                done?;
            }
            StatementKind::Set(target, expression) => {
                let value = self.expression(expression)?;
                self.set(target, value)?;
            }
            StatementKind::SetBlock(target, filters, body) => {
                let text = self.block(body)?;
                let value = self.postfix(text, filters)?;
                self.set(target, value)?;
            }
            StatementKind::FilterBlock(filters, body) => {
                let text = self.block(body)?;
                let value = self.postfix(text, filters)?;
                let text = print::text(self.meter, &value)?;
                self.write(&text)?;
            }
            StatementKind::Macro(definition) => {
                let value = self.closure(definition);
                self.assign(&definition.name, value);
            }
            StatementKind::CallBlock(call, definition) => {
                let caller = self.closure(definition);
                let value = self.call_with_caller(call, caller)?;
                let text = print::text(self.meter, &value)?;
                self.write(&text)?;
            }
            StatementKind::With(pairs, body) => return self.with(pairs, body),
            StatementKind::Scope(body) => {
                self.meter.enter()?;
                let done = self.scoped(self.scope, |run| run.body(body));
                self.meter.leave();
                return done;
            }
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
            StatementKind::Unsupported(name) => {
                return fail(format!("`{name}` is not supported: there are no other templates"));
            }
        }
        Ok(Flow::Next)
    }

    fn branch(&mut self, branches: &[(Option<crate::ast::Expression>, Body)]) -> Result<Flow> {
        for (condition, body) in branches {
            let chosen = match condition {
                Some(condition) => self.expression(condition)?.is_true(),
                None => true,
            };
            if chosen {
                self.meter.enter()?;
                let done = self.body(body);
                self.meter.leave();
                return done;
            }
        }
        Ok(Flow::Next)
    }

    fn with(&mut self, pairs: &[(Target, crate::ast::Expression)], body: &Body) -> Result<Flow> {
        let mut values = Vec::with_capacity(pairs.len());
        for (_, expression) in pairs {
            values.push(self.expression(expression)?);
        }
        self.meter.enter()?;
        let done = self.scoped(self.scope, |run| {
            for ((target, _), value) in pairs.iter().zip(values) {
                run.set(target, value)?;
            }
            run.body(body)
        });
        self.meter.leave();
        done
    }

    /// Output of a block in a scope of its own.
    fn block(&mut self, body: &Body) -> Result<Value> {
        self.meter.enter()?;
        let text = self.capture(|run| run.scoped(run.scope, |run| run.body(body)));
        self.meter.leave();
        text
    }

    fn closure(&self, definition: &Arc<Macro>) -> Value {
        let (scope, serial) = (self.scope, self.scopes[self.scope].serial);
        let definition = Arc::clone(definition);
        Value::Function(Arc::new(Function::Macro(MacroValue { definition, scope, serial })))
    }

    /// Runs a loop over `items` within the scope `parent`.
    pub(crate) fn for_loop(
        &mut self,
        node: &Arc<ForLoop>,
        items: &Value,
        parent: usize,
        level: usize,
    ) -> Result<()> {
        let mut items = self.shared(items)?;
        if let Some(condition) = &node.condition {
            let mut chosen = Vec::new();
            for item in &items.items {
                let passes = self.scoped(parent, |run| {
                    run.set(&node.target, item.clone())?;
                    run.expression(condition)
                })?;
                if passes.is_true() {
                    chosen.push(item.clone());
                }
            }
            items = self.shared(&self.meter.list(chosen)?)?;
        }
        if items.items.is_empty() {
            // The end of this branch ends the loop too.
            return self.scoped(parent, |run| run.body(&node.otherwise)).map(|_| ());
        }
        self.serial += 1;
        let (run, serial) = (self.loops.len(), self.serial);
        let scope = parent;
        self.loops.push(LoopRun { node: Arc::clone(node), scope, level, serial, changed: None });
        let done = self.iterate(node, &items.items, [parent, run, level], serial);
        self.loops.truncate(run);
        done
    }

    /// Items of a loop as a list that counts as memory while the loop runs.
    fn shared(&self, items: &Value) -> Result<Arc<List>> {
        if let Value::List(list) = items {
            return Ok(Arc::clone(list));
        }
        match self.meter.list(ops::items(self.meter, items)?)? {
            Value::List(list) => Ok(list),
            other => fail(format!("'{}' object is not iterable", other.type_name())),
        }
    }

    fn iterate(
        &mut self,
        node: &ForLoop,
        items: &[Value],
        [parent, number, level]: [usize; 3],
        serial: u64,
    ) -> Result<()> {
        for (index, item) in items.iter().enumerate() {
            let previous = index.checked_sub(1).map(|at| items[at].clone());
            let next = items.get(index + 1).cloned();
            let (length, run) = (items.len(), number);
            let state = Loop { index, length, level, previous, next, run, serial };
            let flow = self.scoped(parent, |run| {
                let name = Arc::clone(&run.loop_name);
                run.scopes[run.scope].variables.push((name, Value::Loop(Arc::new(state))));
                run.set(&node.target, item.clone())?;
                run.body(&node.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// Calls a macro; its value is its output.
    pub(crate) fn call_macro(&mut self, value: &MacroValue, args: Args) -> Result<Value> {
        let MacroValue { definition, scope, serial } = value;
        if self.scopes.get(*scope).is_none_or(|scope| scope.serial != *serial) {
            return fail(format!("the block that defines `{}` has ended", definition.name));
        }
        let Args { positional, mut named } = args;
        let mut positional = positional.into_iter();
        let mut bound = Vec::with_capacity(definition.parameters.len());
        for (name, _) in &definition.parameters {
            let value = positional.next().or_else(|| {
                let at = named.iter().position(|(known, _)| known == name)?;
                Some(named.remove(at).1)
            });
            bound.push(value);
        }
        let rest = self.meter.tuple(positional.collect())?;
        let caller = named.iter().position(|(name, _)| &**name == "caller");
        let caller = caller.map(|at| named.remove(at).1);
        let pair = |(name, value): (Name, Value)| (Value::constant(name.to_string()), value);
        let named = self.meter.dict(named.into_iter().map(pair).collect())?;
        let line = self.line;
        self.meter.enter()?;
        let text = self.capture(|run| {
            run.scoped(*scope, |run| {
                for ((name, default), value) in definition.parameters.iter().zip(bound) {
                    let value = match (value, default) {
                        (Some(value), _) => value,
                        (None, Some(default)) => run.expression(default)?,
                        (None, None) => Value::missing("", name),
                    };
                    run.assign(name, value);
                }
                run.assign(&"varargs".into(), rest);
                run.assign(&"kwargs".into(), named);
                if let Some(caller) = caller {
                    run.assign(&"caller".into(), caller);
                }
                run.body(&definition.body)
            })
        });
        self.meter.leave();
        if text.is_ok() {
            self.line = line;
        }
        text
    }

    /// Adds a mutable object.
    pub(crate) fn object(&mut self, object: Object) -> Result<Value> {
        let bytes = size_of::<Object>() + 64;
        self.meter.room(bytes)?;
        charge(bytes);
        self.objects.push(object);
        Ok(Value::Object(self.objects.len() - 1))
    }

    /// Scope and loop of the variable `loop` for a recursive call.
    pub(crate) fn recursion(&self, state: &Loop) -> Option<(Arc<ForLoop>, usize, usize)> {
        let run = self.loops.get(state.run).filter(|run| run.serial == state.serial)?;
        run.node.recursive.then(|| (Arc::clone(&run.node), run.scope, run.level))
    }

    /// Output of a recursive call of a loop.
    pub(crate) fn recurse(&mut self, state: &Loop, items: &Value) -> Result<Value> {
        let Some((node, scope, level)) = self.recursion(state) else {
            return fail(
                "Tried to call non recursive loop. Maybe you forgot the 'recursive' modifier.",
            );
        };
        self.meter.enter()?;
        let text =
            self.capture(|run| run.for_loop(&node, items, scope, level + 1).map(|()| Flow::Next));
        self.meter.leave();
        text
    }
}
