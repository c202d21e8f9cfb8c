//! A loaded model on the Orin's GPU.
//!
//! A step is one submission: the recorded body, the queue's tail, one doorbell. Steps of a
//! submission are submitted at once; the ring preserves their order.
//!
//! After a fault the channels are rebuilt and the interrupted step runs again. Caches and scratch
//! are intact, and inputs that the plan advances are restored from the ring of sampled tokens, so a
//! fault changes no token. A step that fails twice runs in the next lower mode, for which all plans
//! are recorded again.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tegra::address::GpuAddress;
use tegra::buffer::{Loading, Mailbox, Placement, Scratch, WeightsPool};
use tegra::context::{self, Context, Options, QueueId};
use tegra::local_memory::LocalMemory;
use tegra::pushbuffer::{Engine, Entry};
use tegra::queue::Wake;
use tegra::space::AddressSpace;

use super::super::launch::Launch;
use super::super::layout::Layout;
use super::super::lower::{Addresses, lower};
use super::super::storage::{ALIGN, of_device};
use super::super::variant::{Tuning, compiles};
use super::super::weights::fill;
use super::code::Code;
use super::evidence::{self, Scene};
use super::keeper::Keeper;
use super::record::{Recording, Source, Stamped};
use super::slots::Slots;
use super::uploads::Uploads;
use super::watchdog::watch;
use super::{DEVICE, TARGET, failed};
use crate::ledger::{self, Ledger, Write, invalid, words};
use crate::modes::{Mode, WakeBy};
use crate::plan_buffers::PlanBuffers;
use crate::tune::Choices;
use crate::{
    Activity, Data, Error, Footprint, Instance, MAX_SUBMISSIONS, Part, Prepared, Profile,
    RING_STEPS, Result, Ticket, Timing, WeightSource,
};
use plan::{BufferId, NextInputs, Op, Plan, Sample};
use tracing::field::display;

/// Ring entries of the channel: two per step in flight, one per submission for uploads.
const ENTRIES: u32 = (MAX_SUBMISSIONS as u32 * (2 * RING_STEPS + 1) + 1).next_power_of_two();
/// Failures of a step per mode. Without a lower mode the device is lost.
const ATTEMPTS: u32 = 2;
/// Time limit for a new channel's first answer.
const OPENING: Duration = Duration::from_secs(1);

enum Pool {
    Loading(Box<Loading>),
    Sealed(WeightsPool),
}

struct PlanState {
    /// Mailboxes, outputs and ring.
    memory: Mailbox,
    launches: Vec<Launch>,
    /// Positions that the plan's rows see.
    context: u64,
    recording: Recording,
    advances: Option<Advances>,
}

/// Mailboxes that every step of a plan advances, as offsets into the plan's buffers.
#[derive(Clone, Copy)]
struct Advances {
    tokens: u64,
    positions: u64,
    rows: usize,
}

impl Advances {
    fn of(plan: &Plan, buffers: &PlanBuffers) -> Result<Option<Self>> {
        let next = plan.steps.iter().find_map(|step| match &step.op {
            Op::Sample(Sample { next: Some(next), .. }) => Some(next),
            _ => None,
        });
        let Some(NextInputs { tokens, positions }) = next else { return Ok(None) };
        match (buffers.offset(tokens.buffer), buffers.offset(positions.buffer)) {
            (Some(to), Some(at)) => {
                Ok(Some(Self { tokens: to, positions: at, rows: tokens.elements() }))
            }
            _ => invalid("a step advances a buffer that is no mailbox"),
        }
    }
}

/// A submission that has not been waited for.
struct Flight {
    sequence: u64,
    prepared: Prepared,
    /// Steps of the plan before it.
    base: u64,
    tickets: Vec<context::Ticket>,
    /// Stream that writes mailboxes before its first step.
    upload: Option<Entry>,
    /// Inputs it starts from, for plans whose steps advance their inputs.
    inputs: Option<Inputs>,
}

/// Mailboxes that a plan advances, before a submission.
struct Inputs {
    /// `None` for the tokens sampled by the previous step.
    tokens: Option<Vec<u8>>,
    positions: Vec<u8>,
}

