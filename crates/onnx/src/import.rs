//! The graph under construction with the model's weights, and the values of the model's names in
//! it.

use std::collections::HashMap;
use std::sync::Arc;

use device::Data;
use ndarray::{ArrayD, Axis, Slice, concatenate};
use nn::shape::concat;
use plan::graph::{Graph, Tensor};
use plan::{Binary, Class, DType};

use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::ops::bytes::Dequantised;

/// Most elements that a step computes.
const MOST: usize = u32::MAX as usize;

/// Value of a name: known to the host, or computed on the device.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Known(Known),
    /// Floats as `F32`, integers as `I32`, booleans as `F32` of 0 and 1.
    Device {
        elem: Elem,
        tensor: Tensor,
    },
}

/// The single output of a node, on the device.
pub(crate) fn device(elem: Elem, tensor: Tensor) -> Vec<Value> {
    vec![Value::Device { elem, tensor }]
}

impl Value {
    pub(crate) const fn elem(&self) -> Elem {
        match self {
            Self::Known(known) => known.elem,
            Self::Device { elem, .. } => *elem,
        }
    }
}

/// A tensor of the model, uploaded once.
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) elements: Elements,
}

/// Elements of a weight as stored on the device.
pub(crate) enum Elements {
    F32(Vec<f32>),
    I32(Vec<i32>),
    I8(Vec<i8>),
    U8(Vec<u8>),
}

impl Elements {
    /// Keeps byte types as bytes; converts other integers to `I32` and the rest to `F32`.
    fn of(elem: Elem, values: &[f64]) -> Self {
        let values = values.iter();
        match elem {
            Elem::I8 | Elem::I4 | Elem::I2 => Self::I8(values.map(|value| *value as i8).collect()),
            Elem::U8 | Elem::U4 | Elem::U2 => Self::U8(values.map(|value| *value as u8).collect()),
            _ if elem.is_integer() => Self::I32(values.map(|value| *value as i32).collect()),
            _ => Self::F32(values.map(|value| *value as f32).collect()),
        }
    }

    pub(crate) fn data(&self) -> Data<'_> {
        match self {
            Self::F32(values) => Data::F32(values),
            Self::I32(values) => Data::I32(values),
            Self::I8(values) => Data::I8(values),
            Self::U8(values) => Data::U8(values),
        }
    }
}

/// Facts about known values, by their address. The values are kept, so that addresses stay unique.
type OfKnown<T> = HashMap<*const ArrayD<f64>, (Arc<ArrayD<f64>>, T)>;

pub(crate) struct Import {
    pub(crate) g: Graph,
    pub(crate) weights: Vec<Weight>,
    /// For each computed index, `[1]`: 1 if one is outside of its axis.
    pub(crate) outside: Vec<Tensor>,
    /// Known values that have become weights.
    uploaded: OfKnown<Tensor>,
    /// The element that all elements of a known value equal, if any. Many nodes may use one value.
    uniform: OfKnown<Option<f64>>,
    /// Index of the weight of a byte tensor.
    bytes: HashMap<Tensor, usize>,
    /// Results of `DequantizeLinear`.
    dequantised: HashMap<Tensor, Dequantised>,
    /// Integers that are in memory as `F32` too. Converting them once more takes time.
    whole: HashMap<Tensor, Tensor>,
}

/// State of an import, to return to.
pub(crate) struct Saved {
    g: Graph,
    weights: usize,
    checks: usize,
    uploaded: OfKnown<Tensor>,
    bytes: HashMap<Tensor, usize>,
    dequantised: HashMap<Tensor, Dequantised>,
    whole: HashMap<Tensor, Tensor>,
}

impl Import {
    pub(crate) fn save(&self) -> Saved {
        Saved {
            g: self.g.clone(),
            weights: self.weights.len(),
            checks: self.checks(),
            uploaded: self.uploaded.clone(),
            bytes: self.bytes.clone(),
            dequantised: self.dequantised.clone(),
            whole: self.whole.clone(),
        }
    }

    pub(crate) fn restore(&mut self, saved: Saved) {
        let Saved { g, weights, checks, uploaded, bytes, dequantised, whole } = saved;
        self.weights.truncate(weights);
        self.drop_checks(checks);
        (self.g, self.uploaded) = (g, uploaded);
        (self.bytes, self.dequantised, self.whole) = (bytes, dequantised, whole);
    }

