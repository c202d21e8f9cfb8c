//! Every primitive on the CPU against the reference: random programs on every instruction set and several threads,
//! shapes around the edges of blocks, and what is refused.

use std::num::NonZeroUsize;

use super::Draw;
use super::case::{BuildError, Case, Sketch, noise};
use super::model::Model;
use device::Device;
use device::cpu::{Cpu, Isa};
use device::reference::Reference;
use plan::graph::{Graph, Tensor};
use plan::{Binary, Bucket, Class, DType, Fusions, Outputs, Reduce, Unary, Window};

const BUCKET: Bucket = Bucket { batch: 1, chunk: 1, context: 16, outputs: Outputs::None };

fn devices() -> Vec<Cpu> {
    let threads = |n| NonZeroUsize::new(n).unwrap();
    let all = Isa::available().flat_map(|isa| [1, 3].map(|n| Cpu::new(isa, threads(n))));
    all.collect()
}

fn case(build: impl FnOnce(&mut Sketch<'_>) -> Result<Vec<Tensor>, BuildError>) -> Case {
    let stage = |s: &mut Sketch<'_>| {
        for (i, tensor) in build(s)?.into_iter().enumerate() {
            let tensor = s.g.cast(tensor, DType::F32)?;
            s.g.output(format!("y{i}"), tensor);
        }
        Ok(())
    };
    Case::new("tensors", "", 0.0).stage(BUCKET, stage).unwrap()
}

/// Runs a case on the reference and on CPUs, whatever the fusions; results may be `tolerance` apart.
fn assert_same(case: &Case, tolerance: f32, what: &str) {
    let want = case.run_with(&Reference, Fusions::NONE, 2).unwrap();
    for cpu in devices() {
        for fusions in [Fusions::NONE, Fusions::ALL] {
            let info = format!("{what}, on {:?}", cpu.info());
            let have = case.run_with(&cpu, fusions, 2).unwrap_or_else(|e| panic!("{info}: {e}"));
            assert_eq!(have.len(), want.len(), "{info}");
            for ((name, have), (_, want)) in have.iter().zip(&want) {
                assert_eq!(have.len(), want.len(), "{info}");
                for (i, (h, w)) in have.iter().zip(want).enumerate() {
                    let near = (h - w).abs() <= tolerance * w.abs().max(1.0);
                    let same = h == w || (h.is_nan() && w.is_nan());
                    assert!(near || same, "{info}, {name}[{i}]: {h}, {w} expected");
                }
            }
        }
    }
}

/// Adds an operation to a graph whose tensors so far are in `pool`, where it fits.
fn grow(g: &mut Graph, pool: &mut Vec<Tensor>, draw: &mut Draw) -> plan::graph::Result<()> {
    const LARGEST: usize = 3000;
    let x = pool[draw.below(pool.len())];
    let y = pool[draw.below(pool.len())];
    let shape = g.shape(x).to_vec();
    let (rank, count) = (shape.len(), shape.iter().product::<usize>());
    let axis = draw.below(rank.max(1));
    let added = match draw.below(14) {
        0 => {
            let ops = [Unary::Neg, Unary::Sin, Unary::Cos, Unary::Floor];
            g.unary(ops[draw.below(ops.len())], x)?
        }
        1 => {
            // Of what is positive, so that no number becomes none.
            let square = g.binary(Binary::Mul, x, x)?;
            let one = g.constant(1.0);
            let positive = g.binary(Binary::Add, square, one)?;
            let ops = [Unary::Ln, Unary::Sqrt, Unary::Recip];
            let y = g.unary(ops[draw.below(ops.len())], positive)?;
            let small = g.unary(Unary::Neg, y)?;
            if draw.below(2) == 0 { g.unary(Unary::Exp, small)? } else { y }
        }
        2 | 3 => {
            let ops = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::LessEqual];
            match g.binary(ops[draw.below(ops.len())], x, y) {
                Ok(z) => z,
                Err(_) => return Ok(()),
            }
        }
        4 if rank > 0 => g.reduce([Reduce::Sum, Reduce::Max][draw.below(2)], x, axis)?,
        5 => {
            let mut axes: Vec<usize> = (0..rank).collect();
            if rank > 1 {
                axes.swap(axis, draw.below(rank));
            }
            g.permute(x, &axes)?
        }
        6 => g.reshape(x, &[count])?,
        7 if rank > 0 && shape[axis] > 1 => g.slice(x, axis, 1, shape[axis] - 1)?,
        8 if rank > 0 => g.pad(x, axis, draw.below(3), draw.below(3))?,
        9 if rank < 4 => {
            let mut wide = shape.clone();
            wide.insert(0, 2);
            g.expand(x, &wide)?
        }
        10 => {
            let to = [DType::F16, DType::BF16, DType::I32][draw.below(3)];
            let other = g.cast(x, to)?;
            g.cast(other, DType::F32)?
        }
        11 if rank > 0 && shape[axis] > 2 => g.window(x, axis, Window::of(2))?,
        12 if rank >= 2 => {
            let mut axes: Vec<usize> = (0..rank).collect();
            axes.swap(rank - 1, rank - 2);
            let columns = g.permute(x, &axes)?;
            if shape[rank - 2] != shape[rank - 1] {
                return Ok(());
            }
            g.matmul(x, columns)?
        }
        13 => {
            let zero = g.constant(0.0);
            let condition = g.binary(Binary::LessEqual, x, zero)?;
            match g.select(condition, y, x) {
                Ok(z) => z,
                Err(_) => return Ok(()),
            }
        }
        _ => return Ok(()),
    };
    if g.shape(added).iter().product::<usize>() <= LARGEST {
        pool.push(added);
    }
    Ok(())
}

