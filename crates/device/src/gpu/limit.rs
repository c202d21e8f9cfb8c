//! Duration limits of launches, from their memory traffic and operations: an upper bound and a
//! cautious estimate.
//!
//! The upper bound distinguishes work from a hang before the work has ever run. It assumes far less
//! than the slowest Orin at its lowest clocks, so that power modes, heat, or other programs do not
//! look like a hang. The estimate decides how many launches the hardware is given at once. Neither
//! predicts the duration.

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

/// Upper bound of every launch that can be split.
pub(super) const LONGEST: Duration = Duration::from_secs(1);
/// Estimate limit of every launch that can be split, and of QMD chains after which other programs
/// get their turn. The driver counts waits from 100 ms on.
pub(crate) const TURN: Duration = Duration::from_millis(50);

/// Assumed speed of a GPU.
#[derive(Clone, Copy)]
struct Speed {
    /// Bytes per second.
    bytes: u64,
    /// Thread instructions per second.
    instructions: u64,
    /// Overhead of a launch.
    launch: Duration,
    /// Time per logit of sampling: in the worst case top-p scans a list of all logits 128 times,
    /// with one block of 256 threads that waits for memory each time.
    logit: Duration,
}

/// 256 bits of LPDDR5 transfer 204.8 GB/s at 3199 MHz, so 13 GB/s at 204 MHz, the lowest memory
/// clock of an AGX Orin. The 15 W mode has six SMs of at least 64 lanes, which at 306 MHz, the
/// lowest GPU clock, execute 117e9 instructions per second.
const SLOWEST: Speed = Speed {
    bytes: 2_000_000_000,
    instructions: 20_000_000_000,
    launch: Duration::from_millis(1),
    logit: Duration::from_micros(1),
};

/// A quarter of the 43 to 52 GB/s at which tinygrad's kernels read weights on an AGX Orin (its pull
/// request 15465), and a tenth of the instructions of 16 SMs at 1 GHz.
const CAUTIOUS: Speed = Speed {
    bytes: 12_000_000_000,
    instructions: 200_000_000_000,
    launch: Duration::from_micros(50),
    logit: Duration::from_nanos(100),
};

/// Upper bound of a launch in a plan whose rows see `context` positions.
pub(super) fn at_most(launch: &Launch, context: u64) -> Duration {
    SLOWEST.of(launch, context)
}

/// Cautious estimate of a launch's duration.
pub(super) fn estimate(launch: &Launch, context: u64) -> Duration {
    CAUTIOUS.of(launch, context)
}

/// Most rows of attention per launch, if `blocks` blocks each read the cache.
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

/// Most MoE pairs per launch.
pub(super) fn pairs_of_experts(params: &ExpertsParams) -> u32 {
    let one = ExpertsParams { pairs: 1, ..*params };
    let within = |speed: Speed, whole: Duration| {
        let pair = speed.experts(&one).as_nanos().max(1);
        u32::try_from((whole - speed.launch).as_nanos() / pair).unwrap_or(u32::MAX)
    };
    within(SLOWEST, LONGEST).min(within(CAUTIOUS, TURN)).max(1)
}

/// Most tiles of grouped pairs per launch; `None` if even one takes too long.
pub(super) fn tiles_of_experts(weight: Weight, segments: &[Segment], k: u32) -> Option<u32> {
    let within = |speed: Speed, whole: Duration| {
        let tile = speed.matmul(weight, GROUP_TILE, segments, k, GROUP_TILE).as_nanos().max(1);
        u32::try_from((whole - speed.launch).as_nanos() / tile).unwrap_or(u32::MAX)
    };
    let most = within(SLOWEST, LONGEST);
    (most > 0).then(|| most.min(within(CAUTIOUS, TURN).max(1)))
}

