//! The arithmetic of launches: grids, dynamic shared memory, scratch. Pure numbers, as the kernels'
//! headers state them.

use super::{Kernel, ProjectVariant, Weight};
use crate::repack::{BLOCK, PANEL, SUPERBLOCK};

/// Blocks in x, y and z.
pub type Grid = [u32; 3];

/// What a projection's kernel declares of shared memory itself, at most: norms of 8 rows, 8 partial sums each, and
/// what each of 16 warps folds at a time, 8 sums of each of its lanes and what pads them.
const SHARED_OWN: u32 = 4 * (8 * 8 + 16 * 8 * (32 + 8));

/// Most dynamic shared memory of a projection's block: what is proven on the device (100 KiB), less the
/// 1 KiB that the hardware keeps and what the kernel declares itself.
pub const SHARED_LIMIT: u32 = (99 << 10) - SHARED_OWN;

/// Bytes of dynamic shared memory of a projection with `k` columns, or `None` where they exceed
/// [`SHARED_LIMIT`]: the rows must then be split into several launches.
#[must_use]
pub fn project_shared_bytes(weight: Weight, rows: u32, planes: u32, k: usize) -> Option<u32> {
    let columns = usize::try_from(rows.checked_mul(planes)?).ok()?;
    let (record, one_scale) = weight.record();
    let scales = if one_scale { columns.div_ceil(4) } else { 0 };
    let superblock = 16 * (columns.checked_mul(record)?.checked_add(scales)? | 1);
    let bytes = k.div_ceil(SUPERBLOCK).checked_mul(superblock)?;
    u32::try_from(bytes).ok().filter(|&bytes| bytes <= SHARED_LIMIT)
}

/// Tiles of a projection, which is the largest grid that has work: blocks walk over tiles, so any
/// smaller grid computes the same. `n` are the rows of the matrices (of the gate alone with the
/// SiLU-product).
#[must_use]
pub fn project_tiles(variant: ProjectVariant, n: &[u32], swiglu: bool) -> u32 {
    let outputs = if swiglu { variant.rows_per_thread / 2 } else { variant.rows_per_thread };
    let groups = variant.warps * 32 / (PANEL as u32 * variant.threads_per_row);
    let tile = PANEL as u32 * groups * outputs;
    n.iter().map(|n| n.div_ceil(tile.max(1))).sum()
}

/// Positions that a tile of the cache's keys holds: a slot's capacity is rounded up to whole tiles.
pub const CACHE_TILE: u32 = 32;

/// Positions that attention adds up before they join the rest: what a block takes at a time.
pub const ATTENTION_GROUP: u64 = 256;

/// Bytes of attention's scratch for `rows` rows of more than one block, in slots of `capacity` positions.
#[must_use]
pub const fn attention_partial_bytes(rows: u64, heads: u64, dim: u64, capacity: u64) -> u64 {
    rows * heads * capacity.div_ceil(ATTENTION_GROUP) * (8 + 4 * dim)
}

/// The grid of `embed_*`: `rows` rows of `k` columns.
#[must_use]
pub fn embed_grid(weight: Weight, k: u32, rows: u32) -> Grid {
    [k.div_ceil(BLOCK as u32).div_ceil(Kernel::Embed(weight).threads()), rows, 1]
}

/// The grid of `gather`, `add` and `swiglu`: `rows` rows of `n` elements.
#[must_use]
pub fn elements_grid(n: u32, rows: u32) -> Grid {
    [n.div_ceil(Kernel::Add.threads()), rows, 1]
}

/// The grid of `rms_norm` and `rope_table`: a block for each row.
#[must_use]
pub const fn rows_grid(rows: u32) -> Grid {
    [rows, 1, 1]
}

/// The grid of `rope_kv`: a warp for each query head (0 where there are no queries), key and value.
#[must_use]
pub const fn rope_kv_grid(heads: u32, kv_heads: u32, rows: u32) -> Grid {
    [(heads + 2 * kv_heads).div_ceil(Kernel::RopeKv.threads() / 32), rows, 1]
}

/// The grid of an attention kernel with `splits` blocks for each row and some of its heads (they decide no
/// number), or `None` for any other kernel, and for heads that it does not divide.
#[must_use]
pub fn attention_grid(
    kernel: Kernel,
    heads: u32,
    kv_heads: u32,
    splits: u32,
    rows: u32,
) -> Option<Grid> {
    let Kernel::Attention { heads: served, .. } = kernel else { return None };
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads.checked_mul(served)?) {
        return None;
    }
    Some([heads / served, splits, rows])
}

/// Counters of an attention launch: one for each row and block in x.
#[must_use]
pub const fn attention_counters(grid: Grid) -> u32 {
    grid[0] * grid[2]
}
