//! Sequence: a running request, with its tokens, its position in the cache, its text and its stream of events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::command::Waiting;
use super::drafts::{Draft, Drafts};
use super::events::EventSender;
use super::logprobs;
use super::runner::Row;
use super::slots::{Running, Slot};
use super::{
    Event, FinishReason, Finished, GenerateError, Request, Text, TokenEvent, TokenLogprobs,
};
use model::tokenizer::{Detokeniser, StopMatcher};
use plan::sample::Adjustment;
use sampling::Sampler;

/// See [`Sequence::urgency`].
const PATIENCE: u64 = 4;

/// Number of tokens before and after a divergence that the log has, and of characters.
const AROUND: usize = 8;
const TEXT_AROUND: usize = 120;

/// A running request.
pub(super) struct Sequence {
    pub(super) request: Request,
    events: EventSender,
    text: Arc<Text>,
    /// Unique among all sequences of this engine, unlike slots.
    pub(super) id: u64,
    /// Slot in the cache, once the prompt has started.
    pub(super) slot: Option<Slot>,
    /// Number of prompt tokens that came from the cache.
    pub(super) cached: usize,
    /// Position of the first prompt token that differs from the most similar sequence.
    diverged: Option<u32>,
    /// Number of first prompt tokens that can be read from disk.
    pub(super) on_disk: usize,
    /// Number of them that the slot has so far.
    pub(super) read: usize,
    /// Positions of the prompt at which the recurrent state is stored on disk, descending.
    pub(super) snapshots: Vec<usize>,
    /// Position of the prompt at which the state is cached for other sequences.
    pub(super) fork: Option<usize>,
    /// Prompt and generated tokens.
    tokens: Vec<u32>,
    /// Number of them that the device evaluates as its prompt. After a reload it includes generated tokens.
    prompt_len: usize,
    /// Number of prompt tokens submitted to the device.
    pub(super) submitted: usize,
    /// Number of prompt tokens that the engine had submitted for all sequences when this one was admitted.
    submitted_before: u64,
    /// Number of prompt tokens that were in the cache when it was admitted.
    cached_before: usize,
    /// Sequence that evaluates this many first tokens of this prompt too, and started earlier. Its blocks are shared.
    pub(super) shares_with: Option<(u64, usize)>,
    /// Number of tokens whose keys and values are in the cache.
    pub(super) position: usize,
    /// Number of them that the recurrent state lacks after a rejected draft. The next step evaluates them again, from the
    /// state before the draft.
    pub(super) replay: usize,
    /// Number of positions of the slot that were written before the prompt started.
    written: usize,
    detokeniser: Detokeniser,
    stops: StopMatcher,
    /// Sampler, if the device alone is not sufficient.
    sampler: Option<Sampler>,
    drafts: Drafts,
    /// End of its latest step, if it was the only active sequence since.
    last_step: Option<Instant>,
    prompt_logprobs: Vec<TokenLogprobs>,
    /// Sum of the hidden states that the embedding consists of.
    pooled: Vec<f64>,
    arrived: Instant,
    started: Instant,
    first_token: Option<Instant>,
}

impl Sequence {
    pub(super) fn start(waiting: Waiting, text: &Arc<Text>, id: u64, drafts: Drafts) -> Self {
        let Waiting { mut request, events, arrived, .. } = waiting;
        let stops = StopMatcher::new(request.stop.iter().cloned());
        // Reserve everything: decoding allocates nothing.
        let mut tokens = Vec::with_capacity(request.prompt.len() + request.max_tokens as usize);
        tokens.extend_from_slice(&request.prompt);
        Self {
            detokeniser: Detokeniser::after(Arc::clone(&text.tokenizer), &request.prompt)
                .showing(std::mem::take(&mut request.shown)),
            stops,
            sampler: Sampler::new(&request.processors, request.constraint.take(), request.sampling),
            drafts,
            last_step: None,
            prompt_logprobs: Vec::new(),
            pooled: Vec::new(),
            prompt_len: tokens.len(),
            tokens,
            request,
            events,
            text: Arc::clone(text),
            id,
            slot: None,
            written: 0,
            cached: 0,
            diverged: None,
            on_disk: 0,
            read: 0,
            snapshots: Vec::new(),
            fork: None,
            submitted: 0,
            submitted_before: 0,
            cached_before: 0,
            shares_with: None,
            position: 0,
            replay: 0,
            arrived,
            started: Instant::now(),
            first_token: None,
        }
    }

