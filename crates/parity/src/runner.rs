//! Runner of a model on a device that computes logits one step at a time.

use super::error::Failure;
use device::{Data, Device, Instance, Prepared, Request};
use model::{KvLayout, Model, ports};
use plan::{Bucket, Class, Outputs, Plan, fuse};

/// A token and its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) token: i32,
    pub(super) position: i32,
    pub(super) slot: i32,
}

pub(super) struct Runner {
    instance: Box<dyn Instance>,
    plans: Vec<(Plan, Prepared)>,
    vocabulary: usize,
}

impl Runner {
    /// Loads a model with a plan for each bucket.
    pub(super) fn new(
        device: &dyn Device,
        model: &Model,
        layout: KvLayout,
        buckets: &[Bucket],
    ) -> Result<Self, Failure> {
        let plan = |bucket: &Bucket| Ok(fuse(&model.plan(layout, *bucket)?, device.fusions()));
        let plans = buckets.iter().map(plan).collect::<Result<Vec<_>, Failure>>()?;
        let weights: Vec<_> = model.weights().cloned().collect();
        let states = model.states(layout);
        let request = Request { weights: &weights, states: &states, plans: &plans, choices: None };
        let mut instance = device.open(&request)?;
        for weight in &weights {
            let name = &weight.name;
            let read = |at, bytes: &mut [u8]| Ok(model.read_weight(name, at, bytes)?);
            instance.upload(name, &read, &|_| {})?;
        }
        let prepare = |plan: Plan| Ok((plan.clone(), instance.prepare(&plan)?));
        let plans = plans.into_iter().map(prepare).collect::<Result<_, Failure>>()?;
        Ok(Self { instance, plans, vocabulary: model.hyperparameters().vocabulary })
    }

    /// Number of rows of a bucket's plan.
    pub(super) fn width(&self, bucket: usize) -> usize {
        self.plans[bucket].0.bucket.rows()
    }

    /// Runs one step of a bucket's plan on these rows. Returns the logits of the last row, or of
    /// every row if the plan computes them all.
    pub(super) fn step(&mut self, bucket: usize, rows: &[Row]) -> Result<Vec<Vec<f32>>, Failure> {
        let (plan, prepared) = &self.plans[bucket];
        let column = |value: fn(&Row) -> i32, padding: i32| -> Vec<i32> {
            let given = rows.iter().map(value);
            given.chain(std::iter::repeat(padding)).take(plan.bucket.rows()).collect()
        };
        for (name, values) in [
            (ports::TOKENS, column(|row| row.token, 0)),
            (ports::POSITIONS, column(|row| row.position, 0)),
            (ports::SLOTS, column(|row| row.slot, -1)),
            (ports::LOGIT_ROWS, vec![rows.len() as i32 - 1]),
        ] {
            // A plan with logits for every row has no such mailbox.
            if let Some(mailbox) = plan.find(Class::Mailbox, name) {
                self.instance.write(*prepared, mailbox, 0, Data::I32(&values))?;
            }
        }
        let ticket = self.instance.submit(*prepared, 1)?;
        self.instance.wait(ticket)?;
        let last_only = plan.bucket.outputs == Outputs::Last && plan.bucket.chunk > 1;
        let mut logits = vec![vec![0.0; self.vocabulary]; if last_only { 1 } else { rows.len() }];
        if let Some(output) = plan.find(Class::Output, ports::LOGITS) {
            for (i, row) in logits.iter_mut().enumerate() {
                self.instance.read(*prepared, output, i * self.vocabulary, row)?;
            }
        }
        Ok(logits)
    }

    /// Runs tokens of one sequence from a position on, in as many steps as the bucket's plan needs;
    /// returns the logits after the last one.
    pub(super) fn run(
        &mut self,
        bucket: usize,
        slot: i32,
        position: usize,
        tokens: &[u32],
    ) -> Result<Vec<f32>, Failure> {
        let mut last = Vec::new();
        let width = self.width(bucket);
        for (i, tokens) in tokens.chunks(width).enumerate() {
            let first = position + i * width;
            let row = |(i, &token): (usize, &u32)| Row {
                token: token as i32,
                position: (first + i) as i32,
                slot,
            };
            let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
            last = self.step(bucket, &rows)?.pop().unwrap_or_default();
        }
        Ok(last)
    }
}
