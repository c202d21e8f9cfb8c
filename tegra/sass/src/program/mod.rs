//! Pre-decoded programs.
//!
//! A [`Program`] is decoded once and run many times. Decoding resolves all modifiers, and records
//! for the checks which registers each instruction reads and writes.

mod effects;
mod lower;
mod lower_flow;
pub(crate) mod op;
mod operands;

use std::ops::Range;

use crate::count::Class;
use crate::decode::{DecodeError, INSTRUCTION_BYTES, decode};
use crate::isa::{Guard, Instruction, Opcode, PT, RZ};
pub(crate) use effects::{Effects, UNIFORM};
use op::{Condition, Lane, Op, Origin, Source};
use operands::View;

/// Result of a spoiled operation: NaN, also as a pair of halves.
pub const WRONG: u32 = 0x7fff_ffff;

/// An instruction in executable form.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) guard: Condition,
    pub(crate) op: Op,
    pub(crate) class: Class,
    /// Source registers, if all sources are unmodified registers and no predicate is involved.
    registers: Option<[u8; 3]>,
    /// True if register results are overwritten with [`WRONG`].
    pub(crate) spoiled: bool,
}

impl Step {
    /// Returns the fast form of an instruction: an operation on plain registers, with result,
    /// sources and condition.
    #[inline(always)]
    pub(crate) fn plain(&self) -> Option<(&Lane, u8, [u8; 3], Condition)> {
        match &self.op {
            Op::Alu { lane, d, p, .. } => Some((lane, *d, self.registers?, *p)),
            _ => None,
        }
    }
}

/// Returns the register of an unmodified source, or `RZ`.
fn plain(source: &Source) -> Option<u8> {
    match source.origin {
        Origin::Register(index) if source.is_plain() => Some(index),
        Origin::Immediate(0) if source.is_plain() => Some(RZ),
        _ => None,
    }
}

/// Machine code, decoded.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) steps: Vec<Step>,
    pub(crate) effects: Vec<Effects>,
    words: Vec<u128>,
    decoded: Vec<Result<Instruction, DecodeError>>,
    registers: u32,
    constants: Vec<(u8, Range<u32>)>,
}

impl Program {
    /// Decodes code. Unknown instructions are kept and fault when executed, as on hardware.
    /// [`DecodeError::Length`] if the code is not a whole number of instructions.
    pub fn new(code: &[u8]) -> Result<Self, DecodeError> {
        let (chunks, rest) = code.as_chunks::<INSTRUCTION_BYTES>();
        if !rest.is_empty() {
            return Err(DecodeError::Length { bytes: code.len() });
        }
        let words: Vec<u128> = chunks.iter().map(|chunk| u128::from_le_bytes(*chunk)).collect();
        let decoded: Vec<_> = words
            .iter()
            .enumerate()
            .map(|(index, &word)| decode(word, index * INSTRUCTION_BYTES))
            .collect();
        let steps: Vec<Step> = decoded
            .iter()
            .enumerate()
            .map(|(index, result)| step(result.as_ref().ok(), index))
            .collect();
        let effects: Vec<Effects> = steps.iter().map(Effects::of).collect();
        let registers = effects.iter().map(Effects::registers).max().unwrap_or(0);
        let mut constants: Vec<_> = effects.iter().flat_map(|it| it.constants.clone()).collect();
        constants.sort_by_key(|(bank, range)| (*bank, range.start, range.end));
        constants.dedup();
        Ok(Self { steps, effects, words, decoded, registers, constants })
    }

    /// Makes an opcode write [`WRONG`] to every result register, to test programs that must notice.
    pub fn spoil(&mut self, opcode: Opcode) {
        for (step, decoded) in self.steps.iter_mut().zip(&self.decoded) {
            if decoded.as_ref().is_ok_and(|decoded| decoded.opcode == opcode) {
                (step.spoiled, step.registers) = (true, None);
            }
        }
    }

    /// Returns the instructions, 16 bytes apart; unknown ones are errors.
    pub fn instructions(&self) -> &[Result<Instruction, DecodeError>] {
        &self.decoded
    }

    /// Returns the offsets of instructions that are not decoded or not modelled.
    pub fn unknown(&self) -> Vec<usize> {
        let illegal = |step: &Step| step.op == Op::Illegal;
        let steps = self.steps.iter().enumerate();
        steps
            .filter(|(_, step)| illegal(step))
            .map(|(index, _)| index * INSTRUCTION_BYTES)
            .collect()
    }

    /// Number of registers used: the highest plus one.
    pub fn registers(&self) -> u32 {
        self.registers
    }

    /// Ranges of constant banks that the code can read; the whole bank if it is indexed.
    pub fn constants(&self) -> &[(u8, Range<u32>)] {
        &self.constants
    }

    /// Bytes of code.
    pub fn bytes(&self) -> usize {
        self.words.len() * INSTRUCTION_BYTES
    }

    /// Returns the bits of an instruction.
    pub(crate) fn word(&self, index: u32) -> u128 {
        self.words.get(index as usize).copied().unwrap_or(0)
    }
}

fn step(instruction: Option<&Instruction>, index: usize) -> Step {
    let always = Condition { index: PT, not: false, uniform: false };
    let Some(instruction) = instruction else {
        let (op, class) = (Op::Illegal, Class::Control);
        return Step { guard: always, op, class, registers: None, spoiled: false };
    };
    let Guard { index: guard, not, uniform } = instruction.guard;
    let op = lower::lower(&View(instruction, index * INSTRUCTION_BYTES)).unwrap_or(Op::Illegal);
    let registers = match &op {
        // Writes to `RZ` are dropped.
        Op::Alu { d, a, b, c, p, .. } if *d != RZ && *p == always && guard == PT => {
            (|| Some([plain(a)?, plain(b)?, plain(c)?]))()
        }
        _ => None,
    };
    Step {
        guard: Condition { index: guard, not, uniform },
        op,
        class: Class::of(instruction.opcode),
        registers,
        spoiled: false,
    }
}