    /// Restarts on an instance with an empty cache. Sampled tokens are evaluated as part of the prompt: the next token
    /// depends only on the tokens before it, the seed and its position.
    pub(super) fn restart(&mut self) {
        self.prompt_len = self.tokens.len();
        self.submitted = 0;
        self.position = 0;
        self.replay = 0;
        self.slot = None;
        self.on_disk = 0;
        self.snapshots.clear();
        self.fork = None;
        self.written = 0;
        self.prompt_logprobs.clear();
        self.pooled.clear();
    }

    /// Starts the prompt in a slot with `cached` tokens and `written` positions. The first `on_disk` tokens can be read
    /// from disk.
    pub(super) fn start_prompt(
        &mut self,
        slot: Slot,
        cached: usize,
        written: usize,
        on_disk: usize,
    ) {
        self.slot = Some(slot);
        self.on_disk = on_disk;
        self.read = cached;
        self.cached = cached;
        self.written = written;
        self.submitted = cached;
        self.position = cached;
    }

    /// Stores the position of the first prompt token that differs from the most similar sequence, and logs the text there.
    pub(super) fn diverged(&mut self, divergence: Option<usize>) {
        self.diverged = divergence.map(|at| at as u32);
        if let Some(at) = divergence.filter(|at| *at > 0)
            && tracing::enabled!(tracing::Level::DEBUG)
        {
            let around = at.saturating_sub(AROUND)..(at + AROUND).min(self.prompt_len);
            let text = self.text.tokenizer.decode(&self.tokens[around]);
            let text: String = errors::printable::line(&text).chars().take(TEXT_AROUND).collect();
            tracing::debug!(token = at, prompt_tokens = self.prompt_len, text, "prefix diverged");
        }
    }

    /// Continues behind a number of prompt tokens that are restored from disk.
    pub(super) fn restored(&mut self, tokens: usize) {
        self.on_disk = 0;
        self.cached = tokens;
        self.submitted = tokens;
        self.position = tokens;
    }

    /// Tokens whose keys and values are in the slot when the submitted steps are done.
    pub(super) fn in_cache(&self) -> &[u32] {
        &self.tokens[..(self.position - self.replay).max(self.submitted)]
    }

    /// Number of positions of its slot that may have been written, also by run-ahead steps and rejected drafts.
    pub(super) fn written(&self) -> usize {
        self.written.max(self.in_cache().len() + self.lookahead())
    }

    /// Number of positions behind the current one that its steps in flight may write to.
    pub(super) fn lookahead(&self) -> usize {
        self.drafts.most().max(1) + 1
    }

    /// Slot in the cache.
    pub(super) fn slot(&self) -> &Slot {
        self.slot.as_ref().unwrap_or_else(|| unreachable!("the prompt has not started"))
    }

