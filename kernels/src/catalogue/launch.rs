//! Launch geometry: grids, dynamic shared memory and scratch sizes.

use super::{CacheType, FormatSizes, Kernel, ProjectVariant, Weight};
use crate::params::{TensorMatmulParams, TensorParams};
use crate::repack::{BLOCK, PANEL, PIECE, SUPERBLOCK};

/// Blocks in x, y and z.
pub type Grid = [u32; 3];

/// Most static shared memory of a projection kernel: norms of 8 rows (8 partial sums each), and 8
/// padded sums for each lane of 16 warps.
const SHARED_OWN: u32 = 4 * (8 * 8 + 16 * 8 * (32 + 8));

/// Most dynamic shared memory of a projection block: the device's limit of 100 KiB, less the
/// reserved 1 KiB and the kernel's static shared memory.
pub const SHARED_LIMIT: u32 = (99 << 10) - SHARED_OWN;

/// Dynamic shared memory of a projection with `k` columns. `None` above [`SHARED_LIMIT`]: the
/// caller splits the rows into several launches.
#[must_use]
pub fn project_shared_bytes(weight: Weight, rows: u32, planes: u32, k: usize) -> Option<u32> {
    let columns = usize::try_from(rows.checked_mul(planes)?).ok()?;
    let (record, one_scale) = weight.record();
    let scales = if one_scale { columns.div_ceil(4) } else { 0 };
    let superblock = 16 * (columns.checked_mul(record)?.checked_add(scales)? | 1);
    let bytes = k.div_ceil(SUPERBLOCK).checked_mul(superblock)?;
    u32::try_from(bytes).ok().filter(|&bytes| bytes <= SHARED_LIMIT)
}

/// Number of tiles of a projection, the largest useful grid. Blocks loop over tiles, so a smaller
/// grid computes the same. `n` are the rows of each matrix (only the gate's with SwiGLU).
#[must_use]
pub fn project_tiles(variant: ProjectVariant, n: &[u32], swiglu: bool) -> u32 {
    let outputs = if swiglu { variant.rows_per_thread / 2 } else { variant.rows_per_thread };
    let groups = variant.warps * 32 / (PANEL as u32 * variant.threads_per_row);
    let tile = PANEL as u32 * groups * outputs;
    n.iter().map(|n| n.div_ceil(tile.max(1))).sum()
}

/// Matrix rows and panels of a `matmul_*` block.
const MATMUL_OUTPUTS: u32 = 64;
const MATMUL_PANELS: u32 = MATMUL_OUTPUTS / PANEL as u32;

/// Default tile for `rows` rows of activations: the rows that a `matmul_*` block takes, or `None`
/// for the projection kernels. A tile of plain weights computes all its rows, even if they do not
/// exist.
#[must_use]
pub fn matmul_tile(weight: Weight, rows: usize) -> Option<u32> {
    let tiles = weight.tiles();
    let least = tiles.iter().copied().find(|&tile| rows <= tile as usize);
    let few = if weight.is_quantised() { weight.most_rows() } else { 24 };
    (rows > few as usize).then(|| least.or(tiles.last().copied())).flatten()
}

/// Threads of a `matmul_*` block. With plain weights a thread computes 4 rows of activations by 4
/// of the matrix.
#[must_use]
pub const fn matmul_threads(weight: Weight, tile: u32) -> u32 {
    if weight.is_quantised() { 256 } else { tile / 4 * (MATMUL_OUTPUTS / 4) }
}

/// Returns whether `matmul_*` and `matmul_half_*` of a type accept `k` columns.
#[must_use]
pub const fn matmul_takes(weight: Weight, k: usize) -> bool {
    weight.is_quantised() || k.is_multiple_of(MATMUL_STAGE as usize)
}

/// Rows of activations that a warp of `matmul_*` computes. A warp of a quantised type without such
/// rows is nearly idle.
#[must_use]
pub const fn matmul_warp_rows(weight: Weight, tile: u32) -> u32 {
    match tile {
        _ if !weight.is_quantised() => tile,
        128 => 32,
        _ => 16,
    }
}

/// Columns of plain weights in shared memory at a time.
const MATMUL_STAGE: u32 = 32;

/// Number of `f32` values stored with 256 quantised activations: per block and in total (`Record`
/// in `quantise.cuh`).
const fn matmul_record(weight: Weight) -> [u32; 2] {
    [weight.extras() as u32, (weight.form().span == SUPERBLOCK) as u32]
}

