//! How long a launch takes, from what it moves and computes: at most, and by a cautious estimate.
//!
//! The first tells work from a hang before anybody has seen the work run: far below what the slowest
//! Orin does at its lowest clocks, so that neither a power mode, nor heat, nor another program with a
//! few times its share of GPU and memory makes work look like a hang. The second says how many launches
//! the hardware is given at once. Neither says how long a launch will take.

use std::time::Duration;

use orind_kernels::catalogue::launch::{
    ATTENTION_GROUP, GROUP_TILE, HALF_TILE, matmul_warp_rows, prefill_attention_rows,
};
use orind_kernels::catalogue::{CacheType, Kernel, Weight};
use orind_kernels::params::{
    AttentionParams, ExpertsParams, ProjectParams, Recurrence, Segment, TensorMatmulParams,
    TensorParams, TensorRowsParams, TensorTopKParams,
};
use orind_kernels::repack::Layout;

use super::launch::{Launch, Params, Region};

/// What no launch exceeds at most that can be had in parts.
pub(super) const LONGEST: Duration = Duration::from_secs(1);
/// What no launch exceeds by the estimate that can be had in parts, and no chain of launches that
/// others on the GPU are to get their turn after. The driver counts waits from 100 ms on.
pub(crate) const TURN: Duration = Duration::from_millis(50);

/// Speeds that a GPU is taken to have.
#[derive(Clone, Copy)]
struct Speed {
    /// Bytes a second.
    bytes: u64,
    /// Instructions of single threads a second.
    instructions: u64,
    /// For a launch of next to nothing.
    launch: Duration,
    /// For a logit from which a token is chosen: top-p looks 128 times at a list that holds all of them at
    /// worst, with one block of 256 threads, which waits for memory each time.
    logit: Duration,
}

/// 256 bits of LPDDR5 move 204.8 GB/s at 3199 MHz, so 13 GB/s at 204 MHz, the lowest clock that an AGX
/// Orin's memory has. In the 15 W mode six SMs of at least 64 lanes are left, which at 306 MHz, the GPU's
/// lowest clock, are 117e9 instructions.
const SLOWEST: Speed = Speed {
    bytes: 2_000_000_000,
    instructions: 20_000_000_000,
    launch: Duration::from_millis(1),
    logit: Duration::from_micros(1),
};

/// A quarter of the 43 to 52 GB/s at which tinygrad's kernels read weights on an AGX Orin (its pull request
/// 15465), and a tenth of the instructions of 16 SMs at 1 GHz.
const CAUTIOUS: Speed = Speed {
    bytes: 12_000_000_000,
    instructions: 200_000_000_000,
    launch: Duration::from_micros(50),
    logit: Duration::from_nanos(100),
};

/// How long a launch takes at most, in a plan whose rows see `context` positions.
pub(super) fn at_most(launch: &Launch, context: u64) -> Duration {
    SLOWEST.of(launch, context)
}

/// How long it takes by a cautious estimate.
pub(super) fn estimate(launch: &Launch, context: u64) -> Duration {
    CAUTIOUS.of(launch, context)
}

/// How many rows of attention one launch may have, by `blocks` that read the cache for each or for some.
pub(super) fn rows_of_attention(
    kernel: Kernel,
    params: &AttentionParams,
    blocks: u32,
    context: u64,
) -> u32 {
    let within = |speed: Speed, whole: Duration| {
        let row = speed.row_of_attention(kernel, params, blocks, context).as_nanos().max(1);
        u32::try_from((whole - speed.launch).as_nanos() / row).unwrap_or(u32::MAX)
    };
    within(SLOWEST, LONGEST).min(within(CAUTIOUS, TURN)).max(1)
}

/// How many pairs of a mixture one launch may have.
pub(super) fn pairs_of_experts(params: &ExpertsParams) -> u32 {
    let one = ExpertsParams { pairs: 1, ..*params };
    let within = |speed: Speed, whole: Duration| {
        let pair = speed.experts(&one).as_nanos().max(1);
        u32::try_from((whole - speed.launch).as_nanos() / pair).unwrap_or(u32::MAX)
    };
    within(SLOWEST, LONGEST).min(within(CAUTIOUS, TURN)).max(1)
}

