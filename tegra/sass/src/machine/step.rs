//! One instruction after the other.

use super::access::Env;
use super::lanes::Each;
use super::warp::Warp;
use super::{Outcome, Raised};
use crate::check::Strictness;
use crate::execute::{self, LANES};
use crate::fault::FaultKind;
use crate::program::op::Op;
use crate::program::{Effects, UNIFORM, WRONG};

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has used up its turn.
    Turn,
    /// All its lanes wait.
    Blocked,
    /// All its lanes have ended.
    Done,
}

/// Instructions after which another group of the warp has its turn.
const ROTATION: u32 = 512;

impl Warp {
    /// Runs until it waits, ends, or its turn is over.
    pub(crate) fn run<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        turn: u32,
        seeded: bool,
    ) -> Outcome<Stop> {
        let program = env.program;
        let mut since = 0;
        for _ in 0..turn {
            if self.active.mask == 0 {
                if self.live == 0 {
                    return Ok(Stop::Done);
                }
                if !self.next_group() {
                    return Ok(Stop::Blocked);
                }
            }
            let pc = self.active.pc;
            let Some(step) = program.steps.get(pc as usize) else {
                let kind =
                    FaultKind::ProgramCounter { pc: u64::from(pc) * 16, bytes: program.bytes() };
                return Err(Raised::new(kind, self.active.mask));
            };
            let mask = self.active.mask & self.holds(step.guard);
            env.clock += 1;
            env.counters.warp_instructions[step.class as usize] += 1;
            env.counters.lane_instructions[step.class as usize] += u64::from(mask.count_ones());
            if C::DEFINEDNESS {
                self.check(&program.effects[pc as usize], mask)?;
            }
            self.step::<C>(env, &step.op, mask, seeded)?;
            if step.spoiled {
                self.spoil(&program.effects[pc as usize], mask);
            }
            since += 1;
            if since == ROTATION {
                since = 0;
                self.rotate();
            }
        }
        Ok(Stop::Turn)
    }

    /// Whether all that must have a value has one; and what of the results has.
    fn check(&mut self, effects: &Effects, mask: u32) -> Outcome<()> {
        let missing = |register: String, lanes: u32| -> Outcome<()> {
            Err(Raised::new(FaultKind::Uninitialised { register }, lanes))
        };
        for &register in &effects.needs {
            let without = mask & !self.defined[usize::from(register)];
            if without != 0 {
                let name = match register {
                    0..256 => format!("R{register}"),
                    _ => format!("UR{}", register - 256),
                };
                return missing(name, without);
            }
        }
        for predicate in Each(u32::from(effects.predicate_needs)) {
            let without = self.active.mask & !self.predicates_defined[predicate];
            if without != 0 {
                return missing(format!("P{predicate}"), without);
            }
        }
        let reads = effects.reads.iter();
        let mut defined =
            reads.fold(!0, |all, &register| all & self.defined[usize::from(register)]);
        for predicate in Each(u32::from(effects.predicate_reads)) {
            defined &= self.predicates_defined[predicate];
        }
        for &register in &effects.writes {
            let target = &mut self.defined[usize::from(register)];
            *target = if register < 256 {
                (*target & !mask) | (defined & mask)
            } else if defined & mask == mask {
                !0
            } else {
                0
            };
        }
        for predicate in Each(u32::from(effects.predicate_writes)) {
            let target = &mut self.predicates_defined[predicate];
            *target = (*target & !mask) | (defined & mask);
        }
        Ok(())
    }

    /// Makes results wrong.
    #[cold]
    fn spoil(&mut self, effects: &Effects, mask: u32) {
        for &register in &effects.writes {
            match u8::try_from(register) {
                Ok(register) => self.write(register, mask, &[WRONG; LANES]),
                Err(_) => self.write_uniform((register - UNIFORM) as u8, WRONG),
            }
        }
    }

    #[inline(always)]
    fn step<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        op: &Op,
        mask: u32,
        seeded: bool,
    ) -> Outcome<()> {
        match op {
            Op::Branch { p, target } => {
                let taken = mask & self.holds(*p);
                self.branch(taken, *target, seeded);
                return Ok(());
            }
            Op::Alu { .. } | Op::Load { .. } | Op::Store { .. } if mask == 0 => {}
            Op::Alu { lane, d, a, b, c, p } => {
                let p = self.holds(*p);
                let mut spaces = [[0; LANES]; 3];
                let [x, y, z] = &mut spaces;
                let (a, b) = (self.fetch_in(env, a, x)?, self.fetch_in(env, b, y)?);
                let c = self.fetch_in(env, c, z)?;
                let values = execute::apply_all(lane, [a, b, c], p);
                self.write(*d, mask, &values);
            }
            Op::Load { d, pointer, size } => self.load::<C>(env, mask, *d, pointer, *size)?,
            Op::Store { pointer, source, size } => {
                self.store::<C>(env, mask, pointer, *source, *size)?;
            }
            _ => return self.other::<C>(env, op, mask, seeded),
        }
        self.active.pc += 1;
        Ok(())
    }

    #[inline(never)]
    fn other<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        op: &Op,
        mask: u32,
        seeded: bool,
    ) -> Outcome<()> {
        if self.control::<C>(env, op, mask, seeded)? {
            return Ok(());
        }
        if mask != 0 && !self.arithmetic(env, op, mask)? {
            self.effect::<C>(env, op, mask)?;
        }
        self.active.pc += 1;
        Ok(())
    }
}
