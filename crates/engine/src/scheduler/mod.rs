//! Scheduler: the loop of the engine thread. It receives commands, admits waiting requests to slots, and keeps the
//! device busy.
//!
//! [`decision`] decides the next step, [`submit`] executes the decision, [`results`] emits what finished steps computed,
//! [`prefix_cache`] reuses prefixes, and [`loads`] replaces the model.
//!
//! If a sequence has ended, its run-ahead step still runs, and its token is dropped. The step writes behind the cached
//! tokens of the slot; the next sequence in that slot writes those positions before it reads them.

mod decision;
mod loads;
mod prefix_cache;
mod results;
mod submit;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, Sender, unbounded};

use self::decision::Work;
use super::command::{Command, Waiting};
use super::devices::Verdict;
use super::idle_tuning::IdleTuning;
use super::loaded_model::LoadedModel;
use super::loader::Loader;
use super::prefix_files::PrefixFiles;
use super::runner::Row;
use super::sequence::Sequence;
use super::shared::Shared;
use super::slots::Slots;
use super::stall::Stall;
use super::{FinishReason, GenerateError, LoadError, LoadEvent, State};
use errors::one_line;

pub(super) struct Scheduler {
    commands: Receiver<Command>,
    /// Commands from load threads. Their senders do not keep the engine alive.
    reports: (Sender<Command>, Receiver<Command>),
    shared: Arc<Shared>,
    model: Option<LoadedModel>,
    waiting: VecDeque<Waiting>,
    /// Running sequences, in the order of their admission.
    active: Vec<Sequence>,
    /// Number of sequences admitted so far; the source of their ids.
    admitted: u64,
    /// Purpose of each step in flight, oldest first.
    in_flight: VecDeque<Work>,
    /// True if the latest submitted step was a chunk.
    chunk_was_last: bool,
    /// Number of prompt tokens submitted so far.
    submitted: u64,
    slots: Slots,
    prefix_files: Option<PrefixFiles>,
    stall: Stall,
    /// Commands that wait until no sequence is active.
    idle_work: VecDeque<Command>,
    loader: Option<Loader>,
    /// Error that lost the model, while it is reloaded.
    lost: Option<String>,
    /// Number of loads started so far.
    loads: u64,
    /// Number of the load that created the model.
    load: u64,
    stop: Option<Instant>,
    idle_tuning: Option<IdleTuning>,
    // Reused by every step.
    rows: Vec<Row>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl Scheduler {
    pub(super) fn new(commands: Receiver<Command>, shared: Arc<Shared>) -> Self {
        Self {
            commands,
            reports: unbounded(),
            shared,
            model: None,
            waiting: VecDeque::new(),
            active: Vec::new(),
            admitted: 0,
            in_flight: VecDeque::new(),
            chunk_was_last: false,
            submitted: 0,
            slots: Slots::default(),
            prefix_files: None,
            stall: Stall::new(Duration::ZERO),
            idle_work: VecDeque::new(),
            loader: None,
            lost: None,
            loads: 0,
            load: 0,
            stop: None,
            idle_tuning: None,
            rows: Vec::new(),
            tokens: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// Runs until a stop command, or until all handles are dropped.
    pub(super) fn run(mut self) {
        self.shared.quiet.end();
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
                if let Some(deadline) = self.stop {
                    while Instant::now() < deadline && self.store_block() {}
                    break;
                }
                if let Some(work) = self.next_idle_work().and_then(|at| self.idle_work.remove(at)) {
                    self.do_idle_work(work);
                    continue;
                }
                if self.waiting.is_empty() && self.store_block() {
                    continue;
                }
            }
            if self.model.is_none() {
                // Active sequences wait until their model is reloaded.
                continue;
            }
            if self.idle_work.is_empty() && self.stop.is_none() {
                self.admit();
            }
            if self.is_idle() {
                continue;
            }
            debug_assert!(
                self.idle_tuning.as_ref().is_none_or(IdleTuning::is_paused),
                "idle tuning must not measure while a request runs"
            );
            if let Err(error) = self.submit().and_then(|()| self.finish_step()) {
                self.step_failed(&error);
            }
            self.publish_cache();
        }
        self.fail_waiting(&GenerateError::Stopping);
        if let Some(thread) = self.cancel_load(LoadError::Stopping) {
            thread.settle();
        }
        self.unload();
        self.shared.quiet.begin();
        self.shared.set_state(State::Empty);
    }

    fn step_failed(&mut self, error: &device::Error) {
        let failed = one_line(error);
        tracing::error!(error = failed, "device step failed");
        // The runner waits for the remaining steps before it submits others.
        self.in_flight.clear();
        self.slots.forget();
        let runner = &loaded(&mut self.model).runner;
        let (device, model) = (runner.device(), runner.spec().model.as_str());
        let verdict = self.shared.devices.failed(device, model, error);
        if verdict == Verdict::LoadAgain && self.stop.is_none() {
            self.reload(&failed);
        } else {
            self.fail_active(&GenerateError::Device(failed));
        }
    }

    /// True if no sequence is active and no step is in flight.
    fn is_idle(&self) -> bool {
        self.active.is_empty() && self.in_flight.is_empty()
    }

    /// Index of the first postponed command that can run now. An exclusive task waits for a load in progress: it is meant
    /// for the new model, or it measures.
    fn next_idle_work(&self) -> Option<usize> {
        let waits =
            |work: &Command| matches!(work, Command::Exclusive(..)) && self.loader.is_some();
        self.idle_work.iter().position(|work| !waits(work))
    }

    /// True if a slot is free.
    fn has_room(&self) -> bool {
        self.model.as_ref().is_some_and(|model| self.active.len() < model.runner.slots())
    }

    /// Time to wait for a command before there is something else to do.
    fn leisure(&self) -> Duration {
        let can_admit = !self.waiting.is_empty() && self.has_room();
        let can_step = self.model.is_some() && (!self.is_idle() || can_admit);
        let can_work = self.is_idle()
            && (self.next_idle_work().is_some()
                || self.stop.is_some()
                || self.has_blocks_to_store());
        if can_step || can_work {
            return Duration::ZERO;
        }
        // Limits how long the request of a disconnected client occupies its place in the queue.
        let most = Duration::from_secs(60);
        self.stop.map_or(most, |stop| stop.saturating_duration_since(Instant::now()).min(most))
    }

    /// Receives all commands; blocks if there is nothing else to do. False if all handles are dropped.
    fn take_commands(&mut self) -> bool {
        loop {
            let leisure = self.leisure();
            let command = if leisure.is_zero() {
                self.commands.try_recv().or_else(|_| self.reports.1.try_recv()).ok()
            } else {
                self.shared.quiet.begin();
                let command = channel::select! {
                    recv(self.commands) -> command => command.map(Some),
                    recv(self.reports.1) -> report => report.map(Some),
                    default(leisure) => Ok(None),
                };
                self.shared.quiet.end();
                match command {
                    Ok(command) => command,
                    Err(channel::RecvError) => return false,
                }
            };
            match command {
                Some(command) => self.take(command),
                None => return true,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Generate(waiting) if self.can_serve(&waiting) => {
                self.waiting.push_back(*waiting);
            }
            Command::Generate(waiting) => {
                let unloaded = self.model.is_none() && self.stop.is_none();
                let error = if unloaded { GenerateError::NoModel } else { GenerateError::Stopping };
                self.shared.failed();
                waiting.fail(error);
            }
            Command::Load(pending) if self.stop.is_some() => {
                pending.report(LoadEvent::Failed(LoadError::Stopping));
            }
            Command::Load(pending) => self.begin_load(pending),
            Command::Unload(done) => {
                self.cancel_load(LoadError::GivenUp("the model was unloaded"));
                self.idle_work.push_back(Command::Unload(done));
            }
            Command::Stop(deadline) => {
                self.stop = Some(deadline);
                self.shared.set_state(State::Stopping);
                self.fail_waiting(&GenerateError::Stopping);
                if self.lost.is_none() {
                    drop(self.cancel_load(LoadError::Stopping));
                }
            }
            Command::Heartbeat => self.shared.heartbeat.beat(),
            Command::MakeRoom(order, done) => {
                if self.model.is_some() {
                    self.idle_work.push_back(Command::MakeRoom(order, done));
                } else {
                    self.make_room(order, &done);
                }
            }
            Command::Loaded(order, result) => {
                if self.model.is_some() && result.is_ok() {
                    self.idle_work.push_back(Command::Loaded(order, result));
                } else {
                    self.load_finished(order, *result);
                }
            }
            Command::Exclusive(..) => self.idle_work.push_back(command),
        }
    }

    /// True if the model of a request is loaded or being reloaded.
    fn can_serve(&self, waiting: &Waiting) -> bool {
        let exists = self.model.is_some() || self.lost.is_some();
        exists && self.stop.is_none() && waiting.load == self.load
    }

    fn do_idle_work(&mut self, work: Command) {
        match work {
            Command::Unload(done) => {
                let loaded = self.model.is_some();
                *self.shared.given_up.lock() = None;
                self.unload();
                self.slots = Slots::default();
                self.shared.set_state(State::Empty);
                self.fail_waiting(&GenerateError::NoModel);
                // The caller may have disconnected.
                let _ = done.send(loaded);
            }
            Command::Exclusive(what, task) => {
                let info = self.model.as_ref().map(|model| Box::new(model.runner.model().clone()));
                if let Some(model) = info {
                    self.shared.set_state(State::Exclusive { what, model });
                }
                // The task may write to every slot.
                self.slots.forget();
                let mut runner = self.model.as_mut().map(|model| &mut model.runner);
                let reset = runner.as_mut().map_or(Ok(()), |runner| runner.reset_blocks());
                if let Err(error) = reset {
                    self.step_failed(&error);
                }
                let mut runner = self.model.as_mut().map(|model| &mut model.runner);
                task(runner.as_deref_mut());
                if let Some(runner) = runner {
                    self.shared.count_steps(runner.step_count(), runner.activity());
                }
                self.set_ready();
            }
            Command::MakeRoom(order, done) => self.make_room(order, &done),
            Command::Loaded(order, result) => self.load_finished(order, *result),
            Command::Load(pending) => self.begin_load(pending),
            Command::Generate(_) | Command::Stop(_) | Command::Heartbeat => {
                unreachable!("these commands are never postponed")
            }
        }
    }

    fn set_ready(&self) {
        let state = match (&self.model, self.stop) {
            (_, Some(_)) => State::Stopping,
            (Some(model), None) => State::Ready(Box::new(model.runner.model().clone())),
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
        let Some(model) = &self.model else { return };
        while self.has_room()
            && let Some(waiting) = self.waiting.pop_front()
        {
            self.shared.active.fetch_add(1, Ordering::Relaxed);
            self.admitted += 1;
            let (text, drafts) = (model.runner.text(), model.new_drafts());
            let mut sequence = Sequence::start(waiting, text, self.admitted, drafts);
            self.queue_prompt(&mut sequence);
            self.active.push(sequence);
        }
    }

    fn drop_cancelled(&mut self) {
        let shared = &self.shared;
        self.waiting.retain(|waiting| {
            let cancelled = waiting.events.is_closed();
            if cancelled {
                shared.finished(None);
            }
            !cancelled
        });
        while let Some(at) = self.active.iter().position(Sequence::cancelled) {
            self.finish(at, FinishReason::Cancelled);
        }
    }

    fn publish_cache(&self) {
        let filled = self.active.iter().map(|sequence| sequence.position).sum();
        self.shared.kv_tokens.store(filled, Ordering::Relaxed);
    }
}

/// The loaded model. Requests are active only while there is one.
fn loaded(model: &mut Option<LoadedModel>) -> &mut LoadedModel {
    model.as_mut().unwrap_or_else(|| unreachable!("requests are admitted only to a loaded model"))
}

impl Drop for Scheduler {
    /// Fails all requests and loads, however the thread ends.
    fn drop(&mut self) {
        for sequence in self.active.drain(..) {
            sequence.fail(GenerateError::Stopping);
        }
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Generate(waiting) => waiting.fail(GenerateError::Stopping),
                Command::Load(pending) => pending.report(LoadEvent::Failed(LoadError::Stopping)),
                // Dropping a command closes its channel.
                Command::Unload(_)
                | Command::Exclusive(..)
                | Command::Stop(_)
                | Command::Heartbeat
                | Command::MakeRoom(..)
                | Command::Loaded(..) => {}
            }
        }
    }
}
