//! Launches of attention, and of RoPE and KV cache writes, separate or fused.

use orind_kernels::catalogue::launch::{
    ATTENTION_GROUP, attention_grid, prefill_attention_grid, prefill_attention_rows,
    prefill_attention_shared_bytes, rope_kv_grid,
};
use orind_kernels::catalogue::{CacheType, Kernel};
use orind_kernels::params::AttentionParams;

use super::matmul::takes_half;
use super::{Lowering, count};
use crate::Result;
use crate::gpu::launch::{Launch, Params, Region};
use crate::gpu::limit;
use crate::gpu::storage::unsupported;
use plan::{
    Attention, Caches, QkNorm, Queries, RopeKv, RopeStyle, Rows, Scalar, Scores, Temperature, View,
};

/// Number of attention blocks that fully occupy the largest Orin.
const ATTENTION_BLOCKS: u32 = 256;
/// Prefill attention blocks, two per SM, below which one block per row is faster.
const PREFILL_ATTENTION_BLOCKS: u32 = 32;

/// Blocks that share a row's positions if the plan's rows see `context` positions.
pub(in crate::gpu) fn splits(
    heads: u32,
    kv_heads: u32,
    dim: u32,
    rows: u32,
    context: usize,
) -> u32 {
    let group = heads / kv_heads.max(1);
    // For any cache type.
    let blocks = match Kernel::attention(dim, group, CacheType::F16) {
        Some(Kernel::Attention { heads: at_once, .. }) => heads / at_once,
        _ => heads,
    };
    let groups = u32::try_from((context as u64).div_ceil(ATTENTION_GROUP)).unwrap_or(u32::MAX);
    ATTENTION_BLOCKS.div_ceil((blocks * rows).max(1)).min(groups.max(1))
}

/// Parameters for some of the rows. The launches share scratch, as they do not overlap.
fn rows_of_attention(all: AttentionParams, first: u32, rows: u32) -> AttentionParams {
    let mut part = AttentionParams { rows, ..all };
    let (first, dim) = (u64::from(first), u64::from(all.dim));
    let (queries, keys) = (u64::from(all.heads) * dim, u64::from(all.kv_heads) * dim);
    part.q += 4 * first * queries;
    part.out += 4 * first * queries;
    part.slots += 4 * first;
    part.positions += 4 * first;
    // 0 without rotation.
    if all.table != 0 {
        part.k += 4 * first * keys;
        part.v += 4 * first * keys;
        part.table += 4 * first * u64::from(all.rotated);
    }
    part
}

