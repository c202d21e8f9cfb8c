//! Random programs of primitives, run on the reference device and on plain arrays.
//! Both round to `f32` after every operation and sum in `f64`, so they must agree exactly.

use half::{bf16, f16};
use plan::graph::{Graph, Tensor};
use plan::{Binary, Class, DType, Reduce, Unary, Window};
use proptest::prelude::*;

use super::{Case, noise};

/// A dense array of `f32` values in row-major order.
#[derive(Clone, Debug)]
struct Array {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Array {
    /// The value at each index, counted like an odometer.
    fn from_fn(shape: &[usize], mut value: impl FnMut(&[usize]) -> f64) -> Self {
        let count: usize = shape.iter().product();
        let mut index = vec![0; shape.len()];
        let mut values = Vec::with_capacity(count);
        for mut flat in 0..count {
            for axis in (0..shape.len()).rev() {
                index[axis] = flat % shape[axis];
                flat /= shape[axis];
            }
            values.push(value(&index) as f32);
        }
        Self { shape: shape.to_vec(), values }
    }

    fn at(&self, index: &[usize]) -> f64 {
        let flat = index.iter().zip(&self.shape).fold(0, |flat, (i, n)| flat * n + i);
        f64::from(self.values[flat])
    }

    /// The element that broadcasting puts at an index of a shape of higher or equal rank.
    fn broadcast(&self, index: &[usize]) -> f64 {
        let tail = &index[index.len() - self.shape.len()..];
        let own: Vec<usize> =
            tail.iter().zip(&self.shape).map(|(i, n)| if *n == 1 { 0 } else { *i }).collect();
        self.at(&own)
    }
}

/// An addition to a program; the numbers select operands, axes and extents.
#[derive(Clone, Debug)]
struct Action {
    kind: u8,
    operand: usize,
    other: usize,
    number: usize,
}

fn action() -> impl Strategy<Value = Action> {
    (0u8..11, 0usize..64, 0usize..64, 0usize..1 << 16)
        .prop_map(|(kind, operand, other, number)| Action { kind, operand, other, number })
}

/// A growing set of tensors, each with the array it must equal.
struct Program {
    case: Case,
    pool: Vec<(Tensor, Array)>,
}

const MAX_ELEMENTS: usize = 600;
const MAX_RANK: usize = 4;

impl Program {
    fn new(shapes: &[Vec<usize>], seed: u64) -> Self {
        let mut case = Case::new();
        let mut pool = Vec::new();
        for (i, shape) in shapes.iter().enumerate() {
            let values: Vec<f32> = noise(seed + i as u64, shape.iter().product());
            let tensor = case.float(shape, &values.iter().map(|v| v * 2.0).collect::<Vec<_>>());
            let values = values.iter().map(|v| v * 2.0).collect();
            pool.push((tensor, Array { shape: shape.clone(), values }));
        }
        Self { case, pool }
    }

