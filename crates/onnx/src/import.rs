//! A model drawn as a graph, for inputs of certain shapes: the nodes in their order, each by its operator, or by the host
//! where all that it needs is known.

use std::collections::{BTreeMap, HashMap};

use device::Data;
use plan::graph::{Graph, Tensor};
use plan::{Class, DType};

use super::array::{self, Array, Elem, Known};
use super::error::{Error, Result};
use super::fold;
use super::model::Model;
use super::node::{Made, Node, Why, why};
use super::ops;
use super::proto::NodeProto;

/// Elements up to which the host keeps a tensor of the file itself, so that shapes can be computed from it.
const SMALL: usize = 4096;
/// Integers up to which `f32`, in which they come to the device, has each.
const EXACT: f64 = 16_777_216.0;

/// What a name stands for while the graph is drawn.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Known(Known),
    /// Floats as `F32`, integers as `I32`, truth as `F32` of 0 and 1.
    Device {
        elem: Elem,
        tensor: Tensor,
    },
}

impl Value {
    pub(crate) const fn elem(&self) -> Elem {
        match self {
            Self::Known(known) => known.elem,
            Self::Device { elem, .. } => *elem,
        }
    }
}

/// A tensor of the model, which is brought to the device once.
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) elements: Elements,
}

/// A tensor of the model as it lies on the device.
pub(crate) enum Elements {
    F32(Vec<f32>),
    I8(Vec<i8>),
    U8(Vec<u8>),
}

impl Elements {
    /// Bytes of what is given in bytes, `F32` of the rest.
    fn of(elem: Elem, values: Vec<f32>) -> Self {
        match elem {
            Elem::I8 => Self::I8(values.into_iter().map(|value| value as i8).collect()),
            Elem::U8 => Self::U8(values.into_iter().map(|value| value as u8).collect()),
            _ => Self::F32(values),
        }
    }

    pub(crate) fn data(&self) -> Data<'_> {
        match self {
            Self::F32(values) => Data::F32(values),
            Self::I8(values) => Data::I8(values),
            Self::U8(values) => Data::U8(values),
        }
    }
}

/// An output of the model: its shape, and where its values come from.
pub(crate) struct Given {
    pub(crate) name: String,
    pub(crate) elem: Elem,
    pub(crate) shape: Vec<usize>,
    /// None where a step computes them.
    pub(crate) known: Option<Vec<f32>>,
}

pub(crate) struct Import {
    pub(crate) g: Graph,
    pub(crate) weights: Vec<Weight>,
}

/// A graph, and what it needs and gives.
pub(crate) struct Drawn {
    pub(crate) g: Graph,
    pub(crate) weights: Vec<Weight>,
    pub(crate) outputs: Vec<Given>,
}

/// The model for inputs of these shapes, by name; those that are `fixed` are known.
pub(crate) fn draw(
    model: &Model,
    shapes: &BTreeMap<String, (Elem, Vec<usize>)>,
    fixed: &BTreeMap<String, Array>,
) -> Result<Drawn> {
    let mut import = Import { g: Graph::new(), weights: Vec::new() };
    let mut values: HashMap<&str, Value> = HashMap::new();
    for tensor in &model.graph.initializer {
        let (elem, shape, numbers) = array::read(tensor)?;
        let wrong = |why: Why| Error::Tensor { name: tensor.name.clone(), what: why.what };
        let value = if numbers.len() <= SMALL {
            let known = Known::new(elem, &shape, numbers);
            Value::Known(known.unwrap_or_else(|| unreachable!("its shape has been checked")))
        } else {
            let numbers = numbers.iter().map(|v| *v as f32).collect();
            let tensor = import.weight(elem, &shape, numbers).map_err(wrong)?;
            Value::Device { elem, tensor }
        };
        values.insert(&tensor.name, value);
    }
    let inputs = model.inputs();
    for input in &inputs {
        if let Some(array) = fixed.get(&input.name) {
            let numbers = array.values.iter().map(|value| f64::from(*value)).collect();
            let Some(known) = Known::new(array.elem, &array.shape, numbers) else {
                let what = format!("{} values are no {:?}", array.values.len(), array.shape);
                return Err(Error::Input { name: input.name.clone(), what });
            };
            values.insert(&input.name, Value::Known(known));
            continue;
        }
        let Some((elem, shape)) = shapes.get(&input.name) else {
            return Err(Error::Input { name: input.name.clone(), what: "is missing".into() });
        };
        let dtype = if elem.is_integer() { DType::I32 } else { DType::F32 };
        let held = if shape.is_empty() { &[1][..] } else { shape };
        let tensor = import.g.source(Class::Mailbox, &input.name, dtype, held)?;
        let tensor = import.g.reshape(tensor, shape)?;
        values.insert(&input.name, Value::Device { elem: *elem, tensor });
    }
    let nodes = &model.graph.node;
    for (i, proto) in nodes.iter().enumerate() {
        let label = if proto.name.is_empty() { &proto.op_type } else { &proto.name };
        import.g.at(label.clone());
        let failed = |why: Why| Error::Node {
            node: called(proto, i),
            op: proto.op_type.clone(),
            what: why.what,
            depends: why.depends,
        };
        let made = import.node(proto, model.opset, &values).map_err(failed)?;
        for (name, value) in proto.output.iter().zip(made) {
            if !name.is_empty() {
                values.insert(name, value);
            }
        }
    }
    let mut outputs = Vec::new();
    for output in &model.graph.output {
        let Some(value) = values.get(&*output.name) else {
            let what = format!("output `{}` is made by no node", output.name);
            return Err(Error::Model { what });
        };
        outputs.push(import.output(&output.name, value)?);
    }
    let Import { g, weights } = import;
    Ok(Drawn { g, weights, outputs })
}

