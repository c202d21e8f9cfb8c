//! One loaded model on the Orin's GPU, behind the asynchronous seam.
//!
//! A step is one submission: the recorded body and the queue's tail, one doorbell. Steps of a
//! submission are all handed over at once; the ring keeps them in order.
//!
//! After a fault the channels are rebuilt and the interrupted step is executed again: caches and
//! scratch still lie in memory, inputs that the plan advances by itself are set back to what they
//! were, from the ring of sampled tokens. So a fault changes no token.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use orind_kernels::catalogue::Kernel;
use tegra::buffer::{Loading, Mailbox, Placement, Scratch, WeightsPool};
use tegra::context::{self, Context, Options, QueueId};
use tegra::local_memory::LocalMemory;
use tegra::pushbuffer::Engine;
use tegra::queue::Wake;
use tegra::space::AddressSpace;

use super::super::launch::Launch;
use super::super::layout::{ALIGN, Layout, Own};
use super::super::ledger::{Entry, Ledger, QUEUE, invalid, words};
use super::super::lower::{Addresses, lower};
use super::super::variant::{Tuning, compiles};
use super::super::weights::fill;
use super::TARGET;
use super::code::Code;
use super::failed;
use super::patience::{Signs, watch};
use super::record::Recording;
use crate::tune::Choices;
use crate::{
    Activity, Data, Error, Footprint, Instance, Prepared, RING_STEPS, Ticket, WeightSource,
};
use plan::{BufferId, Plan};

/// Ring entries of the channel: two for each step under way.
const ENTRIES: u32 = (2 * QUEUE as u32 * RING_STEPS + 1).next_power_of_two();
/// Executions of one step that may fault before the device counts as lost.
const ATTEMPTS: u32 = 3;

/// Weights on their way in, then in place.
enum Pool {
    Loading(Box<Loading>),
    Sealed(WeightsPool),
}

/// What belongs to a prepared plan.
struct Kept {
    /// Its mailboxes, outputs and ring.
    memory: Mailbox,
    recording: Recording,
}

/// A submission that has not been waited for.
struct Flight {
    sequence: u64,
    prepared: Prepared,
    /// The plan's steps before it.
    base: u64,
    tickets: Vec<context::Ticket>,
}

/// A plan's inputs when the host last had it to itself: what its steps went on from.
struct Start {
    /// The plan's steps before.
    base: u64,
    tokens: Vec<u8>,
    positions: Vec<u8>,
}

/// The memory of one model on the GPU, and its queue.
pub(super) struct NvInstance {
    // The context goes first: nothing runs while the rest is taken down.
    context: RefCell<Context>,
    queue: QueueId,
    ledger: Ledger<Kept>,
    flights: VecDeque<Flight>,
    starts: HashMap<Prepared, Start>,
    layout: Layout,
    pool: Option<Pool>,
    placements: HashMap<String, Placement>,
    caches: Scratch,
    scratch: Scratch,
    counters: Mailbox,
    code: Option<(Code, Scratch)>,
    choices: Choices,
    space: AddressSpace,
    launches: u64,
}

impl NvInstance {
    pub(super) fn new(
        space: AddressSpace,
        layout: Layout,
        choices: Choices,
    ) -> Result<Self, Error> {
        // A step takes milliseconds: looking at memory for longer than one look at the clock takes
        // would only burn processor time.
        let options = Options { spin: Duration::ZERO, ..Options::default() };
        let mut context = Context::new(&space, options).map_err(failed)?;
        let queue = context.add_queue(Engine::Compute, ENTRIES).map_err(failed)?;
        let scratch = |bytes: u64| Scratch::new(&space, bytes.max(1)).map_err(failed);
        let counters = Mailbox::new(&space, layout.working.counters().max(1)).map_err(failed)?;
        Ok(Self {
            context: RefCell::new(context),
            queue,
            ledger: Ledger::new(),
            flights: VecDeque::new(),
            starts: HashMap::new(),
            pool: Some(Pool::Loading(Box::new(Loading::new(&space, layout.weight_bytes)))),
            placements: HashMap::new(),
            caches: scratch(layout.cache_bytes)?,
            scratch: scratch(layout.working.scratch())?,
            counters,
            code: None,
            choices,
            layout,
            space,
            launches: 0,
        })
    }

