//! Evaluation of models on a device over the chunks of a text. Only the logits of a few rows are
//! kept.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::score::{Mean, Pairs, Prediction};
use super::text::Text;
use device::{Data, Device, Instance, Prepared, RING_STEPS, Request};
use model::{KvLayout, Model, ports};
use plan::{Bucket, Class, Outputs, Plan, fuse};

/// Rows of a step without logits, and of one with logits for every row.
const SILENT_ROWS: usize = 128;
const SCORED_ROWS: usize = 16;

/// Tokens to decode for the speed, and number of rounds.
const DECODED: usize = 32;
const ROUNDS: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error("the model's graph")]
    Graph(#[from] plan::graph::Error),
    #[error(
        "logits at token {token} of the text are not finite: the model overflows, although its weights are finite"
    )]
    NotFinite { token: usize },
    #[error("stopped")]
    Stopped,
}

/// A model loaded on a device.
pub struct Runner<'a> {
    instance: Box<dyn Instance>,
    silent: (Plan, Prepared),
    scored: (Plan, Prepared),
    decode: (Plan, Prepared),
    vocabulary: usize,
    stop: &'a AtomicBool,
}

impl<'a> Runner<'a> {
    /// Loads a model for chunks of `context` tokens. `progress` receives the bytes read since its
    /// last call.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Stopped`] soon after `stop` was set, here and in all later calls.
    pub fn open(
        model: &Model,
        device: &dyn Device,
        context: usize,
        stop: &'a AtomicBool,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        let layout = KvLayout { slots: 1, context, ring: None };
        let buckets = [
            Bucket::prefill(SILENT_ROWS.min(context), context, Outputs::None),
            Bucket::prefill(SCORED_ROWS.min(context), context, Outputs::All),
            Bucket::decode(1, context),
        ];
        let mut plans = Vec::with_capacity(buckets.len());
        for bucket in buckets {
            plans.push(fuse(&model.plan(layout, bucket)?, device.fusions()));
        }
        let weights: Vec<_> = model.weights().cloned().collect();
        let states = model.states(layout);
        let request = Request { weights: &weights, states: &states, plans: &plans, choices: None };
        let mut instance = device.open(&request)?;
        for weight in &weights {
            let name = &weight.name;
            let read = |at, bytes: &mut [u8]| match stop.load(Ordering::Relaxed) {
                true => Err("stopped".into()),
                false => Ok(model.read_weight(name, at, bytes)?),
            };
            let uploaded = instance.upload(name, &read, progress);
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            uploaded?;
        }
        let mut ready = |plan: &Plan| Ok::<_, Error>((plan.clone(), instance.prepare(plan)?));
        let (silent, scored, decode) = (ready(&plans[0])?, ready(&plans[1])?, ready(&plans[2])?);
        let vocabulary = model.hyperparameters().vocabulary;
        Ok(Self { instance, silent, scored, decode, vocabulary, stop })
    }

    /// Runs one step over consecutive tokens of a chunk.
    fn step(&mut self, tokens: &[u32], position: usize, logits: bool) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let (plan, prepared) = if logits { &self.scored } else { &self.silent };
        let (rows, given) = (plan.bucket.rows(), tokens.len());
        let column = |value: &dyn Fn(usize) -> i32, padding: i32| -> Vec<i32> {
            (0..rows).map(|i| if i < given { value(i) } else { padding }).collect()
        };
        for (name, values) in [
            (ports::TOKENS, column(&|i| tokens[i] as i32, 0)),
            (ports::POSITIONS, column(&|i| (position + i) as i32, 0)),
            (ports::SLOTS, column(&|_| 0, -1)),
        ] {
            if let Some(mailbox) = plan.find(Class::Mailbox, name) {
                self.instance.write(*prepared, mailbox, 0, Data::I32(&values))?;
            }
        }
        let ticket = self.instance.submit(*prepared, 1)?;
        Ok(self.instance.wait(ticket)?)
    }

    /// Returns the first rows of logits of the last step with logits.
    fn logits(&self, rows: usize) -> Result<Vec<Vec<f32>>, Error> {
        let (plan, prepared) = &self.scored;
        let mut all = vec![vec![0.0; self.vocabulary]; rows];
        if let Some(output) = plan.find(Class::Output, ports::LOGITS) {
            for (i, row) in all.iter_mut().enumerate() {
                self.instance.read(*prepared, output, i * self.vocabulary, row)?;
            }
        }
        Ok(all)
    }

    /// Measures tokens per second of decoding one sequence from the beginning: one sample per
    /// round, after an untimed one.
    ///
    /// # Errors
    /// [`Error`]
    pub fn decode(&mut self) -> Result<Vec<f64>, Error> {
        let (plan, prepared) = &self.decode;
        let steps = DECODED.min(plan.bucket.context).min(RING_STEPS as usize);
        let mut speeds = Vec::with_capacity(ROUNDS);
        for round in 0..=ROUNDS {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            for (name, value) in [(ports::TOKENS, 1), (ports::POSITIONS, 0), (ports::SLOTS, 0)] {
                if let Some(mailbox) = plan.find(Class::Mailbox, name) {
                    self.instance.write(*prepared, mailbox, 0, Data::I32(&[value]))?;
                }
            }
            let begin = Instant::now();
            let ticket = self.instance.submit(*prepared, steps as u32)?;
            self.instance.wait(ticket)?;
            if round > 0 {
                speeds.push(steps as f64 / begin.elapsed().as_secs_f64());
            }
        }
        Ok(speeds)
    }
}

