//! One request while it is being served: where it stands, its text, its stream of events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::core::Row;
use super::drafts::{Draft, Drafts};
use super::logprobs;
use super::shaping::Chooser;
use super::slots::{Running, Slot};
use super::{
    Event, FinishReason, Finished, GenerateError, Request, Text, TokenEvent, TokenLogprobs,
};
use model::tokenizer::{Detokeniser, StopMatcher};
use plan::sample::Adjustment;

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) events: UnboundedSender<Event>,
    /// Which load has brought the model that it is for.
    pub(super) load: u64,
    pub(super) arrived: Instant,
}

impl Waiting {
    pub(super) fn fail(self, error: GenerateError) {
        // A client that has gone does not care.
        let _ = self.events.send(Event::Failed(error));
    }
}

pub(super) struct Sequence {
    pub(super) request: Request,
    events: UnboundedSender<Event>,
    text: Arc<Text>,
    /// No other sequence of this thread ever has it; slots are used again.
    pub(super) id: u64,
    /// Its place in the cache, once its prompt is begun.
    pub(super) slot: Option<Slot>,
    /// Tokens of the prompt that needed not be evaluated.
    pub(super) cached: usize,
    /// Tokens that the prompt begins with and that can be read from the disk.
    pub(super) on_disk: usize,
    /// How many of them the slot has so far.
    pub(super) read: usize,
    /// Tokens of the prompt behind which the rest of its slot is kept on disk, the furthest first.
    pub(super) rests: Vec<usize>,
    /// Those behind which what its slot has is held for others.
    pub(super) fork: Option<usize>,
    /// The prompt, and the tokens generated.
    tokens: Vec<u32>,
    /// How many of them were there before this device sampled any: its prompt.
    given: usize,
    /// Tokens of the device's prompt that it has been given.
    pub(super) submitted: usize,
    /// Tokens whose keys and values are in the cache.
    pub(super) position: usize,
    /// How many of them a state of fixed size lacks, since a draft behind them did not come true: the next step
    /// evaluates them again, from where that state stood before.
    pub(super) behind: usize,
    /// Positions of the slot that were written before it began its prompt.
    written: usize,
    detokeniser: Detokeniser,
    stops: StopMatcher,
    /// What chooses its tokens where the device does not.
    chooser: Option<Chooser>,
    drafts: Drafts,
    /// When its latest step ended, if nobody else was served since.
    stepped: Option<Instant>,
    prompt_logprobs: Vec<TokenLogprobs>,
    /// The sum of those rows of the prompt's hidden state so far that its embedding is made of.
    pooled: Vec<f64>,
    arrived: Instant,
    started: Instant,
    first_token: Option<Instant>,
}

impl Sequence {
    pub(super) fn start(waiting: Waiting, text: &Arc<Text>, id: u64, drafts: Drafts) -> Self {
        let Waiting { mut request, events, arrived, .. } = waiting;
        let stops = StopMatcher::new(request.stop.iter().cloned());
        // All that there will be: decoding allocates nothing.
        let mut tokens = Vec::with_capacity(request.prompt.len() + request.max_tokens as usize);
        tokens.extend_from_slice(&request.prompt);
        Self {
            detokeniser: Detokeniser::after(Arc::clone(&text.tokenizer), &request.prompt)
                .showing(std::mem::take(&mut request.shown)),
            stops,
            chooser: Chooser::new(&request.shaping, request.constraint.take(), request.sampling),
            drafts,
            stepped: None,
            prompt_logprobs: Vec::new(),
            pooled: Vec::new(),
            given: tokens.len(),
            tokens,
            request,
            events,
            text: Arc::clone(text),
            id,
            slot: None,
            written: 0,
            cached: 0,
            on_disk: 0,
            read: 0,
            rests: Vec::new(),
            fork: None,
            submitted: 0,
            position: 0,
            behind: 0,
            arrived,
            started: Instant::now(),
            first_token: None,
        }
    }

    /// Begins again on an instance whose cache is empty. What has been sampled stays, and is evaluated as
    /// if it were part of the prompt: the next token depends on the tokens before it, the seed and its place.
    pub(super) fn repeat(&mut self) {
        self.given = self.tokens.len();
        self.submitted = 0;
        self.position = 0;
        self.behind = 0;
        self.slot = None;
        self.on_disk = 0;
        self.rests.clear();
        self.fork = None;
        self.written = 0;
        self.prompt_logprobs.clear();
        self.pooled.clear();
    }

    /// Begins the prompt behind what its slot holds of it, `written` positions of which were written; the first
    /// `on_disk` tokens can be read from there.
    pub(super) fn begin(&mut self, slot: Slot, cached: usize, written: usize, on_disk: usize) {
        self.slot = Some(slot);
        self.on_disk = on_disk;
        self.read = cached;
        self.cached = cached;
        self.written = written;
        self.submitted = cached;
        self.position = cached;
    }

    /// Has so many tokens of the prompt, with what the disk had of them.
    pub(super) fn restored(&mut self, tokens: usize) {
        self.on_disk = 0;
        self.cached = tokens;
        self.submitted = tokens;
        self.position = tokens;
    }

