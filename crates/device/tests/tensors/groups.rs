//! What fuses: the groups that steps of tensors run in, one launch each, case by case.

use plan::graph::{Graph, Result, Tensor};
use plan::{Activation, Binary, Bucket, Class, DType, Outputs, Reduce, Unary, Window, schedule};

/// A graph whose inputs are made as they are asked for.
struct Sketch {
    g: Graph,
    inputs: usize,
}

impl Sketch {
    fn x(&mut self, shape: &[usize]) -> Tensor {
        self.inputs += 1;
        let name = format!("x{}", self.inputs);
        self.g.source(Class::Mailbox, &name, DType::F32, shape).unwrap()
    }

    fn ints(&mut self, rows: usize) -> Tensor {
        self.g.source(Class::Mailbox, "rows", DType::I32, &[rows]).unwrap()
    }

    fn state(&mut self, shape: &[usize]) -> Tensor {
        self.g.source(Class::State, "state", DType::F32, shape).unwrap()
    }
}

/// The groups of a graph with these results, by the names of their steps.
fn groups(build: impl FnOnce(&mut Sketch) -> Result<Vec<Tensor>>) -> Vec<String> {
    let mut s = Sketch { g: Graph::new(), inputs: 0 };
    for (i, tensor) in build(&mut s).unwrap().into_iter().enumerate() {
        s.g.output(format!("y{i}"), tensor);
    }
    let bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };
    let plan = s.g.lower(bucket).unwrap();
    schedule(&plan).iter().map(|group| group.name(&plan)).collect()
}

const UNARY: [(Unary, &str); 8] = [
    (Unary::Neg, "neg"),
    (Unary::Exp, "exp"),
    (Unary::Ln, "ln"),
    (Unary::Sqrt, "sqrt"),
    (Unary::Recip, "recip"),
    (Unary::Sin, "sin"),
    (Unary::Cos, "cos"),
    (Unary::Floor, "floor"),
];

const BINARY: [(Binary, &str); 6] = [
    (Binary::Add, "add"),
    (Binary::Sub, "sub"),
    (Binary::Mul, "mul"),
    (Binary::Max, "max"),
    (Binary::Rem, "rem"),
    (Binary::LessEqual, "lessequal"),
];

/// Eight functions in five places each.
#[test]
fn functions_of_one_operand_join_what_is_around_them() {
    for (op, name) in UNARY {
        let twice = groups(|s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(op, x)?;
            Ok(vec![s.g.unary(op, y)?])
        });
        assert_eq!(twice, [format!("{name}+{name}")]);
        let before = groups(|s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(op, x)?;
            Ok(vec![s.g.reduce(Reduce::Sum, y, 1)?])
        });
        assert_eq!(before, [format!("{name}+reduce-sum")]);
        let after = groups(|s| {
            let x = s.x(&[4, 6]);
            let y = s.g.reduce(Reduce::Max, x, 0)?;
            Ok(vec![s.g.unary(op, y)?])
        });
        assert_eq!(after, [format!("reduce-max+{name}")]);
        let across = groups(|s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(op, x)?;
            let y = s.g.permute(y, &[1, 0])?;
            Ok(vec![s.g.unary(op, y)?])
        });
        assert_eq!(across, [name, name], "the other order of the elements is another pass");
        let reshaped = groups(|s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(op, x)?;
            let y = s.g.reshape(y, &[3, 8])?;
            Ok(vec![s.g.unary(op, y)?])
        });
        assert_eq!(reshaped, [format!("{name}+{name}")]);
    }
}