/// How many tiles of pairs that share an expert one launch may have; none where not even one is done in time.
pub(super) fn tiles_of_experts(weight: Weight, segments: &[Segment], k: u32) -> Option<u32> {
    let within = |speed: Speed, whole: Duration| {
        let tile = speed.matmul(weight, GROUP_TILE, segments, k, GROUP_TILE).as_nanos().max(1);
        u32::try_from((whole - speed.launch).as_nanos() / tile).unwrap_or(u32::MAX)
    };
    let most = within(SLOWEST, LONGEST);
    (most > 0).then(|| most.min(within(CAUTIOUS, TURN).max(1)))
}

/// How many rows one launch of products of many rows may have: whole tiles, or what some warps of one take. None
/// where not even a warp's rows are done in time.
pub(super) fn rows_of_matmul(
    weight: Weight,
    tile: u32,
    segments: &[Segment],
    k: u32,
) -> Option<u32> {
    let of_warp = matmul_warp_rows(weight, tile);
    let within = |speed: Speed, whole: Duration| {
        let warp = speed.matmul(weight, tile, segments, k, of_warp).as_nanos().max(1);
        u32::try_from((whole - speed.launch).as_nanos() / warp).unwrap_or(u32::MAX)
    };
    let most = within(SLOWEST, LONGEST);
    if most == 0 {
        return None;
    }
    let rows = most.min(within(CAUTIOUS, TURN).max(1)).saturating_mul(of_warp);
    Some(if rows < tile { rows } else { rows / tile * tile })
}

impl Speed {
    fn of(self, launch: &Launch, context: u64) -> Duration {
        let bytes = |regions: &[Region]| regions.iter().map(|region| region.bytes).sum::<u64>();
        let (reads, writes) = (bytes(&launch.reads), bytes(&launch.writes));
        self.launch
            + match (&launch.params, launch.kernel) {
                (Params::Project(p), Kernel::Project { weight, planes, .. }) => {
                    self.project(p, weight, planes).max(self.time(reads + writes, 0))
                }
                (
                    Params::Attention(p),
                    kernel @ (Kernel::Attention { .. }
                    | Kernel::PrefillAttention { .. }
                    | Kernel::PrefillAttentionHalf { .. }),
                ) => self.row_of_attention(kernel, p, launch.grid[0], context) * p.rows,
                (Params::Matmul(p), Kernel::Matmul { weight, tile }) => {
                    // A tile of pairs has matrices of its own.
                    let (of_rows, times) =
                        if p.pairs > 0 { (tile, launch.grid[0]) } else { (p.rows, 1) };
                    let products = self.matmul(weight, tile, &p.segments, p.k, of_rows) * times;
                    products.max(self.time(reads + writes, 0))
                }
                (Params::Matmul(p), Kernel::MatmulHalf(weight)) => {
                    let products = self.matmul(weight, HALF_TILE, &p.segments, p.k, p.rows);
                    products.max(self.time(reads + writes, 0))
                }
                (Params::Experts(p), _) => self.experts(p),
                (Params::GatedDelta(p), _) => self.delta_rule(&p.memory),
                (Params::DeltaRule(p), _) => self.delta_rule(&p.memory),
                (Params::Tensor(p), _) => self.tensor(p, reads + writes),
                (Params::TensorMatmul(p), _) => self.matmul_of_tensors(p),
                (Params::TensorRows(p), kernel) => self.rows_of_tensors(p, kernel, reads + writes),
                (Params::TensorTopK(p), _) => self.top_k(p, launch.grid[0]),
                // What it writes to the caches is among what it reads.
                (Params::Attention(_), _) => self.time(2 * reads, 0),
                (Params::Sample(p), _) => self.logit * p.vocabulary,
                _ => self.time(reads + writes, 0),
            }
    }

    fn row_of_attention(
        self,
        kernel: Kernel,
        params: &AttentionParams,
        blocks: u32,
        context: u64,
    ) -> Duration {
        // A window's first group is seen in part, and rows that share what they read see it shifted.
        let seen = context.min(u64::from(params.window) + 2 * ATTENTION_GROUP);
        let cells = seen * u64::from(params.dim);
        let share = prefill_attention_rows(kernel, params.heads / params.kv_heads.max(1));
        let reads = cells * u64::from(blocks) / u64::from(share.unwrap_or(1).max(1));
        // A key and a value of two bytes at most; a product and a conversion with each, which of a code takes four.
        let half = matches!(
            kernel,
            Kernel::Attention { cache: CacheType::F16, .. }
                | Kernel::PrefillAttention { cache: CacheType::F16, .. }
                | Kernel::PrefillAttentionHalf { cache: CacheType::F16, .. }
        );
        self.time(4 * reads, if half { 4 } else { 10 } * cells * u64::from(params.heads))
    }

