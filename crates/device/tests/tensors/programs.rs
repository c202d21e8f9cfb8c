//! Primitives compared with the reference on the including program's devices: random programs, shapes around block
//! boundaries, functions at the ends of their ranges.

use super::{Draw, PROGRAMS, devices};
use device::reference::Reference;
use parity::case::{BuildError, Case, Sketch, noise};
use plan::graph::{Graph, Tensor};
use plan::{Binary, Bucket, Class, DType, Fusions, Outputs, Reduce, Unary, Window};

pub(super) const BUCKET: Bucket =
    Bucket { batch: 1, chunk: 1, context: 16, outputs: Outputs::None };

pub(super) fn case(build: impl FnOnce(&mut Sketch<'_>) -> Result<Vec<Tensor>, BuildError>) -> Case {
    let stage = |s: &mut Sketch<'_>| {
        for (i, tensor) in build(s)?.into_iter().enumerate() {
            let tensor = s.g.cast(tensor, DType::F32)?;
            s.g.output(format!("y{i}"), tensor);
        }
        Ok(())
    };
    Case::new("tensors", "", 0.0).stage(BUCKET, stage).unwrap()
}

/// Runs a case on the reference and on devices, with every set of fusions; results may differ by `tolerance`.
pub(super) fn assert_same(case: &Case, tolerance: f32, what: &str) {
    let want = case.run_with(&Reference, Fusions::NONE, 2).unwrap();
    for device in devices() {
        for fusions in [Fusions::NONE, Fusions::ALL] {
            let info = format!("{what}, on {:?}", device.info());
            let have =
                case.run_with(&*device, fusions, 2).unwrap_or_else(|e| panic!("{info}: {e}"));
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

/// Adds an operation on the tensors in `pool` to a graph, if the shapes allow it.
pub(super) fn grow(
    g: &mut Graph,
    pool: &mut Vec<Tensor>,
    draw: &mut Draw,
) -> plan::graph::Result<()> {
    const LARGEST: usize = 3000;
    let x = pool[draw.below(pool.len())];
    let y = pool[draw.below(pool.len())];
    let shape = g.shape(x).to_vec();
    let (rank, count) = (shape.len(), shape.iter().product::<usize>());
    let axis = draw.below(rank.max(1));
    let added = match draw.below(15) {
        0 => {
            let ops = [Unary::Neg, Unary::Sin, Unary::Cos, Unary::Floor, Unary::Round, Unary::Tanh];
            g.unary(ops[draw.below(ops.len())], x)?
        }
        1 => {
            // The argument is positive, so that no result is NaN.
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
        14 if rank > 0 => g.flip(x, axis)?,
        _ => return Ok(()),
    };
    if g.shape(added).iter().product::<usize>() <= LARGEST {
        pool.push(added);
    }
    Ok(())
}

#[test]
fn random_programs_equal_the_reference() {
    for seed in 0..PROGRAMS {
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

/// Rows shorter and longer than a block, few and many columns, and none.
#[test]
fn reductions_of_every_shape_equal_the_reference() {
    for [outer, length, inner] in [
        [1, 1, 1],
        [3, 5, 1],
        [1, 1000, 1],
        [1, 5000, 1],
        [33, 600, 1],
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
                // In one group with the operations before and after it, and alone.
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
fn functions_at_the_ends_of_their_ranges_equal_the_reference() {
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
        for op in [Unary::Sin, Unary::Cos, Unary::Round, Unary::Tanh] {
            results.push(s.g.unary(op, x)?);
        }
        let ops = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Rem];
        let truths = [Binary::LessEqual, Binary::Less, Binary::Equal, Binary::Div];
        for op in ops.into_iter().chain(truths) {
            results.push(s.g.binary(op, x, y)?);
        }
        for to in [DType::F16, DType::BF16, DType::I32, DType::I8, DType::U8, DType::BOOL] {
            results.push(s.g.cast(x, to)?);
        }
        results.push(s.g.select(x, y, x)?);
        Ok(results)
    });
    assert_same(&case, 4e-7, "edges");
}

#[test]
fn integer_operations_wrap_and_shift_exactly() {
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
            Binary::Div,
            Binary::LessEqual,
            Binary::Less,
            Binary::Equal,
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
        // Conversion of an integer to `f16` equals that of its `f32`, bit for bit.
        results.push(s.g.cast(a, DType::F16)?);
        Ok(results)
    });
    assert_same(&case, 0.0, "integers");
    let wide: Vec<f32> = want.iter().map(|v| *v as f32).collect();
    for device in devices() {
        let have = case.run_with(&*device, Fusions::NONE, 1).unwrap();
        assert_eq!(have[14].1, wide);
    }
}

#[test]
fn gather_scatter_and_top_k_equal_the_reference() {
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
            // A transposed column of a table, and a repeated index.
            let across = s.g.permute(table, &[2, 1, 0])?;
            results.push(s.g.gather(across, &[second])?);
            let one = s.g.slice(first, 0, 1, 1)?;
            let all = s.g.expand(one, &[rows])?;
            results.push(s.g.gather(table, &[all])?);
            // Scatters to a state; only these rows are read.
            let bytes = [DType::I8, DType::U8, DType::BOOL];
            for dtype in [DType::F32, DType::F16, DType::BF16].into_iter().chain(bytes) {
                let state = s.g.source(Class::State, dtype.name(), dtype, &[6, 2, width])?;
                let cast = s.g.cast(values, dtype)?;
                let state = s.g.scatter(state, &[first, second], cast)?;
                results.push(s.g.gather(state, &[first, second])?);
            }
            let square = s.g.reshape(table, &[6, 2 * width])?;
            let best = s.g.top_k(square, 2)?;
            results.push(best);
            Ok(results)
        });
        assert_same(&case, 1e-6, &format!("{rows} rows of {width}"));
    }
}

