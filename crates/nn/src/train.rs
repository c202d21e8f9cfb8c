//! Training on a device. One plan each trains, evaluates, loads and saves; all share their states
//! by name. A training step is one submission of a recorded plan.

use device::{Data, Device};
use plan::Plan;

use super::layers::{Net, State};
use super::optimiser::Optimiser;
use super::session::{Failure, Input, Session, moves};

const STEP: usize = 0;
const EVALUATE: usize = 1;
const LOAD: usize = 2;
const SAVE: usize = 3;

/// A network on a device, with its plans.
pub struct Trainer {
    session: Session,
    states: Vec<State>,
}

impl Trainer {
    /// Prepares a network with the graphs that `loss` (of shape `[1]`) and `answer` build from the
    /// same layers. `seed` determines the parameters' initial values.
    ///
    /// # Errors
    /// A graph is invalid, or the device cannot run it.
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
        let mut states = training.states;
        for other in evaluation.states {
            if states.iter().all(|state| state.name != other.name) {
                states.push(other);
            }
        }
        let shapes = || states.iter().map(|state| (&*state.name, &*state.shape));
        let (load, save) = (moves(shapes(), true)?, moves(shapes(), false)?);
        let graphs = [&training.g, &evaluation.g, &load, &save];
        let session = Session::open(device, &[], shapes(), &graphs)?;
        let mut trainer = Self { session, states };
        for (i, state) in trainer.states.clone().iter().enumerate() {
            let values = state.init.values(seed.wrapping_add(i as u64), &state.shape);
            trainer.stage(&state.name, &values)?;
        }
        trainer.session.run(LOAD, 1)?;
        Ok(trainer)
    }

    /// Runs one training step; returns the loss before it.
    ///
    /// # Errors
    /// There is no such input, or the device fails.
    pub fn train(&mut self, inputs: &[Input<'_>]) -> Result<f32, Failure> {
        self.train_for(inputs, 1)
    }

    /// Runs `steps` steps with the same inputs as one submission; returns the loss before the last.
    ///
    /// # Errors
    /// As for [`Trainer::train`].
    pub fn train_for(&mut self, inputs: &[Input<'_>], steps: u32) -> Result<f32, Failure> {
        self.session.write(STEP, inputs)?;
        self.session.run(STEP, steps)?;
        Ok(self.session.output(STEP, "loss")?[0])
    }

    /// Evaluates the network.
    ///
    /// # Errors
    /// As for [`Trainer::train`].
    pub fn answer(&mut self, inputs: &[Input<'_>]) -> Result<Vec<f32>, Failure> {
        self.session.write(EVALUATE, inputs)?;
        self.session.run(EVALUATE, 1)?;
        self.session.output(EVALUATE, "answer")
    }

    /// Names and shapes of all states: parameters, running means, optimiser moments.
    pub fn states(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.states.iter().map(|state| (&*state.name, &*state.shape))
    }

    /// Sets states by name; the others keep their values.
    ///
    /// # Errors
    /// There is no such state, or it has another number of values.
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

    /// Reads all states by name.
    ///
    /// # Errors
    /// The device fails.
    pub fn save(&mut self) -> Result<Vec<(String, Vec<f32>)>, Failure> {
        self.session.run(SAVE, 1)?;
        let all = self
            .states
            .iter()
            .map(|state| Ok((state.name.clone(), self.session.output(SAVE, &state.name)?)));
        all.collect()
    }

    /// The plan of a training step.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.session.plan(STEP)
    }

    fn stage(&mut self, name: &str, values: &[f32]) -> Result<(), Failure> {
        self.session.write(LOAD, &[(name, Data::F32(values))])
    }
}
