//! Operators that are made of ONNX's own: nodes that are built while another one is.

use super::find;
use crate::error::{NodeResult, invalid};
use crate::fold;
use crate::import::{Import, Value};
use crate::node::{Attributes, Node};
use crate::proto::{AttributeProto, NodeProto};

/// Opset of the nodes.
const OPSET: i64 = 28;

/// Value of an attribute.
#[derive(Clone, Debug)]
pub(super) enum Setting {
    Int(i64),
    Float(f32),
    Ints(Vec<i64>),
    Text(&'static str),
}

fn attribute(name: &str, setting: &Setting) -> AttributeProto {
    let mut made = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    match setting {
        Setting::Int(i) => made.i = *i,
        Setting::Float(f) => made.f = *f,
        Setting::Ints(ints) => made.ints.clone_from(ints),
        Setting::Text(text) => made.s = text.as_bytes().to_vec(),
    }
    made
}

impl Import {
    /// Outputs of an operator of ONNX. Optional inputs may be omitted.
    pub(super) fn outputs_of(
        &mut self,
        op: &str,
        inputs: &[Option<Value>],
        settings: &[(&str, Setting)],
        outputs: usize,
    ) -> NodeResult<Vec<Value>> {
        let operator = find("", op).ok_or_else(|| invalid(format!("no operator {op}")))?;
        let proto = NodeProto {
            op_type: op.to_owned(),
            output: (0..outputs).map(|i| i.to_string()).collect(),
            attribute: settings.iter().map(|(name, setting)| attribute(name, setting)).collect(),
            ..NodeProto::default()
        };
        let call = Attributes::default();
        let node = Node::new(&proto, OPSET, inputs.to_vec(), &call);
        let made = fold::fold(self, &node, operator);
        // Inputs of this node are none of the node that is built.
        made.map_err(|why| invalid(why.what))
    }

    /// First output of an operator of ONNX.
    pub(super) fn apply(
        &mut self,
        op: &str,
        inputs: &[&Value],
        settings: &[(&str, Setting)],
    ) -> NodeResult<Value> {
        let inputs: Vec<_> = inputs.iter().map(|value| Some((*value).clone())).collect();
        let made = self.outputs_of(op, &inputs, settings, 1)?;
        made.into_iter().next().ok_or_else(|| invalid(format!("{op} has no output")))
    }
}