impl Inputs {
    fn positions_after(&self, steps: u64) -> Vec<u8> {
        let positions = self.positions.as_chunks::<4>().0.iter();
        let after = |p: &[u8; 4]| u32::from_le_bytes(*p).wrapping_add(steps as u32).to_le_bytes();
        positions.flat_map(after).collect()
    }
}

/// Memory of one model on the GPU, and its queue.
pub(super) struct NvInstance {
    // Dropped first: nothing may run while the rest is released.
    context: RefCell<Context>,
    queue: QueueId,
    ledger: Ledger<PlanState>,
    flights: VecDeque<Flight>,
    uploads: Uploads,
    /// Created on first use.
    slots: Option<Slots>,
    layout: Layout,
    pool: Option<Pool>,
    placements: HashMap<String, Placement>,
    caches: Scratch,
    /// Block table.
    table: Mailbox,
    scratch: Scratch,
    counters: Mailbox,
    code: Code,
    /// Memory of the threads' stacks.
    local: Scratch,
    choices: Choices,
    space: AddressSpace,
    mode: Mode,
    launches: u64,
    /// Writer of fault bundles.
    keeper: Option<Keeper>,
}

impl NvInstance {
    /// Reserves all memory and opens the channel, so that failures occur before weights are read.
    pub(super) fn new(
        space: AddressSpace,
        layout: Layout,
        choices: Choices,
        mode: Mode,
        options: Options,
    ) -> Result<Self> {
        let mut context = Context::new(&space, options).map_err(failed)?;
        let queue = context.add_queue(Engine::Compute, ENTRIES).map_err(failed)?;
        let code = Code::new(&space)?;
        let local = Scratch::new(&space, code.local.total).map_err(failed)?;
        let stacks = LocalMemory::new(local.address(), code.local.per_tpc);
        let stacks = stacks.map_err(|e| failed(tegra::Error::from(e)))?;
        context.set_local_memory(stacks).map_err(failed)?;
        context.open().and_then(|()| context.drain(OPENING)).map_err(failed)?;
        let scratch = |bytes: u64| Scratch::new(&space, bytes.max(1)).map_err(failed);
        let counters = Mailbox::new(&space, layout.workspace.counters().max(1)).map_err(failed)?;
        let uploads = Uploads::new(&space, layout.mailbox_bytes)?;
        // Parts are copied whole, even if steps have written little of them.
        let caches = Scratch::cleared(&space, layout.state_bytes.max(1)).map_err(failed)?;
        let table = Mailbox::new(&space, layout.table_bytes().max(1)).map_err(failed)?;
        set_table(&table, 0, &layout.table.first())?;
        Ok(Self {
            context: RefCell::new(context),
            queue,
            ledger: Ledger::new(),
            flights: VecDeque::new(),
            uploads,
            slots: None,
            pool: Some(Pool::Loading(Box::new(Loading::new(&space, layout.weight_bytes)))),
            placements: HashMap::new(),
            caches,
            table,
            scratch: scratch(layout.workspace.scratch())?,
            counters,
            code,
            local,
            choices,
            layout,
            space,
            mode,
            launches: 0,
            keeper: None,
        })
    }

    /// Makes the weights available to the GPU, once.
    fn seal(&mut self) -> Result<()> {
        if let Some(name) = self.layout.weights.keys().find(|n| !self.placements.contains_key(*n)) {
            return invalid(format!("weight `{name}` has not been uploaded"));
        }
        if let Some(Pool::Loading(loading)) = self.pool.take_if(|p| matches!(p, Pool::Loading(_))) {
            self.pool = Some(Pool::Sealed(loading.seal().map_err(failed)?));
        }
        Ok(())
    }

