//! Execution of scheduling decisions: submits the decided step to the device.

use std::time::Instant;

use super::decision::{self, Decode, Turn, Work};
use super::{Scheduler, loaded};
use crate::Request;
use crate::drafts::Draft;
use crate::runner::{Chunk, Row};
use crate::sequence::Sequence;
use plan::Outputs;
use plan::sample::Sampling;

/// Preparation of the next chunk of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preparation {
    /// The chunk can be submitted.
    Ready,
    /// A step must finish first.
    Wait,
    /// Time is up for restoring the prompt from disk; the rest follows after a decode step.
    Restoring,
}

impl Scheduler {
    /// Submits steps until the next one depends on the result of a step in flight, or the device's queue is full.
    pub(super) fn submit(&mut self) -> Result<(), device::Error> {
        if self.in_flight.is_empty() {
            loaded(&mut self.model).runner.settle()?;
        }
        while self.submit_next()? {}
        Ok(())
    }

    fn submit_next(&mut self) -> Result<bool, device::Error> {
        match decision::turn(&self.active, self.chunk_was_last) {
            Turn::Wait => Ok(false),
            Turn::Prompt(at) => match self.prepare_chunk(at)? {
                Preparation::Wait => Ok(false),
                Preparation::Restoring => {
                    self.chunk_was_last = true;
                    Ok(true)
                }
                Preparation::Ready => self.submit_chunk(at),
            },
            Turn::Decode => {
                if !self.grow()? {
                    return Ok(false);
                }
                let context = loaded(&mut self.model).runner.context();
                match decision::decode(&mut self.active, &self.in_flight, context) {
                    None => Ok(false),
                    Some(decode) => self.submit_decode(decode),
                }
            }
        }
    }

    /// Prepares the cache for the next chunk.
    fn prepare_chunk(&mut self, at: usize) -> Result<Preparation, device::Error> {
        if !self.start_prompt(at)? {
            return Ok(Preparation::Wait);
        }
        let delays_others = self.active.iter().any(|s| !s.in_prompt());
        let idle = self.in_flight.is_empty();
        if self.active[at].on_disk > 0 {
            if !idle {
                return Ok(Preparation::Wait);
            }
            if !self.restore(at, delays_others)? {
                return Ok(Preparation::Restoring);
            }
        }
        if self.active[at].snapshots.last() == Some(&self.active[at].submitted) {
            if !idle {
                return Ok(Preparation::Wait);
            }
            self.active[at].snapshots.pop();
            // Running requests do not wait for a snapshot that only later ones may use.
            if !delays_others {
                self.store_snapshot(at)?;
            }
        }
        if self.active[at].fork == Some(self.active[at].submitted) {
            if !idle {
                return Ok(Preparation::Wait);
            }
            self.cache_fork(at)?;
        }
        Ok(Preparation::Ready)
    }

    fn submit_chunk(&mut self, at: usize) -> Result<bool, device::Error> {
        let rows = self.in_flight.iter().map(|work| match work {
            Work::Chunk { start, end, .. } => end - start,
            _ => 0,
        });
        if self.stall.suffices(rows.sum()) {
            return Ok(false);
        }
        let delays_others = self.active.iter().any(|s| !s.in_prompt());
        let runner = &mut loaded(&mut self.model).runner;
        let sequence = &mut self.active[at];
        let start = sequence.submitted;
        let left = sequence.prompt().len() - start;
        let most = if delays_others { self.stall.rows() } else { usize::MAX }.min(runner.chunk());
        let stops = sequence.snapshots.last().into_iter().chain(&sequence.fork);
        let most = stops.fold(most, |most, stop| most.min(stop - start));
        let Request { embed, prompt_logprobs, adapters, .. } = sequence.request;
        let outputs = match (embed, prompt_logprobs, left <= most) {
            (true, ..) => Outputs::Hidden,
            (false, true, _) => Outputs::All,
            (false, false, true) => Outputs::Last,
            (false, false, false) => Outputs::None,
        };
        let end = start + left.min(most).min(runner.largest_chunk(outputs));
        let whole = end == sequence.prompt().len();
        let feeds_nextn = !sequence.prompt_skips_nextn();
        if whole {
            sequence.prepare(runner.vocabulary(), outputs == Outputs::Last);
        }
        let sampling = if whole { sequence.request.sampling } else { Sampling::GREEDY };
        let edits = sequence.adjustment().filter(|_| whole).map(|adjustment| (0, adjustment));
        let (slot, position) = (sequence.slot().number, start as u32);
        let row = Row { slot, token: 0, position, sampling, adapters };
        let prompt = sequence.prompt();
        let (tokens, next) = (&prompt[start..end], prompt.get(end).copied());
        let edits = edits.as_slice();
        let chunk = Chunk { start: row, tokens, next, outputs, edits, feeds_nextn };
        if !runner.steps().submit_chunk(&chunk)? {
            return Ok(false);
        }
        if self.in_flight.is_empty() {
            sequence.step_starts(Instant::now());
        }
        sequence.submitted = end;
        self.submitted += (end - start) as u64;
        self.chunk_was_last = true;
        let (id, submitted) = (sequence.id, Instant::now());
        self.in_flight.push_back(Work::Chunk { id, start, end, outputs, submitted });
        Ok(true)
    }

