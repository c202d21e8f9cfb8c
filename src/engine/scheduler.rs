//! The engine thread: takes commands, gives slots to waiting requests, alternates one chunk of a
//! prompt with one decode step of everything that is past its prompt.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crossbeam::channel::{Receiver, RecvTimeoutError};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::core::{Core, LogitsOf, Row};
use super::handle::Shared;
use super::sequence::{Sequence, Waiting};
use super::tuning::Idle;
use super::{
    Event, FinishReason, GenerateError, LoadError, LoadEvent, LoadSpec, ModelInfo, State, load,
};
use plan::Outputs;
use plan::sample::Sampling;

/// What the thread can be told.
pub(super) enum Command {
    Generate(Waiting),
    Load(LoadSpec, UnboundedSender<LoadEvent>),
    Unload(oneshot::Sender<bool>),
    Exclusive(String, Task),
    Stop(Instant),
    /// Show a sign of life.
    Pulse,
}

/// Work that needs the loaded model to itself; `None` when there is none.
pub(super) type Task = Box<dyn FnOnce(Option<&mut Core>) + Send>;

pub(super) struct Scheduler {
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    core: Option<Core>,
    waiting: VecDeque<Waiting>,
    active: Vec<Sequence>,
    free_slots: Vec<u32>,
    /// Commands that wait until nothing is being served.
    idle_work: VecDeque<Command>,
    stop: Option<Instant>,
    /// The search that goes on while there is nothing to do.
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
            if self.active.is_empty() {
                if self.stop.is_some() {
                    break;
                }
                if let Some(work) = self.idle_work.pop_front() {
                    self.do_idle_work(work);
                    continue;
                }
            }
            if self.stop.is_some_and(|deadline| Instant::now() >= deadline) {
                self.finish_all(&FinishReason::Cancelled);
                continue;
            }
            if self.idle_work.is_empty() && self.stop.is_none() {
                self.admit();
            }
            debug_assert!(
                self.active.is_empty() || self.idle.as_ref().is_none_or(Idle::is_held),
                "a search measures while a request runs"
            );
            if let Err(error) = self.step() {
                tracing::error!(%error, "device step failed");
                let error = GenerateError::Device(crate::chain::one_line(&error));
                for sequence in std::mem::take(&mut self.active) {
                    self.release(sequence.slot);
                    self.shared.failed();
                    sequence.fail(error.clone());
                }
            }
        }
        for waiting in self.waiting.drain(..) {
            self.shared.failed();
            waiting.fail(GenerateError::Stopping);
        }
        self.idle = None;
        self.shared.set_tunable(None);
        self.core = None;
        self.shared.set_text(None);
        self.shared.set_state(State::Empty);
    }

    /// Reads all commands; blocks when there is nothing else to do. False when every handle is gone.
    fn take_commands(&mut self) -> bool {
        loop {
            let can_admit =
                !self.waiting.is_empty() && !self.free_slots.is_empty() && self.core.is_some();
            let busy = !self.active.is_empty()
                || !self.idle_work.is_empty()
                || self.stop.is_some()
                || can_admit;
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
                let command = self.commands.recv_timeout(std::time::Duration::from_secs(60));
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
                    for waiting in self.waiting.drain(..) {
                        self.shared.failed();
                        waiting.fail(GenerateError::Stopping);
                    }
                }
                Command::Pulse => self.shared.pulse.beat(),
                other => self.idle_work.push_back(other),
            }
        }
    }

    fn do_idle_work(&mut self, work: Command) {
        match work {
            Command::Load(spec, events) => self.load(&spec, &events),
            Command::Unload(done) => {
                self.idle = None;
                self.shared.set_tunable(None);
                let loaded = self.core.take().is_some();
                self.free_slots.clear();
                self.shared.set_text(None);
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
            Command::Generate(_) | Command::Stop(_) | Command::Pulse => {}
        }
    }

    fn load(&mut self, spec: &LoadSpec, events: &UnboundedSender<LoadEvent>) {
        let model = spec.model.clone();
        let shared = Arc::clone(&self.shared);
        self.shared.set_state(State::Loading { model: model.clone(), progress: 0.0 });
        let progress = |phase: &'static str, done: u64, total: u64| {
            shared.pulse.beat();
            let fraction = if total == 0 { 0.0 } else { done as f64 / total as f64 };
            shared.set_state(State::Loading { model: model.clone(), progress: fraction });
            let _ = events.send(LoadEvent::Progress { phase, done, total });
        };
        // The old model stays until the new one is known to be sound, then makes room for it.
        self.idle = None;
        let result = load::open(spec, shared.withheld(), &progress).and_then(|opened| {
            self.core = None;
            self.shared.set_tunable(None);
            self.shared.set_text(None);
            self.fail_waiting(&GenerateError::Stopping);
            load::upload(opened, &progress, shared.pulse.clone())
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
        let info: ModelInfo = core.model().clone();
        tracing::info!(model = info.id, device = info.device, took = ?info.load_time, "model loaded");
        self.free_slots = (0..core.slots() as u32).rev().collect();
        self.active = Vec::with_capacity(core.slots());
        self.rows = Vec::with_capacity(core.slots());
        self.tokens = Vec::with_capacity(core.slots());
        self.logits = vec![0.0; core.vocabulary()];
        self.shared.set_text(Some(Arc::clone(core.text())));
        let (device, _, tuning) = core.tunable();
        self.shared.set_tunable(Some((device, tuning.clone())));
        self.idle = Idle::start(&core, &self.shared);
        self.core = Some(core);
        LoadEvent::Loaded(Box::new(info))
    }

    fn set_ready(&self) {
        let state = match (&self.core, self.stop) {
            (_, Some(_)) => State::Stopping,
            (Some(core), None) => State::Ready(Box::new(core.model().clone())),
            (None, None) => State::Empty,
        };
        self.shared.set_state(state);
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
            self.active.push(Sequence::start(waiting, core.text(), slot));
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

    /// One chunk of the oldest unfinished prompt, then one token for everything past its prompt.
    fn step(&mut self) -> Result<(), device::Error> {
        if let Some(at) = self.active.iter().position(Sequence::in_prompt) {
            self.prefill(at)?;
        }
        if self.active.iter().any(|s| !s.in_prompt()) {
            self.decode()?;
        }
        self.tell_cache();
        Ok(())
    }

    fn prefill(&mut self, at: usize) -> Result<(), device::Error> {
        let Some(core) = &mut self.core else { return Ok(()) };
        let sequence = &mut self.active[at];
        let left = sequence.request.prompt.len() - sequence.position;
        let outputs = match (sequence.request.prompt_logprobs, left <= core.chunk()) {
            (true, _) => Outputs::All,
            (false, true) => Outputs::Last,
            (false, false) => Outputs::None,
        };
        let take = left.min(core.bucket_rows(outputs));
        let (start, end) = (sequence.position, sequence.position + take);
        let row =
            Row { token: 0, position: start as u32, sampling: Sampling::GREEDY, ..sequence.row() };
        let last = end == sequence.request.prompt.len();
        let row = if last { Row { sampling: sequence.request.sampling, ..row } } else { row };
        let sampled = core.evaluate(row, &sequence.request.prompt[start..end], outputs);
        self.shared.stepped(core);
        let sampled = sampled?;
        sequence.position = end;
        self.shared.prompt_tokens.fetch_add(take as u64, Ordering::Relaxed);
        if outputs == Outputs::All {
            if start == 0 {
                sequence.prompt_logits(0, None);
            }
            for i in 0..take {
                let predicted = start + i + 1;
                if predicted < sequence.request.prompt.len() {
                    core.logits(LogitsOf::Chunk { outputs, rows: take }, i, &mut self.logits)?;
                    sequence.prompt_logits(predicted, Some(&self.logits));
                }
            }
        }
        if !last {
            return Ok(());
        }
        sequence.prompt_done();
        let logits = if sequence.wants_logprobs() {
            let row = if outputs == Outputs::All { take - 1 } else { 0 };
            core.logits(LogitsOf::Chunk { outputs, rows: take }, row, &mut self.logits)?;
            Some(&self.logits[..])
        } else {
            None
        };
        let before = sequence.generated;
        let reason = sequence.sampled(sampled.unwrap_or(0), core.context(), logits);
        self.shared.count_tokens(sequence.generated - before);
        if let Some(reason) = reason {
            self.finish(at, reason);
        }
        Ok(())
    }

    fn decode(&mut self) -> Result<(), device::Error> {
        let Some(core) = &mut self.core else { return Ok(()) };
        // Rows in slot order: the membership changes only when a sequence comes or goes.
        self.active.sort_unstable_by_key(|s| (s.in_prompt(), s.slot));
        self.rows.clear();
        self.rows.extend(self.active.iter().filter(|s| !s.in_prompt()).map(Sequence::row));
        let advanced = core.advance(&self.rows, &mut self.tokens);
        self.shared.stepped(core);
        advanced?;
        let context = core.context();
        // From the back, so that finished sequences can be removed on the way.
        for i in (0..self.rows.len()).rev() {
            let sequence = &mut self.active[i];
            sequence.position += 1;
            let logits = match (&self.core, sequence.wants_logprobs()) {
                (Some(core), true) => {
                    core.logits(LogitsOf::Decode { rows: self.rows.len() }, i, &mut self.logits)?;
                    Some(&self.logits[..])
                }
                _ => None,
            };
            let before = sequence.generated;
            let reason = sequence.sampled(self.tokens[i], context, logits);
            self.shared.count_tokens(sequence.generated - before);
            if let Some(reason) = reason {
                self.finish(i, reason);
            }
        }
        Ok(())
    }

    fn finish(&mut self, at: usize, reason: FinishReason) {
        let sequence = self.active.remove(at);
        self.release(sequence.slot);
        let (finished, events) = sequence.finish(reason);
        // Counted first: who has heard of the end finds the slot free.
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
                Command::Unload(_) | Command::Exclusive(..) | Command::Stop(_) | Command::Pulse => {
                }
            }
        }
    }
}
