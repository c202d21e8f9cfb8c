//! Sources and results of operations: registers, constants, immediates.

use std::borrow::Cow;

use super::env::Env;
use super::warp::Warp;
use super::{Outcome, Raised};
use crate::execute::{LANES, Lanes};
use crate::fault::FaultKind;
use crate::isa::RZ;
use crate::program::op::{Origin, Source};

impl Env<'_> {
    /// Reads a word of a constant bank.
    #[inline(always)]
    pub(super) fn constant(&self, bank: u8, offset: i64, bytes: u8) -> Outcome<u32> {
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

/// Returns the lanes for which `f` is true.
#[inline(always)]
pub(super) fn bits(f: impl Fn(usize) -> bool) -> u32 {
    let mut mask = 0;
    for lane in 0..LANES {
        mask |= u32::from(f(lane)) << lane;
    }
    mask
}

impl Warp {
    /// Returns the lanes of a source: the register itself, or a modified copy in `space`.
    #[inline(always)]
    pub(super) fn fetch_in<'s>(
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

    pub(super) fn fetch(&self, env: &Env<'_>, source: &Source) -> Outcome<Lanes> {
        let mut space = [0; LANES];
        self.fetch_in(env, source, &mut space).copied()
    }

    /// Reads a source of a uniform operation; for a register, the value of the first active lane.
    pub(super) fn fetch_one(&self, env: &Env<'_>, source: &Source) -> Outcome<u32> {
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

    pub(super) fn fetch_wide(
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

    /// Writes the words of a result.
    pub(super) fn write_wide(
        &mut self,
        d: u8,
        mask: u32,
        words: u8,
        uniform: bool,
        values: &[u64; LANES],
    ) {
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

    pub(super) fn write_out(&mut self, predicate: u8, mask: u32, values: u32, uniform: bool) {
        if uniform {
            self.write_uniform_predicate(predicate, values & mask != 0);
        } else {
            self.write_predicate(predicate, mask, values);
        }
    }

    /// Returns consecutive registers; `RZ` reads as zeros.
    pub(super) fn registers_at(&self, first: u8, count: u8) -> Cow<'_, [Lanes]> {
        let (at, count) = (usize::from(first), usize::from(count));
        match self.registers.get(at..at + count) {
            _ if first == RZ => vec![[0; LANES]; count].into(),
            Some(found) => found.into(),
            None => (0..count).map(|step| self.registers[(at + step) % 256]).collect(),
        }
    }
}
