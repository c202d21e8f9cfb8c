//! Lazy tensor graph: a small set of primitives, named composites made of them, shapes checked when
//! an operation is added. Nothing runs here: [`Graph::lower`] gives a [`Plan`], a device runs it.

mod composite;
mod conv;
mod grad;
mod lower;
mod mixture;
mod primitive;
mod recurrent;

pub use mixture::MixtureWeights;
pub use recurrent::{DeltaGates, DeltaOperands};

use crate::{Bucket, Class, DType, Op, Plan, Scalar, Window};

/// A tensor of a graph: a cheap handle, valid for the graph that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor(usize);

pub type Rows = crate::Rows<Tensor>;

pub type Caches = crate::Caches<Tensor>;

pub type Norm = crate::Norm<Tensor>;

pub type Experts = crate::Experts<Tensor>;

pub type Recurrence = crate::Recurrence<Tensor>;

/// Per-row parameters of [`Graph::sample`].
pub type SampleInputs = crate::SampleInputs<Tensor>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{op}: shapes {shapes:?} do not fit: {reason}")]
    Shape { op: &'static str, shapes: Vec<Vec<usize>>, reason: &'static str },
    #[error("{op}: {found} operand, {expected} expected")]
    DType { op: &'static str, found: DType, expected: &'static str },
    #[error("{op} cannot be differentiated: {reason}")]
    Gradient { op: String, reason: &'static str },
    #[error("{class:?} `{name}` is declared twice, with different shapes or types")]
    Redeclared { class: Class, name: String },
    /// The lowered plan is not valid: a bug in a definition.
    #[error("lowering gave an invalid plan: {0}")]
    Plan(#[from] crate::Invalid),
}

/// What adding an operation gives: an [`Error`] where shapes or types of its operands do not fit.
pub type Result<T = Tensor> = std::result::Result<T, Error>;

/// What a node computes, and from what.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Source {
        class: Class,
        name: String,
    },
    Constant(Scalar),
    // Views: free where strides allow.
    Reshape(Tensor),
    Permute(Tensor, Vec<usize>),
    Expand(Tensor),
    Slice {
        x: Tensor,
        axis: usize,
        start: usize,
    },
    Window {
        x: Tensor,
        axis: usize,
        window: Window,
    },
    Flip {
        x: Tensor,
        axis: usize,
    },
    /// A step that writes this node, and perhaps a state in place.
    Compute(Op<Tensor>),
    /// A step that writes a new version of a state or mailbox in place: the node is what it writes.
    Update(Op<Tensor>),
}

impl Kind {
    /// What the node `own` is made from.
    fn inputs(&self, own: Tensor) -> Vec<Tensor> {
        match self {
            Self::Source { .. } | Self::Constant(_) => vec![],
            Self::Reshape(x)
            | Self::Permute(x, _)
            | Self::Expand(x)
            | Self::Slice { x, .. }
            | Self::Window { x, .. }
            | Self::Flip { x, .. } => vec![*x],
            Self::Compute(op) => {
                let all = op.reads().into_iter().chain(op.writes());
                all.copied().filter(|&tensor| tensor != own).collect()
            }
            Self::Update(op) => op.writes().into_iter().chain(op.reads()).copied().collect(),
        }
    }
}

#[derive(Clone, Debug)]
struct Node {
    kind: Kind,
    shape: Vec<usize>,
    dtype: DType,
    scope: Option<usize>,
    label: usize,
}

impl Kind {
    /// Whether it changes what is there after the step.
    fn lasts(&self) -> bool {
        match self {
            Self::Compute(op) => op.memory().is_some(),
            Self::Update(_) => true,
            _ => false,
        }
    }
}

/// A graph under construction. Nodes are kept in the order they were added, which is the order
/// their steps run in.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    composites: Vec<Op<Tensor>>,
    open_composite: bool,
    labels: Vec<String>,
    outputs: Vec<(String, Tensor)>,
}

impl Graph {
    #[must_use]
    pub fn new() -> Self {
        Self { labels: vec![String::new()], ..Self::default() }
    }

    /// Names the place in the model that the following operations belong to.
    pub fn at(&mut self, label: impl Into<String>) {
        self.labels.push(label.into());
    }

    #[must_use]
    pub fn shape(&self, tensor: Tensor) -> &[usize] {
        &self.node(tensor).shape
    }

    #[must_use]
    pub fn dtype(&self, tensor: Tensor) -> DType {
        self.node(tensor).dtype
    }

    /// Makes a tensor readable by the host after a step, under a name.
    pub fn output(&mut self, name: impl Into<String>, tensor: Tensor) {
        let node = self.node(tensor);
        let tensor = match node.kind {
            Kind::Compute(_) => tensor,
            _ => {
                let (shape, dtype) = (node.shape.clone(), node.dtype);
                self.compute(shape, dtype, |out| Op::Copy { x: tensor, out })
            }
        };
        self.outputs.push((name.into(), tensor));
    }

    /// The plan in primitive steps: what no output and no update needs is left out, views become
    /// strides, each remaining operation one step tagged with the composite it belongs to.
    ///
    /// # Errors
    /// [`Error::Plan`] when the result is not valid, which is a bug in a definition.
    pub fn lower(&self, bucket: Bucket) -> Result<Plan> {
        let plan = lower::lower(self, bucket);
        plan.validate()?;
        Ok(plan)
    }

    fn node(&self, tensor: Tensor) -> &Node {
        &self.nodes[tensor.0]
    }

    fn push(&mut self, kind: Kind, shape: Vec<usize>, dtype: DType) -> Tensor {
        let scope = self.open_composite.then_some(self.composites.len());
        self.nodes.push(Node { kind, shape, dtype, scope, label: self.labels.len() - 1 });
        Tensor(self.nodes.len() - 1)
    }

    fn compute(
        &mut self,
        shape: Vec<usize>,
        dtype: DType,
        op: impl FnOnce(Tensor) -> Op<Tensor>,
    ) -> Tensor {
        let out = Tensor(self.nodes.len());
        self.push(Kind::Compute(op(out)), shape, dtype)
    }
}
