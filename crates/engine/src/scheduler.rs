//! The engine thread: takes commands, gives slots to waiting requests, and keeps the device busy.
//!
//! Chunks of the oldest unfinished prompt take turns with decode steps of every sequence that is past its
//! prompt. What does not depend on a token that the host has yet to see is submitted before anything is waited
//! for: all chunks of a prompt, and one decode step ahead. Where a sequence turns out to have ended, the step
//! ahead still runs and its token is dropped: what it writes lies behind all that the slot is said to hold, and
//! whoever gets the slot next writes those positions before reading them.

mod beginnings;

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, Sender, unbounded};
use tokio::sync::oneshot;

use super::admission::Served;
use super::core::{Core, Row, Step};
use super::devices::Verdict;
use super::drafts::Draft;
use super::first_light;
use super::handle::{Shared, TunedDevice};
use super::loader::{Asked, Job, Loader, Thread};
use super::prefixes::Prefixes;
use super::sequence::{Sequence, Waiting};
use super::slots::{Slot, Slots};
use super::stall::Stall;
use super::tuning::Idle;
use super::{
    Event, FinishReason, GenerateError, LoadError, LoadEvent, Loading, Request, Scales, State,
};
use device::MAX_SUBMISSIONS;
use errors::one_line;
use model::Pooling;
use plan::Outputs;
use plan::sample::{NOT_FINITE, Sampling};

pub(super) enum Command {
    Generate(Box<Waiting>),
    Load(Asked),
    Unload(oneshot::Sender<bool>),
    Exclusive(String, Task),
    Stop(Instant),
    /// Beat, and nothing else.
    Heartbeat,
    /// From the load of that order: unload the model, and say so.
    MakeRoom(u64, Sender<()>),
    /// The load of that order is over.
    Loaded(u64, Box<Result<Core, LoadError>>),
}

/// Work that needs the loaded model to itself; `None` when there is none.
pub(super) type Task = Box<dyn FnOnce(Option<&mut Core>) + Send>;

/// Whom a step under way is for.
enum Work {
    /// Tokens `start..end` of a prompt.
    Chunk { id: u64, start: usize, end: usize, outputs: Outputs, submitted: Instant },
    /// One token for each of these sequences, in the order of the step's rows.
    Decode(Vec<u64>),
    /// That of one, as far as no mask is needed: the rest of it is the next one.
    Deferring,
    /// The newest token of a sequence and what is likely to follow it, behind tokens that are evaluated again.
    Verify { id: u64, again: usize, draft: Vec<u32> },
}

