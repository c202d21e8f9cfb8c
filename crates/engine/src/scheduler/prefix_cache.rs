//! Prefix cache from the scheduler's side: assigns slots and blocks to prompts, restores prefixes from disk, and stores
//! them. [`Slots`](crate::slots) allocates blocks, [`PrefixFiles`] manages the files; this module copies the data.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Scheduler, loaded};
use crate::Request;
use crate::prefix_files::{Kind, PrefixFiles};
use crate::sequence::Sequence;
use crate::slots::{self, Start, WORTH_A_COPY, common_prefix};
use device::{BLOCK, Part};

impl Scheduler {
    /// Places a new prompt among those that wait: behind one that evaluates its prefix too, and otherwise by the number
    /// of tokens that it is going to evaluate.
    pub(super) fn queue_prompt(&self, sequence: &mut Sequence) {
        let (prompt, adapters) = (sequence.prompt(), sequence.request.adapters);
        let running = self.active.iter().filter_map(Sequence::running);
        let cached = self.slots.longest_prefix(prompt, adapters, running);
        let same = self.active.iter().filter(|s| s.in_prompt() && s.request.adapters == adapters);
        let shared = same.map(|s| (common_prefix(s.prompt(), prompt), s));
        let shared = shared.filter(|(prefix, s)| *prefix >= (s.submitted.max(cached) + BLOCK));
        let longest = shared.max_by_key(|(prefix, _)| *prefix);
        sequence.shares_with = longest.map(|(prefix, s)| (s.id, prefix));
        sequence.queue(self.submitted, cached);
    }

    /// Assigns a slot with the longest cached prefix to a prompt. Called at the prompt's turn, so that it finds the prefix
    /// that it shares with the prompts before it. False if a step must finish first: block tables change while the
    /// device is idle.
    pub(super) fn start_prompt(&mut self, at: usize) -> Result<bool, device::Error> {
        let runner = &mut loaded(&mut self.model).runner;
        let sequence = &self.active[at];
        if sequence.slot.is_some() {
            return Ok(true);
        }
        if !self.in_flight.is_empty() {
            return Ok(false);
        }
        let (prompt, lookahead) = (sequence.prompt(), sequence.lookahead());
        let Request { adapters, prompt_logprobs, embed, .. } = sequence.request;
        // Results for every token need all tokens evaluated.
        let whole = prompt_logprobs || embed;
        let usable = |cached: &[u32], written| {
            // The last token is always evaluated, for its logits.
            let common = common_prefix(cached, prompt).min(prompt.len() - 1);
            if !whole && runner.continues(cached.len(), written, common) { common } else { 0 }
        };
        let running = || self.active.iter().filter_map(Sequence::running);
        let divergence = self.slots.divergence(prompt, adapters, running());
        let mut start = self.slots.start(adapters, running(), usable);
        let files = self.prefix_files.as_ref().filter(|_| !whole);
        let mut on_disk = files.map_or(0, |files| files.covers(prompt, adapters));
        if on_disk < start.cached + WORTH_A_COPY {
            on_disk = 0;
        } else if files.is_some_and(PrefixFiles::is_recurrent) {
            // Read the whole prefix, into blocks of its own.
            self.slots.end(start.slot, Vec::new(), adapters, 0);
            start = self.slots.start(adapters, running(), |_, _| 0);
        }
        let Start { mut slot, cached, written, copies } = start;
        self.slots.grow(&mut slot, prompt.len() + lookahead);
        // From here on the sequence owns the slot, even if a copy fails.
        self.active[at].start_prompt(slot, cached, written, on_disk);
        self.active[at].diverged(divergence);
        copies.into_iter().try_for_each(|copy| runner.copy(copy))?;
        runner.map(self.active[at].slot())?;
        if on_disk == 0 {
            self.choose_snapshots(at);
        }
        self.shared.cached_tokens.fetch_add(cached as u64, Ordering::Relaxed);
        Ok(true)
    }

    /// Allocates the blocks that the next decode steps write to. False if a step must finish first.
    pub(super) fn grow(&mut self) -> Result<bool, device::Error> {
        let runner = &mut loaded(&mut self.model).runner;
        for sequence in self.active.iter_mut().filter(|s| !s.in_prompt()) {
            let positions = sequence.position + sequence.lookahead();
            let Some(slot) = &mut sequence.slot else {
                unreachable!("a sequence past its prompt has a slot");
            };
            if self.slots.covers(slot, positions) {
                continue;
            }
            if !self.in_flight.is_empty() {
                return Ok(false);
            }
            self.slots.grow(slot, positions);
            runner.map(slot)?;
        }
        Ok(true)
    }

