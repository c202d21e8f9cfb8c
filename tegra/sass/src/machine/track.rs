//! Undefined bits of results, for instructions with undefined sources.

use super::Outcome;
use super::env::Env;
use super::lanes::Each;
use super::operands::bits;
use super::warp::Warp;
use crate::execute::unset::{self, Partial, any};
use crate::execute::{LANES, Lanes};
use crate::isa::{PT, RZ, URZ};
use crate::program::op::{
    Carry, Combine, Comparison, Condition, Lane, LogicTest, Op, Origin, ShiftAddCarry, Source,
    Upper, Vote, carried,
};
use crate::program::{Effects, Step, UNIFORM};

/// A source of an instruction: the value and undefined bits for each lane.
type Partials = [Partial; LANES];

/// Destination of an instruction's results.
#[derive(Clone, Copy)]
struct Target {
    mask: u32,
    /// Lanes whose guard predicate is undefined.
    doubtful: u32,
    uniform: bool,
}

impl Warp {
    /// Records the undefined bits of an instruction's results. Not inlined, because the sources of
    /// most instructions are fully defined.
    #[cold]
    #[inline(never)]
    pub(super) fn track(
        &mut self,
        env: &Env<'_>,
        step: &Step,
        effects: &Effects,
        mask: u32,
    ) -> Outcome<()> {
        let doubtful = self.doubt(step.guard) & mask;
        let lanes = Target { mask, doubtful, uniform: false };
        let to = |uniform| Target { uniform, ..lanes };
        match step.op {
            Op::Alu { ref lane, d, ref a, ref b, ref c, p } => {
                let unset = self.lane_unset(env, lane, [a, b, c], p)?;
                self.note(lanes, d, &unset);
            }
            Op::UniformAlu { ref lane, d, ref a, ref b, ref c, p } => {
                let unset = self.lane_unset(env, lane, [a, b, c], p)?;
                self.note(to(true), d, &unset);
            }
            Op::Carry(Carry { d, ref a, ref b, ref c, out, carry, uniform, .. }) => {
                let sources = self.partials(env, [a, b, c])?;
                let carries = carry
                    .map_or(0, |pair| pair.map(|p| self.doubt(p)).iter().fold(0, |a, b| a | b));
                let unset = std::array::from_fn(|lane| {
                    let all = sources.iter().fold(0, |all, source| all | source[lane].unset);
                    carried(all | carries >> lane & 1)
                });
                self.note(to(uniform), d, &unset);
                out.iter().for_each(|&out| {
                    self.note_truth(to(uniform), out, bits(|lane| unset[lane] != 0));
                });
            }
            Op::ShiftAddCarry(ShiftAddCarry {
                d,
                ref a,
                ref b,
                ref upper,
                shift,
                carry,
                out,
                uniform,
                ..
            }) => {
                let [a, b] = self.partials(env, [a, b])?;
                let nothing = Source::zero();
                let [c] = self.partials(
                    env,
                    [match upper {
                        Upper::Word(word) => word,
                        Upper::None | Upper::Sign => &nothing,
                    }],
                )?;
                let carry = carry.map_or(0, |condition| self.doubt(condition));
                let all =
                    |lane: usize| a[lane].unset | b[lane].unset | c[lane].unset | carry >> lane & 1;
                let unset = std::array::from_fn(|lane| match upper {
                    Upper::None => {
                        let shifted = a[lane].unset << (shift & 31);
                        carried(shifted | b[lane].unset | carry >> lane & 1)
                    }
                    Upper::Word(_) | Upper::Sign => any(all(lane)),
                });
                let doubt = bits(|lane| all(lane) != 0);
                self.note(to(uniform), d, &unset);
                self.note_truth(to(uniform), out, doubt);
            }
            Op::LogicTest(LogicTest { table, d, ref a, ref b, ref c, out, p, and, uniform }) => {
                let values = self.lane_unset(env, &Lane::Logic { table }, [a, b, c], p)?;
                let [a, b, c] = self.partials(env, [a, b, c])?;
                let word = |lane: usize| {
                    crate::execute::apply_one(
                        &Lane::Logic { table },
                        a[lane].value,
                        b[lane].value,
                        c[lane].value,
                        false,
                    )
                };
                // One defined set bit is enough to know that the result is not zero.
                let some = Partial {
                    value: bits(|lane| word(lane) != 0),
                    unset: bits(|lane| values[lane] != 0 && word(lane) & !values[lane] == 0),
                };
                let how = if and { Combine::And } else { Combine::Or };
                self.note(to(uniform), d, &values);
                self.note_truth(to(uniform), out, unset::combine(how, some, self.truth(p)));
            }
            Op::Predicates { tables, out, sources, uniform } => {
                let sources = sources.map(|condition| self.truth(condition));
                for (table, out) in tables.into_iter().zip(out) {
                    self.note_truth(to(uniform), out, unset::logic(table, sources));
                }
            }
            _ => self.track_predicates(env, step, effects, lanes)?,
        }
        Ok(())
    }

