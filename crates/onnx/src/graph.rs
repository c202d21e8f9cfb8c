//! Builds the graph of a model for given input shapes. Each node is built by its operator, or
//! folded by the host if all its inputs are known.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use plan::graph::{Graph, MAX_NODES};
use plan::{Class, DType};

use crate::array::{self, Array, Elem, Known};
use crate::error::{Built, Error, NodeError, NodeResult, Result, Stop, invalid};
use crate::import::{Import, Value, Weight};
use crate::item::Item;
use crate::model::{Model, is_own};
use crate::node::{Attributes, Node, node_name};
use crate::proto::{GraphProto, NodeProto, TensorProto};
use crate::{control, fold, legacy, ops, sequence};

/// Largest number of elements of an initializer that stays on the host, where shapes can be
/// computed from it.
const SMALL: usize = 4096;

/// Number of elements of a known value that count as much as a node, in the limit of work.
const ELEMENTS_PER_NODE: usize = 64;

/// Deepest nesting of calls and branches.
const MAX_DEPTH: usize = 64;

/// Most errors that are reported at once.
const MAX_ERRORS: usize = 20;

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
    /// True if it has the output [`bounds::OUTSIDE`](crate::bounds::OUTSIDE).
    pub(crate) checks: bool,
}

/// Result of building.
pub(crate) enum Outcome {
    Whole(ModelGraph),
    /// The part that computes the values which the rest depends on, as outputs `0`, `1`, ..
    Stage {
        graph: ModelGraph,
        /// True if the rest can be built without them.
        optional: bool,
        /// The error if there is no data.
        error: Error,
    },
}

/// Response to a stage.
pub(crate) enum Answer {
    Values(Vec<Known>),
    /// The values change with the data: build without them.
    Data,
}

/// Surroundings of a function's body, or of the model's graph.
#[derive(Clone)]
pub(crate) struct Frame<'m> {
    /// First scope that its nodes see.
    pub(crate) base: usize,
    pub(crate) opset: i64,
    pub(crate) attributes: Rc<Attributes<'m>>,
}

/// A graph under construction, and the values of all names that are visible.
pub(crate) struct Builder<'m> {
    pub(crate) model: &'m Model,
    pub(crate) im: Import,
    pub(crate) scopes: Vec<HashMap<&'m str, Item<'m>>>,
    pub(crate) frame: Frame<'m>,
    depth: usize,
    /// Unrolled loops around the current node.
    pub(crate) unrolled: usize,
    /// Nodes visited, and their folded elements as nodes.
    pub(crate) work: usize,
    /// Number of folded elements.
    folded: usize,
    /// The limit that ended building.
    exceeded: Option<Error>,
    answers: &'m [Answer],
    answered: usize,
}

/// Builds the model for inputs of these shapes, by name. The values of `fixed` inputs are known,
/// and so are those of earlier stages.
pub(crate) fn build(
    model: &Model,
    shapes: &BTreeMap<String, (Elem, Vec<usize>)>,
    fixed: &BTreeMap<String, Array>,
    answers: &[Answer],
) -> Result<Outcome> {
    let frame = Frame { base: 0, opset: model.opset, attributes: Rc::default() };
    let mut builder = Builder {
        model,
        im: Import::new(model.meter.most_nodes()),
        scopes: vec![HashMap::new()],
        frame,
        depth: 0,
        unrolled: 0,
        work: 0,
        folded: 0,
        exceeded: None,
        answers,
        answered: 0,
    };
    builder.initializers(&model.graph);
    builder.inputs(shapes, fixed)?;
    let mut errors = Vec::new();
    for (i, proto) in model.graph.node.iter().enumerate() {
        let label = if proto.name.is_empty() { &proto.op_type } else { &proto.name };
        builder.im.g.at(label.clone());
        let error = |why: NodeError| Error::Node {
            node: node_name(proto, i),
            op: proto.op_type.clone(),
            what: why.what,
        };
        match builder.step(proto) {
            Ok(()) => {}
            Err(Stop::Failed(why)) => {
                let nodes = builder.im.g.size();
                let limit = builder.exceeded.take().or_else(|| model.meter.too_many(nodes));
                if let Some(limit) = limit {
                    return Err(limit);
                }
                errors.push(error(why));
                builder.fail(proto);
                if errors.len() == MAX_ERRORS || builder.is_full() {
                    break;
                }
            }
            Err(Stop::Needs { values, optional, what }) => {
                if let Some(error) = Error::all(errors) {
                    return Err(error);
                }
                return builder.stage(&values, optional, error(invalid(what)));
            }
        }
    }
    if let Some(error) = Error::all(errors) {
        return Err(error);
    }
    builder.whole()
}