    /// Reads a prompt's prefix from disk into its slot while no step is in flight. False if blocks are left to read, but
    /// it already `delays_others` for as long as it may.
    pub(super) fn restore(
        &mut self,
        at: usize,
        delays_others: bool,
    ) -> Result<bool, device::Error> {
        let (Some(model), Some(files)) = (&mut self.model, &mut self.prefix_files) else {
            unreachable!("a prefix on disk belongs to the loaded model");
        };
        let runner = &mut model.runner;
        let (sequence, begun) = (&mut self.active[at], Instant::now());
        let (before, adapters) = (sequence.cached, sequence.request.adapters);
        while sequence.read < sequence.on_disk {
            let block = sequence.read / BLOCK;
            let end = (block + 1) * BLOCK;
            let prompt = &sequence.prompt()[..end];
            let Some(bytes) = files.read(prompt, adapters, Kind::Block) else {
                break;
            };
            runner.write_part(slots::part(&sequence.slot().blocks, block), bytes)?;
            sequence.read = end;
            let most = runner.spec().stall;
            let late = !most.is_zero() && begun.elapsed() >= most;
            if delays_others && late && end < sequence.on_disk {
                return Ok(false);
            }
        }
        let (prompt, read) = (sequence.prompt(), sequence.read);
        // Tokens behind a missing or damaged file are evaluated.
        let restored = match files.is_recurrent() {
            false => read,
            true if read < sequence.on_disk => 0,
            true => match files.read(&prompt[..read], adapters, Kind::Recurrent) {
                Some(bytes) => {
                    runner.write_part(Part::Recurrent(sequence.slot().number), bytes)?;
                    read
                }
                None => 0,
            },
        };
        files.touch(&prompt[..restored], adapters);
        sequence.restored(restored);
        let added = (restored - before) as u64;
        self.shared.cached_tokens.fetch_add(added, Ordering::Relaxed);
        self.choose_snapshots(at);
        self.publish_prefix_counts();
        Ok(true)
    }

    /// Chooses the positions of a prompt at which its recurrent state is stored: on disk, and for sequences that share
    /// the prefix.
    fn choose_snapshots(&mut self, at: usize) {
        let (prompt, adapters) = (self.active[at].prompt(), self.active[at].request.adapters);
        let others = self.active.iter().enumerate().filter(|(other, _)| *other != at);
        let running = others.filter_map(|(_, sequence)| sequence.running());
        let fork = self.slots.fork_position(prompt, adapters, running);
        let fork = Some(fork).filter(|fork| *fork >= self.active[at].storable_from() + BLOCK);
        self.active[at].fork = fork;
        let sequence = &mut self.active[at];
        let Request { prompt_logprobs, embed, adapters, .. } = sequence.request;
        if let Some(files) = &self.prefix_files
            && !prompt_logprobs
            && !embed
        {
            let from = sequence.storable_from();
            sequence.snapshots = files.snapshot_positions(sequence.prompt(), adapters, from);
        }
    }

    /// Stores the recurrent state at the current position of a prompt on disk, while no step is in flight.
    pub(super) fn store_snapshot(&mut self, at: usize) -> Result<(), device::Error> {
        let Some(files) = &mut self.prefix_files else {
            unreachable!("`choose_snapshots` chooses positions only for a prefix store");
        };
        let (runner, sequence) = (&mut loaded(&mut self.model).runner, &self.active[at]);
        let tokens = &sequence.prompt()[..sequence.submitted];
        let fill = |out: &mut [u8]| runner.read_part(Part::Recurrent(sequence.slot().number), out);
        files.write(tokens, sequence.request.adapters, Kind::Recurrent, fill)?;
        self.publish_prefix_counts();
        Ok(())
    }

    /// Caches the state of a slot for sequences that share its prefix, while no step is in flight.
    pub(super) fn cache_fork(&mut self, at: usize) -> Result<(), device::Error> {
        let (runner, sequence) = (&mut loaded(&mut self.model).runner, &mut self.active[at]);
        sequence.fork = None;
        let tokens = &sequence.prompt()[..sequence.submitted];
        let copy = self.slots.fork(sequence.slot(), tokens, sequence.request.adapters);
        copy.map_or(Ok(()), |copy| runner.copy(copy))
    }

    /// True if cached blocks wait to be stored on disk.
    pub(super) fn has_blocks_to_store(&self) -> bool {
        self.prefix_files.as_ref().is_some_and(PrefixFiles::writes) && self.slots.has_dirty()
    }

    /// Stores one cached block of a finished sequence on disk, while no step is in flight. False if there is none.
    pub(super) fn store_block(&mut self) -> bool {
        if !self.has_blocks_to_store() {
            return false;
        }
        let (Some(model), Some(files), Some(cached)) =
            (&mut self.model, &mut self.prefix_files, self.slots.oldest_dirty())
        else {
            return false;
        };
        let adapters = cached.adapters;
        let Some(block) = files.missing(&cached.tokens, adapters) else {
            cached.dirty = false;
            files.touch(&cached.tokens, adapters);
            return true;
        };
        let tokens = &cached.tokens[..(block + 1) * BLOCK];
        let part = slots::part(&cached.blocks, block);
        let fill = |out: &mut [u8]| model.runner.read_part(part, out);
        let read = files.write(tokens, adapters, Kind::Block, fill);
        self.publish_prefix_counts();
        if let Err(error) = read {
            self.step_failed(&error);
        }
        true
    }

    pub(super) fn publish_prefix_counts(&self) {
        if let Some(files) = &self.prefix_files {
            *self.shared.prefixes.lock() = files.counts();
        }
    }
}
