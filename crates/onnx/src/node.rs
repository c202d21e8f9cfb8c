//! A node as its operator reads it: inputs by place, attributes by name, of which none may stay unread.

use std::cell::RefCell;
use std::collections::HashSet;

use super::array::{self, Known};
use super::import::Value;
use super::proto::{AttributeProto, NodeProto};

/// Why a node cannot be drawn, without its name.
#[derive(Debug)]
pub(crate) struct Why {
    pub(crate) what: String,
    /// Whether what it wants to know depends on data.
    pub(crate) depends: bool,
}

/// A reason that has nothing to do with data.
pub(crate) fn why(what: String) -> Why {
    Why { what, depends: false }
}

impl From<String> for Why {
    fn from(what: String) -> Self {
        why(what)
    }
}

impl From<&str> for Why {
    fn from(what: &str) -> Self {
        why(what.to_owned())
    }
}

impl From<plan::graph::Error> for Why {
    fn from(error: plan::graph::Error) -> Self {
        why(error.to_string())
    }
}

pub(crate) type Made<T = Value> = Result<T, Why>;

pub(crate) struct Node<'a> {
    proto: &'a NodeProto,
    pub(crate) opset: i64,
    /// None where one is left out.
    pub(crate) inputs: Vec<Option<Value>>,
    read: RefCell<HashSet<&'a str>>,
}

impl<'a> Node<'a> {
    pub(crate) fn new(proto: &'a NodeProto, opset: i64, inputs: Vec<Option<Value>>) -> Self {
        Self { proto, opset, inputs, read: RefCell::default() }
    }

    pub(crate) fn op(&self) -> &'a str {
        &self.proto.op_type
    }

    /// Outputs that somebody may want: up to the last that has a name.
    pub(crate) fn outputs(&self) -> usize {
        self.proto.output.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1)
    }

    pub(crate) fn wants(&self, output: usize) -> bool {
        self.proto.output.get(output).is_some_and(|name| !name.is_empty())
    }

    pub(crate) fn input(&self, place: usize) -> Made<&Value> {
        self.optional(place).ok_or_else(|| why(format!("input {place} is missing")))
    }

    pub(crate) fn optional(&self, place: usize) -> Option<&Value> {
        self.inputs.get(place)?.as_ref()
    }

    /// An input that must be known before anything runs.
    pub(crate) fn known(&self, place: usize, what: &str) -> Made<&Known> {
        match self.input(place)? {
            Value::Known(known) => Ok(known),
            Value::Device { .. } => Err(Why {
                what: format!(
                    "{what} (input {place}) depends on data; it must follow from the model and the shapes of its inputs"
                ),
                depends: true,
            }),
        }
    }

    pub(crate) fn known_integers(&self, place: usize, what: &str) -> Made<Vec<i64>> {
        Ok(self.known(place, what)?.integers())
    }

    /// The integers of an input, or of an attribute as older opsets have them.
    pub(crate) fn integers_of(&self, place: usize, name: &str) -> Made<Option<Vec<i64>>> {
        match self.optional(place) {
            Some(_) => self.known_integers(place, name).map(Some),
            None => Ok(self.integers(name)),
        }
    }

    fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        let found = self.proto.attribute.iter().find(|a| a.name == name)?;
        self.read.borrow_mut().insert(&found.name);
        Some(found)
    }

    pub(crate) fn integer(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |a| a.i)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.integer(name, 0) != 0
    }

    pub(crate) fn float(&self, name: &str, default: f32) -> f32 {
        self.attribute(name).map_or(default, |a| a.f)
    }

    pub(crate) fn float_if(&self, name: &str) -> Option<f32> {
        self.attribute(name).map(|a| a.f)
    }

    pub(crate) fn integers(&self, name: &str) -> Option<Vec<i64>> {
        self.attribute(name).map(|a| a.ints.clone())
    }

    pub(crate) fn floats(&self, name: &str) -> Option<Vec<f32>> {
        self.attribute(name).map(|a| a.floats.clone())
    }

    pub(crate) fn text(&self, name: &str, default: &str) -> Made<String> {
        let Some(found) = self.attribute(name) else { return Ok(default.to_owned()) };
        String::from_utf8(found.s.clone()).map_err(|_| why(format!("{name} is not text")))
    }

    pub(crate) fn texts(&self, name: &str) -> Made<Option<Vec<String>>> {
        let Some(found) = self.attribute(name) else { return Ok(None) };
        let texts = found.strings.iter().map(|s| String::from_utf8(s.clone()));
        let texts =
            texts.collect::<Result<_, _>>().map_err(|_| why(format!("{name} is not text")))?;
        Ok(Some(texts))
    }

    pub(crate) fn tensor(&self, name: &str) -> Made<Option<Known>> {
        let Some(tensor) = self.attribute(name).and_then(|a| a.t.as_ref()) else { return Ok(None) };
        let (elem, shape, values) = array::read(tensor).map_err(|e| why(e.to_string()))?;
        Ok(Known::new(elem, &shape, values))
    }

    /// Says of attributes that are there that they change nothing here.
    pub(crate) fn pass_over(&self, names: &[&str]) {
        for name in names {
            self.attribute(name);
        }
    }

    /// An attribute that no operator has looked at would be silently without effect.
    pub(crate) fn unread(&self) -> Option<&'a str> {
        let read = self.read.borrow();
        self.proto.attribute.iter().map(|a| &*a.name).find(|name| !read.contains(name))
    }
}

/// An axis counted from the front, of `rank`; a negative one counts from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Made<usize> {
    let rank_signed = rank.cast_signed() as i64;
    let from_front = if axis < 0 { axis + rank_signed } else { axis };
    usize::try_from(from_front)
        .ok()
        .filter(|axis| *axis < rank)
        .ok_or_else(|| why(format!("axis {axis} of {rank}")))
}