    fn track_predicates(
        &mut self,
        env: &Env<'_>,
        step: &Step,
        effects: &Effects,
        lanes: Target,
    ) -> Outcome<()> {
        let mask = lanes.mask;
        let to = |uniform| Target { uniform, ..lanes };
        match step.op {
            Op::Compare(ref op) => {
                let Comparison { ref a, ref b, p, extra, combine, out, uniform, .. } = *op;
                let sources = self.partials(env, [&a[0], &a[1], &b[0], &b[1]])?;
                let open = self.doubt(extra)
                    | bits(|lane| sources.iter().any(|source| source[lane].unset != 0));
                let p = self.truth(p);
                let (first, second) = self.compare(env, op)?;
                for (value, out) in [first, second].into_iter().zip(out) {
                    let doubt = unset::combine(combine, Partial { value, unset: open }, p);
                    self.note_truth(to(uniform), out, doubt);
                }
            }
            Op::FromPredicates { d, byte, ref base, mask: ref chosen } => {
                let [base, chosen] = self.partials(env, [base, chosen])?;
                let unset = std::array::from_fn(|lane| {
                    let predicates = (0..7).fold(0, |all, index| {
                        all | (!self.predicates_defined[index] >> lane & 1) << index
                    });
                    let Partial { value, unset: open } = chosen[lane];
                    let [predicates, chosen, open] =
                        [predicates, value, open].map(|word| word << (8 * byte));
                    (predicates & chosen) | (base[lane].unset & !chosen) | open
                });
                self.note(lanes, d, &unset);
            }
            Op::ToPredicates { ref source, mask: ref chosen } => {
                let [source, chosen] = self.partials(env, [source, chosen])?;
                for index in 0..7 {
                    let bit = |word: u32| word >> index & 1 == 1;
                    let written = bits(|lane| bit(chosen[lane].value | chosen[lane].unset));
                    let doubt = bits(|lane| bit(source[lane].unset | chosen[lane].unset));
                    let lanes = Target { mask: mask & written, ..lanes };
                    self.note_truth(lanes, index, doubt);
                }
            }
            Op::Shuffle { mode, out, d, ref a, ref lane, ref limit } => {
                let [a, which, limit] = self.partials(env, [a, lane, limit])?;
                let values = |source: &Partials| source.map(|word| word.value);
                let (mut unset, ..) = Self::shuffle(
                    mode,
                    mask,
                    &a.map(|word| word.unset),
                    &values(&which),
                    &values(&limit),
                );
                let doubt = bits(|lane| (which[lane].unset | limit[lane].unset) != 0);
                Each(doubt).for_each(|lane| unset[lane] = !0);
                self.note(lanes, d, &unset);
                self.note_truth(lanes, out, doubt);
            }
            Op::ToUniform { d, out, ref a } => {
                let [a] = self.partials(env, [a])?;
                let first = a[Self::first_lane(mask) as usize].unset;
                self.note(to(true), d, &[first; LANES]);
                self.note_truth(lanes, out, bits(|lane| a[lane].unset | first != 0));
            }
            Op::Signs { tables, out, ref sources } => {
                let [a, b, c] = sources;
                let sources = self.partials(env, [a, b, c])?.map(|source| Partial {
                    value: bits(|lane| source[lane].value >> 31 == 1),
                    unset: bits(|lane| source[lane].unset >> 31 == 1),
                });
                for (table, out) in tables.into_iter().zip(out) {
                    self.note_truth(lanes, out, unset::logic(table, sources));
                }
            }
            Op::Vote { vote, d, out, p, uniform } => {
                let Partial { value, unset } = self.truth(p);
                let (yes, no) = (value & !unset & mask != 0, !value & !unset & mask != 0);
                let decided = match vote {
                    Vote::All => no,
                    Vote::Any => yes,
                    Vote::Equal => yes && no,
                };
                self.note(to(uniform), d, &[unset & mask; LANES]);
                self.note_truth(to(uniform), out, if decided { 0 } else { !0 });
            }
            // Each lane depends on all lanes.
            Op::Match { .. } | Op::Reduce { .. } | Op::Transpose { .. } => {
                self.note_whole(effects, mask, 0);
            }
            _ => self.note_whole(effects, mask, self.defined(effects)),
        }
        Ok(())
    }

