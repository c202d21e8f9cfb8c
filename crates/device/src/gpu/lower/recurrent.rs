//! Launches of recurrent layers.

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{gated_delta_grid, short_conv_grid};
use orind_kernels::params::{self, DeltaRuleParams, GatedDeltaParams, ShortConvParams};

use super::{Lowering, count};
use crate::Result;
use crate::gpu::launch::{Params, Region};
use crate::gpu::storage::{State, unsupported};
use plan::{DeltaRule, GatedDelta, Recurrence, ShortConv, View};

/// Parameters of a state, with the memory that a launch reads and writes.
struct Memory {
    params: params::Recurrence,
    reads: Vec<Region>,
    writes: Vec<Region>,
}

impl Lowering<'_> {
    fn state(&self, view: &View) -> Result<Region> {
        let buffer = self.buffer(view);
        match self.addresses.states.get(&buffer.name) {
            Some(&(at, State::Recurrent { bytes, .. })) if view.shape == buffer.shape => {
                Ok(Region::new(at, bytes))
            }
            _ => Err(unsupported(format!("`{}` as a state", buffer.name))),
        }
    }

    fn memory(&self, memory: &Recurrence) -> Result<Memory> {
        let (state, held) = (self.state(&memory.state)?, self.state(&memory.held)?);
        let (slots, positions) = (self.i32(&memory.rows.slots)?, self.i32(&memory.rows.positions)?);
        let counters = self.addresses.block_counters();
        let params = params::Recurrence {
            state: state.address,
            held: held.address,
            slots: slots.address,
            positions: positions.address,
            counter: counters.address,
            slot_count: count(memory.state.shape[0])?,
            sequences: count(memory.sequences())?,
            chunk: count(memory.chunk)?,
            size: count(memory.size())?,
        };
        let reads = vec![state, held, slots, positions];
        Ok(Memory { params, reads, writes: vec![state, held, counters] })
    }

    pub(super) fn short_conv(&mut self, label: &str, step: &ShortConv) -> Result<()> {
        let Memory { params: memory, mut reads, mut writes } = self.memory(&step.memory)?;
        let (x, out) = (self.f32(&step.x)?, self.f32(&step.out)?);
        let &[channels, taps] = &step.weight.shape[..] else {
            return Err(unsupported(format!("a convolution of {:?}", step.weight.shape)));
        };
        let params = ShortConvParams {
            memory,
            x: x.address,
            weight: self.f32(&step.weight)?.address,
            out: out.address,
            channels: count(channels)?,
            taps: count(taps)?,
        };
        reads.push(x);
        writes.push(out);
        let grid = short_conv_grid(params.channels, memory.chunk, memory.sequences);
        self.launch(label, Kernel::ShortConv, grid, Params::ShortConv(params), reads, writes);
        Ok(())
    }

    pub(super) fn gated_delta(&mut self, label: &str, step: &GatedDelta) -> Result<()> {
        let Memory { params: memory, mut reads, mut writes } = self.memory(&step.memory)?;
        let operands = [&step.mixed, &step.step, &step.strength].map(|view| self.f32(view));
        let [mixed, gate, strength] = operands;
        let (mixed, gate, strength, out) = (mixed?, gate?, strength?, self.f32(&step.out)?);
        let heads = step.heads;
        #[expect(clippy::cast_precision_loss, reason = "a head is far below 2^24 values")]
        let size = heads.key_size as f32;
        let params = GatedDeltaParams {
            memory,
            mixed: mixed.address,
            step: gate.address,
            strength: strength.address,
            rate: self.f32(&step.rate)?.address,
            bias: self.f32(&step.bias)?.address,
            out: out.address,
            key_heads: count(heads.keys)?,
            heads: count(heads.values)?,
            key_size: count(heads.key_size)?,
            value_size: count(heads.value_size)?,
            grouped: u32::from(heads.grouped),
            // Normalising to length 1, expressed as an RMS norm.
            eps: step.eps.get() / size,
            query_scale: 1.0 / size,
            key_scale: 1.0 / size.sqrt(),
        };
        reads.extend([mixed, gate, strength]);
        writes.push(out);
        let grid = gated_delta_grid(params.heads, params.value_size, memory.sequences);
        self.launch(label, Kernel::GatedDelta, grid, Params::GatedDelta(params), reads, writes);
        Ok(())
    }

    pub(super) fn delta_rule(&mut self, label: &str, rule: &DeltaRule) -> Result<()> {
        let Memory { params: memory, mut reads, mut writes } = self.memory(&rule.memory)?;
        let &[_, heads, key_size] = &rule.query.shape[..] else {
            return Err(unsupported(format!("heads {:?}", rule.query.shape)));
        };
        let [query, decay, key] =
            [self.f32(&rule.query)?, self.f32(&rule.decay)?, self.f32(&rule.key)?];
        let [take, add, value] =
            [self.f32(&rule.take)?, self.f32(&rule.add)?, self.f32(&rule.value)?];
        let out = self.f32(&rule.out)?;
        let params = DeltaRuleParams {
            memory,
            query: query.address,
            decay: decay.address,
            key: key.address,
            take: take.address,
            add: add.address,
            value: value.address,
            out: out.address,
            heads: count(heads)?,
            key_size: count(key_size)?,
            value_size: count(rule.value.shape[2])?,
            reserved: 0,
        };
        reads.extend([query, decay, key, take, add, value]);
        writes.push(out);
        let grid = gated_delta_grid(params.heads, params.value_size, memory.sequences);
        self.launch(label, Kernel::DeltaRule, grid, Params::DeltaRule(params), reads, writes);
        Ok(())
    }
}
