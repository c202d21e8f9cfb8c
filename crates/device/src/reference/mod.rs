//! Reference device: executes plans in primitives, one scalar at a time, on `f32` values with `f64`
//! accumulation. Slow and plain on purpose: it defines the meaning of a plan, and every other
//! device is compared with it.

mod interpret;
mod recurrent;
mod storage;

use std::collections::HashMap;

use std::time::{Duration, Instant};

use super::ledger::{Ledger, Write, invalid};
use super::plan_buffers::PlanBuffers;
use super::{
    Data, Device, Error, Footprint, Info, Instance, Part, Prepared, Profile, RING_STEPS, Request,
    Result, Ticket, Timing, Tunable, WeightSource,
};
use crate::tune::Choices;
use plan::quant;
use plan::{Buffer, BufferId, Class, Fusions, Op, Plan};
use storage::Storage;

const DEVICE: &str = "reference";

#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Device for Reference {
    fn info(&self) -> Info {
        Info { name: DEVICE, description: "scalar interpreter of unfused plans".into(), threads: 1 }
    }

    /// Sums in the order that defines the primitives.
    fn numerics(&self) -> Option<u32> {
        None
    }

    fn fusions(&self) -> Fusions {
        Fusions::NONE
    }

    fn footprint(&self, request: &Request<'_>) -> Result<Footprint> {
        // Everything is stored as `f32` or `i32`.
        let sum = |buffers: &[Buffer]| buffers.iter().map(|b| 4 * b.elements() as u64).sum();
        let activations = |plan: &Plan| -> u64 {
            let own = |b: &&Buffer| !matches!(b.class, Class::Weight | Class::State);
            plan.buffers.iter().filter(own).map(|b| 4 * b.elements() as u64).sum()
        };
        Ok(Footprint {
            weights: sum(request.weights),
            state: sum(request.states),
            activations: request.plans.iter().map(activations).sum(),
        })
    }

    fn open(&self, request: &Request<'_>) -> Result<Box<dyn Instance>> {
        let footprint = self.footprint(request)?;
        let have = crate::available().unwrap_or(u64::MAX);
        footprint.fits(have)?;
        let shared = request.weights.iter().chain(request.states);
        let shared = shared.map(|b| ((b.class, b.name.clone()), Storage::zeroed(b))).collect();
        let slots = |b: &Buffer| (b.name.clone(), b.shape.first().copied().unwrap_or(1).max(1));
        let slots = request.states.iter().map(slots).collect();
        Ok(Box::new(ReferenceInstance { footprint, shared, slots, ledger: Ledger::new() }))
    }

    fn tunable(&self) -> Option<&dyn Tunable> {
        None
    }
}

struct ReferenceInstance {
    footprint: Footprint,
    /// Weights and states by class and name.
    shared: HashMap<(Class, String), Storage>,
    /// Name and number of slots of each state.
    slots: Vec<(String, usize)>,
    ledger: Ledger<PlanState>,
}

struct PlanState {
    plan: Plan,
    /// One per buffer. Weights and states are moved here from `shared` while the plan runs.
    storage: Vec<Storage>,
    /// Buffer of sampled tokens.
    sampled: Option<BufferId>,
    ring: Vec<i32>,
}

impl PlanState {
    /// Moves shared storage in or back.
    fn lend(&mut self, shared: &mut HashMap<(Class, String), Storage>) {
        for (buffer, storage) in self.plan.buffers.iter().zip(&mut self.storage) {
            if matches!(buffer.class, Class::Weight | Class::State)
                && let Some(shared) = shared.get_mut(&(buffer.class, buffer.name.clone()))
            {
                std::mem::swap(shared, storage);
            }
        }
    }

    /// Copies the tokens of the plan's `step`th step to the ring.
    fn keep_tokens(&mut self, step: u64) {
        let Some(sampled) = self.sampled else { return };
        let tokens = &self.storage[sampled.index()].values;
        let at = (step % u64::from(RING_STEPS)) as usize * tokens.len();
        for (kept, token) in self.ring[at..].iter_mut().zip(tokens) {
            *kept = token.to_bits() as i32;
        }
    }

    fn put(&mut self, write: &Write<'_>) {
        let Storage { dtype, values } = &mut self.storage[write.mailbox.index()];
        let size = dtype.block_bytes();
        let count = (write.bytes.len() / size).min(values.len() - write.at);
        let (values, bytes) = (&mut values[write.at..][..count], &write.bytes[..count * size]);
        let put = quant::widen(*dtype, bytes, values);
        debug_assert_eq!(put, Ok(()), "the ledger has counted them");
    }
}

impl Instance for ReferenceInstance {
    fn footprint(&self) -> Footprint {
        self.footprint
    }

    fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let Some(storage) = self.shared.get_mut(&(Class::Weight, weight.to_owned())) else {
            return Err(Error::Invalid(format!("weight `{weight}` is not part of the request")));
        };
        self.ledger.quiet("weights cannot change")?;
        let failed = |source| Error::Weight { weight: weight.to_owned(), source };
        let (dtype, values) = (storage.dtype, &mut storage.values);
        let row = dtype.block_len().max(4096);
        let mut bytes = Vec::new();
        for (i, chunk) in values.chunks_mut(row).enumerate() {
            let per_block = dtype.block_bytes();
            let start = i * row / dtype.block_len() * per_block;
            bytes.resize(chunk.len() / dtype.block_len() * per_block, 0);
            source.read_at(start as u64, &mut bytes).map_err(failed)?;
            quant::widen(dtype, &bytes, chunk).map_err(|e| failed(Box::new(e)))?;
            progress(bytes.len() as u64);
        }
        Ok(())
    }

    fn copy_part(&mut self, from: Part, to: Part) -> Result<()> {
        self.ledger.quiet("slots cannot be copied")?;
        let (Part::Recurrent(from), Part::Recurrent(to)) = (from, to) else {
            return invalid(format!("a copy of {from:?} to {to:?}: each slot keeps its positions"));
        };
        for (name, slots) in &self.slots {
            let Some(storage) = self.shared.get_mut(&(Class::State, name.clone())) else {
                continue;
            };
            let size = storage.values.len() / slots;
            if let Some(slot) = [from, to].into_iter().find(|slot| *slot as usize >= *slots) {
                return invalid(format!("slot {slot} of {slots}"));
            }
            let [from, to] = [from, to].map(|slot| slot as usize * size);
            storage.values.copy_within(from..from + size, to);
        }
        Ok(())
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared> {
        plan.validate().map_err(|e| Error::Invalid(e.to_string()))?;
        for buffer in
            plan.buffers.iter().filter(|b| matches!(b.class, Class::Weight | Class::State))
        {
            if !self.shared.contains_key(&(buffer.class, buffer.name.clone())) {
                return Err(Error::Invalid(format!(
                    "{:?} `{}` is not part of the request",
                    buffer.class, buffer.name
                )));
            }
        }
        interpret::supported(plan)?;
        let sampled = plan.steps.iter().find_map(|step| match &step.op {
            Op::Sample(sample) => Some(sample.ids.buffer),
            _ => None,
        });
        let storage = |b: &Buffer| match b.class {
            Class::Weight | Class::State => Storage::default(),
            _ => Storage::zeroed(b),
        };
        let buffers = PlanBuffers::new(plan);
        let ring = vec![0; RING_STEPS as usize * buffers.sampled];
        let storage = plan.buffers.iter().map(storage).collect();
        self.ledger.add(buffers, PlanState { plan: plan.clone(), storage, sampled, ring })
    }

    fn prepare_as(&mut self, _: &Plan, choices: &Choices) -> Result<Prepared> {
        let what = format!("choices ({}): there is one way of executing a plan", choices.len());
        Err(Error::Unsupported { device: DEVICE, what })
    }

    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<()> {
        self.ledger.write(prepared, mailbox, at, data, |state, write| {
            state.put(write);
            Ok(())
        })
    }

    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket> {
        let first = self.ledger.admit(prepared, steps)?.steps;
        let staged = self.ledger.staged(prepared)?;
        let state = &mut self.ledger.entry_mut(prepared)?.state;
        staged.iter().for_each(|write| state.put(write));
        state.lend(&mut self.shared);
        for step in 0..steps {
            interpret::run(&state.plan, &mut state.storage, |_| {});
            state.keep_tokens(first + u64::from(step));
        }
        state.lend(&mut self.shared);
        self.ledger.submitted(prepared, steps)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.ledger.is_open(ticket)?;
        self.ledger.finished(ticket);
        Ok(())
    }

    fn profile(&mut self, prepared: Prepared) -> Result<Profile> {
        self.ledger.quiet("a step cannot be timed")?;
        let begin = Instant::now();
        let ticket = self.submit(prepared, 1)?;
        self.wait(ticket)?;
        let whole = begin.elapsed();
        let state = &mut self.ledger.entry_mut(prepared)?.state;
        let mut times = vec![Duration::ZERO; state.plan.steps.len()];
        state.lend(&mut self.shared);
        let mut last = Instant::now();
        interpret::run(&state.plan, &mut state.storage, |at| {
            let now = Instant::now();
            times[at] += now.duration_since(std::mem::replace(&mut last, now));
        });
        state.keep_tokens(ticket.first + 1);
        state.lend(&mut self.shared);
        let timing = |(step, (of, time)): (usize, (&plan::Step, &Duration))| Timing {
            step,
            label: of.label.clone(),
            kernel: of.op.name(),
            nanoseconds: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        };
        let timings = state.plan.steps.iter().zip(&times).enumerate().map(timing).collect();
        let ticket = self.ledger.submitted(prepared, 1)?;
        self.ledger.finished(ticket);
        Ok(Profile { timings, serialised: false, whole })
    }

    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<()> {
        let (entry, at) = self.ledger.tokens(ticket, step, out.len())?;
        let at = (at - entry.buffers.ring) as usize / 4;
        out.copy_from_slice(&entry.state.ring[at..at + out.len()]);
        Ok(())
    }

    fn read(&self, prepared: Prepared, output: BufferId, at: usize, out: &mut [f32]) -> Result<()> {
        let (entry, _) = self.ledger.output(prepared, output, at, out.len())?;
        out.copy_from_slice(&entry.state.storage[output.index()].values[at..at + out.len()]);
        Ok(())
    }
}
