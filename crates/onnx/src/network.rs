//! A model on a device, for given input shapes: one recorded plan, its inputs and outputs.

use std::collections::{BTreeMap, HashMap};

use device::{Data, Device};
use nn::{Session, SessionOptions};
use plan::Plan;

use crate::array::{Array, Elem};
use crate::error::{Error, Result};
use crate::graph::{ModelGraph, Output, build};
use crate::model::{Declared, Extent, Model};

/// Most elements of an input that [`Network::of`] may fix.
const SMALL: usize = 64;

const STEP: usize = 0;

/// A model on a device.
pub struct Network {
    session: Session,
    inputs: BTreeMap<String, (Elem, Vec<usize>)>,
    fixed: BTreeMap<String, Array>,
    outputs: Vec<Output>,
}

impl Network {
    /// Prepares the model for input shapes by name. A shape may be omitted if the model declares
    /// all its extents. `fixed` inputs have constant values, which shapes inside the model may
    /// depend on.
    ///
    /// # Errors
    /// A shape is missing or contradicts the model, a node needs something unsupported, or the
    /// device cannot run the plan.
    pub fn new(
        model: &Model,
        device: &dyn Device,
        shapes: &BTreeMap<String, Vec<usize>>,
        fixed: &BTreeMap<String, Array>,
    ) -> Result<Self> {
        Self::with(model, device, SessionOptions::default(), shapes, fixed)
    }

    /// Like [`Network::new`], with session options.
    ///
    /// # Errors
    /// As for [`Network::new`]; a network beyond the memory limit is rejected before any memory is
    /// reserved.
    pub fn with(
        model: &Model,
        device: &dyn Device,
        options: SessionOptions<'_>,
        shapes: &BTreeMap<String, Vec<usize>>,
        fixed: &BTreeMap<String, Array>,
    ) -> Result<Self> {
        let declared = model.inputs();
        let mut given = shapes.keys().chain(fixed.keys());
        if let Some(name) = given.find(|n| declared.iter().all(|d| d.name != **n)) {
            let known: Vec<&str> = declared.iter().map(|d| &*d.name).collect();
            let what = format!("the model has no such input; it has: {}", known.join(", "));
            return Err(Error::Input { name: name.clone(), what });
        }
        for (name, array) in fixed {
            let checked = Array::check(array.elem, &array.values);
            checked.map_err(|what| Error::Input { name: name.clone(), what })?;
        }
        let mut names = HashMap::new();
        let mut inputs = BTreeMap::new();
        for input in declared.iter().filter(|input| !fixed.contains_key(&input.name)) {
            let shape = fitted(input, shapes.get(&input.name), &mut names)?;
            inputs.insert(input.name.clone(), (input.elem, shape));
        }
        let ModelGraph { g, weights, outputs } = build(model, &inputs, fixed)?;
        let held: Vec<_> = weights.iter().map(|w| (&*w.name, w.elements.data())).collect();
        let session = Session::open_with(device, options, &held, [], &[&g])?;
        Ok(Self { session, inputs, fixed: fixed.clone(), outputs })
    }

    /// Prepares the model for inputs like these. If shapes inside the model depend on inputs, small
    /// inputs are fixed to these values: first integers only, then all but the first input, then
    /// all.
    ///
    /// # Errors
    /// As for [`Network::new`].
    pub fn of(
        model: &Model,
        device: &dyn Device,
        inputs: &BTreeMap<String, Array>,
    ) -> Result<Self> {
        Self::of_with(model, device, SessionOptions::default(), inputs)
    }

