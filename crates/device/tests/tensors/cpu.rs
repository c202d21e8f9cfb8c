//! What the CPU does with products of any operands, what it refuses, and the model in `f64`.

use super::Draw;
use super::case::{Case, noise};
use super::model::Model;
use super::programs::{BUCKET, assert_same, case, grow};
use device::cpu::Cpu;
use device::reference::Reference;
use plan::graph::Graph;
use plan::{Binary, Class, DType, Fusions, Reduce};

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

/// A square matrix of weights looks whole when it is turned, and is not.
#[test]
fn weights_that_are_turned_are_read_across() {
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
