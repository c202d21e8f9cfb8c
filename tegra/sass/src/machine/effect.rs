//! Operations on memory, constants, convergence barriers and machine state.

use super::Outcome;
use super::env::Env;
use super::lanes::Each;
use super::operands::bits;
use super::warp::Warp;
use crate::check::Strictness;
use crate::execute::{LANES, Lanes};
use crate::isa::{RZ, SpecialRegister};
use crate::program::op::{Op, Size};

impl Warp {
    /// Executes an operation on memory, constants or machine state.
    pub(super) fn effect<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        op: &Op,
        mask: u32,
    ) -> Outcome<()> {
        match *op {
            Op::LoadConstant { d, bank, register, offset, size } => {
                let place = |index: u32| i64::from(index as i32) + i64::from(offset);
                let index = self.registers[usize::from(register)];
                let first = index[Self::first_lane(mask) as usize];
                if Each(mask).any(|lane| index[lane] != first) {
                    for lane in Each(mask) {
                        self.load_constant_lane(env, d, bank, place(index[lane]), size, lane)?;
                    }
                    return Ok(());
                }
                for word in 0..size.bytes.div_ceil(4) {
                    let at = place(first) + 4 * i64::from(word);
                    let value = env.constant(bank, at, size.bytes.min(4))?;
                    self.write(d.wrapping_add(word), mask, &[widen(value, size); LANES]);
                }
            }
            Op::LoadUniform { d, bank, index, offset, size } => {
                let index = index.map_or(0, |index| self.uniform[usize::from(index & 63)] as i32);
                let offset = i64::from(index) + i64::from(offset);
                let value = env.constant(bank, offset, size.bytes.min(4))?;
                self.write_uniform(d, widen(value, size));
                if size.bytes == 8 {
                    self.write_uniform(d + 1, env.constant(bank, offset + 4, 4)?);
                }
            }
            Op::Atomic(ref op) => self.atomic::<C>(env, mask, op)?,
            Op::CopyAsync { ref to, ref from, bytes, p } => {
                let full = self.holds(p);
                self.copy_async::<C>(env, mask, full, to, from, bytes)?;
            }
            Op::CacheLine { ref pointer } => {
                let addresses = self.addresses(pointer);
                Each(mask).try_for_each(|lane| env.readable(addresses[lane], lane))?;
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
            _ => return self.convergence(env, op, mask),
        }
        Ok(())
    }

    /// Executes an operation on convergence barriers, or reads the result of a barrier reduction.
    #[inline(always)]
    fn convergence(&mut self, env: &Env<'_>, op: &Op, mask: u32) -> Outcome<()> {
        match *op {
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

    pub(super) fn load_constant_lane(
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

    /// Returns the value of a special register for each lane, and its upper word if it has one.
    pub(super) fn special(&self, env: &Env<'_>, special: SpecialRegister) -> (Lanes, u32) {
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
            S::ClockHigh => same((clock >> 32) as u32),
            S::GlobalTimerHigh => same((time >> 32) as u32),
            S::GlobalTimer => ([time as u32; LANES], (time >> 32) as u32),
            S::Zero => same(0),
        }
    }
}

/// Extends a narrow constant to a register.
fn widen(value: u32, size: Size) -> u32 {
    match (size.bytes, size.signed) {
        (1, true) => value as u8 as i8 as u32,
        (2, true) => value as u16 as i16 as u32,
        _ => value,
    }
}
