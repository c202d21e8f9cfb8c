//! Instructions as data: opcodes, modifiers, operands, and their assembly text.
//!
//! Owns the vocabulary. `decode` turns bits into instructions; `execute` defines their results.

mod modifier;
mod opcode;
mod operand;
mod special;

use std::fmt;

pub use modifier::Modifier;
pub use opcode::Opcode;
pub use operand::{Address, Immediate, Modify, Operand, PT, Part, RZ, URZ, Width};
pub use special::SpecialRegister;

/// Predicate that guards an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Number of the predicate; [`PT`] is always true.
    pub index: u8,
    /// The instruction executes where the predicate is false.
    pub not: bool,
    /// The predicate is uniform.
    pub uniform: bool,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Guard predicate.
    pub guard: Guard,
    /// Opcode.
    pub opcode: Opcode,
    /// Modifiers in the order of the assembly text.
    pub modifiers: Vec<Modifier>,
    /// Operands. Their positions are fixed for each opcode; operands that the text omits are
    /// present.
    pub operands: Vec<Operand>,
    /// Bit mask of the operands that the text shows.
    pub shown: u32,
}

impl Instruction {
    /// Returns whether the instruction has a modifier.
    pub fn has(&self, modifier: Modifier) -> bool {
        self.modifiers.contains(&modifier)
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.not { "!" } else { "" };
        let uniform = if self.uniform { "U" } else { "" };
        if self.index == PT {
            write!(f, "@{not}{uniform}PT")
        } else {
            write!(f, "@{not}{uniform}P{}", self.index)
        }
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.guard.index != PT || self.guard.not {
            write!(f, "{} ", self.guard)?;
        }
        write!(f, "{}", self.opcode)?;
        for modifier in &self.modifiers {
            write!(f, ".{modifier}")?;
        }
        let mut separator = " ";
        for (position, operand) in self.operands.iter().enumerate() {
            if self.shown >> position & 1 == 0 {
                continue;
            }
            f.write_str(separator)?;
            write!(f, "{operand}")?;
            // The text has no comma between an indirect branch's register and its offset.
            let indirect = self.opcode.is_branch() && matches!(operand, Operand::Register { .. });
            separator = if indirect { " " } else { ", " };
        }
        Ok(())
    }
}