    /// Prefix that other sequences can share.
    pub(super) fn running(&self) -> Option<Running<'_>> {
        let (slot, tokens) = (self.slot.as_ref()?, self.in_cache());
        Some(Running { slot, tokens, adapters: self.request.adapters, written: self.written() })
    }

    /// First prompt position at which the state of its slot can be stored. A ring cache that was written further has lost
    /// a part of it.
    pub(super) fn storable_from(&self) -> usize {
        self.submitted.max(self.written)
    }

    /// Prompt and generated tokens.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens that the device evaluates before it samples.
    pub(super) fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt_len]
    }

    pub(super) fn in_prompt(&self) -> bool {
        self.position < self.prompt_len
    }

    /// Places its prompt among others, when the engine has submitted `submitted` prompt tokens so far and the cache has
    /// `cached` of its tokens.
    pub(super) const fn queue(&mut self, submitted: u64, cached: usize) {
        self.submitted_before = submitted;
        self.cached_before = cached;
    }

    /// Rank of its prompt among unfinished ones; the least is evaluated first. Shorter prompts pass it until they have
    /// taken [`PATIENCE`] times the tokens that it needs itself, so no prompt waits for ever.
    pub(super) fn urgency(&self) -> u64 {
        let left = self.prompt_len - self.submitted.max(self.cached_before.min(self.prompt_len));
        self.submitted_before.saturating_add(PATIENCE * left as u64)
    }

    /// True if part of the prompt has not been submitted.
    pub(super) fn has_chunks_left(&self) -> bool {
        self.submitted < self.prompt_len
    }

    pub(super) fn generated(&self) -> u32 {
        (self.tokens.len() - self.request.prompt.len()) as u32
    }

    /// True if the next step can be submitted before the token of the step in flight is known. The host must not need that
    /// token's logits or text, the next logit edits must not depend on it, and it must not be the last one by a limit. A
    /// sequence that decodes `alone` waits for its drafts.
    pub(super) fn can_run_ahead(&self, context: usize, alone: bool) -> bool {
        self.request.stop.is_empty()
            && !self.wants_logits()
            && self.sampler.as_ref().is_none_or(Sampler::is_constant)
            && !(alone && self.drafts.can_draft(&self.tokens))
            && self.generated() + 1 < self.request.max_tokens
            && self.position + 1 < context
    }

    /// Draft to verify with the newest token, if neither edits nor the host concern its logits. The draft is so short that
    /// the step yields no token beyond the limits and fits the largest plan.
    pub(super) fn next_draft(&mut self, context: usize) -> Draft {
        let left = (self.request.max_tokens - self.generated()) as usize;
        let room = left.min(context.saturating_sub(self.position)).saturating_sub(1);
        let room = room.min(self.drafts.most().saturating_sub(self.replay));
        let plain = self.sampler.is_none() && !self.wants_logits();
        if plain { self.drafts.next(&self.tokens, room) } else { Draft::Nothing }
    }

    /// True if its next steps may omit the nextn layer.
    pub(super) fn skips_nextn(&self) -> bool {
        self.drafts.is_paused() || self.sampler.is_some() || self.wants_logits()
    }

    /// True if its prompt is evaluated without the nextn layer.
    pub(super) fn prompt_skips_nextn(&mut self) -> bool {
        self.drafts.prompt_skips_nextn()
    }

    /// Accounts for a chunk of its prompt.
    pub(super) fn prompt_evaluated(&mut self, took: Option<Duration>) {
        self.drafts.prompt_evaluated(took);
    }

    /// Leaves prompt lookup as the only source of drafts.
    pub(super) const fn disable_draft_model(&mut self) {
        self.drafts.disable_model();
    }

    /// Accounts for a step with a number of drafted and accepted tokens, or without a draft.
    pub(super) fn step_done(&mut self, drafted: usize, accepted: usize, took: Option<Duration>) {
        match drafted {
            0 => self.drafts.step_done(self.replay > 0, took),
            _ => self.drafts.verified(drafted, accepted, took),
        }
    }

    /// Notes the start of a step that did not wait for another one.
    pub(super) fn step_starts(&mut self, now: Instant) {
        self.last_step.get_or_insert(now);
    }

    /// Duration of a step that ends now, which is known only for a sequence that runs `alone`.
    pub(super) fn step_time(&mut self, now: Instant, alone: bool) -> Option<Duration> {
        let before = std::mem::replace(&mut self.last_step, alone.then_some(now));
        before.filter(|_| alone).map(|before| now - before)
    }

    /// Statistics of drafts for the next sequence.
    pub(super) fn drafts(&self) -> Drafts {
        self.drafts.next_answer()
    }

    /// Tokens of its next step before a draft: those that the recurrent state lacks, then the newest one.
    pub(super) fn newest(&self) -> &[u32] {
        &self.tokens[self.position - self.replay..=self.position]
    }

    pub(super) fn cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Row of its next step.
    pub(super) fn row(&self) -> Row {
        let first = self.position - self.replay;
        Row {
            slot: self.slot().number,
            token: self.tokens[first],
            position: first as u32,
            sampling: self.request.sampling,
            adapters: self.request.adapters,
        }
    }

    /// Records the log-probabilities of prompt token `at`, predicted by the logits before it.
    pub(super) fn prompt_logits(&mut self, at: usize, logits: Option<&[f32]>) {
        let id = self.request.prompt[at];
        let top = self.request.logprobs.unwrap_or(0);
        let entry = match logits {
            Some(logits) => logprobs::of(logits, id, top, &self.text.tokenizer),
            None => logprobs::unpredicted(id, &self.text.tokenizer),
        };
        self.prompt_logprobs.push(entry);
    }

    /// Adds the hidden state of a prompt row to the embedding. False if it is not finite.
    pub(super) fn pool(&mut self, row: &[f32]) -> bool {
        self.pooled.resize(row.len(), 0.0);
        self.pooled.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
        row.iter().all(|value| value.is_finite())
    }

    /// Sends the embedding: the pooled hidden states, scaled to length 1. A zero vector stays zero.
    pub(super) fn send_embedding(&mut self) {
        let pooled = std::mem::take(&mut self.pooled);
        let length = pooled.iter().map(|value| value * value).sum::<f64>().sqrt();
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        let embedding = pooled.into_iter().map(|value| (value * scale) as f32).collect();
        self.events.send(Event::Embedding(embedding));
    }

    /// Sends the log-probabilities of the prompt, once.
    pub(super) fn send_prompt_logprobs(&mut self) {
        if std::mem::take(&mut self.request.prompt_logprobs) {
            let all = std::mem::take(&mut self.prompt_logprobs);
            self.events.send(Event::Prompt(all));
        }
    }

    /// True if the host reads the logits of the next token.
    pub(super) fn wants_logits(&self) -> bool {
        self.request.logprobs.is_some() || self.samples_on_host()
    }

    /// True if the host samples the token of the step in flight.
    fn samples_on_host(&self) -> bool {
        self.sampler.is_some() && self.adjustment().is_none()
    }

    /// True if each token needs a grammar mask.
    pub(super) fn masks(&self) -> bool {
        self.sampler.as_ref().is_some_and(Sampler::masks)
    }

    /// True if a step of several sequences should not wait for the grammar mask of this one.
    pub(super) fn is_late(&mut self) -> bool {
        self.sampler.as_mut().is_some_and(Sampler::is_late)
    }

    /// Prepares the sampling of the next token, on the device if it is allowed and sufficient.
    pub(super) fn prepare(&mut self, vocabulary: usize, allow_device: bool) {
        if let Some(sampler) = &mut self.sampler {
            sampler.prepare(&self.tokens, vocabulary, allow_device);
        }
    }

    /// Logit edits and mask that the device applies to the prepared token.
    pub(super) fn adjustment(&self) -> Option<Adjustment<'_>> {
        self.sampler.as_ref()?.adjustment()
    }

    /// Error of a device that found no token in finite logits.
    pub(super) fn dead_end(&self, logits: &[f32]) -> Option<GenerateError> {
        self.sampler.as_ref()?.dead_end(logits).map(GenerateError::Constraint)
    }

    /// Returns the next token: the device's, or one that the host samples.
    ///
    /// # Errors
    /// [`GenerateError::Constraint`] if the grammar allows no token.
    pub(super) fn choose(&mut self, device: u32, logits: &[f32]) -> Result<u32, GenerateError> {
        let on_host = self.samples_on_host();
        let Some(sampler) = self.sampler.as_mut().filter(|_| on_host) else { return Ok(device) };
        let position = self.position as u32 - 1;
        sampler.choose(logits, &self.tokens, position).map_err(GenerateError::Constraint)
    }

    /// Appends a sampled token. Returns the reason if it is the last one.
    pub(super) fn sampled(
        &mut self,
        id: u32,
        context: usize,
        logits: Option<&[f32]>,
    ) -> Option<FinishReason> {
        if self.request.max_tokens == 0 {
            return Some(FinishReason::Length);
        }
        self.first_token.get_or_insert_with(Instant::now);
        if !self.request.ignore_end && self.text.tokenizer.is_end(id) {
            return Some(FinishReason::End { id });
        }
        self.tokens.push(id);
        self.drafts.token();
        let complete = self.sampler.as_mut().map_or(Ok(false), |sampler| sampler.accept(id));
        let logprobs = logits
            .zip(self.request.logprobs)
            .map(|(logits, top)| logprobs::of(logits, id, top, &self.text.tokenizer));
        let emitted = self.stops.push(self.detokeniser.push(id));
        let (text, stopped) = (emitted.text.to_owned(), emitted.stopped);
        if !self.events.send(Event::Token(TokenEvent { id, text, logprobs })) {
            return Some(FinishReason::Cancelled);
        }
        if stopped {
            return Some(FinishReason::Stop { text: self.stops.found().to_owned() });
        }
        // The next token reports the error of a constraint.
        if complete == Ok(true) {
            return Some(FinishReason::Complete);
        }
        let full = self.position >= context;
        (self.generated() >= self.request.max_tokens || full).then_some(FinishReason::Length)
    }

    /// Ends the sequence. Returns the final event and its channel, the slot, and the slot's cached tokens and number of
    /// written positions.
    pub(super) fn finish(
        mut self,
        reason: FinishReason,
    ) -> (Finished, EventSender, Option<Slot>, (Vec<u32>, usize)) {
        let mut text = String::new();
        if !matches!(reason, FinishReason::Stop { .. }) {
            let emitted = self.stops.push(self.detokeniser.finish());
            text.push_str(emitted.text);
            if !emitted.stopped {
                text.push_str(&self.stops.finish());
            }
        }
        let now = Instant::now();
        let finished = Finished {
            reason,
            text,
            prompt_tokens: self.request.prompt.len() as u32,
            cached_tokens: self.cached as u32,
            // A longer prefix may have been read from disk.
            diverged_at: self.diverged.filter(|at| *at >= self.cached as u32),
            completion_tokens: self.generated(),
            drafted_tokens: self.drafts.drafted,
            accepted_tokens: self.drafts.accepted,
            queued: self.started - self.arrived,
            first_token: self.first_token.unwrap_or(now) - self.arrived,
            total: now - self.arrived,
        };
        let written = self.written();
        self.tokens.truncate(self.position - self.replay);
        (finished, self.events, self.slot, (self.tokens, written))
    }

    pub(super) fn fail(self, error: GenerateError) {
        self.events.send(Event::Failed(error));
    }
}
