//! Training on a device: the plan of a step, that of an evaluation, and those that bring parameters in and out. All share
//! their states by name; a step is one submission of a recorded plan.

use device::{Data, Device, Instance, Prepared, Request};
use plan::graph::{Graph, Tensor};
use plan::{Bucket, Buffer, BufferId, Class, DType, Outputs, Plan, fuse};

use super::layers::{Kept, Net};
use super::optimiser::Optimiser;

/// Plans of tensors have no rows of tokens.
const BUCKET: Bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Graph(#[from] plan::graph::Error),
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error("there is no {what} `{name}`; there are: {}", .known.join(", "))]
    Unknown { what: &'static str, name: String, known: Vec<String> },
    #[error("`{name}` has {want} values, {have} are given")]
    Length { name: String, want: usize, have: usize },
}

/// What the host writes before a step, by name.
pub type Input<'a> = (&'a str, Data<'a>);

/// A network on a device, with its plans.
pub struct Trainer {
    instance: Box<dyn Instance>,
    step: Entry,
    evaluate: Entry,
    load: Entry,
    save: Entry,
    kept: Vec<Kept>,
}

/// A plan, and the instance's number of it.
struct Entry {
    plan: Plan,
    prepared: Prepared,
}

impl Trainer {
    /// A network whose loss, `[1]`, is what `loss` draws, and whose answer is what `answer` draws; both of the same
    /// layers. Parameters begin as their layers say, by `seed`.
    ///
    /// # Errors
    /// The graph is not well formed, or the device cannot run it.
    pub fn new(
        device: &dyn Device,
        optimiser: Optimiser,
        seed: u64,
        loss: impl FnOnce(&mut Net) -> plan::graph::Result,
        answer: impl FnOnce(&mut Net) -> plan::graph::Result,
    ) -> Result<Self, Failure> {
        let mut training = Net::new(true);
        let of = loss(&mut training)?;
        optimiser.step(&mut training, of)?;
        training.g.output("loss", of);
        let mut evaluation = Net::new(false);
        let result = answer(&mut evaluation)?;
        evaluation.g.output("answer", result);
        let mut kept = training.kept;
        for other in evaluation.kept {
            if kept.iter().all(|kept| kept.name != other.name) {
                kept.push(other);
            }
        }
        let (load, save) = (moves(&kept, true)?, moves(&kept, false)?);
        let mut plans = Vec::new();
        for graph in [&training.g, &evaluation.g, &load, &save] {
            plans.push(fuse(&graph.lower(BUCKET)?, device.fusions()));
        }
        let states: Vec<Buffer> = kept
            .iter()
            .map(|kept| Buffer {
                name: kept.name.clone(),
                class: Class::State,
                dtype: DType::F32,
                shape: kept.shape.clone(),
            })
            .collect();
        let request = Request { weights: &[], states: &states, plans: &plans, choices: None };
        let mut instance = device.open(&request)?;
        let mut entries = Vec::new();
        for plan in plans {
            let prepared = instance.prepare(&plan)?;
            entries.push(Entry { plan, prepared });
        }
        let [step, evaluate, load, save] = entries
            .try_into()
            .unwrap_or_else(|_| unreachable!("there are as many entries as plans"));
        let mut trainer = Self { instance, step, evaluate, load, save, kept };
        for (i, kept) in trainer.kept.clone().iter().enumerate() {
            let values = kept.init.values(seed.wrapping_add(i as u64), &kept.shape);
            trainer.stage(&kept.name, &values)?;
        }
        trainer.run(|t| &t.load, 1)?;
        Ok(trainer)
    }

