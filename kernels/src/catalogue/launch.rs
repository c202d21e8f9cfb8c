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

/// Rows of activations that a block of `matmul_*` takes, which those in memory are padded to.
pub const MATMUL_ROWS: u32 = 128;
/// Those of a warp: without such rows it has nothing to do.
pub const MATMUL_WARP_ROWS: u32 = 32;
/// Matrix rows that it takes.
const MATMUL_OUTPUTS: u32 = 64;

/// What `matmul_*` holds of a type (`Tile` and `Shared` in `tile.cuh` and `matmul.cuh`).
struct MatmulTile {
    /// Pieces of half a superblock.
    pieces: u32,
    /// Panels whose bytes are unpacked: 1 where they are used as they lie.
    panels: u32,
    /// `f32` beside a superblock's activations, in all planes that meet it at a time.
    extras: u32,
    /// Scales of a superblock.
    scales: u32,
    /// Rows of minima.
    minima: u32,
}

const fn matmul_tile(weight: Weight) -> MatmulTile {
    let [pieces, panels, extras, scales, minima] = match weight {
        Weight::Q8_0 => [9, 1, 16, 8, 1],
        Weight::Q6_K => [7, 8, 1, 16, 1],
        Weight::Q4_K => [5, 8, 9, 8, 64],
        Weight::Q5_K => [6, 8, 9, 8, 64],
        Weight::F16 => [0; 5],
    };
    MatmulTile { pieces, panels, extras, scales, minima }
}

/// Rows padded to whole tiles of `matmul_*`.
const fn matmul_rows(rows: u32) -> u32 {
    rows.next_multiple_of(MATMUL_ROWS)
}

/// Bytes of the integers that `quantise_*` makes of rows of `k` columns, in some planes.
#[must_use]
pub const fn matmul_quants_bytes(rows: u32, planes: u32, k: u32) -> u64 {
    matmul_rows(rows) as u64 * planes as u64 * k as u64
}

/// Bytes of the scales and sums that it makes beside them.
#[must_use]
pub const fn matmul_extras_bytes(weight: Weight, rows: u32, planes: u32, k: u32) -> u64 {
    // Of one plane.
    let extras = match weight {
        Weight::F16 => 0,
        Weight::Q8_0 => 8,
        Weight::Q6_K => 1,
        Weight::Q4_K | Weight::Q5_K => 9,
    };
    4 * extras * matmul_rows(rows) as u64 * planes as u64 * k.div_ceil(SUPERBLOCK as u32) as u64
}

/// The grid of `quantise_*`.
#[must_use]
pub const fn quantise_grid(rows: u32) -> Grid {
    [matmul_rows(rows), 1, 1]
}

/// Dynamic shared memory of `quantise_*`, which has a row as a projection has; `None` likewise.
#[must_use]
pub fn quantise_shared_bytes(weight: Weight, planes: u32, k: usize) -> Option<u32> {
    project_shared_bytes(weight, 1, planes, k)
}

/// The grid of `matmul_*`. `n` are the rows of the matrices (of the gate alone with the SiLU-product).
#[must_use]
pub fn matmul_grid(rows: u32, n: &[u32], swiglu: bool) -> Grid {
    let outputs = if swiglu { MATMUL_OUTPUTS / 2 } else { MATMUL_OUTPUTS };
    [rows.div_ceil(MATMUL_ROWS), n.iter().map(|n| n.div_ceil(outputs)).sum(), 1]
}

/// Dynamic shared memory of `matmul_*`.
#[must_use]
pub const fn matmul_shared_bytes(weight: Weight) -> u32 {
    let MatmulTile { pieces, panels, extras, scales, minima } = matmul_tile(weight);
    // Twice activations of half a superblock, the weights' pieces, tails and what stands beside activations; bytes
    // that were unpacked; scales, minima and what sums begin with; where panels are.
    let twice = 128 * MATMUL_ROWS + 8 * 128 * pieces + 8 * 16 + 4 * extras * MATMUL_ROWS;
    2 * twice
        + panels * 1024
        + 4 * (scales + 4) * (MATMUL_OUTPUTS + minima)
        + 4 * MATMUL_OUTPUTS
        + 144
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

/// Queries that a block of prefill attention takes, times the values of a head at most.
const PREFILL_ATTENTION_UNIT: u32 = 4096;

/// Rows that a block of a prefill attention kernel takes, of `group` query heads to a KV head; `None` for
/// any other kernel.
#[must_use]
pub fn prefill_attention_rows(kernel: Kernel, group: u32) -> Option<u32> {
    let Kernel::PrefillAttention { width } = kernel else { return None };
    (PREFILL_ATTENTION_UNIT / width).checked_div(group)
}

/// Its grid for `rows` rows: a block for each KV head and tile of rows.
#[must_use]
pub fn prefill_attention_grid(
    kernel: Kernel,
    heads: u32,
    kv_heads: u32,
    rows: u32,
) -> Option<Grid> {
    let tile = prefill_attention_rows(kernel, heads.checked_div(kv_heads)?)?;
    (tile > 0).then(|| [kv_heads, rows.div_ceil(tile), 1])
}

/// Its dynamic shared memory, 0 for any other kernel: queries, keys or values, weights of a span for every 32 values of a head,
/// and what the queries' sums have come to (`Shared` in `prefill_attention.cuh`).
#[must_use]
pub const fn prefill_attention_shared_bytes(kernel: Kernel) -> u32 {
    let Kernel::PrefillAttention { width } = kernel else { return 0 };
    let (queries, spans) = (PREFILL_ATTENTION_UNIT / width, width / CACHE_TILE);
    let weights = width * (queries + 4);
    4 * (2 * PREFILL_ATTENTION_UNIT + weights + (4 * spans + 5) * queries + 4)
}

/// Counters of an attention launch: one for each row and block in x.
#[must_use]
pub const fn attention_counters(grid: Grid) -> u32 {
    grid[0] * grid[2]
}
