//! Functions, loops, and the mutable objects of a run.

use std::sync::Arc;

use crate::ast::{ForLoop, Macro, Name};
use crate::value::Value;

/// Something that can be called.
#[derive(Debug)]
pub enum Function {
    /// `range`, `dict`, `namespace`, ..
    Global(&'static str),
    /// A method of a text, a list, a dictionary or an object.
    Method { receiver: Value, name: Arc<str> },
    /// A macro, and the scope that its body reads: its number and serial.
    Macro(MacroValue),
}

#[derive(Clone, Debug)]
pub struct MacroValue {
    pub(crate) definition: Arc<Macro>,
    pub(crate) scope: usize,
    pub(crate) serial: u64,
}

impl Function {
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::Method { receiver, .. } => 1 + receiver.depth(),
            Self::Global(_) | Self::Macro(_) => 0,
        }
    }
}

/// The variable `loop` in one iteration.
#[derive(Debug)]
pub struct Loop {
    pub(crate) index: usize,
    pub(crate) length: usize,
    pub(crate) level: usize,
    pub(crate) previous: Option<Value>,
    pub(crate) next: Option<Value>,
    /// Number and serial of the loop in the run.
    pub(crate) run: usize,
    pub(crate) serial: u64,
}

impl Loop {
    pub(crate) fn depth_of_values(&self) -> usize {
        let depth = |value: &Option<Value>| value.as_ref().map_or(0, Value::depth);
        1 + depth(&self.previous).max(depth(&self.next))
    }
}

/// A loop that is running.
#[derive(Debug)]
pub(crate) struct LoopRun {
    pub(crate) node: Arc<ForLoop>,
    /// Scope around the loop.
    pub(crate) scope: usize,
    pub(crate) level: usize,
    pub(crate) serial: u64,
    /// Latest arguments of `loop.changed`.
    pub(crate) changed: Option<Value>,
}

#[derive(Debug)]
pub(crate) enum Object {
    Namespace(Vec<(Name, Value)>),
    Cycler { items: Vec<Value>, at: usize },
    Joiner { separator: Value, used: bool },
}
