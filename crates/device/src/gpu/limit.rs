//! How long a launch takes at most, from what it moves and computes.
//!
//! For telling work from a hang before anybody has seen the work run. The speeds are far below what the
//! slowest Orin does at its lowest clocks, so that neither a power mode, nor heat, nor another program
//! with a few times its share of GPU and memory makes work look like a hang. They say nothing of how
//! long a launch will take.

use std::time::Duration;

use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{AttentionParams, ProjectParams};
use orind_kernels::repack::Layout;

use super::launch::{Launch, Params, Region};

/// What no launch exceeds that can be had in parts.
pub(super) const LONGEST: Duration = Duration::from_secs(1);

/// Bytes a second. 256 bits of LPDDR5 move 204.8 GB/s at 3199 MHz, so 13 GB/s at 204 MHz, the lowest clock
/// that an AGX Orin's memory has.
const BYTES: u64 = 2_000_000_000;
/// Instructions of single threads a second. In the 15 W mode six SMs of at least 64 lanes are left, which
/// at 306 MHz, the GPU's lowest clock, are 117e9.
const INSTRUCTIONS: u64 = 20_000_000_000;
/// For a launch of next to nothing.
const LAUNCH: Duration = Duration::from_millis(1);
/// For a logit from which a token is chosen: top-p looks 128 times at a list that holds all of them at
/// worst, with one block of 256 threads, which waits for memory each time.
const LOGIT: Duration = Duration::from_micros(1);

/// How long a launch takes at most, in a plan whose rows see `context` positions.
pub(super) fn of(launch: &Launch, context: u64) -> Duration {
    let bytes = |regions: &[Region]| regions.iter().map(|region| region.bytes).sum::<u64>();
    let (reads, writes) = (bytes(&launch.reads), bytes(&launch.writes));
    LAUNCH
        + match (&launch.params, launch.kernel) {
            (Params::Project(p), Kernel::Project { weight, planes, .. }) => {
                project(p, weight, planes).max(at_least(reads + writes, 0))
            }
            (Params::Attention(p), Kernel::Attention { .. }) => {
                row_of_attention(p, launch.grid[0], context) * p.rows
            }
            // What it writes to the caches is among what it reads.
            (Params::Attention(_), _) => at_least(2 * reads, 0),
            (Params::Sample(p), _) => LOGIT * p.vocabulary,
            _ => at_least(reads + writes, 0),
        }
}

/// How many rows of attention one launch may have, by `blocks` that read the cache for each.
pub(super) fn rows_of_attention(params: &AttentionParams, blocks: u32, context: u64) -> u32 {
    let row = row_of_attention(params, blocks, context).as_nanos().max(1);
    u32::try_from((LONGEST - LAUNCH).as_nanos() / row).unwrap_or(u32::MAX).max(1)
}

fn row_of_attention(params: &AttentionParams, blocks: u32, context: u64) -> Duration {
    let cells = context * u64::from(params.dim);
    // A key and a value of two bytes, a product and a conversion with each.
    at_least(4 * cells * u64::from(blocks), 4 * cells * u64::from(params.heads))
}

fn project(params: &ProjectParams, weight: Weight, planes: u32) -> Duration {
    let used = params.segments.iter().filter(|segment| segment.n > 0);
    let (bytes, weights) = used.fold((0, 0), |(bytes, weights), segment| {
        // They lie in memory so already.
        let layout = Layout::new(weight, segment.n as usize, params.k as usize);
        let weights = weights + u64::from(segment.n) * u64::from(params.k);
        (bytes + layout.map_or(0, |layout| layout.bytes() as u64), weights)
    });
    // Two to decode a weight, and a product with each row.
    at_least(bytes, weights * u64::from(2 + params.rows * planes))
}

/// The time of whichever takes longer at the least speed.
fn at_least(bytes: u64, instructions: u64) -> Duration {
    let nanoseconds = |n: u64, rate: u64| u128::from(n) * 1_000_000_000 / u128::from(rate);
    let longer = nanoseconds(bytes, BYTES).max(nanoseconds(instructions, INSTRUCTIONS));
    Duration::from_nanos(u64::try_from(longer).unwrap_or(u64::MAX))
}
