//! A grid: runs its blocks on several host threads, in an order that depends on the seed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::block::Block;
use super::cache::Cache;
use super::env::Env;
use super::random::Random;
use super::shared::Shared;
use crate::check::{Checks, Chosen, Found, Strictness};
use crate::count::Counters;
use crate::fault::{Fault, FaultKind};
use crate::launch::Launch;
use crate::memory::Memory;
use crate::program::Program;

/// Instructions after which a thread switches to another block, so that blocks can wait for each
/// other.
const BUDGET: u64 = 1 << 20;
/// Largest number of unfinished blocks per thread: as many as fit on the SMs of an Orin.
const RESIDENT: usize = 256;

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Enabled checks.
    pub checks: Checks,
    /// Collects the findings of [`Checks`] while the launch continues. Without it, the first
    /// finding ends the launch.
    pub found: Option<&'a Found>,
    /// Seed of the order of blocks, warps and groups of lanes. A program without races gives the
    /// same result for every seed and number of threads.
    pub seed: u64,
    /// Number of host threads, at least one.
    pub threads: usize,
    /// Instructions of a host thread's warps after which the launch ends with a fault.
    pub limit: u64,
    /// One global atomic in [`LOST`] has no effect, to test programs that must notice.
    pub lossy_atomics: bool,
}

/// One in this many atomics is lost, if atomics are lossy.
pub const LOST: u64 = 64;

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            checks: Checks::ALL,
            found: None,
            seed: 0,
            threads: 1,
            limit: 1 << 40,
            lossy_atomics: false,
        }
    }
}

/// Runs a launch to completion or to its first [`Fault`]. With several threads and several faults,
/// the first one found is returned.
pub fn run(
    program: &Program,
    launch: &Launch<'_>,
    memory: &dyn Memory,
    cache: &Cache,
    options: &Options<'_>,
) -> Result<Counters, Box<Fault>> {
    launch.validate(program.registers()).map_err(|kind| refused(launch, kind))?;
    let grid = Grid {
        program,
        launch,
        memory,
        cache,
        options,
        next: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        lock: Mutex::new(()),
        order: Order::new(launch.blocks(), options.seed),
    };
    match (options.checks.definedness, options.checks.races) {
        (false, false) => grid.run::<Chosen<false, false>>(),
        (false, true) => grid.run::<Chosen<false, true>>(),
        (true, false) => grid.run::<Chosen<true, false>>(),
        (true, true) => grid.run::<Chosen<true, true>>(),
    }
}

/// A fault of the launch itself.
fn refused(launch: &Launch<'_>, kind: FaultKind) -> Box<Fault> {
    Box::new(Fault {
        kind,
        kernel: launch.name.to_owned(),
        offset: launch.entry,
        instruction: "launch".to_owned(),
        block: [0; 3],
        warp: 0,
        lane: 0,
        registers: Vec::new(),
    })
}

/// A permutation of the blocks: steps by a number coprime to their count.
#[derive(Clone, Copy)]
struct Order {
    blocks: u64,
    first: u64,
    step: u64,
}

impl Order {
    fn new(blocks: u64, seed: u64) -> Self {
        // Seed 0 is the usual order of hardware.
        if seed == 0 || blocks == 0 {
            return Self { blocks, first: 0, step: 1 };
        }
        let mut random = Random(seed);
        let first = random.next() % blocks;
        let step = loop {
            let step = random.next() % blocks + 1;
            let (mut a, mut b) = (step, blocks);
            while b != 0 {
                (a, b) = (b, a % b);
            }
            if a == 1 {
                break step;
            }
        };
        Self { blocks, first, step }
    }

    fn at(&self, position: u64) -> u64 {
        let at = u128::from(self.first) + u128::from(position) * u128::from(self.step);
        (at % u128::from(self.blocks)) as u64
    }
}

struct Grid<'a> {
    program: &'a Program,
    launch: &'a Launch<'a>,
    memory: &'a dyn Memory,
    cache: &'a Cache,
    options: &'a Options<'a>,
    next: AtomicU64,
    stop: AtomicBool,
    lock: Mutex<()>,
    order: Order,
}

impl Grid<'_> {
    fn run<C: Strictness>(&self) -> Result<Counters, Box<Fault>> {
        let threads = self.options.threads.max(1).min(self.launch.blocks() as usize);
        if threads == 1 {
            return self.work::<C>();
        }
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| self.work::<C>())).collect();
            let mut total = Counters::default();
            let mut first = None;
            for worker in workers {
                match worker.join() {
                    Ok(Ok(counters)) => total.add(&counters),
                    Ok(Err(fault)) => first = first.or(Some(fault)),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            first.map_or(Ok(total), Err)
        })
    }

    fn env(&self) -> Env<'_> {
        Env {
            program: self.program,
            launch: self.launch,
            memory: self.memory,
            cache: self.cache,
            found: self.options.found,
            lock: &self.lock,
            shared: Shared::default(),
            counters: Counters::default(),
            regions: [None; 4],
            block: [0; 3],
            number: 0,
            clock: 0,
            losing: self.options.lossy_atomics.then_some(Random(0)),
        }
    }

    /// Work of one thread: takes blocks until none is left.
    fn work<C: Strictness>(&self) -> Result<Counters, Box<Fault>> {
        let result = self.blocks::<C>();
        if result.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
        result
    }

    fn blocks<C: Strictness>(&self) -> Result<Counters, Box<Fault>> {
        let mut running: VecDeque<Block<'_>> = VecDeque::new();
        let mut spare: Vec<Block<'_>> = Vec::new();
        let mut total = Counters::default();
        let mut steps = 0u64;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(total);
            }
            let more = self.next.load(Ordering::Relaxed) < self.launch.blocks();
            let mut block = if more && running.len() < RESIDENT {
                let position = self.next.fetch_add(1, Ordering::Relaxed);
                if position >= self.launch.blocks() {
                    continue;
                }
                let mut block = spare.pop().unwrap_or_else(|| Block::new(self.env()));
                block.start::<C>(self.order.at(position), self.options.seed);
                block
            } else if let Some(block) = running.pop_front() {
                block
            } else {
                return Ok(total);
            };
            let before = block.env.clock;
            let ended = block.run::<C>(BUDGET)?;
            steps += block.env.clock - before;
            if ended {
                total.add(&std::mem::take(&mut block.env.counters));
                spare.push(block);
            } else {
                running.push_back(block);
            }
            if steps > self.options.limit {
                return Err(refused(self.launch, FaultKind::Timeout { steps }));
            }
        }
    }
}
