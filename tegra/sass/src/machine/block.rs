//! A block, whose warps run in turns until all have exited.

use super::Raised;
use super::barrier::Barriers;
use super::env::Env;
use super::random::Random;
use super::step::Stop;
use super::warp::Warp;
use crate::check::Strictness;
use crate::fault::{Fault, FaultKind};
use crate::launch::Launch;

/// Number of instructions in a warp's turn.
const TURN: u32 = 2048;

/// A running block.
pub(crate) struct Block<'a> {
    pub(crate) env: Env<'a>,
    warps: Vec<Warp>,
    barriers: Barriers,
    order: Vec<usize>,
    random: Random,
}

impl<'a> Block<'a> {
    pub(crate) fn new(env: Env<'a>) -> Self {
        let warps = (0..env.launch.warps()).map(|_| Warp::new()).collect();
        let barriers = Barriers::default();
        Self { env, warps, barriers, order: Vec::new(), random: Random(0) }
    }

    /// Starts the block with a number.
    pub(crate) fn start<C: Strictness>(&mut self, number: u64, seed: u64) {
        let launch: &Launch<'a> = self.env.launch;
        self.env.number = number;
        self.env.block = launch.block_index(number);
        self.env.clock = 0;
        self.env.shared.start::<C>(launch.shared_bytes, launch.warps());
        self.barriers.clear();
        self.random = Random(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        self.env.losing = self.env.losing.map(|_| Random(!self.random.0));
        for (index, warp) in self.warps.iter_mut().enumerate() {
            warp.start(index as u32, launch.block, launch.registers, (launch.entry / 16) as u32);
        }
        self.order = (0..self.warps.len()).collect();
        self.env.counters.blocks += 1;
    }

    /// Runs about `budget` instructions; returns whether the block has ended.
    pub(crate) fn run<C: Strictness>(&mut self, budget: u64) -> Result<bool, Box<Fault>> {
        let end = self.env.clock + budget;
        loop {
            for position in (1..self.order.len()).rev() {
                let other = self.random.next() as usize % (position + 1);
                self.order.swap(position, other);
            }
            let (mut done, mut progress) = (0, false);
            for position in 0..self.order.len() {
                let index = self.order[position];
                let seeded = self.random.next() & 1 == 1;
                let warp = &mut self.warps[index];
                let before = self.env.clock;
                let stop = match warp.run::<C>(&mut self.env, TURN, seeded) {
                    Ok(stop) => stop,
                    Err(raised) => return Err(self.fault(index, *raised)),
                };
                progress |= self.env.clock != before;
                match stop {
                    Stop::Done => done += 1,
                    Stop::Turn => {}
                    Stop::Blocked => match self.barriers.arrive(&mut self.warps, index) {
                        Ok(arrived) => progress |= arrived,
                        Err(raised) => return Err(self.fault(index, *raised)),
                    },
                }
            }
            if done == self.warps.len() {
                return Ok(true);
            }
            progress |= self.barriers.open::<C>(&mut self.warps, &mut self.env.shared);
            if !progress {
                return Err(self.stuck());
            }
            if self.env.clock >= end {
                return Ok(false);
            }
        }
    }

    /// Builds the fault of a block without progress: a divergent barrier or a deadlock.
    fn stuck(&self) -> Box<Fault> {
        let waiting = self.warps.iter().filter(|warp| warp.live != 0).count() as u32;
        let divergent = self
            .warps
            .iter()
            .enumerate()
            .find_map(|(index, warp)| Some((index, warp.divergence()?)));
        if let Some((index, (id, here, missing))) = divergent {
            let kind = FaultKind::DivergentBarrier { id, here, missing };
            return self.fault(index, Raised { kind, lanes: here });
        }
        let index = self.warps.iter().position(|warp| warp.live != 0).unwrap_or(0);
        self.fault(
            index,
            Raised { kind: FaultKind::Deadlock { waiting }, lanes: self.warps[index].live },
        )
    }

    fn fault(&self, index: usize, raised: Raised) -> Box<Fault> {
        let warp = &self.warps[index];
        let lane = Warp::first_lane(raised.lanes);
        // The program counter of waiting lanes is already past the instruction at which they wait.
        let waiting = warp.waiting.iter().find(|w| w.group.mask >> lane & 1 == 1);
        let pc = match waiting {
            Some(waiting) if warp.active.mask >> lane & 1 == 0 => {
                waiting.group.pc.saturating_sub(1)
            }
            _ => warp.active.pc,
        };
        self.env.fault(warp, pc, raised)
    }
}
