//! The arithmetic of launches: grids, dynamic shared memory, scratch. Pure numbers, as the kernels'
//! headers state them.

use super::{CacheType, Form, Kernel, ProjectVariant, Weight};
use crate::params::{TensorMatmulParams, TensorParams};
use crate::repack::{BLOCK, PANEL, PIECE, SUPERBLOCK};

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

/// Matrix rows that a block of `matmul_*` takes, and panels of those.
const MATMUL_OUTPUTS: u32 = 64;
const MATMUL_PANELS: u32 = MATMUL_OUTPUTS / PANEL as u32;

/// The first choice of the kernel for many rows of activations, by the rows that a block of it takes; `None` where
/// projections take them a few at a time. A tile of plain weights computes for all its rows, whether they are there or not.
#[must_use]
pub fn matmul_tile(weight: Weight, rows: usize) -> Option<u32> {
    let tiles = weight.tiles();
    let least = tiles.iter().copied().find(|&tile| rows <= tile as usize);
    let few = if weight.is_quantised() { weight.most_rows() } else { 24 };
    (rows > few as usize).then(|| least.or(tiles.last().copied())).flatten()
}

/// Threads of a block of `matmul_*`: those of plain weights have 4 rows of activations times 4 of a matrix each.
#[must_use]
pub const fn matmul_threads(weight: Weight, tile: u32) -> u32 {
    if weight.is_quantised() { 256 } else { tile / 4 * (MATMUL_OUTPUTS / 4) }
}

/// Whether `matmul_*` of a type takes matrices of `k` columns, `matmul_half_*` too.
#[must_use]
pub const fn matmul_takes(weight: Weight, k: usize) -> bool {
    weight.is_quantised() || k.is_multiple_of(MATMUL_STAGE as usize)
}

/// Rows of activations of a warp of `matmul_*`: without such rows it has next to nothing to do. With plain weights it
/// computes all the same.
#[must_use]
pub const fn matmul_warp_rows(weight: Weight, tile: u32) -> u32 {
    match tile {
        _ if !weight.is_quantised() => tile,
        128 => 32,
        _ => 16,
    }
}

/// Columns that a block with plain weights has in shared memory at a time.
const MATMUL_STAGE: u32 = 32;

/// `f32` beside 256 quantised activations of a row: of blocks, then of all (`Record` in `quantise.cuh`).
const fn matmul_record(weight: Weight) -> [u32; 2] {
    [weight.extras() as u32, (weight.form().span == SUPERBLOCK) as u32]
}

/// Bytes of the activations that `matmul_*` with tiles of `tile` rows reads: what `quantise_*` makes of rows of `k`
/// columns in some planes, or with plain weights the rows with their norm.
#[must_use]
pub const fn matmul_activations_bytes(
    weight: Weight,
    tile: u32,
    rows: u32,
    planes: u32,
    k: u32,
) -> u64 {
    if !weight.is_quantised() {
        return 4 * rows as u64 * k as u64;
    }
    let [of_blocks, of_all] = matmul_record(weight);
    let record = SUPERBLOCK as u64 + 4 * (of_blocks + of_all) as u64;
    let rows = rows.next_multiple_of(tile) as u64;
    record * rows * planes as u64 * k.div_ceil(SUPERBLOCK as u32) as u64
}

/// From so many rows of a prompt on half precision is taken, where it may be: above what is verified or decoded together, whose
/// tokens are those of rows that are computed alone.
pub const HALF_ROWS: usize = 64;

/// Rows of activations of a block of `matmul_half_*`.
pub const HALF_TILE: u32 = 128;

/// Columns that it has in shared memory at a time.
const HALF_STAGE: u32 = 64;

/// Its dynamic shared memory (`Shared` in `matmul_half.cuh`).
pub const MATMUL_HALF_SHARED_BYTES: u32 = 2 * 2 * HALF_STAGE * (HALF_TILE + MATMUL_OUTPUTS);

/// Bytes of the activations that it reads (`Halves` in `matmul_half.cuh`).
#[must_use]
pub const fn halves_bytes(rows: u32, k: u32) -> u64 {
    rows.next_multiple_of(HALF_TILE) as u64 * (2 * k.next_multiple_of(HALF_STAGE) as u64 + 4)
}

/// The grid of `quantise_*` and `halves_*`.
#[must_use]
pub const fn quantise_grid(tile: u32, rows: u32) -> Grid {
    [rows.next_multiple_of(tile), 1, 1]
}

