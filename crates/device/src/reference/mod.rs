//! The reference device: executes plans in primitives, one scalar at a time, `f32` values with
//! `f64` accumulation. Slow and plain on purpose: what it says is what a plan means, and every other
//! device is held against it.

mod interpret;

use std::collections::HashMap;

use super::{
    Data, Device, Error, Footprint, Info, Instance, Prepared, RING_STEPS, Request, Ticket,
    WeightSource,
};
use interpret::Storage;
use plan::quant;
use plan::{Buffer, BufferId, Class, DType, Fusions, Plan};

/// The reference device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Device for Reference {
    fn info(&self) -> Info {
        Info {
            name: "reference",
            description: "scalar interpreter of unfused plans".into(),
            threads: 1,
        }
    }

    fn fusions(&self) -> Fusions {
        Fusions::NONE
    }

    fn footprint(&self, request: &Request<'_>) -> Result<Footprint, Error> {
        // Everything is held as f32 or i32.
        let sum = |buffers: &[Buffer]| buffers.iter().map(|b| 4 * b.elements() as u64).sum();
        let working = |plan: &Plan| -> u64 {
            let own = |b: &&Buffer| !matches!(b.class, Class::Weight | Class::State);
            plan.buffers.iter().filter(own).map(|b| 4 * b.elements() as u64).sum()
        };
        Ok(Footprint {
            weights: sum(request.weights),
            state: sum(request.states),
            activations: request.plans.iter().map(working).sum(),
        })
    }

    fn open(&self, request: &Request<'_>) -> Result<Box<dyn Instance>, Error> {
        let footprint = self.footprint(request)?;
        let have = telemetry::memory::available().unwrap_or(u64::MAX);
        footprint.fits(have)?;
        let shared = request.weights.iter().chain(request.states);
        let shared = shared.map(|b| ((b.class, b.name.clone()), Storage::zeroed(b))).collect();
        Ok(Box::new(ReferenceInstance {
            footprint,
            shared,
            prepared: Vec::new(),
            sequence: 0,
            waited: 0,
        }))
    }
}

struct ReferenceInstance {
    footprint: Footprint,
    /// Weights and state, by class and name.
    shared: HashMap<(Class, String), Storage>,
    prepared: Vec<PreparedPlan>,
    /// The latest submission.
    sequence: u64,
    /// The latest submission that the caller has waited for.
    waited: u64,
}

struct PreparedPlan {
    plan: Plan,
    /// One per buffer; weights and state are lent from `shared` while the plan runs.
    storage: Vec<Storage>,
    sampled: Option<BufferId>,
    ring: Vec<Vec<i32>>,
    /// Its latest submission, 0 for none.
    latest: u64,
}

impl ReferenceInstance {
    fn plan(&self, prepared: Prepared) -> Result<&PreparedPlan, Error> {
        self.prepared
            .get(prepared.0 as usize)
            .ok_or_else(|| Error::Invalid(format!("no plan {}", prepared.0)))
    }

    /// Refuses what the caller may not touch yet: nothing is ever under way here, but elsewhere it is.
    fn idle(&self, prepared: Prepared) -> Result<(), Error> {
        if self.plan(prepared)?.latest > self.waited {
            return Err(Error::Invalid(format!("plan {} is under way", prepared.0)));
        }
        Ok(())
    }

    fn plan_mut(&mut self, prepared: Prepared) -> Result<&mut PreparedPlan, Error> {
        self.prepared
            .get_mut(prepared.0 as usize)
            .ok_or_else(|| Error::Invalid(format!("no plan {}", prepared.0)))
    }

