//! Dependencies between launches.

use super::launch::{Launch, Region};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// No wait: may run in parallel with launches since the last wait.
    None,
    /// Waits until they have ended, because it overwrites their operands.
    Ended,
    /// Waits until they have ended and their writes are visible.
    Visible,
}

/// Dependency of each launch. A launch that waits, waits for all earlier ones.
pub(super) fn waits(launches: &[Launch]) -> Vec<Wait> {
    let meets = |a: &[Region], b: &[Region]| a.iter().any(|a| b.iter().any(|b| a.overlaps(*b)));
    let mut open = 0;
    let mut unseen: Vec<&Launch> = Vec::new();
    let mut waits = Vec::with_capacity(launches.len());
    for (at, launch) in launches.iter().enumerate() {
        let running = &launches[open..at];
        let read = unseen.iter().any(|earlier| meets(&launch.reads, &earlier.writes));
        let wait = if read {
            Wait::Visible
        } else if running.iter().any(|earlier| {
            meets(&launch.writes, &earlier.reads) || meets(&launch.writes, &earlier.writes)
        }) {
            Wait::Ended
        } else {
            Wait::None
        };
        if wait != Wait::None {
            open = at;
        }
        if wait == Wait::Visible {
            unseen.clear();
        }
        unseen.push(launch);
        waits.push(wait);
    }
    waits
}

#[cfg(test)]
mod tests {
    use orind_kernels::catalogue::Kernel;

    use super::super::launch::Params;
    use super::*;

    fn launch(reads: &[u64], writes: &[u64]) -> Launch {
        let regions = |of: &[u64]| of.iter().map(|a| Region::new(*a, 16)).collect();
        Launch {
            step: 0,
            label: String::new(),
            kernel: Kernel::Elementwise,
            grid: [1; 3],
            shared_bytes: 0,
            params: Params::Elementwise(orind_kernels::params::ElementwiseParams::default()),
            reads: regions(reads),
            writes: regions(writes),
        }
    }

    #[test]
    fn a_launch_waits_only_for_conflicting_launches() {
        let list = [
            launch(&[0], &[100]),
            launch(&[0], &[200]),
            launch(&[100, 200], &[300]),
            launch(&[0], &[400]),
            launch(&[0], &[300]),
            launch(&[100], &[500]),
            launch(&[300], &[0]),
        ];
        let expected = [
            Wait::None,
            Wait::None,
            Wait::Visible,
            Wait::None,
            Wait::Ended,
            Wait::None,
            Wait::Visible,
        ];
        assert_eq!(waits(&list), expected);
    }

    #[test]
    fn an_end_alone_does_not_make_writes_visible() {
        let list = [launch(&[], &[100]), launch(&[], &[100]), launch(&[100], &[])];
        assert_eq!(waits(&list), [Wait::None, Wait::Ended, Wait::Visible]);
    }
}
