//! A loaded model in a CUDA context.
//!
//! A step is one graph launch and an event; steps of a submission are all queued at once. Mailboxes
//! and outputs are in GPU memory: writes are queued before the steps that read them, and reads use
//! a separate stream. A kernel fault destroys the context, so the device must be opened again.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::launch::Launch;
use super::super::layout::Layout;
use super::super::lower::{Addresses, lower};
use super::super::storage::of_device;
use super::super::variant::{Tuning, compiles};
use super::DEVICE;
use super::code::{Code, target};
use super::driver::{Event, MemoryKind, Stream};
use super::fault::Fault;
use super::gpu::{Gpu, Memory, Owned};
use super::record::Recording;
use super::weights::{HALF, Weights};
use crate::ledger::{Ledger, Write, words};
use crate::plan_buffers::PlanBuffers;
use crate::tune::Choices;
use crate::{
    Activity, Data, Error, Footprint, Instance, Part, Prepared, Profile, Result, Ticket,
    WeightSource,
};
use plan::{BufferId, Plan};

struct PlanState {
    // Dropped first: it refers to the memory.
    recording: Recording,
    /// Mailboxes, outputs and ring.
    memory: Memory,
}

impl PlanState {
    /// Queues a write in order with the steps of `stream`.
    fn put(&self, gpu: &Gpu, stream: Stream, write: &Write<'_>) -> Result<(), Fault> {
        let (to, bytes) = (self.memory.address() + write.offset, &write.bytes);
        // SAFETY: the bytes are pageable: the driver has copied them when the call returns.
        unsafe { gpu.enter()?.copy_in(to, bytes.as_ptr(), bytes.len(), stream) }
    }
}

/// A submission that has not been waited for.
struct Flight {
    sequence: u64,
    events: Vec<Owned<Event>>,
}

/// Memory of one model on the GPU, and its streams.
pub(super) struct CudaInstance {
    ledger: Ledger<PlanState>,
    flights: VecDeque<Flight>,
    events: Vec<Owned<Event>>,
    code: Code,
    choices: Choices,
    weights: Weights,
    caches: Memory,
    /// Block table.
    table: Memory,
    scratch: Memory,
    counters: Memory,
    steps: Owned<Stream>,
    /// Stream for reading outputs in parallel with other plans' steps.
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
        kind: MemoryKind,
        choices: Choices,
    ) -> Result<Self> {
        let stream = || Owned::new(gpu, |driver| driver.create_stream()).map_err(failed);
        let device = |bytes: u64| Memory::new(gpu, MemoryKind::Device, bytes);
        let (steps, reads) = (stream()?, stream()?);
        let counters = device(layout.workspace.counters())?;
        let driver = gpu.enter().map_err(failed)?;
        driver.clear(counters.address(), counters.bytes(), steps.get()).map_err(failed)?;
        let table = device(layout.table_bytes())?;
        let instance = Self {
            ledger: Ledger::new(),
            flights: VecDeque::new(),
            events: Vec::new(),
            code: Code::new(gpu),
            choices,
            weights: Weights::new(gpu, &layout, kind, HALF)?,
            caches: device(layout.state_bytes)?,
            table,
            scratch: device(layout.workspace.scratch())?,
            counters,
            steps,
            reads,
            layout,
            gpu: Arc::clone(gpu),
            launches: 0,
            submits: 0,
        };
        instance.set_table(0, &instance.layout.table.first())?;
        Ok(instance)
    }

    /// Queues consecutive entries of the block table in order with steps.
    fn set_table(&self, at: usize, entries: &[u32]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let (to, stream) = (self.table.address() + 4 * at as u64, self.steps.get());
        let driver = self.gpu.enter().map_err(failed)?;
        // SAFETY: the bytes are pageable: the driver has copied them when the call returns.
        unsafe { driver.copy_in(to, bytes.as_ptr(), bytes.len(), stream) }.map_err(failed)
    }

    fn lower(
        &self,
        plan: &Plan,
        buffers: &PlanBuffers,
        buffers_at: u64,
        choices: &Choices,
    ) -> Result<Vec<Launch>> {
        let states = self.layout.states_at(self.caches.address());
        lower(
            plan,
            &Addresses {
                weights: self.weights.places(),
                states: &states,
                table: (self.table.address(), self.layout.table),
                workspace: &self.layout.workspace,
                scratch: self.scratch.address(),
                counters: self.counters.address(),
                buffers,
                buffers_at,
                sms: self.gpu.sms,
                tuning: Tuning {
                    target: target(self.gpu.capability),
                    choices: Some(choices),
                    compiles: compiles(),
                },
            },
        )
        .map_err(of_device(DEVICE))
    }

    fn event(&mut self) -> Result<Owned<Event>> {
        match self.events.pop() {
            Some(event) => Ok(event),
            None => Owned::new(&self.gpu, |driver| driver.create_event(false)).map_err(failed),
        }
    }
}