/// One-byte elements written by the host and by steps: weights, states, mailboxes, and values between steps. Odd
/// counts detect writes beyond the end.
#[test]
fn one_byte_types_work_in_weights_states_and_mailboxes() {
    for n in [1, 3, 257] {
        for dtype in [DType::I8, DType::U8, DType::BOOL] {
            let most = if dtype == DType::BOOL { 2.0 } else { 256.0 };
            let numbers = |seed: u64, n: usize| {
                noise(seed, n).into_iter().map(move |v| ((v + 1.0) / 2.0 * most).floor())
            };
            let bytes = |seed, n| numbers(seed, n).map(|v| v as u8).collect::<Vec<u8>>();
            let case = case(|s| {
                let x = s.given("x", dtype, &[n], numbers(1, n))?;
                let line = s.weight("line", dtype, &[n], bytes(2, n))?;
                let table = s.weight("table", dtype, &[5, n], bytes(3, 5 * n))?;
                let block = s.weight("block", dtype, &[2, n, 3], bytes(4, 6 * n))?;
                let rows = s.ints("rows", &[4], vec![4, -1, 0, 4])?;
                let sum = s.g.binary(Binary::Add, x, line)?;
                let kept = s.g.cast(sum, dtype)?;
                let state = s.g.source(Class::State, "state", dtype, &[n])?;
                let state = s.g.assign(state, kept)?;
                let mailbox = s.g.assign(x, kept)?;
                let lines = s.g.source(Class::State, "lines", dtype, &[5, n])?;
                let taken = s.g.gather(table, &[rows])?;
                let taken_kept = s.g.cast(taken, dtype)?;
                let lines = s.g.scatter(lines, &[rows], taken_kept)?;
                let across = s.g.permute(block, &[2, 0, 1])?;
                let flat = s.g.reshape(across, &[6, n])?;
                let product = s.g.matmul(flat, table)?;
                let total = s.g.reduce(Reduce::Sum, block, 1)?;
                let again = s.g.gather(lines, &[rows])?;
                Ok(vec![kept, state, mailbox, taken, again, across, product, total])
            });
            assert_same(&case, 1e-6, &format!("{n} of {dtype}"));
        }
    }
}