    /// A graph of at most `nodes` nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        Self::limited(MOST, nodes)
    }

    /// Like [`Self::new`], with at most `most` elements in a step.
    pub(crate) fn limited(most: usize, nodes: usize) -> Self {
        Self {
            g: Graph::limited(most, nodes),
            weights: Vec::new(),
            outside: Vec::new(),
            uploaded: HashMap::new(),
            uniform: HashMap::new(),
            bytes: HashMap::new(),
            dequantised: HashMap::new(),
            whole: HashMap::new(),
        }
    }

    /// Adds a weight to the graph.
    pub(crate) fn weight(
        &mut self,
        elem: Elem,
        shape: &[usize],
        values: &[f64],
    ) -> NodeResult<Tensor> {
        let fits = |value: &f64| f64::from(*value as i32) == *value;
        if let Some(value) = values.iter().find(|value| elem.is_integer() && !fits(value)) {
            return Err(invalid(format!(
                "the integer {value} does not fit in 32 bits, in which devices compute"
            )));
        }
        let weight = self.weights.len();
        let mut tensor = self.stored(Elements::of(elem, values))?;
        if elem.is_integer() {
            tensor = self.g.cast(tensor, DType::I32)?;
        }
        let tensor = self.g.reshape(tensor, shape)?;
        if matches!(elem, Elem::I8 | Elem::U8) {
            self.bytes.insert(tensor, weight);
        }
        Ok(tensor)
    }

    /// Integers that the host knows: constants, and weights of bytes.
    pub(crate) fn integers(&self, value: &Value) -> Option<Vec<f64>> {
        match value {
            Value::Known(known) => Some(known.values.iter().copied().collect()),
            Value::Device { tensor, .. } => {
                match &self.weights[*self.bytes.get(tensor)?].elements {
                    Elements::I8(bytes) => {
                        Some(bytes.iter().map(|byte| f64::from(*byte)).collect())
                    }
                    Elements::U8(bytes) => {
                        Some(bytes.iter().map(|byte| f64::from(*byte)).collect())
                    }
                    Elements::F32(_) | Elements::I32(_) => None,
                }
            }
        }
    }

    /// Records the tensor as a result of `DequantizeLinear`.
    pub(crate) fn remember(&mut self, tensor: Tensor, of: Dequantised) {
        self.dequantised.insert(tensor, of);
    }

    /// The operands of `DequantizeLinear`, if it computed the value.
    pub(crate) fn dequantised(&self, value: &Value) -> Option<Dequantised> {
        match value {
            Value::Device { tensor, .. } => self.dequantised.get(tensor).cloned(),
            Value::Known(_) => None,
        }
    }

    /// Adds a weight of floats to the graph.
    pub(crate) fn floats(&mut self, shape: &[usize], values: Vec<f32>) -> NodeResult<Tensor> {
        let tensor = self.stored(Elements::F32(values))?;
        Ok(self.g.reshape(tensor, shape)?)
    }

    fn stored(&mut self, elements: Elements) -> NodeResult<Tensor> {
        let name = format!("w{}", self.weights.len());
        let (dtype, count) = (elements.data().dtype(), elements.data().elements());
        let tensor = self.g.source(Class::Weight, &name, dtype, &[count])?;
        self.weights.push(Weight { name, elements });
        Ok(tensor)
    }

    /// A value on the device, in the type that its elements have there.
    pub(crate) fn tensor(&mut self, value: &Value) -> NodeResult<Tensor> {
        let known = match value {
            Value::Device { tensor, .. } => return Ok(*tensor),
            Value::Known(known) => known,
        };
        if !known.elem.is_integer()
            && let Some(value) = self.uniform(known)
        {
            let constant = self.g.constant(value as f32);
            return Ok(self.g.expand(constant, known.shape())?);
        }
        let address = Arc::as_ptr(&known.values);
        if let Some((_, tensor)) = self.uploaded.get(&address) {
            return Ok(*tensor);
        }
        let values: Vec<f64> = known.values.iter().copied().collect();
        let tensor = self.weight(known.elem, known.shape(), &values)?;
        self.uploaded.insert(address, (Arc::clone(&known.values), tensor));
        Ok(tensor)
    }

    fn uniform(&mut self, known: &Known) -> Option<f64> {
        let found = || (Arc::clone(&known.values), known.uniform());
        self.uniform.entry(Arc::as_ptr(&known.values)).or_insert_with(found).1
    }

    /// A value on the device as `F32`.
    pub(crate) fn float(&mut self, value: &Value) -> NodeResult<Tensor> {
        if let Value::Known(known) = value
            && let Some(uniform) = self.uniform(known)
        {
            let constant = self.g.constant(uniform as f32);
            return Ok(self.g.expand(constant, known.shape())?);
        }
        let tensor = self.tensor(value)?;
        match self.whole.get(&tensor) {
            Some(&floats) => Ok(floats),
            None => Ok(self.g.cast(tensor, DType::F32)?),
        }
    }

    /// Whole numbers in `F32` as an integer tensor of this shape.
    pub(crate) fn whole(&mut self, floats: Tensor, shape: &[usize]) -> NodeResult<Tensor> {
        // A conversion makes a NaN 0.
        let zero = self.g.constant(0.0);
        let number = self.g.binary(Binary::Equal, floats, floats)?;
        let floats = self.g.select(number, floats, zero)?;
        let floats = self.g.reshape(floats, shape)?;
        let integers = self.g.cast(floats, DType::I32)?;
        self.whole.insert(integers, floats);
        Ok(integers)
    }

    /// An optional value on the device as `F32`.
    pub(crate) fn float_if(&mut self, value: Option<&Value>) -> NodeResult<Option<Tensor>> {
        value.map(|value| self.float(value)).transpose()
    }

    /// The same values in another shape.
    pub(crate) fn reshaped(&mut self, value: &Value, shape: &[usize]) -> NodeResult<Value> {
        Ok(match value {
            Value::Known(known) => Value::Known(known.reshaped(shape)?),
            Value::Device { elem, tensor } => {
                Value::Device { elem: *elem, tensor: self.g.reshape(*tensor, shape)? }
            }
        })
    }

    /// `count` entries of an axis.
    pub(crate) fn part(
        &mut self,
        value: &Value,
        at: usize,
        begin: usize,
        count: usize,
    ) -> NodeResult<Value> {
        Ok(match value {
            Value::Known(Known { elem, values }) => {
                let part = values.slice_axis(Axis(at), Slice::from(begin..begin + count));
                Value::Known(Known { elem: *elem, values: Arc::new(part.to_owned()) })
            }
            Value::Device { elem, tensor } => {
                Value::Device { elem: *elem, tensor: self.g.slice(*tensor, at, begin, count)? }
            }
        })
    }

    /// A single entry of an axis, without the axis.
    pub(crate) fn entry(&mut self, value: &Value, at: usize, place: usize) -> NodeResult<Value> {
        let mut shape = self.shape(value);
        shape.remove(at);
        let part = self.part(value, at, place, 1)?;
        self.reshaped(&part, &shape)
    }

    /// Joins values along an axis.
    pub(crate) fn joined(&mut self, values: &[Value], at: usize) -> NodeResult<Value> {
        let elem = values.first().map_or(Elem::F32, Value::elem);
        let known = values.iter().map(|value| match value {
            Value::Known(known) => Some(known.values.view()),
            Value::Device { .. } => None,
        });
        if let Some(all) = known.collect::<Option<Vec<_>>>() {
            let joined = concatenate(Axis(at), &all).map_err(|e| invalid(e.to_string()))?;
            return Ok(Value::Known(Known { elem, values: Arc::new(joined) }));
        }
        let mut all = Vec::new();
        for value in values {
            if !self.shape(value).contains(&0) {
                all.push(self.tensor(value)?);
            }
        }
        Ok(Value::Device { elem, tensor: concat(&mut self.g, &all, at)? })
    }

    pub(crate) fn shape(&self, value: &Value) -> Vec<usize> {
        match value {
            Value::Known(known) => known.shape().to_vec(),
            Value::Device { tensor, .. } => self.g.shape(*tensor).to_vec(),
        }
    }
}