/// Dynamic shared memory of `quantise_*` and `halves_*`, which have a row as a projection has; `None` likewise.
#[must_use]
pub fn quantise_shared_bytes(weight: Weight, planes: u32, k: usize) -> Option<u32> {
    project_shared_bytes(weight, 1, planes, k)
}

/// The grid of `matmul_*`. `n` are the rows of the matrices (of the gate alone with the SiLU-product).
#[must_use]
pub fn matmul_grid(tile: u32, rows: u32, n: &[u32], swiglu: bool) -> Grid {
    let outputs = if swiglu { MATMUL_OUTPUTS / 2 } else { MATMUL_OUTPUTS };
    [rows.div_ceil(tile), n.iter().map(|n| n.div_ceil(outputs)).sum(), 1]
}

/// Dynamic shared memory of `matmul_*` (`Shared` in `matmul.cuh` and `matmul_plain.cuh`).
#[must_use]
pub const fn matmul_shared_bytes(weight: Weight, tile: u32) -> u32 {
    if !weight.is_quantised() {
        return 2 * 4 * (MATMUL_STAGE + 4) * (tile + MATMUL_OUTPUTS);
    }
    let [of_blocks, _] = matmul_record(weight);
    let stages = tile * (SUPERBLOCK as u32 + 4 * of_blocks);
    let Form { head, quants, tail, sums, .. } = weight.form();
    let raw = MATMUL_PANELS * (PANEL * PIECE * (head + quants)) as u32;
    let bytes = PANEL as u32 * SUPERBLOCK as u32;
    // Signed bytes stay where they arrive, so they have two places.
    let weights =
        if matches!(weight, Weight::Q8_0) { 2 * raw + bytes } else { raw + MATMUL_PANELS * bytes };
    // Tails, scales in pairs, what sums begin with, where panels are, and which matrix it is.
    let tails = MATMUL_PANELS * if tail > 0 { PANEL * tail } else { PIECE } as u32;
    let pairs = if sums == 2 { 2 } else { 1 };
    let scales = ((8 * pairs + 2) * 8 + 4) * MATMUL_OUTPUTS;
    stages + 4 * tile + weights + tails + scales + 16 * MATMUL_PANELS + 16
}

/// Positions that a tile of the cache's keys holds: a slot's capacity is rounded up to whole tiles.
pub const CACHE_TILE: u32 = 32;

/// Positions of a block of the cache: where a slot keeps every position, they lie in blocks.
pub const CACHE_BLOCK: u32 = 128;

/// Positions that attention adds up before they join the rest: what a block takes at a time.
pub const ATTENTION_GROUP: u64 = 256;

/// Bytes of attention's scratch for `rows` rows of more than one block, in slots of `capacity` positions, whose
/// groups a window may begin and end within where they are a `ring`.
#[must_use]
pub const fn attention_partial_bytes(
    rows: u64,
    heads: u64,
    dim: u64,
    capacity: u64,
    ring: bool,
) -> u64 {
    rows * heads * (capacity.div_ceil(ATTENTION_GROUP) + ring as u64) * (8 + 4 * dim)
}

/// The grid of `embed_*`: `rows` rows of `k` columns.
#[must_use]
pub fn embed_grid(weight: Weight, k: u32, rows: u32) -> Grid {
    [k.div_ceil(BLOCK as u32).div_ceil(Kernel::Embed(weight).threads()), rows, 1]
}

/// The grid of `gather`, `elementwise` and `combine`: `rows` rows of `n` elements.
#[must_use]
pub fn elements_grid(n: u32, rows: u32) -> Grid {
    [n.div_ceil(Kernel::Elementwise.threads()), rows, 1]
}

/// Most experts of a mixture.
pub const MOST_EXPERTS: u32 = 1024;

/// The grid of `experts_*`: `blocks` of a pair walk over the tiles of its matrices, of `n` rows each.
#[must_use]
pub fn experts_grid(weight: Weight, n: u32, glu: bool, pairs: u32, blocks: u32) -> Grid {
    let tiles = project_tiles(ProjectVariant::of_experts(weight), &[n], glu);
    [tiles.min(blocks).max(1), pairs, 1]
}

/// Places of a tile of pairs that chose the same expert: rows of a block of `matmul_*`.
pub const GROUP_TILE: u32 = 32;

/// Tiles that `group` fills at most.
#[must_use]
pub fn group_tiles(pairs: u32, experts: u32) -> u32 {
    // An expert's last tile lacks all but one place at most.
    (pairs + (GROUP_TILE - 1) * experts.min(pairs)) / GROUP_TILE
}

/// The grid of `group`.
pub const GROUP_GRID: Grid = [1, 1, 1];

