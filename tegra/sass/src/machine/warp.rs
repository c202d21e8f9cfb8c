//! A warp: registers, predicates, and the groups of its lanes.
//!
//! Lanes with the same program counter run as a group; one group of a warp runs at a time. A
//! convergence barrier has a mask of lanes. The groups that wait at it continue as one when all its
//! lanes wait there or have left it.

use super::known::Known;
use super::lanes::Each;
use crate::execute::{LANES, Lanes};
use crate::isa::{PT, RZ};
use crate::program::op::{Arrival, Condition};

/// Number of tracked registers: uniform registers start at 256.
const REGISTERS: usize = 320;

/// Lanes with the same program counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) mask: u32,
    /// Index of the next instruction.
    pub(crate) pc: u32,
}

/// Reason for which a group waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A convergence barrier.
    Convergence(u8),
    /// A mask of lanes that must all reach such a wait.
    Lanes(u32),
    /// A block barrier: its number, and the number of participating threads, 0 for all.
    Block { id: u32, threads: u32, arrival: Arrival },
}

/// A waiting group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) group: Group,
    pub(crate) on: Wait,
}

/// An asynchronous copy into shared memory that is not complete.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) address: u32,
    pub(crate) words: [u32; 4],
    pub(crate) bytes: u8,
}

/// One warp.
pub(crate) struct Warp {
    pub(crate) registers: Box<[Lanes; 256]>,
    pub(crate) predicates: [u32; 8],
    pub(crate) uniform: [u32; 64],
    pub(crate) uniform_predicates: [bool; 8],
    /// Defined bits of registers; uniform registers start at 256.
    pub(crate) known: Known,
    pub(crate) predicates_defined: [u32; 8],
    /// Participating lanes of each convergence barrier.
    pub(crate) convergence: [u32; 16],
    pub(crate) index: u8,
    pub(crate) live: u32,
    pub(crate) active: Group,
    pub(crate) ready: Vec<Group>,
    pub(crate) waiting: Vec<Waiting>,
    /// Thread index in x, y, z.
    pub(crate) thread: [Lanes; 3],
    pub(crate) local: Vec<u32>,
    /// Defined bits of local memory.
    pub(crate) local_known: Known,
    /// Result of the last barrier reduction.
    pub(crate) reduction: u32,
    /// Lanes whose predicate is true in the current barrier reduction.
    pub(crate) votes: u32,
    /// The block has recorded that the warp is at a barrier.
    pub(crate) arrived: bool,
    /// Last first address of each load instruction, indexed by the low bits of its program counter.
    pub(crate) began: [u64; 32],
    /// Incomplete copies: those of the open group, then of the committed groups, oldest first.
    pub(crate) open: Vec<Copy>,
    pub(crate) committed: std::collections::VecDeque<Vec<Copy>>,
}

impl Warp {
    pub(crate) fn new() -> Self {
        Self {
            registers: Box::new([[0; LANES]; 256]),
            predicates: [0; 8],
            uniform: [0; 64],
            uniform_predicates: [false; 8],
            known: Known::default(),
            predicates_defined: [0; 8],
            convergence: [0; 16],
            index: 0,
            live: 0,
            active: Group { mask: 0, pc: 0 },
            ready: Vec::new(),
            waiting: Vec::new(),
            thread: [[0; LANES]; 3],
            local: Vec::new(),
            local_known: Known::default(),
            reduction: 0,
            votes: 0,
            arrived: false,
            began: [0; 32],
            open: Vec::new(),
            committed: std::collections::VecDeque::new(),
        }
    }

    /// Resets the warp for a block. Everything is undefined except `UR2`, which compiler prologues
    /// read first and find zero, `RZ` and `PT`.
    pub(crate) fn start(&mut self, index: u32, block: [u32; 3], registers: u32, entry: u32) {
        let threads: u32 = block.iter().product();
        let first = index * 32;
        self.live = match threads.saturating_sub(first) {
            32.. => !0,
            rest => (1 << rest) - 1,
        };
        for register in &mut self.registers[..registers as usize] {
            *register = [0xdead_c0de; LANES];
        }
        self.registers[usize::from(RZ)] = [0; LANES];
        self.predicates = [0; 8];
        self.predicates[usize::from(PT)] = !0;
        self.uniform = [0; 64];
        self.uniform_predicates = [false; 8];
        self.uniform_predicates[usize::from(PT)] = true;
        self.known.reset(REGISTERS);
        for register in [usize::from(RZ), 256 + 2, 256 + 63] {
            self.known.set(register, !0);
        }
        self.predicates_defined = [0; 8];
        self.predicates_defined[usize::from(PT)] = !0;
        self.convergence = [0; 16];
        (self.reduction, self.votes, self.arrived) = (0, 0, false);
        self.index = index as u8;
        self.active = Group { mask: self.live, pc: entry };
        self.ready.clear();
        self.waiting.clear();
        for lane in 0..LANES {
            let thread = first + lane as u32;
            self.thread[0][lane] = thread % block[0];
            self.thread[1][lane] = thread / block[0] % block[1];
            self.thread[2][lane] = thread / block[0] / block[1];
        }
        self.local.clear();
        self.local_known.reset(0);
        self.open.clear();
        self.committed.clear();
    }

