//! Scheduling policy: decides the next step from the state of the sequences and the steps in flight.
//!
//! Chunks of the most urgent prompt alternate with decode steps of all sequences that are past their prompts. A short
//! prompt passes a long one, even between two of its chunks; see [`Sequence::urgency`].
//! A step that does not depend on unseen tokens is submitted before any wait: all chunks of a prompt, and one decode
//! step of run-ahead (async scheduling).

use std::collections::VecDeque;
use std::time::Instant;

use plan::Outputs;

use crate::drafts::Draft;
use crate::sequence::Sequence;

/// Purpose of a step in flight.
pub(super) enum Work {
    /// Evaluates tokens `start..end` of a prompt.
    Chunk { id: u64, start: usize, end: usize, outputs: Outputs, submitted: Instant },
    /// Decodes one token of each of these sequences, in the order of the step's rows.
    Decode(Vec<u64>),
    /// First part of a decode step that waits for grammar masks; the next step is its second part.
    UntilLogits,
    /// Verifies draft tokens behind the newest token of a sequence, after `replayed` tokens are evaluated again.
    Verify { id: u64, replayed: usize, draft: Vec<u32> },
}

/// The kind of the next step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Wait: no step can be submitted until a step finishes or a request arrives.
    Wait,
    /// The next chunk of the prompt of the sequence at this index.
    Prompt(usize),
    Decode,
}

/// A decode step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decode {
    /// The only sequence may verify draft tokens. Without any it is decoded as in [`Self::Batch`].
    Speculate { at: usize, draft: Draft },
    /// The sequence at this index is decoded alone, because its recurrent state lacks tokens.
    Replay(usize),
    /// One token of each sequence that is past its prompt. `masked` steps are split before their logits, which wait
    /// for grammar masks.
    Batch { masked: bool },
    /// The step in flight again, for the tokens that it is going to sample.
    RunAhead(Vec<u64>),
}

/// Decides the next step.
pub(super) fn turn(active: &[Sequence], chunk_was_last: bool) -> Turn {
    let mut prompts = active.iter().filter(|s| s.in_prompt());
    // Do not start a decode step that excludes a sequence whose last chunk is in flight.
    if prompts.any(|s| !s.has_chunks_left()) {
        return Turn::Wait;
    }
    let decodes = active.iter().any(|s| !s.in_prompt());
    match most_urgent(active) {
        Some(at) if !(decodes && chunk_was_last) => Turn::Prompt(at),
        _ if decodes => Turn::Decode,
        _ => Turn::Wait,
    }
}

/// Index of the prompt whose chunk is next, if there is a prompt.
fn most_urgent(active: &[Sequence]) -> Option<usize> {
    let evaluates =
        |id, prefix| active.iter().any(|s| s.id == id && s.in_prompt() && s.submitted < prefix);
    let waits = |s: &Sequence| s.shares_with.is_some_and(|(id, prefix)| evaluates(id, prefix));
    let prompts = active.iter().enumerate().filter(|(_, s)| s.in_prompt() && !waits(s));
    prompts.min_by_key(|(_, s)| (s.urgency(), s.id)).map(|(at, _)| at)
}

/// Decides the next decode step: from the tokens that the host has seen, or one step of run-ahead if no sequence needs
/// them. `None` if a step must finish first.
pub(super) fn decode(
    active: &mut [Sequence],
    in_flight: &VecDeque<Work>,
    context: usize,
) -> Option<Decode> {
    let decodes = |work: &&Work| !matches!(work, Work::Chunk { .. });
    let latest = in_flight.iter().rev().find(decodes);
    let Some(latest) = latest else { return Some(from_seen_tokens(active, context)) };
    let Work::Decode(ids) = latest else { return None };
    let alone = ids.len() == 1;
    let mut past_prompt = active.iter().filter(|s| !s.in_prompt());
    let runs_ahead = in_flight.iter().filter(decodes).count() == 1
        && past_prompt.clone().count() == ids.len()
        && past_prompt.all(|s| s.can_run_ahead(context, alone) && ids.contains(&s.id));
    runs_ahead.then(|| Decode::RunAhead(ids.clone()))
}

fn from_seen_tokens(active: &mut [Sequence], context: usize) -> Decode {
    let past_prompt = |(_, s): &(usize, &mut Sequence)| !s.in_prompt();
    let mut decoding = active.iter_mut().enumerate().filter(past_prompt);
    // A sequence that decodes alone reads all weights for one token: more tokens cost little more.
    if let (Some((at, alone)), None) = (decoding.next(), decoding.next()) {
        match alone.next_draft(context) {
            Draft::Nothing if alone.replay > 0 => return Decode::Replay(at),
            Draft::Nothing => {}
            draft => return Decode::Speculate { at, draft },
        }
    }
    let mut decoding = active.iter().enumerate().filter(|(_, s)| !s.in_prompt());
    if let Some((at, _)) = decoding.clone().find(|(_, s)| s.replay > 0) {
        return Decode::Replay(at);
    }
    Decode::Batch { masked: decoding.any(|(_, s)| s.masks()) }
}