    /// Returns the lanes in which all sources are defined.
    #[inline(always)]
    pub(super) fn defined(&self, effects: &Effects) -> u32 {
        let registers = effects
            .reads
            .iter()
            .fold(!0, |all, &register| all & self.known.whole(usize::from(register)));
        Each(u32::from(effects.predicate_reads))
            .fold(registers, |all, predicate| all & self.predicates_defined[predicate])
    }

    /// Marks results as fully defined for the lanes of `defined`, and as undefined for all others.
    fn note_whole(&mut self, effects: &Effects, mask: u32, defined: u32) {
        for &register in &effects.writes {
            // A uniform register depends on all lanes.
            let all = if defined & mask == mask { !0 } else { 0 };
            let (lanes, whole) =
                if register < UNIFORM { (mask, defined & mask) } else { (!0, all) };
            self.known.clear(usize::from(register), lanes);
            self.known.set(usize::from(register), whole);
        }
        for predicate in Each(u32::from(effects.predicate_writes)) {
            let target = &mut self.predicates_defined[predicate];
            *target = (*target & !mask) | (defined & mask);
        }
    }

    /// Returns the lanes in which a predicate is undefined. Uniform predicates count as defined.
    fn doubt(&self, condition: Condition) -> u32 {
        if condition.uniform {
            0
        } else {
            !self.predicates_defined[usize::from(condition.index & 7)]
        }
    }

    fn truth(&self, condition: Condition) -> Partial {
        Partial { value: self.holds(condition), unset: self.doubt(condition) }
    }

    fn partials<const N: usize>(
        &self,
        env: &Env<'_>,
        sources: [&Source; N],
    ) -> Outcome<[Partials; N]> {
        let mut partials = [[Partial::known(0); LANES]; N];
        for (partial, source) in partials.iter_mut().zip(sources) {
            let values = self.fetch(env, source)?;
            let unset = match source.origin {
                Origin::Register(index) => self.known.unset_lanes(usize::from(index)),
                Origin::Uniform(index) => {
                    self.known.unset_lanes(usize::from(UNIFORM) + usize::from(index & 63))
                }
                Origin::Constant { .. } | Origin::Immediate(_) => [0; LANES],
            };
            for (lane, partial) in partial.iter_mut().enumerate() {
                *partial = Partial { value: values[lane], unset: source.unset(unset[lane]) };
            }
        }
        Ok(partials)
    }

    fn lane_unset(
        &self,
        env: &Env<'_>,
        lane: &Lane,
        sources: [&Source; 3],
        p: Condition,
    ) -> Outcome<Lanes> {
        let (sources, p) = (self.partials(env, sources)?, self.truth(p));
        Ok(std::array::from_fn(|at| {
            let p = (p.unset >> at & 1 == 0).then_some(p.value >> at & 1 == 1);
            unset::lane(lane, sources.map(|source| source[at]), p)
        }))
    }

    /// Records the undefined bits of a result.
    fn note(&mut self, target: Target, d: u8, unset: &Lanes) {
        if target.uniform {
            let first = unset[Self::first_lane(target.mask) as usize];
            let unset = if target.doubtful == 0 { first } else { !0 };
            if d < URZ {
                let register = usize::from(UNIFORM) + usize::from(d & 63);
                self.known.write_lanes(register, !0, &[unset; LANES]);
            }
        } else if d != RZ {
            self.known.write_lanes(usize::from(d), target.mask, unset);
            self.known.clear(usize::from(d), target.doubtful);
        }
    }

    /// Records the lanes in which a predicate result is undefined.
    fn note_truth(&mut self, target: Target, predicate: u8, doubt: u32) {
        if !target.uniform && predicate != PT {
            let written = &mut self.predicates_defined[usize::from(predicate & 7)];
            *written = (*written & !target.mask) | (!(doubt | target.doubtful) & target.mask);
        }
    }
}