    /// Like [`Network::of`], with session options.
    ///
    /// # Errors
    /// As for [`Network::with`].
    pub fn of_with(
        model: &Model,
        device: &dyn Device,
        options: SessionOptions<'_>,
        inputs: &BTreeMap<String, Array>,
    ) -> Result<Self> {
        let first = model.inputs().first().map(|input| input.name.clone());
        let small = |array: &Array| array.values.len() <= SMALL;
        type Way<'a> = &'a dyn Fn(&str, &Array) -> bool;
        let integers = |_: &str, array: &Array| small(array) && !array.elem.is_float();
        let most = |name: &str, array: &Array| small(array) && Some(name) != first.as_deref();
        let all = |_: &str, array: &Array| small(array);
        let ways: [Way<'_>; 4] = [&|_, _| false, &integers, &most, &all];
        let mut made = None;
        for way in ways {
            let (fixed, open): (BTreeMap<_, _>, BTreeMap<_, _>) =
                inputs.clone().into_iter().partition(|(name, array)| way(name, array));
            let shapes = open.into_iter().map(|(name, array)| (name, array.shape)).collect();
            let network = Self::with(model, device, options, &shapes, &fixed);
            if !matches!(&network, Err(Error::Node { depends: true, .. })) {
                return network;
            }
            made.get_or_insert(network);
        }
        made.unwrap_or_else(|| unreachable!("there is a first way"))
    }

    /// True if the network accepts these inputs: its shapes, and the values of its fixed inputs.
    #[must_use]
    pub fn fits(&self, inputs: &BTreeMap<String, Array>) -> bool {
        let open = |(name, (_, shape)): (&String, &(Elem, Vec<usize>))| {
            inputs.get(name).is_some_and(|array| array.shape == *shape)
        };
        let same = |(name, fixed): (&String, &Array)| {
            let given = inputs.get(name);
            given.is_none_or(|given| given.shape == fixed.shape && given.values == fixed.values)
        };
        self.inputs.iter().all(open) && self.fixed.iter().all(same)
    }

    /// Runs the model on these inputs, by name; all inputs must be present.
    ///
    /// # Errors
    /// An input is missing or has another shape than the network, or the device fails.
    pub fn run(&mut self, inputs: &BTreeMap<String, Array>) -> Result<BTreeMap<String, Array>> {
        let wrong = |name: &str, what: String| Error::Input { name: name.to_owned(), what };
        for (name, fixed) in &self.fixed {
            if inputs.get(name).is_some_and(|given| given.values != fixed.values) {
                let what = "shapes follow from it, and the network is for other values of it";
                return Err(wrong(name, what.into()));
            }
        }
        for (name, (_, shape)) in &self.inputs {
            let Some(array) = inputs.get(name) else {
                return Err(wrong(name, "is missing".into()));
            };
            if array.shape != *shape {
                let what = format!("shape {:?}, the network is for {shape:?}", array.shape);
                return Err(wrong(name, what));
            }
        }
        for (name, array) in inputs {
            if self.inputs.contains_key(name) {
                self.write(name, &array.values)?;
            }
        }
        self.step()?;
        let mut all = BTreeMap::new();
        for Output { name, elem, shape, .. } in &self.outputs {
            let mut values = vec![0.0; shape.iter().product()];
            self.read(name, &mut values)?;
            all.insert(name.clone(), Array { elem: *elem, shape: shape.clone(), values });
        }
        Ok(all)
    }

    /// Ends a running step early from another thread, if the device can. The network is lost then.
    #[must_use]
    pub fn canceller(&self) -> Option<device::Canceller> {
        self.session.canceller()
    }

    /// Writes an input for the next steps.
    ///
    /// # Errors
    /// There is no such input, or it has another number of values.
    pub fn write(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let Some((elem, shape)) = self.inputs.get(name) else {
            let what = "the network takes no such input".into();
            return Err(Error::Input { name: name.to_owned(), what });
        };
        let want = shape.iter().product::<usize>();
        if values.len() != want {
            let what = format!("has {} values, the network takes {want}", values.len());
            return Err(Error::Input { name: name.to_owned(), what });
        }
        // An input that no step reads has no buffer.
        if self.session.plan(STEP).find(plan::Class::Mailbox, name).is_none() {
            return Ok(());
        }
        let checked = Array::check(*elem, values);
        checked.map_err(|what| Error::Input { name: name.to_owned(), what })?;
        if elem.is_integer() {
            let whole: Vec<i32> = values.iter().map(|v| *v as i32).collect();
            Ok(self.session.write(STEP, &[(name, Data::I32(&whole))])?)
        } else {
            Ok(self.session.write(STEP, &[(name, Data::F32(values))])?)
        }
    }

    /// Runs one step with the current inputs.
    ///
    /// # Errors
    /// The device fails.
    pub fn step(&mut self) -> Result<()> {
        if self.outputs.iter().any(|output| output.known.is_none()) {
            self.session.run(STEP, 1)?;
        }
        Ok(())
    }

    /// Runs a step and returns the time of each of its parts.
    ///
    /// # Errors
    /// The device fails.
    pub fn profile(&mut self) -> Result<device::Profile> {
        Ok(self.session.profile(STEP)?)
    }

    /// Reads an output of the last step.
    ///
    /// # Errors
    /// There is no such output, or it has another number of values.
    pub fn read(&self, name: &str, values: &mut [f32]) -> Result<()> {
        let known = self.outputs.iter().find(|output| output.name == name);
        match known.and_then(|output| output.known.as_ref()) {
            Some(known) if known.len() == values.len() => values.copy_from_slice(known),
            _ => self.session.read(STEP, name, values)?,
        }
        let elem = self.outputs.iter().find(|output| output.name == name);
        let checked = elem.map_or(Ok(()), |output| Array::check(output.elem, values));
        checked.map_err(|what| Error::Output { name: name.to_owned(), what })
    }

    /// Names, types and shapes of the inputs.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, Elem, &[usize])> {
        self.inputs.iter().map(|(name, (elem, shape))| (&**name, *elem, &**shape))
    }

