//! Products of any operands, concatenations and row fusion on the CPU; rejected plans; the `f64` model.

use super::Draw;
use super::model::Model;
use super::programs::{BUCKET, assert_same, case, grow};
use device::cpu::Cpu;
use device::reference::Reference;
use parity::case::{self, Case, Sketch, noise};
use plan::graph::{Graph, Tensor};
use plan::{Binary, Class, DType, Fusions, Reduce, Unary, Windows};

/// Products of views that are transposed, repeated, `f16`, or decoded from blocks.
#[test]
fn products_of_any_operands_equal_the_model() {
    for [batch, m, n, k] in
        [[1, 1, 1, 1], [3, 5, 7, 9], [1, 33, 65, 129], [2, 4, 3, 0], [0, 2, 2, 2]]
    {
        let case = case(|s| {
            let a = s.floats("a", &[batch, m, k], noise(1, batch * m * k))?;
            let b = s.floats("b", &[batch, k, n], noise(2, batch * k * n))?;
            let across = s.g.permute(b, &[0, 2, 1])?;
            let half = s.g.cast(across, DType::F16)?;
            let row = s.floats("row", &[1, 1, k], noise(3, k))?;
            let repeated = s.g.expand(row, &[batch, n, k])?;
            let one = s.g.constant(0.5);
            let ones = s.g.expand(one, &[batch, m, k])?;
            let mut results = Vec::new();
            for (x, y) in [(a, across), (a, half), (a, repeated), (ones, across)] {
                results.push(s.g.matmul(x, y)?);
            }
            Ok(results)
        });
        assert_same(&case, 2e-5, &format!("{batch}x{m}x{n}x{k}"));
    }
    let case = case(|s| {
        let x = s.floats("x", &[3, 64], noise(1, 192))?;
        let w = s.quantised("w", DType::Q8_0, &[5, 64], &noise(2, 320))?;
        let plain = s.quantised("plain", DType::F16, &[5, 64], &noise(3, 320))?;
        let sum = s.g.cast(plain, DType::F32)?;
        let sum = s.g.reduce(Reduce::Sum, sum, 0)?;
        let x = s.g.binary(Binary::Mul, x, sum)?;
        Ok(vec![s.g.matmul(x, plain)?, s.g.matmul(x, w)?])
    });
    let want = case.run_with(&Reference, Fusions::NONE, 1).unwrap();
    let have = case.run_with(&Cpu::detect(), Fusions::NONE, 1).unwrap();
    for ((_, have), (_, want)) in have.iter().zip(&want) {
        assert!(have.iter().zip(want).all(|(h, w)| (h - w).abs() < 1e-4), "{have:?}, {want:?}");
    }
}

/// A transposed square weight matrix has the same shape, and must not be read as the plain matrix.
#[test]
fn transposed_weights_are_read_transposed() {
    let case = case(|s| {
        let x = s.floats("x", &[3, 64], noise(1, 192))?;
        let w = s.quantised("w", DType::F32, &[64, 64], &noise(2, 4096))?;
        let turned = s.g.permute(w, &[1, 0])?;
        Ok(vec![s.g.matmul(x, turned)?])
    });
    let want = case.run_with(&Reference, Fusions::NONE, 1).unwrap();
    let have = case.run_with(&Cpu::detect(), Fusions::ALL, 1).unwrap();
    for ((_, have), (_, want)) in have.iter().zip(&want) {
        assert!(have.iter().zip(want).all(|(h, w)| (h - w).abs() < 1e-4), "{have:?}, {want:?}");
    }
}

/// A step reads the results of the step before, and several steps form one submission.
#[test]
fn states_and_mailboxes_persist_between_steps() {
    let case = case(|s| {
        let state = s.g.source(Class::State, "w", DType::F32, &[700])?;
        let x = s.floats("x", &[700], noise(1, 700))?;
        let half = s.g.constant(0.5);
        let kept = s.g.binary(Binary::Mul, state, half)?;
        let next = s.g.binary(Binary::Add, kept, x)?;
        let state = s.g.assign(state, next)?;
        let mailbox = s.g.assign(x, next)?;
        let rows = s.g.source(Class::State, "rows", DType::F16, &[10, 70])?;
        let indices = s.ints("indices", &[3], vec![2, -1, 7])?;
        let values = s.floats("values", &[3, 70], noise(2, 210))?;
        let values = s.g.cast(values, DType::F16)?;
        let rows = s.g.scatter(rows, &[indices], values)?;
        Ok(vec![state, mailbox, kept, rows])
    });
    assert_same(&case, 1e-6, "states");
}

