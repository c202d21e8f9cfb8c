//! Training on a device: the plan of a step, that of an evaluation, and those that bring parameters in and out. All share
//! their states by name; a step is one submission of a recorded plan.

use device::{Data, Device};
use plan::Plan;

use super::layers::{Kept, Net};
use super::optimiser::Optimiser;
use super::session::{Failure, Input, Session, moves};

const STEP: usize = 0;
const EVALUATE: usize = 1;
const LOAD: usize = 2;
const SAVE: usize = 3;

/// A network on a device, with its plans.
pub struct Trainer {
    session: Session,
    kept: Vec<Kept>,
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
        let states = || kept.iter().map(|kept| (&*kept.name, &*kept.shape));
        let (load, save) = (moves(states(), true)?, moves(states(), false)?);
        let graphs = [&training.g, &evaluation.g, &load, &save];
        let session = Session::open(device, &[], states(), &graphs)?;
        let mut trainer = Self { session, kept };
        for (i, kept) in trainer.kept.clone().iter().enumerate() {
            let values = kept.init.values(seed.wrapping_add(i as u64), &kept.shape);
            trainer.stage(&kept.name, &values)?;
        }
        trainer.session.run(LOAD, 1)?;
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
        self.session.write(STEP, inputs)?;
        self.session.run(STEP, steps)?;
        Ok(self.session.output(STEP, "loss")?[0])
    }

    /// What the network answers.
    ///
    /// # Errors
    /// As for [`Trainer::train`].
    pub fn answer(&mut self, inputs: &[Input<'_>]) -> Result<Vec<f32>, Failure> {
        self.session.write(EVALUATE, inputs)?;
        self.session.run(EVALUATE, 1)?;
        self.session.output(EVALUATE, "answer")
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
        self.session.run(LOAD, 1)
    }

    /// The values of all states by name.
    ///
    /// # Errors
    /// The device fails.
    pub fn save(&mut self) -> Result<Vec<(String, Vec<f32>)>, Failure> {
        self.session.run(SAVE, 1)?;
        let all = self
            .kept
            .iter()
            .map(|kept| Ok((kept.name.clone(), self.session.output(SAVE, &kept.name)?)));
        all.collect()
    }

    /// Steps of the plan that a step of training is.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.session.plan(STEP)
    }

    fn stage(&mut self, name: &str, values: &[f32]) -> Result<(), Failure> {
        self.session.write(LOAD, &[(name, Data::F32(values))])
    }
}
