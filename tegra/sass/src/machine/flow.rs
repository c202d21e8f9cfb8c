//! Control flow: branches, exits, convergence and block barriers.

use super::env::Env;
use super::lanes::Each;
use super::operands::bits;
use super::warp::{Group, Wait, Warp};
use super::{Outcome, Raised};
use crate::check::Strictness;
use crate::fault::FaultKind;
use crate::isa::RZ;
use crate::program::op::{Arrival, Condition, Op};

impl Warp {
    /// Executes a control-flow operation; returns false for others.
    pub(super) fn control<C: Strictness>(
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
                    self.wait(waiting, Wait::Convergence(barrier));
                }
            }
            Op::WarpSync { p, mask: ref lanes } => {
                let waiting = mask & self.holds(p);
                let wanted = self.fetch(env, lanes)?;
                if waiting == 0 {
                    self.active.pc += 1;
                }
                // Lanes with different masks wait separately.
                let (mut left, pc) = (waiting, self.active.pc);
                while left != 0 {
                    self.active.pc = pc;
                    let mask = wanted[Self::first_lane(left) as usize];
                    let same = left & bits(|lane| wanted[lane] == mask);
                    self.wait(same, Wait::Lanes(mask));
                    left &= !same;
                }
            }
            Op::Barrier { ref id, ref threads, arrival, p } => {
                if mask == 0 {
                    self.active.pc += 1;
                } else {
                    let id = self.fetch_one(env, id)?;
                    let threads = self.fetch_one(env, threads)?;
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

    pub(super) fn branch_indirect(
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

    /// Arrives at a block barrier, or waits until the other lanes of the warp do.
    pub(super) fn arrive(
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