#[test]
fn unsupported_operations_are_rejected_by_name() {
    let refused = |case: Case, message: &str| {
        let error = case.run_with(&Cpu::detect(), Fusions::NONE, 1).unwrap_err().to_string();
        assert!(error.contains(message), "`{error}` does not say `{message}`");
    };
    refused(
        case(|s| {
            let one = s.g.constant(1.0);
            let large = s.g.expand(one, &[1 << 16, 1 << 15])?;
            let sum = s.g.reduce(Reduce::Sum, large, 0)?;
            Ok(vec![s.g.reduce(Reduce::Sum, sum, 1)?])
        }),
        "2147483648 elements in reduce-sum (): 2^31 - 1 are the most",
    );
    refused(
        case(|s| {
            let state = s.g.source(Class::State, "w", DType::F32, &[4, 4])?;
            let across = s.g.permute(state, &[1, 0])?;
            Ok(vec![s.g.assign(state, across)?])
        }),
        "what assign () reads written in another place",
    );
}

/// The `f64` model agrees with the reference, which was written independently.
#[test]
fn the_model_and_the_reference_agree() {
    let mut draw = Draw::new(77);
    let mut g = Graph::new();
    let x = g.source(Class::Mailbox, "x", DType::F32, &[4, 6]).unwrap();
    let mut pool = vec![x];
    for _ in 0..25 {
        grow(&mut g, &mut pool, &mut draw).unwrap();
    }
    for (i, tensor) in pool.iter().enumerate() {
        g.output(format!("y{i}"), *tensor);
    }
    let plan = g.lower(BUCKET).unwrap();
    let values = noise(5, 24);
    let wide = values.iter().map(|v| f64::from(*v)).collect();
    let model = Model::run(&plan, &[("x".to_owned(), wide)].into());
    let inputs = vec![("x".to_owned(), case::Values::F32(values))];
    let case = Case::of(plan.clone(), inputs, Default::default());
    for (name, have) in case.run_with(&Reference, Fusions::NONE, 1).unwrap() {
        let want = model.output(name.trim_start_matches("0."));
        for (h, w) in have.iter().zip(want) {
            assert!((f64::from(*h) - w).abs() <= 2e-2 * w.abs().max(1.0), "{name}: {h}, {w}");
        }
    }
}

/// Concatenation along an axis: each part is zero-padded, and all are added up.
fn join(g: &mut Graph, parts: &[Tensor], axis: usize) -> plan::graph::Result<Tensor> {
    let extents: Vec<usize> = parts.iter().map(|part| g.shape(*part)[axis]).collect();
    let (all, mut before) = (extents.iter().sum::<usize>(), 0);
    let mut whole = None;
    for (part, extent) in parts.iter().zip(extents) {
        let padded = g.pad(*part, axis, before, all - before - extent)?;
        before += extent;
        whole = Some(match whole {
            Some(whole) => g.binary(Binary::Add, whole, padded)?,
            None => padded,
        });
    }
    Ok(whole.unwrap())
}

/// Each kernel that writes a part writes nothing behind it, because the next part may already be there. Steps read
/// a part before and after the concat, and a concat is part of another one.
#[test]
fn concats_are_correct_for_every_kernel_that_writes_a_part() {
    let windows = |stride: usize, pad: usize, groups| Windows {
        stride: vec![stride; 2],
        pads: vec![[pad; 2]; 2],
        dilation: vec![1; 2],
        groups,
    };
    for first in 0..8 {
        let case = case(|s| {
            let x = s.floats("x", &[1, 17, 5, 7], noise(1, 595))?;
            let wide = s.floats("wide", &[1, 17, 10, 14], noise(2, 2380))?;
            let line = s.floats("line", &[5, 35, 6], noise(3, 1050))?;
            let rows = s.ints("rows", &[3], vec![4, 0, 2])?;
            let table = s.floats("table", &[6, 35], noise(4, 210))?;
            let few = s.floats("few", &[3, 11], noise(5, 33))?;
            let weights = [
                s.quantised("w0", DType::F32, &[19, 17, 3, 3], &noise(6, 2907))?,
                s.quantised("w1", DType::F32, &[3, 17, 1, 1], &noise(7, 51))?,
                s.quantised("w2", DType::F32, &[17, 1, 3, 3], &noise(8, 153))?,
                s.quantised("w3", DType::F32, &[5, 17, 3, 3], &noise(9, 765))?,
                s.quantised("w4", DType::F32, &[35, 11], &noise(10, 385))?,
                s.quantised("w5", DType::F32, &[4, 72, 1, 1], &noise(11, 288))?,
            ];
            let g = &mut s.g;
            let summed = g.reduce(Reduce::Sum, line, 2)?;
            let taken = g.gather(table, &[rows])?;
            let product = g.matmul(few, weights[4])?;
            let exp = g.unary(Unary::Exp, x)?;
            let depthwise = g.conv(x, weights[2], None, &windows(1, 1, 17))?;
            let mut parts = [
                g.conv(x, weights[0], None, &windows(1, 1, 1))?,
                g.conv(exp, weights[1], None, &windows(1, 0, 1))?,
                g.unary(Unary::Floor, depthwise)?,
                g.conv(wide, weights[3], None, &windows(2, 1, 1))?,
                g.reshape(summed, &[1, 5, 5, 7])?,
                g.reshape(taken, &[1, 3, 5, 7])?,
                g.reshape(product, &[1, 3, 5, 7])?,
                exp,
            ];
            parts.rotate_left(first);
            let inner = join(g, &parts[..5], 1)?;
            let before = g.reduce(Reduce::Max, parts[0], 3)?;
            let whole = join(g, &[parts[5], inner, parts[6], parts[7]], 1)?;
            let after = g.binary(Binary::Sub, parts[6], parts[0]).or_else(|_| {
                let [a, b] = [g.slice(parts[6], 1, 0, 3)?, g.slice(parts[0], 1, 0, 3)?];
                g.binary(Binary::Sub, a, b)
            })?;
            let turned = g.permute(whole, &[0, 2, 3, 1])?;
            let last = g.reduce(Reduce::Sum, turned, 3)?;
            let mixed = g.conv(whole, weights[5], None, &windows(1, 0, 1))?;
            let inner = g.reduce(Reduce::Max, inner, 3)?;
            Ok(vec![mixed, inner, before, after, last])
        });
        assert_same(&case, 4e-4, &format!("from part {first} on"));
    }
}

