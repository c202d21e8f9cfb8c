//! Compilation of a group's steps to instructions.

use std::collections::HashMap;

use super::instruction::{Action, Instruction, Location};
use super::source::Source;
use crate::Result;
use crate::cpu::width::Width;
use plan::{BufferId, Class, DType, Group, Op, Plan, Step, View};
use simd::tensor::{Conversion, Narrow};

/// Compiler of one group.
pub(super) struct Compiler<'a> {
    pub(super) plan: &'a Plan,
    pub(super) group: &'a Group,
    /// Address and width of a view's first element.
    pub(super) locate: &'a dyn Fn(&View) -> Result<(*mut u8, Width)>,
    pub(super) constants: Vec<(usize, u32)>,
    /// Values that the steps have written.
    pub(super) locations: HashMap<BufferId, Location>,
    /// Values that the steps have loaded.
    pub(super) loaded: Vec<(View, Location)>,
    pub(super) registers: usize,
}

impl Compiler<'_> {
    pub(super) fn compile_steps(&mut self, steps: &[Step]) -> Result<Vec<Instruction>> {
        let mut instructions = Vec::new();
        for step in steps {
            self.step(&step.op, &mut instructions)?;
        }
        Ok(instructions)
    }

    fn step(&mut self, op: &Op, to: &mut Vec<Instruction>) -> Result<()> {
        let Some(out) = plan::elementwise(op) else { unreachable!("the schedule has seen to it") };
        if let Op::Pad { axis, before, x, .. } = op {
            let (base, width) = (self.locate)(x)?;
            let action = Action::Load(Source::padded(base, width, x, &out.shape, *axis, *before)?);
            return self.push(action, vec![], out, to);
        }
        let action = self.action(op);
        let ints = matches!(action, Action::Ints(_));
        let mut reads = Vec::new();
        for view in op.reads() {
            reads.push(self.operand(view, ints, to)?);
        }
        // Common subexpressions are computed once.
        let same = |known: &&Instruction| {
            let one = match (&known.action, &action) {
                (Action::Unary(a), Action::Unary(b)) => a == b,
                (Action::Binary(a), Action::Binary(b)) => a == b,
                _ => false,
            };
            one && known.reads == reads && matches!(known.out, Location::Register(_))
        };
        let registers = reads.iter().all(|place| matches!(place, Location::Register(_)));
        if self.group.inner.contains(&out.buffer)
            && registers
            && let Some(known) = to.iter().find(same)
        {
            self.locations.insert(out.buffer, known.out);
            return Ok(());
        }
        self.push(action, reads, out, to)
    }

    fn action(&self, op: &Op) -> Action {
        match op {
            Op::Unary { op, .. } => Action::Unary(*op),
            Op::Binary { op, a, .. } if self.is_of_ints(a) => Action::Ints(*op),
            Op::Binary { op, .. } => Action::Binary(*op),
            Op::Where { .. } => Action::Select,
            Op::Cast { x, out } => match (self.is_of_ints(x), self.plan.buffer(out.buffer).dtype) {
                (true, DType::F32) => Action::Convert(Conversion::ToFloat),
                (false, DType::I32) => Action::Convert(Conversion::ToInt),
                (_, DType::F16) => Action::Convert(Conversion::ToHalf),
                (_, DType::BF16) => Action::Convert(Conversion::ToBrain),
                (_, DType::I8) => Action::Convert(Conversion::ToSigned),
                (_, DType::U8) => Action::Convert(Conversion::ToUnsigned),
                (_, DType::BOOL) => Action::Convert(Conversion::ToTruth),
                _ => Action::Move,
            },
            Op::Iota { .. } => Action::Iota,
            _ => Action::Move,
        }
    }

    fn is_of_ints(&self, view: &View) -> bool {
        self.plan.buffer(view.buffer).dtype.is_integer()
    }

    fn register(&mut self) -> Location {
        self.registers += 1;
        Location::Register(self.registers - 1)
    }

    /// Place of an operand's values. Integer operations read a constant's integer part.
    pub(super) fn operand(
        &mut self,
        view: &View,
        ints: bool,
        to: &mut Vec<Instruction>,
    ) -> Result<Location> {
        if let Some(place) = self.locations.get(&view.buffer) {
            return Ok(*place);
        }
        if let Class::Constant(value) = self.plan.buffer(view.buffer).class {
            let value = value.get();
            let bits = if ints { value as i32 as u32 } else { value.to_bits() };
            if let Some((register, _)) = self.constants.iter().find(|(_, known)| *known == bits) {
                return Ok(Location::Register(*register));
            }
            self.constants.push((self.registers, bits));
            return Ok(self.register());
        }
        if let Some((_, place)) = self.loaded.iter().find(|(known, _)| known == view) {
            return Ok(*place);
        }
        let (base, width) = (self.locate)(view)?;
        let source = Source::new(base, width, &view.shape, &view.strides)?;
        let place = if width == Width::Word && source.is_dense() {
            Location::At(base.cast())
        } else {
            let out = self.register();
            to.push(Instruction { action: Action::Load(source), reads: vec![], out });
            out
        };
        self.loaded.push((view.clone(), place));
        Ok(place)
    }

    /// Place of a result, and its final storage if that has fewer bytes.
    pub(super) fn result(&mut self, out: &View) -> Result<(Location, Option<(*mut u8, Narrow)>)> {
        let (mut place, mut stored) = (self.register(), None);
        if !self.group.inner.contains(&out.buffer) {
            match (self.locate)(out)? {
                (base, Width::Word) => place = Location::At(base.cast()),
                (base, Width::Less(narrow)) => stored = Some((base, narrow)),
            }
        }
        self.locations.insert(out.buffer, place);
        Ok((place, stored))
    }

    fn push(
        &mut self,
        action: Action,
        reads: Vec<Location>,
        out: &View,
        to: &mut Vec<Instruction>,
    ) -> Result<()> {
        let (out, stored) = self.result(out)?;
        to.push(Instruction { action, reads, out });
        if let Some((base, narrow)) = stored {
            to.push(Instruction { action: Action::Narrow(base, narrow), reads: vec![out], out });
        }
        Ok(())
    }
}