/// Most weights of a channel of a short convolution.
pub const MOST_TAPS: u32 = 8;
/// Rows of a block of `short_conv`.
const CONV_ROWS: u32 = 16;

/// The grid of `short_conv`.
#[must_use]
pub fn short_conv_grid(channels: u32, chunk: u32, sequences: u32) -> Grid {
    [channels.div_ceil(Kernel::ShortConv.threads()), chunk.div_ceil(CONV_ROWS), sequences]
}

/// Widest queries and keys of `gated_delta`.
pub const MOST_KEY: u32 = 128;
/// Columns of a block.
const DELTA_COLUMNS: u32 = 32;

/// The grid of `gated_delta` and `delta_rule`.
#[must_use]
pub const fn gated_delta_grid(heads: u32, value_size: u32, sequences: u32) -> Grid {
    [value_size.div_ceil(DELTA_COLUMNS), heads, sequences]
}

/// Lanes that share a row of a reduction.
pub(crate) const ROW_LANES: u32 = 16;
/// Columns that they have at a time.
pub(crate) const ROW_BLOCK: u32 = 256;
/// Rows and columns of a block of `tensor_matmul`.
const TENSOR_SIDE: u32 = 32;

/// The grid of `tensor`: a thread for each element, or for each column of a reduction, or some for each of its rows.
#[must_use]
pub fn tensor_grid(params: &TensorParams) -> Grid {
    let threads = match (params.reduce, params.inner) {
        (0, _) => params.elements,
        (_, 1) => params.outer.saturating_mul(ROW_LANES),
        (_, inner) => params.outer.saturating_mul(inner),
    };
    tensor_elements_grid(threads)
}

/// The grid of `tensor_gather` and `tensor_scatter`: a thread for each element that is written.
#[must_use]
pub fn tensor_elements_grid(elements: u32) -> Grid {
    [elements.div_ceil(Kernel::Tensor.threads()).max(1), 1, 1]
}

/// The grid of `tensor_matmul`.
#[must_use]
pub const fn tensor_matmul_grid(params: &TensorMatmulParams) -> Grid {
    [params.n.div_ceil(TENSOR_SIDE), params.m.div_ceil(TENSOR_SIDE), params.batches]
}

/// The grid of `normalise`, `route`, `rope_table` and `tensor_top_k`: a block for each row.
#[must_use]
pub const fn rows_grid(rows: u32) -> Grid {
    [rows, 1, 1]
}

/// The grid of `rope_kv`: a warp for each query head (0 where there are no queries), key and value.
#[must_use]
pub const fn rope_kv_grid(heads: u32, kv_heads: u32, rows: u32) -> Grid {
    [(heads + 2 * kv_heads).div_ceil(Kernel::RopeKv(CacheType::F16).threads() / 32), rows, 1]
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

/// Queries that a block of it takes in half precision.
const PREFILL_ATTENTION_HALF_QUERIES: u32 = 64;

/// Rows that a block of a prefill attention kernel takes, of `group` query heads to a KV head; `None` for
/// any other kernel.
#[must_use]
pub fn prefill_attention_rows(kernel: Kernel, group: u32) -> Option<u32> {
    let queries = match kernel {
        Kernel::PrefillAttention { width, .. } => PREFILL_ATTENTION_UNIT / width,
        Kernel::PrefillAttentionHalf { .. } => PREFILL_ATTENTION_HALF_QUERIES,
        _ => return None,
    };
    queries.checked_div(group)
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
/// and what the queries' sums have come to (`Shared` in `prefill_attention.cuh`); in half precision queries, keys and values
/// (`prefill_attention_half.cuh`).
#[must_use]
pub const fn prefill_attention_shared_bytes(kernel: Kernel) -> u32 {
    if let Kernel::PrefillAttentionHalf { width, .. } = kernel {
        let (queries, step) = (PREFILL_ATTENTION_HALF_QUERIES, if width > 128 { 32 } else { 64 });
        return 2 * width * (queries + 2 * step) + 4 * (2 * queries + 4);
    }
    let Kernel::PrefillAttention { width, .. } = kernel else { return 0 };
    let (queries, spans) = (PREFILL_ATTENTION_UNIT / width, width / CACHE_TILE);
    let weights = width * (queries + 4);
    4 * (2 * PREFILL_ATTENTION_UNIT + weights + (2 * spans + 6) * queries + 8)
}

/// Counters of an attention launch: one for each row and block in x.
#[must_use]
pub const fn attention_counters(grid: Grid) -> u32 {
    grid[0] * grid[2]
}
