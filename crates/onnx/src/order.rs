//! Order of nodes: a file may list them in any order, and every graph inside it is sorted once.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::error::{Error, Result};
use crate::node::node_name;
use crate::proto::{GraphProto, NodeProto};

/// Sorts the nodes of a graph, and of the graphs inside it, so that each follows those it reads.
/// Nodes that are in order already stay where they are.
///
/// # Errors
/// Nodes read each other in a cycle.
pub(crate) fn sort(graph: &mut GraphProto) -> Result<()> {
    sort_nodes(&mut graph.node)
}

/// Like [`sort`], for the nodes of a function.
pub(crate) fn sort_nodes(nodes: &mut Vec<NodeProto>) -> Result<()> {
    for graph in nodes.iter_mut().flat_map(|node| &mut node.attribute).filter_map(|a| a.g.as_mut())
    {
        sort(graph)?;
    }
    let mut makers = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        makers.extend(node.output.iter().filter(|name| !name.is_empty()).map(|n| (&**n, i)));
    }
    let (mut left, mut readers) = (Vec::new(), vec![Vec::new(); nodes.len()]);
    for (i, node) in nodes.iter().enumerate() {
        let mut names = HashSet::new();
        collect(node, &mut names);
        let before: HashSet<usize> =
            names.iter().filter_map(|name| makers.get(name).copied()).collect();
        left.push(before.len());
        before.into_iter().for_each(|maker| readers[maker].push(i));
    }
    let mut ready: BinaryHeap<_> =
        (0..nodes.len()).filter(|i| left[*i] == 0).map(Reverse).collect();
    let mut order = Vec::new();
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for &reader in &readers[i] {
            left[reader] -= 1;
            if left[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    if let Some(i) = (0..nodes.len()).find(|i| left[*i] > 0) {
        let node = node_name(&nodes[i], i);
        return Err(Error::Model {
            what: format!("node `{node}` reads its own output, in a cycle"),
        });
    }
    let mut all: Vec<_> = std::mem::take(nodes).into_iter().map(Some).collect();
    nodes.extend(order.into_iter().filter_map(|i| all[i].take()));
    Ok(())
}

/// Collects the names that a node reads from the graph around it.
fn collect<'a>(node: &'a NodeProto, names: &mut HashSet<&'a str>) {
    names.extend(node.input.iter().map(|name| &**name));
    for graph in node.attribute.iter().filter_map(|a| a.g.as_ref()) {
        let mut inside: HashSet<&str> = graph.output.iter().map(|output| &*output.name).collect();
        graph.node.iter().for_each(|node| collect(node, &mut inside));
        for own in graph.input.iter().map(|input| &input.name) {
            inside.remove(&**own);
        }
        for own in graph.initializer.iter().map(|tensor| &tensor.name) {
            inside.remove(&**own);
        }
        for own in graph.node.iter().flat_map(|node| &node.output) {
            inside.remove(&**own);
        }
        names.extend(inside);
    }
}
