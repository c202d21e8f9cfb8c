//! Ensembles of trees. All rows go down all trees at once, one level at a time: each step gathers the
//! feature, the threshold and the next nodes.

use std::collections::HashMap;

use nn::functions::{self as f, add};
use plan::DType;
use plan::graph::Tensor;

use super::linear::{binary, exceeding};
use super::{best, labels, matrix, table, transformed, vector};
use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] =
    &[("TreeEnsembleClassifier", classifier), ("TreeEnsembleRegressor", regressor)];

/// Most values of the leaves of all trees.
const MOST_VALUES: usize = 1 << 26;

/// Deepest tree.
const MAX_LEVELS: usize = 512;

/// Nodes of all trees. A leaf is followed by itself.
struct Forest {
    roots: Vec<usize>,
    features: Vec<i64>,
    thresholds: Vec<f32>,
    /// For each node, 1 if a value below, equal to and above the threshold goes to the first branch.
    truths: Vec<[f32; 3]>,
    /// 1 where a NaN goes to the first branch.
    missing: Vec<f32>,
    /// First and second branch.
    next: [Vec<usize>; 2],
    levels: usize,
    /// Place of each node by its tree and its number.
    places: HashMap<(i64, i64), usize>,
}

fn list(node: &Node<'_>, name: &str, count: usize) -> NodeResult<Vec<i64>> {
    let all = node.integers(name).unwrap_or_default();
    if all.len() == count {
        Ok(all)
    } else {
        Err(invalid(format!("{name} has {} values, not {count}", all.len())))
    }
}

/// Values of an attribute of floats, or of a tensor of doubles.
fn floats(node: &Node<'_>, name: &str) -> NodeResult<Vec<f32>> {
    if let Some(known) = node.tensor(&format!("{name}_as_tensor"))? {
        return Ok(known.floats());
    }
    Ok(node.floats(name).unwrap_or_default())
}

fn forest(node: &Node<'_>) -> NodeResult<Forest> {
    node.ignore(&["nodes_hitrates", "nodes_hitrates_as_tensor"]);
    let trees = node.integers("nodes_treeids").unwrap_or_default();
    let count = trees.len();
    let numbers = list(node, "nodes_nodeids", count)?;
    let features = list(node, "nodes_featureids", count)?;
    let (yes, no) =
        (list(node, "nodes_truenodeids", count)?, list(node, "nodes_falsenodeids", count)?);
    let modes = node.texts("nodes_modes")?.unwrap_or_default();
    let thresholds = floats(node, "nodes_values")?;
    let missing = node.integers("nodes_missing_value_tracks_true").unwrap_or_default();
    if modes.len() != count || thresholds.len() != count || count == 0 {
        return Err("nodes_modes or nodes_values do not fit the nodes".into());
    }
    let keys = trees.iter().copied().zip(numbers);
    let places: HashMap<(i64, i64), usize> = keys.enumerate().map(|(i, key)| (key, i)).collect();
    let (mut next, mut truths) = ([vec![0; count], vec![0; count]], Vec::new());
    let mut is_child = vec![false; count];
    for i in 0..count {
        truths.push(match &*modes[i] {
            "BRANCH_LEQ" => [1.0, 1.0, 0.0],
            "BRANCH_LT" => [1.0, 0.0, 0.0],
            "BRANCH_GTE" => [0.0, 1.0, 1.0],
            "BRANCH_GT" => [0.0, 0.0, 1.0],
            "BRANCH_EQ" => [0.0, 1.0, 0.0],
            "BRANCH_NEQ" => [1.0, 0.0, 1.0],
            "LEAF" => {
                (next[0][i], next[1][i]) = (i, i);
                truths.push([0.0; 3]);
                continue;
            }
            other => return Err(invalid(format!("mode {other} is not supported"))),
        });
        for (next, to) in next.iter_mut().zip([yes[i], no[i]]) {
            let place = places.get(&(trees[i], to));
            let place =
                place.ok_or_else(|| invalid(format!("tree {} has no node {to}", trees[i])))?;
            next[i] = *place;
            is_child[*place] = true;
        }
    }
    let roots: Vec<usize> = (0..count).filter(|i| !is_child[*i]).collect();
    let features = features.into_iter().map(|feature| feature.max(0)).collect();
    let missing = (0..count).map(|i| missing.get(i).map_or(0.0, |m| *m as f32)).collect();
    let levels = levels(&roots, &next)?;
    Ok(Forest { roots, features, thresholds, truths, missing, next, levels, places })
}

/// Number of steps from the roots to the deepest leaf.
fn levels(roots: &[usize], next: &[Vec<usize>; 2]) -> NodeResult<usize> {
    let mut here: Vec<usize> = roots.to_vec();
    for level in 0..=MAX_LEVELS {
        let inner: Vec<usize> = here.iter().copied().filter(|i| next[0][*i] != *i).collect();
        if inner.is_empty() {
            return Ok(level);
        }
        if inner.len() > next[0].len() {
            return Err("a node has several parents".into());
        }
        here = inner.iter().flat_map(|i| [next[0][*i], next[1][*i]]).collect();
    }
    Err(invalid(format!("a tree is deeper than {MAX_LEVELS} levels, or has a cycle")))
}