/// Weights that products and gathers read as matrices, and other steps as plain numbers; whole, in part,
/// transposed.
#[test]
fn weights_are_read_as_matrices_and_as_plain_numbers() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        let case = case(|s| {
            let x = s.floats("x", &[3, 64], noise(1, 192))?;
            let w = s.quantised("w", dtype, &[40, 64], &noise(2, 2560))?;
            let block = s.quantised("block", dtype, &[2, 5, 64], &noise(3, 640))?;
            let rows = s.ints("rows", &[4], vec![39, -1, 0, 7])?;
            let product = s.g.matmul(x, w)?;
            let part = s.g.slice(w, 0, 8, 16)?;
            let many = s.g.expand(x, &[2, 3, 64])?;
            let mut results = vec![
                product,
                s.g.gather(w, &[rows])?,
                s.g.matmul(x, part)?,
                s.g.gather(part, &[rows])?,
                s.g.matmul(many, block)?,
            ];
            if dtype.is_quantised() {
                return Ok(results);
            }
            let square = s.quantised("square", dtype, &[64, 64], &noise(4, 4096))?;
            let [turned, across] = [s.g.permute(w, &[1, 0])?, s.g.permute(square, &[1, 0])?];
            results.push(s.g.matmul(product, turned)?);
            let table = s.quantised("table", dtype, &[6, 7], &noise(5, 42))?;
            for (numbers, axis) in [(w, 0), (block, 1), (table, 1)] {
                let wide = s.g.cast(numbers, DType::F32)?;
                results.push(s.g.reduce(Reduce::Sum, wide, axis)?);
            }
            let of_square = s.g.matmul(x, square)?;
            results.extend([of_square, s.g.matmul(x, across)?, s.g.gather(across, &[rows])?]);
            results.push(s.g.gather(table, &[rows])?);
            // A product whose residual is its own weight matrix.
            let more = s.floats("more", &[64, 64], noise(6, 4096))?;
            let made = s.g.matmul(more, square)?;
            let wide = s.g.cast(square, DType::F32)?;
            results.push(s.g.binary(Binary::Add, made, wide)?);
            Ok(results)
        });
        // Activations are quantised to eight bits and a residual plane.
        let tolerance = if dtype.is_quantised() { 2e-3 } else { 4e-5 };
        assert_same(&case, tolerance, dtype.name());
    }
}

/// Every two sums and products, in either order, with operands that are read twice or already computed.
#[test]
fn combined_operations_are_rounded_separately() {
    let ops = [Binary::Add, Binary::Sub, Binary::Mul];
    let case = case(|s| {
        let [a, b, c] = [(1, "a"), (2, "b"), (3, "c")]
            .map(|(seed, name)| s.floats(name, &[777], noise(seed, 777)));
        let [a, b, c] = [a?, b?, c?];
        let g = &mut s.g;
        let mut results = Vec::new();
        for (first, second) in ops.into_iter().flat_map(|first| ops.map(|second| (first, second))) {
            for first_is_left in [true, false] {
                let x = g.unary(Unary::Neg, c)?;
                let between = g.binary(first, a, b)?;
                let (left, right) = if first_is_left { (between, x) } else { (x, between) };
                let once = g.binary(second, left, right)?;
                // The same again; several steps read its results.
                let x = g.unary(Unary::Neg, c)?;
                let between = g.binary(first, x, b)?;
                let square = g.binary(second, between, between)?;
                let twice = g.binary(second, square, between)?;
                results.push(g.binary(Binary::Add, once, twice)?);
            }
        }
        Ok(results)
    });
    assert_same(&case, 0.0, "two operations");
}
