//! What prompts begin with: the blocks that they are given and what those hold already, what the disk has of it, and what is
//! kept for others. [`Slots`](super::super::slots) says whose blocks are whose, [`Prefixes`] what the files say; here
//! the device is told.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Scheduler, core};
use crate::Request;
use crate::prefixes::{Kind, Prefixes};
use crate::sequence::Sequence;
use crate::slots::{self, Start, WORTH_A_COPY, shared};
use device::{BLOCK, Part};

impl Scheduler {
    /// Begins a prompt behind what is held of it, which its slot has from then on. This is asked when its turn has come,
    /// so that a prompt that waited behind one with the same beginning finds that evaluated. False when what is under
    /// way has to be waited for first: blocks change slots while a device is idle.
    pub(super) fn begin_prompt(&mut self, at: usize) -> Result<bool, device::Error> {
        let core = core(&mut self.core);
        let sequence = &self.active[at];
        if sequence.slot.is_some() {
            return Ok(true);
        }
        if !self.under_way.is_empty() {
            return Ok(false);
        }
        let (prompt, ahead) = (sequence.prompt(), sequence.ahead());
        let Request { adapters, prompt_logprobs, embed, .. } = sequence.request;
        // Who wants something of every token has all of them evaluated.
        let whole = prompt_logprobs || embed;
        let usable = |held: &[u32], written| {
            // The last token is evaluated in any case: its logits are wanted.
            let shared = shared(held, prompt).min(prompt.len() - 1);
            if !whole && core.continues(held.len(), written, shared) { shared } else { 0 }
        };
        let running = || self.active.iter().filter_map(Sequence::running);
        let mut start = self.slots.begin(adapters, running(), usable);
        let prefixes = self.prefixes.as_ref().filter(|_| !whole);
        let mut on_disk = prefixes.map_or(0, |prefixes| prefixes.covers(prompt, adapters));
        if on_disk < start.cached + WORTH_A_COPY {
            on_disk = 0;
        } else if prefixes.is_some_and(Prefixes::has_rest) {
            // All of it is read, into blocks of its own.
            self.slots.end(start.slot, Vec::new(), adapters, 0);
            start = self.slots.begin(adapters, running(), |_, _| 0);
        }
        let Start { mut slot, cached, written, copies } = start;
        self.slots.grow(&mut slot, prompt.len() + ahead);
        // Whatever fails from here on, it gives them back.
        self.active[at].begin(slot, cached, written, on_disk);
        copies.into_iter().try_for_each(|copy| core.copy(copy))?;
        core.map(self.active[at].slot())?;
        if on_disk == 0 {
            self.choose_rests(at);
        }
        self.shared.cached_tokens.fetch_add(cached as u64, Ordering::Relaxed);
        Ok(true)
    }

    /// Gives sequences that decode the blocks that their next steps write to. False when what is under way has to be
    /// waited for first.
    pub(super) fn grow(&mut self) -> Result<bool, device::Error> {
        let core = core(&mut self.core);
        for sequence in self.active.iter_mut().filter(|s| !s.in_prompt()) {
            let positions = sequence.position + sequence.ahead();
            let Some(slot) = &mut sequence.slot else {
                unreachable!("a sequence behind its prompt has begun it");
            };
            if self.slots.covers(slot, positions) {
                continue;
            }
            if !self.under_way.is_empty() {
                return Ok(false);
            }
            self.slots.grow(slot, positions);
            core.map(slot)?;
        }
        Ok(true)
    }

    /// Reads what the disk has of a prompt's beginning into its slot. Nothing is under way. False where others have
    /// been held up for long enough and there is more.
    pub(super) fn restore(&mut self, at: usize, held_up: bool) -> Result<bool, device::Error> {
        let (Some(core), Some(prefixes)) = (&mut self.core, &mut self.prefixes) else {
            unreachable!("what is on disk was found in what is loaded");
        };
        let (sequence, begun) = (&mut self.active[at], Instant::now());
        let (before, adapters) = (sequence.cached, sequence.request.adapters);
        while sequence.read < sequence.on_disk {
            let block = sequence.read / BLOCK;
            let end = (block + 1) * BLOCK;
            let prompt = &sequence.prompt()[..end];
            let Some(bytes) = prefixes.read(prompt, adapters, Kind::Block) else {
                break;
            };
            core.write_part(slots::part(&sequence.slot().blocks, block), bytes)?;
            sequence.read = end;
            let late = !core.stall().is_zero() && begun.elapsed() >= core.stall();
            if held_up && late && end < sequence.on_disk {
                return Ok(false);
            }
        }
        let (prompt, read) = (sequence.prompt(), sequence.read);
        // Where something is not what it should be, what follows is evaluated.
        let there = match prefixes.has_rest() {
            false => read,
            true if read < sequence.on_disk => 0,
            true => match prefixes.read(&prompt[..read], adapters, Kind::Rest) {
                Some(bytes) => {
                    core.write_part(Part::Rest(sequence.slot().number), bytes)?;
                    read
                }
                None => 0,
            },
        };
        prefixes.touch(&prompt[..there], adapters);
        sequence.restored(there);
        let spared = (there - before) as u64;
        self.shared.cached_tokens.fetch_add(spared, Ordering::Relaxed);
        self.choose_rests(at);
        self.tell_prefixes();
        Ok(true)
    }

