//! A model on a device, for given input shapes: one recorded plan, its inputs and outputs.

use std::collections::{BTreeMap, HashMap, HashSet};

use device::{Data, Device};
use nn::{Session, SessionOptions};
use plan::{Bucket, Class, Outputs, Plan};

use crate::array::{Array, Elem};
use crate::bounds::OUTSIDE;
use crate::error::{Error, Result};
use crate::graph::{Answer, ModelGraph, Outcome, Output, build};
use crate::import::Elements;
use crate::model::{Declared, Extent, Model};

/// Most elements of an input that [`Network::of`] may fix.
const SMALL: usize = 64;

/// Most stages of a network.
const MAX_STAGES: usize = 64;

const STEP: usize = 0;

/// A model on a device.
pub struct Network {
    session: Session,
    inputs: BTreeMap<String, (Elem, Vec<usize>)>,
    fixed: BTreeMap<String, Array>,
    outputs: Vec<Output>,
    /// True if a step reports computed indices that are outside of their axis.
    checks: bool,
    stages: Vec<Stage>,
}

/// The part of a model that computes values on which the rest depends, and the values for which the
/// rest is prepared.
struct Stage {
    network: Network,
    found: BTreeMap<String, Array>,
}

/// Types and shapes of inputs, by name.
type Shapes = BTreeMap<String, (Elem, Vec<usize>)>;

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
        let inputs = fit(model, shapes, fixed)?;
        let mut answers = Vec::new();
        loop {
            match build(model, &inputs, fixed, &answers)? {
                Outcome::Whole(graph) => {
                    model.meter.check(0)?;
                    return Self::open(device, options, graph, inputs, fixed);
                }
                // There is no data to look at.
                Outcome::Stage { optional: true, .. } => answers.push(Answer::Data),
                Outcome::Stage { error, .. } => return Err(error),
            }
        }
    }

    fn open(
        device: &dyn Device,
        options: SessionOptions<'_>,
        mut graph: ModelGraph,
        inputs: Shapes,
        fixed: &BTreeMap<String, Array>,
    ) -> Result<Self> {
        // Devices reject integers that no step reads.
        if graph.weights.iter().any(|weight| !matches!(weight.elements, Elements::F32(_))) {
            graph.drop_unused_weights()?;
        }
        let ModelGraph { g, weights, outputs, checks } = graph;
        let held: Vec<_> = weights.iter().map(|w| (&*w.name, w.elements.data())).collect();
        let session = Session::open_with(device, options, &held, [], &[&g])?;
        let fixed = fixed.clone();
        Ok(Self { session, inputs, fixed, outputs, checks, stages: Vec::new() })
    }

    /// Prepares the model for inputs like these. Shapes and branches inside the model may depend on
    /// inputs. If only small inputs decide, they are fixed to these values. Else the network is
    /// prepared in stages: an earlier one computes the values that the next depends on.
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
        let mut fixed = BTreeMap::new();
        let (mut answers, mut stages) = (Vec::new(), Vec::new());
        loop {
            let open = inputs.iter().filter(|(name, _)| !fixed.contains_key(*name));
            let shapes = open.map(|(name, array)| (name.clone(), array.shape.clone())).collect();
            let fitted = fit(model, &shapes, &fixed)?;
            let (graph, optional, error) = match build(model, &fitted, &fixed, &answers)? {
                Outcome::Whole(mut graph) => {
                    if !stages.is_empty() {
                        graph.drop_unused_weights()?;
                    }
                    model.meter.check(0)?;
                    let network = Self::open(device, options, graph, fitted, &fixed)?;
                    return Ok(Self { stages, ..network });
                }
                Outcome::Stage { graph, optional, error } => (graph, optional, error),
            };
            let read: BTreeMap<_, _> = graph
                .reads()?
                .into_iter()
                .filter_map(|name| {
                    let array = inputs.get(&name)?;
                    Some((name, array.clone()))
                })
                .collect();
            let small = |array: &Array| array.values.len() <= SMALL;
            if !read.is_empty() && read.values().all(small) {
                fixed.extend(read);
                (answers, stages) = (Vec::new(), Vec::new());
            } else if optional {
                answers.push(Answer::Data);
            } else if stages.len() == MAX_STAGES {
                return Err(error);
            } else {
                let mut network = Self::open(device, options, graph, fitted, &fixed)?;
                model.meter.check(0)?;
                let found = model.meter.exempt(|| network.run(inputs))?;
                let values = (0..found.len()).filter_map(|i| found.get(&i.to_string())?.known());
                answers.push(Answer::Values(values.collect()));
                stages.push(Stage { network, found });
            }
        }
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
    /// An input is missing or has another shape than the network, a stage computes other values
    /// than the network is prepared for ([`Error::Changed`]), or the device fails.
    pub fn run(&mut self, inputs: &BTreeMap<String, Array>) -> Result<BTreeMap<String, Array>> {
        let wrong = |name: &str, what: String| Error::Input { name: name.to_owned(), what };
        for (name, fixed) in &self.fixed {
            if inputs.get(name).is_some_and(|given| given.values != fixed.values) {
                let what = "the network is prepared for another value of it";
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
        for Stage { network, found } in &mut self.stages {
            if network.run(inputs)? != *found {
                return Err(Error::Changed);
            }
        }
        for (name, array) in inputs {
            if self.inputs.contains_key(name) {
                self.write(name, &array.values)?;
            }
        }
        self.step()?;
        let mut all = BTreeMap::new();
        for output in &self.outputs {
            let Output { name, elem, shape, .. } = output;
            let mut values = vec![0.0; shape.iter().product()];
            self.read_output(name, Some(output), &mut values)?;
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
        if !self.session.has_input(STEP, name) {
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
    /// The device fails, or an index that the network computes is outside of its axis.
    pub fn step(&mut self) -> Result<()> {
        if self.outputs.iter().any(|output| output.known.is_none()) {
            self.session.run(STEP, 1)?;
            let mut outside = [0.0];
            if self.checks {
                self.session.read(STEP, OUTSIDE, &mut outside)?;
            }
            if outside != [0.0] {
                return Err(Error::Outside);
            }
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
        let output = self.outputs.iter().find(|output| output.name == name);
        self.read_output(name, output, values)
    }

    fn read_output(&self, name: &str, output: Option<&Output>, values: &mut [f32]) -> Result<()> {
        match output.and_then(|output| output.known.as_ref()) {
            Some(known) if known.len() == values.len() => values.copy_from_slice(known),
            _ => self.session.read(STEP, name, values)?,
        }
        let checked = output.map_or(Ok(()), |output| Array::check(output.elem, values));
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

/// Types and shapes of all inputs that are not fixed, checked against the model's declarations.
fn fit(
    model: &Model,
    shapes: &BTreeMap<String, Vec<usize>>,
    fixed: &BTreeMap<String, Array>,
) -> Result<Shapes> {
    let (required, replaceable) = (model.inputs(), model.replaceable());
    let mut given = shapes.keys().chain(fixed.keys());
    if let Some(name) = given.find(|n| required.iter().chain(&replaceable).all(|d| d.name != **n)) {
        let known: Vec<&str> = required.iter().map(|d| &*d.name).collect();
        let what = format!("the model has no such input; it has: {}", known.join(", "));
        return Err(Error::Input { name: name.clone(), what });
    }
    let replaced = replaceable.iter().filter(|input| shapes.contains_key(&input.name));
    let (mut names, mut inputs, mut errors) = (HashMap::new(), BTreeMap::new(), Vec::new());
    for input in required.iter().chain(replaced).filter(|input| !fixed.contains_key(&input.name)) {
        match fitted(input, shapes.get(&input.name), &mut names) {
            Ok(shape) => drop(inputs.insert(input.name.clone(), (input.elem, shape))),
            Err(error) => errors.push(error),
        }
    }
    Error::all(errors).map_or(Ok(inputs), Err)
}

impl ModelGraph {
    fn plan(&self) -> Result<Plan> {
        let bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };
        Ok(self.g.lower(bucket)?)
    }

    /// Names of the inputs that the outputs depend on.
    fn reads(&self) -> Result<Vec<String>> {
        let buffers = self.plan()?.buffers.into_iter();
        Ok(buffers.filter(|b| b.class == Class::Mailbox).map(|buffer| buffer.name).collect())
    }

    /// Drops the weights that no step reads, since an earlier stage computed what they are for.
    fn drop_unused_weights(&mut self) -> Result<()> {
        let plan = self.plan()?;
        let buffers = plan.buffers.iter().filter(|buffer| buffer.class == Class::Weight);
        let read: HashSet<&str> = buffers.map(|buffer| &*buffer.name).collect();
        self.weights.retain(|weight| read.contains(&*weight.name));
        Ok(())
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
            // A name may have several sizes: exporters use one for unrelated axes.
            (Extent::Named(_), Some(given)) => given,
            (Extent::Named(name), None) => match names.get(name) {
                Some(n) => *n,
                None => return Err(wrong(format!("axis {i}, `{name}`, is open; give its shape"))),
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