    /// Addresses and launches of a plan.
    fn launches(
        &mut self,
        plan: &Plan,
        buffers: &PlanBuffers,
        buffers_at: u64,
        choices: &Choices,
    ) -> Result<Vec<Launch>> {
        self.seal()?;
        let Some(Pool::Sealed(pool)) = &self.pool else {
            return invalid("weights were lost during their upload to the GPU");
        };
        let mut weights = HashMap::new();
        for (name, layout) in &self.layout.weights {
            let address = self.placements.get(name).and_then(|&placement| pool.address(placement));
            let Some(address) = address else {
                return invalid(format!("weight `{name}` has no address"));
            };
            weights.insert(name.clone(), (address.get(), *layout));
        }
        let states = self.layout.states_at(self.caches.address().get());
        lower(
            plan,
            &Addresses {
                weights: &weights,
                states: &states,
                table: (self.table.address().get(), self.layout.table),
                workspace: &self.layout.workspace,
                scratch: self.scratch.address().get(),
                counters: self.counters.address().get(),
                buffers,
                buffers_at,
                sms: self.space.orin().sms(),
                tuning: Tuning { target: TARGET, choices: Some(choices), compiles: compiles() },
            },
        )
        .map_err(of_device(DEVICE))
    }

    /// Submits steps of a plan; `upload` precedes the first.
    fn launch(
        &mut self,
        prepared: Prepared,
        upload: Option<Entry>,
        steps: Range<u64>,
    ) -> Result<Vec<context::Ticket>> {
        let PlanState { recording, launches, .. } = &self.ledger.entry(prepared)?.state;
        let context = self.context.get_mut();
        let mut tickets = Vec::with_capacity((steps.end - steps.start) as usize);
        for step in steps.clone() {
            let wake = match self.mode.wake {
                WakeBy::Event if step + 1 == steps.end => Wake::Interrupt,
                WakeBy::Event | WakeBy::Poll => Wake::Quiet,
            };
            let body = recording.body(step);
            let ticket = match upload.filter(|_| step == steps.start) {
                Some(upload) => context.submit(self.queue, &[upload, body], wake),
                None => context.submit(self.queue, &[body], wake),
            };
            tickets.push(ticket.map_err(failed)?);
            self.launches += launches.len() as u64;
        }
        Ok(tickets)
    }

    /// Starts writing a bundle before recovery changes the state; returns its path.
    fn report(&mut self, message: &dyn Display) -> Option<PathBuf> {
        let keeper = self.keeper.as_mut()?;
        if !keeper.is_due() {
            return None;
        }
        let context = self.context.get_mut();
        let (flight, done) = self.flights.iter().find_map(|flight| {
            let done = done(context, &flight.tickets);
            (done < flight.tickets.len()).then_some((flight, done))
        })?;
        let state = &self.ledger.entry(flight.prepared).ok()?.state;
        let tensors = self.placements.iter().filter_map(|(name, &placement)| {
            let Some(Pool::Sealed(pool)) = &self.pool else { return None };
            Some((pool.address(placement)?.get(), self.layout.weights.get(name)?.bytes()))
        });
        let bundle = evidence::collect(&Scene {
            space: &self.space,
            fault: &context.describe(),
            message: message.to_string(),
            recording: &state.recording,
            launches: &state.launches,
            step: flight.base + done as u64,
            code: &self.code,
            local: self.local.address().get(),
            tensors: &tensors.collect(),
        });
        Some(keeper.keep(bundle))
    }

    /// Rebuilds the channel after a fault and repeats the interrupted steps, in another mode if
    /// given.
    fn recover(&mut self, mode: Option<Mode>) -> Result<()> {
        self.context.get_mut().rebuild().map_err(failed)?;
        if let Some(mode) = mode {
            self.change_mode(mode)?;
        }
        self.ledger.states_mut().try_for_each(|state| state.recording.begin_again())?;
        let counters = vec![0; self.layout.workspace.counters() as usize];
        self.counters.write(0, &counters).map_err(failed)?;
        let mut restored = HashSet::new();
        for i in 0..self.flights.len() {
            let flight = &self.flights[i];
            let done = done(self.context.get_mut(), &flight.tickets);
            if done == flight.tickets.len() {
                continue;
            }
            let (prepared, from) = (flight.prepared, flight.base + done as u64);
            let to = flight.base + flight.tickets.len() as u64;
            let upload = flight.upload.filter(|_| done == 0);
            // Later submissions of the plan continue from this one's end.
            if restored.insert(prepared) {
                self.restore(flight, done as u64)?;
            }
            let again = self.launch(prepared, upload, from..to)?;
            self.flights[i].tickets.splice(done.., again);
        }
        Ok(())
    }

