//! One loaded model in a CUDA context, behind the asynchronous seam.
//!
//! A step is one graph launch and an event; steps of a submission are all queued at once. Mailboxes
//! and outputs lie in GPU memory: writes are queued before the steps that read them, reads go by a
//! stream of their own. A fault of a kernel takes the context with it, and so the device: what is left
//! is to open a new one.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::launch::Launch;
use super::super::layout::{Layout, Own};
use super::super::ledger::{Ledger, invalid, words};
use super::super::lower::{Addresses, lower};
use super::super::variant::{Tuning, compiles};
use super::code::{Code, target};
use super::driver::{Event, Kind, Stream};
use super::fault::Fault;
use super::gpu::{Gpu, Memory, Owned};
use super::record::Recording;
use super::weights::{HALF, Weights};
use crate::tune::Choices;
use crate::{Activity, Data, Error, Footprint, Instance, Prepared, Ticket, Timing, WeightSource};
use plan::{BufferId, Plan};

/// What belongs to a prepared plan.
struct Kept {
    // The recording goes first: it points at the memory.
    recording: Recording,
    /// Its mailboxes, outputs and ring.
    memory: Memory,
}

/// A submission that has not been waited for.
struct Flight {
    sequence: u64,
    /// One for each step.
    events: Vec<Owned<Event>>,
}

/// The memory of one model on the GPU, and its streams.
pub(super) struct CudaInstance {
    ledger: Ledger<Kept>,
    flights: VecDeque<Flight>,
    /// Events that are free.
    events: Vec<Owned<Event>>,
    code: Code,
    choices: Choices,
    weights: Weights,
    caches: Memory,
    scratch: Memory,
    counters: Memory,
    /// Where steps run.
    steps: Owned<Stream>,
    /// Where outputs come from, beside the steps of other plans.
    reads: Owned<Stream>,
    layout: Layout,
    gpu: Arc<Gpu>,
    launches: u64,
    submits: u64,
}

fn failed(fault: Fault) -> Error {
    fault.at_the_seam()
}

impl CudaInstance {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        layout: Layout,
        kind: Kind,
        choices: Choices,
    ) -> Result<Self, Error> {
        let stream = || Owned::new(gpu, |driver| driver.create_stream()).map_err(failed);
        let own = |bytes: u64| Memory::new(gpu, Kind::Device, bytes);
        let (steps, reads) = (stream()?, stream()?);
        let counters = own(layout.working.counters())?;
        let driver = gpu.enter().map_err(failed)?;
        driver.clear(counters.address(), counters.bytes(), steps.get()).map_err(failed)?;
        Ok(Self {
            ledger: Ledger::new(),
            flights: VecDeque::new(),
            events: Vec::new(),
            code: Code::new(gpu),
            choices,
            weights: Weights::new(gpu, &layout, kind, HALF)?,
            caches: own(layout.cache_bytes)?,
            scratch: own(layout.working.scratch())?,
            counters,
            steps,
            reads,
            layout,
            gpu: Arc::clone(gpu),
            launches: 0,
            submits: 0,
        })
    }

    fn lower(
        &self,
        plan: &Plan,
        (own, base): (&Own, u64),
        choices: &Choices,
    ) -> Result<Vec<Launch>, Error> {
        let at = self.caches.address();
        let caches = &self.layout.caches;
        let caches =
            caches.iter().map(|(name, (offset, c))| (name.clone(), (at + offset, *c))).collect();
        lower(
            plan,
            &Addresses {
                weights: self.weights.places(),
                caches: &caches,
                working: &self.layout.working,
                scratch: self.scratch.address(),
                counters: self.counters.address(),
                own: (own, base),
                sms: self.gpu.sms,
                tuning: Tuning {
                    target: target(self.gpu.capability),
                    choices: Some(choices),
                    compiles: compiles(),
                },
            },
        )
    }

    fn event(&mut self) -> Result<Owned<Event>, Error> {
        match self.events.pop() {
            Some(event) => Ok(event),
            None => Owned::new(&self.gpu, |driver| driver.create_event(false)).map_err(failed),
        }
    }
}

impl Instance for CudaInstance {
    fn footprint(&self) -> Footprint {
        self.layout.footprint()
    }

    fn activity(&self) -> Activity {
        Activity { launches: self.launches, submits: self.submits, ..Activity::default() }
    }

    fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Error> {
        self.weights.upload(weight, source, progress, self.steps.get())
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared, Error> {
        let choices = self.choices.clone();
        self.prepare_as(plan, &choices)
    }

    fn prepare_as(&mut self, plan: &Plan, choices: &Choices) -> Result<Prepared, Error> {
        self.layout.admits(plan)?;
        let stream = self.steps.get();
        self.weights.seal(stream)?;
        let own = Own::new(plan);
        let memory = Memory::new(&self.gpu, Kind::Device, own.bytes)?;
        let driver = self.gpu.enter().map_err(failed)?;
        driver.clear(memory.address(), memory.bytes(), stream).map_err(failed)?;
        let launches = self.lower(plan, (&own, memory.address()), choices)?;
        let seen = Memory::new(&self.gpu, Kind::Pinned, own.bytes - own.ring)?;
        let ring = (memory.address() + own.ring, seen);
        let recording = Recording::new(&self.gpu, &mut self.code, stream, launches, ring)?;
        Ok(self.ledger.add(plan, own, Kept { recording, memory }))
    }

    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<(), Error> {
        let (entry, offset, bytes) = self.ledger.mailbox(prepared, mailbox, at, data)?;
        let to = entry.kept.memory.address() + offset;
        let driver = self.gpu.enter().map_err(failed)?;
        // SAFETY: `bytes` is pageable: the driver has taken it when the call returns.
        unsafe { driver.copy_in(to, bytes.as_ptr(), bytes.len(), self.steps.get()) }.map_err(failed)
    }

    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket, Error> {
        self.ledger.admit(prepared, steps)?;
        let stream = self.steps.get();
        let mut events = Vec::with_capacity(steps as usize);
        for _ in 0..steps {
            let event = self.event()?;
            let recording = &self.ledger.entry(prepared)?.kept.recording;
            recording.launch(stream).map_err(failed)?;
            self.gpu.enter().and_then(|d| d.record(event.get(), stream)).map_err(failed)?;
            self.launches += recording.launches();
            self.submits += 1;
            events.push(event);
        }
        let ticket = self.ledger.submitted(prepared, steps);
        self.flights.push_back(Flight { sequence: ticket.sequence, events });
        Ok(ticket)
    }

    fn completed(&self, ticket: Ticket) -> u32 {
        let flight = self.flights.iter().find(|flight| flight.sequence == ticket.sequence);
        let (false, Some(flight), Ok(driver)) =
            (self.ledger.has_finished(ticket), flight, self.gpu.enter())
        else {
            return if self.ledger.has_finished(ticket) { ticket.steps } else { 0 };
        };
        flight.events.iter().take_while(|e| driver.query(e.get()).unwrap_or(false)).count() as u32
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        while let Some(flight) = self.flights.front()
            && flight.sequence <= ticket.sequence
        {
            if let Some(last) = flight.events.last() {
                self.gpu.enter().and_then(|driver| driver.wait(last.get())).map_err(failed)?;
            }
            self.events.extend(self.flights.pop_front().into_iter().flat_map(|f| f.events));
        }
        self.ledger.finished(ticket);
        Ok(())
    }

    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<(), Error> {
        let completed = self.completed(ticket);
        let (entry, at) = self.ledger.tokens(ticket, step, completed, out.len())?;
        for (i, out) in out.iter_mut().enumerate() {
            *out = entry.kept.recording.ring(at - entry.own.ring + 4 * i as u64);
        }
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
        let from = entry.kept.memory.address() + offset;
        let mut bytes = vec![0; 4 * out.len()];
        let stream = self.reads.get();
        let driver = self.gpu.enter().map_err(failed)?;
        // SAFETY: `bytes` lives until the stream has been waited for below.
        let queued = unsafe { driver.copy_out(bytes.as_mut_ptr(), from, bytes.len(), stream) };
        let done = driver.synchronize(stream);
        if let Err(fault) = queued.and(done) {
            // What was queued may still be written.
            std::mem::forget(bytes);
            return Err(failed(fault));
        }
        words(&bytes, out, f32::from_le_bytes);
        Ok(())
    }

    fn time_launches(&mut self, prepared: Prepared) -> Result<Vec<Timing>, Error> {
        let entry = self.ledger.admit(prepared, 1)?;
        if !self.flights.is_empty() {
            return invalid("a step can be measured when nothing is under way");
        }
        let recording = &entry.kept.recording;
        let timings = recording.profile(self.steps.get()).map_err(failed)?;
        self.launches += recording.launches();
        let ticket = self.ledger.submitted(prepared, 1);
        self.ledger.finished(ticket);
        Ok(timings)
    }
}

impl Drop for CudaInstance {
    fn drop(&mut self) {
        // Nothing may run while the memory goes. A lost context says so here too.
        for stream in [self.steps.get(), self.reads.get()] {
            if let Err(fault) = self.gpu.enter().and_then(|driver| driver.synchronize(stream)) {
                tracing::debug!(%fault, "a CUDA stream at its end");
            }
        }
    }
}