#[test]
fn random_programs_compute_what_they_compute_on_the_reference() {
    for seed in 0..60 {
        let mut draw = Draw::new(seed);
        let case = case(|s| {
            let mut pool = Vec::new();
            for i in 0..3 {
                let most = [3, 40][draw.below(2)];
                let shape = draw.shape(most);
                let count = shape.iter().product();
                let values = noise(seed * 10 + i, count);
                pool.push(s.floats(&format!("x{i}"), &shape, values)?);
            }
            for _ in 0..30 {
                grow(&mut s.g, &mut pool, &mut draw)?;
            }
            Ok(pool)
        });
        assert_same(&case, 2e-4, &format!("seed {seed}"));
    }
}

/// Rows shorter and longer than a block, columns fewer and more, none at all.
#[test]
fn reductions_of_every_shape() {
    for [outer, length, inner] in [
        [1, 1, 1],
        [3, 5, 1],
        [1, 1000, 1],
        [300, 7, 1],
        [2, 256, 1],
        [2, 257, 3],
        [5, 3, 100],
        [2, 3, 700],
        [1, 2000, 2],
        [3, 0, 4],
        [3, 0, 1],
        [0, 3, 2],
        [2, 3, 0],
    ] {
        let values = noise(1, outer * length * inner);
        let case = case(|s| {
            let x = s.floats("x", &[outer, length, inner], values)?;
            let twice = s.g.binary(Binary::Add, x, x)?;
            let half = s.g.constant(0.5);
            let mut results = vec![twice];
            for op in [Reduce::Sum, Reduce::Max] {
                // In one group with what is before it and after it, and alone.
                let whole = s.g.reduce(op, twice, 1)?;
                results.push(s.g.binary(Binary::Mul, whole, half)?);
                results.push(s.g.reduce(op, x, 1)?);
                let thousands = s.g.constant(1000.0);
                let large = s.g.binary(Binary::Mul, x, thousands)?;
                let ints = s.g.cast(large, DType::I32)?;
                results.push(s.g.reduce(op, ints, 1)?);
            }
            Ok(results)
        });
        assert_same(&case, 1e-6, &format!("{outer}x{length}x{inner}"));
    }
}

#[test]
fn functions_at_their_edges() {
    let mut values = vec![0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e30, 87.0, -80.0, 2.5, -2.5];
    values.extend([
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        1e-42,
        3e6,
        -7e8,
    ]);
    values.extend(noise(3, 500).iter().map(|v| v * 50.0));
    let n = values.len();
    let case = case(|s| {
        let x = s.floats("x", &[n], values.clone())?;
        let mut other = values.clone();
        other.rotate_left(1);
        let y = s.floats("y", &[n], other)?;
        let mut results = Vec::new();
        for op in [Unary::Neg, Unary::Exp, Unary::Ln, Unary::Sqrt, Unary::Recip, Unary::Floor] {
            results.push(s.g.unary(op, x)?);
        }
        for op in [Unary::Sin, Unary::Cos] {
            results.push(s.g.unary(op, x)?);
        }
        let ops = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Rem];
        for op in ops.into_iter().chain([Binary::LessEqual]) {
            results.push(s.g.binary(op, x, y)?);
        }
        for to in [DType::F16, DType::BF16, DType::I32] {
            results.push(s.g.cast(x, to)?);
        }
        results.push(s.g.select(x, y, x)?);
        Ok(results)
    });
    assert_same(&case, 4e-7, "edges");
}

