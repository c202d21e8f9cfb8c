//! Op suite: tensor operations, forward and backward, compared with PyTorch's results
//! (tests/data/ops/make.py). Each operation is its own graph and runs on any device.

mod build;

use std::collections::BTreeMap;

use serde::Serialize;

use super::case::{BuildError, Case, Values};
use super::measure::Difference;
use device::{Device, Error};
use plan::graph::Graph;
use plan::{Binary, Bucket, Class, DType, Outputs, Reduce};

const CASES: &str = include_str!("../../../../tests/data/ops/cases.txt");
const EXPECTED: &[u8] = include_bytes!("../../../../tests/data/ops/expected.bin");

/// Largest distance from PyTorch's `f64`, in units of the result's root mean square.
const TOLERANCE: f64 = 2e-5;

/// An operation with its inputs and expected results.
pub struct Op {
    pub category: &'static str,
    /// Operation, inputs and arguments.
    pub name: String,
    case: Case,
    /// Expected result and gradients, by output.
    expected: Vec<(String, Vec<f32>)>,
}

/// Result of an operation on a device.
pub enum Verdict {
    Passed,
    /// The device does not support the operation.
    Skipped(String),
    Failed(String),
}

/// Counts of a category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub passed: usize,
    pub skipped: usize,
    pub failed: usize,
}

/// A device's counts by category, and the failures and skips with their reasons.
#[derive(Debug, Default, Serialize)]
pub struct Tally {
    pub categories: BTreeMap<&'static str, Counts>,
    pub failures: Vec<String>,
    pub skips: Vec<String>,
}

/// Returns all operations of the suite.
///
/// # Errors
/// A graph cannot be built.
pub fn all() -> Result<Vec<Op>, BuildError> {
    let mut left = EXPECTED.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let ops = CASES.lines().map(|line| op(line, &mut left)).collect::<Result<Vec<_>, _>>()?;
    assert!(left.next().is_none(), "expected.bin has values of no case");
    Ok(ops)
}

/// Runs the suite on one device.
///
/// # Errors
/// The device is lost.
pub fn run(ops: &[Op], device: &dyn Device) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    for op in ops {
        let counts = tally.categories.entry(op.category).or_default();
        match op.on(device)? {
            Verdict::Passed => counts.passed += 1,
            Verdict::Skipped(reason) => {
                counts.skipped += 1;
                tally.skips.push(format!("{}: {reason}", op.name));
            }
            Verdict::Failed(reason) => {
                counts.failed += 1;
                tally.failures.push(format!("{}: {reason}", op.name));
            }
        }
    }
    Ok(tally)
}

impl Op {
    /// # Errors
    /// The device is lost.
    pub fn on(&self, device: &dyn Device) -> Result<Verdict, Error> {
        let results = match self.case.run(device) {
            Err(Error::Unsupported { what, .. }) => return Ok(Verdict::Skipped(what)),
            results => results?,
        };
        for (name, want) in &self.expected {
            let Some((_, have)) = results.iter().find(|(have, _)| have == name) else {
                return Ok(Verdict::Failed(format!("{name} is missing from the results")));
            };
            let difference = Difference::of(have, want);
            // An expected zero is compared with the tolerance itself.
            let off = if difference.unlike > 0 {
                f64::INFINITY
            } else {
                difference.max / difference.scale.max(1e-2)
            };
            if off > TOLERANCE {
                let name = name.trim_start_matches("0.");
                return Ok(Verdict::Failed(format!("{name} is off by {off:.1e}")));
            }
        }
        Ok(Verdict::Passed)
    }
}

fn type_of(name: &str) -> DType {
    name.parse().unwrap_or_else(|error| unreachable!("the script writes types: {error}"))
}

