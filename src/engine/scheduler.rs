//! The engine thread: takes commands, gives slots to waiting requests, and keeps the device busy.
//!
//! Chunks of the oldest unfinished prompt take turns with decode steps of every sequence that is past its
//! prompt. What does not depend on a token that the host has yet to see is submitted before anything is waited
//! for: all chunks of a prompt, and one decode step ahead. Where a sequence turns out to have ended, the step
//! ahead still runs and its token is dropped; whoever gets the slot next writes every position before reading
//! it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::core::{Core, Row, Step};
use super::devices::Verdict;
use super::first_light;
use super::handle::{Shared, TunedDevice};
use super::sequence::{Sequence, Waiting};
use super::tuning::Idle;
use super::{Event, FinishReason, GenerateError, LoadError, LoadEvent, LoadSpec, State, load};
use crate::chain::one_line;
use device::MAX_SUBMISSIONS;
use plan::Outputs;
use plan::sample::Sampling;

pub(super) enum Command {
    Generate(Waiting),
    Load(LoadSpec, UnboundedSender<LoadEvent>),
    Unload(oneshot::Sender<bool>),
    Exclusive(String, Task),
    Stop(Instant),
    /// Beat, and nothing else.
    Heartbeat,
}

/// Work that needs the loaded model to itself; `None` when there is none.
pub(super) type Task = Box<dyn FnOnce(Option<&mut Core>) + Send>;

/// Whom a step under way is for.
enum Work {
    /// Tokens `start..end` of a prompt.
    Chunk { id: u64, start: usize, end: usize, outputs: Outputs },
    /// One token for each of these sequences, in the order of the step's rows.
    Decode(Vec<u64>),
}