/// Row operations between two products: a softmax with a mask, a norm, and sequences that must not be fused.
#[test]
fn fused_rows_between_products_equal_separate_steps() {
    let [heads, m, n, k] = [3, 67, 391, 24];
    let noise = |s: &mut Sketch<'_>, name: &str, shape: &[usize]| {
        let count = shape.iter().product();
        s.floats(name, shape, noise(name.len() as u64 + count as u64, count))
    };
    let softmax = |g: &mut Graph, x: Tensor, axis: usize| -> plan::graph::Result<Tensor> {
        let largest = g.reduce(Reduce::Max, x, axis)?;
        let less = g.binary(Binary::Sub, x, largest)?;
        let exp = g.unary(Unary::Exp, less)?;
        let sum = g.reduce(Reduce::Sum, exp, axis)?;
        let share = g.unary(Unary::Recip, sum)?;
        g.binary(Binary::Mul, exp, share)
    };
    for variant in 0..5 {
        let case = case(|s| {
            let queries = noise(s, "queries", &[m, heads, k])?;
            let keys = noise(s, "keys", &[n, heads, k])?;
            let values = noise(s, "values", &[1, k, n])?;
            let mask = noise(s, "mask", &[1, m, n])?;
            let weight = s.quantised("w", DType::F32, &[n, n], &case::noise(9, n * n))?;
            let g = &mut s.g;
            let queries = g.permute(queries, &[1, 0, 2])?;
            let keys = g.permute(keys, &[1, 0, 2])?;
            let values = g.expand(values, &[heads, k, n])?;
            let scores = g.matmul(queries, keys)?;
            let quarter = g.constant(0.25);
            let scores = g.binary(Binary::Mul, scores, quarter)?;
            let results = match variant {
                // Attention; no other step reads its scores.
                0 => {
                    let masked = g.binary(Binary::Add, scores, mask)?;
                    let shares = softmax(g, masked, 2)?;
                    vec![g.matmul(shares, values)?]
                }
                // A later step reads the scores and the weights.
                1 => {
                    let shares = softmax(g, scores, 2)?;
                    let out = g.matmul(shares, values)?;
                    let most = g.reduce(Reduce::Max, scores, 0)?;
                    let least = g.reduce(Reduce::Sum, shares, 1)?;
                    vec![out, most, least]
                }
                // The softmax's rows are the other product's columns.
                2 => {
                    let shares = softmax(g, scores, 2)?;
                    vec![g.matmul(values, shares)?]
                }
                // The product of a buffer that the chain wrote with itself.
                3 => {
                    let shares = softmax(g, scores, 2)?;
                    vec![g.matmul(shares, shares)?]
                }
                // A norm, then a weight, then an elementwise operation per result.
                _ => {
                    let sum = g.reduce(Reduce::Sum, scores, 2)?;
                    let part = g.constant(1.0 / n as f32);
                    let mean = g.binary(Binary::Mul, sum, part)?;
                    let less = g.binary(Binary::Sub, scores, mean)?;
                    let weight = g.reshape(weight, &[1, n, n])?;
                    let weight = g.expand(weight, &[heads, n, n])?;
                    let out = g.matmul(less, weight)?;
                    let out = g.binary(Binary::Mul, out, part)?;
                    let open = g.unary(Unary::Exp, out)?;
                    vec![g.binary(Binary::Mul, open, mask)?]
                }
            };
            Ok(results)
        });
        assert_same(&case, 4e-4, &format!("variant {variant}"));
    }
}
