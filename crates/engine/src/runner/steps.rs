//! Steps of one model instance: submits them, waits for them in order, and reads their results.
//!
//! A step evaluates a chunk of a prompt, or decodes one token for each of several sequences. A decode plan
//! writes its tokens and positions to the inputs of its next step, so that a step can be submitted before the
//! host has seen the tokens of the one before it.

use std::collections::VecDeque;
use std::ops::Range;

use device::{Data, Error, Instance, MAX_SUBMISSIONS, Ticket};
use plan::{Bucket, Outputs};

use super::prepared::{Mailboxes, PreparedPlan, PreparedPlans, Row, RowEdits};
use crate::Scales;
use crate::heartbeat::Heartbeat;

/// A submitted step.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    plan: usize,
    ticket: Ticket,
    /// Logit rows with a sampled token that the host reads.
    pub(super) sampled: Range<usize>,
    /// Rows that the logits belong to, if they are of one sequence.
    rows: Option<HiddenRows>,
}

/// Rows at consecutive positions of one slot, whose hidden states a nextn draft can start from.
#[derive(Clone, Copy, Debug)]
pub(super) struct HiddenRows {
    slot: u32,
    position: u32,
    rows: u32,
}

impl HiddenRows {
    /// Rows of a decode step, if it has one sequence.
    const fn of_decode(rows: &[Row]) -> Option<Self> {
        match rows {
            [Row { slot, position, .. }] => {
                Some(Self { slot: *slot, position: *position, rows: 1 })
            }
            _ => None,
        }
    }

    /// Index of the row that predicted the token at a position.
    fn predecessor(self, slot: u32, position: u32) -> Option<u32> {
        let row = position.checked_sub(self.position + 1)?;
        (self.slot == slot && row < self.rows).then_some(row)
    }
}

/// A chunk of a prompt, or draft tokens that are verified.
pub(crate) struct Chunk<'a> {
    /// Row of the first token; only its token is ignored.
    pub(crate) start: Row,
    pub(crate) tokens: &'a [u32],
    /// Token behind the last one, if it is known.
    pub(crate) next: Option<u32>,
    pub(crate) outputs: Outputs,
    /// Edits of the logits of the last row.
    pub(crate) edits: &'a RowEdits<'a>,
    /// True if drafts of the nextn layer may follow.
    pub(crate) feeds_nextn: bool,
}

/// Queue of the steps of one instance.
pub(crate) struct Steps {
    pub(super) instance: Box<dyn Instance>,
    plans: PreparedPlans,
    mailboxes: Mailboxes,
    heartbeat: Heartbeat,
    /// Submitted steps that have not been waited for, oldest first.
    in_flight: VecDeque<Step>,
    most_in_flight: usize,
    count: u64,
    /// Rows of the latest finished step, while their hidden states are on the device.
    hidden: Option<HiddenRows>,
    // Reused by every step.
    rows: Vec<Row>,
    sampled: Vec<i32>,
}

impl Steps {
    pub(super) fn new(
        instance: Box<dyn Instance>,
        plans: PreparedPlans,
        (vocabulary, adapters): (usize, usize),
        heartbeat: Heartbeat,
    ) -> Self {
        let widest = plans.widest();
        Self {
            instance,
            plans,
            mailboxes: Mailboxes::new(vocabulary, adapters, widest),
            heartbeat,
            in_flight: VecDeque::with_capacity(MAX_SUBMISSIONS),
            most_in_flight: 0,
            count: 0,
            hidden: None,
            rows: Vec::with_capacity(widest),
            sampled: Vec::with_capacity(widest),
        }
    }