    /// Returns the lanes for which a condition is true.
    #[inline(always)]
    pub(crate) fn holds(&self, condition: Condition) -> u32 {
        let index = usize::from(condition.index & 7);
        let value = if condition.uniform {
            if self.uniform_predicates[index] { !0 } else { 0 }
        } else {
            self.predicates[index]
        };
        if condition.not { !value } else { value }
    }

    /// Writes a register for the lanes of a mask.
    #[inline(always)]
    pub(crate) fn write(&mut self, register: u8, mask: u32, values: &Lanes) {
        if register == RZ {
            return;
        }
        let target = &mut self.registers[usize::from(register)];
        if mask == !0 {
            *target = *values;
        } else {
            for lane in 0..LANES {
                let chosen = (mask >> lane & 1).wrapping_neg();
                target[lane] = (values[lane] & chosen) | (target[lane] & !chosen);
            }
        }
    }

    /// Writes one lane of a register.
    #[inline(always)]
    pub(crate) fn write_lane(&mut self, register: u8, lane: usize, value: u32) {
        if register != RZ {
            self.registers[usize::from(register)][lane] = value;
        }
    }

    /// Writes a predicate for the lanes of a mask.
    #[inline(always)]
    pub(crate) fn write_predicate(&mut self, predicate: u8, mask: u32, values: u32) {
        if predicate != PT {
            let target = &mut self.predicates[usize::from(predicate & 7)];
            *target = (*target & !mask) | (values & mask);
        }
    }

    /// Writes a uniform register; `URZ` is ignored.
    pub(crate) fn write_uniform(&mut self, register: u8, value: u32) {
        if register < crate::isa::URZ {
            self.uniform[usize::from(register & 63)] = value;
        }
    }

    pub(crate) fn write_uniform_predicate(&mut self, predicate: u8, value: bool) {
        if predicate != PT {
            self.uniform_predicates[usize::from(predicate & 7)] = value;
        }
    }

    /// Switches to the next group; returns whether there is one.
    pub(crate) fn next_group(&mut self) -> bool {
        if self.active.mask != 0 {
            return true;
        }
        match self.ready.pop() {
            Some(group) => self.active = group,
            None => return false,
        }
        true
    }

    /// Moves the running group behind the others, so that they run too.
    pub(crate) fn rotate(&mut self) {
        if self.active.mask != 0 && !self.ready.is_empty() {
            self.ready.insert(0, self.active);
            self.active.mask = 0;
        }
    }

    /// Branches with some lanes of the running group.
    pub(crate) fn branch(&mut self, taken: u32, target: u32, seeded: bool) {
        let rest = self.active.mask & !taken;
        if taken == 0 {
            self.active.pc += 1;
        } else if rest == 0 {
            self.active.pc = target;
        } else {
            let there = Group { mask: taken, pc: target };
            let here = Group { mask: rest, pc: self.active.pc + 1 };
            let (first, second) = if seeded { (there, here) } else { (here, there) };
            self.active = first;
            self.ready.push(second);
        }
    }

    /// Makes lanes of the running group wait; they continue after the instruction.
    pub(crate) fn wait(&mut self, mask: u32, on: Wait) {
        let group = Group { mask, pc: self.active.pc + 1 };
        self.active.mask &= !mask;
        self.active.pc += 1;
        self.waiting.push(Waiting { group, on });
        self.release();
    }

    /// Exits lanes.
    pub(crate) fn exit(&mut self, mask: u32) {
        self.live &= !mask;
        self.active.mask &= !mask;
        self.active.pc += 1;
        self.release();
    }

    /// Resumes groups that have finished waiting.
    pub(crate) fn release(&mut self) {
        let mut position = 0;
        while let Some(waiting) = self.waiting.get(position).copied() {
            let here = |on: &dyn Fn(&Wait) -> bool| {
                self.waiting.iter().filter(|w| on(&w.on)).fold(0, |mask, w| mask | w.group.mask)
            };
            let over = match waiting.on {
                Wait::Convergence(barrier) => {
                    let wanted = self.convergence[usize::from(barrier & 15)] & self.live;
                    wanted & !here(&|on| *on == waiting.on) == 0
                }
                Wait::Lanes(wanted) => {
                    wanted & self.live & !here(&|on| matches!(on, Wait::Lanes(_))) == 0
                }
                Wait::Block { .. } => false,
            };
            if over {
                self.resume(|on| match (on, waiting.on) {
                    (Wait::Lanes(mask), Wait::Lanes(wanted)) => mask == wanted,
                    (on, wanted) => on == wanted,
                });
                position = 0;
            } else {
                position += 1;
            }
        }
    }

    /// Resumes the groups of the selected waits; groups at the same instruction continue together.
    pub(crate) fn resume(&mut self, which: impl Fn(Wait) -> bool) {
        let mut released: Vec<Group> = Vec::new();
        self.waiting.retain(|waiting| {
            if !which(waiting.on) {
                return true;
            }
            match released.iter_mut().find(|group| group.pc == waiting.group.pc) {
                Some(group) => group.mask |= waiting.group.mask,
                None => released.push(waiting.group),
            }
            false
        });
        self.ready.extend(released);
    }

    /// Returns the lowest lane of a mask.
    pub(crate) fn first_lane(mask: u32) -> u32 {
        Each(mask).next().map_or(0, |lane| lane as u32)
    }
}