    /// One step of training; the loss before it.
    ///
    /// # Errors
    /// An input is not one of the step's, or the device fails.
    pub fn train(&mut self, inputs: &[Input<'_>]) -> Result<f32, Failure> {
        self.train_for(inputs, 1)
    }

    /// So many steps with the same inputs, as one submission; the loss before the last.
    ///
    /// # Errors
    /// As for [`Trainer::train`].
    pub fn train_for(&mut self, inputs: &[Input<'_>], steps: u32) -> Result<f32, Failure> {
        write(&mut *self.instance, &self.step, inputs)?;
        self.run(|t| &t.step, steps)?;
        Ok(self.output(&self.step, "loss")?[0])
    }

    /// What the network answers.
    ///
    /// # Errors
    /// As for [`Trainer::train`].
    pub fn answer(&mut self, inputs: &[Input<'_>]) -> Result<Vec<f32>, Failure> {
        write(&mut *self.instance, &self.evaluate, inputs)?;
        self.run(|t| &t.evaluate, 1)?;
        self.output(&self.evaluate, "answer")
    }

    /// Names and shapes of everything that is remembered: parameters, running means, what the optimiser keeps.
    pub fn states(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.kept.iter().map(|kept| (&*kept.name, &*kept.shape))
    }

    /// Sets states by name; the others stay as they are.
    ///
    /// # Errors
    /// There is none of that name, or it has another number of values.
    pub fn load<'a>(
        &mut self,
        values: impl IntoIterator<Item = (&'a str, &'a [f32])>,
    ) -> Result<(), Failure> {
        let old = self.save()?;
        for (name, values) in &old {
            self.stage(name, values)?;
        }
        for (name, values) in values {
            self.stage(name, values)?;
        }
        self.run(|t| &t.load, 1)
    }

    /// The values of all states by name.
    ///
    /// # Errors
    /// The device fails.
    pub fn save(&mut self) -> Result<Vec<(String, Vec<f32>)>, Failure> {
        self.run(|t| &t.save, 1)?;
        let all = self
            .kept
            .iter()
            .map(|kept| Ok((kept.name.clone(), self.output(&self.save, &kept.name)?)));
        all.collect()
    }

    /// Steps of the plan that a step of training is.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.step.plan
    }

    fn stage(&mut self, name: &str, values: &[f32]) -> Result<(), Failure> {
        write(&mut *self.instance, &self.load, &[(name, Data::F32(values))])
    }

    fn run(&mut self, of: impl Fn(&Self) -> &Entry, steps: u32) -> Result<(), Failure> {
        let prepared = of(self).prepared;
        let ticket = self.instance.submit(prepared, steps)?;
        Ok(self.instance.wait(ticket)?)
    }

    fn output(&self, of: &Entry, name: &str) -> Result<Vec<f32>, Failure> {
        let id = find(&of.plan, Class::Output, "output", name)?;
        let mut values = vec![0.0; of.plan.buffer(id).elements()];
        self.instance.read(of.prepared, id, 0, &mut values)?;
        Ok(values)
    }
}

/// The graph that brings states in from mailboxes, or out to outputs, of the same names.
fn moves(kept: &[Kept], into: bool) -> plan::graph::Result<Graph> {
    let mut g = Graph::new();
    for Kept { name, shape, .. } in kept {
        let state: Tensor = g.source(Class::State, name, DType::F32, shape)?;
        if into {
            let mailbox = g.source(Class::Mailbox, name, DType::F32, shape)?;
            g.assign(state, mailbox)?;
        } else {
            g.output(name.clone(), state);
        }
    }
    Ok(g)
}

fn find(plan: &Plan, class: Class, what: &'static str, name: &str) -> Result<BufferId, Failure> {
    plan.find(class, name).ok_or_else(|| {
        let all = plan.buffers.iter().filter(|buffer| buffer.class == class);
        let known = all.map(|buffer| buffer.name.clone()).collect();
        Failure::Unknown { what, name: name.to_owned(), known }
    })
}

fn write(instance: &mut dyn Instance, to: &Entry, inputs: &[Input<'_>]) -> Result<(), Failure> {
    for &(name, data) in inputs {
        let id = find(&to.plan, Class::Mailbox, "input", name)?;
        let want = to.plan.buffer(id).elements();
        let have = match data {
            Data::F32(values) => values.len(),
            Data::I32(values) => values.len(),
        };
        if have != want {
            return Err(Failure::Length { name: name.to_owned(), want, have });
        }
        instance.write(to.prepared, id, 0, data)?;
    }
    Ok(())
}