    /// Tokens whose keys and values its slot holds, or will when what has been submitted is done.
    pub(super) fn in_cache(&self) -> &[u32] {
        &self.tokens[..(self.position - self.behind).max(self.submitted)]
    }

    /// Positions of its slot that may have been written: beyond those in the cache, a step that ran ahead or a draft
    /// that did not come true has left some.
    pub(super) fn written(&self) -> usize {
        self.written.max(self.in_cache().len() + self.ahead())
    }

    /// Positions behind the one where it stands that its steps may write to before it moves on.
    pub(super) fn ahead(&self) -> usize {
        self.drafts.most().max(1) + 1
    }

    /// Its place in the cache.
    pub(super) fn slot(&self) -> &Slot {
        self.slot.as_ref().unwrap_or_else(|| unreachable!("steps are of prompts that are begun"))
    }

    /// What of it others can have.
    pub(super) fn running(&self) -> Option<Running<'_>> {
        let (slot, tokens) = (self.slot.as_ref()?, self.in_cache());
        Some(Running { slot, tokens, adapters: self.request.adapters, written: self.written() })
    }

    /// Tokens of the prompt from which on its slot can be kept as it is: of a ring that was written further, part is
    /// lost.
    pub(super) fn keeps_from(&self) -> usize {
        self.submitted.max(self.written)
    }

    /// The prompt, and the tokens generated.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// What the device evaluates before it samples.
    pub(super) fn prompt(&self) -> &[u32] {
        &self.tokens[..self.given]
    }

    pub(super) fn in_prompt(&self) -> bool {
        self.position < self.given
    }

    /// Whether part of the prompt has not been submitted.
    pub(super) fn has_chunks_left(&self) -> bool {
        self.submitted < self.given
    }

    pub(super) fn generated(&self) -> u32 {
        (self.tokens.len() - self.request.prompt.len()) as u32
    }

    /// Whether the step after the one under way can be submitted before its token is known: it is needed
    /// unless that token ends the generation, nobody on the host looks at its logits or holds its text
    /// against stop texts first, and what is done to the next logits does not depend on it. Who decodes `alone` waits for
    /// its drafts as well.
    pub(super) fn can_run_ahead(&self, context: usize, alone: bool) -> bool {
        self.request.stop.is_empty()
            && !self.wants_logits()
            && self.chooser.as_ref().is_none_or(Chooser::is_constant)
            && !(alone && self.drafts.sees(&self.tokens))
            && self.generated() + 1 < self.request.max_tokens
            && self.position + 1 < context
    }

    /// What is evaluated with its newest token, where logits are left as they are and nobody on the host looks at them: so
    /// much that the step that evaluates it gives no token too many, and has no more rows than it may.
    pub(super) fn draft(&mut self, context: usize) -> Draft {
        let left = (self.request.max_tokens - self.generated()) as usize;
        let room = left.min(context.saturating_sub(self.position)).saturating_sub(1);
        let room = room.min(self.drafts.most().saturating_sub(self.behind));
        let plain = self.chooser.is_none() && !self.wants_logits();
        if plain { self.drafts.next(&self.tokens, room) } else { Draft::Nothing }
    }

    /// Whether nothing of its next steps is needed for drafts.
    pub(super) fn rests(&self) -> bool {
        self.drafts.rests() || self.chooser.is_some() || self.wants_logits()
    }

    /// Whether its prompt is evaluated without who guesses.
    pub(super) fn overlooked(&mut self) -> bool {
        self.drafts.overlooked()
    }

    /// A part of its prompt was evaluated.
    pub(super) fn prompted(&mut self, took: Option<Duration>) {
        self.drafts.prompted(took);
    }

    /// Nobody guesses any more, but from what was said.
    pub(super) const fn without_guesses(&mut self) {
        self.drafts.without_model();
    }

    /// Its step with a draft of so many tokens, of which so many came true, or with none, has ended.
    pub(super) fn judged(&mut self, drafted: usize, accepted: usize, took: Option<Duration>) {
        match drafted {
            0 => self.drafts.stepped(self.behind > 0, took),
            _ => self.drafts.judged(drafted, accepted, took),
        }
    }

    /// A step begins now, for which nothing had to end.
    pub(super) fn begins_step(&mut self, now: Instant) {
        self.stepped.get_or_insert(now);
    }

    /// How long a step took that has ended now, which is known of who is served `alone`.
    pub(super) fn took(&mut self, now: Instant, alone: bool) -> Option<Duration> {
        let before = std::mem::replace(&mut self.stepped, alone.then_some(now));
        before.filter(|_| alone).map(|before| now - before)
    }

    /// The drafts of whoever is served next.
    pub(super) fn drafts(&self) -> Drafts {
        self.drafts.again()
    }

    /// The tokens of its next step before those of a draft: the newest, behind those that a state of fixed size lacks.
    pub(super) fn newest(&self) -> &[u32] {
        &self.tokens[self.position - self.behind..=self.position]
    }

    pub(super) fn cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Its next row.
    pub(super) fn row(&self) -> Row {
        let first = self.position - self.behind;
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

    /// Takes the hidden state of one row of the prompt for its embedding. False where it holds a number that is
    /// none.
    pub(super) fn pool(&mut self, row: &[f32]) -> bool {
        self.pooled.resize(row.len(), 0.0);
        self.pooled.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
        row.iter().all(|value| value.is_finite())
    }

    /// Sends the prompt's embedding: whatever was pooled, of length 1. Zeroes stay zeroes.
    pub(super) fn embedded(&mut self) {
        let pooled = std::mem::take(&mut self.pooled);
        let length = pooled.iter().map(|value| value * value).sum::<f64>().sqrt();
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        let embedding = pooled.into_iter().map(|value| (value * scale) as f32).collect();
        let _ = self.events.send(Event::Embedding(embedding));
    }

    /// Sends what was collected about the prompt, when it is complete; once.
    pub(super) fn prompt_done(&mut self) {
        if std::mem::take(&mut self.request.prompt_logprobs) {
            let all = std::mem::take(&mut self.prompt_logprobs);
            let _ = self.events.send(Event::Prompt(all));
        }
    }

    /// True when the next sampled token's logits must be looked at.
    pub(super) fn wants_logits(&self) -> bool {
        self.request.logprobs.is_some() || self.chooses()
    }

    /// Whether the token of the step under way is chosen here and not by the device.
    fn chooses(&self) -> bool {
        self.chooser.is_some() && self.adjustment().is_none()
    }

    /// Whether what may come next has to be found for every token: beside the part of the step that does not depend on it.
    pub(super) fn masks(&self) -> bool {
        self.chooser.as_ref().is_some_and(Chooser::masks)
    }

    /// Makes ready for the choice of the token behind its newest one. The device can be asked to do something to the
    /// logits first if that is `offered`.
    pub(super) fn prepare(&mut self, vocabulary: usize, offered: bool) {
        if let Some(chooser) = &mut self.chooser {
            chooser.prepare(&self.tokens, vocabulary, offered);
        }
    }

    /// What the device does to the logits before it chooses the token that was prepared.
    pub(super) fn adjustment(&self) -> Option<Adjustment<'_>> {
        self.chooser.as_ref()?.adjustment()
    }

    /// Why the device has found no token in these logits, if they are finite.
    pub(super) fn dead_end(&self, logits: &[f32]) -> Option<GenerateError> {
        self.chooser.as_ref()?.dead_end(logits).map(GenerateError::Constraint)
    }

    /// Finds out what may come next while the device is busy.
    pub(super) fn look_ahead(&mut self) {
        if let Some(chooser) = &mut self.chooser {
            chooser.look_ahead();
        }
    }

    /// Chooses the next token: the device's, unless it is chosen here.
    ///
    /// # Errors
    /// [`GenerateError::Constraint`] when none may follow.
    pub(super) fn choose(&mut self, device: u32, logits: &[f32]) -> Result<u32, GenerateError> {
        let here = self.chooses();
        let Some(chooser) = self.chooser.as_mut().filter(|_| here) else { return Ok(device) };
        let position = self.position as u32 - 1;
        chooser.choose(logits, &self.tokens, position).map_err(GenerateError::Constraint)
    }

    /// Takes a sampled token. Gives the reason when it is the last.
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
        let complete = self.chooser.as_mut().map_or(Ok(false), |chooser| chooser.taken(id));
        let logprobs = logits
            .zip(self.request.logprobs)
            .map(|(logits, top)| logprobs::of(logits, id, top, &self.text.tokenizer));
        let emitted = self.stops.push(self.detokeniser.push(id));
        let (text, stopped) = (emitted.text.to_owned(), emitted.stopped);
        if self.events.send(Event::Token(TokenEvent { id, text, logprobs })).is_err() {
            return Some(FinishReason::Cancelled);
        }
        if stopped {
            return Some(FinishReason::Stop { text: self.stops.found().to_owned() });
        }
        match complete {
            // What the mask has allowed is taken.
            Ok(true) | Err(_) => return Some(FinishReason::Complete),
            Ok(false) => {}
        }
        let full = self.position >= context;
        (self.generated() >= self.request.max_tokens || full).then_some(FinishReason::Length)
    }

    /// What there is to say at the end, who waits to hear it, its slot,
    /// and the tokens that it has left there with how many positions it has written.
    pub(super) fn finish(
        mut self,
        reason: FinishReason,
    ) -> (Finished, UnboundedSender<Event>, Option<Slot>, (Vec<u32>, usize)) {
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
            completion_tokens: self.generated(),
            drafted_tokens: self.drafts.drafted,
            accepted_tokens: self.drafts.accepted,
            queued: self.started - self.arrived,
            first_token: self.first_token.unwrap_or(now) - self.arrived,
            total: now - self.arrived,
        };
        let written = self.written();
        self.tokens.truncate(self.position - self.behind);
        (finished, self.events, self.slot, (self.tokens, written))
    }

    pub(super) fn fail(self, error: GenerateError) {
        let _ = self.events.send(Event::Failed(error));
    }
}
