//! Results of steps: emits tokens, embeddings and log-probabilities, and ends sequences.

use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::decision::Work;
use super::{Scheduler, loaded};
use crate::runner::Step;
use crate::slots::Slot;
use crate::{Event, FinishReason, GenerateError, Scales, first_light};
use model::Pooling;
use plan::Outputs;
use plan::sample::NOT_FINITE;

impl Scheduler {
    /// Waits for the oldest step and emits its results.
    pub(super) fn finish_step(&mut self) -> Result<(), device::Error> {
        let runner = &mut loaded(&mut self.model).runner;
        let finished = runner.finish(&mut self.tokens);
        self.shared.count_steps(runner.step_count(), runner.activity());
        if let Some(mode) = runner.mode() {
            first_light::lowered(runner.device(), mode, &runner.spec().light, &self.shared);
        }
        let step = finished?;
        let now = Instant::now();
        if let Some(Work::UntilLogits) = self.in_flight.front() {
            self.in_flight.pop_front();
            self.stall.done(None, now);
            return Ok(());
        }
        let (alone, mut took) = (self.active.len() == 1, None);
        for sequence in &mut self.active {
            took = sequence.step_time(now, alone);
        }
        match self.in_flight.pop_front() {
            Some(Work::Chunk { id, start, end, outputs, submitted }) => {
                self.stall.done(Some((end - start, submitted)), now);
                if let Some(sequence) = self.active.iter_mut().find(|s| s.id == id) {
                    sequence.prompt_evaluated(took);
                }
                self.finish_chunk(&step, id, start..end, outputs)
            }
            Some(Work::Decode(ids)) => {
                self.stall.done(None, now);
                if let (true, [alone]) = (ids.len() == 1, &mut self.active[..]) {
                    alone.step_done(0, 0, took);
                }
                self.finish_decode(&step, &ids)
            }
            Some(Work::Verify { id, replayed, draft }) => {
                self.stall.done(None, now);
                let sampled = self.tokens.iter().skip(replayed);
                let accepted = draft.iter().zip(sampled).take_while(|(a, b)| a == b).count();
                if let Some(sequence) = self.active.iter_mut().find(|s| s.id == id) {
                    sequence.step_done(draft.len(), accepted, took);
                }
                self.finish_verify(&step, id, replayed..=replayed + accepted, draft.len())
            }
            Some(Work::UntilLogits) | None => unreachable!("each step in flight has its work"),
        }
    }

    fn finish_chunk(
        &mut self,
        step: &Step,
        id: u64,
        part: Range<usize>,
        outputs: Outputs,
    ) -> Result<(), device::Error> {
        let runner = &mut loaded(&mut self.model).runner;
        self.shared.prompt_tokens.fetch_add(part.len() as u64, Ordering::Relaxed);
        let Some(at) = self.active.iter().position(|s| s.id == id) else {
            // Cancelled in the meantime.
            return Ok(());
        };
        let sequence = &mut self.active[at];
        sequence.position = part.end;
        if outputs == Outputs::Hidden {
            return self.finish_hidden(step, at, &part);
        }
        if outputs == Outputs::All {
            if part.start == 0 {
                sequence.prompt_logits(0, None);
            }
            for (row, predicted) in (part.start + 1..=part.end).enumerate() {
                if predicted < sequence.request.prompt.len() {
                    if self.tokens[row] == NOT_FINITE {
                        self.fail_not_finite(at, predicted);
                        return Ok(());
                    }
                    runner.steps().logits(step, row, &mut self.logits)?;
                    sequence.prompt_logits(predicted, Some(&self.logits));
                }
            }
        }
        if sequence.in_prompt() {
            return Ok(());
        }
        sequence.send_prompt_logprobs();
        let row = if outputs == Outputs::All { part.len() - 1 } else { 0 };
        self.emit(step, row, at)
    }

    /// Adds the rows of a chunk to the embedding, and sends it after the last chunk.
    fn finish_hidden(
        &mut self,
        step: &Step,
        at: usize,
        part: &Range<usize>,
    ) -> Result<(), device::Error> {
        let runner = &mut loaded(&mut self.model).runner;
        let Some((width, pooling)) = runner.embedding() else {
            unreachable!("admission checks that the model computes embeddings");
        };
        let sequence = &mut self.active[at];
        let wanted = match pooling {
            Pooling::Mean => part.clone(),
            Pooling::First => part.start..part.end.min(1).max(part.start),
            Pooling::Last if sequence.in_prompt() => part.end..part.end,
            Pooling::Last => part.end - 1..part.end,
        };
        let mut row = vec![0.0; width];
        for position in wanted {
            runner.steps().hidden(step, position - part.start, &mut row)?;
            if !sequence.pool(&row) {
                self.fail_not_finite(at, position);
                return Ok(());
            }
        }
        if !sequence.in_prompt() {
            sequence.send_embedding();
            self.finish(at, FinishReason::Complete);
        }
        Ok(())
    }

