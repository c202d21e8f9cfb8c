//! A node as operators read it: inputs by index, attributes by name. Every attribute must be read.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::array::{self, Known};
use crate::error::{NodeError, NodeResult, invalid};
use crate::import::{Import, Value};
use crate::proto::{AttributeProto, NodeProto};

/// Attributes of the call of a function, by name.
pub(crate) type Attributes<'a> = HashMap<&'a str, &'a AttributeProto>;

/// Adds a node to the graph; returns its outputs in order.
pub(crate) type Operator = fn(&mut Import, &Node<'_>) -> NodeResult<Vec<Value>>;

pub(crate) struct Node<'a> {
    proto: &'a NodeProto,
    pub(crate) opset: i64,
    /// `None` for omitted inputs.
    pub(crate) inputs: Vec<Option<Value>>,
    /// Attributes of the surrounding call, which attributes of the node may refer to.
    call: &'a Attributes<'a>,
    read: Rc<RefCell<HashSet<&'a str>>>,
}

impl<'a> Node<'a> {
    pub(crate) fn new(
        proto: &'a NodeProto,
        opset: i64,
        inputs: Vec<Option<Value>>,
        call: &'a Attributes<'a>,
    ) -> Self {
        Self { proto, opset, inputs, call, read: Rc::default() }
    }

    /// The same node with other inputs.
    pub(crate) fn with(&self, inputs: Vec<Option<Value>>) -> Self {
        Self { inputs, read: Rc::clone(&self.read), ..*self }
    }

    pub(crate) fn op(&self) -> &'a str {
        &self.proto.op_type
    }

    /// Number of outputs, up to the last that has a name.
    pub(crate) fn outputs(&self) -> usize {
        self.proto.output.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1)
    }

    pub(crate) fn has_output(&self, output: usize) -> bool {
        self.proto.output.get(output).is_some_and(|name| !name.is_empty())
    }

    pub(crate) fn input(&self, place: usize) -> NodeResult<&Value> {
        self.optional(place).ok_or_else(|| invalid(format!("input {place} is missing")))
    }

    pub(crate) fn optional(&self, place: usize) -> Option<&Value> {
        self.inputs.get(place)?.as_ref()
    }

    /// An input whose value must be known before anything runs.
    pub(crate) fn known(&self, place: usize, what: &str) -> NodeResult<&Known> {
        match self.input(place)? {
            Value::Known(known) => Ok(known),
            Value::Device { .. } => Err(NodeError {
                what: format!(
                    "{what} (input {place}) depends on data; it must follow from the model and the shapes of its inputs"
                ),
                needs: vec![place],
            }),
        }
    }

    pub(crate) fn known_integers(&self, place: usize, what: &str) -> NodeResult<Vec<i64>> {
        Ok(self.known(place, what)?.integers())
    }

    /// The integers of an input, or of an attribute in older opsets.
    pub(crate) fn integers_of(&self, place: usize, name: &str) -> NodeResult<Option<Vec<i64>>> {
        match self.optional(place) {
            Some(_) => self.known_integers(place, name).map(Some),
            None => Ok(self.integers(name)),
        }
    }

    fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        let found = self.proto.attribute.iter().find(|a| a.name == name)?;
        self.read.borrow_mut().insert(&found.name);
        resolved(found, self.call)
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

    pub(crate) fn text(&self, name: &str, default: &str) -> NodeResult<String> {
        let Some(found) = self.attribute(name) else { return Ok(default.to_owned()) };
        String::from_utf8(found.s.clone()).map_err(|_| invalid(format!("{name} is not UTF-8")))
    }

    pub(crate) fn texts(&self, name: &str) -> NodeResult<Option<Vec<String>>> {
        let Some(found) = self.attribute(name) else { return Ok(None) };
        let texts = found.strings.iter().map(|s| String::from_utf8(s.clone()));
        let texts =
            texts.collect::<Result<_, _>>().map_err(|_| invalid(format!("{name} is not UTF-8")))?;
        Ok(Some(texts))
    }

    pub(crate) fn tensor(&self, name: &str) -> NodeResult<Option<Known>> {
        let Some(tensor) = self.attribute(name).and_then(|a| a.t.as_ref()) else { return Ok(None) };
        let (elem, shape, values) = array::read(tensor).map_err(|e| invalid(e.to_string()))?;
        Ok(Known::new(elem, &shape, values))
    }

    /// Marks attributes that have no effect here as read.
    pub(crate) fn ignore(&self, names: &[&str]) {
        for name in names {
            self.attribute(name);
        }
    }

    /// First attribute that no operator has read; ignoring it silently would change the result.
    pub(crate) fn unused_attribute(&self) -> Option<&'a str> {
        let read = self.read.borrow();
        self.proto.attribute.iter().map(|a| &*a.name).find(|name| !read.contains(name))
    }
}

/// The attribute itself, or the one of the call that it refers to.
pub(crate) fn resolved<'a>(
    attribute: &'a AttributeProto,
    call: &Attributes<'a>,
) -> Option<&'a AttributeProto> {
    match &*attribute.ref_attr_name {
        "" => Some(attribute),
        name => call.get(name).copied(),
    }
}

/// Normalises an axis of `rank` axes; negative ones count from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> NodeResult<usize> {
    let rank_signed = rank.cast_signed() as i64;
    let from_front = if axis < 0 { axis + rank_signed } else { axis };
    usize::try_from(from_front)
        .ok()
        .filter(|axis| *axis < rank)
        .ok_or_else(|| invalid(format!("axis {axis} is out of range for {rank} axes")))
}

/// Name of a node, or its index.
pub(crate) fn node_name(proto: &NodeProto, place: usize) -> String {
    match (&*proto.name, proto.output.first()) {
        ("", Some(output)) => format!("{place}, which makes `{output}`"),
        ("", None) => place.to_string(),
        (name, _) => name.to_owned(),
    }
}