/// Bytes of the activations that `matmul_*` reads: the output of `quantise_*`, or normalised `f32`
/// rows for plain weights.
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

/// Fewest prompt rows for half precision. It is above the number of rows that are decoded or
/// verified together, which must equal rows computed one by one.
pub const HALF_ROWS: usize = 64;

/// Rows of activations of a `matmul_half_*` block.
pub const HALF_TILE: u32 = 128;

/// Columns of `matmul_half_*` in shared memory at a time.
const HALF_STAGE: u32 = 64;

/// Dynamic shared memory of `matmul_half_*` (`Shared` in `matmul_half.cuh`).
pub const MATMUL_HALF_SHARED_BYTES: u32 = 2 * 2 * HALF_STAGE * (HALF_TILE + MATMUL_OUTPUTS);

/// Bytes of the activations that `matmul_half_*` reads (`Halves` in `matmul_half.cuh`).
#[must_use]
pub const fn halves_bytes(rows: u32, k: u32) -> u64 {
    rows.next_multiple_of(HALF_TILE) as u64 * (2 * k.next_multiple_of(HALF_STAGE) as u64 + 4)
}

/// Grid of `quantise_*` and `halves_*`.
#[must_use]
pub const fn quantise_grid(tile: u32, rows: u32) -> Grid {
    [rows.next_multiple_of(tile), 1, 1]
}

/// Dynamic shared memory of `quantise_*` and `halves_*`, whose block has one row; `None` as in
/// [`project_shared_bytes`].
#[must_use]
pub fn quantise_shared_bytes(weight: Weight, planes: u32, k: usize) -> Option<u32> {
    project_shared_bytes(weight, 1, planes, k)
}

/// Grid of `matmul_*`. `n` are the rows of each matrix (only the gate's with SwiGLU).
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
    let FormatSizes { head, quants, tail, sums, .. } = weight.form();
    let raw = MATMUL_PANELS * (PANEL * PIECE * (head + quants)) as u32;
    let bytes = PANEL as u32 * SUPERBLOCK as u32;
    // Signed bytes are used in place, so they are double-buffered.
    let weights =
        if matches!(weight, Weight::Q8_0) { 2 * raw + bytes } else { raw + MATMUL_PANELS * bytes };
    // Tails, pairs of scales, initial values of sums, panel addresses, and the matrix index.
    let tails = MATMUL_PANELS * if tail > 0 { PANEL * tail } else { PIECE } as u32;
    let pairs = if sums == 2 { 2 } else { 1 };
    let scales = ((8 * pairs + 2) * 8 + 4) * MATMUL_OUTPUTS;
    stages + 4 * tile + weights + tails + scales + 16 * MATMUL_PANELS + 16
}

/// Positions of a tile of cached keys; a slot's capacity is rounded up to whole tiles.
pub const CACHE_TILE: u32 = 32;

/// Positions of a KV cache block.
pub const CACHE_BLOCK: u32 = 128;

/// Positions that an attention block sums at a time.
pub const ATTENTION_GROUP: u64 = 256;

/// Bytes of attention's scratch for `rows` rows with more than one block each, for slots of
/// `capacity` positions. In a `ring` a window may begin and end inside a group.
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

/// Grid of `embed_*` for `rows` rows of `k` columns.
#[must_use]
pub fn embed_grid(weight: Weight, k: u32, rows: u32) -> Grid {
    [k.div_ceil(BLOCK as u32).div_ceil(Kernel::Embed(weight).threads()), rows, 1]
}

/// Grid of `gather`, `elementwise` and `combine` for `rows` rows of `n` elements.
#[must_use]
pub fn elements_grid(n: u32, rows: u32) -> Grid {
    [n.div_ceil(Kernel::Elementwise.threads()), rows, 1]
}

/// Most experts of an MoE layer.
pub const MOST_EXPERTS: u32 = 1024;

/// Grid of `experts_*`: up to `blocks` blocks per pair loop over the tiles of `n` matrix rows.
#[must_use]
pub fn experts_grid(weight: Weight, n: u32, glu: bool, pairs: u32, blocks: u32) -> Grid {
    let tiles = project_tiles(ProjectVariant::of_experts(weight), &[n], glu);
    [tiles.min(blocks).max(1), pairs, 1]
}

/// Pairs of a tile with the same expert: rows of a `matmul_*` block.
pub const GROUP_TILE: u32 = 32;

/// Most tiles that `group` fills.
#[must_use]
pub fn group_tiles(pairs: u32, experts: u32) -> u32 {
    // An expert's last tile may contain a single pair.
    (pairs + (GROUP_TILE - 1) * experts.min(pairs)) / GROUP_TILE
}

