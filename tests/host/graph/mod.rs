//! The graph and its plans from outside: primitives and composites against plain `f64`
//! computations, run by the reference device; what fusion and the arena promise about every plan.

mod arena;
mod composites;
mod launches;
mod plans;
mod primitives;

use device::reference::Reference;
use device::{Data, Device, Request};
use plan::graph::{Graph, Tensor};
use plan::sample::philox;
use plan::{Bucket, Class, DType};

/// A graph under construction, with the values of its inputs.
struct Case {
    g: Graph,
    floats: Vec<(String, Vec<f32>)>,
    ints: Vec<(String, Vec<i32>)>,
    weights: Vec<(String, Vec<u8>)>,
}

impl Case {
    fn new() -> Self {
        Self { g: Graph::new(), floats: vec![], ints: vec![], weights: vec![] }
    }

    fn float(&mut self, shape: &[usize], values: &[f32]) -> Tensor {
        let name = format!("f{}", self.floats.len());
        self.floats.push((name.clone(), values.to_vec()));
        self.g.source(Class::Mailbox, &name, DType::F32, shape).unwrap()
    }

    fn int(&mut self, values: &[i32]) -> Tensor {
        let name = format!("i{}", self.ints.len());
        self.ints.push((name.clone(), values.to_vec()));
        self.g.source(Class::Mailbox, &name, DType::I32, &[values.len()]).unwrap()
    }

    /// A state, all zero at first.
    fn state(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Tensor {
        self.g.source(Class::State, name, dtype, shape).unwrap()
    }

    /// A weight from its stored bytes.
    fn weight(&mut self, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Tensor {
        let name = format!("w{}", self.weights.len());
        self.weights.push((name.clone(), bytes));
        self.g.source(Class::Weight, &name, dtype, shape).unwrap()
    }

    /// The values of tensors, which are `F32`, after one step on the reference device.
    fn run(mut self, results: &[Tensor]) -> Vec<Vec<f32>> {
        for (i, tensor) in results.iter().enumerate() {
            self.g.output(format!("result{i}"), *tensor);
        }
        let plan = self.g.lower(Bucket::decode(1, 16)).unwrap();
        let of = |class| plan.buffers.iter().filter(move |b| b.class == class).cloned();
        let (weights, states): (Vec<_>, Vec<_>) =
            (of(Class::Weight).collect(), of(Class::State).collect());
        let plans = [plan];
        let mut instance = Reference
            .open(&Request { weights: &weights, states: &states, plans: &plans, choices: None })
            .unwrap();
        let [plan] = plans;
        for weight in &weights {
            let (_, bytes) = self.weights.iter().find(|(name, _)| *name == weight.name).unwrap();
            instance.upload(&weight.name, bytes, &|_| {}).unwrap();
        }
        let prepared = instance.prepare(&plan).unwrap();
        // Inputs that no result needs are not in the plan.
        let mailbox = |name: &str| plan.find(Class::Mailbox, name);
        for (name, values) in &self.floats {
            if let Some(id) = mailbox(name) {
                instance.write(prepared, id, 0, Data::F32(values)).unwrap();
            }
        }
        for (name, values) in &self.ints {
            if let Some(id) = mailbox(name) {
                instance.write(prepared, id, 0, Data::I32(values)).unwrap();
            }
        }
        let ticket = instance.submit(prepared, 1).unwrap();
        instance.wait(ticket).unwrap();
        let read = |i: usize| {
            let id = plan.find(Class::Output, &format!("result{i}")).unwrap();
            let mut values = vec![0.0; plan.buffer(id).elements()];
            instance.read(prepared, id, 0, &mut values).unwrap();
            values
        };
        (0..results.len()).map(read).collect()
    }
}

/// `n` values between -1 and 1, the same for the same seed.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let word = |i: u32| philox([i, 0, 0, 0], seed)[0];
    (0..n as u32).map(|i| (f64::from(word(i)) / f64::from(u32::MAX) * 2.0 - 1.0) as f32).collect()
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