impl<'m> Builder<'m> {
    /// Makes the initializers of a graph visible in the innermost scope. They are read when a node
    /// needs them.
    pub(crate) fn initializers(&mut self, graph: &'m GraphProto) {
        for tensor in &graph.initializer {
            self.set(&tensor.name, Item::Initializer(tensor));
        }
    }

    fn inputs(
        &mut self,
        shapes: &BTreeMap<String, (Elem, Vec<usize>)>,
        fixed: &BTreeMap<String, Array>,
    ) -> Result<()> {
        for info in &self.model.graph.input {
            let name = &info.name;
            if let Some(array) = fixed.get(name) {
                Array::check(array.elem, &array.values)
                    .map_err(|what| Error::Input { name: name.clone(), what })?;
                let Some(known) = array.known() else {
                    let (count, shape) = (array.values.len(), &array.shape);
                    let what = format!("{count} values do not fill shape {shape:?}");
                    return Err(Error::Input { name: name.clone(), what });
                };
                self.set(name, Item::Value(Value::Known(known)));
                continue;
            }
            let Some((elem, shape)) = shapes.get(name) else {
                if self.get(name).is_some() {
                    continue;
                }
                return Err(Error::Input { name: name.clone(), what: "is missing".into() });
            };
            let dtype = if elem.is_integer() { DType::I32 } else { DType::F32 };
            let held = if shape.is_empty() { &[1][..] } else { shape };
            let tensor = self.im.g.source(Class::Mailbox, name, dtype, held)?;
            let tensor = self.im.g.reshape(tensor, shape)?;
            self.set(name, Item::Value(Value::Device { elem: *elem, tensor }));
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Option<&Item<'m>> {
        self.scopes[self.frame.base..].iter().rev().find_map(|scope| scope.get(name))
    }

    /// The value of a name, in the innermost scope that has it.
    pub(crate) fn item(&mut self, name: &str) -> NodeResult<Item<'m>> {
        let scopes = self.scopes[self.frame.base..].iter_mut().rev();
        let found = scopes.filter_map(|scope| scope.get_mut(name)).next();
        let item = found.ok_or_else(|| invalid(format!("no node computes its input `{name}`")))?;
        if let Item::Initializer(tensor) = *item {
            *item = Item::Value(initial(&mut self.im, tensor)?);
        }
        Ok(item.clone())
    }

