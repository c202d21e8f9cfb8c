//! The interpreter loop of a warp.

use super::env::Env;
use super::lanes::Each;
use super::operands::bits;
use super::warp::Warp;
use super::{Outcome, Raised};
use crate::check::Strictness;
use crate::execute::{self, LANES};
use crate::fault::FaultKind;
use crate::program::op::Op;
use crate::program::{Effects, Step, UNIFORM, WRONG};

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The warp's turn is over.
    Turn,
    /// All lanes wait.
    Blocked,
    /// All lanes have exited.
    Done,
}

/// Instructions after which another group of the warp runs.
const ROTATION: u32 = 512;

fn missing(register: String, lanes: u32) -> Box<Raised> {
    Raised::new(FaultKind::Uninitialised { register }, lanes)
}

impl Warp {
    /// Runs until the warp waits, exits, or its turn is over.
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
            // `count_ones` takes a dozen instructions on processors without `popcnt`.
            let lanes = if mask == !0 { LANES as u64 } else { u64::from(mask.count_ones()) };
            env.counters.lane_instructions[step.class as usize] += lanes;
            if mask == !0
                && let Some((lane, d, sources, p)) = step.plain()
                && (!C::DEFINEDNESS || self.known.all_whole(sources))
            {
                if C::DEFINEDNESS {
                    self.known.set(usize::from(d), mask);
                }
                let p = self.holds(p);
                execute::apply_registers(&mut self.registers, lane, d, sources, p);
                self.active.pc += 1;
            } else {
                self.checked::<C>(env, step, pc, mask, seeded)?;
            }
            since += 1;
            if since == ROTATION {
                since = 0;
                self.rotate();
            }
        }
        Ok(Stop::Turn)
    }

    /// Executes any instruction, with its checks.
    fn checked<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        step: &Step,
        pc: u32,
        mask: u32,
        seeded: bool,
    ) -> Outcome<()> {
        let effects = &env.program.effects[pc as usize];
        if C::DEFINEDNESS
            && let Err(raised) = self.check(env, step, effects, mask)
        {
            env.report(self, pc, raised)?;
            self.trust(effects, mask);
            self.check(env, step, effects, mask)?;
        }
        self.step::<C>(env, &step.op, mask, seeded)?;
        if C::RACES
            && let Some(race) = env.shared.race.take()
        {
            env.report(self, pc, race).inspect_err(|_| self.active.pc = pc)?;
        }
        if step.spoiled {
            self.spoil(effects, mask);
        }
        Ok(())
    }

    /// Checks that required sources are defined, and records which results are.
    fn check(&mut self, env: &Env<'_>, step: &Step, effects: &Effects, mask: u32) -> Outcome<()> {
        for &register in &effects.needs {
            if mask & !self.known.whole(usize::from(register)) != 0 {
                self.demand(effects, register, mask)?;
            }
        }
        for predicate in Each(u32::from(effects.predicate_needs)) {
            let without = self.active.mask & !self.predicates_defined[predicate];
            if without != 0 {
                return Err(missing(format!("P{predicate}"), without));
            }
        }
        if mask & !self.defined(effects) != 0 {
            return self.track(env, step, effects, mask);
        }
        for &register in &effects.writes {
            // An instruction without active lanes writes no uniform register.
            let lanes = match register {
                UNIFORM.. if mask != 0 => !0,
                _ => mask,
            };
            self.known.set(usize::from(register), lanes);
        }
        for predicate in Each(u32::from(effects.predicate_writes)) {
            self.predicates_defined[predicate] |= mask;
        }
        Ok(())
    }

    /// Checks that the required bits of a register are defined.
    #[cold]
    fn demand(&self, effects: &Effects, register: u16, mask: u32) -> Outcome<()> {
        let needed =
            effects.stored.map_or(!0, |(stored, bits)| if stored == register { bits } else { !0 });
        let unset = self.known.unset_lanes(usize::from(register));
        let without = mask & bits(|lane| unset[lane] & needed != 0);
        if without == 0 {
            return Ok(());
        }
        Err(missing(
            match register {
                0..UNIFORM => format!("R{register}"),
                _ => format!("UR{}", register - UNIFORM),
            },
            without,
        ))
    }

    /// Marks the required sources of an instruction as defined, after they were reported.
    #[cold]
    fn trust(&mut self, effects: &Effects, mask: u32) {
        for &register in &effects.needs {
            self.known.set(usize::from(register), mask);
        }
        for predicate in Each(u32::from(effects.predicate_needs)) {
            self.predicates_defined[predicate] |= self.active.mask;
        }
    }

    /// Overwrites the results of a spoiled operation.
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
