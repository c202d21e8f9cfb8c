//! Decoder: bits to instructions.
//!
//! One table row describes an operation: the low nine bits of its encoding, the forms of its
//! flexible operand, and the fields of its modifiers and operands in the order of the assembly
//! text. A row also fixes every other bit, so an instruction that is not fully understood is not
//! decoded. Sources are the vendor's disassembler and public descriptions of the encoding;
//! the vectors in `tests/data` compare them with the disassembler.

mod field;
mod table;

use crate::isa::{Guard, Immediate, Instruction, Modifier, Opcode, Operand, RZ};
use field::{Bits, Encoding, Show};

pub use field::Illegal;

/// Bytes of an instruction.
pub const INSTRUCTION_BYTES: usize = 16;

/// An instruction that cannot be decoded: the hardware's illegal-instruction exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The code is not a whole number of instructions.
    #[error("code of {bytes} bytes is no multiple of 16")]
    Length {
        /// Length of the code.
        bytes: usize,
    },
    /// No operation has this encoding.
    #[error("illegal instruction at {offset:#x}: {bits:#034x}{}", Reason(*.reason))]
    Illegal {
        /// Byte offset in the code.
        offset: usize,
        /// The instruction as a little-endian number.
        bits: u128,
        /// Part that cannot be decoded.
        reason: Illegal,
    },
}

struct Reason(Illegal);

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Illegal::Operation => f.write_str(" is no known operation"),
            Illegal::Field(bit) => write!(f, " has no known meaning in the field at bit {bit}"),
            Illegal::Rest(rest) => write!(f, " has unexpected bits {rest:#x}"),
        }
    }
}

/// Decodes the instruction at a byte offset of the code.
///
/// # Errors
///
/// [`DecodeError::Illegal`] if any bit is not understood.
pub fn decode(bits: u128, offset: usize) -> Result<Instruction, DecodeError> {
    let illegal = |reason| DecodeError::Illegal { offset, bits, reason };
    let word = Bits::new(bits);
    let (base, form) = (word.get(0, 9) as u16, word.get(9, 3) as u8);
    let encoding = table::find(base, form, bits).ok_or_else(|| illegal(Illegal::Operation))?;
    instruction(encoding, &word, offset, form).map_err(illegal)
}

fn instruction(
    encoding: &Encoding,
    word: &Bits,
    offset: usize,
    form: u8,
) -> Result<Instruction, Illegal> {
    word.claim(0, 12);
    // Scheduling hints and register reuse flags.
    word.claim(105, 23);
    if let Some((low, width, _)) = encoding.when {
        word.claim(low, width);
    }
    let guard = Guard {
        index: word.get(12, 3) as u8,
        not: word.get(15, 1) != 0,
        uniform: encoding.uniform,
    };
    let mut modifiers = Vec::new();
    for choice in encoding.modifiers {
        match choice.read(word) {
            Modifier::Invalid => return Err(Illegal::Field(choice.first.0)),
            Modifier::Unwritten => {}
            modifier => modifiers.push(modifier),
        }
    }
    let mut operands = Vec::with_capacity(encoding.operands.len());
    let mut shown = 0;
    for (position, slot) in encoding.operands.iter().enumerate() {
        let operand = slot.what.read(word, encoding, form, offset, &modifiers)?;
        let show = match slot.show {
            Show::Always => true,
            Show::Never => false,
            Show::UnlessTrue => !field::is_true(&operand),
            Show::UnlessTrueWith(modifier) => {
                !field::is_true(&operand) && modifiers.contains(&modifier)
            }
            Show::UnlessZero => !field::is_zero(&operand),
            Show::UnlessBits(bits) => operand != Operand::Immediate(Immediate::Bits(bits)),
            Show::With(modifier) => modifiers.contains(&modifier),
            Show::Without(modifier) => !modifiers.contains(&modifier),
        };
        shown |= u32::from(show) << position;
        operands.push(operand);
    }
    for &(low, width, value) in encoding.fixed {
        if word.get(low, width) != value {
            return Err(Illegal::Field(low));
        }
    }
    let rest = word.unclaimed();
    if rest != 0 {
        return Err(Illegal::Rest(rest));
    }
    let mut instruction =
        Instruction { guard, opcode: encoding.opcode, modifiers, operands, shown };
    name_multiplication(&mut instruction, form);
    Ok(instruction)
}

/// Adds the modifier of a multiply-add that only moves, shifts or adds, as the disassembler does.
fn name_multiplication(instruction: &mut Instruction, form: u8) {
    if instruction.opcode != Opcode::Imad
        || instruction.has(Modifier::X)
        || instruction.has(Modifier::Wide)
        || instruction.has(Modifier::Hi)
    {
        return;
    }
    let zero = |operand: &Operand| matches!(operand, Operand::Register { index: RZ, .. });
    let [_, a, b, c, ..] = instruction.operands.as_slice() else { return };
    let factor = match b {
        Operand::Immediate(Immediate::Signed(value)) => Some(*value),
        _ => None,
    };
    let nothing = zero(a) || zero(b) || factor == Some(0);
    let name = if nothing && form <= 5 || factor == Some(1) && zero(c) {
        Modifier::Mov
    } else if factor == Some(1) {
        Modifier::Iadd
    } else if factor
        .is_some_and(|factor| factor > 0 && factor.count_ones() == 1 && factor != 1 << 16)
        && zero(c)
    {
        Modifier::Shl
    } else {
        return;
    };
    instruction.modifiers.insert(0, name);
}