pub(super) struct Scheduler {
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    core: Option<Core>,
    waiting: VecDeque<Waiting>,
    /// In the order in which they were admitted.
    active: Vec<Sequence>,
    /// Sequences admitted so far, for their ids.
    admitted: u64,
    /// One for each of the core's steps under way.
    under_way: VecDeque<Work>,
    /// Whether the latest step submitted was a chunk.
    chunk_was_last: bool,
    free_slots: Vec<u32>,
    /// Commands that wait until nothing is being served.
    idle_work: VecDeque<Command>,
    stop: Option<Instant>,
    idle: Option<Idle>,
    // Reused every step.
    rows: Vec<Row>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl Scheduler {
    pub(super) fn new(commands: Receiver<Command>, shared: Arc<Shared>) -> Self {
        Self {
            commands,
            shared,
            core: None,
            waiting: VecDeque::new(),
            active: Vec::new(),
            admitted: 0,
            under_way: VecDeque::new(),
            chunk_was_last: false,
            free_slots: Vec::new(),
            idle_work: VecDeque::new(),
            stop: None,
            idle: None,
            rows: Vec::new(),
            tokens: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// Runs until told to stop, or until every handle is gone.
    pub(super) fn run(mut self) {
        loop {
            if !self.take_commands() {
                break;
            }
            self.drop_cancelled();
            if self.stop.is_some_and(|deadline| Instant::now() >= deadline) {
                self.finish_all(&FinishReason::Cancelled);
                break;
            }
            if self.is_idle() {
                if self.stop.is_some() {
                    break;
                }
                if let Some(work) = self.idle_work.pop_front() {
                    self.do_idle_work(work);
                    continue;
                }
            }
            if self.idle_work.is_empty() && self.stop.is_none() {
                self.admit();
            }
            if self.is_idle() {
                continue;
            }
            debug_assert!(
                self.idle.as_ref().is_none_or(Idle::is_held),
                "a search measures while a request runs"
            );
            if let Err(error) = self.submit().and_then(|()| self.finish_step()) {
                self.step_failed(&error);
            }
            self.tell_cache();
        }
        self.fail_waiting(&GenerateError::Stopping);
        self.drop_model();
        self.shared.set_state(State::Empty);
    }

    fn step_failed(&mut self, error: &device::Error) {
        let failed = one_line(error);
        tracing::error!(error = failed, "device step failed");
        // A core that stays waits for what is left of them before it submits anything else.
        self.under_way.clear();
        let core = core(&mut self.core);
        let (device, model) = (core.device(), core.model_name());
        let verdict = self.shared.devices.failed(device, model, error);
        if verdict == Verdict::LoadAgain && self.stop.is_none() {
            self.load_again(&failed);
        } else {
            self.fail_active(&GenerateError::Device(failed));
        }
    }

    /// Loads the model again after it was lost, and repeats what was being served: on the same device if that
    /// may still be used, else on the next one. Where there is none the model is given up.
    fn load_again(&mut self, failed: &str) {
        let Some(lost) = self.core.take() else {
            unreachable!("a step failed, so a model was loaded");
        };
        // It uses the device too.
        self.idle = None;
        let (device, model) = (lost.device(), Box::new(lost.model().clone()));
        let id = model.id.clone();
        let what = format!("a load of {id} after the loss of device {device}");
        self.shared.set_state(State::Exclusive { what, model });
        let shared = Arc::clone(&self.shared);
        let progress = |_: &'static str, _, _| shared.heartbeat.beat();
        let again =
            load::reopen(lost, &shared).and_then(|opened| load::upload(opened, &progress, &shared));
        match again {
            Ok(core) => {
                let requests = self.active.len();
                let now = core.device();
                tracing::warn!(model = id, before = device, now, requests, "model loaded again");
                self.attach(core);
                self.active.iter_mut().for_each(Sequence::repeat);
                self.set_ready();
            }
            Err(error) => {
                tracing::error!(model = id, %error, "the model is not loaded any more");
                let told = format!("{failed}; the model cannot be loaded again: {error}");
                *self.shared.given_up.lock() = Some(error);
                self.drop_model();
                // Whoever is told may ask for the state.
                self.set_ready();
                let told = GenerateError::Device(told);
                self.fail_active(&told);
                self.fail_waiting(&told);
                self.free_slots.clear();
            }
        }
    }

    fn fail_active(&mut self, error: &GenerateError) {
        for sequence in std::mem::take(&mut self.active) {
            self.release(sequence.slot);
            self.shared.failed();
            sequence.fail(error.clone());
        }
    }

    /// Whether nothing is being served and the device has nothing to do.
    fn is_idle(&self) -> bool {
        self.active.is_empty() && self.under_way.is_empty()
    }

    /// Reads all commands; blocks when there is nothing else to do. False when every handle is gone.
    fn take_commands(&mut self) -> bool {
        loop {
            let can_admit =
                !self.waiting.is_empty() && !self.free_slots.is_empty() && self.core.is_some();
            let busy =
                !self.is_idle() || !self.idle_work.is_empty() || self.stop.is_some() || can_admit;
            let command = if busy {
                match self.commands.try_recv() {
                    Ok(command) => command,
                    Err(_) => return true,
                }
            } else {
                if let Some(idle) = &self.idle {
                    idle.release();
                }
                // A minute only bounds how long a waiting request of a gone client keeps its place.
                let command = self.commands.recv_timeout(Duration::from_secs(60));
                if let Some(idle) = &self.idle {
                    idle.hold();
                }
                match command {
                    Ok(command) => command,
                    Err(RecvTimeoutError::Timeout) => return true,
                    Err(RecvTimeoutError::Disconnected) => return false,
                }
            };
            match command {
                Command::Generate(waiting) if self.core.is_some() && self.stop.is_none() => {
                    self.waiting.push_back(waiting);
                }
                Command::Generate(waiting) => {
                    let error = if self.stop.is_some() {
                        GenerateError::Stopping
                    } else {
                        GenerateError::NoModel
                    };
                    self.shared.failed();
                    waiting.fail(error);
                }
                Command::Stop(deadline) => {
                    self.stop = Some(deadline);
                    self.shared.set_state(State::Stopping);
                    self.fail_waiting(&GenerateError::Stopping);
                }
                Command::Heartbeat => self.shared.heartbeat.beat(),
                other => self.idle_work.push_back(other),
            }
        }
    }

    fn do_idle_work(&mut self, work: Command) {
        match work {
            Command::Load(spec, events) => self.load(&spec, &events),
            Command::Unload(done) => {
                let loaded = self.core.is_some();
                *self.shared.given_up.lock() = None;
                self.drop_model();
                self.free_slots.clear();
                self.shared.set_state(State::Empty);
                self.fail_waiting(&GenerateError::NoModel);
                // The asker may have gone.
                let _ = done.send(loaded);
            }
            Command::Exclusive(what, task) => {
                let model = self.core.as_ref().map(|core| Box::new(core.model().clone()));
                if let Some(model) = model {
                    self.shared.set_state(State::Exclusive { what, model });
                }
                task(self.core.as_mut());
                if let Some(core) = &self.core {
                    self.shared.stepped(core);
                }
                self.set_ready();
            }
            Command::Generate(_) | Command::Stop(_) | Command::Heartbeat => {
                unreachable!("answered when it is taken, not in idle time")
            }
        }
    }

    fn load(&mut self, spec: &LoadSpec, events: &UnboundedSender<LoadEvent>) {
        let model = spec.model.clone();
        let shared = Arc::clone(&self.shared);
        self.shared.set_state(State::Loading { model: model.clone(), progress: 0.0 });
        let progress = |phase: &'static str, done: u64, total: u64| {
            shared.heartbeat.beat();
            let fraction = if total == 0 { 0.0 } else { done as f64 / total as f64 };
            shared.set_state(State::Loading { model: model.clone(), progress: fraction });
            let _ = events.send(LoadEvent::Progress { phase, done, total });
        };
        *shared.given_up.lock() = None;
        // The old model stays until the new one is known to be sound, then makes room for it.
        self.idle = None;
        let result = load::open(spec, &shared, &progress).and_then(|opened| {
            self.drop_model();
            self.fail_waiting(&GenerateError::Stopping);
            load::upload(opened, &progress, &shared)
        });
        let event = match result {
            Ok(core) => self.adopt(core),
            Err(error) => {
                tracing::error!(model = spec.model, %error, "load failed");
                LoadEvent::Failed(error)
            }
        };
        self.set_ready();
        let _ = events.send(event);
    }

    fn adopt(&mut self, core: Core) -> LoadEvent {
        let info = core.model().clone();
        let took = Duration::from_secs_f64(info.load_s);
        tracing::info!(model = info.id, device = info.device.name, ?took, "model loaded");
        self.free_slots = (0..core.slots() as u32).rev().collect();
        self.active = Vec::with_capacity(core.slots());
        self.attach(core);
        LoadEvent::Loaded(Box::new(info))
    }

    fn attach(&mut self, core: Core) {
        self.under_way = VecDeque::with_capacity(MAX_SUBMISSIONS);
        self.rows = Vec::with_capacity(core.slots());
        self.tokens = Vec::with_capacity(core.slots());
        self.logits = vec![0.0; core.vocabulary()];
        *self.shared.text.lock() = Some(Arc::clone(core.text()));
        let (device, _, tuning) = core.tunable();
        *self.shared.tuned_device.lock() = Some(TunedDevice { device, tuning: tuning.clone() });
        self.idle = Idle::start(&core, &self.shared);
        self.core = Some(core);
    }

    fn set_ready(&self) {
        let state = match (&self.core, self.stop) {
            (_, Some(_)) => State::Stopping,
            (Some(core), None) => State::Ready(Box::new(core.model().clone())),
            (None, None) => State::Empty,
        };
        self.shared.set_state(state);
    }

    /// Ends the search in idle time first: it uses the device too.
    fn drop_model(&mut self) {
        self.idle = None;
        self.core = None;
        *self.shared.tuned_device.lock() = None;
        *self.shared.text.lock() = None;
    }

    fn fail_waiting(&mut self, error: &GenerateError) {
        for waiting in self.waiting.drain(..) {
            self.shared.failed();
            waiting.fail(error.clone());
        }
    }

    fn admit(&mut self) {
        let Some(core) = &self.core else { return };
        while let Some(slot) = self.free_slots.pop() {
            let Some(waiting) = self.waiting.pop_front() else {
                self.free_slots.push(slot);
                break;
            };
            self.shared.active.fetch_add(1, Ordering::Relaxed);
            self.admitted += 1;
            self.active.push(Sequence::start(waiting, core.text(), self.admitted, slot));
        }
    }

    fn drop_cancelled(&mut self) {
        let shared = &self.shared;
        self.waiting.retain(|waiting| {
            let gone = waiting.events.is_closed();
            if gone {
                shared.finished(None);
            }
            !gone
        });
        while let Some(at) = self.active.iter().position(Sequence::cancelled) {
            self.finish(at, FinishReason::Cancelled);
        }
    }

    /// Submits what does not depend on a token that the host has yet to see, as far as the device takes it:
    /// chunks of the oldest unfinished prompt in turn with decode steps.
    fn submit(&mut self) -> Result<(), device::Error> {
        if self.under_way.is_empty() {
            core(&mut self.core).settle()?;
        }
        loop {
            let prompt = self.active.iter().position(Sequence::in_prompt);
            let decodes = self.active.iter().any(|s| !s.in_prompt());
            let submitted = match prompt.filter(|at| self.active[*at].has_chunks_left()) {
                Some(at) if !(decodes && self.chunk_was_last) => self.submit_chunk(at)?,
                // Who joins with the last chunk is not kept waiting by a step without it.
                None if prompt.is_some() => false,
                _ => decodes && self.submit_decode()?,
            };
            if !submitted {
                return Ok(());
            }
        }
    }

    fn submit_chunk(&mut self, at: usize) -> Result<bool, device::Error> {
        let core = core(&mut self.core);
        let sequence = &mut self.active[at];
        let prompt = sequence.prompt();
        let start = sequence.submitted;
        let left = prompt.len() - start;
        let outputs = match (sequence.request.prompt_logprobs, left <= core.chunk()) {
            (true, _) => Outputs::All,
            (false, true) => Outputs::Last,
            (false, false) => Outputs::None,
        };
        let end = start + left.min(core.bucket_rows(outputs));
        let sampling =
            if end == prompt.len() { sequence.request.sampling } else { Sampling::GREEDY };
        let row = Row { slot: sequence.slot, token: 0, position: start as u32, sampling };
        if !core.submit_chunk(row, &prompt[start..end], outputs)? {
            return Ok(false);
        }
        sequence.submitted = end;
        self.chunk_was_last = true;
        self.under_way.push_back(Work::Chunk { id: sequence.id, start, end, outputs });
        Ok(true)
    }

    /// Submits the next token of every sequence that is past its prompt: from the tokens that the host has
    /// seen, or, where all go on, one step ahead of them.
    fn submit_decode(&mut self) -> Result<bool, device::Error> {
        let core = core(&mut self.core);
        let decodes = |work: &Work| matches!(work, Work::Decode(_));
        let under_way = self.under_way.iter().filter(|work| decodes(work)).count();
        let past_prompt = || self.active.iter().filter(|s| !s.in_prompt());
        let ids = match self.under_way.iter().rev().find(|work| decodes(work)) {
            None => {
                // In slot order: rows change places only when a sequence comes or goes.
                let mut sequences: Vec<&Sequence> = past_prompt().collect();
                sequences.sort_unstable_by_key(|s| s.slot);
                self.rows.clear();
                self.rows.extend(sequences.iter().map(|s| s.row()));
                if !core.submit_decode(&self.rows)? {
                    return Ok(false);
                }
                sequences.iter().map(|s| s.id).collect()
            }
            Some(Work::Decode(ids))
                if under_way == 1
                    && past_prompt().count() == ids.len()
                    && past_prompt()
                        .all(|s| s.can_run_ahead(core.context()) && ids.contains(&s.id)) =>
            {
                if !core.submit_ahead()? {
                    return Ok(false);
                }
                ids.clone()
            }
            Some(_) => return Ok(false),
        };
        self.chunk_was_last = false;
        self.under_way.push_back(Work::Decode(ids));
        Ok(true)
    }

    /// Waits for the oldest step under way, and hands out what came of it.
    fn finish_step(&mut self) -> Result<(), device::Error> {
        let core = core(&mut self.core);
        let finished = core.finish(&mut self.tokens);
        self.shared.stepped(core);
        if let Some(mode) = core.mode() {
            first_light::lowered(core.device(), mode, core.light(), &self.shared);
        }
        let step = finished?;
        match self.under_way.pop_front() {
            Some(Work::Chunk { id, start, end, outputs }) => {
                self.finish_chunk(&step, id, start..end, outputs)
            }
            Some(Work::Decode(ids)) => self.finish_decode(&step, &ids),
            None => unreachable!("a step under way that is for nobody"),
        }
    }

    fn finish_chunk(
        &mut self,
        step: &Step,
        id: u64,
        part: Range<usize>,
        outputs: Outputs,
    ) -> Result<(), device::Error> {
        let core = core(&mut self.core);
        self.shared.prompt_tokens.fetch_add(part.len() as u64, Ordering::Relaxed);
        let Some(at) = self.active.iter().position(|s| s.id == id) else {
            // Cancelled meanwhile.
            return Ok(());
        };
        let sequence = &mut self.active[at];
        sequence.position = part.end;
        if outputs == Outputs::All {
            if part.start == 0 {
                sequence.prompt_logits(0, None);
            }
            for (row, predicted) in (part.start + 1..=part.end).enumerate() {
                if predicted < sequence.request.prompt.len() {
                    core.logits(step, row, &mut self.logits)?;
                    sequence.prompt_logits(predicted, Some(&self.logits));
                }
            }
        }
        if sequence.in_prompt() {
            return Ok(());
        }
        sequence.prompt_done();
        let row = if outputs == Outputs::All { part.len() - 1 } else { 0 };
        self.hand_out(step, row, at, self.tokens[0])
    }

    fn finish_decode(&mut self, step: &Step, ids: &[u64]) -> Result<(), device::Error> {
        for (row, id) in ids.iter().enumerate() {
            // Who is not there any more has ended, and this step was one too far.
            if let Some(at) = self.active.iter().position(|s| s.id == *id) {
                self.active[at].position += 1;
                self.hand_out(step, row, at, self.tokens[row])?;
            }
        }
        Ok(())
    }

    /// Gives a sequence the token sampled from one row of a step's logits.
    fn hand_out(
        &mut self,
        step: &Step,
        row: usize,
        at: usize,
        token: u32,
    ) -> Result<(), device::Error> {
        let core = core(&mut self.core);
        let sequence = &mut self.active[at];
        let logits = if sequence.wants_logprobs() {
            core.logits(step, row, &mut self.logits)?;
            Some(&self.logits[..])
        } else {
            None
        };
        let before = sequence.generated();
        let reason = sequence.sampled(token, core.context(), logits);
        self.shared.count_tokens(sequence.generated() - before);
        if let Some(reason) = reason {
            self.finish(at, reason);
        }
        Ok(())
    }

    fn finish(&mut self, at: usize, reason: FinishReason) {
        let sequence = self.active.remove(at);
        self.release(sequence.slot);
        let (finished, events) = sequence.finish(reason);
        // Counted first: a client that has been told of the end may count on the free slot.
        self.shared.finished(Some(finished.total - finished.queued));
        // The receiver may have gone.
        let _ = events.send(Event::Finished(finished));
    }

    fn finish_all(&mut self, reason: &FinishReason) {
        while !self.active.is_empty() {
            self.finish(0, reason.clone());
        }
    }

    fn release(&mut self, slot: u32) {
        self.shared.active.fetch_sub(1, Ordering::Relaxed);
        self.free_slots.push(slot);
        self.tell_cache();
    }

    fn tell_cache(&self) {
        let filled = self.active.iter().map(|sequence| sequence.position).sum();
        self.shared.kv_tokens.store(filled, Ordering::Relaxed);
    }
}

/// The loaded model, while something is being served.
fn core(core: &mut Option<Core>) -> &mut Core {
    core.as_mut().unwrap_or_else(|| unreachable!("requests are admitted only to a loaded model"))
}

impl Drop for Scheduler {
    /// Whatever ends the thread, nobody may wait for it in vain.
    fn drop(&mut self) {
        for sequence in self.active.drain(..) {
            sequence.fail(GenerateError::Stopping);
        }
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Generate(waiting) => waiting.fail(GenerateError::Stopping),
                Command::Load(_, events) => {
                    let _ = events.send(LoadEvent::Failed(LoadError::Stopping));
                }
                // Dropping them tells who waits.
                Command::Unload(_)
                | Command::Exclusive(..)
                | Command::Stop(_)
                | Command::Heartbeat => {}
            }
        }
    }
}
