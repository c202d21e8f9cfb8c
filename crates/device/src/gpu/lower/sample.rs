//! Launch of the sampler.

use orind_kernels::catalogue::Kernel;
use orind_kernels::params::SampleParams;

use super::{Lowering, count, rows_of};
use crate::gpu::launch::{Params, Region};
use crate::gpu::storage::SAMPLE_PARTS;
use crate::{RING_STEPS, Result};
use plan::Sample;
use plan::sample::Adjustment;

impl Lowering<'_> {
    pub(super) fn sample(&mut self, label: &str, sample: &Sample) -> Result<()> {
        let (rows, vocabulary) = rows_of(&sample.logits);
        let (buffers, base) = (self.addresses.buffers, self.addresses.buffers_at);
        let inputs = &sample.inputs;
        let regions = [
            self.f32(&sample.logits)?,
            self.f32(&inputs.temperature)?,
            self.i32(&inputs.top_k)?,
            self.f32(&inputs.top_p)?,
            self.f32(&inputs.min_p)?,
            self.i32(&inputs.seed)?,
            self.i32(&inputs.positions)?,
        ];
        let [logits, temperature, top_k, top_p, min_p, seed, positions] =
            regions.map(|r| r.address);
        let mut reads = regions.to_vec();
        let ids = self.i32(&sample.ids)?;
        let mut adjustments = 0;
        if let Some(words) = &inputs.adjustments {
            let words = self.i32(words)?;
            adjustments = words.address;
            reads.push(words);
        }
        let (parts, candidates, counters) = self.addresses.sample();
        let ring = Region::new(base + buffers.ring, 4 * u64::from(RING_STEPS) * rows as u64);
        let cursor = Region::new(base + buffers.cursor, 4);
        let workspace = self.addresses.workspace;
        let mut writes = vec![
            ids,
            ring,
            cursor,
            Region::new(parts, workspace.sample),
            Region::new(candidates, workspace.candidates),
            Region::new(counters, workspace.sample_counters),
        ];
        let (mut next_tokens, mut next_positions) = (0, 0);
        if let Some(next) = &sample.next {
            let (tokens, positions) = (self.i32(&next.tokens)?, self.i32(&next.positions)?);
            (next_tokens, next_positions) = (tokens.address, positions.address);
            writes.extend([tokens, positions]);
        }
        let params = Params::Sample(SampleParams {
            logits,
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            positions,
            ids: ids.address,
            next_tokens,
            next_positions,
            ring: ring.address,
            cursor: cursor.address,
            partial: parts,
            counters,
            candidates,
            adjustments,
            adjusted: candidates + 8 * (rows * vocabulary) as u64,
            vocabulary: count(vocabulary)?,
            rows: count(rows)?,
            ring_entries: RING_STEPS,
            adjustment_words: count(Adjustment::words(vocabulary))?,
        });
        let grid = [SAMPLE_PARTS, count(rows)?, 1];
        self.launch(label, Kernel::Sample, grid, params, reads, writes);
        Ok(())
    }
}
