//! Values of templates: those of Python that JSON and templates can make, all immutable.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::meter::{charge, discharge};
use crate::objects::{Function, Loop};

/// A value.
#[derive(Clone, Debug)]
pub enum Value {
    Undefined(Arc<Missing>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Arc<Text>),
    List(Arc<List>),
    Dict(Arc<Dict>),
    /// Number of a mutable object in the run: a namespace, a cycler or a joiner.
    Object(usize),
    Function(Arc<Function>),
    Loop(Arc<Loop>),
}

/// Depth of an object, beyond what any value may contain.
pub(crate) const OBJECT_DEPTH: usize = 1_000_000;

/// Name of a value that does not exist.
#[derive(Debug)]
pub struct Missing {
    /// Python's name of the type that lacks the attribute; empty for a variable.
    pub(crate) owner: &'static str,
    pub(crate) name: Arc<str>,
}

/// A text, counted as memory of the thread that made it.
#[derive(Debug)]
pub struct Text {
    pub(crate) text: String,
    charged: usize,
}

impl Text {
    pub(crate) fn charged(text: String) -> Self {
        let charged = charge(text.capacity() + size_of::<Self>());
        Self { text, charged }
    }

    /// A text of the template itself, which is not counted.
    pub(crate) const fn constant(text: String) -> Self {
        Self { text, charged: 0 }
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        discharge(self.charged);
    }
}

/// Python type of a list's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListKind {
    List,
    Tuple,
    /// `range(..)`, and views of dictionaries.
    View(&'static str),
}

#[derive(Debug)]
pub struct List {
    pub(crate) items: Vec<Value>,
    pub(crate) kind: ListKind,
    pub(crate) depth: usize,
    charged: usize,
}

impl List {
    pub(crate) const fn bytes(items: usize) -> usize {
        size_of::<Self>() + items.saturating_mul(size_of::<Value>())
    }

    pub(crate) fn new(items: Vec<Value>, kind: ListKind) -> Self {
        let depth = 1 + items.iter().map(Value::depth).max().unwrap_or(0);
        let charged = charge(Self::bytes(items.capacity()));
        Self { items, kind, depth, charged }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        discharge(self.charged);
    }
}

/// A dictionary in the order of insertion.
#[derive(Debug)]
pub struct Dict {
    pub(crate) pairs: Vec<(Value, Value)>,
    /// Indices in the order of the keys, if there are many and all are texts.
    sorted: Vec<u32>,
    pub(crate) depth: usize,
    charged: usize,
}

/// Number of pairs that are searched one by one.
const FEW: usize = 12;

impl Dict {
    pub(crate) const fn bytes(pairs: usize) -> usize {
        size_of::<Self>() + pairs.saturating_mul(2 * size_of::<Value>() + 4)
    }

    /// A dictionary of pairs; of equal keys, the first has the place and the last the value.
    pub(crate) fn new(pairs: Vec<(Value, Value)>) -> Self {
        let mut sorted = Vec::new();
        let unique = if pairs.len() <= FEW { merged_few(pairs) } else { merged(pairs) };
        if unique.len() > FEW && unique.iter().all(|(key, _)| key.as_str().is_some()) {
            sorted = (0..u32::try_from(unique.len()).unwrap_or(u32::MAX)).collect();
            let key = |at: &u32| unique[*at as usize].0.as_str();
            sorted.sort_by(|a, b| key(a).cmp(&key(b)));
        }
        let depth = unique.iter().map(|(k, v)| k.depth().max(v.depth())).max().unwrap_or(0) + 1;
        let charged = charge(Self::bytes(unique.capacity()));
        Self { pairs: unique, sorted, depth, charged }
    }

    pub(crate) fn get(&self, key: &Value) -> Option<&Value> {
        if let Some(text) = key.as_str() {
            return self.get_text(text);
        }
        self.pairs.iter().find(|(known, _)| known.same_key(key)).map(|(_, value)| value)
    }

    pub(crate) fn get_text(&self, key: &str) -> Option<&Value> {
        if self.sorted.is_empty() {
            return self
                .pairs
                .iter()
                .find(|(known, _)| known.as_str() == Some(key))
                .map(|(_, v)| v);
        }
        let of = |at: &u32| self.pairs[*at as usize].0.as_str().unwrap_or_default();
        let at = self.sorted.binary_search_by(|at| of(at).cmp(key)).ok()?;
        Some(&self.pairs[self.sorted[at] as usize].1)
    }
}