impl CudaInstance {
    /// Queues steps of a plan behind its writes, with an event for each.
    fn queue(&mut self, prepared: Prepared, steps: u32) -> Result<Vec<Owned<Event>>> {
        let stream = self.steps.get();
        let writes = self.ledger.staged(prepared)?;
        let state = &self.ledger.entry(prepared)?.state;
        for write in &writes {
            state.put(&self.gpu, stream, write).map_err(failed)?;
        }
        let mut events = Vec::with_capacity(steps as usize);
        for _ in 0..steps {
            let event = self.event()?;
            let recording = &self.ledger.entry(prepared)?.state.recording;
            recording.launch(stream).map_err(failed)?;
            self.gpu.enter().and_then(|d| d.record(event.get(), stream)).map_err(failed)?;
            self.launches += recording.launches();
            self.submits += 1;
            events.push(event);
        }
        Ok(events)
    }

    fn finish(&mut self, sequence: u64) -> Result<(), Fault> {
        while let Some(flight) = self.flights.front()
            && flight.sequence <= sequence
        {
            let Some(last) = flight.events.last() else {
                unreachable!("no submission is without steps");
            };
            self.gpu.enter()?.wait(last.get())?;
            self.events.extend(self.flights.pop_front().into_iter().flat_map(|f| f.events));
        }
        Ok(())
    }
}

impl Instance for CudaInstance {
    fn footprint(&self) -> Footprint {
        self.layout.footprint()
    }

    fn code(&self) -> Option<u64> {
        Some(self.code.bytes())
    }

    fn activity(&self) -> Activity {
        Activity { launches: self.launches, submits: self.submits, ..Activity::default() }
    }

    fn blocks(&self) -> u32 {
        self.layout.table.blocks() as u32
    }

    fn map(&mut self, slot: u32, blocks: &[u32]) -> Result<()> {
        self.ledger.quiet("blocks cannot change slots")?;
        let row = self.layout.table.row(slot, blocks)?;
        let set = self.set_table(slot as usize * row.len(), &row);
        set.map_err(|error| self.ledger.lose(error))
    }

    fn copy_part(&mut self, from: Part, to: Part) -> Result<()> {
        self.ledger.quiet("slots cannot be copied")?;
        let driver = self.gpu.enter().map_err(failed)?;
        let (base, stream) = (self.caches.address(), self.steps.get());
        for copy in self.layout.slots.copies(from, to)? {
            let [from, to, bytes] = copy.map(|n| n as u64);
            driver.copy(base + to, base + from, bytes, stream).map_err(failed)?;
        }
        // Later steps use the same stream.
        Ok(())
    }

    fn part_bytes(&self, part: Part) -> Option<usize> {
        Some(self.layout.slots.part_bytes(part))
    }