    pub(super) const fn plans(&self) -> &PreparedPlans {
        &self.plans
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Largest number of steps in flight since the previous call.
    pub(super) fn take_most_in_flight(&mut self) -> usize {
        std::mem::take(&mut self.most_in_flight)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Discards the hidden states that a nextn draft could start from.
    pub(super) const fn forget_hidden(&mut self) {
        self.hidden = None;
    }

    fn has_room(&self, steps: usize) -> bool {
        self.in_flight.len() + steps <= MAX_SUBMISSIONS
    }

    fn is_in_flight(&self, plan: usize) -> bool {
        self.in_flight.iter().any(|step| step.plan == plan)
    }

    /// True if the plan of a finished step has been submitted again.
    pub(super) fn is_overwritten(&self, step: &Step) -> bool {
        self.is_in_flight(step.plan)
    }

    pub(super) fn has_edits(&self, step: &Step) -> bool {
        !self.plans.get(step.plan).edited.is_empty()
    }

    fn write_rows(&mut self, plan: usize, rows: &[Row], next: Option<u32>) -> Result<(), Error> {
        let plan = self.plans.get_mut(plan);
        self.mailboxes.write_rows(&mut *self.instance, plan, rows, next)
    }

    fn write_edits(&mut self, plan: usize, edits: &RowEdits<'_>) -> Result<(), Error> {
        let plan = self.plans.get_mut(plan);
        self.mailboxes.write_edits(&mut *self.instance, plan, edits)
    }

    /// Submits consecutive tokens of one sequence. Samples the token behind the last row, or behind each row
    /// with [`Outputs::All`]. May use a narrower plan that also computes the last row's logits, even if nothing reads
    /// them. False if a step must finish first: the queue is full, or results that the host has not read would be
    /// overwritten.
    pub(crate) fn submit_chunk(&mut self, chunk: &Chunk<'_>) -> Result<bool, Error> {
        let Chunk { start, tokens, next, outputs, edits, feeds_nextn } = *chunk;
        let has = |bucket: Bucket| {
            bucket.outputs == outputs || outputs == Outputs::None && bucket.outputs == Outputs::Last
        };
        let of = |bucket: Bucket| bucket.chunk > 1 && has(bucket);
        let adapted = start.adapters != Scales::NONE;
        let Some(plan) = self.plans.narrowest(tokens.len(), adapted, feeds_nextn, of) else {
            let rows = tokens.len();
            return Err(Error::Invalid(format!(
                "no plan for {rows} tokens with {outputs:?} logits"
            )));
        };
        let is_read = self.plans.get(plan).plan.bucket.outputs != Outputs::None;
        if !self.has_room(1) || is_read && self.is_in_flight(plan) {
            return Ok(false);
        }
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        rows.extend(tokens.iter().zip(start.position..).map(|(&token, position)| Row {
            token,
            position,
            ..start
        }));
        let written = self.write_rows(plan, &rows, next);
        self.rows = rows;
        written?;
        self.write_edits(plan, edits)?;
        let sampled = match outputs {
            Outputs::None | Outputs::Hidden => 0..0,
            Outputs::Last => 0..1,
            Outputs::All => 0..tokens.len(),
            Outputs::Deferred | Outputs::Resumed => {
                unreachable!("only decode steps are split before their logits")
            }
        };
        let rows = sampled.len() as u32;
        let position = start.position + tokens.len() as u32 - rows;
        self.submit(plan, sampled, Some(HiddenRows { slot: start.slot, position, rows }))?;
        Ok(true)
    }

    /// Submits the decoding of one token for each row, with adapters if any row uses one. The edits apply until the
    /// rows are submitted again. False if the queue is full.
    pub(crate) fn submit_decode(
        &mut self,
        rows: &[Row],
        edits: &RowEdits<'_>,
        feeds_nextn: bool,
    ) -> Result<bool, Error> {
        let plan = self.decode_plan(rows, Outputs::Last, feeds_nextn)?;
        debug_assert!(!self.is_in_flight(plan), "the host has not seen its tokens yet");
        if !self.has_room(1) {
            return Ok(false);
        }
        if self.plans.get(plan).rows != rows {
            self.write_rows(plan, rows, None)?;
            self.plans.get_mut(plan).rows.extend_from_slice(rows);
        }
        self.write_edits(plan, edits)?;
        self.submit(plan, 0..rows.len(), HiddenRows::of_decode(rows))?;
        Ok(true)
    }

    /// Submits the part of a decode step before its logits, which does not depend on grammar masks.
    /// [`Self::submit_logits`] must follow directly. False if the queue has no room for both.
    pub(crate) fn submit_until_logits(&mut self, rows: &[Row]) -> Result<bool, Error> {
        let plan = self.decode_plan(rows, Outputs::Deferred, true)?;
        if !self.has_room(2) {
            return Ok(false);
        }
        self.write_rows(plan, rows, None)?;
        self.submit(plan, 0..0, None)?;
        Ok(true)
    }

    /// Submits the logits and the sampling of the rows of [`Self::submit_until_logits`].
    pub(crate) fn submit_logits(
        &mut self,
        rows: &[Row],
        edits: &RowEdits<'_>,
        feeds_nextn: bool,
    ) -> Result<(), Error> {
        let plan = self.decode_plan(rows, Outputs::Resumed, feeds_nextn)?;
        self.write_rows(plan, rows, None)?;
        self.write_edits(plan, edits)?;
        self.submit(plan, 0..rows.len(), HiddenRows::of_decode(rows))
    }

    fn decode_plan(
        &self,
        rows: &[Row],
        outputs: Outputs,
        feeds_nextn: bool,
    ) -> Result<usize, Error> {
        let adapted = rows.iter().any(|row| row.adapters != Scales::NONE);
        let decodes = |bucket: Bucket| bucket.chunk == 1 && bucket.outputs == outputs;
        let plan = self.plans.narrowest(rows.len(), adapted, feeds_nextn, decodes);
        plan.ok_or_else(|| Error::Invalid(format!("no plan decodes {} rows", rows.len())))
    }

    /// Submits the latest decode step again, for the tokens that it is going to sample. False if the queue is full.
    pub(crate) fn submit_ahead(&mut self) -> Result<bool, Error> {
        let decodes = |step: &&Step| {
            let Bucket { chunk, outputs, .. } = self.plans.get(step.plan).plan.bucket;
            chunk == 1 && outputs == Outputs::Last
        };
        let Some(step) = self.in_flight.iter().rev().find(decodes).cloned() else {
            unreachable!("run-ahead needs a decode step in flight");
        };
        if !self.has_room(1) {
            return Ok(false);
        }
        let rows = step.rows.map(|rows| HiddenRows { position: rows.position + 1, ..rows });
        self.submit(step.plan, step.sampled, rows)?;
        Ok(true)
    }

    /// Submits up to `most` steps of the nextn layer, which drafts what follows a row. Returns their number: 0 if the
    /// hidden state that predicted the row's token is lost, or another step is in flight.
    pub(super) fn submit_nextn(&mut self, row: Row, most: usize) -> Result<usize, Error> {
        let Some(plan) = self.plans.nextn().filter(|_| self.in_flight.is_empty()) else {
            return Ok(0);
        };
        // The drafts overwrite the hidden states.
        let hidden = self.hidden.take();
        let Some(hidden_row) = hidden.and_then(|rows| rows.predecessor(row.slot, row.position))
        else {
            return Ok(0);
        };
        self.write_rows(plan, &[row], None)?;
        let PreparedPlan { prepared, ports, .. } = self.plans.get(plan);
        if let Some(mailbox) = ports.hidden_row {
            self.instance.write(*prepared, mailbox, 0, Data::I32(&[hidden_row as i32]))?;
        }
        let most = most.min(MAX_SUBMISSIONS);
        for _ in 0..most {
            self.submit(plan, 0..1, None)?;
        }
        Ok(most)
    }

    fn submit(
        &mut self,
        plan: usize,
        sampled: Range<usize>,
        hidden: Option<HiddenRows>,
    ) -> Result<(), Error> {
        let submitted = self.plans.get_mut(plan);
        let hidden = hidden.filter(|_| !submitted.skips_nextn);
        let ticket =
            self.instance.submit(submitted.prepared, 1).inspect_err(|_| submitted.rows.clear())?;
        self.count += u64::from(submitted.plan.bucket.outputs != Outputs::Deferred);
        self.in_flight.push_back(Step { plan, ticket, sampled, rows: hidden });
        self.most_in_flight = self.most_in_flight.max(self.in_flight.len());
        Ok(())
    }

    /// Waits for the oldest step. `tokens` receives the tokens that it sampled, in the order of its rows:
    /// [`NOT_FINITE`](plan::sample::NOT_FINITE) if its logits are not finite.
    pub(super) fn finish(&mut self, tokens: &mut Vec<u32>) -> Result<Step, Error> {
        let Some(step) = self.in_flight.front().cloned() else {
            unreachable!("no step is in flight");
        };
        let plan = self.plans.get_mut(step.plan);
        self.instance.wait(step.ticket).inspect_err(|_| plan.rows.clear())?;
        self.in_flight.pop_front();
        // A step in flight may have overwritten them.
        self.hidden = step.rows.filter(|_| self.in_flight.is_empty());
        self.heartbeat.beat();
        tokens.clear();
        if !step.sampled.is_empty() {
            self.sampled.resize(plan.plan.bucket.logit_rows(), 0);
            self.instance.tokens(step.ticket, 0, &mut self.sampled)?;
            tokens.extend(self.sampled[step.sampled.clone()].iter().map(|&t| t as u32));
        }
        for (row, &token) in plan.rows.iter_mut().zip(&*tokens) {
            *row = Row { token, position: row.position + 1, ..*row };
        }
        Ok(step)
    }

    /// Reads the logits of a row of a finished step, before its plan is submitted again.
    pub(crate) fn logits(&self, step: &Step, row: usize, out: &mut [f32]) -> Result<(), Error> {
        let PreparedPlan { plan, prepared, ports, .. } = self.plans.get(step.plan);
        let Some(logits) = ports.logits else {
            unreachable!("a step of {:?} has no logits", plan.bucket);
        };
        self.instance.read(*prepared, logits, row * out.len(), out)
    }

    /// Reads the hidden state of a row of a finished step, before its plan is submitted again.
    pub(crate) fn hidden(&self, step: &Step, row: usize, out: &mut [f32]) -> Result<(), Error> {
        let PreparedPlan { plan, prepared, ports, .. } = self.plans.get(step.plan);
        let Some(hidden) = ports.hidden else {
            unreachable!("a step of {:?} has no hidden states", plan.bucket);
        };
        self.instance.read(*prepared, hidden, row * out.len(), out)
    }
}
