//! A case: one step, or a few that share weights and caches, run alone on a device.

use std::collections::BTreeMap;

use device::{Data, Device, Error, Instance, Prepared, Request};
use plan::graph::{Graph, Tensor};
use plan::sample::philox;
use plan::{Bucket, Buffer, Class, DType, Fusions, Plan, fuse, quant};

#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    F32(Vec<f32>),
    I32(Vec<i32>),
    I8(Vec<i8>),
    U8(Vec<u8>),
    Bool(Vec<bool>),
}

impl Values {
    /// Converts numbers to a mailbox type; integers are truncated. Halves are passed as `F32`.
    pub fn of(dtype: DType, numbers: impl Iterator<Item = f32>) -> Self {
        let whole = |number: f32| dtype.stored(number as i32);
        match dtype {
            DType::I32 => Self::I32(numbers.map(whole).collect()),
            DType::I8 => Self::I8(numbers.map(|number| whole(number) as i8).collect()),
            DType::U8 => Self::U8(numbers.map(|number| whole(number) as u8).collect()),
            DType::BOOL => Self::Bool(numbers.map(|number| number != 0.0).collect()),
            _ => Self::F32(numbers.collect()),
        }
    }
}

/// A plan and its inputs: the mailbox contents before it runs.
#[derive(Clone, Debug)]
pub struct CaseStage {
    plan: Plan,
    inputs: Vec<(String, Values)>,
}

/// Plans that run one after the other on the same weights and caches.
#[derive(Clone, Debug)]
pub struct Case {
    pub group: &'static str,
    /// Step, type, shape and values.
    pub name: String,
    /// Largest distance from the reference, in units of the result's root mean square.
    pub tolerance: f64,
    stages: Vec<CaseStage>,
    weights: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Graph(#[from] plan::graph::Error),
    #[error("values of weight `{weight}`")]
    Quantise { weight: String, source: quant::Error },
}

/// Outputs by stage and name; sampled tokens as numbers under `tokens`.
pub type Results = Vec<(String, Vec<f32>)>;

impl Case {
    pub fn new(group: &'static str, name: impl Into<String>, tolerance: f64) -> Self {
        let weights = BTreeMap::new();
        Self { group, name: name.into(), tolerance, stages: Vec::new(), weights }
    }

    /// Creates a case of one plan with its inputs and weights.
    pub fn of(
        plan: Plan,
        inputs: Vec<(String, Values)>,
        weights: BTreeMap<String, Vec<u8>>,
    ) -> Self {
        Self { stages: vec![CaseStage { plan, inputs }], weights, ..Self::new("plan", "", 0.0) }
    }

    /// Adds a stage (one step); `build` creates its graph.
    pub fn stage(
        mut self,
        bucket: Bucket,
        build: impl FnOnce(&mut Sketch<'_>) -> Result<(), BuildError>,
    ) -> Result<Self, BuildError> {
        let mut sketch = Sketch::new(&mut self.weights);
        build(&mut sketch)?;
        let Sketch { g, inputs, .. } = sketch;
        self.stages.push(CaseStage { plan: g.lower(bucket)?, inputs });
        Ok(self)
    }

    /// Returns the plans that a device with these fusions would run.
    pub fn plans(&self, fusions: Fusions) -> impl Iterator<Item = Plan> + '_ {
        self.stages.iter().map(move |stage| fuse(&stage.plan, fusions))
    }

    /// Runs all stages on a device with the fusions that it supports.
    pub fn run(&self, device: &dyn Device) -> Result<Results, Error> {
        self.run_with(device, device.fusions(), 1)
    }

