//! Executes a decoded A64 load or store on the processor's state and a [`Bus`].

use super::super::bus::{Bus, read_number, sign_extend, truncate, write_number};
use super::decode::Instruction;

/// The registers of a stopped thread.
pub(crate) trait Cpu {
    /// General register `number`, 0 to 30.
    fn general(&self, number: u8) -> u64;
    /// Sets general register `number`, 0 to 30.
    fn set_general(&mut self, number: u8, value: u64);
    /// The stack pointer.
    fn stack(&self) -> u64;
    /// Sets the stack pointer.
    fn set_stack(&mut self, value: u64);
    /// Vector register `number`.
    fn vector(&self, number: u8) -> [u8; 16];
    /// Sets vector register `number`.
    fn set_vector(&mut self, number: u8, value: &[u8; 16]);
    /// Advances the instruction pointer.
    fn advance(&mut self);
}

/// Number 31: the zero register as data, the stack pointer as a base.
const ZERO_OR_STACK: u8 = 31;

/// Executes `instruction` with its memory operand at `offset`, and advances.
pub(crate) fn execute(
    instruction: &Instruction,
    cpu: &mut impl Cpu,
    bus: &mut impl Bus,
    offset: usize,
) {
    one(instruction, instruction.first, cpu, bus, offset);
    if let Some(second) = instruction.second {
        one(instruction, second, cpu, bus, offset + usize::from(instruction.bytes));
    }
    if let Some(change) = instruction.write_back {
        if change.base == ZERO_OR_STACK {
            cpu.set_stack(cpu.stack().wrapping_add_signed(change.step));
        } else {
            let base = cpu.general(change.base).wrapping_add_signed(change.step);
            cpu.set_general(change.base, base);
        }
    }
    cpu.advance();
}

fn one(
    instruction: &Instruction,
    register: u8,
    cpu: &mut impl Cpu,
    bus: &mut impl Bus,
    offset: usize,
) {
    let bytes = instruction.bytes;
    match (instruction.vector, instruction.load) {
        (true, true) => {
            let mut value = [0; 16];
            bus.read(offset, &mut value[..usize::from(bytes)]);
            cpu.set_vector(register, &value);
        }
        (true, false) => bus.write(offset, &cpu.vector(register)[..usize::from(bytes)]),
        (false, true) => {
            let value = read_number(bus, offset, bytes);
            let value =
                instruction.sign_to.map_or(value, |to| truncate(sign_extend(value, bytes), to));
            if register != ZERO_OR_STACK {
                cpu.set_general(register, value);
            }
        }
        (false, false) => {
            let value = if register == ZERO_OR_STACK { 0 } else { cpu.general(register) };
            write_number(bus, offset, bytes, value);
        }
    }
}