    /// Hands the weights to the GPU, once.
    fn seal(&mut self) -> Result<(), Error> {
        if let Some(name) = self.layout.weights.keys().find(|n| !self.placements.contains_key(*n)) {
            return invalid(format!("weight `{name}` has not been uploaded"));
        }
        if let Some(Pool::Loading(loading)) = self.pool.take_if(|p| matches!(p, Pool::Loading(_))) {
            self.pool = Some(Pool::Sealed(loading.seal().map_err(failed)?));
        }
        Ok(())
    }

    /// Where everything lies for a plan, and its launches.
    fn launches(
        &mut self,
        plan: &Plan,
        (own, base): (&Own, u64),
        choices: &Choices,
    ) -> Result<Vec<Launch>, Error> {
        self.seal()?;
        let Some(Pool::Sealed(pool)) = &self.pool else {
            return invalid("weights were lost when they were handed to the GPU");
        };
        let mut weights = HashMap::new();
        for (name, form) in &self.layout.weights {
            let address = self.placements.get(name).and_then(|&placement| pool.address(placement));
            let Some(address) = address else {
                return invalid(format!("weight `{name}` has no place"));
            };
            weights.insert(name.clone(), (address.get(), *form));
        }
        let at = self.caches.address().get();
        let caches = &self.layout.caches;
        let caches =
            caches.iter().map(|(name, (offset, c))| (name.clone(), (at + offset, *c))).collect();
        lower(
            plan,
            &Addresses {
                weights: &weights,
                caches: &caches,
                working: &self.layout.working,
                scratch: self.scratch.address().get(),
                counters: self.counters.address().get(),
                own: (own, base),
                sms: self.space.orin().sms(),
                tuning: Tuning { target: TARGET, choices: Some(choices), compiles: compiles() },
            },
        )
    }

    /// Loads the kernels that no earlier plan has brought in.
    fn load_code(&mut self, launches: &[Launch]) -> Result<(), Error> {
        let mut kernels: Vec<_> = launches.iter().map(|launch| launch.kernel).collect();
        if let Some((code, _)) = &mut self.code {
            kernels.retain(|&kernel| code.kernel(kernel).is_err());
            return code.add(&self.space, &kernels);
        }
        kernels.extend(Kernel::all().into_iter().filter(|kernel| kernel.is_default()));
        let orin = self.space.orin();
        let code = Code::new(&self.space, &kernels, orin.tpcs())?;
        let local = Scratch::new(&self.space, code.local.total).map_err(failed)?;
        let memory = LocalMemory::new(local.address(), code.local.per_tpc)
            .map_err(|e| failed(tegra::Error::from(e)))?;
        self.context.get_mut().set_local_memory(memory).map_err(failed)?;
        self.code = Some((code, local));
        Ok(())
    }

    /// Submits steps `from..to` of a plan.
    fn launch(
        &mut self,
        prepared: Prepared,
        from: u64,
        to: u64,
    ) -> Result<Vec<context::Ticket>, Error> {
        let Kept { recording, .. } = &self.ledger.entry(prepared)?.kept;
        let context = self.context.get_mut();
        let mut tickets = Vec::with_capacity((to - from) as usize);
        for step in from..to {
            let wake = if step + 1 == to { Wake::Interrupt } else { Wake::Quiet };
            let body = recording.body(step);
            tickets.push(context.submit(self.queue, &[body], wake).map_err(failed)?);
            self.launches += recording.launches();
        }
        Ok(tickets)
    }