    fn submit_decode(&mut self, decode: Decode) -> Result<bool, device::Error> {
        let submitted = match decode {
            Decode::Speculate { at, draft } => {
                let draft = self.resolve(at, draft)?;
                if draft.is_empty() && self.active[at].replay == 0 {
                    let masked = self.active[at].masks();
                    self.submit_batch(masked)?
                } else {
                    self.submit_verify(at, draft)?
                }
            }
            Decode::Replay(at) => self.submit_verify(at, Vec::new())?,
            Decode::Batch { masked } => self.submit_batch(masked)?,
            Decode::RunAhead(ids) => {
                let submitted = loaded(&mut self.model).runner.steps().submit_ahead()?;
                submitted.then_some(Work::Decode(ids))
            }
        };
        let Some(work) = submitted else { return Ok(false) };
        self.chunk_was_last = false;
        self.in_flight.push_back(work);
        Ok(true)
    }

    /// Draft tokens of a sequence, from the draft model or nextn layer if they are needed.
    fn resolve(&mut self, at: usize, draft: Draft) -> Result<Vec<u32>, device::Error> {
        match draft {
            Draft::Nothing => Ok(Vec::new()),
            Draft::Lookup(draft) => Ok(draft),
            Draft::Model(most) => {
                let model = loaded(&mut self.model);
                let alone = &mut self.active[at];
                let (sampling, slot) = (alone.request.sampling, alone.slot().number);
                let draft = model.draft(slot, alone.tokens(), sampling, most)?;
                if !model.can_draft() {
                    alone.disable_draft_model();
                }
                Ok(draft)
            }
        }
    }

    fn submit_verify(&mut self, at: usize, draft: Vec<u32>) -> Result<Option<Work>, device::Error> {
        let alone = &self.active[at];
        let tokens = [alone.newest(), &draft].concat();
        let chunk = Chunk {
            start: alone.row(),
            tokens: &tokens,
            next: None,
            outputs: Outputs::All,
            edits: &[],
            feeds_nextn: true,
        };
        let submitted = loaded(&mut self.model).runner.steps().submit_chunk(&chunk)?;
        Ok(submitted.then_some(Work::Verify { id: alone.id, replayed: alone.replay, draft }))
    }

    fn submit_batch(&mut self, masked: bool) -> Result<Option<Work>, device::Error> {
        let runner = &mut loaded(&mut self.model).runner;
        // In slot order: rows move only when the batch changes.
        let mut sequences: Vec<&mut Sequence> =
            self.active.iter_mut().filter(|s| !s.in_prompt()).collect();
        // An expensive grammar delays only its own answer, unless nothing else decodes.
        let late: Vec<u64> =
            sequences.iter_mut().filter_map(|s| s.is_late().then_some(s.id)).collect();
        if late.len() < sequences.len() {
            sequences.retain(|s| !late.contains(&s.id));
        }
        sequences.sort_unstable_by_key(|s| s.slot().number);
        self.rows.clear();
        self.rows.extend(sequences.iter().map(|s| s.row()));
        let feeds_nextn = !sequences.iter().all(|s| s.skips_nextn());
        if masked {
            if !runner.steps().submit_until_logits(&self.rows)? {
                return Ok(None);
            }
            self.in_flight.push_back(Work::UntilLogits);
        }
        sequences.iter_mut().for_each(|s| s.prepare(runner.vocabulary(), true));
        let edits = sequences.iter().enumerate();
        let edits: Vec<_> = edits.filter_map(|(row, s)| Some((row, s.adjustment()?))).collect();
        if masked {
            runner.steps().submit_logits(&self.rows, &edits, feeds_nextn)?;
        } else if !runner.steps().submit_decode(&self.rows, &edits, feeds_nextn)? {
            return Ok(None);
        }
        Ok(Some(Work::Decode(sequences.iter().map(|s| s.id).collect())))
    }
}
