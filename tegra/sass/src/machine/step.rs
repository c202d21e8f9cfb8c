//! One instruction after the other.

use super::access::Env;
use super::atomic::Operands;
use super::lanes::Each;
use super::warp::{Group, Wait, Warp};
use super::{Outcome, Raised};
use crate::check::Strictness;
use crate::execute::{self, LANES, Lanes, compare, matrix, wide};
use crate::fault::FaultKind;
use crate::isa::{PT, RZ, SpecialRegister};
use crate::program::Effects;
use crate::program::op::{
    Arrival, Combine, Compared, Condition, Op, Origin, Relation, Size, Source, Vote, Wide,
};

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

impl Env<'_> {
    /// A word of a constant bank.
    #[inline(always)]
    fn constant(&self, bank: u8, offset: i64, bytes: u8) -> Outcome<u32> {
        let data = self.launch.banks.get(usize::from(bank)).copied().unwrap_or_default();
        let found = usize::try_from(offset)
            .ok()
            .and_then(|first| data.get(first..first.checked_add(usize::from(bytes))?));
        let Some(found) = found else {
            let limit = data.len();
            return Err(Raised::new(FaultKind::Constant { bank, offset, bytes, limit }, !0));
        };
        if offset % i64::from(bytes) != 0 {
            let address = offset as u64;
            return Err(Raised::new(FaultKind::Misaligned { address, bytes }, !0));
        }
        let mut word = [0; 4];
        word[..found.len()].copy_from_slice(found);
        Ok(u32::from_le_bytes(word))
    }
}

/// The lanes for which something holds.
#[inline(always)]
fn bits(f: impl Fn(usize) -> bool) -> u32 {
    let mut mask = 0;
    for lane in 0..LANES {
        mask |= u32::from(f(lane)) << lane;
    }
    mask
}

#[inline(always)]
fn relate(relation: Relation, less: u32, equal: u32, greater: u32) -> u32 {
    let pick = |wanted: bool, mask: u32| if wanted { mask } else { 0 };
    pick(relation.less, less)
        | pick(relation.equal, equal)
        | pick(relation.greater, greater)
        | pick(relation.unordered, !(less | equal | greater))
}