/// Most rows of a matmul per launch: whole tiles, or the rows of some warps of one tile. `None` if
/// even one warp's rows take too long.
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
                    // Each tile of pairs has its own matrices.
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
                // Bytes written to the caches are counted as reads.
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
        // A window's first group is partly visible, and its position differs between rows that share reads.
        let seen = context.min(u64::from(params.window) + 2 * ATTENTION_GROUP);
        let cells = seen * u64::from(params.dim);
        let share = prefill_attention_rows(kernel, params.heads / params.kv_heads.max(1));
        let reads = cells * u64::from(blocks) / u64::from(share.unwrap_or(1).max(1));
        // A key and a value of at most two bytes, each with a multiply-add and a conversion; four
        // instructions for codes.
        let half = matches!(
            kernel,
            Kernel::Attention { cache: CacheType::F16, .. }
                | Kernel::PrefillAttention { cache: CacheType::F16, .. }
                | Kernel::PrefillAttentionHalf { cache: CacheType::F16, .. }
        );
        self.time(4 * reads, if half { 4 } else { 10 } * cells * u64::from(params.heads))
    }

    /// Measured: at most 60,000 instructions for 32 rows, 32 outputs and 256 columns of quantised
    /// weights, and 1.3 per multiply-add with plain ones. A weight has at most two bytes, except
    /// for single precision.
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

    /// At most two bytes per weight; two instructions to decode it, and a multiply-add.
    fn experts(self, params: &ExpertsParams) -> Duration {
        let matrices = if params.glu > 0 { 2 } else { 1 };
        let weights =
            u64::from(params.n) * u64::from(params.k) * u64::from(params.pairs) * matrices;
        self.time(2 * weights, 3 * weights)
    }

    /// Reads and writes every element of the state once, with about six instructions per row.
    fn delta_rule(self, memory: &Recurrence) -> Duration {
        let elements = u64::from(memory.size) * u64::from(memory.sequences);
        self.time(8 * elements, 6 * elements * u64::from(memory.chunk))
    }

    /// About a hundred instructions per step and element, mostly to decode the step and compute
    /// addresses.
    fn tensor(self, params: &TensorParams, bytes: u64) -> Duration {
        let [outer, length, inner] = [params.outer, params.length, params.inner].map(u64::from);
        let space = outer * length * inner + u64::from(params.elements);
        self.time(4 * bytes, 100 * space * u64::from(params.tail + 1))
    }

    /// Each element of one operand is read once for 32 of the other.
    fn matmul_of_tensors(self, params: &TensorMatmulParams) -> Duration {
        let [batches, m, n, k] = [params.batches, params.m, params.n, params.k].map(u64::from);
        let products = batches * m.next_multiple_of(32) * n.next_multiple_of(32) * k;
        self.time(8 * products / 32 + 4 * batches * m * n, 4 * products)
    }

    /// A scatter scans all rows for each element of the table.
    fn rows_of_tensors(self, params: &TensorRowsParams, kernel: Kernel, bytes: u64) -> Duration {
        let looks = if kernel == Kernel::TensorScatter { params.count } else { 1 };
        let each = 60 + 20 * u64::from(looks);
        self.time(4 * bytes, each * u64::from(params.elements))
    }

    /// Scans the row once for each wanted element.
    fn top_k(self, params: &TensorTopKParams, rows: u32) -> Duration {
        let looks = u64::from(params.n.next_multiple_of(128)) * u64::from(params.count);
        self.time(4 * looks * u64::from(rows), 20 * looks * u64::from(rows))
    }

    fn project(self, params: &ProjectParams, weight: Weight, planes: u32) -> Duration {
        let used = params.segments.iter().filter(|segment| segment.n > 0);
        let (bytes, weights) = used.fold((0, 0), |(bytes, weights), segment| {
            // The layout in memory is valid.
            let layout = Layout::new(weight.dtype(), segment.n as usize, params.k as usize);
            let weights = weights + u64::from(segment.n) * u64::from(params.k);
            (bytes + layout.map_or(0, |layout| layout.bytes() as u64), weights)
        });
        // Two instructions to decode a weight, and a multiply-add per row.
        self.time(bytes, weights * u64::from(2 + params.rows * planes))
    }

    /// The longer of memory time and instruction time.
    fn time(self, bytes: u64, instructions: u64) -> Duration {
        let nanoseconds = |n: u64, rate: u64| u128::from(n) * 1_000_000_000 / u128::from(rate);
        let bytes = nanoseconds(bytes, self.bytes);
        let longer = bytes.max(nanoseconds(instructions, self.instructions));
        Duration::from_nanos(u64::try_from(longer).unwrap_or(u64::MAX))
    }
}