    /// Rebuilds the channel after a fault and executes again what it interrupted.
    fn recover(&mut self) -> Result<(), Error> {
        self.context.get_mut().rebuild().map_err(failed)?;
        let counters = vec![0; self.layout.working.counters() as usize];
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
            // Later submissions of the plan go on from where this one ends.
            if restored.insert(prepared) {
                self.restore(prepared, from)?;
            }
            let again = self.launch(prepared, from, to)?;
            self.flights[i].tickets.splice(done.., again);
        }
        Ok(())
    }

    /// Sets a plan's inputs and ring to what they were after `cursor` steps in all.
    fn restore(&self, prepared: Prepared, cursor: u64) -> Result<(), Error> {
        let Entry { own, advances, kept: Kept { memory, .. }, .. } = self.ledger.entry(prepared)?;
        memory.store_u32(own.cursor, cursor as u32).map_err(failed)?;
        let Some((token_box, position_box, rows)) = *advances else { return Ok(()) };
        let (Some(tokens_at), Some(positions_at), Some(start)) =
            (own.offset(token_box), own.offset(position_box), self.starts.get(&prepared))
        else {
            return invalid("a plan that advances what is not its own");
        };
        let steps = cursor - start.base;
        let mut tokens = start.tokens.clone();
        if steps > 0 {
            tokens.resize(4 * rows, 0);
            memory.read(own.ring_at(cursor - 1), &mut tokens).map_err(failed)?;
        }
        memory.write(tokens_at, &tokens).map_err(failed)?;
        let positions = start.positions.as_chunks::<4>().0.iter();
        let positions: Vec<u8> = positions
            .flat_map(|p| u32::from_le_bytes(*p).wrapping_add(steps as u32).to_le_bytes())
            .collect();
        memory.write(positions_at, &positions).map_err(failed)
    }

    /// Waits for all steps of the oldest submission, recovering as often as that helps.
    fn finish_oldest(&mut self) -> Result<(), Error> {
        // How often the step behind the first `reached` ones has failed.
        let (mut attempts, mut reached) = (0, 0);
        loop {
            let Some(flight) = self.flights.front() else { return Ok(()) };
            let Some(&last) = flight.tickets.last() else { return invalid("no steps") };
            let context = self.context.get_mut();
            let recording = &self.ledger.entry(flight.prepared)?.kept.recording;
            let started = Instant::now();
            // More with every repetition of a step: it may only be slow.
            let looks = |&(done, _): &(usize, _)| {
                recording.looks() * if done > reached { 1 } else { attempts + 1 }
            };
            let is_late = |error: &tegra::Error| matches!(error, tegra::Error::Stalled { .. });
            let waited = watch(looks, is_late, |limit| {
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
            if !error.can_rebuild() || attempts == ATTEMPTS {
                return Err(match failed(error) {
                    Error::Lost { scope, reason, source, .. } => {
                        Error::Lost { scope, rebuildable: true, reason, source }
                    }
                    other => other,
                });
            }
            tracing::warn!(%error, attempts, "GPU fault: the channel is rebuilt, the step repeated");
            self.recover()?;
        }
    }
}

impl Instance for NvInstance {
    fn footprint(&self) -> Footprint {
        self.layout.footprint()
    }

    fn activity(&self) -> Activity {
        // A submission is one store of GP_PUT and one doorbell.
        let done = self.context.borrow().statistics();
        Activity {
            launches: self.launches,
            submits: done.submissions,
            doorbells: done.submissions,
            sleeps: done.sleeps,
            rebuilds: done.rebuilds,
        }
    }

    fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Error> {
        let Some(&form) = self.layout.weights.get(weight) else {
            return invalid(format!("weight `{weight}` is not part of the request"));
        };
        let Some(Pool::Loading(loading)) = &mut self.pool else {
            return invalid("weights cannot change once plans have been prepared");
        };
        if self.placements.contains_key(weight) {
            return invalid(format!("weight `{weight}` has been uploaded already"));
        }
        let (placement, place) = loading.tensor(form.bytes(), ALIGN).map_err(failed)?;
        fill(weight, &form, source, place, progress)?;
        self.placements.insert(weight.to_owned(), placement);
        Ok(())
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared, Error> {
        let choices = self.choices.clone();
        self.prepare_as(plan, &choices)
    }

    fn prepare_as(&mut self, plan: &Plan, choices: &Choices) -> Result<Prepared, Error> {
        self.layout.admits(plan)?;
        let own = Own::new(plan);
        let memory = Mailbox::new(&self.space, own.bytes).map_err(failed)?;
        memory.write(0, &vec![0; own.bytes as usize]).map_err(failed)?;
        let counters = vec![0; self.layout.working.counters() as usize];
        if self.ledger.is_empty() && !counters.is_empty() {
            self.counters.write(0, &counters).map_err(failed)?;
        }
        let launches = self.launches(plan, (&own, memory.address().get()), choices)?;
        self.load_code(&launches)?;
        let Some((code, _)) = &self.code else { return invalid("no machine code") };
        let signs = Signs::of(&launches, plan.bucket.context as u64);
        let recording = Recording::new(&self.space, code, &launches, &signs)?;
        Ok(self.ledger.add(plan, own, Kept { memory, recording }))
    }

    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<(), Error> {
        let (entry, offset, bytes) = self.ledger.mailbox(prepared, mailbox, at, data)?;
        entry.kept.memory.write(offset, &bytes).map_err(failed)
    }

    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket, Error> {
        let entry = self.ledger.admit(prepared, steps)?;
        let base = entry.steps;
        if !self.ledger.is_under_way(entry) {
            self.starts.insert(prepared, start(entry)?);
        }
        let tickets = match self.launch(prepared, base, base + u64::from(steps)) {
            Ok(tickets) => tickets,
            // An earlier submission faulted: it is repeated first.
            Err(Error::Lost { rebuildable: true, .. }) => {
                self.recover()?;
                self.launch(prepared, base, base + u64::from(steps))?
            }
            Err(error) => return Err(error),
        };
        let ticket = self.ledger.submitted(prepared, steps);
        let sequence = ticket.sequence;
        self.flights.push_back(Flight { sequence, prepared, base, tickets });
        Ok(ticket)
    }

    fn completed(&self, ticket: Ticket) -> u32 {
        if self.ledger.has_finished(ticket) {
            return ticket.steps;
        }
        let Some(flight) = self.flights.iter().find(|f| f.sequence == ticket.sequence) else {
            // Done, and nobody has waited for it yet.
            return ticket.steps;
        };
        done(&mut self.context.borrow_mut(), &flight.tickets) as u32
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        while self.flights.front().is_some_and(|flight| flight.sequence <= ticket.sequence) {
            self.finish_oldest()?;
        }
        self.ledger.finished(ticket);
        Ok(())
    }

    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<(), Error> {
        let completed = self.completed(ticket);
        let (entry, at) = self.ledger.tokens(ticket, step, completed, out.len())?;
        let mut bytes = vec![0; 4 * out.len()];
        entry.kept.memory.read(at, &mut bytes).map_err(failed)?;
        words(&bytes, out, i32::from_le_bytes);
        Ok(())
    }

    fn read(
        &self,
        prepared: Prepared,
        output: BufferId,
        at: usize,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let (entry, offset) = self.ledger.output(prepared, output, at, out.len())?;
        let mut bytes = vec![0; 4 * out.len()];
        entry.kept.memory.read(offset, &mut bytes).map_err(failed)?;
        words(&bytes, out, f32::from_le_bytes);
        Ok(())
    }
}

/// Steps that are done; a lost one is not.
fn done(context: &mut Context, tickets: &[context::Ticket]) -> usize {
    tickets.iter().take_while(|ticket| context.is_done(**ticket).unwrap_or(false)).count()
}

/// Tokens and positions as they are.
fn start(entry: &Entry<Kept>) -> Result<Start, Error> {
    let Entry { own, advances, kept, steps, .. } = entry;
    let read = |buffer: BufferId, rows: usize| {
        let mut bytes = vec![0; 4 * rows];
        kept.memory.read(own.offset(buffer).unwrap_or(0), &mut bytes).map_err(failed)?;
        Ok::<_, Error>(bytes)
    };
    let (tokens, positions) = match *advances {
        Some((tokens, positions, rows)) => (read(tokens, rows)?, read(positions, rows)?),
        None => (Vec::new(), Vec::new()),
    };
    Ok(Start { base: *steps, tokens, positions })
}
