//! Graphs with their expected groups and launches, and the reason for each.

use plan::graph::{Graph, Result, Tensor};
use plan::{Activation, Binary, Class, DType, Reduce, Unary, Window};

/// A graph whose inputs are created on demand.
pub(super) struct Sketch {
    pub(super) g: Graph,
    pub(super) inputs: usize,
}

impl Sketch {
    pub(super) fn x(&mut self, shape: &[usize]) -> Tensor {
        self.inputs += 1;
        let name = format!("x{}", self.inputs);
        self.g.source(Class::Mailbox, &name, DType::F32, shape).unwrap()
    }

    pub(super) fn ints(&mut self, rows: usize) -> Tensor {
        self.g.source(Class::Mailbox, "rows", DType::I32, &[rows]).unwrap()
    }

    pub(super) fn state(&mut self, shape: &[usize]) -> Tensor {
        self.g.source(Class::State, "state", DType::F32, shape).unwrap()
    }

    pub(super) fn other_state(&mut self, shape: &[usize]) -> Tensor {
        self.g.source(Class::State, "other", DType::F32, shape).unwrap()
    }

    pub(super) fn weight(&mut self, shape: &[usize]) -> Tensor {
        self.inputs += 1;
        let name = format!("w{}", self.inputs);
        self.g.source(Class::Weight, &name, DType::F32, shape).unwrap()
    }
}

pub(super) type Plain = fn(&mut Sketch) -> Result<Vec<Tensor>>;

/// Softmax over the rows of a matrix.
fn softmax(g: &mut Graph, x: Tensor) -> Result<Vec<Tensor>> {
    let largest = g.reduce(Reduce::Max, x, 1)?;
    let apart = g.binary(Binary::Sub, x, largest)?;
    let weights = g.unary(Unary::Exp, apart)?;
    let sum = g.reduce(Reduce::Sum, weights, 1)?;
    let share = g.unary(Unary::Recip, sum)?;
    Ok(vec![g.binary(Binary::Mul, weights, share)?])
}

/// Name, graph, groups, number of launches, and the reason for it.
pub(super) type Row = (&'static str, Plain, &'static [&'static str], (usize, &'static str));