    fn apply(&mut self, action: &Action) {
        let (x, a) = self.pool[action.operand % self.pool.len()].clone();
        let (y, b) = self.pool[action.other % self.pool.len()].clone();
        let n = action.number;
        let rank = a.shape.len();
        let axis = n % rank.max(1);
        let g = &mut self.case.g;
        let added = match action.kind {
            0 => Some(unary(g, x, &a, n)),
            1 => binary(g, (x, &a), (y, &b), n),
            2 => Some(reshape(g, x, &a, n)),
            3 => Some(permute(g, x, &a, n)),
            4 => expand(g, x, &a, n),
            5 if rank > 0 => Some(slice(g, x, &a, axis, n / 7)),
            6 if rank > 0 => pad(g, x, &a, axis, n / 7),
            7 if rank > 0 => Some(reduce(g, x, &a, axis, n / 7)),
            8 => matmul(g, (x, &a), (y, &b)),
            9 => Some(cast(g, x, &a, n)),
            10 if rank > 0 => Some(gather(&mut self.case, x, &a, n)),
            _ => None,
        };
        self.pool.extend(added.filter(|(t, _)| self.pool.iter().all(|(old, _)| old != t)));
    }
}

type OfOne = fn(f64) -> f64;
type OfTwo = fn(f64, f64) -> f64;

fn unary(g: &mut Graph, x: Tensor, a: &Array, n: usize) -> (Tensor, Array) {
    let functions: &[(Unary, OfOne)] = &[
        (Unary::Neg, |v| -v),
        (Unary::Exp, f64::exp),
        (Unary::Ln, f64::ln),
        (Unary::Sqrt, f64::sqrt),
        (Unary::Recip, |v| 1.0 / v),
        (Unary::Sin, f64::sin),
        (Unary::Cos, f64::cos),
    ];
    let (op, f) = functions[n % functions.len()];
    (g.unary(op, x).unwrap(), Array::from_fn(&a.shape, |i| f(a.at(i))))
}

fn binary(
    g: &mut Graph,
    (x, a): (Tensor, &Array),
    (y, b): (Tensor, &Array),
    n: usize,
) -> Option<(Tensor, Array)> {
    let functions: &[(Binary, OfTwo)] = &[
        (Binary::Add, |u, v| u + v),
        (Binary::Sub, |u, v| u - v),
        (Binary::Mul, |u, v| u * v),
        (Binary::Max, maximum),
        (Binary::LessEqual, |u, v| f64::from(u8::from(u <= v))),
    ];
    let (op, f) = functions[n % functions.len()];
    let rank = a.shape.len().max(b.shape.len());
    let extent = |s: &[usize], axis: usize| {
        if axis + s.len() < rank { 1 } else { s[axis + s.len() - rank] }
    };
    let mut shape = Vec::new();
    for axis in 0..rank {
        let (m, n) = (extent(&a.shape, axis), extent(&b.shape, axis));
        if m != n && m != 1 && n != 1 {
            assert!(g.binary(op, x, y).is_err(), "{:?} and {:?}", a.shape, b.shape);
            return None;
        }
        shape.push(m.max(n));
    }
    let fits = shape.iter().product::<usize>() <= MAX_ELEMENTS;
    fits.then(|| {
        let result = Array::from_fn(&shape, |i| f(a.broadcast(i), b.broadcast(i)));
        (g.binary(op, x, y).unwrap(), result)
    })
}

/// Distributes the prime factors of the element count over new dimensions.
fn reshape(g: &mut Graph, x: Tensor, a: &Array, n: usize) -> (Tensor, Array) {
    let mut shape = vec![1; 1 + n % MAX_RANK];
    let (mut left, mut factor, mut draw) = (a.values.len(), 2, n);
    while left > 1 {
        if left.is_multiple_of(factor) {
            left /= factor;
            let axis = draw % shape.len();
            shape[axis] *= factor;
            draw = draw / 3 + 5 * factor;
        } else {
            factor += 1;
        }
    }
    (g.reshape(x, &shape).unwrap(), Array { shape, values: a.values.clone() })
}

fn permute(g: &mut Graph, x: Tensor, a: &Array, mut n: usize) -> (Tensor, Array) {
    let mut rest: Vec<usize> = (0..a.shape.len()).collect();
    let mut axes = Vec::new();
    while !rest.is_empty() {
        axes.push(rest.remove(n % rest.len()));
        n /= 3;
    }
    let shape: Vec<usize> = axes.iter().map(|&axis| a.shape[axis]).collect();
    let result = Array::from_fn(&shape, |index| {
        let mut source = vec![0; index.len()];
        axes.iter().zip(index).for_each(|(&axis, &i)| source[axis] = i);
        a.at(&source)
    });
    (g.permute(x, &axes).unwrap(), result)
}

/// Repeats each extent of 1, and adds a leading dimension if the rank allows it.
fn expand(g: &mut Graph, x: Tensor, a: &Array, n: usize) -> Option<(Tensor, Array)> {
    let mut shape: Vec<usize> =
        a.shape.iter().map(|&extent| if extent == 1 { 1 + n % 3 } else { extent }).collect();
    if shape.len() < MAX_RANK {
        shape.insert(0, 1 + n / 3 % 3);
    }
    let fits = shape.iter().product::<usize>() <= MAX_ELEMENTS;
    fits.then(|| (g.expand(x, &shape).unwrap(), Array::from_fn(&shape, |index| a.broadcast(index))))
}

fn slice(g: &mut Graph, x: Tensor, a: &Array, axis: usize, n: usize) -> (Tensor, Array) {
    let extent = a.shape[axis];
    let start = n % extent;
    let len = 1 + n / 5 % (extent - start);
    let mut shape = a.shape.clone();
    shape[axis] = len;
    let result = Array::from_fn(&shape, |index| {
        let mut source = index.to_vec();
        source[axis] += start;
        a.at(&source)
    });
    assert!(g.slice(x, axis, start, extent - start + 1).is_err());
    (g.slice(x, axis, start, len).unwrap(), result)
}

fn pad(g: &mut Graph, x: Tensor, a: &Array, axis: usize, n: usize) -> Option<(Tensor, Array)> {
    let (before, after) = (n % 3, n / 3 % 3);
    let mut shape = a.shape.clone();
    shape[axis] += before + after;
    let inside = before..before + a.shape[axis];
    let fits = shape.iter().product::<usize>() <= MAX_ELEMENTS;
    fits.then(|| {
        let result = Array::from_fn(&shape, |index| {
            let mut source = index.to_vec();
            if !inside.contains(&source[axis]) {
                return 0.0;
            }
            source[axis] -= before;
            a.at(&source)
        });
        (g.pad(x, axis, before, after).unwrap(), result)
    })
}

fn reduce(g: &mut Graph, x: Tensor, a: &Array, axis: usize, n: usize) -> (Tensor, Array) {
    let op = [Reduce::Sum, Reduce::Max][n % 2];
    let mut shape = a.shape.clone();
    shape[axis] = 1;
    let result = Array::from_fn(&shape, |index| {
        let along = (0..a.shape[axis]).map(|i| {
            let mut source = index.to_vec();
            source[axis] = i;
            a.at(&source)
        });
        match op {
            Reduce::Sum => along.sum(),
            Reduce::Max => along.fold(f64::NEG_INFINITY, maximum),
        }
    });
    (g.reduce(op, x, axis).unwrap(), result)
}

/// Multiplies with the other operand if the shapes match, else with itself.
fn matmul(
    g: &mut Graph,
    (x, a): (Tensor, &Array),
    (y, b): (Tensor, &Array),
) -> Option<(Tensor, Array)> {
    let rank = a.shape.len();
    if rank < 2 {
        assert!(g.matmul(x, y).is_err());
        return None;
    }
    let fits = b.shape.len() == rank
        && a.shape[..rank - 2] == b.shape[..rank - 2]
        && a.shape[rank - 1] == b.shape[rank - 1];
    let (y, b) = if fits { (y, b) } else { (x, a) };
    let mut shape = a.shape.clone();
    shape[rank - 1] = b.shape[rank - 2];
    (shape.iter().product::<usize>() <= MAX_ELEMENTS).then(|| {
        let result = Array::from_fn(&shape, |index| {
            let (mut ia, mut ib) = (index.to_vec(), index.to_vec());
            ib[rank - 2] = index[rank - 1];
            let terms = (0..a.shape[rank - 1]).map(|k| {
                (ia[rank - 1], ib[rank - 1]) = (k, k);
                a.at(&ia) * b.at(&ib)
            });
            terms.sum()
        });
        (g.matmul(x, y).unwrap(), result)
    })
}

fn cast(g: &mut Graph, x: Tensor, a: &Array, n: usize) -> (Tensor, Array) {
    let (dtype, round): (_, fn(f32) -> f32) = if n.is_multiple_of(2) {
        (DType::F16, |v| f16::from_f32(v).to_f32())
    } else {
        (DType::BF16, |v| bf16::from_f32(v).to_f32())
    };
    let half = g.cast(x, dtype).unwrap();
    let values = a.values.iter().map(|&v| round(v)).collect();
    (g.cast(half, DType::F32).unwrap(), Array { shape: a.shape.clone(), values })
}

/// Rows of the first axis in any order, some of them missing.
fn gather(case: &mut Case, x: Tensor, a: &Array, n: usize) -> (Tensor, Array) {
    let extent = a.shape[0];
    let rows = 1 + n % 3;
    let indices: Vec<i32> = (0..rows).map(|i| (n / (i + 2) % (extent + 1)) as i32 - 1).collect();
    let at = case.int(&indices);
    let mut shape = a.shape.clone();
    shape[0] = rows;
    let result = Array::from_fn(&shape, |index| {
        let Ok(row) = usize::try_from(indices[index[0]]) else { return 0.0 };
        let mut source = index.to_vec();
        source[0] = row;
        a.at(&source)
    });
    (case.g.gather(x, &[at]).unwrap(), result)
}

/// Maximum of IEEE 754-2019: NaN if an operand is.
fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_programs_equal_plain_arrays(
        shapes in prop::collection::vec(prop::collection::vec(1usize..5, 0..4), 1..4),
        seed in 0u64..1000,
        actions in prop::collection::vec(action(), 1..16),
    ) {
        let mut program = Program::new(&shapes, seed);
        for action in &actions {
            program.apply(action);
        }
        let Program { case, pool } = program;
        let tensors: Vec<Tensor> = pool.iter().map(|(tensor, _)| *tensor).collect();
        for (have, (_, want)) in case.run(&tensors).iter().zip(&pool) {
            let same = |(h, w): (&f32, &f32)| h == w || (h.is_nan() && w.is_nan());
            prop_assert!(
                have.len() == want.values.len() && have.iter().zip(&want.values).all(same),
                "{have:?}, {want:?} expected"
            );
        }
    }
}