#[test]
fn integers_wrap_and_their_bits_move() {
    let a = vec![0, 1, -1, 7, -8, i32::MAX, i32::MIN, 0x0f0f_0f0f, 123_456_789];
    let mut b = a.clone();
    b.rotate_left(2);
    let n = a.len();
    let want: Vec<i32> = a.iter().zip(&b).map(|(a, b)| a.wrapping_mul(*b) ^ (a >> 3)).collect();
    let case = case(|s| {
        let (a, b) = (s.ints("a", &[n], a.clone())?, s.ints("b", &[n], b.clone())?);
        let mut results = Vec::new();
        let ops = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Rem];
        let bits = [
            Binary::LessEqual,
            Binary::And,
            Binary::Or,
            Binary::Xor,
            Binary::ShiftLeft,
            Binary::ShiftRight,
        ];
        for op in ops.into_iter().chain(bits) {
            results.push(s.g.binary(op, a, b)?);
        }
        let three = s.g.constant(3.7);
        let shifted = s.g.binary(Binary::ShiftRight, a, three)?;
        let product = s.g.binary(Binary::Mul, a, b)?;
        results.push(s.g.binary(Binary::Xor, product, shifted)?);
        // Halves of an integer, to the bit: of its float.
        results.push(s.g.cast(a, DType::F16)?);
        Ok(results)
    });
    assert_same(&case, 0.0, "integers");
    let have = case.run_with(&Cpu::detect(), Fusions::NONE, 1).unwrap();
    let wide: Vec<f32> = want.iter().map(|v| *v as f32).collect();
    assert_eq!(have[11].1, wide);
}

#[test]
fn rows_are_taken_written_and_added() {
    for (rows, width) in [(5, 1), (7, 3), (4, 700)] {
        let case = case(|s| {
            let table = s.floats("table", &[6, 2, width], noise(1, 12 * width))?;
            let values = s.floats("values", &[rows, width], noise(2, rows * width))?;
            let first = (0..rows as i32).map(|i| i % 5 - 1).collect();
            let (first, second) = (
                s.ints("first", &[rows], first)?,
                s.ints("second", &[rows], (0..rows as i32).map(|i| i % 2).collect())?,
            );
            let mut results = vec![
                s.g.gather(table, &[first])?,
                s.g.gather(table, &[first, second])?,
                s.g.scatter_add(&[6], &[first], values)?,
                s.g.scatter_add(&[6, 2], &[first, second], values)?,
            ];
            // A column of a table that lies across, and indices that are one.
            let across = s.g.permute(table, &[2, 1, 0])?;
            results.push(s.g.gather(across, &[second])?);
            let one = s.g.slice(first, 0, 1, 1)?;
            let all = s.g.expand(one, &[rows])?;
            results.push(s.g.gather(table, &[all])?);
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let state = s.g.source(Class::State, dtype.name(), dtype, &[6, 2, width])?;
                let cast = s.g.cast(values, dtype)?;
                let state = s.g.scatter(state, &[first, second], cast)?;
                results.push(s.g.gather(state, &[first, second])?);
                results.push(s.g.cast(state, DType::F32)?);
            }
            let square = s.g.reshape(table, &[6, 2 * width])?;
            let best = s.g.top_k(square, 2)?;
            results.push(best);
            Ok(results)
        });
        assert_same(&case, 1e-6, &format!("{rows} rows of {width}"));
    }
}

/// Products of views that lie across, that repeat, that are halves, that are decoded from blocks.
#[test]
fn products_of_any_operands() {
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

/// A step reads what the one before it left, and several are one submission.
#[test]
fn states_and_mailboxes_go_on_from_step_to_step() {
    let case = case(|s| {
        let state = s.g.source(Class::State, "w", DType::F32, &[700])?;
        let x = s.floats("x", &[700], noise(1, 700))?;
        let half = s.g.constant(0.5);
        let kept = s.g.binary(Binary::Mul, state, half)?;
        let next = s.g.binary(Binary::Add, kept, x)?;
        let state = s.g.assign(state, next)?;
        let mailbox = s.g.assign(x, next)?;
        Ok(vec![state, mailbox, kept])
    });
    assert_same(&case, 1e-6, "states");
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
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

/// The model in `f64` agrees with the reference: neither of them was made from the other.
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
    let inputs = vec![("x".to_owned(), super::case::Values::F32(values))];
    let case = Case::of(plan.clone(), inputs, Default::default());
    for (name, have) in case.run_with(&Reference, Fusions::NONE, 1).unwrap() {
        let want = model.output(name.trim_start_matches("0."));
        for (h, w) in have.iter().zip(want) {
            assert!((f64::from(*h) - w).abs() <= 2e-2 * w.abs().max(1.0), "{name}: {h}, {w}");
        }
    }
}
