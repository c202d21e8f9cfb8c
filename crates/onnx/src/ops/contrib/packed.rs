//! Weights of 2, 4 and 8 bits in blocks, unpacked once while the graph is built.

use nn::functions::add;

use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] =
    &[("GatherBlockQuantized", gather), ("MatMulNBits", matmul)];

/// Integers of `bits` bits from bytes, the lowest bits first.
fn unpacked(bytes: &Known, bits: usize, count: usize) -> Vec<f64> {
    let (each, mask) = (8 / bits, (1u32 << bits) - 1);
    let all = bytes.values.iter().flat_map(|byte| {
        let byte = *byte as u32;
        (0..each).map(move |i| f64::from(byte >> (i * bits) & mask))
    });
    all.take(count).collect()
}

fn whole(node: &Node<'_>, name: &str) -> NodeResult<usize> {
    let value = node.integer(name, 0);
    let value = usize::try_from(value).ok().filter(|n| (1..1 << 31).contains(n));
    value.ok_or_else(|| invalid(format!("{name} is missing or invalid")))
}

/// `x` times the transpose of a weight `[N, K]` with a scale, and maybe a zero point, for each block
/// of a row.
fn matmul(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["accuracy_level", "weight_prepacked"]);
    let elem = node.input(0)?.elem();
    let (k, n, block) = (whole(node, "K")?, whole(node, "N")?, whole(node, "block_size")?);
    let bits = usize::try_from(node.integer("bits", 4)).unwrap_or(0);
    if ![2, 4, 8].contains(&bits) || !block.is_multiple_of(8 / bits) {
        return Err(invalid(format!("{bits} bits in blocks of {block} are not supported")));
    }
    let blocks = k.div_ceil(block);
    let (packed, scales) = (node.known(1, "the weight")?, node.known(2, "the scales")?);
    let padded = blocks.checked_mul(block).and_then(|row| row.checked_mul(n));
    if padded != packed.values.len().checked_mul(8 / bits) || scales.values.len() != n * blocks {
        let (have, scales) = (packed.shape(), scales.shape());
        return Err(invalid(format!(
            "weight {have:?} and scales {scales:?} do not fit [{n}, {k}]"
        )));
    }
    let zeros = match node.optional(3) {
        None => vec![f64::from(1u32 << (bits - 1)); n * blocks],
        Some(zeros) if zeros.elem().is_float() => {
            node.known(3, "the zero points")?.values.iter().copied().collect()
        }
        Some(_) => {
            let row = (blocks * bits).div_ceil(8);
            let all = unpacked(node.known(3, "the zero points")?, bits, n * row * 8 / bits);
            all.chunks(row * 8 / bits).flat_map(|row| row[..blocks].to_vec()).collect()
        }
    };
    let groups: Option<Vec<i64>> = match node.optional(4) {
        Some(_) => Some(node.known_integers(4, "the groups")?),
        None => None,
    };
    let bytes: Vec<u8> = packed.values.iter().map(|byte| *byte as u8).collect();
    let (each, mask) = (8 / bits, ((1u32 << bits) - 1) as u8);
    let value = |i: usize| f64::from(bytes[i / each] >> (i % each * bits) & mask);
    let scales: Vec<f64> = scales.values.iter().copied().collect();
    if zeros.len() != n * blocks || groups.as_ref().is_some_and(|g| g.len() < k) {
        return Err("the zero points or groups do not fit".into());
    }
    let mut weight = Vec::with_capacity(n * k);
    for row in 0..n {
        for i in 0..k {
            let group = groups.as_ref().map_or(i / block, |g| usize::try_from(g[i]).unwrap_or(0));
            let at = row * blocks + group.min(blocks - 1);
            weight.push(((value(row * blocks * block + i) - zeros[at]) * scales[at]) as f32);
        }
    }
    let weight = im.floats(&[n, k], weight)?;
    let x = im.float(node.input(0)?)?;
    let have = im.g.shape(x).to_vec();
    let Some((&last, lead)) = have.split_last() else { return Err("a matrix expected".into()) };
    if last != k {
        return Err(invalid(format!("{have:?} does not fit a weight [{n}, {k}]")));
    }
    let x = im.g.reshape(x, &[lead.iter().product(), k])?;
    let mut made = im.g.matmul(x, weight)?;
    if let Some(bias) = node.optional(5) {
        let bias = im.float(bias)?;
        made = add(&mut im.g, made, bias)?;
    }
    Ok(device(elem, im.g.reshape(made, &[lead, &[n]].concat())?))
}

/// Rows of a table that is quantised in blocks of its last axis.
fn gather(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (table, scales) = (node.known(0, "the table")?, node.known(2, "the scales")?);
    let block = whole(node, "block_size")?;
    let bits = usize::try_from(node.integer("bits", 4)).unwrap_or(0);
    let (at, axis) = (node.integer("gather_axis", 0), node.integer("quantize_axis", 1));
    let packs = table.elem == Elem::U8 && bits == 4;
    let &[rows, width] = table.shape() else { return Err("a table of two axes expected".into()) };
    let width = if packs { 2 * width } else { width };
    let blocks = width.div_ceil(block);
    if at != 0 || !matches!(axis, 1 | -1) || scales.values.len() != rows * blocks {
        return Err("only tables of rows in blocks of their last axis are supported".into());
    }
    let values = match packs {
        true => unpacked(table, bits, rows * width),
        false => table.values.iter().copied().collect(),
    };
    let zeros = match node.optional(3) {
        None if table.elem == Elem::U8 => vec![f64::from(1u32 << (bits - 1)); rows * blocks],
        None => vec![0.0; rows * blocks],
        Some(_) => {
            let zeros = node.known(3, "the zero points")?;
            match packs {
                true => {
                    let row = blocks.div_ceil(2);
                    let all = unpacked(zeros, 4, rows * row * 2);
                    all.chunks(row * 2).flat_map(|row| row[..blocks].to_vec()).collect()
                }
                false => zeros.values.iter().copied().collect(),
            }
        }
    };
    let scales_of: Vec<f64> = scales.values.iter().copied().collect();
    if zeros.len() != rows * blocks || values.len() != rows * width {
        return Err("the zero points do not fit".into());
    }
    let value = |i: usize| {
        let at = i / width * blocks + i % width / block;
        ((values[i] - zeros[at]) * scales_of[at]) as f32
    };
    let elem = scales.elem;
    let tensor = im.floats(&[rows, width], (0..rows * width).map(value).collect())?;
    let table = Value::Device { elem, tensor };
    Ok(vec![im.apply("Gather", &[&table, node.input(1)?], &[])?])
}