#[test]
fn gather_over_two_axes_and_from_integers() {
    let mut case = Case::new();
    let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let table = case.float(&[2, 3, 4], &values);
    let (i, j) = (case.int(&[1, 0, 1, -1]), case.int(&[2, 0, -1, 1]));
    let rows = case.g.gather(table, &[i, j]).unwrap();
    let numbers = case.int(&[10, -20, 30]);
    let which = case.int(&[2, 1]);
    let chosen = case.g.gather(numbers, &[which]).unwrap();
    let chosen = case.g.cast(chosen, DType::F32).unwrap();
    let results = case.run(&[rows, chosen]);
    let want = [20., 21., 22., 23., 0., 1., 2., 3., 0., 0., 0., 0., 0., 0., 0., 0.];
    assert_eq!(results, [want.to_vec(), vec![30.0, -20.0]]);
}

#[test]
fn scatter_writes_rows_in_order_and_skips_negative_ones() {
    let mut case = Case::new();
    let state = case.state("s", DType::F32, &[2, 2, 2]);
    let values = case.float(&[4, 2], &[1., 2., 3., 4., 5., 6., 7., 8.]);
    let (i, j) = (case.int(&[0, 1, -1, 1]), case.int(&[1, 0, 0, 0]));
    let new = case.g.scatter(state, &[i, j], values).unwrap();
    assert_eq!(case.run(&[new]), [[0., 0., 1., 2., 7., 8., 0., 0.]]);
}