    fn read_part(&mut self, part: Part, out: &mut [u8]) -> Result<()> {
        self.ledger.quiet("slots cannot be read")?;
        let ranges = self.layout.slots.part(part, out.len())?;
        let driver = self.gpu.enter().map_err(failed)?;
        // Behind the queued copies of slots.
        let (base, stream) = (self.caches.address(), self.steps.get());
        // Separate pageable memory: if a copy fails, other queued copies may still be writing.
        let mut bytes = vec![0; out.len()];
        let mut at = 0;
        let queued = ranges.iter().try_for_each(|range| {
            let part = &mut bytes[at..at + range.len()];
            at += range.len();
            // SAFETY: `bytes` lives until the stream has been waited for below.
            unsafe {
                driver.copy_out(part.as_mut_ptr(), base + range.start as u64, range.len(), stream)
            }
        });
        if let Err(fault) = queued.and(driver.synchronize(stream)) {
            std::mem::forget(bytes);
            return Err(self.ledger.lose(failed(fault)));
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }

    fn write_part(&mut self, part: Part, bytes: &[u8]) -> Result<()> {
        self.ledger.quiet("slots cannot be written")?;
        let ranges = self.layout.slots.part(part, bytes.len())?;
        let driver = self.gpu.enter().map_err(failed)?;
        let (base, stream) = (self.caches.address(), self.steps.get());
        let mut from = bytes;
        for range in ranges {
            let (part, rest) = from.split_at(range.len());
            from = rest;
            // SAFETY: the bytes are pageable: the driver has copied them when the call returns.
            let taken = unsafe {
                driver.copy_in(base + range.start as u64, part.as_ptr(), part.len(), stream)
            };
            taken.map_err(|fault| self.ledger.lose(failed(fault)))?;
        }
        Ok(())
    }

    fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        self.ledger.quiet("weights cannot change")?;
        self.weights.upload(weight, source, progress, self.steps.get())
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared> {
        let choices = self.choices.clone();
        self.prepare_as(plan, &choices)
    }

    fn prepare_as(&mut self, plan: &Plan, choices: &Choices) -> Result<Prepared> {
        self.layout.admits(plan).map_err(of_device(DEVICE))?;
        let stream = self.steps.get();
        self.weights.seal(stream)?;
        let buffers = PlanBuffers::new(plan);
        let memory = Memory::new(&self.gpu, MemoryKind::Device, buffers.bytes)?;
        let driver = self.gpu.enter().map_err(failed)?;
        // Outputs can be read before the first step, by another stream than the steps'.
        let reads = self.reads.get();
        let cleared = driver.clear(memory.address(), memory.bytes(), reads);
        cleared.and_then(|()| driver.synchronize(reads)).map_err(failed)?;
        let launches = self.lower(plan, &buffers, memory.address(), choices)?;
        let seen = Memory::new(&self.gpu, MemoryKind::Pinned, buffers.bytes - buffers.ring)?;
        let ring = memory.address() + buffers.ring;
        let recording = Recording::new(&self.gpu, &mut self.code, stream, launches, ring, seen)?;
        self.ledger.add(buffers, PlanState { recording, memory })
    }

    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<()> {
        let (gpu, stream) = (&self.gpu, self.steps.get());
        let written = self.ledger.write(prepared, mailbox, at, data, |state, write| {
            state.put(gpu, stream, write).map_err(failed)
        });
        written.map_err(|error| self.ledger.lose(error))
    }

    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket> {
        self.ledger.admit(prepared, steps)?;
        let events = self.queue(prepared, steps).map_err(|error| self.ledger.lose(error))?;
        let ticket = self.ledger.submitted(prepared, steps)?;
        self.flights.push_back(Flight { sequence: ticket.sequence, events });
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        if self.ledger.is_open(ticket)? {
            self.finish(ticket.sequence).map_err(|fault| self.ledger.lose(failed(fault)))?;
            self.ledger.finished(ticket);
        }
        Ok(())
    }

    fn profile(&mut self, prepared: Prepared) -> Result<Profile> {
        self.ledger.quiet("a step cannot be timed")?;
        let writes = self.ledger.staged(prepared)?;
        let state = &self.ledger.entry(prepared)?.state;
        let recording = &state.recording;
        let stream = self.steps.get();
        let profile = writes
            .iter()
            .try_for_each(|write| state.put(&self.gpu, stream, write))
            .and_then(|()| recording.profile(stream));
        self.launches += 2 * recording.launches();
        let profile = profile.map_err(|fault| self.ledger.lose(failed(fault)))?;
        let ticket = self.ledger.submitted(prepared, 2)?;
        self.ledger.finished(ticket);
        Ok(profile)
    }

    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<()> {
        let (entry, at) = self.ledger.tokens(ticket, step, out.len())?;
        for (i, out) in out.iter_mut().enumerate() {
            *out = entry.state.recording.ring(at - entry.buffers.ring + 4 * i as u64);
        }
        Ok(())
    }

    fn read(&self, prepared: Prepared, output: BufferId, at: usize, out: &mut [f32]) -> Result<()> {
        let (entry, offset) = self.ledger.output(prepared, output, at, out.len())?;
        let from = entry.state.memory.address() + offset;
        let mut bytes = vec![0; 4 * out.len()];
        let stream = self.reads.get();
        let driver = self.gpu.enter().map_err(failed)?;
        // SAFETY: `bytes` lives until the stream has been waited for below.
        let queued = unsafe { driver.copy_out(bytes.as_mut_ptr(), from, bytes.len(), stream) };
        let done = driver.synchronize(stream);
        if let Err(fault) = queued.and(done) {
            // Queued copies may still write to it.
            std::mem::forget(bytes);
            return Err(failed(fault));
        }
        words(&bytes, out, f32::from_le_bytes);
        Ok(())
    }
}

impl Drop for CudaInstance {
    fn drop(&mut self) {
        // Memory is released after all work has ended. A lost context fails here too.
        for stream in [self.steps.get(), self.reads.get()] {
            if let Err(fault) = self.gpu.enter().and_then(|driver| driver.synchronize(stream)) {
                tracing::debug!(%fault, "a CUDA stream at its end");
            }
        }
    }
}
