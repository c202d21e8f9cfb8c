//! Preparation of features: scaling, normalising, thresholds, missing values, categories.

use nn::functions::{self as f, div, mul, sub};
use plan::DType;
use plan::graph::Tensor;

use super::{table, vector};
use crate::array::Elem;
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("ArrayFeatureExtractor", extract),
    ("Binarizer", binarize),
    ("FeatureVectorizer", join),
    ("Imputer", impute),
    ("LabelEncoder", encode),
    ("Normalizer", normalize),
    ("OneHotEncoder", one_hot),
    ("Scaler", scale),
    ("ZipMap", zip),
];

fn scale(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let offset = node.floats("offset").unwrap_or_default();
    let scale = node.floats("scale").unwrap_or_default();
    let mut x = im.float(node.input(0)?)?;
    if !offset.is_empty() {
        let offset = vector(im, &offset)?;
        x = sub(&mut im.g, x, offset)?;
    }
    if !scale.is_empty() {
        let scale = vector(im, &scale)?;
        x = mul(&mut im.g, x, scale)?;
    }
    Ok(device(Elem::F32, x))
}

fn normalize(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let have = im.shape(node.input(0)?);
    let (x, _) = table(im, node)?;
    let g = &mut im.g;
    let size = match &*node.text("norm", "MAX")? {
        "MAX" => f::amax(g, x, &[1])?,
        "L1" => {
            let size = f::abs(g, x)?;
            f::sum(g, size, &[1])?
        }
        "L2" => {
            let squares = f::square(g, x)?;
            let sum = f::sum(g, squares, &[1])?;
            f::sqrt(g, sum)?
        }
        other => return Err(invalid(format!("norm {other} is not supported"))),
    };
    // A row of length 0 stays as it is.
    let zero = g.constant(0.0);
    let nothing = f::equal(g, size, zero)?;
    let (one, shape) = (g.constant(1.0), g.shape(size).to_vec());
    let one = g.expand(one, &shape)?;
    let size = g.select(nothing, one, size)?;
    let made = div(g, x, size)?;
    Ok(device(Elem::F32, g.reshape(made, &have)?))
}

fn binarize(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let x = im.float(node.input(0)?)?;
    let bound = im.g.constant(node.float("threshold", 0.0));
    let mut made = f::less(&mut im.g, bound, x)?;
    if elem.is_integer() {
        made = im.g.cast(made, DType::I32)?;
    }
    Ok(device(elem, made))
}

/// Replaces missing values, column by column.
fn impute(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let whole = node.integers("imputed_value_int64s").unwrap_or_default();
    let whole: Vec<f32> = whole.into_iter().map(|value| value as f32).collect();
    let floats = node.floats("imputed_value_floats").unwrap_or_default();
    let values = if floats.is_empty() { whole } else { floats };
    let missing = match elem.is_integer() {
        true => node.integer("replaced_value_int64", 0) as f32,
        false => node.float("replaced_value_float", 0.0),
    };
    node.ignore(&["replaced_value_int64", "replaced_value_float"]);
    let x = im.float(node.input(0)?)?;
    let values = vector(im, &values)?;
    let g = &mut im.g;
    let absent = if missing.is_nan() {
        let present = f::less_equal(g, x, x)?;
        f::not_of(g, present)?
    } else {
        let missing = g.constant(missing);
        f::equal(g, x, missing)?
    };
    let made = g.select(absent, values, x)?;
    let made = if elem.is_integer() { g.cast(made, DType::I32)? } else { made };
    Ok(device(elem, made))
}

