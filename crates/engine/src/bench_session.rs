//! Bench session: greedy sequences for benchmarks, which have a loaded model to themselves.

use super::Scales;
use super::runner::{Chunk, ModelRunner, Row};
use device::Error;
use plan::Outputs;
use plan::sample::{NOT_FINITE, Sampling};

/// Sequences of a benchmark, one for each slot.
pub struct BenchSession<'a> {
    runner: &'a mut ModelRunner,
    sequences: Vec<Sequence>,
    rows: Vec<Row>,
    tokens: Vec<u32>,
    /// Fraction of a wasted step that is left.
    #[cfg(debug_assertions)]
    waste: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    length: usize,
    /// Sampled token that has not been evaluated.
    pending: u32,
}

impl<'a> BenchSession<'a> {
    /// Starts with empty sequences.
    pub fn new(runner: &'a mut ModelRunner) -> Self {
        let slots = runner.slots();
        Self {
            sequences: vec![Sequence::default(); slots],
            rows: Vec::with_capacity(slots),
            tokens: Vec::with_capacity(slots.max(runner.chunk())),
            runner,
            #[cfg(debug_assertions)]
            waste: 0.0,
        }
    }

    /// The model that is measured.
    #[must_use]
    pub const fn model(&self) -> &ModelRunner {
        self.runner
    }

    /// The model that is measured, for what changes it.
    pub const fn runner(&mut self) -> &mut ModelRunner {
        self.runner
    }

    /// Empties all sequences.
    pub fn reset(&mut self) {
        self.sequences.fill(Sequence::default());
    }

    #[must_use]
    pub fn length(&self, slot: usize) -> usize {
        self.sequences.get(slot).map_or(0, |s| s.length)
    }

    /// Appends tokens to a slot's sequence and samples the next token greedily.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the slot does not exist or its context is too small; those of the device.
    pub fn prefill(&mut self, slot: usize, tokens: &[u32]) -> Result<(), Error> {
        let Sequence { length, .. } = self.sequence(slot)?;
        self.check_room(slot, length, tokens.len())?;
        self.runner.settle()?;
        let mut start = Row {
            slot: slot as u32,
            token: 0,
            position: length as u32,
            sampling: Sampling::GREEDY,
            adapters: Scales::NONE,
        };
        let (most, mut in_flight) = (self.runner.chunk(), 0);
        let mut rest = tokens;
        self.tokens.clear();
        while !rest.is_empty() || in_flight > 0 {
            while !rest.is_empty() {
                let outputs = if rest.len() <= most { Outputs::Last } else { Outputs::None };
                let (chunk, tail) = rest.split_at(rest.len().min(most));
                let next = tail.first().copied();
                let chunk =
                    Chunk { start, tokens: chunk, next, outputs, edits: &[], feeds_nextn: true };
                if !self.runner.steps().submit_chunk(&chunk)? {
                    break;
                }
                start.position += chunk.tokens.len() as u32;
                rest = tail;
                in_flight += 1;
            }
            self.runner.finish(&mut self.tokens)?;
            in_flight -= 1;
        }
        if let Some(&pending) = self.tokens.first() {
            self.check_finite()?;
            self.sequences[slot] = Sequence { length: start.position as usize, pending };
        }
        Ok(())
    }

    /// Decodes `steps` tokens greedily for each of the first `slots` sequences, beyond any end of sequence.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a slot does not exist or its context is too small; those of the device.
    pub fn decode(&mut self, slots: usize, steps: u32) -> Result<(), Error> {
        #[cfg(debug_assertions)]
        let steps = steps + self.wasted(steps);
        for slot in 0..slots {
            let length = self.sequence(slot)?.length;
            self.check_room(slot, length, steps as usize)?;
        }
        self.runner.settle()?;
        self.rows.clear();
        self.rows.extend(self.sequences[..slots].iter().zip(0u32..).map(|(s, slot)| Row {
            slot,
            token: s.pending,
            position: s.length as u32,
            sampling: Sampling::GREEDY,
            adapters: Scales::NONE,
        }));
        for step in 0..steps {
            if step == 0 {
                self.runner.steps().submit_decode(&self.rows, &[], true)?;
            }
            if step + 1 < steps {
                self.runner.steps().submit_ahead()?;
            }
            self.runner.finish(&mut self.tokens)?;
            self.check_finite()?;
            for (sequence, &token) in self.sequences.iter_mut().zip(&self.tokens) {
                sequence.length += 1;
                sequence.pending = token;
            }
        }
        Ok(())
    }

    /// Number of extra steps, by which a test makes decoding slower: `ORIND_TEST_WASTE` is their share.
    /// Only in debug builds, whose speed is never reported.
    #[cfg(debug_assertions)]
    fn wasted(&mut self, steps: u32) -> u32 {
        let share = std::env::var("ORIND_TEST_WASTE").ok().and_then(|share| share.parse().ok());
        self.waste += share.unwrap_or(0.0) * f64::from(steps);
        let whole = self.waste.floor();
        self.waste -= whole;
        whole as u32
    }

    /// A model without finite logits is not measured.
    fn check_finite(&self) -> Result<(), Error> {
        if !self.tokens.contains(&NOT_FINITE) {
            return Ok(());
        }
        let what = format!("{}: its logits are not finite", self.runner.model().id);
        Err(Error::Unsupported { device: self.runner.device(), what })
    }

    fn sequence(&self, slot: usize) -> Result<Sequence, Error> {
        let none = || Error::Invalid(format!("slot {slot} of {}", self.sequences.len()));
        self.sequences.get(slot).copied().ok_or_else(none)
    }

    fn check_room(&self, slot: usize, length: usize, more: usize) -> Result<(), Error> {
        let context = self.runner.context();
        if length + more <= context {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "slot {slot} has {length} tokens; {more} more exceed its context of {context}"
        )))
    }
}
