//! Lowering of a graph to a plan: liveness, views as strides, one step per remaining operation.

use super::builder::{Graph, Kind, Node, Result, Tensor};
use crate::cost::cost_of;
use crate::schedule::takes_any_order;
use crate::{
    Bucket, Buffer, BufferId, Class, DType, Op, Plan, Precision, RepeatId, ScopeId, Step, View,
};

impl Graph {
    /// Lowers the graph to a plan of primitive steps. Drops nodes that no output or update needs,
    /// turns views into strides, and tags each step with its composite.
    ///
    /// # Errors
    /// `Error::Plan` if the result is invalid, which is a bug in a definition.
    pub fn lower(&self, bucket: Bucket) -> Result<Plan> {
        self.check_size()?;
        let plan = lower(self, bucket);
        plan.validate()?;
        Ok(plan)
    }
}

fn lower(graph: &Graph, bucket: Bucket) -> Plan {
    let live = live_nodes(graph);
    let mut lowering = Lowering {
        graph,
        plan: Plan {
            bucket,
            precision: Precision::default(),
            buffers: Vec::new(),
            steps: Vec::new(),
            scopes: Vec::new(),
            repeats: graph.repeats.clone(),
        },
        repeat: None,
        views: vec![None; graph.nodes.len()],
        scopes: Vec::new(),
        live: &live,
    };
    for (i, node) in graph.nodes.iter().enumerate() {
        if live[i] {
            lowering.node(i, node);
        }
    }
    let scopes = lowering.scopes.iter().map(|&composite| &graph.composites[composite]);
    lowering.plan.scopes = scopes.map(|op| lowering.on_views(op)).collect();
    lowering.plan
}

/// Marks the nodes that an output or an update needs, updates included.
fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    for (_, tensor) in &graph.outputs {
        live[tensor.0] = true;
    }
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        live[i] |= node.kind.lasts();
        if live[i] {
            for input in node.kind.inputs(Tensor(i)) {
                live[input.0] = true;
            }
        }
    }
    live
}

struct Lowering<'a> {
    graph: &'a Graph,
    plan: Plan,
    views: Vec<Option<View>>,
    /// Composites with at least one step, in the order of the plan's scopes.
    scopes: Vec<usize>,
    live: &'a [bool],
    /// The body of the current node. Copies for a step run in its body.
    repeat: Option<RepeatId>,
}

impl Lowering<'_> {
    fn node(&mut self, i: usize, node: &Node) {
        self.repeat = node.repeat;
        let view = match &node.kind {
            Kind::Source { class, name } => {
                self.buffer(name.clone(), *class, node.dtype, &node.shape)
            }
            Kind::Constant(value) => {
                let (name, class) = (value.get().to_string(), Class::Constant(*value));
                match self.plan.find(class, &name) {
                    Some(id) => View::whole(id, &[]),
                    None => self.buffer(name, class, DType::F32, &[]),
                }
            }
            Kind::Reshape(x) => {
                let x = self.view(*x);
                match x.reshape(&node.shape) {
                    Some(view) => view,
                    None => self.copy(node, x),
                }
            }
            Kind::Permute(x, axes) => self.view(*x).permute(axes),
            Kind::Expand(x) => self.view(*x).expand(&node.shape),
            Kind::Slice { x, axis, start } => self.view(*x).slice(*axis, *start, node.shape[*axis]),
            Kind::Window { x, axis, window } => match self.view(*x).window(*axis, *window) {
                Some(view) => view,
                None => unreachable!("checked when it was added"),
            },
            Kind::Flip { x, axis } => self.view(*x).flip(*axis),
            Kind::Compute(op) => {
                self.bring_forward(op);
                let (class, name) = match self.graph.output_name(Tensor(i)) {
                    Some(name) => (Class::Output, name.to_owned()),
                    None => (Class::Scratch, format!("t{i}")),
                };
                let out = self.buffer(name, class, node.dtype, &node.shape);
                let written = |tensor: &Tensor| {
                    if tensor.0 == i { out.clone() } else { self.view(*tensor) }
                };
                self.step(node, op.map(|read| self.view(*read), written));
                out
            }
            Kind::Update(op) => {
                self.bring_forward(op);
                self.step(node, self.on_views(op));
                self.view(*op.writes()[0])
            }
        };
        self.views[i] = Some(view);
    }

    fn view(&self, tensor: Tensor) -> View {
        match &self.views[tensor.0] {
            Some(view) => view.clone(),
            None => unreachable!("inputs precede their users and live as long as these"),
        }
    }

    fn on_views(&self, op: &Op<Tensor>) -> Op {
        let view = |tensor: &Tensor| self.view(*tensor);
        op.map(view, view)
    }

    /// Adds a buffer and returns a view of all of it.
    fn buffer(&mut self, name: String, class: Class, dtype: DType, shape: &[usize]) -> View {
        let id = BufferId(self.plan.buffers.len() as u32);
        self.plan.buffers.push(Buffer { name, class, dtype, shape: shape.to_vec() });
        View::whole(id, shape)
    }

    /// Copies reversed operands into forward order, for operations that cannot read them reversed.
    fn bring_forward(&mut self, op: &Op<Tensor>) {
        if takes_any_order(op) {
            return;
        }
        for &read in op.reads() {
            let backward = self.views[read.0].clone().filter(|view| view.forward().is_none());
            if let Some(view) = backward {
                self.views[read.0] = Some(self.copy(&self.graph.nodes[read.0], view));
            }
        }
    }

    /// Copies a view into contiguous memory of the node's shape.
    fn copy(&mut self, node: &Node, x: View) -> View {
        let name = format!("copy{}", self.plan.buffers.len());
        let out = self.buffer(name, Class::Scratch, node.dtype, &x.shape);
        let id = out.buffer;
        self.step(node, Op::Copy { x, out });
        View::whole(id, &node.shape)
    }

    fn step(&mut self, node: &Node, op: Op) {
        // A composite whose result is unused loses its tag; only the parts that something (such as
        // a gradient) reads remain.
        let whole = |composite: &usize| {
            let op = &self.graph.composites[*composite];
            op.reads().into_iter().chain(op.writes()).all(|tensor| self.live[tensor.0])
        };
        let scope = node.scope.filter(whole).map(|composite| self.scope(composite));
        let cost = cost_of(&op, &self.plan.buffers, &self.plan.bucket);
        let label = self.graph.labels[node.label].clone();
        self.plan.steps.push(Step { op, label, scope, repeat: self.repeat, cost });
    }

    fn scope(&mut self, composite: usize) -> ScopeId {
        let known = self.scopes.iter().rposition(|&scope| scope == composite);
        let index = known.unwrap_or_else(|| {
            self.scopes.push(composite);
            self.scopes.len() - 1
        });
        ScopeId(index as u32)
    }
}