    /// Copies slot data; once more on rebuilt channels if a fault interrupts it.
    fn move_slots(
        &mut self,
        mut what: impl FnMut(&mut Slots, &mut Context, GpuAddress) -> Result<(), tegra::Error>,
    ) -> Result<()> {
        let base = self.caches.address();
        let mut slots = match self.slots.take() {
            Some(slots) => slots,
            None => Slots::new(&self.space, self.context.get_mut()).map_err(failed)?,
        };
        let moved = match what(&mut slots, self.context.get_mut(), base) {
            Err(error) if error.can_rebuild() => {
                tracing::warn!(%error, "GPU fault: rebuilding the channel and repeating the copy");
                let rebuilt = self.recover(None);
                rebuilt
                    .and_then(|()| what(&mut slots, self.context.get_mut(), base).map_err(failed))
            }
            moved => moved.map_err(failed),
        };
        self.slots = Some(slots);
        moved.map_err(|error| self.ledger.lose(error))
    }

    /// Records every plan for another mode. Nothing may be running.
    fn change_mode(&mut self, mode: Mode) -> Result<()> {
        tracing::warn!(from = %self.mode, to = %mode, "switching the GPU to a lower mode");
        self.mode = mode;
        for state in self.ledger.states_mut() {
            let (space, code) = (&self.space, &self.code);
            let source = Source { space, code, launches: &state.launches, mode };
            state.recording = Recording::new(source, state.context)?;
        }
        Ok(())
    }

    /// Restores a plan's inputs and cursor to their values after `done` steps of a submission.
    fn restore(&self, flight: &Flight, done: u64) -> Result<()> {
        let ledger::Entry { buffers, state, .. } = self.ledger.entry(flight.prepared)?;
        let memory = &state.memory;
        let cursor = flight.base + done;
        memory.store_u32(buffers.cursor, cursor as u32).map_err(failed)?;
        let Some(advances) = state.advances else { return Ok(()) };
        let Some(inputs) = &flight.inputs else {
            unreachable!("`submit` notes the inputs of a plan that advances them");
        };
        match &inputs.tokens {
            Some(tokens) if done == 0 => memory.write(advances.tokens, tokens),
            _ => {
                let mut tokens = vec![0; 4 * advances.rows];
                let sampled = memory.read(buffers.ring_at(cursor - 1), &mut tokens);
                sampled.and_then(|()| memory.write(advances.tokens, &tokens))
            }
        }
        .map_err(failed)?;
        memory.write(advances.positions, &inputs.positions_after(done)).map_err(failed)
    }

