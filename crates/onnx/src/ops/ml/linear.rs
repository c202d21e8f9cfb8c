//! Linear models and support vector machines.

use nn::functions::{self as f, add};
use plan::DType;
use plan::graph::Tensor;

use super::{best, labels, matrix, named, table, transformed, vector};
use crate::array::Elem;
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("LinearClassifier", classifier),
    ("LinearRegressor", regressor),
    ("SVMClassifier", svm_classifier),
    ("SVMRegressor", svm_regressor),
];

/// `x` times the coefficients, one row for each target, plus the intercepts.
fn scores(im: &mut Import, node: &Node<'_>, targets: Option<usize>) -> NodeResult<Tensor> {
    let (x, [_, columns]) = table(im, node)?;
    let weights = node.floats("coefficients").unwrap_or_default();
    let count = targets.unwrap_or(weights.len() / columns.max(1));
    if count == 0 || weights.len() != count * columns {
        let have = weights.len();
        return Err(invalid(format!(
            "{have} coefficients for {count} targets of {columns} features"
        )));
    }
    let weights = matrix(im, &[count, columns], &weights)?;
    let made = im.g.matmul(x, weights)?;
    match node.floats("intercepts").filter(|all| !all.is_empty()) {
        Some(all) if all.len() == count => {
            let all = vector(im, &all)?;
            Ok(add(&mut im.g, made, all)?)
        }
        Some(all) => Err(invalid(format!("{} intercepts for {count} targets", all.len()))),
        None => Ok(made),
    }
}

fn regressor(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let targets = usize::try_from(node.integer("targets", 1)).unwrap_or(0);
    let made = scores(im, node, Some(targets))?;
    Ok(device(Elem::F32, transformed(im, node, made)?))
}

fn classifier(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["multi_class"]);
    let labels = labels(node, "classlabels_ints", "classlabels_strings")?;
    let made = scores(im, node, None)?;
    let count = im.g.shape(made)[1];
    if count == 1 {
        return binary(im, node, made, &labels, 0.0, false);
    }
    let label = best(im, made, &labels)?;
    let tensor = transformed(im, node, made)?;
    Ok(vec![label, Value::Device { elem: Elem::F32, tensor }])
}

/// Two classes from one score: the second class if it exceeds a bound. `opposite`: the first class
/// has the negative score, else what is left of 1. Like onnxruntime, only the logistic function
/// transforms them.
pub(super) fn binary(
    im: &mut Import,
    node: &Node<'_>,
    score: Tensor,
    labels: &[i64],
    bound: f32,
    opposite: bool,
) -> NodeResult<Vec<Value>> {
    let way = node.text("post_transform", "NONE")?;
    let label = exceeding(im, score, bound, labels)?;
    let g = &mut im.g;
    let logistic = way == "LOGISTIC";
    let score = if logistic { f::sigmoid(g, score)? } else { score };
    let other = f::neg(g, score)?;
    let other = if opposite && !logistic { other } else { f::plus(g, other, 1.0)? };
    let both = nn::shape::concat(g, &[other, score], 1)?;
    Ok(vec![label, Value::Device { elem: Elem::F32, tensor: both }])
}

/// The second label for scores `[rows, 1]` above a bound, else the first.
pub(super) fn exceeding(
    im: &mut Import,
    score: Tensor,
    bound: f32,
    labels: &[i64],
) -> NodeResult<Value> {
    let rows = im.g.shape(score)[0];
    let g = &mut im.g;
    let bound = g.constant(bound);
    let second = f::less(g, bound, score)?;
    let second = g.cast(second, DType::I32)?;
    let second = g.reshape(second, &[rows])?;
    named(im, second, labels)
}

/// Kernel values of each row and each support vector, or of each row and the coefficients.
fn kernel(im: &mut Import, node: &Node<'_>, x: Tensor, vectors: Tensor) -> NodeResult<Tensor> {
    let params = node.floats("kernel_params").unwrap_or_default();
    let of = |i: usize| params.get(i).copied().unwrap_or(0.0);
    let (gamma, coef, degree) = (of(0), of(1), of(2));
    let kind = node.text("kernel_type", "LINEAR")?;
    if kind == "RBF" {
        let g = &mut im.g;
        let (rows, columns) = (g.shape(x)[0], g.shape(x)[1]);
        let x = g.reshape(x, &[rows, 1, columns])?;
        let apart = f::sub(g, x, vectors)?;
        let squares = f::square(g, apart)?;
        let sum = f::sum(g, squares, &[2])?;
        let count = g.shape(sum)[1];
        let sum = g.reshape(sum, &[rows, count])?;
        let scaled = f::times(g, sum, -gamma)?;
        return Ok(f::exp(g, scaled)?);
    }
    let g = &mut im.g;
    let products = g.matmul(x, vectors)?;
    if kind == "LINEAR" {
        return Ok(products);
    }
    let scaled = f::times(g, products, gamma)?;
    let moved = f::plus(g, scaled, coef)?;
    Ok(match &*kind {
        "POLY" if degree == degree.trunc() && (0.0..=64.0).contains(&degree) => {
            f::powi(g, moved, degree as i32)?
        }
        "SIGMOID" => f::tanh(g, moved)?,
        other => return Err(invalid(format!("kernel {other} is not supported"))),
    })
}