impl Drop for Dict {
    fn drop(&mut self) {
        discharge(self.charged);
    }
}

/// Merges equal keys of a short list.
fn merged_few(pairs: Vec<(Value, Value)>) -> Vec<(Value, Value)> {
    let mut unique: Vec<(Value, Value)> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        match unique.iter_mut().find(|(known, _)| known.same_key(&key)) {
            Some((_, old)) => *old = value,
            None => unique.push((key, value)),
        }
    }
    unique
}

/// Merges equal keys by sorting their printed forms.
fn merged(pairs: Vec<(Value, Value)>) -> Vec<(Value, Value)> {
    let mut places: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
    let mut unique: Vec<(Value, Value)> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        match places.get(&key.key_text()) {
            Some(at) => unique[*at].1 = value,
            None => {
                places.insert(key.key_text(), unique.len());
                unique.push((key, value));
            }
        }
    }
    unique
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Arc::new(Text::charged(text.to_owned())))
    }
}

impl From<bool> for Value {
    fn from(on: bool) -> Self {
        Self::Bool(on)
    }
}

impl Value {
    /// A list.
    #[must_use]
    pub fn list(items: Vec<Self>) -> Self {
        Self::List(Arc::new(List::new(items, ListKind::List)))
    }

    /// A dictionary.
    #[must_use]
    pub fn dict(pairs: Vec<(Self, Self)>) -> Self {
        Self::Dict(Arc::new(Dict::new(pairs)))
    }

    pub(crate) fn constant(text: String) -> Self {
        Self::Text(Arc::new(Text::constant(text)))
    }

    pub(crate) fn missing(owner: &'static str, name: &str) -> Self {
        Self::Undefined(Arc::new(Missing { owner, name: name.into() }))
    }

    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::List(list) => list.depth,
            Self::Dict(dict) => dict.depth,
            Self::Function(function) => function.depth(),
            Self::Loop(state) => state.depth_of_values(),
            // No value may contain an object, so that none contains itself.
            Self::Object(_) => OBJECT_DEPTH,
            _ => 0,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(&text.text),
            _ => None,
        }
    }

    /// Integer, as Python's `__index__`.
    pub(crate) const fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(on) => Some(*on as i128),
            _ => None,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "as Python converts")]
    pub(crate) const fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Int(number) => Some(*number as f64),
            Self::Bool(on) => Some(*on as u8 as f64),
            _ => None,
        }
    }

    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(on) => *on,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Dict(dict) => !dict.pairs.is_empty(),
            Self::Object(_) | Self::Function(_) | Self::Loop(_) => true,
        }
    }

    pub(crate) const fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// Python's name of the type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::List(list) => match list.kind {
                ListKind::List => "list",
                ListKind::Tuple => "tuple",
                ListKind::View(name) => name,
            },
            Self::Dict(_) => "dict",
            Self::Object(_) => "Namespace",
            Self::Function(_) => "function",
            Self::Loop(_) => "LoopContext",
        }
    }

    /// True for values that may be keys.
    pub(crate) const fn is_key(&self) -> bool {
        !matches!(self, Self::List(_) | Self::Dict(_))
    }

    /// Equality of scalars as keys: `1`, `1.0` and `True` are the same key.
    pub(crate) fn same_key(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.text == b.text,
            (Self::None, Self::None) => true,
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => match (self.as_float(), other.as_float()) {
                    (Some(a), Some(b)) => a.partial_cmp(&b) == Some(Ordering::Equal),
                    _ => false,
                },
            },
        }
    }

    /// A text that equal keys share and different keys do not.
    fn key_text(&self) -> String {
        match self {
            Self::Text(text) => format!("s{}", text.text),
            Self::None => "n".into(),
            other => match (other.as_int(), other.as_float()) {
                (_, Some(number)) if number.fract() != 0.0 || number.abs() > 1e15 => {
                    other.as_int().map_or_else(|| format!("f{number:?}"), |n| format!("i{n}"))
                }
                (Some(number), _) => format!("i{number}"),
                (None, Some(number)) => format!("i{number}"),
                (None, None) => String::new(),
            },
        }
    }
}