/// Five functions in five places each.
#[test]
fn functions_of_two_operands_join_what_is_around_them() {
    for (op, name) in BINARY {
        let inputs = groups(|s| {
            let (x, y, z) = (s.x(&[4, 6]), s.x(&[6]), s.x(&[4, 1]));
            let y = s.g.binary(op, x, y)?;
            Ok(vec![s.g.binary(op, y, z)?])
        });
        assert_eq!(inputs, [format!("{name}+{name}")], "inputs are broadcast where they are read");
        let own = groups(|s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(Unary::Neg, x)?;
            Ok(vec![s.g.binary(op, y, y)?])
        });
        assert_eq!(own, [format!("neg+{name}")]);
        let repeated = groups(|s| {
            let (x, y) = (s.x(&[4, 6]), s.x(&[6]));
            let y = s.g.unary(Unary::Neg, y)?;
            Ok(vec![s.g.binary(op, x, y)?])
        });
        assert_eq!(repeated, ["neg".to_owned(), name.to_owned()], "a row that is computed is kept");
        let reduced = groups(|s| {
            let x = s.x(&[4, 6]);
            let sum = s.g.reduce(Reduce::Sum, x, 1)?;
            Ok(vec![s.g.binary(op, x, sum)?])
        });
        assert_eq!(reduced, ["reduce-sum".to_owned(), name.to_owned()]);
        let shifted = groups(|s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(Unary::Neg, x)?;
            let (a, b) = (s.g.slice(y, 1, 0, 5)?, s.g.slice(y, 1, 1, 5)?);
            Ok(vec![s.g.binary(op, a, b)?])
        });
        assert_eq!(shifted, ["neg".to_owned(), name.to_owned()]);
    }
}

type Build = fn(&mut Sketch) -> Result<Vec<Tensor>>;