#[inline(always)]
fn combine(how: Combine, a: u32, b: u32) -> u32 {
    match how {
        Combine::And => a & b,
        Combine::Or => a | b,
        Combine::Xor => a ^ b,
    }
}

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

    /// A source's lanes: the register itself, or what is made of it in the space given.
    #[inline(always)]
    fn fetch_in<'s>(
        &'s self,
        env: &Env<'_>,
        source: &Source,
        space: &'s mut Lanes,
    ) -> Outcome<&'s Lanes> {
        let plain = source.is_plain();
        *space = match source.origin {
            Origin::Register(index) => {
                let register = &self.registers[usize::from(index)];
                if plain {
                    return Ok(register);
                }
                for lane in 0..LANES {
                    space[lane] = source.modify(register[lane]);
                }
                return Ok(space);
            }
            Origin::Immediate(value) => [source.modify(value); LANES],
            Origin::Uniform(index) => [source.modify(self.uniform[usize::from(index & 63)]); LANES],
            Origin::Constant { bank, offset } => {
                [source.modify(env.constant(bank, i64::from(offset), 4)?); LANES]
            }
        };
        Ok(space)
    }

    fn fetch(&self, env: &Env<'_>, source: &Source) -> Outcome<Lanes> {
        let mut space = [0; LANES];
        self.fetch_in(env, source, &mut space).copied()
    }

    /// A source of a uniform operation; from a lane's register, the first active lane's.
    fn fetch_one(&self, env: &Env<'_>, source: &Source) -> Outcome<u32> {
        let raw = match source.origin {
            Origin::Constant { bank, offset } => env.constant(bank, i64::from(offset), 4)?,
            Origin::Immediate(value) => value,
            Origin::Uniform(index) => self.uniform[usize::from(index & 63)],
            Origin::Register(index) => {
                self.registers[usize::from(index)][Self::first_lane(self.active.mask) as usize]
            }
        };
        Ok(source.modify(raw))
    }

    fn fetch_wide(
        &self,
        env: &Env<'_>,
        pair: &[Source; 2],
        uniform: bool,
    ) -> Outcome<[u64; LANES]> {
        if uniform {
            let (low, high) = (self.fetch_one(env, &pair[0])?, self.fetch_one(env, &pair[1])?);
            return Ok([u64::from(low) | u64::from(high) << 32; LANES]);
        }
        let (low, high) = (self.fetch(env, &pair[0])?, self.fetch(env, &pair[1])?);
        let mut lanes = [0; LANES];
        for lane in 0..LANES {
            lanes[lane] = u64::from(low[lane]) | u64::from(high[lane]) << 32;
        }
        Ok(lanes)
    }

    /// Writes a result's words and goes on.
    fn write_wide(&mut self, d: u8, mask: u32, words: u8, uniform: bool, values: &[u64; LANES]) {
        if uniform {
            let value = values[Self::first_lane(mask) as usize];
            self.write_uniform(d, value as u32);
            if words == 2 {
                self.write_uniform(d + 1, (value >> 32) as u32);
            }
            return;
        }
        self.write(d, mask, &values.map(|value| value as u32));
        if words == 2 && d != RZ {
            self.write(d.wrapping_add(1), mask, &values.map(|value| (value >> 32) as u32));
        }
    }

    fn write_out(&mut self, predicate: u8, mask: u32, values: u32, uniform: bool) {
        if uniform {
            self.write_uniform_predicate(predicate, values & mask != 0);
        } else {
            self.write_predicate(predicate, mask, values);
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
            Op::Alu { lane, d, a, b, c, p } => {
                if mask != 0 {
                    let p = self.holds(*p);
                    let mut spaces = [[0; LANES]; 3];
                    let [x, y, z] = &mut spaces;
                    let a = self.fetch_in(env, a, x)?;
                    let b = self.fetch_in(env, b, y)?;
                    let c = self.fetch_in(env, c, z)?;
                    let values = execute::apply_all(lane, a, b, c, p);
                    self.write(*d, mask, &values);
                }
                self.active.pc += 1;
                Ok(())
            }
            Op::Branch { p, target } => {
                let taken = mask & self.holds(*p);
                self.branch(taken, *target, seeded);
                Ok(())
            }
            Op::Load { d, pointer, size } => {
                if mask != 0 {
                    self.load::<C>(env, mask, *d, pointer, *size)?;
                }
                self.active.pc += 1;
                Ok(())
            }
            Op::Store { pointer, source, size } => {
                if mask != 0 {
                    self.store::<C>(env, mask, pointer, *source, *size)?;
                }
                self.active.pc += 1;
                Ok(())
            }
            _ => self.other::<C>(env, op, mask, seeded),
        }
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

    /// Operations that decide where lanes go on; whether it was one.
    fn control<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        op: &Op,
        mask: u32,
        seeded: bool,
    ) -> Outcome<bool> {
        match *op {
            Op::BranchIndirect { p, register, offset } => {
                let taken = mask & self.holds(p);
                self.branch_indirect(env, taken, register, offset)?;
            }
            Op::BranchTogether { p, target } => {
                let taken = mask & self.holds(p);
                self.branch(if taken == self.active.mask { taken } else { 0 }, target, seeded);
            }
            Op::BranchIf { p, mask: ref lanes, converged, target } => {
                let wanted = self.fetch_one(env, lanes)? & self.live;
                let together = wanted & !self.active.mask == 0;
                let taken = if together == converged { mask & self.holds(p) } else { 0 };
                self.branch(taken, target, seeded);
            }
            Op::Exit { p } => {
                let ending = mask & self.holds(p);
                self.exit(ending);
                if self.live == 0 {
                    self.open.clear();
                    self.land::<C>(env, 0);
                }
            }
            Op::Synchronise { p, barrier } => {
                let waiting = mask & self.holds(p);
                if waiting == 0 {
                    self.active.pc += 1;
                } else {
                    self.wait_some(waiting, Wait::Convergence(barrier));
                }
            }
            Op::WarpSync { p, mask: ref lanes } => {
                let waiting = mask & self.holds(p);
                let wanted = self.fetch_one(env, lanes)?;
                if waiting == 0 {
                    self.active.pc += 1;
                } else {
                    self.wait_some(waiting, Wait::Lanes(wanted));
                }
            }
            Op::Barrier { ref id, threads, arrival, p } => {
                if mask == 0 {
                    self.active.pc += 1;
                } else {
                    let id = self.fetch_one(env, id)?;
                    self.arrive(mask, id, threads, arrival, p)?;
                }
            }
            Op::Yield => {
                self.active.pc += 1;
                self.rotate();
            }
            Op::Illegal => {
                let bits = env.program.word(self.active.pc);
                return Err(Raised::new(FaultKind::IllegalInstruction { bits }, mask.max(1)));
            }
            Op::Trap => {
                if mask != 0 {
                    return Err(Raised::new(FaultKind::Trap, mask));
                }
                self.active.pc += 1;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Lets some lanes of the running group wait; the others go on.
    fn wait_some(&mut self, mask: u32, on: Wait) {
        self.wait(mask, on);
    }

    fn branch_indirect(
        &mut self,
        env: &Env<'_>,
        taken: u32,
        register: u8,
        offset: i64,
    ) -> Outcome<()> {
        let mut rest = self.active.mask & !taken;
        let next = self.active.pc + 1;
        let mut groups: Vec<Group> = Vec::new();
        let high = if register == RZ { RZ } else { register + 1 };
        for lane in Each(taken) {
            let low = self.registers[usize::from(register)][lane];
            let high = self.registers[usize::from(high)][lane];
            let pc = (u64::from(low) | u64::from(high) << 32).wrapping_add(offset as u64);
            if !pc.is_multiple_of(16) || pc >= env.program.bytes() as u64 {
                let kind = FaultKind::ProgramCounter { pc, bytes: env.program.bytes() };
                return Err(Raised::new(kind, 1 << lane));
            }
            let pc = (pc / 16) as u32;
            match groups.iter_mut().find(|group| group.pc == pc) {
                Some(group) => group.mask |= 1 << lane,
                None => groups.push(Group { mask: 1 << lane, pc }),
            }
        }
        if groups.is_empty() {
            self.active.pc = next;
            return Ok(());
        }
        if rest != 0 {
            groups.push(Group { mask: std::mem::take(&mut rest), pc: next });
        }
        self.active.mask = 0;
        self.ready.extend(groups);
        Ok(())
    }

    /// Operations whose results are registers and predicates alone; whether it was one.
    fn arithmetic(&mut self, env: &mut Env<'_>, op: &Op, mask: u32) -> Outcome<bool> {
        match *op {
            Op::UniformAlu { ref lane, d, ref a, ref b, ref c, p } => {
                let p = self.holds(p) & 1 != 0;
                let (a, b) = (self.fetch_one(env, a)?, self.fetch_one(env, b)?);
                let c = self.fetch_one(env, c)?;
                self.write_uniform(d, execute::apply_one(lane, a, b, c, p));
            }
            Op::Carry { d, ref a, ref b, ref c, extra, out, carry, uniform } => {
                let mut spaces = [[0; LANES]; 3];
                let [x, y, z] = &mut spaces;
                let a = self.fetch_in(env, a, x)?;
                let (b, c) = (self.fetch_in(env, b, y)?, self.fetch_in(env, c, z)?);
                let carries = carry.map_or([0; 2], |pair| pair.map(|p| self.holds(p)));
                let (values, first, second) =
                    execute::add_carries(a, b, c, u32::from(extra), carries);
                if uniform {
                    self.write_uniform(d, values[Self::first_lane(mask) as usize]);
                } else {
                    self.write(d, mask, &values);
                }
                self.write_out(out[0], mask, first, uniform);
                self.write_out(out[1], mask, second, uniform);
            }
            Op::ShiftAddCarry { d, ref a, ref b, ref upper, shift, extra, out, uniform } => {
                let (a, b) = (self.fetch(env, a)?, self.fetch(env, b)?);
                let upper = upper.as_ref().map(|upper| self.fetch(env, upper)).transpose()?;
                let (mut values, mut carries) = ([0; LANES], 0);
                for lane in 0..LANES {
                    let shifted = match &upper {
                        None => a[lane] << (shift & 31),
                        Some(upper) => {
                            let pair = u64::from(upper[lane]) << 32 | u64::from(a[lane]);
                            (pair << (shift & 31) >> 32) as u32
                        }
                    };
                    let sum = u64::from(shifted) + u64::from(b[lane]) + u64::from(extra);
                    values[lane] = u64::from(sum as u32);
                    carries |= u32::from(sum >> 32 != 0) << lane;
                }
                self.write_wide(d, mask, 1, uniform, &values);
                self.write_out(out, mask, carries, uniform);
            }
            Op::LogicTest { table, d, ref a, ref b, ref c, out, p, and, uniform } => {
                let (a, b, c) = (self.fetch(env, a)?, self.fetch(env, b)?, self.fetch(env, c)?);
                let p = self.holds(p);
                let values =
                    execute::apply_all(&crate::program::op::Lane::Logic { table }, &a, &b, &c, p);
                let some = bits(|lane| values[lane] != 0);
                let truth = if and { some & p } else { some | p };
                self.write_wide(d, mask, 1, uniform, &values.map(u64::from));
                self.write_out(out, mask, truth, uniform);
            }
            Op::Wide {
                wide: Wide::MultiplyAdd { signed, high: false, narrow: false, negate: false },
                d,
                ref a,
                ref b,
                ref c,
                out: PT,
                carry: None,
                uniform: false,
            } => {
                let mut spaces = [[0; LANES]; 4];
                let [w, x, y, z] = &mut spaces;
                let a = self.fetch_in(env, &a[0], w)?;
                let b = self.fetch_in(env, &b[0], x)?;
                let c = [self.fetch_in(env, &c[0], y)?, self.fetch_in(env, &c[1], z)?];
                let [low, high] = execute::multiply_add(a, b, c, signed);
                self.write(d, mask, &low);
                if d != RZ {
                    self.write(d.wrapping_add(1), mask, &high);
                }
            }
            Op::Wide { wide: ref operation, d, ref a, ref b, ref c, out, carry, uniform } => {
                let (a, b) = (self.fetch_wide(env, a, uniform)?, self.fetch_wide(env, b, uniform)?);
                let c = self.fetch_wide(env, c, uniform)?;
                let carry = carry.map_or(0, |condition| self.holds(condition));
                let (mut values, mut carries) = ([0; LANES], 0);
                for lane in 0..LANES {
                    let extra = carry >> lane & 1 == 1;
                    let (value, over) = wide::apply(operation, a[lane], b[lane], c[lane], extra);
                    values[lane] = value;
                    carries |= u32::from(over) << lane;
                }
                self.write_wide(d, mask, operation.words(), uniform, &values);
                self.write_out(out, mask, carries, uniform);
            }
            Op::Compare {
                compared,
                relation,
                combine: how,
                out,
                ref a,
                ref b,
                p,
                extra,
                uniform,
            } => {
                let p = self.holds(p);
                let (first, second) = self.compare(env, compared, relation, [a, b], extra)?;
                self.write_out(out[0], mask, combine(how, first, p), uniform);
                self.write_out(out[1], mask, combine(how, second, p), uniform);
            }
            Op::Predicates { tables, out, sources, uniform } => {
                let [a, b, c] = sources.map(|condition| self.holds(condition));
                for (table, out) in tables.into_iter().zip(out) {
                    let mut values = 0;
                    for term in 0..8u32 {
                        if table >> term & 1 == 1 {
                            let side = |bit: u32, value: u32| {
                                if term >> bit & 1 == 1 { value } else { !value }
                            };
                            values |= side(2, a) & side(1, b) & side(0, c);
                        }
                    }
                    self.write_out(out, mask, values, uniform);
                }
            }
            Op::FromPredicates { d, ref base, mask: ref chosen } => {
                let (base, chosen) = (self.fetch(env, base)?, self.fetch(env, chosen)?);
                let mut values = [0; LANES];
                for lane in 0..LANES {
                    let packed = (0..7).fold(0, |packed, index| {
                        packed | (self.predicates[index] >> lane & 1) << index
                    });
                    values[lane] = (packed & chosen[lane]) | (base[lane] & !chosen[lane]);
                }
                self.write(d, mask, &values);
            }
            Op::ToPredicates { ref source, mask: ref chosen } => {
                let (source, chosen) = (self.fetch(env, source)?, self.fetch(env, chosen)?);
                for index in 0..7u8 {
                    let these = mask & bits(|lane| chosen[lane] >> index & 1 == 1);
                    self.write_predicate(index, these, bits(|lane| source[lane] >> index & 1 == 1));
                }
            }
            Op::LeadingTest { d, ref a, signed, distance, out } => {
                let a = self.fetch(env, a)?;
                let lane = crate::program::op::Lane::LeadingOne { signed, distance };
                let values = execute::apply_all(&lane, &a, &a, &a, 0);
                self.write(d, mask, &values);
                self.write_predicate(out, mask, bits(|lane| values[lane] != !0));
            }
            _ => return self.exchange(env, op, mask),
        }
        Ok(true)
    }

    fn compare(
        &self,
        env: &Env<'_>,
        compared: Compared,
        relation: Relation,
        sources: [&[Source; 2]; 2],
        extra: Condition,
    ) -> Outcome<(u32, u32)> {
        let [a, b] = sources;
        let (x, y) = (&mut [0; LANES], &mut [0; LANES]);
        match compared {
            Compared::Integers { signed } => {
                let (a, b) = (self.fetch_in(env, &a[0], x)?, self.fetch_in(env, &b[0], y)?);
                let [less, equal] = execute::compare_integers(a, b, signed);
                let first = relate(relation, less, equal, !(less | equal));
                Ok((first, !first))
            }
            Compared::Floats { flush: false } => {
                let (a, b) = (self.fetch_in(env, &a[0], x)?, self.fetch_in(env, &b[0], y)?);
                let [less, equal, greater] = execute::compare_floats(a, b);
                let first = relate(relation, less, equal, greater);
                Ok((first, !first))
            }
            _ => {
                let (a, b) = (self.fetch_wide(env, a, false)?, self.fetch_wide(env, b, false)?);
                let extra = self.holds(extra);
                let (mut first, mut second) = (0, 0);
                for lane in 0..LANES {
                    let extra = extra >> lane & 1 == 1;
                    let (one, two) = compare::apply(compared, relation, a[lane], b[lane], extra);
                    first |= u32::from(one) << lane;
                    second |= u32::from(two) << lane;
                }
                Ok((first, second))
            }
        }
    }

    /// Operations in which lanes see each other's values; whether it was one.
    fn exchange(&mut self, env: &mut Env<'_>, op: &Op, mask: u32) -> Outcome<bool> {
        match *op {
            Op::Shuffle { mode, out, d, ref a, ref lane, ref limit } => {
                let values = self.fetch(env, a)?;
                let (lane, limit) = (self.fetch(env, lane)?, self.fetch(env, limit)?);
                let (values, inside, absent) = Self::shuffle(mode, mask, &values, &lane, &limit);
                self.write(d, mask, &values);
                self.write_predicate(out, mask, inside);
                // A lane that is not here gives nothing to rely on.
                self.defined[usize::from(d)] &= !absent;
                self.defined[usize::from(RZ)] = !0;
            }
            Op::Match { all, wide, out, d, a } => {
                let low = self.registers[usize::from(a)];
                let high =
                    if wide { self.registers[usize::from(a.wrapping_add(1))] } else { [0; LANES] };
                let same = Self::matches(mask, &low, &high);
                let together = Each(mask).all(|lane| same[lane] == mask);
                if all {
                    self.write(d, mask, &[if together { mask } else { 0 }; LANES]);
                    self.write_predicate(out, mask, if together { !0 } else { 0 });
                } else {
                    self.write(d, mask, &same);
                }
            }
            Op::Reduce { reduction, signed, d, ref a } => {
                let values = self.fetch(env, a)?;
                self.write_uniform(d, Self::reduce(reduction, signed, mask, &values));
            }
            Op::Vote { vote, d, out, p, uniform } => {
                let ballot = self.holds(p) & mask;
                let truth = match vote {
                    Vote::All => ballot == mask,
                    Vote::Any => ballot != 0,
                    Vote::Equal => ballot == mask || ballot == 0,
                };
                let truth = if truth { !0 } else { 0 };
                if uniform {
                    self.write_uniform(d, ballot);
                } else {
                    self.write(d, mask, &[ballot; LANES]);
                }
                self.write_out(out, mask, truth, uniform);
            }
            Op::MatrixFloat { d, a, b, c, depth, element, half } => {
                let words =
                    depth * if element == crate::program::op::Element::Tensor { 2 } else { 1 } / 4;
                let count = if half { 2 } else { 4 };
                let (left, right) = (self.registers_at(a, words), self.registers_at(b, words / 2));
                let sum = self.registers_at(c, count);
                let result = matrix::float(element, usize::from(depth), half, &left, &right, &sum);
                for (step, values) in result.iter().take(usize::from(count)).enumerate() {
                    self.write(d.wrapping_add(step as u8), mask, values);
                }
            }
            Op::MatrixInteger { d, a, b, c, depth, left, right, saturate } => {
                let words = (u16::from(depth) * u16::from(left.bits) / 64) as u8;
                let (first, second) =
                    (self.registers_at(a, words), self.registers_at(b, words / 2));
                let sum = self.registers_at(c, 4);
                let kinds = [left, right];
                let result =
                    matrix::integer(kinds, usize::from(depth), saturate, &first, &second, &sum);
                for (step, values) in result.iter().enumerate() {
                    self.write(d.wrapping_add(step as u8), mask, values);
                }
            }
            Op::ToUniform { d, ref a } => {
                let value = self.fetch(env, a)?[Self::first_lane(mask) as usize];
                self.write_uniform(d, value);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Registers that follow each other; `RZ` is as many zeros.
    fn registers_at(&self, first: u8, count: u8) -> Vec<Lanes> {
        (0..count)
            .map(|step| {
                if first == RZ {
                    [0; LANES]
                } else {
                    self.registers[usize::from(first.wrapping_add(step))]
                }
            })
            .collect()
    }

    /// Operations that touch memory, constants, barriers' registers or the machine's state.
    fn effect<C: Strictness>(&mut self, env: &mut Env<'_>, op: &Op, mask: u32) -> Outcome<()> {
        match *op {
            Op::LoadConstant { d, bank, register, offset, size } => {
                for lane in Each(mask) {
                    let index = self.registers[usize::from(register)][lane] as i32;
                    let at = i64::from(index) + i64::from(offset);
                    self.load_constant_lane(env, d, bank, at, size, lane)?;
                }
            }
            Op::LoadUniform { d, bank, offset, size } => {
                let offset = i64::from(offset);
                let value = env.constant(bank, offset, size.bytes.min(4))?;
                self.write_uniform(d, widen(value, size));
                if size.bytes == 8 {
                    self.write_uniform(d + 1, env.constant(bank, offset + 4, 4)?);
                }
            }
            Op::Atomic { operation, kind, d, ref pointer, source, source2 } => {
                let operands = Operands { operation, kind, d, source, source2 };
                self.atomic::<C>(env, mask, pointer, &operands)?;
            }
            Op::CopyAsync { ref to, ref from, bytes, p } => {
                let full = self.holds(p);
                self.copy_async::<C>(env, mask, full, to, from, bytes)?;
            }
            Op::CommitCopies => {
                let group = std::mem::take(&mut self.open);
                self.committed.push_back(group);
            }
            Op::WaitCopies { left } => self.land::<C>(env, usize::from(left)),
            Op::LoadMatrix { d, ref pointer, count, transpose } => {
                self.load_matrix::<C>(env, d, pointer, count, transpose)?;
            }
            Op::SpaceTest { out, space, register, offset } => {
                let high = if register == RZ { RZ } else { register + 1 };
                let (low, high) =
                    (self.registers[usize::from(register)], self.registers[usize::from(high)]);
                let inside = bits(|lane| {
                    let address = u64::from(low[lane]) | u64::from(high[lane]) << 32;
                    env.resolve(address.wrapping_add(i64::from(offset) as u64)).0 == space
                });
                self.write_predicate(out, mask, inside);
            }
            Op::ReadSpecial { d, special, wide } => {
                let (low, high) = self.special(env, special);
                self.write(d, mask, &low);
                if wide && d != RZ {
                    self.write(d.wrapping_add(1), mask, &[high; LANES]);
                }
            }
            Op::ReadSpecialUniform { d, special } => {
                let value = self.special(env, special).0[Self::first_lane(mask) as usize];
                self.write_uniform(d, value);
            }
            Op::Join { p, barrier } => {
                self.convergence[usize::from(barrier & 15)] = mask & self.holds(p);
            }
            Op::Leave { p, barrier } => {
                let leaving = mask & self.holds(p);
                self.convergence[usize::from(barrier & 15)] &= !leaving;
                self.release();
            }
            Op::SaveBarrier { d, barrier, clear } => {
                let lanes = self.convergence[usize::from(barrier & 15)];
                self.write(d, mask, &[lanes; LANES]);
                if clear {
                    self.convergence[usize::from(barrier & 15)] = 0;
                }
            }
            Op::CopyBarrier { d, barrier, clear } => {
                self.convergence[usize::from(d & 15)] = self.convergence[usize::from(barrier & 15)];
                if clear {
                    self.convergence[usize::from(barrier & 15)] = 0;
                }
            }
            Op::RestoreBarrier { barrier, ref source } => {
                let lanes = self.fetch(env, source)?[Self::first_lane(mask) as usize];
                self.convergence[usize::from(barrier & 15)] = lanes;
            }
            Op::BarrierResult { d, out } => {
                let value = self.reduction;
                self.write(d, mask, &[value; LANES]);
                self.write_predicate(out, mask, if value != 0 { !0 } else { 0 });
            }
            _ => {}
        }
        Ok(())
    }

    fn load_constant_lane(
        &mut self,
        env: &Env<'_>,
        d: u8,
        bank: u8,
        at: i64,
        size: Size,
        lane: usize,
    ) -> Outcome<()> {
        for word in 0..size.bytes.div_ceil(4) {
            let value = env.constant(bank, at + 4 * i64::from(word), size.bytes.min(4))?;
            self.write_lane(d.wrapping_add(word), lane, widen(value, size));
        }
        Ok(())
    }

    /// A special register's lanes, and the upper word of those that have one.
    fn special(&self, env: &Env<'_>, special: SpecialRegister) -> (Lanes, u32) {
        use SpecialRegister as S;
        let each = |f: &dyn Fn(u32) -> u32| {
            let mut lanes = [0; LANES];
            for (lane, value) in lanes.iter_mut().enumerate() {
                *value = f(lane as u32);
            }
            lanes
        };
        let same = |value: u32| ([value; LANES], 0);
        let clock = env.clock * 4;
        let time = env.launch.time_ns.wrapping_add(clock / 32 * 32);
        let launch = env.launch;
        match special {
            S::LaneId => (each(&|lane| lane), 0),
            S::VirtId => same(u32::from(self.index) << 8),
            S::TidX => (self.thread[0], 0),
            S::TidY => (self.thread[1], 0),
            S::TidZ => (self.thread[2], 0),
            S::CtaidX => same(env.block[0]),
            S::CtaidY => same(env.block[1]),
            S::CtaidZ => same(env.block[2]),
            S::SmemSize => same(launch.shared_bytes.saturating_add(launch.shared_reserved)),
            S::EqMask => (each(&|lane| 1 << lane), 0),
            S::LtMask => (each(&|lane| (1 << lane) - 1), 0),
            S::LeMask => (each(&|lane| !0 >> (31 - lane)), 0),
            S::GtMask => (each(&|lane| !(!0 >> (31 - lane))), 0),
            S::GeMask => (each(&|lane| !((1 << lane) - 1)), 0),
            S::VirtualSmId => same((env.number % u64::from(launch.sms.max(1))) as u32),
            S::Clock => ([clock as u32; LANES], (clock >> 32) as u32),
            S::GlobalTimer => ([time as u32; LANES], (time >> 32) as u32),
            S::Zero => same(0),
        }
    }

    /// Comes to a block barrier, or stands at it until the warp's other lanes do.
    fn arrive(
        &mut self,
        mask: u32,
        id: u32,
        threads: u32,
        arrival: Arrival,
        p: Condition,
    ) -> Outcome<()> {
        if id > 15 || !threads.is_multiple_of(32) {
            return Err(Raised::new(FaultKind::BarrierOperand { id, threads }, mask));
        }
        let truth = self.holds(p);
        self.note_arrival(mask & truth, arrival);
        self.wait(mask, Wait::Block { id, threads, arrival });
        Ok(())
    }
}

/// A narrow constant as a register has it.
fn widen(value: u32, size: Size) -> u32 {
    match (size.bytes, size.signed) {
        (1, true) => value as u8 as i8 as u32,
        (2, true) => value as u16 as i16 as u32,
        _ => value,
    }
}