pub(super) struct Scheduler {
    commands: Receiver<Command>,
    /// Commands from the threads of loads. They do not keep the engine alive.
    reports: (Sender<Command>, Receiver<Command>),
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
    slots: Slots,
    prefixes: Option<Prefixes>,
    stall: Stall,
    /// Commands that wait until nothing is being served.
    idle_work: VecDeque<Command>,
    loader: Option<Loader>,
    /// Why the model was lost that is being loaded again.
    lost: Option<String>,
    /// Loads begun so far, for their orders.
    loads: u64,
    /// Which of them has brought the model.
    load: u64,
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
            reports: unbounded(),
            shared,
            core: None,
            waiting: VecDeque::new(),
            active: Vec::new(),
            admitted: 0,
            under_way: VecDeque::new(),
            chunk_was_last: false,
            slots: Slots::default(),
            prefixes: None,
            stall: Stall::new(Duration::ZERO),
            idle_work: VecDeque::new(),
            loader: None,
            lost: None,
            loads: 0,
            load: 0,
            stop: None,
            idle: None,
            rows: Vec::new(),
            tokens: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// Runs until told to stop, or until every handle is gone.
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
                    while Instant::now() < deadline && self.keep_block() {}
                    break;
                }
                if let Some(work) = self.next_idle_work().and_then(|at| self.idle_work.remove(at)) {
                    self.do_idle_work(work);
                    continue;
                }
                if self.waiting.is_empty() && self.keep_block() {
                    continue;
                }
            }
            if self.core.is_none() {
                // Whoever is being served waits until their model is loaded again.
                continue;
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
        if let Some(thread) = self.give_up_load(LoadError::Stopping) {
            thread.settle();
        }
        self.drop_model();
        self.shared.quiet.begin();
        self.shared.set_state(State::Empty);
    }

    fn step_failed(&mut self, error: &device::Error) {
        let failed = one_line(error);
        tracing::error!(error = failed, "device step failed");
        // A core that stays waits for what is left of them before it submits anything else.
        self.under_way.clear();
        self.slots.forget();
        let core = core(&mut self.core);
        let (device, model) = (core.device(), core.model_name());
        let verdict = self.shared.devices.failed(device, model, error);
        if verdict == Verdict::LoadAgain && self.stop.is_none() {
            self.load_again(&failed);
        } else {
            self.fail_active(&GenerateError::Device(failed));
        }
    }

    /// Loads the model again after it was lost: on the same device if that may still be used, else on the next
    /// one. What is being served waits for it.
    fn load_again(&mut self, failed: &str) {
        let Some(lost) = self.core.take() else {
            unreachable!("a step failed, so a model was loaded");
        };
        // It uses the device too.
        self.idle = None;
        // Another model can be loaded when this one's requests are done.
        let postponed = self.loader.take().and_then(|loader| loader.give_up().0);
        self.idle_work.extend(postponed.map(Command::Load));
        let (device, model) = (lost.device(), Box::new(lost.model().clone()));
        let what = format!("a load of {} after the loss of device {device}", model.id);
        tracing::warn!(model = model.id, device, requests = self.active.len(), "loading again");
        self.shared.set_state(State::Exclusive { what, model });
        self.lost = Some(failed.to_owned());
        self.start_load(Job::Again(Box::new(lost)), None);
    }

    /// The model that was lost is loaded again: repeats what was being served. Where it cannot be loaded it is
    /// given up.
    fn loaded_again(&mut self, result: Result<Core, LoadError>, failed: &str) {
        match result {
            Ok(core) => {
                let (model, device) = (&core.model().id, core.device());
                tracing::warn!(model, device, requests = self.active.len(), "model loaded again");
                self.attach(core);
                self.active.iter_mut().for_each(Sequence::repeat);
                self.set_ready();
            }
            Err(error) => {
                tracing::error!(%error, "the model is not loaded any more");
                let told = format!("{failed}; the model cannot be loaded again: {error}");
                *self.shared.given_up.lock() = Some(error);
                self.drop_model();
                // Whoever is told may ask for the state.
                self.set_ready();
                let told = GenerateError::Device(told);
                self.fail_active(&told);
                self.fail_waiting(&told);
                self.slots = Slots::default();
            }
        }
    }

    fn fail_active(&mut self, error: &GenerateError) {
        while !self.active.is_empty() {
            self.fail(0, error.clone());
        }
    }

    fn fail(&mut self, at: usize, error: GenerateError) {
        let mut sequence = self.active.remove(at);
        self.release(sequence.slot.take(), (Vec::new(), 0), Scales::NONE);
        self.shared.failed();
        sequence.fail(error);
    }

    /// Ends a request for whose token at `position` there are no finite logits.
    fn fail_not_finite(&mut self, at: usize, position: usize) {
        let core = core(&mut self.core);
        let (model, gpu) = (core.model().id.clone(), core.gpu());
        let error = GenerateError::NotFinite { model, position, gpu };
        tracing::error!(device = core.device(), %error, "request failed");
        self.fail(at, error);
    }

    /// Whether nothing is being served and the device has nothing to do.
    fn is_idle(&self) -> bool {
        self.active.is_empty() && self.under_way.is_empty()
    }

    /// The first of the commands that wait which can be done now. A task waits for a load under way: it is
    /// meant for the new model, or measures.
    fn next_idle_work(&self) -> Option<usize> {
        let waits =
            |work: &Command| matches!(work, Command::Exclusive(..)) && self.loader.is_some();
        self.idle_work.iter().position(|work| !waits(work))
    }

    /// Whether one more sequence can run.
    fn has_room(&self) -> bool {
        self.core.as_ref().is_some_and(|core| self.active.len() < core.slots())
    }

    /// For how long nothing has to be done unless a command comes.
    fn leisure(&self) -> Duration {
        let can_admit = !self.waiting.is_empty() && self.has_room();
        let can_step = self.core.is_some() && (!self.is_idle() || can_admit);
        let can_work = self.is_idle()
            && (self.next_idle_work().is_some() || self.stop.is_some() || self.keeps());
        if can_step || can_work {
            return Duration::ZERO;
        }
        // A minute only bounds how long a waiting request of a gone client keeps its place.
        let most = Duration::from_secs(60);
        self.stop.map_or(most, |stop| stop.saturating_duration_since(Instant::now()).min(most))
    }

    /// Reads all commands; blocks when there is nothing else to do. False when every handle is gone.
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
                let gone = self.core.is_none() && self.stop.is_none();
                let error = if gone { GenerateError::NoModel } else { GenerateError::Stopping };
                self.shared.failed();
                waiting.fail(error);
            }
            Command::Load(asked) if self.stop.is_some() => {
                asked.tell(LoadEvent::Failed(LoadError::Stopping));
            }
            Command::Load(asked) => self.begin_load(asked),
            Command::Unload(done) => {
                self.give_up_load(LoadError::GivenUp("the model was unloaded"));
                self.idle_work.push_back(Command::Unload(done));
            }
            Command::Stop(deadline) => {
                self.stop = Some(deadline);
                self.shared.set_state(State::Stopping);
                self.fail_waiting(&GenerateError::Stopping);
                if self.lost.is_none() {
                    drop(self.give_up_load(LoadError::Stopping));
                }
            }
            Command::Heartbeat => self.shared.heartbeat.beat(),
            Command::MakeRoom(order, done) => {
                if self.core.is_some() {
                    self.idle_work.push_back(Command::MakeRoom(order, done));
                } else {
                    self.make_room(order, &done);
                }
            }
            Command::Loaded(order, result) => {
                if self.core.is_some() && result.is_ok() {
                    self.idle_work.push_back(Command::Loaded(order, result));
                } else {
                    self.loaded(order, *result);
                }
            }
            Command::Exclusive(..) => self.idle_work.push_back(command),
        }
    }

    /// Whether the model that a request is for is loaded, or is being loaded again after it was lost.
    fn can_serve(&self, waiting: &Waiting) -> bool {
        let is_there = self.core.is_some() || self.lost.is_some();
        is_there && self.stop.is_none() && waiting.load == self.load
    }

    fn do_idle_work(&mut self, work: Command) {
        match work {
            Command::Unload(done) => {
                let loaded = self.core.is_some();
                *self.shared.given_up.lock() = None;
                self.drop_model();
                self.slots = Slots::default();
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
                // It may have every slot.
                self.slots.forget();
                let own = self.core.as_mut().map_or(Ok(()), Core::own_blocks);
                if let Err(error) = own {
                    self.step_failed(&error);
                }
                task(self.core.as_mut());
                if let Some(core) = &self.core {
                    self.shared.stepped(core);
                }
                self.set_ready();
            }
            Command::MakeRoom(order, done) => self.make_room(order, &done),
            Command::Loaded(order, result) => self.loaded(order, *result),
            Command::Load(asked) => self.begin_load(asked),
            Command::Generate(_) | Command::Stop(_) | Command::Heartbeat => {
                unreachable!("answered when it is taken, not in idle time")
            }
        }
    }

    fn begin_load(&mut self, asked: Asked) {
        let before = self.give_up_load(LoadError::GivenUp("another model is being loaded"));
        *self.shared.given_up.lock() = None;
        self.idle = None;
        let loading = Loading { model: asked.spec.model.clone(), progress: 0.0 };
        *self.shared.loading.lock() = Some(loading);
        self.start_load(Job::New(asked), before);
    }

    fn start_load(&mut self, job: Job, before: Option<Thread>) {
        self.loads += 1;
        let beside = self.core.as_ref().map(Core::beside);
        let link = (Arc::clone(&self.shared), self.reports.0.clone());
        let asked = if let Job::New(asked) = &job { Some(asked.clone()) } else { None };
        match Loader::start(self.loads, job, beside, before, link) {
            Ok(loader) => self.loader = Some(loader),
            Err(error) => {
                let failed = LoadError::Device(format!("cannot start a thread: {error}"));
                self.over(asked.as_ref(), Err(failed));
            }
        }
    }

    /// Gives up the load under way, and who waits for the model that was lost.
    fn give_up_load(&mut self, why: LoadError) -> Option<Thread> {
        let loader = self.loader.take()?;
        *self.shared.loading.lock() = None;
        if let Some(failed) = self.lost.take() {
            self.loaded_again(Err(why.clone()), &failed);
        }
        let (asked, thread) = loader.give_up();
        if let Some(asked) = asked {
            asked.tell(LoadEvent::Failed(why));
        }
        Some(thread)
    }

    /// The loader of that order, unless it was given up.
    fn is_current(&self, order: u64) -> bool {
        self.loader.as_ref().is_some_and(|loader| loader.order == order)
    }

    fn make_room(&mut self, order: u64, done: &Sender<()>) {
        if self.is_current(order) {
            self.drop_model();
            self.slots = Slots::default();
            self.fail_waiting(&GenerateError::Stopping);
            self.set_ready();
            // It may have given up by itself.
            let _ = done.send(());
        }
    }

    fn loaded(&mut self, order: u64, result: Result<Core, LoadError>) {
        let Some(loader) = self.loader.take_if(|loader| loader.order == order) else {
            // Given up: what it has brought goes.
            return;
        };
        match self.lost.take() {
            Some(failed) => self.loaded_again(result, &failed),
            None => self.over(loader.asked.as_ref(), result),
        }
    }

    /// Takes over what a load has brought, and says so.
    fn over(&mut self, asked: Option<&Asked>, result: Result<Core, LoadError>) {
        let event = match result {
            Ok(core) => {
                self.drop_model();
                self.fail_waiting(&GenerateError::Stopping);
                self.adopt(core)
            }
            Err(error) => {
                tracing::error!(model = asked.map(|asked| &asked.spec.model), %error, "load failed");
                LoadEvent::Failed(error)
            }
        };
        self.set_ready();
        *self.shared.loading.lock() = None;
        if let Some(asked) = asked {
            asked.tell(event);
        }
    }

    fn adopt(&mut self, core: Core) -> LoadEvent {
        let info = core.model().clone();
        let took = Duration::from_secs_f64(info.load_s);
        tracing::info!(model = info.id, device = info.device.name, ?took, "model loaded");
        self.load = self.loads;
        self.active = Vec::with_capacity(core.slots());
        self.attach(core);
        LoadEvent::Loaded(Box::new(info))
    }

    fn attach(&mut self, mut core: Core) {
        self.under_way = VecDeque::with_capacity(MAX_SUBMISSIONS);
        self.slots = Slots::new(core.division());
        self.rows = Vec::with_capacity(core.slots());
        self.tokens = Vec::with_capacity(core.slots());
        self.logits = vec![0.0; core.vocabulary()];
        let (model, text) = (core.model().clone(), Arc::clone(core.text()));
        *self.shared.served.lock() = Some(Arc::new(Served { model, text, load: self.load }));
        let (device, _, tuning) = core.tunable();
        *self.shared.tuned_device.lock() = Some(TunedDevice { device, tuning: tuning.clone() });
        self.stall = Stall::new(core.stall());
        let counts = *self.shared.prefixes.lock();
        self.prefixes = Prefixes::open(&mut core, counts, &self.shared.directories);
        self.tell_prefixes();
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
        self.prefixes = None;
        *self.shared.tuned_device.lock() = None;
        *self.shared.served.lock() = None;
    }

    fn fail_waiting(&mut self, error: &GenerateError) {
        for waiting in self.waiting.drain(..) {
            self.shared.failed();
            waiting.fail(error.clone());
        }
    }

    fn admit(&mut self) {
        let Some(core) = &self.core else { return };
        while self.has_room()
            && let Some(waiting) = self.waiting.pop_front()
        {
            self.shared.active.fetch_add(1, Ordering::Relaxed);
            self.admitted += 1;
            let (text, drafts) = (core.text(), core.drafts());
            self.active.push(Sequence::start(waiting, text, self.admitted, drafts));
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
        if !self.begin_prompt(at)? {
            return Ok(false);
        }
        let held_up = self.active.iter().any(|s| !s.in_prompt());
        if self.active[at].on_disk > 0 {
            if !self.under_way.is_empty() {
                return Ok(false);
            }
            if !self.restore(at, held_up)? {
                self.chunk_was_last = true;
                return Ok(true);
            }
        }
        if self.active[at].rests.last() == Some(&self.active[at].submitted) {
            if !self.under_way.is_empty() {
                return Ok(false);
            }
            self.active[at].rests.pop();
            // Nobody waits for the sake of who comes later.
            if !held_up {
                self.keep_rest(at)?;
            }
        }
        if self.active[at].fork == Some(self.active[at].submitted) {
            if !self.under_way.is_empty() {
                return Ok(false);
            }
            self.hold_fork(at)?;
        }
        let core = core(&mut self.core);
        let sequence = &mut self.active[at];
        let start = sequence.submitted;
        let left = sequence.prompt().len() - start;
        let most = if held_up { self.stall.rows() } else { usize::MAX }.min(core.chunk());
        let stops = sequence.rests.last().into_iter().chain(&sequence.fork);
        let most = stops.fold(most, |most, stop| most.min(stop - start));
        let Request { embed, prompt_logprobs, adapters, .. } = sequence.request;
        let outputs = match (embed, prompt_logprobs, left <= most) {
            (true, ..) => Outputs::Hidden,
            (false, true, _) => Outputs::All,
            (false, false, true) => Outputs::Last,
            (false, false, false) => Outputs::None,
        };
        let end = start + left.min(most).min(core.bucket_rows(outputs));
        let whole = end == sequence.prompt().len();
        let overlooked = sequence.overlooked();
        if whole {
            sequence.prepare(core.vocabulary(), outputs == Outputs::Last);
        }
        let sampling = if whole { sequence.request.sampling } else { Sampling::GREEDY };
        let adjustment = sequence.adjustment().filter(|_| whole).map(|adjustment| (0, adjustment));
        let (slot, position) = (sequence.slot().number, start as u32);
        let row = Row { slot, token: 0, position, sampling, adapters };
        let prompt = sequence.prompt();
        let next = prompt.get(end).copied();
        let (prompt, adjustments) = (&prompt[start..end], adjustment.as_slice());
        if !core.submit_chunk(row, prompt, next, outputs, adjustments, !overlooked)? {
            return Ok(false);
        }
        if self.under_way.is_empty() {
            sequence.begins_step(Instant::now());
        }
        sequence.submitted = end;
        self.chunk_was_last = true;
        let (id, submitted) = (sequence.id, Instant::now());
        self.under_way.push_back(Work::Chunk { id, start, end, outputs, submitted });
        Ok(true)
    }

    /// Submits the next token of every sequence that is past its prompt: from the tokens that the host has
    /// seen, or, where all go on, one step ahead of them.
    fn submit_decode(&mut self) -> Result<bool, device::Error> {
        if !self.grow()? {
            return Ok(false);
        }
        let core = core(&mut self.core);
        let decodes = |work: &Work| !matches!(work, Work::Chunk { .. });
        let under_way = self.under_way.iter().filter(|work| decodes(work)).count();
        let past_prompt = || self.active.iter().filter(|s| !s.in_prompt());
        let ids = match self.under_way.iter().rev().find(|work| decodes(work)) {
            None => {
                // In slot order: rows change places only when a sequence comes or goes.
                let mut sequences: Vec<&mut Sequence> =
                    self.active.iter_mut().filter(|s| !s.in_prompt()).collect();
                // Who decodes alone reads the weights for one token: more of them cost little more.
                let draft = match &mut sequences[..] {
                    [alone] => match alone.draft(core.context()) {
                        Draft::Nothing => Vec::new(),
                        Draft::Said(draft) => draft,
                        Draft::Model(most) => {
                            let sampling = alone.request.sampling;
                            let slot = alone.slot().number;
                            let draft = core.guess(slot, alone.tokens(), sampling, most)?;
                            if !core.guesses() {
                                alone.without_guesses();
                            }
                            draft
                        }
                    },
                    _ => Vec::new(),
                };
                // Whose state lacks tokens has a step of its own too.
                let of_its_own = |s: &&&mut Sequence| s.behind > 0 || !draft.is_empty();
                if let Some(alone) = sequences.iter().find(of_its_own) {
                    let rows = [alone.newest(), &draft].concat();
                    if !core.submit_chunk(alone.row(), &rows, None, Outputs::All, &[], true)? {
                        return Ok(false);
                    }
                    self.chunk_was_last = false;
                    let (id, again) = (alone.id, alone.behind);
                    self.under_way.push_back(Work::Verify { id, again, draft });
                    return Ok(true);
                }
                sequences.sort_unstable_by_key(|s| s.slot().number);
                self.rows.clear();
                self.rows.extend(sequences.iter().map(|s| s.row()));
                let rests = sequences.iter().all(|s| s.rests());
                let deferred = sequences.iter().any(|s| s.masks());
                if deferred {
                    if !core.submit_deferring(&self.rows)? {
                        return Ok(false);
                    }
                    self.under_way.push_back(Work::Deferring);
                }
                sequences.iter_mut().for_each(|s| s.prepare(core.vocabulary(), true));
                let adjustments = sequences.iter().enumerate();
                let adjustments: Vec<_> =
                    adjustments.filter_map(|(row, s)| Some((row, s.adjustment()?))).collect();
                if deferred {
                    core.submit_deferred(&self.rows, &adjustments, !rests)?;
                } else if !core.submit_decode(&self.rows, &adjustments, !rests)? {
                    return Ok(false);
                }
                sequences.iter().map(|s| s.id).collect()
            }
            Some(Work::Decode(ids))
                if under_way == 1
                    && past_prompt().count() == ids.len()
                    && past_prompt().all(|s| {
                        s.can_run_ahead(core.context(), ids.len() == 1) && ids.contains(&s.id)
                    }) =>
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
        self.active.iter_mut().for_each(Sequence::look_ahead);
        let core = core(&mut self.core);
        let finished = core.finish(&mut self.tokens);
        self.shared.stepped(core);
        if let Some(mode) = core.mode() {
            first_light::lowered(core.device(), mode, core.light(), &self.shared);
        }
        let step = finished?;
        let now = Instant::now();
        if let Some(Work::Deferring) = self.under_way.front() {
            self.under_way.pop_front();
            self.stall.done(None, now);
            return Ok(());
        }
        let (alone, mut took) = (self.active.len() == 1, None);
        for sequence in &mut self.active {
            took = sequence.took(now, alone);
        }
        match self.under_way.pop_front() {
            Some(Work::Chunk { id, start, end, outputs, submitted }) => {
                self.stall.done(Some((end - start, submitted)), now);
                if let Some(sequence) = self.active.iter_mut().find(|s| s.id == id) {
                    sequence.prompted(took);
                }
                self.finish_chunk(&step, id, start..end, outputs)
            }
            Some(Work::Decode(ids)) => {
                self.stall.done(None, now);
                if let (true, [alone]) = (ids.len() == 1, &mut self.active[..]) {
                    alone.judged(0, 0, took);
                }
                self.finish_decode(&step, &ids)
            }
            Some(Work::Verify { id, again, draft }) => {
                self.stall.done(None, now);
                let sampled = self.tokens.iter().skip(again);
                let accepted = draft.iter().zip(sampled).take_while(|(a, b)| a == b).count();
                if let Some(sequence) = self.active.iter_mut().find(|s| s.id == id) {
                    sequence.judged(draft.len(), accepted, took);
                }
                self.finish_verify(&step, id, again..=again + accepted, draft.len())
            }
            Some(Work::Deferring) | None => unreachable!("a step under way that is for nobody"),
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
        if outputs == Outputs::Hidden {
            return self.finish_hidden(step, at, &part);
        }
        if outputs == Outputs::All {
            if part.start == 0 {
                sequence.prompt_logits(0, None);
            }
            for (row, predicted) in (part.start + 1..=part.end).enumerate() {
                if predicted < sequence.request.prompt.len() {
                    if self.tokens[row] == NOT_FINITE {
                        self.fail_not_finite(at, predicted);
                        return Ok(());
                    }
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
        self.hand_out(step, row, at)
    }

    /// Takes the rows of a chunk that an embedding is made of; behind the last one it is complete.
    fn finish_hidden(
        &mut self,
        step: &Step,
        at: usize,
        part: &Range<usize>,
    ) -> Result<(), device::Error> {
        let core = core(&mut self.core);
        let Some((width, pooling)) = core.embedding() else {
            unreachable!("only models that embed are asked for embeddings");
        };
        let sequence = &mut self.active[at];
        let wanted = match pooling {
            Pooling::Mean => part.clone(),
            Pooling::First => part.start..part.end.min(1).max(part.start),
            Pooling::Last if sequence.in_prompt() => part.end..part.end,
            Pooling::Last => part.end - 1..part.end,
        };
        let mut row = vec![0.0; width];
        for position in wanted {
            core.hidden(step, position - part.start, &mut row)?;
            if !sequence.pool(&row) {
                self.fail_not_finite(at, position);
                return Ok(());
            }
        }
        if !sequence.in_prompt() {
            sequence.embedded();
            self.finish(at, FinishReason::Complete);
        }
        Ok(())
    }

    fn finish_decode(&mut self, step: &Step, ids: &[u64]) -> Result<(), device::Error> {
        for (row, id) in ids.iter().enumerate() {
            // Who is not there any more has ended, and this step was one too far.
            if let Some(at) = self.active.iter().position(|s| s.id == *id) {
                self.active[at].position += 1;
                self.hand_out(step, row, at)?;
            }
        }
        Ok(())
    }

    /// Hands out the token after the newest one, and those after the tokens of the draft that came true: the rows
    /// behind them were evaluated for nothing, and are written again. A state of fixed size has taken them in: unless
    /// all came true the next step goes on from what it was before this one.
    fn finish_verify(
        &mut self,
        step: &Step,
        id: u64,
        rows: RangeInclusive<usize>,
        drafted: usize,
    ) -> Result<(), device::Error> {
        let rewinds = core(&mut self.core).rewinds();
        let last = rows.start() + drafted;
        for row in rows {
            // It may end within the draft.
            let Some(at) = self.active.iter().position(|s| s.id == id) else { break };
            let sequence = &mut self.active[at];
            sequence.position += 1;
            let stands = rewinds || row == last;
            sequence.behind = if stands { 0 } else { row + 1 };
            self.hand_out(step, row, at)?;
        }
        Ok(())
    }

    /// Gives a sequence the token sampled from one row of a step's logits.
    fn hand_out(&mut self, step: &Step, row: usize, at: usize) -> Result<(), device::Error> {
        let token = self.tokens[row];
        let core = core(&mut self.core);
        let sequence = &mut self.active[at];
        if token == NOT_FINITE {
            let masked = sequence.adjustment().is_some_and(|adjustment| adjustment.mask.is_some());
            if masked {
                core.logits(step, row, &mut self.logits)?;
            }
            match sequence.dead_end(&self.logits).filter(|_| masked) {
                Some(error) => self.fail(at, error),
                None => self.fail_not_finite(at, self.active[at].position),
            }
            return Ok(());
        }
        let logits = if sequence.wants_logits() {
            core.logits(step, row, &mut self.logits)?;
            Some(&self.logits[..])
        } else {
            None
        };
        let token = match logits.map(|logits| sequence.choose(token, logits)) {
            None => token,
            Some(Ok(NOT_FINITE)) => {
                self.fail_not_finite(at, self.active[at].position);
                return Ok(());
            }
            Some(Ok(token)) => token,
            Some(Err(error)) => {
                self.fail(at, error);
                return Ok(());
            }
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
        if let Some(core) = &mut self.core {
            core.draft_as(self.active[at].drafts());
        }
        // What it has left under way moves states of a fixed size beyond where it stands.
        let ended = reason != FinishReason::Cancelled;
        let sequence = self.active.remove(at);
        let adapters = sequence.request.adapters;
        let (finished, events, slot, (mut tokens, written)) = sequence.finish(reason);
        if !ended && !self.core.as_ref().is_some_and(Core::rewinds) {
            tokens.clear();
        }
        self.release(slot, (tokens, written), adapters);
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

    /// Takes back the place of who is served no more, and what was left there. Who never had a turn has none.
    fn release(&mut self, slot: Option<Slot>, left: (Vec<u32>, usize), adapters: Scales) {
        self.shared.active.fetch_sub(1, Ordering::Relaxed);
        if let Some(slot) = slot {
            self.slots.end(slot, left.0, adapters, left.1);
        }
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
                Command::Load(asked) => asked.tell(LoadEvent::Failed(LoadError::Stopping)),
                // Dropping them tells who waits.
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