    /// Counted are at most 60,000 instructions for 32 rows, 32 outputs and 256 columns of quantised weights, and
    /// 1.3 for a product with a plain one; and no weight is longer than two bytes, but for single precision.
    fn matmul(
        self,
        weight: Weight,
        tile: u32,
        segments: &[Segment],
        k: u32,
        rows: u32,
    ) -> Duration {
        let weights = |s: &Segment| u64::from(s.n) * u64::from(k) * u64::from(s.planes.max(1));
        let weights = segments.iter().map(weights).sum::<u64>();
        let products = weights * u64::from(rows.next_multiple_of(matmul_warp_rows(weight, tile)));
        let instructions =
            if weight.is_quantised() { products / 4 } else { products + products / 2 };
        let bytes = if weight == Weight::F32 { 4 } else { 2 };
        self.time(bytes * weights, instructions)
    }

    /// No byte is longer than two for a weight; two instructions to decode one, and a product.
    fn experts(self, params: &ExpertsParams) -> Duration {
        let matrices = if params.glu > 0 { 2 } else { 1 };
        let weights =
            u64::from(params.n) * u64::from(params.k) * u64::from(params.pairs) * matrices;
        self.time(2 * weights, 3 * weights)
    }

    /// Every element of the matrices, read and written once, with some six instructions for each row.
    fn delta_rule(self, memory: &Recurrence) -> Duration {
        let elements = u64::from(memory.size) * u64::from(memory.sequences);
        self.time(8 * elements, 6 * elements * u64::from(memory.chunk))
    }

    /// Some hundred instructions for each step of each element, most of them to find the step and where an element lies.
    fn tensor(self, params: &TensorParams, bytes: u64) -> Duration {
        let [outer, length, inner] = [params.outer, params.length, params.inner].map(u64::from);
        let space = outer * length * inner + u64::from(params.elements);
        self.time(4 * bytes, 100 * space * u64::from(params.tail + 1))
    }

    /// Each element of either is read once for 32 of the other.
    fn matmul_of_tensors(self, params: &TensorMatmulParams) -> Duration {
        let [batches, m, n, k] = [params.batches, params.m, params.n, params.k].map(u64::from);
        let products = batches * m.next_multiple_of(32) * n.next_multiple_of(32) * k;
        self.time(8 * products / 32 + 4 * batches * m * n, 4 * products)
    }

    /// Who writes to a table looks at all rows for each of its elements.
    fn rows_of_tensors(self, params: &TensorRowsParams, kernel: Kernel, bytes: u64) -> Duration {
        let looks = if kernel == Kernel::TensorScatter { params.count } else { 1 };
        let each = 60 + 20 * u64::from(looks);
        self.time(4 * bytes, each * u64::from(params.elements))
    }

    /// The row is looked at for each that is wanted.
    fn top_k(self, params: &TensorTopKParams, rows: u32) -> Duration {
        let looks = u64::from(params.n.next_multiple_of(128)) * u64::from(params.count);
        self.time(4 * looks * u64::from(rows), 20 * looks * u64::from(rows))
    }

    fn project(self, params: &ProjectParams, weight: Weight, planes: u32) -> Duration {
        let used = params.segments.iter().filter(|segment| segment.n > 0);
        let (bytes, weights) = used.fold((0, 0), |(bytes, weights), segment| {
            // They lie in memory so already.
            let layout = Layout::new(weight.dtype(), segment.n as usize, params.k as usize);
            let weights = weights + u64::from(segment.n) * u64::from(params.k);
            (bytes + layout.map_or(0, |layout| layout.bytes() as u64), weights)
        });
        // Two to decode a weight, and a product with each row.
        self.time(bytes, weights * u64::from(2 + params.rows * planes))
    }

    /// The time of whichever takes longer.
    fn time(self, bytes: u64, instructions: u64) -> Duration {
        let nanoseconds = |n: u64, rate: u64| u128::from(n) * 1_000_000_000 / u128::from(rate);
        let bytes = nanoseconds(bytes, self.bytes);
        let longer = bytes.max(nanoseconds(instructions, self.instructions));
        Duration::from_nanos(u64::try_from(longer).unwrap_or(u64::MAX))
    }
}
