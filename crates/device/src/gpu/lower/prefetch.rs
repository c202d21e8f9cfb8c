//! L2 prefetch: at its end, a decode launch prefetches the first weights of the next launch.

use orind_kernels::catalogue::Kernel;
use orind_kernels::repack::Layout;

use crate::gpu::launch::{Launch, Params};

/// Most bytes to prefetch: a quarter of an Orin's L2, which its memory transfers in 5 us. Chosen,
/// not measured.
const MOST: usize = 1 << 20;

/// Sets the prefetch address of each launch that supports it.
pub(super) fn set_prefetch(launches: &mut [Launch]) {
    for at in 1..launches.len() {
        let (before, rest) = launches.split_at_mut(at);
        let (last, next) = (&mut before[at - 1], &rest[0]);
        let (Kernel::Project { weight, .. }, Params::Project(p)) = (next.kernel, &next.params)
        else {
            continue;
        };
        let first = p.segments[0];
        let Ok(layout) = Layout::new(weight.dtype(), first.n as usize, p.k as usize) else {
            unreachable!("a matrix that is multiplied has been laid out")
        };
        let bytes = layout.bytes().min(MOST) as u32;
        match &mut last.params {
            Params::Project(p) => (p.next, p.next_bytes) = (first.weights, bytes),
            // Only decode attention that also applies RoPE.
            Params::Attention(p)
                if p.table != 0 && matches!(last.kernel, Kernel::Attention { .. }) =>
            {
                (p.next, p.next_bytes) = (first.weights, bytes);
            }
            // Other kernels do not prefetch: the gain is small compared with projections and
            // attention.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orind_kernels::catalogue::{CacheType, ProjectVariant, Weight};
    use orind_kernels::params::{AttentionParams, ProjectParams, Segment};

    fn launch(kernel: Kernel, params: Params) -> Launch {
        let (label, grid) = (String::new(), [1, 1, 1]);
        let (reads, writes) = (Vec::new(), Vec::new());
        Launch { step: 0, label, kernel, grid, shared_bytes: 0, params, reads, writes }
    }

    fn project(weights: u64, n: u32, k: u32) -> Launch {
        let (weight, planes) = (Weight::of(plan::DType::Q8_0).unwrap(), 1);
        let variant = ProjectVariant::heuristic(weight);
        let mut params = ProjectParams { k, ..ProjectParams::default() };
        params.segments[0] = Segment { weights, n, ..Segment::default() };
        launch(Kernel::Project { weight, rows: 1, planes, variant }, Params::Project(params))
    }

    fn attention(rope: bool) -> Launch {
        let kernel = Kernel::Attention { width: 64, heads: 4, cache: CacheType::F16 };
        let table = if rope { 0x9000 } else { 0 };
        launch(kernel, Params::Attention(AttentionParams { table, ..AttentionParams::default() }))
    }

    fn told(launch: &Launch) -> (u64, u32) {
        match &launch.params {
            Params::Project(p) => (p.next, p.next_bytes),
            Params::Attention(p) => (p.next, p.next_bytes),
            other => unreachable!("not launched here: {other:?}"),
        }
    }

    #[test]
    fn each_launch_prefetches_the_next_one_s_weights() {
        let mut launches = vec![
            project(0x1000, 64, 256),
            attention(true),
            project(0x2000, 64, 512),
            project(0x3000, 4096, 4096),
            attention(false),
            project(0x4000, 64, 256),
        ];
        set_prefetch(&mut launches);
        let bytes = 64 * 512 / 32 * 34;
        let expected = [(0, 0), (0x2000, bytes), (0x3000, MOST as u32), (0, 0), (0, 0), (0, 0)];
        assert_eq!(launches.iter().map(told).collect::<Vec<_>>(), expected);
    }
}