/// Maps keys to values; other keys to a default.
fn encode(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    for name in ["keys_strings", "values_strings", "classes_strings"] {
        if node.texts(name)?.is_some_and(|all| !all.is_empty()) {
            return Err(invalid(format!("text ({name}) is not supported")));
        }
    }
    node.ignore(&["default_string"]);
    let list = |kind: &str| -> NodeResult<Option<(Vec<f32>, Elem)>> {
        if let Some(all) = node.floats(&format!("{kind}_floats")).filter(|all| !all.is_empty()) {
            return Ok(Some((all, Elem::F32)));
        }
        if let Some(all) = node.integers(&format!("{kind}_int64s")).filter(|all| !all.is_empty()) {
            return Ok(Some((all.into_iter().map(|i| i as f32).collect(), Elem::I64)));
        }
        let known = node.tensor(&format!("{kind}_tensor"))?;
        Ok(known.map(|known| (known.floats(), known.elem)))
    };
    let (Some((keys, _)), Some((values, elem))) = (list("keys")?, list("values")?) else {
        return Err("keys or values are missing".into());
    };
    if keys.len() != values.len() {
        return Err(invalid(format!("{} keys for {} values", keys.len(), values.len())));
    }
    let default = match node.tensor("default_tensor")? {
        Some(known) => known.scalar().unwrap_or(0.0) as f32,
        None if elem.is_integer() => node.integer("default_int64", -1) as f32,
        None => node.float("default_float", -0.0),
    };
    node.ignore(&["default_int64", "default_float"]);
    let x = im.float(node.input(0)?)?;
    let have = im.g.shape(x).to_vec();
    let count: usize = have.iter().product();
    let (table, moved) = (vector(im, &keys)?, vector(im, &values)?);
    let g = &mut im.g;
    let x = g.reshape(x, &[count, 1])?;
    let mut same = f::equal(g, x, table)?;
    if keys.iter().any(|key| key.is_nan()) {
        // A NaN matches a NaN.
        let (number, own) = (f::less_equal(g, x, x)?, f::less_equal(g, table, table)?);
        let (a, b) = (f::not_of(g, number)?, f::not_of(g, own)?);
        let both = mul(g, a, b)?;
        same = f::maximum(g, same, both)?;
    }
    let zero = g.constant(0.0);
    let chosen = g.select(same, moved, zero)?;
    let sum = f::sum(g, chosen, &[1])?;
    let found = f::amax(g, same, &[1])?;
    let default = g.constant(default);
    let shape = g.shape(sum).to_vec();
    let default = g.expand(default, &shape)?;
    let made = g.select(found, sum, default)?;
    let made = g.reshape(made, &have)?;
    let made = if elem.is_integer() { g.cast(made, DType::I32)? } else { made };
    Ok(device(elem, made))
}

fn one_hot(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    if node.texts("cats_strings")?.is_some_and(|all| !all.is_empty()) {
        return Err("text as categories (cats_strings) is not supported".into());
    }
    let classes = node.integers("cats_int64s").unwrap_or_default();
    let classes: Vec<f32> = classes.into_iter().map(|class| class as f32).collect();
    if node.integer("zeros", 1) == 0 {
        return Err("zeros = 0 is not supported: an unknown category would be an error".into());
    }
    let x = im.float(node.input(0)?)?;
    let shape = [im.g.shape(x), &[1]].concat();
    let classes = vector(im, &classes)?;
    let x = im.g.reshape(x, &shape)?;
    Ok(device(Elem::F32, f::equal(&mut im.g, x, classes)?))
}

/// Columns of a table.
fn extract(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let shape = im.shape(x);
    let last = shape.len().saturating_sub(1);
    let columns = im.shape(node.input(1)?).iter().product();
    let at = im.reshaped(node.input(1)?, &[columns])?;
    let at = super::super::gather::indices(im, &at, shape.get(last).copied().unwrap_or(0))?;
    let elem = x.elem();
    let x = im.tensor(x)?;
    let made = nn::shape::take(&mut im.g, x, last, at)?;
    let rows: usize = shape[..last].iter().product();
    let shape = if last == 0 { vec![1, columns] } else { vec![rows, columns] };
    Ok(device(elem, im.g.reshape(made, &shape)?))
}

fn join(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["inputdimensions"]);
    let mut parts: Vec<Tensor> = Vec::new();
    for place in 0..node.inputs.len() {
        let x = im.float(node.input(place)?)?;
        let shape = im.g.shape(x).to_vec();
        let rows = if shape.len() > 1 { shape[0] } else { 1 };
        let columns = shape.iter().product::<usize>().checked_div(rows).unwrap_or(0);
        parts.push(im.g.reshape(x, &[rows, columns])?);
    }
    Ok(device(Elem::F32, nn::shape::concat(&mut im.g, &parts, 1)?))
}

/// Probabilities stay a tensor.
fn zip(_: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["classlabels_int64s", "classlabels_strings"]);
    Ok(vec![node.input(0)?.clone()])
}