    /// Inputs that the plan's next submission starts from.
    fn inputs(&self, prepared: Prepared, writes: &[Write<'_>]) -> Result<Option<Inputs>> {
        let state = &self.ledger.entry(prepared)?.state;
        let Some(Advances { tokens, positions, rows }) = state.advances else { return Ok(None) };
        let before = self.flights.iter().rev().find(|flight| flight.prepared == prepared);
        let mut inputs = match before.and_then(|f| Some((f.inputs.as_ref()?, f.tickets.len()))) {
            Some((before, steps)) => {
                Inputs { tokens: None, positions: before.positions_after(steps as u64) }
            }
            None => {
                let read = |at| {
                    let mut bytes = vec![0; 4 * rows];
                    state.memory.read(at, &mut bytes).map_err(failed)?;
                    Ok::<_, Error>(bytes)
                };
                Inputs { tokens: Some(read(tokens)?), positions: read(positions)? }
            }
        };
        for write in writes {
            let Some(at) = write.offset.checked_sub(positions) else { continue };
            if let Some(place) = inputs.positions.get_mut(at as usize..)
                && let Some(place) = place.get_mut(..write.bytes.len())
            {
                place.copy_from_slice(&write.bytes);
            }
        }
        Ok(Some(inputs))
    }

    /// Runs a normal step, then one with a timestamp after each launch.
    fn profile_steps(&mut self, prepared: Prepared) -> Result<Profile> {
        let writes = self.ledger.staged(prepared)?;
        let ledger::Entry { state, steps, .. } = self.ledger.entry(prepared)?;
        let PlanState { recording, launches, memory, .. } = state;
        let polls = recording.polls();
        let (space, code) = (&self.space, &self.code);
        let source = Source { space, code, launches, mode: self.mode };
        let stamped = Stamped::new(source)?;
        let mut bodies = vec![recording.body(*steps)];
        if !writes.is_empty() {
            bodies.insert(0, self.uploads.record(memory.address(), &writes)?);
        }
        let (context, queue) = (self.context.get_mut(), self.queue);
        let whole = time(context, queue, &bodies, polls, || recording.progress())?;
        let parts = time(context, queue, &[stamped.body], polls, || stamped.done())?;
        self.launches += 2 * launches.len() as u64;
        let mut last = parts.started;
        let timing = |(Launch { step, label, kernel, .. }, at): (&Launch, u64)| Timing {
            step: *step,
            label: label.clone(),
            kernel: kernel.symbol(),
            nanoseconds: at.saturating_sub(std::mem::replace(&mut last, at)),
        };
        let timings = launches.iter().zip(stamped.times()?).map(timing).collect();
        let whole = Duration::from_nanos(whole.finished.saturating_sub(whole.started));
        Ok(Profile { timings, serialised: true, whole })
    }

    /// Waits for all steps of the oldest submission and recovers from faults.
    fn finish_oldest(&mut self) -> Result<()> {
        // Number of failures of the step after the first `reached` ones.
        let (mut attempts, mut reached) = (0, 0);
        loop {
            let Some(flight) = self.flights.front() else {
                unreachable!("asked for only while something is under way");
            };
            let context = self.context.get_mut();
            let Some(&last) = flight.tickets.last() else {
                unreachable!("no submission is without steps");
            };
            let recording = &self.ledger.entry(flight.prepared)?.state.recording;
            let started = Instant::now();
            // More polls with every repetition of a step, which may only be slow.
            let polls = |&(done, _): &(usize, _)| {
                recording.polls() * if done > reached { 1 } else { attempts + 1 }
            };
            let is_late = |error: &tegra::Error| matches!(error, tegra::Error::Stalled { .. });
            let waited = watch(polls, is_late, |limit| {
                let result = context.wait(last, limit);
                ((done(context, &flight.tickets), recording.progress()), result)
            });
            let error = match waited {
                Ok(()) => {
                    self.flights.pop_front();
                    return Ok(());
                }
                Err(tegra::Error::Stalled { queue, value, completed, .. }) => {
                    let waited = started.elapsed();
                    tegra::Error::Stalled { queue, value, completed, waited }
                }
                Err(error) => error,
            };
            let done = done(context, &flight.tickets);
            attempts = if done > reached { 1 } else { attempts + 1 };
            reached = done;
            let is_last = attempts == ATTEMPTS;
            let lower = self.mode.chains.lower().filter(|_| is_last);
            let left = if error.can_rebuild() { self.report(&error) } else { None };
            let bundle = left.map(|path| display(path.display().to_string()));
            if !error.can_rebuild() || is_last && lower.is_none() {
                tracing::warn!(%error, attempts, bundle, "GPU fault: giving up on the step");
                return Err(match failed(error) {
                    Error::Lost { scope, reason, source, .. } => {
                        Error::Lost { scope, rebuildable: true, reason, source }
                    }
                    other => other,
                });
            }
            tracing::warn!(%error, attempts, bundle, "GPU fault: rebuilding the channel and repeating the step");
            if is_last {
                attempts = 0;
            }
            self.recover(lower.map(|chains| Mode { chains, ..self.mode }))?;
        }
    }
}

impl Instance for NvInstance {
    fn footprint(&self) -> Footprint {
        self.layout.footprint()
    }