    /// Names, types and shapes of the outputs.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, Elem, &[usize])> {
        self.outputs.iter().map(|output| (&*output.name, output.elem, &*output.shape))
    }

    /// The plan of a step.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.session.plan(STEP)
    }
}

/// The shape of an input, checked against the model's declaration.
fn fitted(
    input: &Declared,
    given: Option<&Vec<usize>>,
    names: &mut HashMap<String, usize>,
) -> Result<Vec<usize>> {
    let wrong = |what: String| Error::Input { name: input.name.clone(), what };
    let Some(declared) = &input.shape else {
        return given
            .cloned()
            .ok_or_else(|| wrong("the model does not say its shape; give one".into()));
    };
    if let Some(given) = given
        && given.len() != declared.len()
    {
        return Err(wrong(format!(
            "{given:?} has {} axes, the model says {}",
            given.len(),
            declared.len()
        )));
    }
    let mut shape = Vec::new();
    for (i, extent) in declared.iter().enumerate() {
        let given = given.map(|given| given[i]);
        let here = match (extent, given) {
            (Extent::Of(n), None) => *n,
            (Extent::Of(n), Some(given)) if given == *n => *n,
            (Extent::Of(n), Some(given)) => {
                return Err(wrong(format!("axis {i} has {given} elements, the model says {n}")));
            }
            (Extent::Named(name), given) => match (names.get(name), given) {
                (Some(n), None) => *n,
                (Some(n), Some(given)) if *n != given => {
                    return Err(wrong(format!(
                        "axis {i}, `{name}`, has {given} elements, and {n} elsewhere"
                    )));
                }
                (_, Some(given)) => given,
                (None, None) => {
                    return Err(wrong(format!("axis {i}, `{name}`, is open; give its shape")));
                }
            },
            (Extent::Any, Some(given)) => given,
            (Extent::Any, None) => return Err(wrong(format!("axis {i} is open; give its shape"))),
        };
        if let Extent::Named(name) = extent {
            names.insert(name.clone(), here);
        }
        shape.push(here);
    }
    crate::array::shape(&shape.iter().map(|n| *n as i64).collect::<Vec<_>>()).map_err(wrong)
}