    pub(crate) fn set(&mut self, name: &'m str, item: Item<'m>) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, item);
        }
    }

    /// Counts work, so that neither calls, loops nor folding let a small file take long.
    pub(crate) fn charge(&mut self, elements: usize) -> NodeResult<()> {
        self.work = self.work.saturating_add(1 + elements / ELEMENTS_PER_NODE);
        self.folded = self.folded.saturating_add(elements);
        if let Err(limit) = self.model.meter.check(self.folded) {
            let what = limit.to_string();
            self.exceeded = Some(limit);
            return Err(invalid(what));
        }
        if self.is_full() {
            return Err(invalid(format!(
                "the unrolled graph has more than {MAX_NODES} nodes, the limit"
            )));
        }
        Ok(self.im.g.check_size()?)
    }

    fn is_full(&self) -> bool {
        self.work > MAX_NODES || self.im.g.check_size().is_err()
    }

    /// Builds a node and sets its outputs.
    pub(crate) fn step(&mut self, proto: &'m NodeProto) -> Built<()> {
        let inputs = proto.input.iter().filter(|name| !name.is_empty());
        for name in inputs {
            if matches!(self.get(name), Some(Item::Failed)) {
                self.fail(proto);
                return Ok(());
            }
        }
        let made = self.node(proto)?;
        let wanted = proto.output.iter().rposition(|name| !name.is_empty()).map_or(0, |i| i + 1);
        if made.len() < wanted {
            return Err(invalid(format!("output {} is not supported", made.len())).into());
        }
        let known = |item: &Item<'_>| match item {
            Item::Value(Value::Known(known)) => known.values.len(),
            Item::Sequence(all) => all.len(),
            _ => 0,
        };
        self.charge(made.iter().map(known).sum())?;
        for (name, item) in proto.output.iter().zip(made) {
            if !name.is_empty() {
                self.set(name, item);
            }
        }
        Ok(())
    }

    /// Marks the outputs of a node that could not be built.
    fn fail(&mut self, proto: &'m NodeProto) {
        for name in &proto.output {
            self.set(name, Item::Failed);
        }
    }

    fn node(&mut self, proto: &'m NodeProto) -> Built<Vec<Item<'m>>> {
        let domain = if is_own(&proto.domain) { "" } else { &*proto.domain };
        let model = self.model;
        if let Some(function) = model.functions.get(&(domain.to_owned(), proto.op_type.clone())) {
            return self.nested(|this| this.call(function, proto));
        }
        if domain.is_empty() {
            if let Some(operator) = control::find(&proto.op_type) {
                return self.nested(|this| operator(this, proto));
            }
            if let Some(made) = sequence::build(self, proto)? {
                return Ok(made);
            }
        }
        let made = self.operator(domain, proto)?;
        Ok(made.into_iter().map(Item::Value).collect())
    }

    fn nested<T>(&mut self, build: impl FnOnce(&mut Self) -> Built<T>) -> Built<T> {
        if self.depth == MAX_DEPTH {
            return Err(invalid(format!("more than {MAX_DEPTH} calls inside each other")).into());
        }
        self.depth += 1;
        let (scopes, frame) = (self.scopes.len(), self.frame.clone());
        let made = build(self);
        self.depth -= 1;
        self.scopes.truncate(scopes);
        self.frame = frame;
        made
    }

    /// Builds a node whose inputs and outputs are tensors.
    fn operator(&mut self, domain: &str, proto: &NodeProto) -> Built<Vec<Value>> {
        let Some(operator) = ops::find(domain, &proto.op_type) else {
            return Err("no such operator".into());
        };
        let host = ops::reads_weights(domain, &proto.op_type);
        let mut inputs = Vec::new();
        for name in &proto.input {
            inputs.push(match &**name {
                "" => None,
                name if host => self.on_host(name)?.or(self.item(name)?.value()?),
                name => self.item(name)?.value()?,
            });
        }
        let call = Rc::clone(&self.frame.attributes);
        let own = domain.is_empty();
        let opset = if own { self.frame.opset } else { legacy::OLDEST };
        let raised;
        let mut proto = proto;
        if own && opset < legacy::OLDEST {
            legacy::align(&mut self.im, proto, &mut inputs)?;
            raised = legacy::raised(proto);
            proto = &raised;
        }
        loop {
            let node = Node::new(proto, opset.max(legacy::OLDEST), inputs.clone(), &call);
            let made = match fold::fold(&mut self.im, &node, operator) {
                Ok(made) => made,
                Err(NodeError { what, needs }) if !needs.is_empty() => {
                    let of = |place: &usize| match inputs.get(*place) {
                        Some(Some(value @ Value::Device { .. })) => Some((*place, value.clone())),
                        _ => None,
                    };
                    let (places, values): (Vec<_>, Vec<_>) = needs.iter().filter_map(of).unzip();
                    if places.is_empty() {
                        return Err(invalid(what).into());
                    }
                    let found = self.need(&values, false, &what)?.unwrap_or_default();
                    for (place, known) in places.into_iter().zip(found) {
                        inputs[place] = Some(Value::Known(known));
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if let Some(name) = node.unused_attribute() {
                return Err(invalid(format!("attribute {name} is not supported")).into());
            }
            return Ok(made);
        }
    }

    /// Values of a weight that has not been read yet, for operators that compute from them.
    fn on_host(&self, name: &str) -> NodeResult<Option<Value>> {
        let Some(Item::Initializer(tensor)) = self.get(name) else { return Ok(None) };
        let (elem, shape, numbers) = array::read(tensor).map_err(|e| invalid(e.to_string()))?;
        Ok(Known::new(elem, &shape, numbers).map(Value::Known))
    }

    /// Values on the device, from an earlier stage. `None` if they are optional and change with the
    /// data.
    pub(crate) fn need(
        &mut self,
        values: &[Value],
        optional: bool,
        what: &str,
    ) -> Built<Option<Vec<Known>>> {
        let answers = self.answers;
        match answers.get(self.answered) {
            Some(Answer::Values(found)) => {
                self.answered += 1;
                Ok(Some(found.clone()))
            }
            Some(Answer::Data) => {
                self.answered += 1;
                Ok(None)
            }
            None => Err(Stop::Needs { values: values.to_vec(), optional, what: what.to_owned() }),
        }
    }

    fn whole(mut self) -> Result<Outcome> {
        let mut outputs = Vec::new();
        for output in &self.model.graph.output {
            let name = &output.name;
            let refused = |what: &str| Error::Model { what: format!("output `{name}` {what}") };
            let Ok(item) = self.item(name) else { return Err(refused("is made by no node")) };
            let Item::Value(value) = item else { return Err(refused("is not a tensor")) };
            let made = self.im.output(name, &value);
            self.check_nodes()?;
            outputs.push(made?);
        }
        let checks = self.checks()?;
        let Import { g, weights, .. } = self.im;
        Ok(Outcome::Whole(ModelGraph { g, weights, outputs, checks }))
    }

    fn stage(mut self, values: &[Value], optional: bool, error: Error) -> Result<Outcome> {
        let mut outputs = Vec::new();
        for (i, value) in values.iter().enumerate() {
            let made = self.im.output(&i.to_string(), value);
            self.check_nodes()?;
            outputs.push(made?);
        }
        let checks = self.checks()?;
        let Import { g, weights, .. } = self.im;
        let graph = ModelGraph { g, weights, outputs, checks };
        Ok(Outcome::Stage { graph, optional, error })
    }

    fn checks(&mut self) -> Result<bool> {
        let made = self.im.output_checks();
        self.check_nodes()?;
        made.map_err(|why| Error::Model { what: why.what })
    }

    fn check_nodes(&self) -> Result<()> {
        self.model.meter.too_many(self.im.g.size()).map_or(Ok(()), Err)
    }
}

/// The value of an initializer: known if it is small, else a weight.
fn initial(im: &mut Import, tensor: &TensorProto) -> NodeResult<Value> {
    let (elem, shape, numbers) = array::read(tensor).map_err(|e| invalid(e.to_string()))?;
    if numbers.len() <= SMALL {
        let known = Known::new(elem, &shape, numbers);
        return Ok(Value::Known(known.unwrap_or_else(|| unreachable!("its shape is checked"))));
    }
    let made = im.weight(elem, &shape, &numbers);
    let tensor = made.map_err(|why| invalid(format!("tensor `{}`: {}", tensor.name, why.what)))?;
    Ok(Value::Device { elem, tensor })
}

impl Import {
    pub(crate) fn output(&mut self, name: &str, value: &Value) -> Result<Output> {
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