/// Numbers from 0 to 1 (exclusive), as in the script.
pub fn unit(seed: u64, n: usize) -> impl Iterator<Item = f64> {
    (0..n as u64).map(move |i| {
        let mut x = (i * 2_654_435_761 + seed * 40_503 + 12_345) & 0xffff_ffff;
        for _ in 0..2 {
            x = ((x ^ (x >> 16)) * 0x045d_9f3b) & 0xffff_ffff;
        }
        f64::from(((x ^ (x >> 16)) >> 8) as u32) / 16_777_216.0
    })
}

/// Parses a line of the script, and takes its values from the front of `expected`.
fn op(line: &'static str, expected: &mut impl Iterator<Item = f32>) -> Result<Op, BuildError> {
    let words: Vec<&str> = line.split(' ').collect();
    let [category, name, inputs, range, numbers, grad] = words[..] else {
        unreachable!("the script writes six words a line")
    };
    let number = |text: &str| -> f64 {
        text.parse().unwrap_or_else(|_| unreachable!("the script writes numbers"))
    };
    let whole = |text: &str| number(text) as usize;
    let listed = |text: &'static str| text.split(',').filter(|word| *word != "-");
    let args: Vec<f64> = listed(numbers).map(number).collect();
    let (low, high) = range.split_once(':').map_or((0.0, 1.0), |(l, h)| (number(l), number(h)));

    let mut g = Graph::new();
    let (mut tensors, mut floats, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (i, input) in listed(inputs).enumerate() {
        let source = format!("x{i}");
        let seed = i as u64 + 1;
        if let Some((count, below)) = input.strip_prefix('i').and_then(|of| of.split_once('<')) {
            let (count, below) = (whole(count), number(below));
            let ints = unit(seed, count).map(|u| (u * below) as i32).collect();
            tensors.push(g.source(Class::Mailbox, &source, DType::I32, &[count])?);
            values.push((source, Values::I32(ints)));
        } else {
            let (dtype, shape) = input.split_once(':').unwrap_or(("f32", input));
            let shape: Vec<usize> =
                if shape == "s" { vec![] } else { shape.split('x').map(whole).collect() };
            let numbers = unit(seed, shape.iter().product());
            let numbers = numbers.map(|u| (low + u * (high - low)) as f32);
            let dtype = type_of(dtype);
            // The host writes no half-precision values.
            let given = if dtype.block_bytes() == 2 { DType::F32 } else { dtype };
            let tensor = g.source(Class::Mailbox, &source, given, &shape)?;
            tensors.push(g.cast(tensor, dtype)?);
            floats.push(tensor);
            values.push((source, Values::of(given, numbers)));
        }
    }
    let (build, kept) = name.split_once('>').map_or((name, None), |(op, to)| (op, Some(to)));
    let mut result = build::build(&mut g, build, &args, &tensors)?;
    if let Some(kept) = kept {
        result = g.cast(result, type_of(kept))?;
    }
    let result = g.cast(result, DType::F32)?;
    let mut outputs = vec![("y".to_owned(), result)];
    if grad == "grad" {
        // Sum of the result's elements, weighted by the script's `weights`.
        let count = g.shape(result).iter().product();
        let numbers = unit(999, count).map(|u| (2.0 * u - 1.0) as f32).collect();
        let weights = g.source(Class::Mailbox, "weights", DType::F32, &[count])?;
        values.push(("weights".into(), Values::F32(numbers)));
        let flat = g.reshape(result, &[count])?;
        let flat = g.binary(Binary::Mul, flat, weights)?;
        let total = g.reduce(Reduce::Sum, flat, 0)?;
        let gradients = g.gradients(total, &floats)?;
        outputs.extend(gradients.into_iter().enumerate().map(|(i, of)| (format!("d{i}"), of)));
    }
    let mut all = Vec::new();
    for (name, tensor) in outputs {
        let count = g.shape(tensor).iter().product();
        all.push((format!("0.{name}"), expected.take(count).collect()));
        g.output(name, tensor);
    }
    let bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };
    let case = Case::of(g.lower(bucket)?, values, BTreeMap::new());
    Ok(Op { category, name: format!("{name} {inputs} {numbers}"), case, expected: all })
}
