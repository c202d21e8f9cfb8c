//! Operations that write only registers and predicates.

use super::Outcome;
use super::env::Env;
use super::operands::bits;
use super::warp::Warp;
use crate::execute::{self, LANES, compare, logic_word, wide};
use crate::isa::{PT, RZ};
use crate::program::op::{
    Carry, Combine, Compared, Comparison, Lane, LogicTest, Op, ShiftAddCarry, Upper, Wide, WideOp,
};

#[inline(always)]
fn combine(how: Combine, a: u32, b: u32) -> u32 {
    match how {
        Combine::And => a & b,
        Combine::Or => a | b,
        Combine::Xor => a ^ b,
    }
}

impl Warp {
    /// Executes an operation that writes only registers and predicates; returns false for others.
    pub(super) fn arithmetic(&mut self, env: &mut Env<'_>, op: &Op, mask: u32) -> Outcome<bool> {
        match *op {
            Op::UniformAlu { ref lane, d, ref a, ref b, ref c, p } => {
                let p = self.holds(p) & 1 != 0;
                let (a, b) = (self.fetch_one(env, a)?, self.fetch_one(env, b)?);
                let c = self.fetch_one(env, c)?;
                self.write_uniform(d, execute::apply_one(lane, a, b, c, p));
            }
            Op::Carry(Carry { d, ref a, ref b, ref c, extra, out, carry, uniform }) => {
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
            Op::ShiftAddCarry(ref op) => self.shift_add_carry(env, op, mask)?,
            Op::LogicTest(LogicTest { table, d, ref a, ref b, ref c, out, p, and, uniform }) => {
                let (a, b, c) = (self.fetch(env, a)?, self.fetch(env, b)?, self.fetch(env, c)?);
                let p = self.holds(p);
                let values = execute::apply_all(&Lane::Logic { table }, [&a, &b, &c], p);
                let some = bits(|lane| values[lane] != 0);
                let truth = if and { some & p } else { some | p };
                self.write_wide(d, mask, 1, uniform, &values.map(u64::from));
                self.write_out(out, mask, truth, uniform);
            }
            Op::Wide(WideOp {
                wide: Wide::MultiplyAdd { signed, high: false, narrow: false, negate: false },
                d,
                ref a,
                ref b,
                ref c,
                out: PT,
                carry: None,
                uniform: false,
            }) => {
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
            Op::Wide(WideOp {
                wide: ref operation,
                d,
                ref a,
                ref b,
                ref c,
                out,
                carry,
                uniform,
            }) => {
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
            _ => return self.predicates(env, op, mask),
        }
        Ok(true)
    }

    /// Executes comparisons and operations on predicates; returns false for others.
    #[inline(always)]
    fn predicates(&mut self, env: &mut Env<'_>, op: &Op, mask: u32) -> Outcome<bool> {
        match *op {
            Op::Compare(ref op) => {
                let p = self.holds(op.p);
                let (first, second) = self.compare(env, op)?;
                self.write_out(op.out[0], mask, combine(op.combine, first, p), op.uniform);
                self.write_out(op.out[1], mask, combine(op.combine, second, p), op.uniform);
            }
            Op::Predicates { tables, out, sources, uniform } => {
                let [a, b, c] = sources.map(|condition| self.holds(condition));
                for (table, out) in tables.into_iter().zip(out) {
                    self.write_out(out, mask, logic_word(table, a, b, c), uniform);
                }
            }
            Op::Signs { tables, out, ref sources } => {
                let mut truths = [0; 3];
                for (truth, source) in truths.iter_mut().zip(sources) {
                    let values = self.fetch(env, source)?;
                    *truth = bits(|lane| values[lane] >> 31 == 1);
                }
                let [a, b, c] = truths;
                for (table, out) in tables.into_iter().zip(out) {
                    self.write_predicate(out, mask, logic_word(table, a, b, c));
                }
            }
            Op::FromPredicates { d, byte, ref base, mask: ref chosen } => {
                let (base, chosen) = (self.fetch(env, base)?, self.fetch(env, chosen)?);
                let mut values = [0; LANES];
                for lane in 0..LANES {
                    let packed = (0..7).fold(0, |packed, index| {
                        packed | (self.predicates[index] >> lane & 1) << index
                    });
                    let (packed, chosen) = (packed << (8 * byte), chosen[lane] << (8 * byte));
                    values[lane] = (packed & chosen) | (base[lane] & !chosen);
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
                let lane = Lane::LeadingOne { signed, distance };
                let values = execute::apply_all(&lane, [&a; 3], 0);
                self.write(d, mask, &values);
                self.write_predicate(out, mask, bits(|lane| values[lane] != !0));
            }
            _ => return self.exchange(env, op, mask),
        }
        Ok(true)
    }

    #[inline(always)]
    fn shift_add_carry(&mut self, env: &Env<'_>, op: &ShiftAddCarry, mask: u32) -> Outcome<()> {
        let ShiftAddCarry { d, ref a, ref b, ref upper, shift, extra, carry, out, uniform } = *op;
        let (a, b) = (self.fetch(env, a)?, self.fetch(env, b)?);
        let high = match upper {
            Upper::None | Upper::Sign => a.map(|word| (word as i32 >> 31) as u32),
            Upper::Word(word) => self.fetch(env, word)?,
        };
        let part = if *upper == Upper::None { 0 } else { 32 };
        let carry = carry.map_or(0, |condition| self.holds(condition));
        let (mut values, mut carries) = ([0; LANES], 0);
        for lane in 0..LANES {
            let pair = u64::from(high[lane]) << 32 | u64::from(a[lane]);
            let shifted = pair << (shift & 31) >> part & 0xffff_ffff;
            let extra = u64::from(extra) + u64::from(carry >> lane & 1);
            let sum = shifted + u64::from(b[lane]) + extra;
            values[lane] = u64::from(sum as u32);
            carries |= u32::from(sum >> 32 != 0) << lane;
        }
        self.write_wide(d, mask, 1, uniform, &values);
        self.write_out(out, mask, carries, uniform);
        Ok(())
    }

    pub(super) fn compare(&self, env: &Env<'_>, op: &Comparison) -> Outcome<(u32, u32)> {
        let Comparison { compared, relation, ref a, ref b, extra, .. } = *op;
        let (x, y) = (&mut [0; LANES], &mut [0; LANES]);
        match compared {
            Compared::Integers { signed } => {
                let (a, b) = (self.fetch_in(env, &a[0], x)?, self.fetch_in(env, &b[0], y)?);
                let first = execute::compare_integers(a, b, relation, signed);
                Ok((first, !first))
            }
            Compared::Floats { flush: false } => {
                let (a, b) = (self.fetch_in(env, &a[0], x)?, self.fetch_in(env, &b[0], y)?);
                let first = execute::compare_floats(a, b, relation);
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
}