    /// Moves shared storage into the plan, or back.
    fn lend(&mut self, index: usize) {
        let plan = &mut self.prepared[index];
        for (buffer, storage) in plan.plan.buffers.iter().zip(&mut plan.storage) {
            if matches!(buffer.class, Class::Weight | Class::State)
                && let Some(shared) = self.shared.get_mut(&(buffer.class, buffer.name.clone()))
            {
                std::mem::swap(shared, storage);
            }
        }
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
    ) -> Result<(), Error> {
        let Some(storage) = self.shared.get_mut(&(Class::Weight, weight.to_owned())) else {
            return Err(Error::Invalid(format!("weight `{weight}` is not part of the request")));
        };
        if self.sequence > self.waited {
            return Err(Error::Invalid("weights cannot change while plans are under way".into()));
        }
        let failed = |source| Error::Weight { weight: weight.to_owned(), source };
        let (dtype, values) = (storage.dtype, &mut storage.values);
        let row = dtype.block_len().max(4096);
        let mut bytes = Vec::new();
        for (i, chunk) in values.chunks_mut(row).enumerate() {
            let per_block = dtype.block_bytes();
            let start = i * row / dtype.block_len() * per_block;
            bytes.resize(chunk.len() / dtype.block_len() * per_block, 0);
            source.read_at(start as u64, &mut bytes).map_err(failed)?;
            quant::dequantise(dtype, &bytes, chunk).map_err(|e| failed(Box::new(e)))?;
            progress(bytes.len() as u64);
        }
        Ok(())
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared, Error> {
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
        let sampled =
            plan.buffers.iter().position(|b| b.class == Class::Output && b.dtype == DType::I32);
        let storage = |b: &Buffer| match b.class {
            Class::Weight | Class::State => Storage::default(),
            _ => Storage::zeroed(b),
        };
        self.prepared.push(PreparedPlan {
            plan: plan.clone(),
            storage: plan.buffers.iter().map(storage).collect(),
            sampled: sampled.map(|i| BufferId(i as u32)),
            ring: Vec::new(),
            latest: 0,
        });
        Ok(Prepared(self.prepared.len() as u32 - 1))
    }

    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<(), Error> {
        self.idle(prepared)?;
        let plan = self.plan_mut(prepared)?;
        let storage = plan.storage.get_mut(mailbox.index());
        let len = match data {
            Data::I32(values) => values.len(),
            Data::F32(values) => values.len(),
        };
        let Some(target) = storage.and_then(|s| s.values.get_mut(at..at.checked_add(len)?)) else {
            return Err(Error::Invalid(format!(
                "elements {at}..{at}+{len} of mailbox {}",
                mailbox.0
            )));
        };
        match data {
            Data::I32(values) => {
                target.iter_mut().zip(values).for_each(|(t, v)| *t = f32::from_bits(*v as u32));
            }
            Data::F32(values) => target.copy_from_slice(values),
        }
        Ok(())
    }

    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket, Error> {
        if steps == 0 || steps > RING_STEPS {
            return Err(Error::Invalid(format!(
                "{steps} steps, 1 to {RING_STEPS} can be submitted"
            )));
        }
        self.plan_mut(prepared)?.ring.clear();
        let index = prepared.0 as usize;
        self.lend(index);
        for _ in 0..steps {
            let plan = &mut self.prepared[index];
            interpret::run(&plan.plan, &mut plan.storage);
            let tokens = plan
                .sampled
                .map(|id| plan.storage[id.index()].values.iter().map(|v| v.to_bits() as i32));
            plan.ring.push(tokens.into_iter().flatten().collect());
        }
        self.lend(index);
        self.sequence += 1;
        self.prepared[index].latest = self.sequence;
        Ok(Ticket { prepared, sequence: self.sequence, steps })
    }

    fn completed(&self, ticket: Ticket) -> u32 {
        ticket.steps
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        self.waited = self.waited.max(ticket.sequence);
        Ok(())
    }

    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<(), Error> {
        let ring = &self.plan(ticket.prepared)?.ring;
        match ring.get(step as usize) {
            Some(tokens) if tokens.len() == out.len() => out.copy_from_slice(tokens),
            _ => return Err(Error::Invalid(format!("{} tokens of step {step}", out.len()))),
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
        self.idle(prepared)?;
        let storage = self.plan(prepared)?.storage.get(output.index());
        let Some(values) = storage.and_then(|s| s.values.get(at..at.checked_add(out.len())?))
        else {
            return Err(Error::Invalid(format!(
                "elements {at}..{at}+{} of output {}",
                out.len(),
                output.0
            )));
        };
        out.copy_from_slice(values);
        Ok(())
    }
}