/// Grid of `group`.
pub const GROUP_GRID: Grid = [1, 1, 1];

/// Most taps of a short convolution.
pub const MOST_TAPS: u32 = 8;
/// Rows of a `short_conv` block.
pub(crate) const CONV_ROWS: u32 = 16;

/// Grid of `short_conv`.
#[must_use]
pub fn short_conv_grid(channels: u32, chunk: u32, sequences: u32) -> Grid {
    [channels.div_ceil(Kernel::ShortConv.threads()), chunk.div_ceil(CONV_ROWS), sequences]
}

/// Largest key size of `gated_delta` and `delta_rule`.
pub const MOST_KEY: u32 = 128;
/// Columns of a `gated_delta` or `delta_rule` block.
pub(crate) const DELTA_COLUMNS: u32 = 32;

/// Grid of `gated_delta` and `delta_rule`.
#[must_use]
pub const fn gated_delta_grid(heads: u32, value_size: u32, sequences: u32) -> Grid {
    [value_size.div_ceil(DELTA_COLUMNS), heads, sequences]
}

/// Lanes that share 256 columns of a reduced row.
pub(crate) const ROW_LANES: u32 = 16;
/// Columns that [`ROW_LANES`] lanes sum at a time.
pub(crate) const ROW_BLOCK: u32 = 256;
/// Rows and columns of a `tensor_matmul` block.
const TENSOR_SIDE: u32 = 32;

/// Grid of `tensor`: a thread per element or per reduced column, `ROW_LANES` threads per reduced
/// row.
#[must_use]
pub fn tensor_grid(params: &TensorParams) -> Grid {
    let threads = match (params.reduce, params.inner) {
        (0, _) => params.elements,
        (_, 1) => params.outer.saturating_mul(ROW_LANES),
        (_, inner) => params.outer.saturating_mul(inner),
    };
    tensor_elements_grid(threads)
}

/// Grid of `tensor_gather` and `tensor_scatter`: a thread per written element.
#[must_use]
pub fn tensor_elements_grid(elements: u32) -> Grid {
    [elements.div_ceil(Kernel::Tensor.threads()).max(1), 1, 1]
}

/// Grid of `tensor_matmul`.
#[must_use]
pub const fn tensor_matmul_grid(params: &TensorMatmulParams) -> Grid {
    [params.n.div_ceil(TENSOR_SIDE), params.m.div_ceil(TENSOR_SIDE), params.batches]
}

/// Grid of `normalise`, `route`, `rope_table` and `tensor_top_k`: a block per row.
#[must_use]
pub const fn rows_grid(rows: u32) -> Grid {
    [rows, 1, 1]
}

/// Grid of `rope_kv`: a warp per query head (0 without queries), key and value.
#[must_use]
pub const fn rope_kv_grid(heads: u32, kv_heads: u32, rows: u32) -> Grid {
    [(heads + 2 * kv_heads).div_ceil(Kernel::RopeKv(CacheType::F16).threads() / 32), rows, 1]
}

/// Grid of an attention kernel with `splits` blocks per row, which changes no result. `None` for
/// other kernels, or if the heads are not a multiple of the block's.
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

/// Queries of a prefill attention block times the values of a head.
const PREFILL_ATTENTION_UNIT: u32 = 4096;

/// Queries of a prefill attention block in half precision.
const PREFILL_ATTENTION_HALF_QUERIES: u32 = 64;

/// Rows that a prefill attention block takes with `group` query heads per KV head; `None` for other
/// kernels.
#[must_use]
pub fn prefill_attention_rows(kernel: Kernel, group: u32) -> Option<u32> {
    let queries = match kernel {
        Kernel::PrefillAttention { width, .. } => PREFILL_ATTENTION_UNIT / width,
        Kernel::PrefillAttentionHalf { .. } => PREFILL_ATTENTION_HALF_QUERIES,
        _ => return None,
    };
    queries.checked_div(group)
}

/// Grid of prefill attention for `rows` rows: a block per KV head and tile of rows.
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

/// Dynamic shared memory of prefill attention, 0 for other kernels: queries, keys or values,
/// weights, and running sums (`Shared` in `prefill_attention.cuh`); queries, keys and values in
/// half precision (`prefill_attention_half.cuh`).
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

/// Number of counters of an attention launch: one for each row and block in x.
#[must_use]
pub const fn attention_counters(grid: Grid) -> u32 {
    grid[0] * grid[2]
}