#[test]
fn integers_support_constants_and_assignments() {
    let mut case = Case::new();
    let mailbox = case.int(&[7, -3, i32::from(i16::MAX)]);
    let one = case.g.constant(1.0);
    let next = case.g.binary(Binary::Add, mailbox, one).unwrap();
    let new = case.g.assign(mailbox, next).unwrap();
    let seen = case.g.cast(new, DType::F32).unwrap();
    let count = case.g.iota(3);
    assert_eq!(case.run(&[seen, count]), [[8.0, -2.0, 32_768.0], [0.0, 1.0, 2.0]]);
}

/// Expected values are computed by hand.
#[test]
fn casts_to_bytes_keep_the_lowest_bits_and_casts_to_bool_test_for_zero() {
    let mut case = Case::new();
    let numbers = [0.5, -0.5, 1.9, -1.9, 127.0, 128.0, -129.0, 255.9, 256.0, 3e9, -3e9, f32::NAN];
    let integers = [0, 1, -1, 127, 128, 255, 256, -128, -129, i32::MIN, i32::MAX, 0x1234_5600];
    let (x, n) = (case.float(&[12], &numbers), case.int(&integers));
    let mut results = Vec::new();
    for source in [x, n] {
        for dtype in [DType::I8, DType::U8, DType::BOOL] {
            let kept = case.g.cast(source, dtype).unwrap();
            assert_eq!(case.g.dtype(kept), dtype);
            results.push(case.g.cast(kept, DType::F32).unwrap());
        }
    }
    let want: [[i16; 12]; 6] = [
        [0, 0, 1, -1, 127, -128, 127, -1, 0, -1, 0, 0],
        [0, 0, 1, 255, 127, 128, 127, 255, 0, 255, 0, 0],
        [1; 12],
        [0, 1, -1, 127, -128, -1, 0, -128, 127, 0, -1, 0],
        [0, 1, 255, 127, 128, 255, 0, 128, 127, 0, 255, 0],
        [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ];
    assert_eq!(case.run(&results), want.map(|row| row.map(f32::from).to_vec()));
}

#[test]
fn products_with_quantised_matrices_equal_those_with_dequantised_values() {
    for dtype in [DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q6_K] {
        let (rows, width) = (3, 256);
        let source = noise(5, rows * width);
        let mut bytes = vec![0; dtype.size_of((rows * width) as u64).unwrap() as usize];
        plan::quant::quantise(dtype, &source, &mut bytes).unwrap();
        let mut stored = vec![0.0; rows * width];
        plan::quant::dequantise(dtype, &bytes, &mut stored).unwrap();
        let x = noise(6, 2 * width);

        let mut case = Case::new();
        let weight = case.weight(dtype, &[rows, width], bytes);
        let input = case.float(&[2, width], &x);
        let product = case.g.matmul(input, weight).unwrap();
        let at = case.int(&[2, -1, 0]);
        let gathered = case.g.gather(weight, &[at]).unwrap();
        let results = case.run(&[product, gathered]);

        let dot = |i: usize, j: usize| -> f64 {
            let row = |v: &[f32], at: usize| v[at * width..(at + 1) * width].to_vec();
            let (x, w) = (row(&x, i), row(&stored, j));
            x.iter().zip(&w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let want: Vec<f64> =
            (0..2).flat_map(|i| (0..rows).map(move |j| (i, j))).map(|(i, j)| dot(i, j)).collect();
        super::assert_close(&results[0], &want, 1e-6);
        assert_eq!(results[1][..width], stored[2 * width..], "{dtype}");
        assert!(results[1][width..2 * width].iter().all(|v| *v == 0.0));
        assert_eq!(results[1][2 * width..], stored[..width], "{dtype}");
    }
}

#[test]
fn mismatched_shapes_are_refused_by_operation() {
    let mut g = Graph::new();
    let mut source =
        |name: &str, dtype, shape: &[usize]| g.source(Class::Mailbox, name, dtype, shape).unwrap();
    let x = source("x", DType::F32, &[2, 3]);
    let y = source("y", DType::F32, &[4, 5]);
    let n = source("n", DType::I32, &[2]);
    let q = source("q", DType::Q8_0, &[2, 32]);
    let h = source("h", DType::F16, &[2, 3]);
    let (b, b2) = (source("b", DType::I8, &[2, 3]), source("b2", DType::U8, &[2, 3]));
    let refused = [
        (g.source(Class::Mailbox, "x", DType::F32, &[3, 2]), "`x` is declared twice"),
        (g.reshape(x, &[5]), "reshape"),
        (g.permute(x, &[0, 0]), "permute"),
        (g.permute(x, &[0]), "permute"),
        (g.expand(x, &[2, 6]), "expand"),
        (g.expand(x, &[3]), "expand"),
        (g.slice(x, 1, 2, 2), "slice"),
        (g.slice(x, 0, usize::MAX, 2), "slice"),
        (g.slice(x, 2, 0, 1), "slice"),
        (g.pad(x, 2, 1, 1), "pad"),
        (g.pad(q, 0, 1, 1), "pad: Q8_0"),
        (g.reduce(Reduce::Sum, x, 2), "reduce"),
        (g.reduce(Reduce::Sum, q, 0), "reduce: Q8_0"),
        (g.unary(Unary::Exp, n), "unary: I32"),
        (g.binary(Binary::Add, x, y), "expand"),
        (g.binary(Binary::Add, q, q), "binary: Q8_0"),
        (g.binary(Binary::Add, n, x), "binary: F32"),
        (g.binary(Binary::And, x, x), "binary: F32"),
        (g.select(n, x, x), "where: I32"),
        (g.select(x, x, n), "where: I32"),
        (g.window(x, 1, Window::of(4)), "window"),
        (g.flip(x, 2), "flip"),
        (g.scatter_add(&[5], &[n, n], x), "scatter_add"),
        (g.scatter_add(&[5], &[x], x), "scatter_add"),
        (g.binary(Binary::Add, x, b), "binary: I32"),
        (g.scatter(b, &[n], n), "scatter"),
        (g.assign(b, b2), "assign: U8"),
        (g.cast(q, DType::F32), "cast: Q8_0"),
        (g.cast(x, DType::Q4_K), "cast: Q4_K"),
        (g.matmul(x, y), "matmul"),
        (g.matmul(n, x), "matmul: I32"),
        (g.gather(x, &[]), "gather"),
        (g.gather(x, &[x]), "gather"),
        (g.gather(n, &[n, n]), "gather"),
        (g.scatter(x, &[n], y), "scatter"),
        (g.scatter(h, &[n], x), "scatter: F32"),
        (g.assign(n, x), "assign"),
        (g.assign(h, x), "assign: F32"),
    ];
    for (i, (result, message)) in refused.into_iter().enumerate() {
        let error = result.expect_err(message).to_string();
        assert!(error.contains(message), "{i}: `{error}` does not say `{message}`");
    }
}

#[test]
fn products_read_transposed_operands_as_copies() {
    let mut case = Case::new();
    let x = case.float(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let backward = case.g.flip(x, 1).unwrap();
    let around = case.g.flip(backward, 0).unwrap();
    let rest = case.g.slice(backward, 1, 1, 2).unwrap();
    let product = case.g.matmul(x, backward).unwrap();
    let ids = case.int(&[1]);
    let taken = case.g.gather(around, &[ids]).unwrap();
    let have = case.run(&[backward, around, rest, product, taken]);
    assert_eq!(have[0], [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]);
    assert_eq!(have[1], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]);
    assert_eq!(have[2], [2.0, 1.0, 5.0, 4.0]);
    assert_eq!(have[3], [10.0, 28.0, 28.0, 73.0]);
    assert_eq!(have[4], [3.0, 2.0, 1.0]);
}

#[test]
fn views_outside_their_buffer_and_backward_products_are_refused() {
    let mut g = Graph::new();
    let x = g.source(Class::Mailbox, "x", DType::F32, &[2, 3]).unwrap();
    let product = g.matmul(x, x).unwrap();
    let negated = g.unary(Unary::Neg, x).unwrap();
    g.output("product", product);
    g.output("negated", negated);
    let plan = g.lower(plan::Bucket::decode(1, 16)).unwrap();
    let refused = |at: usize, change: fn(&mut plan::View)| {
        let mut plan = plan.clone();
        match &mut plan.steps[at].op {
            plan::Op::MatMul { a, .. } => change(a),
            plan::Op::Unary { x, .. } => change(x),
            op => unreachable!("{op:?}"),
        }
        plan.validate().map_err(|error| error.to_string())
    };
    let flip = |view: &mut plan::View| *view = view.flip(1);
    assert!(refused(0, flip).unwrap_err().contains("`x` is read in reverse"));
    assert_eq!(refused(1, flip), Ok(()));
    let out = |view: &mut plan::View| view.strides[1] = -1;
    assert!(refused(1, out).unwrap_err().contains("leaves `x`, which has 6 elements"));
}
