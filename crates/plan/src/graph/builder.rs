//! The graph under construction: tensors, nodes, and the operation that computes each node.

use std::collections::HashMap;

use crate::{Class, DType, Op, RepeatId, Scalar, Window};

/// Most elements of any tensor: their bytes can be counted.
const COUNTABLE: usize = usize::MAX / 8;

/// Most nodes of a graph.
pub const MAX_NODES: usize = 1 << 20;

/// Handle of a tensor; valid only for the graph that created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor(pub(super) usize);

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
    #[error("a tensor of shape {shape:?} has more than {most} elements")]
    TooManyElements { shape: Vec<usize>, most: usize },
    #[error("the graph has more than {most} nodes, the limit")]
    TooManyNodes { most: usize },
    /// The lowered plan is invalid: a bug in a definition.
    #[error("lowering gave an invalid plan: {0}")]
    Plan(#[from] crate::Invalid),
}

/// Result of adding an operation; an [`Error`] if the operands' shapes or types do not fit.
pub type Result<T = Tensor> = std::result::Result<T, Error>;

/// Operation of a node, and its inputs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// A named buffer.
    Source { class: Class, name: String },
    /// A scalar.
    Constant(Scalar),
    /// The first of the views, which are free if the strides allow it.
    Reshape(Tensor),
    /// Reorders axes.
    Permute(Tensor, Vec<usize>),
    /// Repeats axes of extent 1.
    Expand(Tensor),
    /// A range of an axis.
    Slice { x: Tensor, axis: usize, start: usize },
    /// Windows over an axis.
    Window { x: Tensor, axis: usize, window: Window },
    /// Reverses an axis.
    Flip { x: Tensor, axis: usize },
    /// A step that writes this node, and possibly a state in place.
    Compute(Op<Tensor>),
    /// A step that writes a new version of a state or mailbox in place; the node is that version.
    Update(Op<Tensor>),
}

impl Kind {
    /// Inputs of the node `own`.
    pub(super) fn inputs(&self, own: Tensor) -> Vec<Tensor> {
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

    /// True if the node changes a state or mailbox.
    pub(super) fn lasts(&self) -> bool {
        match self {
            Self::Compute(op) => op.memory().is_some(),
            Self::Update(_) => true,
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    pub(super) scope: Option<usize>,
    pub(super) repeat: Option<RepeatId>,
    pub(super) label: usize,
}

/// A graph under construction. Steps run in the order in which nodes are added.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(super) nodes: Vec<Node>,
    pub(super) composites: Vec<Op<Tensor>>,
    pub(super) open_composite: bool,
    pub(super) labels: Vec<String>,
    pub(super) outputs: Vec<(String, Tensor)>,
    /// Executions of each repeated body, and the body under construction.
    pub(super) repeats: Vec<usize>,
    pub(super) open_repeat: Option<RepeatId>,
    /// First violation of a size limit. Sizes may come from a file, so they are checked before anything is allocated.
    exceeded: Option<Error>,
    /// Most elements that a step may compute, if limited.
    most: Option<usize>,
    /// Most nodes, if limited further than to [`MAX_NODES`].
    most_nodes: Option<usize>,
    /// Number of elements that all steps compute.
    computed: usize,
    /// Node of each named buffer.
    sources: HashMap<(Class, String), Tensor>,
    /// Index of the first output of a tensor.
    output_of: HashMap<Tensor, usize>,
}

impl Graph {
    #[must_use]
    pub fn new() -> Self {
        Self { labels: vec![String::new()], ..Self::default() }
    }

    /// A graph of at most `nodes` nodes, whose steps may compute at most `most` elements each.
    #[must_use]
    pub fn limited(most: usize, nodes: usize) -> Self {
        Self { most: Some(most), most_nodes: Some(nodes.min(MAX_NODES)), ..Self::new() }
    }

    /// Number of elements that all steps compute.
    #[must_use]
    pub const fn computed(&self) -> usize {
        self.computed
    }

    /// Number of nodes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Labels the following operations with a place in the model.
    pub fn at(&mut self, label: impl Into<String>) {
        self.labels.push(label.into());
    }

    /// Checks that no tensor has too many elements, and that there are not too many nodes.
    ///
    /// # Errors
    /// [`Error::TooManyElements`] or [`Error::TooManyNodes`].
    pub fn check_size(&self) -> Result<()> {
        self.exceeded.clone().map_or(Ok(()), Err)
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
        self.output_of.entry(tensor).or_insert(self.outputs.len());
        self.outputs.push((name.into(), tensor));
    }

    /// Name of the first output of a tensor.
    pub(super) fn output_name(&self, tensor: Tensor) -> Option<&str> {
        self.output_of.get(&tensor).map(|output| &*self.outputs[*output].0)
    }

    /// The node of a named buffer, made by `push` if there is none.
    pub(super) fn named(
        &mut self,
        class: Class,
        name: &str,
        push: impl FnOnce(&mut Self) -> Tensor,
    ) -> Tensor {
        let key = (class, name.to_owned());
        if let Some(known) = self.sources.get(&key) {
            return *known;
        }
        let tensor = push(self);
        self.sources.insert(key, tensor);
        tensor
    }

    pub(super) fn node(&self, tensor: Tensor) -> &Node {
        &self.nodes[tensor.0]
    }

    pub(super) fn push(&mut self, kind: Kind, shape: Vec<usize>, dtype: DType) -> Tensor {
        if self.exceeded.is_none() {
            // Weights, states and views may be larger: a step allocates nothing for them.
            let most = self.most.filter(|_| matches!(kind, Kind::Compute(_))).unwrap_or(COUNTABLE);
            let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
            let most_nodes = self.most_nodes.unwrap_or(MAX_NODES);
            if count.is_none_or(|count| count > most) {
                self.exceeded = Some(Error::TooManyElements { shape: shape.clone(), most });
            } else if self.nodes.len() >= most_nodes {
                self.exceeded = Some(Error::TooManyNodes { most: most_nodes });
            } else if let (Some(count), Kind::Compute(_)) = (count, &kind) {
                self.computed = self.computed.saturating_add(count);
            }
        }
        let scope = self.open_composite.then_some(self.composites.len());
        let (repeat, label) = (self.open_repeat, self.labels.len() - 1);
        self.nodes.push(Node { kind, shape, dtype, scope, repeat, label });
        Tensor(self.nodes.len() - 1)
    }

    pub(super) fn compute(
        &mut self,
        shape: Vec<usize>,
        dtype: DType,
        op: impl FnOnce(Tensor) -> Op<Tensor>,
    ) -> Tensor {
        let out = Tensor(self.nodes.len());
        self.push(Kind::Compute(op(out)), shape, dtype)
    }
}