/// A node's name, or its place.
pub(crate) fn called(proto: &NodeProto, place: usize) -> String {
    match (&*proto.name, proto.output.first()) {
        ("", Some(output)) => format!("{place}, which makes `{output}`"),
        ("", None) => place.to_string(),
        (name, _) => name.to_owned(),
    }
}

impl Import {
    fn node(
        &mut self,
        proto: &NodeProto,
        opset: i64,
        values: &HashMap<&str, Value>,
    ) -> Made<Vec<Value>> {
        let mut inputs = Vec::new();
        for name in &proto.input {
            let value = values.get(&**name).cloned();
            if value.is_none() && !name.is_empty() {
                return Err(why(format!("its input `{name}` is made by no node before it")));
            }
            inputs.push(value);
        }
        let node = Node::new(proto, opset, inputs);
        let made = match fold::fold(&node)? {
            Some(known) => known.into_iter().map(Value::Known).collect(),
            None => match ops::find(&proto.op_type) {
                Some(operator) => operator(self, &node)?,
                None => return Err("no such operator".into()),
            },
        };
        if let Some(name) = node.unread() {
            return Err(why(format!("attribute {name} is not supported")));
        }
        let (made_count, wanted) = (made.len(), node.outputs());
        if made_count < wanted {
            return Err(why(format!("output {made_count} is not supported")));
        }
        Ok(made)
    }

    fn output(&mut self, name: &str, value: &Value) -> Result<Given> {
        let (elem, name) = (value.elem(), name.to_owned());
        if let Value::Known(known) = value {
            let (shape, known) = (known.shape().to_vec(), Some(known.floats()));
            return Ok(Given { name, elem, shape, known });
        }
        let wrong = |why: Why| Error::Model { what: format!("output `{name}`: {}", why.what) };
        let tensor = self.float(value).map_err(wrong)?;
        // Inside, all floating-point numbers are wide.
        let tensor = if elem.is_float() {
            ops::converted(&mut self.g, elem, elem, tensor).map_err(wrong)?
        } else {
            tensor
        };
        let shape = self.g.shape(tensor).to_vec();
        if shape.contains(&0) {
            return Ok(Given { name, elem, shape, known: Some(vec![]) });
        }
        let held = self.g.reshape(tensor, if shape.is_empty() { &[1] } else { &shape })?;
        self.g.output(name.clone(), held);
        Ok(Given { name, elem, shape, known: None })
    }

    /// A tensor of the model on the device.
    pub(crate) fn weight(&mut self, elem: Elem, shape: &[usize], values: Vec<f32>) -> Made<Tensor> {
        if elem.is_integer() && values.iter().any(|v| f64::from(v.abs()) > EXACT) {
            return Err(why(format!("an integer beyond {EXACT} on the device")));
        }
        let name = format!("w{}", self.weights.len());
        let elements = Elements::of(elem, values);
        let (dtype, count) = (elements.data().dtype(), elements.data().elements());
        let mut tensor = self.g.source(Class::Weight, &name, dtype, &[count])?;
        self.weights.push(Weight { name, elements });
        if elem.is_integer() {
            tensor = self.g.cast(tensor, DType::I32)?;
        }
        Ok(self.g.reshape(tensor, shape)?)
    }

    /// A value on the device, in the type that its elements have there.
    pub(crate) fn tensor(&mut self, value: &Value) -> Made<Tensor> {
        let known = match value {
            Value::Device { tensor, .. } => return Ok(*tensor),
            Value::Known(known) => known,
        };
        if !known.elem.is_integer()
            && let Some(value) = known.uniform()
        {
            let constant = self.g.constant(value as f32);
            return Ok(self.g.expand(constant, known.shape())?);
        }
        let elem = known.elem;
        self.weight(elem, known.shape(), known.floats())
    }

    /// A value on the device as `F32`.
    pub(crate) fn float(&mut self, value: &Value) -> Made<Tensor> {
        if let Value::Known(known) = value
            && let Some(uniform) = known.uniform()
        {
            let constant = self.g.constant(uniform as f32);
            return Ok(self.g.expand(constant, known.shape())?);
        }
        let tensor = self.tensor(value)?;
        Ok(self.g.cast(tensor, DType::F32)?)
    }

    /// Shape of a value.
    pub(crate) fn shape(&self, value: &Value) -> Vec<usize> {
        match value {
            Value::Known(known) => known.shape().to_vec(),
            Value::Device { tensor, .. } => self.g.shape(*tensor).to_vec(),
        }
    }
}