fn integers(im: &mut Import, values: impl Iterator<Item = usize>) -> NodeResult<Tensor> {
    let values: Vec<f64> = values.map(|value| value as f64).collect();
    let known = Known::new(Elem::I64, &[values.len()], values);
    im.tensor(&Value::Known(known.ok_or_else(|| invalid("integers".into()))?))
}

impl Forest {
    /// Leaf of each row in each tree: `[rows * trees]`.
    fn leaves(
        &self,
        im: &mut Import,
        x: Tensor,
        [rows, columns]: [usize; 2],
    ) -> NodeResult<Tensor> {
        if let Some(wide) = self.features.iter().find(|feature| **feature >= columns as i64) {
            return Err(invalid(format!("feature {wide} of {columns}")));
        }
        let trees = self.roots.len();
        let features = integers(im, self.features.iter().map(|feature| *feature as usize))?;
        let thresholds = vector(im, &self.thresholds)?;
        let yes = integers(im, self.next[0].iter().copied())?;
        let no = integers(im, self.next[1].iter().copied())?;
        // Leaves, whose truth does not matter, take the mode of the others.
        let inner: Vec<usize> =
            (0..self.features.len()).filter(|i| self.next[0][*i] != *i).collect();
        let first = inner.first().map_or([1.0, 1.0, 0.0], |i| self.truths[*i]);
        let same = inner.iter().all(|i| self.truths[*i] == first);
        let truths = match same {
            true => None,
            false => {
                let mut all = Vec::new();
                for i in 0..3 {
                    let own: Vec<f32> = self.truths.iter().map(|truth| truth[i]).collect();
                    all.push(vector(im, &own)?);
                }
                Some(all)
            }
        };
        let missing = match self.missing.iter().any(|m| *m != 0.0) {
            true => Some(vector(im, &self.missing)?),
            false => None,
        };
        let roots = integers(im, self.roots.iter().copied())?;
        let g = &mut im.g;
        let roots = g.reshape(roots, &[1, trees])?;
        let mut at = g.expand(roots, &[rows, trees])?;
        at = g.reshape(at, &[rows * trees])?;
        let flat = g.reshape(x, &[rows * columns])?;
        let row = g.iota(rows);
        let row = f::times(g, row, columns as f32)?;
        let row = g.reshape(row, &[rows, 1])?;
        let row = g.expand(row, &[rows, trees])?;
        let row = g.cast(row, DType::I32)?;
        let row = g.reshape(row, &[rows * trees])?;
        for _ in 0..self.levels {
            let feature = g.gather(features, &[at])?;
            let place = g.binary(plan::Binary::Add, feature, row)?;
            let value = g.gather(flat, &[place])?;
            let bound = g.gather(thresholds, &[at])?;
            let mut go = match &truths {
                None => simple(g, first, value, bound)?,
                Some(all) => {
                    let zero = g.constant(0.0);
                    let mut sum = None;
                    for (truth, way) in
                        all.iter().zip([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
                    {
                        let own = simple(g, way, value, bound)?;
                        let truth = g.gather(*truth, &[at])?;
                        let part = g.select(own, truth, zero)?;
                        sum = Some(match sum {
                            Some(sum) => add(g, sum, part)?,
                            None => part,
                        });
                    }
                    sum.unwrap_or(zero)
                }
            };
            if let Some(missing) = missing {
                let present = f::less_equal(g, value, value)?;
                let missing = g.gather(missing, &[at])?;
                go = g.select(present, go, missing)?;
            }
            let (a, b) = (g.gather(yes, &[at])?, g.gather(no, &[at])?);
            at = g.select(go, a, b)?;
        }
        Ok(at)
    }
}

/// 1 where a value is below, equal to or above a bound, as `truth` says.
fn simple(
    g: &mut plan::graph::Graph,
    truth: [f32; 3],
    value: Tensor,
    bound: Tensor,
) -> NodeResult<Tensor> {
    Ok(match truth {
        [1.0, 1.0, 0.0] => f::less_equal(g, value, bound)?,
        [1.0, 0.0, 0.0] => f::less(g, value, bound)?,
        [0.0, 1.0, 1.0] => f::less_equal(g, bound, value)?,
        [0.0, 0.0, 1.0] => f::less(g, bound, value)?,
        [0.0, 1.0, 0.0] => f::equal(g, value, bound)?,
        _ => {
            let same = f::equal(g, value, bound)?;
            f::not_of(g, same)?
        }
    })
}

/// Values of the leaves for each of `count` targets.
struct Leaves {
    targets: Vec<i64>,
    weights: Vec<f32>,
    places: Vec<usize>,
}

fn values(node: &Node<'_>, forest: &Forest, prefix: &str) -> NodeResult<Leaves> {
    let weights = floats(node, &format!("{prefix}_weights"))?;
    let trees = list(node, &format!("{prefix}_treeids"), weights.len())?;
    let numbers = list(node, &format!("{prefix}_nodeids"), weights.len())?;
    let targets = list(node, &format!("{prefix}_ids"), weights.len())?;
    let mut places = Vec::new();
    for key in trees.into_iter().zip(numbers) {
        let place = forest.places.get(&key).copied();
        places.push(place.ok_or_else(|| invalid(format!("tree {} has no node {}", key.0, key.1)))?);
    }
    Ok(Leaves { targets, weights, places })
}

/// Sum, mean, minimum or maximum over all trees: `[rows, count]`.
fn total(
    im: &mut Import,
    node: &Node<'_>,
    forest: &Forest,
    leaves: &Leaves,
    count: usize,
) -> NodeResult<Tensor> {
    summed(im, node, forest, leaves, count, true)
}

/// Like [`total`], with the base values or without.
fn summed(
    im: &mut Import,
    node: &Node<'_>,
    forest: &Forest,
    leaves: &Leaves,
    count: usize,
    with_base: bool,
) -> NodeResult<Tensor> {
    let (x, shape) = table(im, node)?;
    let (nodes, trees) = (forest.features.len(), forest.roots.len());
    if nodes.checked_mul(count).is_none_or(|all| all > MOST_VALUES) {
        return Err(invalid(format!("more than {MOST_VALUES} values of leaves")));
    }
    let mut all = vec![0.0; nodes * count];
    for ((target, weight), place) in leaves.targets.iter().zip(&leaves.weights).zip(&leaves.places)
    {
        let target = usize::try_from(*target).ok().filter(|target| *target < count);
        let target = target.ok_or_else(|| invalid(format!("a target is not one of {count}")))?;
        all[place * count + target] += weight;
    }
    let at = forest.leaves(im, x, shape)?;
    let all = matrix(im, &[nodes, count], &all)?;
    let g = &mut im.g;
    let values = g.gather(all, &[at])?;
    let values = g.reshape(values, &[shape[0], trees, count])?;
    let made = match &*node.text("aggregate_function", "SUM")? {
        "SUM" => f::sum(g, values, &[1])?,
        "AVERAGE" => f::mean(g, values, &[1])?,
        "MIN" => f::amin(g, values, &[1])?,
        "MAX" => f::amax(g, values, &[1])?,
        other => return Err(invalid(format!("aggregate_function {other} is not supported"))),
    };
    let made = g.reshape(made, &[shape[0], count])?;
    let base = floats(node, "base_values")?;
    if base.is_empty() || !with_base {
        return Ok(made);
    }
    if base.len() != count && base.len() != 1 {
        return Err(invalid(format!("{} base values for {count} targets", base.len())));
    }
    let base = vector(im, &base)?;
    Ok(add(&mut im.g, made, base)?)
}

fn regressor(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let forest = forest(node)?;
    let leaves = values(node, &forest, "target")?;
    let count =
        usize::try_from(node.integer("n_targets", 1)).ok().filter(|n| (1..1 << 20).contains(n));
    let count = count.ok_or_else(|| invalid("n_targets must be at least 1".into()))?;
    let made = total(im, node, &forest, &leaves, count)?;
    Ok(device(Elem::F32, transformed(im, node, made)?))
}

fn classifier(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let forest = forest(node)?;
    let leaves = values(node, &forest, "class")?;
    let labels = labels(node, "classlabels_int64s", "classlabels_strings")?;
    let first = leaves.targets.first().copied().unwrap_or(0);
    let single = labels.len() == 2 && leaves.targets.iter().all(|target| *target == first);
    let positive = leaves.weights.iter().all(|weight| *weight >= 0.0);
    if single && first == 0 {
        // One score decides between two classes.
        let score = total(im, node, &forest, &leaves, 1)?;
        let bound = if positive { 0.5 } else { 0.0 };
        return binary(im, node, score, &labels, bound, !positive);
    }
    let base = !(single && first == 1);
    let made = summed(im, node, &forest, &leaves, labels.len(), base)?;
    if labels.len() == 2 {
        // Like onnxruntime, whose label of two classes follows from the score of the second.
        let score = im.g.slice(made, 1, 1, 1)?;
        let bound = if single && positive { 0.5 } else { 0.0 };
        let label = exceeding(im, score, bound, &labels)?;
        let tensor = transformed(im, node, made)?;
        return Ok(vec![label, Value::Device { elem: Elem::F32, tensor }]);
    }
    let label = best(im, made, &labels)?;
    let tensor = transformed(im, node, made)?;
    Ok(vec![label, Value::Device { elem: Elem::F32, tensor }])
}