impl Lowering<'_> {
    /// Sets the parameters for queries, keys, values and norms of a [`RopeKv`].
    fn rotation(&self, rope: &RopeKv, params: &mut AttentionParams) -> Result<Vec<Region>> {
        let (k, v, table) = (self.f32(&rope.k)?, self.f32(&rope.v)?, self.f32(&rope.table)?);
        (params.k, params.v, params.table) = (k.address, v.address, table.address);
        let mut regions = vec![k, v, table];
        regions.extend(self.rows(&rope.rows, params)?);
        if let Some(Queries { q, .. }) = &rope.queries {
            let q = self.f32(q)?;
            params.q = q.address;
            regions.push(q);
        }
        if let Some(QkNorm { q, k, eps }) = &rope.norm {
            params.eps = eps.get();
            params.k_norm = self.f32(k)?.address;
            if let Some(q) = q {
                params.q_norm = self.f32(q)?.address;
            }
        }
        Self::rotated(rope.style, &rope.table, params)?;
        Ok(regions)
    }

    /// Sets the parameters for rotation by a table `[M, 2, R/2]`.
    fn rotated(style: RopeStyle, table: &View, params: &mut AttentionParams) -> Result<()> {
        params.interleaved = u32::from(style == RopeStyle::Interleaved);
        params.rotated = count(2 * table.shape.last().copied().unwrap_or(0))?;
        Ok(())
    }

    /// Sets the parameters for slots and positions.
    fn rows(&self, rows: &Rows, params: &mut AttentionParams) -> Result<[Region; 2]> {
        let (slots, positions) = (self.i32(&rows.slots)?, self.i32(&rows.positions)?);
        (params.slots, params.positions) = (slots.address, positions.address);
        Ok([slots, positions])
    }

    /// Sets the parameters for caches and sizes; adds the block table to the reads; returns the
    /// cache type.
    fn shape(
        &self,
        params: &mut AttentionParams,
        reads: &mut Vec<Region>,
        caches: &Caches,
        [rows, heads]: [usize; 2],
    ) -> Result<([Region; 2], CacheType)> {
        let (keys, cache) = self.cache(&caches.keys)?;
        let (values, other) = self.cache(&caches.values)?;
        let heads = count(heads)?;
        if cache != other || !heads.is_multiple_of(cache.heads) || cache.ring != caches.ring {
            let ring = if caches.ring { " as rings" } else { "" };
            let what = format!("{heads} query heads over {cache:?} and {other:?}{ring}");
            return Err(unsupported(what));
        }
        (params.keys, params.values) = (keys.address, values.address);
        (params.rows, params.heads) = (count(rows)?, heads);
        (params.kv_heads, params.dim) = (cache.heads, cache.dim);
        (params.slot_count, params.capacity) = (cache.slots, cache.capacity);
        if !cache.ring {
            let (at, table) = self.addresses.table;
            (params.blocks, params.entries) = (at, count(table.entries)?);
            reads.push(Region::new(at, 4 * table.blocks() as u64));
        }
        Ok(([keys, values], cache.kind))
    }

    pub(super) fn rope_kv(&mut self, label: &str, rope: &RopeKv) -> Result<()> {
        let shape = &rope.queries.as_ref().map_or(&rope.k, |queries| &queries.q).shape;
        let [rows, heads, _] = shape[..] else {
            return Err(unsupported(format!("heads {shape:?}")));
        };
        let mut params = AttentionParams::default();
        let mut reads = self.rotation(rope, &mut params)?;
        let (caches, kind) = self.shape(&mut params, &mut reads, &rope.caches, [rows, heads])?;
        let mut writes = caches.to_vec();
        let mut rotated = 0;
        if let Some(Queries { out, .. }) = &rope.queries {
            let out = self.f32(out)?;
            (params.q_out, rotated) = (out.address, params.heads);
            writes.push(out);
        }
        let grid = rope_kv_grid(rotated, params.kv_heads, params.rows);
        let kernel = Kernel::RopeKv(kind);
        self.launch(label, kernel, grid, Params::Attention(params), reads, writes);
        Ok(())
    }

    /// Rotates queries only, `x` by `table`.
    pub(super) fn rope(
        &mut self,
        label: &str,
        style: RopeStyle,
        [x, table]: [&View; 2],
        out: &View,
    ) -> Result<()> {
        let [rows, heads, dim] = x.shape[..] else {
            return Err(unsupported(format!("heads {:?}", x.shape)));
        };
        let (q, out, angles) = (self.f32(x)?, self.f32(out)?, self.f32(table)?);
        let mut params = AttentionParams {
            q: q.address,
            q_out: out.address,
            table: angles.address,
            rows: count(rows)?,
            heads: count(heads)?,
            dim: count(dim)?,
            ..AttentionParams::default()
        };
        Self::rotated(style, table, &mut params)?;
        let grid = rope_kv_grid(params.heads, 0, params.rows);
        let (params, reads) = (Params::Attention(params), vec![q, angles]);
        // Uses no cache.
        self.launch(label, Kernel::RopeKv(CacheType::F16), grid, params, reads, vec![out]);
        Ok(())
    }

    /// Launches attention, which rotates and stores first if `rotation` is given.
    pub(super) fn attention(
        &mut self,
        label: &str,
        attention: &Attention,
        rotation: Option<&RopeKv>,
    ) -> Result<()> {
        let [rows, heads, dim] = attention.q.shape[..] else {
            return Err(unsupported(format!("queries {:?}", attention.q.shape)));
        };
        let mut params = AttentionParams::default();
        let mut regions = match rotation {
            Some(rope) => self.rotation(rope, &mut params)?,
            None => {
                let q = self.f32(&attention.q)?;
                params.q = q.address;
                let [slots, positions] = self.rows(&attention.rows, &mut params)?;
                vec![q, slots, positions]
            }
        };
        let (caches, kind) =
            self.shape(&mut params, &mut regions, &attention.caches, [rows, heads])?;
        regions.extend(caches);
        let out = self.f32(&attention.out)?;
        params.out = out.address;
        params.sinks = self.optional(attention.sinks.as_ref())?;
        let Scores { scale, temperature, cap, window } = attention.scores;
        (params.scale, params.cap) = (scale.get(), cap.map_or(0.0, Scalar::get));
        if let Some(Temperature { slope, length }) = temperature {
            (params.slope, params.length) = (slope.get(), count(length.max(1))?);
        }
        params.window = window.and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX);
        // Rows of one sequence share a slot.
        let shared = rotation.is_none() && self.plan.bucket.batch == 1;
        if shared && self.prefill_attention(label, params, kind, &regions, out) {
            return Ok(());
        }
        let group = params.heads / params.kv_heads;
        let context = self.plan.bucket.context;
        let splits = splits(params.heads, params.kv_heads, params.dim, params.rows, context);
        let kernel = Kernel::attention(count(dim)?, group, kind);
        let grid = kernel
            .and_then(|kernel| attention_grid(kernel, params.heads, params.kv_heads, splits, 1));
        let (Some(kernel), Some([blocks, ..])) = (kernel, grid) else {
            return Err(unsupported(format!("heads of {dim} values ({label})")));
        };
        let (parts, counters) = (self.addresses.attention(), self.addresses.block_counters());
        (params.partial, params.counters) = (parts.address, counters.address);
        let mut writes = vec![out, parts, counters];
        if rotation.is_some() {
            writes.extend(caches);
        }
        let most = limit::rows_of_attention(kernel, &params, blocks, context as u64);
        for first in (0..params.rows).step_by(most as usize) {
            let rows = most.min(params.rows - first);
            let part = Params::Attention(rows_of_attention(params, first, rows));
            let grid = [blocks, splits, rows];
            self.launch(label, kernel, grid, part, regions.clone(), writes.clone());
        }
        Ok(())
    }

    /// Launches prefill attention, whose rows share cache reads; false if there are too few rows or
    /// no kernel for these heads.
    fn prefill_attention(
        &mut self,
        label: &str,
        params: AttentionParams,
        kind: CacheType,
        reads: &[Region],
        out: Region,
    ) -> bool {
        let AttentionParams { rows, heads, kv_heads, dim, .. } = params;
        let group = heads / kv_heads;
        let kernel = if takes_half(self.plan, rows as usize) {
            Kernel::prefill_attention_half(dim, group, kind)
        } else {
            Kernel::prefill_attention(dim, group, kind)
        };
        let Some(kernel) = kernel else { return false };
        let grid = |rows| prefill_attention_grid(kernel, heads, kv_heads, rows);
        let (Some([blocks, tiles, _]), Some(tile)) =
            (grid(rows), prefill_attention_rows(kernel, group))
        else {
            return false;
        };
        if blocks * tiles < PREFILL_ATTENTION_BLOCKS {
            return false;
        }
        let context = self.plan.bucket.context as u64;
        let most = limit::rows_of_attention(kernel, &params, blocks, context);
        let most = (most / tile).max(1) * tile;
        for first in (0..rows).step_by(most as usize) {
            let part = rows_of_attention(params, first, most.min(rows - first));
            self.launches.push(Launch {
                step: self.at,
                label: label.to_owned(),
                kernel,
                grid: [blocks, part.rows.div_ceil(tile), 1],
                shared_bytes: prefill_attention_shared_bytes(kernel),
                params: Params::Attention(part),
                reads: reads.to_vec(),
                writes: vec![out],
            });
        }
        true
    }
}
