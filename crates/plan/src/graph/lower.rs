//! From graph to plan: liveness, views as strides, one step per remaining operation.

use std::collections::HashMap;

use super::{Graph, Kind, Node, Tensor};
use crate::{
    Bucket, Buffer, BufferId, Class, DType, Op, Plan, Scope, ScopeId, Step, View, cost_of,
};

pub(super) fn lower(graph: &Graph, bucket: Bucket) -> Plan {
    let live = live_nodes(graph);
    let mut lowering = Lowering {
        graph,
        plan: Plan { bucket, buffers: Vec::new(), steps: Vec::new(), scopes: Vec::new() },
        views: vec![None; graph.nodes.len()],
        scopes: HashMap::new(),
    };
    for (i, node) in graph.nodes.iter().enumerate() {
        if live[i] {
            lowering.node(i, node);
        }
    }
    lowering.plan
}

/// Nodes that an output or an update needs, updates included.
fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    for (_, tensor) in &graph.outputs {
        live[tensor.0 as usize] = true;
    }
    for i in (0..graph.nodes.len()).rev() {
        let node = &graph.nodes[i];
        if matches!(node.kind, Kind::Update(_)) {
            live[i] = true;
        }
        if live[i] {
            for input in &node.inputs {
                live[input.0 as usize] = true;
            }
        }
    }
    live
}

struct Lowering<'a> {
    graph: &'a Graph,
    plan: Plan,
    views: Vec<Option<View>>,
    /// Scope in the plan of each composite that has steps.
    scopes: HashMap<u32, ScopeId>,
}

impl Lowering<'_> {
    fn node(&mut self, i: usize, node: &Node) {
        let view = match &node.kind {
            Kind::Source { class, name } => {
                let id = self.buffer(name.clone(), *class, node.dtype, &node.shape);
                View::whole(id, &node.shape)
            }
            Kind::Constant(value) => {
                let id = self.buffer(
                    format!("{}", value.get()),
                    Class::Constant(*value),
                    DType::F32,
                    &[],
                );
                View::whole(id, &[])
            }
            Kind::Reshape => {
                let view = self.view(node.inputs[0]);
                match view.reshape(&node.shape) {
                    Some(view) => view,
                    None => View::whole(self.copy(node, view), &node.shape),
                }
            }
            Kind::Permute(axes) => self.view(node.inputs[0]).permute(axes),
            Kind::Expand => self.view(node.inputs[0]).expand(&node.shape),
            Kind::Slice { axis, start } => {
                self.view(node.inputs[0]).slice(*axis, *start, node.shape[*axis])
            }
            Kind::Compute(op) => {
                let reads: Vec<View> = node.inputs.iter().map(|t| self.view(*t)).collect();
                let output = self.graph.outputs.iter().find(|(_, t)| t.0 as usize == i);
                let (class, name) = match output {
                    Some((name, _)) => (Class::Output, name.clone()),
                    None => (Class::Scratch, format!("t{i}")),
                };
                let id = self.buffer(name, class, node.dtype, &node.shape);
                let write = View::whole(id, &node.shape);
                self.step(node, op.clone(), reads, write.clone());
                write
            }
            Kind::Update(op) => {
                let target = self.view(node.inputs[0]);
                let reads = node.inputs[1..].iter().map(|t| self.view(*t)).collect();
                self.step(node, op.clone(), reads, target.clone());
                target
            }
        };
        if let Some(scope) = node.scope
            && self.graph.composites.get(scope as usize).is_some_and(|c| c.output.0 as usize == i)
        {
            let scope = self.scope(scope);
            self.plan.scopes[scope.0 as usize].writes = vec![view.clone()];
        }
        self.views[i] = Some(view);
    }

    fn view(&self, tensor: Tensor) -> View {
        // Inputs precede their users, and live nodes keep their inputs alive.
        self.views[tensor.0 as usize]
            .clone()
            .unwrap_or_else(|| View::whole(BufferId(u32::MAX), &[]))
    }

    fn buffer(&mut self, name: String, class: Class, dtype: DType, shape: &[usize]) -> BufferId {
        if let Some(id) =
            matches!(class, Class::Constant(_)).then(|| self.plan.find(class, &name)).flatten()
        {
            return id;
        }
        self.plan.buffers.push(Buffer { name, class, dtype, shape: shape.to_vec() });
        BufferId(u32::try_from(self.plan.buffers.len() - 1).unwrap_or(u32::MAX))
    }

    fn copy(&mut self, node: &Node, view: View) -> BufferId {
        let shape = view.shape.clone();
        let name = format!("copy{}", self.plan.buffers.len());
        let id = self.buffer(name, Class::Scratch, node.dtype, &shape);
        self.step(node, Op::Copy, vec![view], View::whole(id, &shape));
        id
    }

    fn step(&mut self, node: &Node, op: Op, reads: Vec<View>, write: View) {
        let scope = node
            .scope
            .filter(|s| (*s as usize) < self.graph.composites.len())
            .map(|s| self.scope(s));
        let writes = vec![write];
        let cost = cost_of(&op, &reads, &writes, &self.plan.buffers, &self.plan.bucket);
        let label = self.graph.labels.get(node.label as usize).cloned().unwrap_or_default();
        self.plan.steps.push(Step { op, label, reads, writes, scope, cost });
    }

    fn scope(&mut self, composite: u32) -> ScopeId {
        if let Some(id) = self.scopes.get(&composite) {
            return *id;
        }
        let node = &self.graph.composites[composite as usize];
        let reads = node.inputs.iter().map(|t| self.view(*t)).collect();
        self.plan.scopes.push(Scope { composite: node.composite, reads, writes: vec![] });
        let id = ScopeId(u32::try_from(self.plan.scopes.len() - 1).unwrap_or(u32::MAX));
        self.scopes.insert(composite, id);
        id
    }
}