    /// Decides where what a slot has beside blocks is kept while its prompt is evaluated, from where that begins now: on
    /// disk, and for who comes next.
    fn choose_rests(&mut self, at: usize) {
        let (prompt, adapters) = (self.active[at].prompt(), self.active[at].request.adapters);
        let others = self.active.iter().enumerate().filter(|(other, _)| *other != at);
        let running = others.filter_map(|(_, sequence)| sequence.running());
        let parts = self.slots.parts(prompt, adapters, running);
        let fork = Some(parts).filter(|parts| *parts >= self.active[at].keeps_from() + BLOCK);
        self.active[at].fork = fork;
        let sequence = &mut self.active[at];
        let Request { prompt_logprobs, embed, adapters, .. } = sequence.request;
        if let Some(prefixes) = &self.prefixes
            && !prompt_logprobs
            && !embed
        {
            sequence.rests = prefixes.rests(sequence.prompt(), adapters, sequence.keeps_from());
        }
    }

    /// Keeps on disk what a slot has beside its blocks, where its prompt stands now. Nothing is under way.
    pub(super) fn keep_rest(&mut self, at: usize) -> Result<(), device::Error> {
        let Some(prefixes) = &mut self.prefixes else {
            unreachable!("`choose_rests` names places where there is a disk to keep them on");
        };
        let (core, sequence) = (core(&mut self.core), &self.active[at]);
        let tokens = &sequence.prompt()[..sequence.submitted];
        let fill = |out: &mut [u8]| core.read_part(Part::Rest(sequence.slot().number), out);
        prefixes.write(tokens, sequence.request.adapters, Kind::Rest, fill)?;
        self.tell_prefixes();
        Ok(())
    }

    /// Holds what a slot has now for others that begin like its prompt. Nothing is under way.
    pub(super) fn hold_fork(&mut self, at: usize) -> Result<(), device::Error> {
        let (core, sequence) = (core(&mut self.core), &mut self.active[at]);
        sequence.fork = None;
        let tokens = &sequence.prompt()[..sequence.submitted];
        let copy = self.slots.fork(sequence.slot(), tokens, sequence.request.adapters);
        copy.map_or(Ok(()), |copy| core.copy(copy))
    }

    /// Whether there is something to keep on disk.
    pub(super) fn keeps(&self) -> bool {
        self.prefixes.as_ref().is_some_and(Prefixes::writes) && !self.slots.all_kept()
    }

    /// Keeps a block of what a free slot holds on disk, so that it outlives this daemon. Nothing is under way. False
    /// where there is none.
    pub(super) fn keep_block(&mut self) -> bool {
        if !self.keeps() {
            return false;
        }
        let (Some(core), Some(prefixes), Some(held)) =
            (&mut self.core, &mut self.prefixes, self.slots.unkept())
        else {
            return false;
        };
        let adapters = held.adapters;
        let Some(block) = prefixes.missing(&held.tokens, adapters) else {
            held.kept = true;
            prefixes.touch(&held.tokens, adapters);
            return true;
        };
        let tokens = &held.tokens[..(block + 1) * BLOCK];
        let part = slots::part(&held.blocks, block);
        let fill = |out: &mut [u8]| core.read_part(part, out);
        let read = prefixes.write(tokens, adapters, Kind::Block, fill);
        self.tell_prefixes();
        if let Err(error) = read {
            self.step_failed(&error);
        }
        true
    }

    pub(super) fn tell_prefixes(&self) {
        if let Some(prefixes) = &self.prefixes {
            *self.shared.prefixes.lock() = prefixes.counts();
        }
    }
}
