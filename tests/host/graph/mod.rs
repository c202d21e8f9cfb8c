//! The graph and its plans from outside: primitives and composites on the reference device, compared with plain `f64`
//! computations; properties of fusion and the arena for every plan.

mod arena;
mod composites;
mod launches;
mod plans;
mod primitives;

use std::collections::BTreeMap;

use device::reference::Reference;
use parity::case::{Values, noise};
use plan::graph::{Graph, Tensor};
use plan::{Bucket, Class, DType, Fusions, Outputs};

/// A graph under construction, with the values of its inputs.
struct Case {
    g: Graph,
    inputs: Vec<(String, Values)>,
    weights: BTreeMap<String, Vec<u8>>,
}

impl Case {
    fn new() -> Self {
        Self { g: Graph::new(), inputs: vec![], weights: BTreeMap::new() }
    }

    fn float(&mut self, shape: &[usize], values: &[f32]) -> Tensor {
        self.input(DType::F32, shape, Values::F32(values.to_vec()))
    }

    fn int(&mut self, values: &[i32]) -> Tensor {
        self.input(DType::I32, &[values.len()], Values::I32(values.to_vec()))
    }

    fn input(&mut self, dtype: DType, shape: &[usize], values: Values) -> Tensor {
        let name = format!("input{}", self.inputs.len());
        self.inputs.push((name.clone(), values));
        self.g.source(Class::Mailbox, &name, dtype, shape).unwrap()
    }

    /// A state, initially zero.
    fn state(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Tensor {
        self.g.source(Class::State, name, dtype, shape).unwrap()
    }

    /// A weight from its stored bytes.
    fn weight(&mut self, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Tensor {
        let name = format!("w{}", self.weights.len());
        let tensor = self.g.source(Class::Weight, &name, dtype, shape).unwrap();
        self.weights.insert(name, bytes);
        tensor
    }

    /// The values of tensors, which are `F32`, after one step on the reference device.
    fn run(mut self, results: &[Tensor]) -> Vec<Vec<f32>> {
        let names: Vec<String> = (0..results.len()).map(|i| format!("result{i}")).collect();
        for (name, tensor) in names.iter().zip(results) {
            self.g.output(name.clone(), *tensor);
        }
        let bucket = Bucket { outputs: Outputs::None, ..Bucket::decode(1, 16) };
        let plan = self.g.lower(bucket).unwrap();
        let case = parity::case::Case::of(plan, self.inputs, self.weights);
        let values: BTreeMap<_, _> =
            case.run_with(&Reference, Fusions::NONE, 1).unwrap().into_iter().collect();
        names.iter().map(|name| values[&format!("0.{name}")].clone()).collect()
    }
}

fn assert_close(have: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(have.len(), want.len());
    for (i, (h, w)) in have.iter().zip(want).enumerate() {
        assert!(
            (f64::from(*h) - w).abs() <= tolerance * w.abs().max(1.0),
            "element {i}: {h}, {w} expected"
        );
    }
}
