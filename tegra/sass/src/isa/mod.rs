//! Instructions as data: what they are called, what they name, and how they are written.
//!
//! Owns the vocabulary. How bits become instructions is `decode`'s; what instructions do,
//! `execute`'s.

mod modifier;
mod opcode;
mod operand;
mod special;

use std::fmt;

pub use modifier::Modifier;
pub use opcode::Opcode;
pub use operand::{Address, Immediate, Modify, Operand, PT, Part, RZ, URZ, Width};
pub use special::SpecialRegister;

/// The predicate that decides for each lane whether an instruction acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The predicate, [`PT`] for always.
    pub index: u8,
    /// It acts where the predicate is false.
    pub not: bool,
    /// The predicate is the warp's.
    pub uniform: bool,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Whom it acts for.
    pub guard: Guard,
    /// What it is.
    pub opcode: Opcode,
    /// How it does it, in the order in which they are written.
    pub modifiers: Vec<Modifier>,
    /// What it names. The positions of an opcode's operands are fixed: those that the text leaves
    /// out are present.
    pub operands: Vec<Operand>,
    /// Which operands the text shows: bit by position.
    pub shown: u32,
}

impl Instruction {
    /// Whether it carries a modifier.
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
            // What is added to a register's code address follows without a comma.
            let indirect = self.opcode.is_branch() && matches!(operand, Operand::Register { .. });
            separator = if indirect { " " } else { ", " };
        }
        Ok(())
    }
}