pub(super) const CASES: &[Row] = &[
    ("an input", |s| Ok(vec![s.x(&[4])]), &["copy"], (1, "a result is memory of its own")),
    ("a constant", |s| Ok(vec![s.g.constant(1.0)]), &["copy"], (1, "as an input")),
    ("numbers", |s| Ok(vec![s.g.iota(5)]), &["iota"], (1, "they come from nowhere")),
    (
        "numbers and what becomes of them",
        |s| {
            let at = s.g.iota(5);
            let half = s.g.constant(0.5);
            Ok(vec![s.g.binary(Binary::Mul, at, half)?])
        },
        &["iota+mul"],
        (1, "an element's number is known where it is made"),
    ),
    (
        "a view across, as it is put in order",
        |s| {
            let x = s.x(&[4, 6]);
            let x = s.g.permute(x, &[1, 0])?;
            let x = s.g.reshape(x, &[24])?;
            Ok(vec![s.g.unary(Unary::Neg, x)?])
        },
        &["copy+neg"],
        (1, "the copy that the reshape needs is elementwise"),
    ),
    (
        "what no result needs",
        |s| {
            let x = s.x(&[4]);
            let _ = s.g.unary(Unary::Exp, x)?;
            Ok(vec![s.g.unary(Unary::Neg, x)?])
        },
        &["neg"],
        (1, "only what a result needs has steps"),
    ),
    (
        "two results of one pass",
        |s| {
            let x = s.x(&[4]);
            let y = s.g.unary(Unary::Exp, x)?;
            Ok(vec![y, s.g.unary(Unary::Neg, y)?])
        },
        &["exp+neg"],
        (1, "the first is written and stays in a register"),
    ),
    (
        "strangers of one size",
        |s| {
            let (x, y) = (s.x(&[4, 3]), s.x(&[12]));
            Ok(vec![s.g.unary(Unary::Exp, x)?, s.g.unary(Unary::Neg, y)?])
        },
        &["exp+neg"],
        (1, "one loop serves both"),
    ),
    (
        "strangers of other sizes",
        |s| {
            let (x, y) = (s.x(&[4]), s.x(&[5]));
            Ok(vec![s.g.unary(Unary::Exp, x)?, s.g.unary(Unary::Neg, y)?])
        },
        &["exp", "neg"],
        (2, "a loop has one number of elements"),
    ),
    (
        "a choice",
        |s| {
            let (x, zero) = (s.x(&[4]), s.g.constant(0.0));
            let negative = s.g.binary(Binary::LessEqual, x, zero)?;
            Ok(vec![s.g.select(negative, zero, x)?])
        },
        &["lessequal+where"],
        (1, "a comparison and what is chosen by it are elementwise"),
    ),
    (
        "halves and back",
        |s| {
            let x = s.x(&[4]);
            let half = s.g.cast(x, DType::F16)?;
            Ok(vec![s.g.cast(half, DType::F32)?])
        },
        &["cast+cast"],
        (1, "a cast is elementwise"),
    ),
    (
        "two reductions in a row",
        |s| {
            let x = s.x(&[4, 6]);
            let x = s.g.reduce(Reduce::Sum, x, 1)?;
            Ok(vec![s.g.reduce(Reduce::Sum, x, 0)?])
        },
        &["reduce-sum", "reduce-sum"],
        (2, "the second reads results of other elements than its own"),
    ),
    (
        "two reductions of one tensor",
        |s| {
            let x = s.x(&[4, 6]);
            Ok(vec![s.g.reduce(Reduce::Sum, x, 1)?, s.g.reduce(Reduce::Max, x, 1)?])
        },
        &["reduce-sum", "reduce-max"],
        (2, "a group has one reduction"),
    ),
    (
        "a mean square",
        |s| {
            let x = s.x(&[4, 6]);
            let square = s.g.binary(Binary::Mul, x, x)?;
            let sum = s.g.reduce(Reduce::Sum, square, 1)?;
            let sixth = s.g.constant(1.0 / 6.0);
            let mean = s.g.binary(Binary::Mul, sum, sixth)?;
            Ok(vec![s.g.unary(Unary::Sqrt, mean)?])
        },
        &["mul+reduce-sum+mul+sqrt"],
        (1, "what is before and behind a reduction goes with it"),
    ),
    (
        "a reduction across what a chain gave",
        |s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(Unary::Exp, x)?;
            let y = s.g.permute(y, &[1, 0])?;
            Ok(vec![s.g.reduce(Reduce::Sum, y, 1)?])
        },
        &["exp", "reduce-sum"],
        (2, "a row of the other order is a look at other elements"),
    ),
    (
        "columns, after a chain",
        |s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(Unary::Exp, x)?;
            Ok(vec![s.g.reduce(Reduce::Sum, y, 0)?])
        },
        &["exp+reduce-sum"],
        (1, "a reduction over any axis takes a chain in its order"),
    ),
    (
        "a value that is reduced and given out",
        |s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(Unary::Exp, x)?;
            Ok(vec![y, s.g.reduce(Reduce::Sum, y, 1)?])
        },
        &["exp+reduce-sum"],
        (1, "the chain's value is written as it is reduced"),
    ),
    (
        "RMS norm",
        |s| {
            let (x, w) = (s.x(&[4, 6]), s.x(&[6]));
            Ok(vec![s.g.rms_norm(x, w, 1e-5)?])
        },
        &["mul+reduce-sum+mul+add+sqrt+recip", "mul+mul"],
        (1, "the row is read again when its sum is whole; a GPU has a kernel for both"),
    ),
    (
        "an activation",
        |s| {
            let x = s.x(&[4, 6]);
            Ok(vec![s.g.activate(Activation::Silu, x)?])
        },
        &["neg+exp+add+recip+mul"],
        (1, "elementwise all"),
    ),
    (
        "GELU",
        |s| {
            let x = s.x(&[4, 6]);
            Ok(vec![s.g.activate(Activation::Gelu, x)?])
        },
        &["mul+mul+add+mul+neg+exp+add+recip+mul"],
        (1, "elementwise all"),
    ),
    (
        "a gated unit",
        |s| {
            let (gate, up) = (s.x(&[4, 6]), s.x(&[4, 6]));
            Ok(vec![s.g.glu(Activation::Silu, gate, up)?])
        },
        &["neg+exp+add+recip+mul+mul"],
        (1, "elementwise all"),
    ),
    (
        "a product of matrices",
        |s| {
            let (x, y) = (s.x(&[4, 6]), s.x(&[3, 6]));
            Ok(vec![s.g.matmul(x, y)?])
        },
        &["matmul"],
        (1, "a product is a group by itself"),
    ),
    (
        "a linear layer",
        |s| {
            let (x, w, b) = (s.x(&[4, 6]), s.x(&[3, 6]), s.x(&[3]));
            let y = s.g.matmul(x, w)?;
            let y = s.g.bias(y, b)?;
            Ok(vec![s.g.activate(Activation::Silu, y)?])
        },
        &["matmul", "add+neg+exp+add+recip+mul"],
        (
            3,
            "what follows a product is a pass of its own; a GPU has kernels for bias and activation",
        ),
    ),
    (
        "a product of what a chain gave",
        |s| {
            let (x, y) = (s.x(&[4, 6]), s.x(&[3, 6]));
            let x = s.g.unary(Unary::Neg, x)?;
            Ok(vec![s.g.matmul(x, y)?])
        },
        &["neg", "matmul"],
        (2, "a product reads memory"),
    ),
    (
        "padding, read where it goes",
        |s| {
            let x = s.x(&[4, 6]);
            let padded = s.g.pad(x, 1, 1, 1)?;
            Ok(vec![s.g.unary(Unary::Neg, padded)?])
        },
        &["pad+neg"],
        (1, "an element of a padded tensor is one of its operand, or the filling"),
    ),
    (
        "padding of what a chain gave",
        |s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(Unary::Neg, x)?;
            Ok(vec![s.g.pad(y, 1, 1, 1)?])
        },
        &["neg", "pad"],
        (2, "padding looks at another element than its own"),
    ),
    (
        "two after each other",
        |s| {
            let (x, y) = (s.x(&[4]), s.x(&[4]));
            let (x, y) = (s.g.pad(x, 0, 0, 4)?, s.g.pad(y, 0, 4, 0)?);
            Ok(vec![s.g.binary(Binary::Add, x, y)?])
        },
        &["pad+pad+add"],
        (1, "two paddings and their sum are over the same elements"),
    ),
    (
        "windows and their sums",
        |s| {
            let x = s.x(&[20]);
            let seen = s.g.window(x, 0, Window::of(3))?;
            Ok(vec![s.g.reduce(Reduce::Sum, seen, 1)?])
        },
        &["reduce-sum"],
        (1, "windows are a view"),
    ),
    (
        "windows, a factor, their sums",
        |s| {
            let (x, w) = (s.x(&[20]), s.x(&[3]));
            let seen = s.g.window(x, 0, Window::of(3))?;
            let seen = s.g.binary(Binary::Mul, seen, w)?;
            Ok(vec![s.g.reduce(Reduce::Sum, seen, 1)?])
        },
        &["mul+reduce-sum"],
        (1, "a convolution of one channel is a chain and a reduction"),
    ),
    (
        "backward",
        |s| {
            let x = s.x(&[4, 6]);
            let x = s.g.flip(x, 1)?;
            Ok(vec![s.g.unary(Unary::Neg, x)?])
        },
        &["neg"],
        (1, "the opposite order is a view"),
    ),
    (
        "backward, summed",
        |s| {
            let x = s.x(&[4, 6]);
            let y = s.g.flip(x, 0)?;
            let both = s.g.binary(Binary::Add, x, y)?;
            Ok(vec![s.g.reduce(Reduce::Sum, both, 1)?])
        },
        &["add+reduce-sum"],
        (1, "an input is read in any order"),
    ),
    (
        "backward, of what a chain gave",
        |s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(Unary::Neg, x)?;
            let y = s.g.flip(y, 1)?;
            Ok(vec![s.g.unary(Unary::Exp, y)?])
        },
        &["neg", "exp"],
        (2, "the opposite order of the elements is another pass"),
    ),
    (
        "a product of what goes backward",
        |s| {
            let (x, y) = (s.x(&[4, 6]), s.x(&[3, 6]));
            let x = s.g.flip(x, 1)?;
            Ok(vec![s.g.matmul(x, y)?])
        },
        &["copy", "matmul"],
        (2, "products read forward, so it is put in order"),
    ),
    (
        "an activation of what goes backward",
        |s| {
            let x = s.x(&[4, 6]);
            let x = s.g.flip(x, 1)?;
            Ok(vec![s.g.activate(Activation::Silu, x)?])
        },
        &["neg+exp+add+recip+mul"],
        (1, "no fused step goes backward: it stays in primitives"),
    ),
    (
        "rows of a table",
        |s| {
            let (table, rows) = (s.x(&[5, 4]), s.ints(3));
            let taken = s.g.gather(table, &[rows])?;
            Ok(vec![s.g.unary(Unary::Neg, taken)?])
        },
        &["gather", "neg"],
        (2, "which row is read is known when it is read"),
    ),
    (
        "rows added up",
        |s| {
            let (values, rows) = (s.x(&[3, 4]), s.ints(3));
            let values = s.g.unary(Unary::Neg, values)?;
            Ok(vec![s.g.scatter_add(&[5], &[rows], values)?])
        },
        &["neg", "scatter-add"],
        (2, "rows go wherever their indices say"),
    ),
    (
        "the best of each row",
        |s| {
            let x = s.x(&[3, 4]);
            let x = s.g.unary(Unary::Neg, x)?;
            let best = s.g.top_k(x, 2)?;
            Ok(vec![s.g.cast(best, DType::F32)?])
        },
        &["neg", "top-k", "cast"],
        (3, "an order of elements is a look at all of them"),
    ),
    (
        "a state moved on",
        |s| {
            let (state, x) = (s.state(&[4]), s.x(&[4]));
            let next = s.g.binary(Binary::Add, state, x)?;
            s.g.assign(state, next)?;
            Ok(vec![])
        },
        &["add+assign"],
        (1, "each element is read before it is written"),
    ),
    (
        "a state moved on, then read",
        |s| {
            let (state, x) = (s.state(&[4]), s.x(&[4]));
            let next = s.g.binary(Binary::Add, state, x)?;
            let state = s.g.assign(state, next)?;
            Ok(vec![s.g.unary(Unary::Neg, state)?])
        },
        &["add+assign+neg"],
        (1, "what was written is in a register"),
    ),
    (
        "a state that was read across",
        |s| {
            let (state, x) = (s.state(&[2, 2]), s.x(&[2, 2]));
            let across = s.g.permute(state, &[1, 0])?;
            let next = s.g.binary(Binary::Add, across, x)?;
            s.g.assign(state, next)?;
            Ok(vec![])
        },
        &["add", "assign"],
        (2, "an element that another still wants must not be written"),
    ),
    (
        "forty-nine steps",
        |s| {
            let mut x = s.x(&[4]);
            for _ in 0..49 {
                x = s.g.unary(Unary::Neg, x)?;
            }
            Ok(vec![x])
        },
        &[
            "neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg+neg",
            "neg",
        ],
        (3, "a group has at most 48 steps, a launch too, with what it loads and stores"),
    ),
    (
        "the gradient of a sum of squares",
        |s| {
            let x = s.x(&[6]);
            let square = s.g.binary(Binary::Mul, x, x)?;
            let sum = s.g.reduce(Reduce::Sum, square, 0)?;
            s.g.gradients(sum, &[x])
        },
        &["mul+mul+add"],
        (1, "the sum itself is needed by nobody"),
    ),
    (
        "a step down the gradient",
        |s| {
            let (state, x) = (s.state(&[6]), s.x(&[6]));
            let apart = s.g.binary(Binary::Sub, state, x)?;
            let square = s.g.binary(Binary::Mul, apart, apart)?;
            let sum = s.g.reduce(Reduce::Sum, square, 0)?;
            let gradient = s.g.gradients(sum, &[state])?[0];
            let rate = s.g.constant(0.1);
            let by = s.g.binary(Binary::Mul, gradient, rate)?;
            let next = s.g.binary(Binary::Sub, state, by)?;
            s.g.assign(state, next)?;
            Ok(vec![])
        },
        &["sub+mul+mul+add+mul+sub+assign"],
        (1, "the whole step of training is one pass"),
    ),
    (
        "softmax",
        |s| {
            let x = s.x(&[4, 6]);
            softmax(&mut s.g, x)
        },
        &["reduce-max", "sub+exp+reduce-sum+recip", "mul"],
        (3, "the largest and the sum are each whole before the next pass"),
    ),
    (
        "attention over rows",
        |s| {
            let (q, k, v) = (s.x(&[4, 8]), s.x(&[6, 8]), s.x(&[8, 6]));
            let scores = s.g.matmul(q, k)?;
            let scores = s.g.scale(scores, 0.5)?;
            let weights = softmax(&mut s.g, scores)?[0];
            Ok(vec![s.g.matmul(weights, v)?])
        },
        &["matmul", "mul+reduce-max", "sub+exp+reduce-sum+recip", "mul", "matmul"],
        (6, "a softmax between two products; a GPU has a kernel for the scale"),
    ),
    (
        "layer norm",
        |s| {
            let (x, weight, bias) = (s.x(&[4, 8]), s.x(&[8]), s.x(&[8]));
            let eps = plan::Scalar::new(1e-5);
            let norm = plan::Norm { kind: plan::NormKind::Layer, weight, bias: Some(bias), eps };
            Ok(vec![s.g.normalise(x, norm)?])
        },
        &["reduce-sum+mul", "sub+mul+reduce-sum+mul+add+sqrt+recip", "mul+mul+add"],
        (1, "mean and deviation are each whole before the next pass; a GPU has a kernel for all"),
    ),
    (
        "a step with momentum",
        |s| {
            let (weight, speed, gradient) = (s.state(&[6]), s.other_state(&[6]), s.x(&[6]));
            let (kept, rate) = (s.g.constant(0.9), s.g.constant(0.1));
            let slower = s.g.binary(Binary::Mul, speed, kept)?;
            let speed_next = s.g.binary(Binary::Add, slower, gradient)?;
            let speed_next = s.g.assign(speed, speed_next)?;
            let by = s.g.binary(Binary::Mul, speed_next, rate)?;
            let next = s.g.binary(Binary::Sub, weight, by)?;
            s.g.assign(weight, next)?;
            Ok(vec![])
        },
        &["mul+add+assign+mul+sub+assign"],
        (1, "both states are over the same elements"),
    ),
    (
        "some left out",
        |s| {
            let (x, unit) = (s.x(&[4, 6]), s.x(&[4, 6]));
            let (share, larger) = (s.g.constant(0.1), s.g.constant(1.0 / 0.9));
            let kept = s.g.binary(Binary::LessEqual, share, unit)?;
            let kept = s.g.binary(Binary::Mul, kept, larger)?;
            Ok(vec![s.g.binary(Binary::Mul, x, kept)?])
        },
        &["lessequal+mul+mul"],
        (1, "elementwise all"),
    ),
    (
        "an embedding with places",
        |s| {
            let (table, rows, places) = (s.x(&[5, 4]), s.ints(3), s.x(&[3, 4]));
            let taken = s.g.gather(table, &[rows])?;
            let moved = s.g.binary(Binary::Add, taken, places)?;
            Ok(vec![s.g.unary(Unary::Neg, moved)?])
        },
        &["gather", "add+neg"],
        (2, "which row is read is known when it is read"),
    ),
    (
        "whole numbers",
        |s| {
            let rows = s.ints(4);
            let twice = s.g.binary(Binary::Add, rows, rows)?;
            Ok(vec![s.g.cast(twice, DType::F32)?])
        },
        &["add+cast"],
        (1, "of any type, elements become elements"),
    ),
    (
        "halves summed",
        |s| {
            let x = s.x(&[4, 6]);
            let x = s.g.cast(x, DType::F16)?;
            let x = s.g.cast(x, DType::F32)?;
            Ok(vec![s.g.reduce(Reduce::Sum, x, 1)?])
        },
        &["cast+cast+reduce-sum"],
        (1, "a cast goes with what follows"),
    ),
    (
        "a residual",
        |s| {
            let (x, y, w) = (s.x(&[4, 6]), s.x(&[4, 8]), s.x(&[6, 8]));
            let y = s.g.matmul(y, w)?;
            Ok(vec![s.g.binary(Binary::Add, x, y)?])
        },
        &["matmul", "add"],
        (2, "what follows a product is a pass of its own"),
    ),
    (
        "a residual of a weight's product",
        |s| {
            let (x, y, w) = (s.x(&[4, 64]), s.x(&[4, 64]), s.weight(&[64, 64]));
            let y = s.g.matmul(y, w)?;
            Ok(vec![s.g.binary(Binary::Add, x, y)?])
        },
        &["matmul", "add"],
        (1, "a product with a weight adds what it is given"),
    ),
    (
        "a norm and three products of weights",
        |s| {
            let (x, w) = (s.x(&[4, 64]), s.weight(&[64]));
            let x = s.g.rms_norm(x, w, 1e-5)?;
            let all = [s.weight(&[64, 64]), s.weight(&[32, 64]), s.weight(&[32, 64])];
            all.into_iter().map(|weight| s.g.matmul(x, weight)).collect()
        },
        &["mul+reduce-sum+mul+add+sqrt+recip", "mul+mul", "matmul", "matmul", "matmul"],
        (1, "products of one row with weights are one projection, which normalises it"),
    ),
    (
        "a gated unit of weights",
        |s| {
            let (x, gate, up) = (s.x(&[4, 64]), s.weight(&[64, 64]), s.weight(&[64, 64]));
            let (gate, up) = (s.g.matmul(x, gate)?, s.g.matmul(x, up)?);
            Ok(vec![s.g.glu(Activation::Silu, gate, up)?])
        },
        &["matmul", "matmul", "neg+exp+add+recip+mul+mul"],
        (1, "two products of one row with their activation are one projection"),
    ),
];