    fn code(&self) -> Option<u64> {
        Some(self.code.bytes())
    }

    fn activity(&self) -> Activity {
        // A submission is one write of GP_PUT and one doorbell.
        let done = self.context.borrow().statistics();
        Activity {
            launches: self.launches,
            submits: done.submissions,
            doorbells: done.submissions,
            sleeps: done.sleeps,
            rebuilds: done.rebuilds,
        }
    }

    fn mode(&self) -> Option<Mode> {
        Some(self.mode)
    }

    fn write_fault_bundles(&mut self, state: &Path) {
        self.keeper = Some(Keeper::new(state));
    }

    fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        self.ledger.quiet("weights cannot change")?;
        let Some(&layout) = self.layout.weights.get(weight) else {
            return invalid(format!("weight `{weight}` is not part of the request"));
        };
        let Some(Pool::Loading(loading)) = &mut self.pool else {
            return invalid("weights cannot change once plans have been prepared");
        };
        if self.placements.contains_key(weight) {
            return invalid(format!("weight `{weight}` has been uploaded already"));
        }
        let (placement, place) = loading.tensor(layout.bytes(), ALIGN).map_err(failed)?;
        fill(weight, &layout, source, place, progress)?;
        self.placements.insert(weight.to_owned(), placement);
        Ok(())
    }

    fn blocks(&self) -> u32 {
        self.layout.table.blocks() as u32
    }

    fn map(&mut self, slot: u32, blocks: &[u32]) -> Result<()> {
        self.ledger.quiet("blocks cannot change slots")?;
        let row = self.layout.table.row(slot, blocks)?;
        set_table(&self.table, slot as usize * row.len(), &row)
    }

    fn copy_part(&mut self, from: Part, to: Part) -> Result<()> {
        self.ledger.quiet("slots cannot be copied")?;
        let copies = self.layout.slots.copies(from, to)?;
        self.move_slots(|slots, context, base| slots.copy(context, base, &copies))
    }

    fn part_bytes(&self, part: Part) -> Option<usize> {
        Some(self.layout.slots.part_bytes(part))
    }

    fn read_part(&mut self, part: Part, out: &mut [u8]) -> Result<()> {
        self.ledger.quiet("slots cannot be read")?;
        let ranges = self.layout.slots.part(part, out.len())?;
        self.move_slots(|slots, context, base| slots.read(context, base, &ranges, out))
    }