/// Evaluates a chunk on all runners. `score` turns their predictions of each token into a value, on
/// several threads. The results are in text order.
fn evaluate<T: Send>(
    runners: &mut [&mut Runner<'_>],
    text: &Text,
    index: usize,
    score: impl Fn(&[Prediction]) -> T + Sync,
) -> Result<Vec<T>, Error> {
    let chunk = text.chunk(index);
    let mut at = 0;
    for tokens in chunk[..text.first()].chunks(SILENT_ROWS) {
        for runner in &mut *runners {
            runner.step(tokens, at, false)?;
        }
        at += tokens.len();
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut scores = Vec::with_capacity(text.context() - text.first());
    // The last token predicts nothing in this chunk.
    for tokens in chunk[text.first()..text.context() - 1].chunks(SCORED_ROWS) {
        let mut logits = Vec::with_capacity(runners.len());
        for runner in &mut *runners {
            runner.step(tokens, at, true)?;
            logits.push(runner.logits(tokens.len())?);
        }
        let row = |row: usize| {
            let of = |rows: &Vec<Vec<f32>>| Prediction::new(&rows[row], chunk[at + row + 1]);
            let all: Option<Vec<Prediction>> = logits.iter().map(of).collect();
            let token = index * text.context() + at + row;
            all.map(|all| score(&all)).ok_or(Error::NotFinite { token })
        };
        let rows: Vec<usize> = (0..tokens.len()).collect();
        thread::scope(|scope| {
            let shares = rows.chunks(tokens.len().div_ceil(threads));
            let work = |share: &[usize]| share.iter().map(|at| row(*at)).collect::<Vec<_>>();
            let running: Vec<_> = shares.map(|share| scope.spawn(move || work(share))).collect();
            for part in running {
                for score in part.join().unwrap_or_else(|panic| resume_unwind(panic)) {
                    scores.push(score?);
                }
            }
            Ok::<_, Error>(())
        })?;
        at += tokens.len();
    }
    Ok(scores)
}

/// Adds the negative log-probability of each scored token of a chunk.
///
/// # Errors
/// [`Error`]; then nothing of the chunk has been added.
pub fn perplexity(
    runner: &mut Runner<'_>,
    text: &Text,
    chunk: usize,
    cost: &mut Mean,
) -> Result<(), Error> {
    let costs = evaluate(&mut [runner], text, chunk, |all| all[0].cost)?;
    costs.into_iter().for_each(|value| cost.add(value));
    Ok(())
}

/// Adds the comparison of a model with its base at each scored token of a chunk.
///
/// # Errors
/// [`Error`]; then nothing of the chunk has been added.
pub fn divergence<'a>(
    base: &mut Runner<'a>,
    model: &mut Runner<'a>,
    text: &Text,
    chunk: usize,
    pairs: &mut Pairs,
) -> Result<(), Error> {
    let all = evaluate(&mut [base, model], text, chunk, |all| all[1].beside(&all[0]))?;
    all.into_iter().for_each(|pair| pairs.add(pair));
    Ok(())
}