    /// The same with some fusions alone, and all stages `times` times over; the last results count.
    pub fn run_with(
        &self,
        device: &dyn Device,
        fusions: Fusions,
        times: usize,
    ) -> Result<Results, Error> {
        let plans: Vec<Plan> = self.plans(fusions).collect();
        let of = |class: Class| -> Vec<Buffer> {
            let mut found: Vec<Buffer> = Vec::new();
            for buffer in plans.iter().flat_map(|plan| &plan.buffers) {
                if buffer.class == class && found.iter().all(|f| f.name != buffer.name) {
                    found.push(buffer.clone());
                }
            }
            found
        };
        let (weights, states) = (of(Class::Weight), of(Class::State));
        let mut instance = device.open(&Request {
            weights: &weights,
            states: &states,
            plans: &plans,
            choices: None,
        })?;
        let none = Vec::new();
        for weight in &weights {
            let bytes = self.weights.get(&weight.name).unwrap_or(&none);
            instance.upload(&weight.name, bytes, &|_| {})?;
        }
        let prepared =
            plans.iter().map(|plan| instance.prepare(plan)).collect::<Result<Vec<_>, _>>()?;
        let mut results = Vec::new();
        for _ in 0..times {
            results.clear();
            for (i, (stage, plan)) in self.stages.iter().zip(&plans).enumerate() {
                stage.write(&mut *instance, plan, prepared[i])?;
                let ticket = instance.submit(prepared[i], 1)?;
                instance.wait(ticket)?;
                for (at, buffer) in plan.buffers.iter().enumerate() {
                    if buffer.class != Class::Output || buffer.dtype != DType::F32 {
                        continue;
                    }
                    let id = plan::BufferId(at as u32);
                    let mut values = vec![0.0; buffer.elements()];
                    instance.read(prepared[i], id, 0, &mut values)?;
                    results.push((format!("{i}.{}", buffer.name), values));
                }
                let mut tokens = vec![0; plan.bucket.logit_rows()];
                if !tokens.is_empty() {
                    instance.tokens(ticket, 0, &mut tokens)?;
                    let tokens = tokens.into_iter().map(|t| t as f32).collect();
                    results.push((format!("{i}.tokens"), tokens));
                }
            }
        }
        Ok(results)
    }
}

impl CaseStage {
    fn write(
        &self,
        instance: &mut dyn Instance,
        plan: &Plan,
        prepared: Prepared,
    ) -> Result<(), Error> {
        for (name, values) in &self.inputs {
            // The plan omits inputs that no result needs.
            let Some(id) = plan.find(Class::Mailbox, name) else { continue };
            let data = match values {
                Values::F32(values) => Data::F32(values),
                Values::I32(values) => Data::I32(values),
                Values::I8(values) => Data::I8(values),
                Values::U8(values) => Data::U8(values),
                Values::Bool(values) => Data::Bool(values),
            };
            instance.write(prepared, id, 0, data)?;
        }
        Ok(())
    }
}

/// A graph under construction, with the values of its inputs and weights.
pub struct Sketch<'a> {
    pub g: Graph,
    inputs: Vec<(String, Values)>,
    weights: &'a mut BTreeMap<String, Vec<u8>>,
}

impl<'a> Sketch<'a> {
    /// Creates an empty graph; the bytes of its weights go to `weights`.
    pub fn new(weights: &'a mut BTreeMap<String, Vec<u8>>) -> Self {
        Self { g: Graph::new(), inputs: Vec::new(), weights }
    }

    pub fn floats(
        &mut self,
        name: &str,
        shape: &[usize],
        values: Vec<f32>,
    ) -> Result<Tensor, BuildError> {
        self.inputs.push((name.into(), Values::F32(values)));
        Ok(self.g.source(Class::Mailbox, name, DType::F32, shape)?)
    }

    pub fn ints(
        &mut self,
        name: &str,
        shape: &[usize],
        values: Vec<i32>,
    ) -> Result<Tensor, BuildError> {
        self.inputs.push((name.into(), Values::I32(values)));
        Ok(self.g.source(Class::Mailbox, name, DType::I32, shape)?)
    }

    /// Adds an input with host numbers as elements of a type.
    pub fn given(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        numbers: impl Iterator<Item = f32>,
    ) -> Result<Tensor, BuildError> {
        self.inputs.push((name.into(), Values::of(dtype, numbers)));
        Ok(self.g.source(Class::Mailbox, name, dtype, shape)?)
    }

    /// Adds a weight in its stored bytes; stages of a case share weights by name.
    pub fn weight(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        bytes: Vec<u8>,
    ) -> Result<Tensor, BuildError> {
        self.weights.insert(name.into(), bytes);
        Ok(self.g.source(Class::Weight, name, dtype, shape)?)
    }

    pub fn quantised(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        values: &[f32],
    ) -> Result<Tensor, BuildError> {
        let failed = |source| BuildError::Quantise { weight: name.to_owned(), source };
        let mut bytes = vec![0; values.len() / dtype.block_len() * dtype.block_bytes()];
        quant::quantise(dtype, values, &mut bytes).map_err(failed)?;
        self.weight(name, dtype, shape, bytes)
    }

    pub fn cache(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, BuildError> {
        Ok(self.g.source(Class::State, name, dtype, shape)?)
    }
}

/// Returns `n` seeded values from -1 to 1.
pub fn noise(seed: u64, n: usize) -> Vec<f32> {
    let word = |i: usize| philox([(i / 4) as u32, 0, 0, 0], seed)[i % 4];
    (0..n).map(|i| (f64::from(word(i)) / f64::from(u32::MAX) * 2.0 - 1.0) as f32).collect()
}
