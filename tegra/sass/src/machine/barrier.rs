//! Block barriers: arrivals, reductions, and the release of waiting warps.

use super::shared::Shared;
use super::warp::{Wait, Warp};
use super::{Outcome, Raised};
use crate::check::Strictness;
use crate::fault::FaultKind;
use crate::program::op::Arrival;

/// Number of barriers of a block.
const BARRIERS: usize = 16;

/// One barrier.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Warps that have arrived, and those of them that wait.
    arrived: u32,
    waiting: u32,
    /// Number of participating threads, 0 for all.
    threads: u32,
    /// Number of lanes whose predicate is true, and whether it is true for all.
    count: u32,
    all: bool,
    kind: Option<Arrival>,
}

/// The barriers of a block.
#[derive(Debug, Default)]
pub(crate) struct Barriers {
    states: [State; BARRIERS],
}

impl Warp {
    /// Collects the predicates of a barrier reduction until the whole warp has arrived.
    pub(crate) fn note_arrival(&mut self, truths: u32, arrival: Arrival) {
        if matches!(arrival, Arrival::Count | Arrival::All | Arrival::Any) {
            self.votes |= truths;
        }
    }

    /// Returns the block barrier at which all live lanes wait, if any.
    fn at_barrier(&self) -> Option<(u32, u32, Arrival)> {
        let mut found = None;
        let mut here = 0;
        for waiting in &self.waiting {
            let Wait::Block { id, threads, arrival } = waiting.on else { return None };
            if *found.get_or_insert((id, threads, arrival)) != (id, threads, arrival) {
                return None;
            }
            here |= waiting.group.mask;
        }
        if here == self.live && here != 0 { found } else { None }
    }

    /// Returns the barrier at which only some lanes of the warp wait: barrier, waiting lanes,
    /// missing lanes.
    pub(crate) fn divergence(&self) -> Option<(u32, u32, u32)> {
        let (mut found, mut here) = (None, 0);
        for waiting in &self.waiting {
            if let Wait::Block { id, .. } = waiting.on {
                if found.is_none() {
                    found = Some(id);
                }
                if found == Some(id) {
                    here |= waiting.group.mask;
                }
            }
        }
        found.filter(|_| here != self.live).map(|id| (id, here, self.live & !here))
    }
}

impl Barriers {
    /// Records that a stopped warp arrived at a barrier; returns whether it did.
    pub(crate) fn arrive(&mut self, warps: &mut [Warp], index: usize) -> Outcome<bool> {
        let Some(warp) = warps.get_mut(index) else { return Ok(false) };
        let Some((id, threads, arrival)) = warp.at_barrier().filter(|_| !warp.arrived) else {
            return Ok(false);
        };
        let state = &mut self.states[id as usize & (BARRIERS - 1)];
        if state.arrived == 0 {
            *state = State { threads, all: true, ..State::default() };
        } else if state.threads != threads {
            return Err(Raised::new(FaultKind::BarrierOperand { id, threads }, warp.live));
        }
        warp.arrived = true;
        state.arrived |= 1 << index;
        let reduces = matches!(arrival, Arrival::Count | Arrival::All | Arrival::Any);
        if reduces {
            state.kind = Some(arrival);
            state.count += (warp.votes & warp.live).count_ones();
            state.all &= warp.votes & warp.live == warp.live;
            warp.votes = 0;
        }
        if arrival == Arrival::Arrive {
            // `BAR.ARV` does not wait.
            warp.arrived = false;
            warp.resume(|on| matches!(on, Wait::Block { .. }));
        } else {
            state.waiting |= 1 << index;
        }
        Ok(true)
    }

    /// Releases complete barriers; returns whether there was one.
    pub(crate) fn open<C: Strictness>(&mut self, warps: &mut [Warp], shared: &mut Shared) -> bool {
        let live = warps.iter().enumerate().filter(|(_, warp)| warp.live != 0);
        let live = live.fold(0u32, |mask, (index, _)| mask | 1 << index);
        let mut opened = false;
        for (id, state) in self.states.iter_mut().enumerate() {
            let complete = match state.threads {
                0 => state.arrived & live == live,
                threads => state.arrived.count_ones() * 32 >= threads,
            };
            if state.arrived == 0 || !complete {
                continue;
            }
            if C::RACES {
                shared.synchronise(state.arrived, state.waiting);
            }
            let result = match state.kind {
                Some(Arrival::Count) => state.count,
                Some(Arrival::All) => u32::from(state.all),
                Some(Arrival::Any) => u32::from(state.count != 0),
                _ => 0,
            };
            for (index, warp) in warps.iter_mut().enumerate() {
                if state.waiting >> index & 1 == 1 {
                    if state.kind.is_some() {
                        warp.reduction = result;
                    }
                    warp.arrived = false;
                    warp.resume(
                        |on| matches!(on, Wait::Block { id: other, .. } if other as usize == id),
                    );
                }
            }
            *state = State::default();
            opened = true;
        }
        opened
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