/// What it is, the graph, and its groups.
const CASES: &[(&str, Build, &[&str])] = &[
    ("an input", |s| Ok(vec![s.x(&[4])]), &["copy"]),
    ("a constant", |s| Ok(vec![s.g.constant(1.0)]), &["copy"]),
    ("numbers", |s| Ok(vec![s.g.iota(5)]), &["iota"]),
    (
        "numbers and what becomes of them",
        |s| {
            let at = s.g.iota(5);
            let half = s.g.constant(0.5);
            Ok(vec![s.g.binary(Binary::Mul, at, half)?])
        },
        &["iota+mul"],
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
    ),
    (
        "what no result needs",
        |s| {
            let x = s.x(&[4]);
            let _ = s.g.unary(Unary::Exp, x)?;
            Ok(vec![s.g.unary(Unary::Neg, x)?])
        },
        &["neg"],
    ),
    (
        "two results of one pass",
        |s| {
            let x = s.x(&[4]);
            let y = s.g.unary(Unary::Exp, x)?;
            Ok(vec![y, s.g.unary(Unary::Neg, y)?])
        },
        &["exp+neg"],
    ),
    (
        "strangers of one size",
        |s| {
            let (x, y) = (s.x(&[4, 3]), s.x(&[12]));
            Ok(vec![s.g.unary(Unary::Exp, x)?, s.g.unary(Unary::Neg, y)?])
        },
        &["exp+neg"],
    ),
    (
        "strangers of other sizes",
        |s| {
            let (x, y) = (s.x(&[4]), s.x(&[5]));
            Ok(vec![s.g.unary(Unary::Exp, x)?, s.g.unary(Unary::Neg, y)?])
        },
        &["exp", "neg"],
    ),
    (
        "a choice",
        |s| {
            let (x, zero) = (s.x(&[4]), s.g.constant(0.0));
            let negative = s.g.binary(Binary::LessEqual, x, zero)?;
            Ok(vec![s.g.select(negative, zero, x)?])
        },
        &["lessequal+where"],
    ),
    (
        "halves and back",
        |s| {
            let x = s.x(&[4]);
            let half = s.g.cast(x, DType::F16)?;
            Ok(vec![s.g.cast(half, DType::F32)?])
        },
        &["cast+cast"],
    ),
    (
        "two reductions in a row",
        |s| {
            let x = s.x(&[4, 6]);
            let x = s.g.reduce(Reduce::Sum, x, 1)?;
            Ok(vec![s.g.reduce(Reduce::Sum, x, 0)?])
        },
        &["reduce-sum", "reduce-sum"],
    ),
    (
        "two reductions of one tensor",
        |s| {
            let x = s.x(&[4, 6]);
            Ok(vec![s.g.reduce(Reduce::Sum, x, 1)?, s.g.reduce(Reduce::Max, x, 1)?])
        },
        &["reduce-sum", "reduce-max"],
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
    ),
    (
        "columns, after a chain",
        |s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(Unary::Exp, x)?;
            Ok(vec![s.g.reduce(Reduce::Sum, y, 0)?])
        },
        &["exp+reduce-sum"],
    ),
    (
        "a value that is reduced and given out",
        |s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(Unary::Exp, x)?;
            Ok(vec![y, s.g.reduce(Reduce::Sum, y, 1)?])
        },
        &["exp+reduce-sum"],
    ),
    (
        "RMS norm",
        |s| {
            let (x, w) = (s.x(&[4, 6]), s.x(&[6]));
            Ok(vec![s.g.rms_norm(x, w, 1e-5)?])
        },
        &["mul+reduce-sum+mul+add+sqrt+recip", "mul+mul"],
    ),
    (
        "an activation",
        |s| {
            let x = s.x(&[4, 6]);
            Ok(vec![s.g.activate(Activation::Silu, x)?])
        },
        &["neg+exp+add+recip+mul"],
    ),
    (
        "GELU",
        |s| {
            let x = s.x(&[4, 6]);
            Ok(vec![s.g.activate(Activation::Gelu, x)?])
        },
        &["mul+mul+add+mul+neg+exp+add+recip+mul"],
    ),
    (
        "a gated unit",
        |s| {
            let (gate, up) = (s.x(&[4, 6]), s.x(&[4, 6]));
            Ok(vec![s.g.glu(Activation::Silu, gate, up)?])
        },
        &["neg+exp+add+recip+mul+mul"],
    ),
    (
        "a product of matrices",
        |s| {
            let (x, y) = (s.x(&[4, 6]), s.x(&[3, 6]));
            Ok(vec![s.g.matmul(x, y)?])
        },
        &["matmul"],
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
    ),
    (
        "a product of what a chain gave",
        |s| {
            let (x, y) = (s.x(&[4, 6]), s.x(&[3, 6]));
            let x = s.g.unary(Unary::Neg, x)?;
            Ok(vec![s.g.matmul(x, y)?])
        },
        &["neg", "matmul"],
    ),
    (
        "padding, read where it goes",
        |s| {
            let x = s.x(&[4, 6]);
            let padded = s.g.pad(x, 1, 1, 1)?;
            Ok(vec![s.g.unary(Unary::Neg, padded)?])
        },
        &["pad+neg"],
    ),
    (
        "padding of what a chain gave",
        |s| {
            let x = s.x(&[4, 6]);
            let y = s.g.unary(Unary::Neg, x)?;
            Ok(vec![s.g.pad(y, 1, 1, 1)?])
        },
        &["neg", "pad"],
    ),
    (
        "two after each other",
        |s| {
            let (x, y) = (s.x(&[4]), s.x(&[4]));
            let (x, y) = (s.g.pad(x, 0, 0, 4)?, s.g.pad(y, 0, 4, 0)?);
            Ok(vec![s.g.binary(Binary::Add, x, y)?])
        },
        &["pad+pad+add"],
    ),
    (
        "windows and their sums",
        |s| {
            let x = s.x(&[20]);
            let seen = s.g.window(x, 0, Window::of(3))?;
            Ok(vec![s.g.reduce(Reduce::Sum, seen, 1)?])
        },
        &["reduce-sum"],
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
    ),
    (
        "rows of a table",
        |s| {
            let (table, rows) = (s.x(&[5, 4]), s.ints(3));
            let taken = s.g.gather(table, &[rows])?;
            Ok(vec![s.g.unary(Unary::Neg, taken)?])
        },
        &["gather", "neg"],
    ),
    (
        "rows added up",
        |s| {
            let (values, rows) = (s.x(&[3, 4]), s.ints(3));
            let values = s.g.unary(Unary::Neg, values)?;
            Ok(vec![s.g.scatter_add(&[5], &[rows], values)?])
        },
        &["neg", "scatter-add"],
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
    ),
];

#[test]
fn each_graph_runs_in_the_groups_that_it_should() {
    for (what, build, want) in CASES {
        assert_eq!(groups(build), *want, "{what}");
    }
}
