//! Lazy tensor graph: a small set of primitives, named composites made of them, shapes checked when
//! an operation is added. Nothing runs here: [`Graph::lower`] gives a [`Plan`], a device runs it.

mod composite;
mod lower;
mod primitive;

pub use composite::{Caches, Rows};
pub use primitive::SampleInputs;

use crate::{Bucket, Class, Composite, DType, Plan, Scalar};

/// A tensor of a graph: a cheap handle, valid for the graph that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor(u32);

/// An operation that cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Operand shapes do not fit the operation.
    #[error("{op}: shapes {shapes:?} do not fit: {reason}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Operand shapes.
        shapes: Vec<Vec<usize>>,
        /// What was expected.
        reason: &'static str,
    },
    /// Operand types do not fit the operation.
    #[error("{op}: {found} operand, {expected} expected")]
    DType {
        /// The operation.
        op: &'static str,
        /// The type given.
        found: DType,
        /// What was expected.
        expected: &'static str,
    },
    /// A buffer was declared twice, differently.
    #[error("{class:?} `{name}` is declared twice, with different shapes or types")]
    Redeclared {
        /// Its class.
        class: Class,
        /// Its name.
        name: String,
    },
    /// The lowered plan is not valid: a bug in a definition.
    #[error("lowering gave an invalid plan: {0}")]
    Plan(#[from] crate::Invalid),
}

/// What a node computes from its inputs.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// A named buffer.
    Source {
        class: Class,
        name: String,
    },
    Constant(Scalar),
    // Views: free where strides allow.
    Reshape,
    Permute(Vec<usize>),
    Expand,
    Slice {
        axis: usize,
        start: usize,
    },
    /// A step.
    Compute(crate::Op),
    /// A new version of a state or mailbox: the first input, overwritten in place.
    Update(crate::Op),
}

#[derive(Clone, Debug)]
struct Node {
    kind: Kind,
    inputs: Vec<Tensor>,
    shape: Vec<usize>,
    dtype: DType,
    scope: Option<u32>,
    label: u32,
}

#[derive(Clone, Debug)]
struct CompositeNode {
    composite: Composite,
    inputs: Vec<Tensor>,
    output: Tensor,
}

/// A graph under construction. Nodes are kept in the order they were added, which is the order
/// their steps run in.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    composites: Vec<CompositeNode>,
    open_composite: bool,
    labels: Vec<String>,
    label: u32,
    outputs: Vec<(String, Tensor)>,
}

impl Graph {
    /// An empty graph.
    #[must_use]
    pub fn new() -> Self {
        Self { labels: vec![String::new()], ..Self::default() }
    }

    /// Names the place in the model that the following operations belong to.
    pub fn at(&mut self, label: impl Into<String>) {
        self.labels.push(label.into());
        self.label = u32::try_from(self.labels.len() - 1).unwrap_or(0);
    }

    /// Shape of a tensor.
    #[must_use]
    pub fn shape(&self, tensor: Tensor) -> &[usize] {
        &self.node(tensor).shape
    }

    /// Element type of a tensor.
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
                self.push(Kind::Compute(crate::Op::Copy), vec![tensor], shape, dtype)
            }
        };
        self.outputs.push((name.into(), tensor));
    }

    /// The plan in primitive steps: what no output and no update needs is left out, views become
    /// strides, each remaining operation one step tagged with the composite it belongs to.
    ///
    /// # Errors
    /// [`Error::Plan`] when the result is not valid, which is a bug in a definition.
    pub fn lower(&self, bucket: Bucket) -> Result<Plan, Error> {
        let plan = lower::lower(self, bucket);
        plan.validate()?;
        Ok(plan)
    }

    fn node(&self, tensor: Tensor) -> &Node {
        &self.nodes[tensor.0 as usize]
    }

    fn push(&mut self, kind: Kind, inputs: Vec<Tensor>, shape: Vec<usize>, dtype: DType) -> Tensor {
        let id = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let scope =
            self.open_composite.then(|| u32::try_from(self.composites.len()).unwrap_or(u32::MAX));
        self.nodes.push(Node { kind, inputs, shape, dtype, scope, label: self.label });
        Tensor(id)
    }
}
