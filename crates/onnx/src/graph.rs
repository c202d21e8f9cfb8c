//! Builds the graph of a model for given input shapes. Each node is built by its operator, or
//! folded by the host if all its inputs are known.

use std::collections::{BTreeMap, HashMap};

use plan::graph::Graph;
use plan::{Bucket, Class, DType, Outputs};

use crate::array::{self, Array, Elem, Known};
use crate::error::{Error, NodeError, NodeResult, Result, invalid};
use crate::import::{Import, Value, Weight};
use crate::model::Model;
use crate::node::{Node, node_name};
use crate::proto::NodeProto;
use crate::{fold, ops};

/// Largest number of elements of an initializer that stays on the host, where shapes can be computed
/// from it.
const SMALL: usize = 4096;

/// An output of the model: its type, shape and the source of its values.
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) elem: Elem,
    pub(crate) shape: Vec<usize>,
    /// `None` if a step computes them.
    pub(crate) known: Option<Vec<f32>>,
}

/// A graph with its weights and outputs.
pub(crate) struct ModelGraph {
    pub(crate) g: Graph,
    pub(crate) weights: Vec<Weight>,
    pub(crate) outputs: Vec<Output>,
}

/// Builds the model for inputs of these shapes, by name. The values of `fixed` inputs are known.
pub(crate) fn build(
    model: &Model,
    shapes: &BTreeMap<String, (Elem, Vec<usize>)>,
    fixed: &BTreeMap<String, Array>,
) -> Result<ModelGraph> {
    let mut import = Import::new();
    let mut values: HashMap<&str, Value> = HashMap::new();
    for tensor in &model.graph.initializer {
        let (elem, shape, numbers) = array::read(tensor)?;
        let wrong = |why: NodeError| Error::Tensor { name: tensor.name.clone(), what: why.what };
        let value = if numbers.len() <= SMALL {
            let known = Known::new(elem, &shape, numbers);
            Value::Known(known.unwrap_or_else(|| unreachable!("its shape has been checked")))
        } else {
            let tensor = import.weight(elem, &shape, &numbers).map_err(wrong)?;
            Value::Device { elem, tensor }
        };
        values.insert(&tensor.name, value);
    }
    let inputs = model.inputs();
    for input in &inputs {
        if let Some(array) = fixed.get(&input.name) {
            let numbers = array.values.iter().map(|value| f64::from(*value)).collect();
            let Some(known) = Known::new(array.elem, &array.shape, numbers) else {
                let what =
                    format!("{} values do not fill shape {:?}", array.values.len(), array.shape);
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
        let failed = |why: NodeError| Error::Node {
            node: node_name(proto, i),
            op: proto.op_type.clone(),
            what: why.what,
            depends: why.depends,
        };
        let made = import.node(proto, model.opset, &values);
        let made = made.and_then(|made| Ok(import.g.check_size().map(|()| made)?));
        let made = made.map_err(failed)?;
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
    let Import { g, mut weights, replaces, .. } = import;
    if replaces {
        // Devices reject bytes that no operation reads.
        let bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };
        let plan = g.lower(bucket)?;
        weights.retain(|weight| plan.find(Class::Weight, &weight.name).is_some());
    }
    Ok(ModelGraph { g, weights, outputs })
}

impl Import {
    fn node(
        &mut self,
        proto: &NodeProto,
        opset: i64,
        values: &HashMap<&str, Value>,
    ) -> NodeResult<Vec<Value>> {
        let mut inputs = Vec::new();
        for name in &proto.input {
            let value = values.get(&**name).cloned();
            if value.is_none() && !name.is_empty() {
                return Err(invalid(format!("no earlier node computes its input `{name}`")));
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
        if let Some(name) = node.unused_attribute() {
            return Err(invalid(format!("attribute {name} is not supported")));
        }
        let (made_count, wanted) = (made.len(), node.outputs());
        if made_count < wanted {
            return Err(invalid(format!("output {made_count} is not supported")));
        }
        Ok(made)
    }

    fn output(&mut self, name: &str, value: &Value) -> Result<Output> {
        let (elem, name) = (value.elem(), name.to_owned());
        if let Value::Known(known) = value {
            let (shape, known) = (known.shape().to_vec(), Some(known.floats()));
            return Ok(Output { name, elem, shape, known });
        }
        let wrong =
            |why: NodeError| Error::Model { what: format!("output `{name}`: {}", why.what) };
        let tensor = self.float(value).map_err(wrong)?;
        // The graph computes all floating-point types in `F32`.
        let tensor = if elem.is_float() {
            ops::cast::converted(&mut self.g, elem, elem, tensor).map_err(wrong)?
        } else {
            tensor
        };
        let shape = self.g.shape(tensor).to_vec();
        if shape.contains(&0) {
            return Ok(Output { name, elem, shape, known: Some(vec![]) });
        }
        let held = self.g.reshape(tensor, if shape.is_empty() { &[1] } else { &shape })?;
        self.g.output(name.clone(), held);
        Ok(Output { name, elem, shape, known: None })
    }
}