fn svm_regressor(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (x, [rows, columns]) = table(im, node)?;
    let coefficients = node.floats("coefficients").unwrap_or_default();
    let vectors = node.floats("support_vectors").unwrap_or_default();
    let count = usize::try_from(node.integer("n_supports", 0)).unwrap_or(0);
    let rho = node.floats("rho").unwrap_or_default().first().copied().unwrap_or(0.0);
    let one_class = node.flag("one_class");
    let made = if count > 0 {
        let vectors = matrix(im, &[count, columns], &vectors)?;
        let near = kernel(im, node, x, vectors)?;
        let coefficients = matrix(im, &[1, count], &coefficients)?;
        im.g.matmul(near, coefficients)?
    } else {
        let coefficients = matrix(im, &[1, columns], &coefficients)?;
        kernel(im, node, x, coefficients)?
    };
    let g = &mut im.g;
    let mut made = f::plus(g, made, rho)?;
    if one_class {
        let zero = g.constant(0.0);
        let up = f::less(g, zero, made)?;
        let (one, minus) = (g.constant(1.0), g.constant(-1.0));
        let shape = g.shape(up).to_vec();
        let one = g.expand(one, &shape)?;
        made = g.select(up, one, minus)?;
    }
    let made = g.reshape(made, &[rows, 1])?;
    Ok(device(Elem::F32, transformed(im, node, made)?))
}

/// Votes of all pairs of classes (libsvm), or scores of a linear model.
fn svm_classifier(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let labels = labels(node, "classlabels_ints", "classlabels_strings")?;
    if node.floats("prob_a").is_some_and(|all| !all.is_empty()) {
        return Err("probabilities (prob_a) are not supported".into());
    }
    node.ignore(&["prob_b"]);
    let (x, [rows, columns]) = table(im, node)?;
    let coefficients = node.floats("coefficients").unwrap_or_default();
    let vectors = node.floats("support_vectors").unwrap_or_default();
    let rho = node.floats("rho").unwrap_or_default();
    let per_class = node.integers("vectors_per_class").unwrap_or_default();
    let per_class = crate::array::shape(&per_class)?;
    let (classes, supports) = (per_class.len(), per_class.iter().sum::<usize>());
    if supports == 0 || coefficients.len() != supports * classes.saturating_sub(1) {
        return Err("only machines with support vectors are supported".into());
    }
    if rho.len() != classes * (classes - 1) / 2 || vectors.len() != supports * columns {
        return Err("rho or the support vectors do not fit".into());
    }
    let starts: Vec<usize> = (0..classes).map(|i| per_class[..i].iter().sum()).collect();
    let mut weights = vec![0.0; rho.len() * supports];
    let mut pairs = Vec::new();
    for i in 0..classes {
        for j in i + 1..classes {
            let row = pairs.len() * supports;
            for k in 0..per_class[i] {
                weights[row + starts[i] + k] = coefficients[(j - 1) * supports + starts[i] + k];
            }
            for k in 0..per_class[j] {
                weights[row + starts[j] + k] = coefficients[i * supports + starts[j] + k];
            }
            pairs.push([i, j]);
        }
    }
    let vectors = matrix(im, &[supports, columns], &vectors)?;
    let near = kernel(im, node, x, vectors)?;
    let weights = matrix(im, &[pairs.len(), supports], &weights)?;
    let scores = im.g.matmul(near, weights)?;
    let rho = vector(im, &rho)?;
    let scores = add(&mut im.g, scores, rho)?;
    // Each pair votes for one of its classes.
    let mut votes = vec![0.0; classes * pairs.len()];
    let mut base = vec![0.0; classes];
    for (p, [i, j]) in pairs.iter().enumerate() {
        votes[i * pairs.len() + p] += 1.0;
        votes[j * pairs.len() + p] -= 1.0;
        base[*j] += 1.0;
    }
    let (votes, base) = (matrix(im, &[classes, pairs.len()], &votes)?, vector(im, &base)?);
    let g = &mut im.g;
    let zero = g.constant(0.0);
    let won = f::less(g, zero, scores)?;
    let won = g.matmul(won, votes)?;
    let counts = add(g, won, base)?;
    let label = best(im, counts, &labels)?;
    if classes == 2 {
        let g = &mut im.g;
        let other = f::neg(g, scores)?;
        let both = nn::shape::concat(g, &[other, scores], 1)?;
        let both = g.reshape(both, &[rows, 2])?;
        let tensor = transformed(im, node, both)?;
        return Ok(vec![label, Value::Device { elem: Elem::F32, tensor }]);
    }
    let tensor = transformed(im, node, scores)?;
    Ok(vec![label, Value::Device { elem: Elem::F32, tensor }])
}