    fn write_part(&mut self, part: Part, bytes: &[u8]) -> Result<()> {
        self.ledger.quiet("slots cannot be written")?;
        let ranges = self.layout.slots.part(part, bytes.len())?;
        self.move_slots(|slots, context, base| slots.write(context, base, &ranges, bytes))
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared> {
        let choices = self.choices.clone();
        self.prepare_as(plan, &choices)
    }

    fn prepare_as(&mut self, plan: &Plan, choices: &Choices) -> Result<Prepared> {
        self.layout.admits(plan).map_err(of_device(DEVICE))?;
        let buffers = PlanBuffers::new(plan);
        let memory = Mailbox::new(&self.space, buffers.bytes).map_err(failed)?;
        memory.write(0, &vec![0; buffers.bytes as usize]).map_err(failed)?;
        let counters = vec![0; self.layout.workspace.counters() as usize];
        if self.ledger.is_empty() && !counters.is_empty() {
            self.counters.write(0, &counters).map_err(failed)?;
        }
        let launches = self.launches(plan, &buffers, memory.address().get(), choices)?;
        self.code.add(&self.space, launches.iter().map(|launch| launch.kernel))?;
        let context = plan.bucket.context as u64;
        let (space, code) = (&self.space, &self.code);
        let source = Source { space, code, launches: &launches, mode: self.mode };
        let recording = Recording::new(source, context)?;
        let advances = Advances::of(plan, &buffers)?;
        self.ledger.add(buffers, PlanState { memory, launches, context, recording, advances })
    }

    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<()> {
        self.ledger.write(prepared, mailbox, at, data, |state, write| {
            state.memory.write(write.offset, &write.bytes).map_err(failed)
        })
    }

    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket> {
        let entry = self.ledger.admit(prepared, steps)?;
        let base = entry.steps;
        let to = entry.state.memory.address();
        let writes = self.ledger.staged(prepared)?;
        let inputs = self.inputs(prepared, &writes)?;
        let upload = match &writes[..] {
            [] => None,
            writes => Some(self.uploads.record(to, writes)?),
        };
        let range = base..base + u64::from(steps);
        let handed_over = match self.launch(prepared, upload, range.clone()) {
            // An earlier submission faulted; it is repeated first.
            Err(Error::Lost { rebuildable: true, reason, .. }) => {
                let bundle = self.report(&reason).map(|path| display(path.display().to_string()));
                tracing::warn!(error = reason, bundle, "GPU fault: the channel is rebuilt");
                self.recover(None).and_then(|()| self.launch(prepared, upload, range))
            }
            handed_over => handed_over,
        };
        let tickets = handed_over.map_err(|error| self.ledger.lose(error))?;
        let ticket = self.ledger.submitted(prepared, steps)?;
        let sequence = ticket.sequence;
        self.flights.push_back(Flight { sequence, prepared, base, tickets, upload, inputs });
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        if self.ledger.is_open(ticket)? {
            while self.flights.front().is_some_and(|flight| flight.sequence <= ticket.sequence) {
                self.finish_oldest().map_err(|error| self.ledger.lose(error))?;
            }
            self.ledger.finished(ticket);
        }
        Ok(())
    }

    fn profile(&mut self, prepared: Prepared) -> Result<Profile> {
        self.ledger.quiet("a step cannot be timed")?;
        let profile = self.profile_steps(prepared).map_err(|error| self.ledger.lose(error))?;
        let ticket = self.ledger.submitted(prepared, 2)?;
        self.ledger.finished(ticket);
        Ok(profile)
    }

    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<()> {
        let (entry, at) = self.ledger.tokens(ticket, step, out.len())?;
        let mut bytes = vec![0; 4 * out.len()];
        entry.state.memory.read(at, &mut bytes).map_err(failed)?;
        words(&bytes, out, i32::from_le_bytes);
        Ok(())
    }

    fn read(&self, prepared: Prepared, output: BufferId, at: usize, out: &mut [f32]) -> Result<()> {
        let (entry, offset) = self.ledger.output(prepared, output, at, out.len())?;
        let mut bytes = vec![0; 4 * out.len()];
        entry.state.memory.read(offset, &mut bytes).map_err(failed)?;
        words(&bytes, out, f32::from_le_bytes);
        Ok(())
    }
}

/// Sets consecutive entries of a block table. Nothing may be running.
fn set_table(table: &Mailbox, at: usize, entries: &[u32]) -> Result<()> {
    let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    table.write(4 * at as u64, &bytes).map_err(failed)
}

/// Number of completed steps; a lost one is not.
fn done(context: &mut Context, tickets: &[context::Ticket]) -> usize {
    tickets.iter().take_while(|ticket| context.is_done(**ticket).unwrap_or(false)).count()
}

/// Executes streams alone and returns the duration. `progress` changes while they progress.
fn time<P: PartialEq>(
    context: &mut Context,
    queue: QueueId,
    bodies: &[Entry],
    polls: u32,
    progress: impl Fn() -> P,
) -> Result<context::Timing> {
    let ticket = context.submit_timed(queue, bodies, Wake::Interrupt).map_err(failed)?;
    let is_late = |error: &tegra::Error| matches!(error, tegra::Error::Stalled { .. });
    let wait = |limit| {
        let result = context.wait(ticket, limit);
        (progress(), result)
    };
    watch(|_| polls, is_late, wait).map_err(failed)?;
    match context.timing(ticket).map_err(failed)? {
        Some(timing) => Ok(timing),
        None => invalid("missing GPU timestamps of a step"),
    }
}