    fn finish_decode(&mut self, step: &Step, ids: &[u64]) -> Result<(), device::Error> {
        for (row, id) in ids.iter().enumerate() {
            // A missing sequence has ended; its token of this run-ahead step is dropped.
            if let Some(at) = self.active.iter().position(|s| s.id == *id) {
                self.active[at].position += 1;
                self.emit(step, row, at)?;
            }
        }
        Ok(())
    }

    /// Emits the token behind the newest one, and those behind accepted draft tokens. The rows of rejected tokens are
    /// overwritten later. A recurrent state already contains them: unless all tokens were accepted, the next step
    /// continues from the state before this step.
    fn finish_verify(
        &mut self,
        step: &Step,
        id: u64,
        rows: RangeInclusive<usize>,
        drafted: usize,
    ) -> Result<(), device::Error> {
        let rewinds = loaded(&mut self.model).runner.rewinds();
        let last = rows.start() + drafted;
        for row in rows {
            // The sequence may end within the draft.
            let Some(at) = self.active.iter().position(|s| s.id == id) else { break };
            let sequence = &mut self.active[at];
            sequence.position += 1;
            let keeps_state = rewinds || row == last;
            sequence.replay = if keeps_state { 0 } else { row + 1 };
            self.emit(step, row, at)?;
        }
        Ok(())
    }

    /// Appends the token that was sampled from one row of a step's logits to a sequence.
    pub(super) fn emit(&mut self, step: &Step, row: usize, at: usize) -> Result<(), device::Error> {
        let token = self.tokens[row];
        let runner = &mut loaded(&mut self.model).runner;
        let sequence = &mut self.active[at];
        if token == NOT_FINITE {
            let masked = sequence.adjustment().is_some_and(|adjustment| adjustment.mask.is_some());
            if masked {
                runner.steps().logits(step, row, &mut self.logits)?;
            }
            match sequence.dead_end(&self.logits).filter(|_| masked) {
                Some(error) => self.fail(at, error),
                None => self.fail_not_finite(at, self.active[at].position),
            }
            return Ok(());
        }
        let logits = if sequence.wants_logits() {
            runner.steps().logits(step, row, &mut self.logits)?;
            Some(&self.logits[..])
        } else {
            None
        };
        let token = match logits.map(|logits| sequence.choose(token, logits)) {
            None => token,
            Some(Ok(NOT_FINITE)) => {
                self.fail_not_finite(at, self.active[at].position);
                return Ok(());
            }
            Some(Ok(token)) => token,
            Some(Err(error)) => {
                self.fail(at, error);
                return Ok(());
            }
        };
        let before = sequence.generated();
        let reason = sequence.sampled(token, runner.context(), logits);
        self.shared.count_tokens(sequence.generated() - before);
        if let Some(reason) = reason {
            self.finish(at, reason);
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, at: usize, reason: FinishReason) {
        if let Some(model) = &mut self.model {
            model.speculation.remember(self.active[at].drafts());
        }
        // Steps in flight of a cancelled sequence advance its recurrent state further.
        let ended = reason != FinishReason::Cancelled;
        let sequence = self.active.remove(at);
        let adapters = sequence.request.adapters;
        let (finished, events, slot, (mut tokens, written)) = sequence.finish(reason);
        if !ended && !self.model.as_ref().is_some_and(|model| model.runner.rewinds()) {
            tokens.clear();
        }
        self.release(slot, (tokens, written), adapters);
        // Update counters before the client sees the answer.
        self.shared.finished(Some(finished.total - finished.queued));
        events.send(Event::Finished(finished));
    }

    pub(super) fn finish_all(&mut self, reason: &FinishReason) {
        while !self.active.is_empty() {
            self.finish(0, reason.clone());
        }
    }

    /// Returns the slot of a finished sequence to the prefix cache. A sequence that never ran has none.
    pub(super) fn release(
        &mut self,
        slot: Option<Slot>,
        left: (Vec<u32>, usize),
        adapters: Scales,
    ) {
        self.shared.active.fetch_sub(1, Ordering::Relaxed);
        if let Some(slot) = slot {
            self.slots.end(slot, left.0, adapters, left.1);
        }
        self.publish_cache();
    }

    pub(super) fn fail_active(&mut self, error: &GenerateError) {
        while !self.active.is_empty() {
            self.fail(0, error.clone());
        }
    }

    pub(super) fn fail(&mut self, at: usize, error: GenerateError) {
        let mut sequence = self.active.remove(at);
        self.release(sequence.slot.take(), (Vec::new(), 0), Scales::NONE);
        self.shared.failed();
        sequence.fail(error);
    }

    /// Fails a request whose logits for the token at `position` are not finite.
    pub(super) fn fail_not_finite(&mut self, at: usize, position: usize) {
        let runner = &mut loaded(&mut self.model).runner;
        let (model, gpu) = (runner.model().id.clone(), runner.gpu());
        let error = GenerateError::NotFinite { model, position, gpu };
        tracing::error!(device = runner.device(), %error, "request failed");
        self.fail(at, error);
    }
}
