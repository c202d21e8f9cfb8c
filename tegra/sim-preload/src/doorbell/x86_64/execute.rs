//! Executes a decoded x86-64 instruction on the processor's state and a [`Bus`].

use super::super::bus::{Bus, read_number, sign_extend, truncate, write_number};
use super::decode::{Arithmetic, Instruction, Mask, Operation, Register, Side, Source};

/// The registers of a stopped thread.
pub(crate) trait Cpu {
    /// General register `number` (0 is `rax`, 15 is `r15`).
    fn general(&self, number: u8) -> u64;
    /// Sets general register `number`.
    fn set_general(&mut self, number: u8, value: u64);
    /// The flags register.
    fn flags(&self) -> u64;
    /// Sets the flags register.
    fn set_flags(&mut self, flags: u64);
    /// Vector register `number`, `zmm` wide; parts that the processor lacks read zero.
    fn vector(&self, number: u8) -> [u8; 64];
    /// Sets vector register `number`.
    fn set_vector(&mut self, number: u8, value: &[u8; 64]);
    /// Mask register `number`.
    fn mask(&self, number: u8) -> u64;
    /// The faulting address.
    fn fault(&self) -> u64;
    /// Reads the thread's own memory.
    fn copy_from(&self, address: u64, into: &mut [u8]);
    /// Writes the thread's own memory.
    fn copy_to(&mut self, address: u64, bytes: &[u8]);
    /// Advances the instruction pointer.
    fn advance(&mut self, bytes: u8);
}

/// Executes `instruction` with its memory operand at `offset`, and advances.
pub(crate) fn execute(
    instruction: &Instruction,
    cpu: &mut impl Cpu,
    bus: &mut impl Bus,
    offset: usize,
) {
    match instruction.operation {
        Operation::Store { from, bytes } => {
            write_number(bus, offset, bytes, source(cpu, from, bytes));
        }
        Operation::Load { to, bytes, to_bytes, signed } => {
            let value = read_number(bus, offset, bytes);
            let value = if signed { sign_extend(value, bytes) } else { value };
            set_register(cpu, to, to_bytes, value);
        }
        Operation::Exchange { with, bytes } => {
            let old = read_number(bus, offset, bytes);
            write_number(bus, offset, bytes, register(cpu, with, bytes));
            set_register(cpu, with, bytes, old);
        }
        Operation::Arithmetic { kind, left, with, bytes } => {
            let memory = read_number(bus, offset, bytes);
            let other = source(cpu, with, bytes);
            let (a, b) = if left == Side::Memory { (memory, other) } else { (other, memory) };
            let (result, flags) = calculate(kind, a, b, bytes);
            cpu.set_flags(cpu.flags() & !ARITHMETIC_FLAGS | flags);
            if let (Side::Register, Source::Register(to)) = (left, with)
                && kind != Arithmetic::Compare
            {
                set_register(cpu, to, bytes, result);
            }
        }
        Operation::MoveString { bytes, repeats } => {
            let mut value = [0; 8];
            let value = &mut value[..usize::from(bytes)];
            let (from, to) = (cpu.general(RSI), cpu.general(RDI));
            if cpu.fault() == from {
                bus.read(offset, value);
                cpu.copy_to(to, value);
            } else {
                cpu.copy_from(from, value);
                bus.write(offset, value);
            }
            cpu.set_general(RSI, step(cpu, from, bytes));
            cpu.set_general(RDI, step(cpu, to, bytes));
            if repeats && count_down(cpu) {
                return;
            }
        }
        Operation::StoreString { bytes, repeats } => {
            write_number(bus, offset, bytes, cpu.general(RAX));
            cpu.set_general(RDI, step(cpu, cpu.general(RDI), bytes));
            if repeats && count_down(cpu) {
                return;
            }
        }
        Operation::VectorStore { register, at, bytes, mask } => {
            let value = cpu.vector(register);
            let value = &value[usize::from(at)..usize::from(at + bytes)];
            match mask {
                None => bus.write(offset, value),
                Some(mask) => {
                    for place in enabled(mask, cpu.mask(mask.register), value.len(), offset) {
                        bus.write(place.offset, &value[place.start..place.end]);
                    }
                }
            }
        }
        Operation::VectorLoad { register, at, bytes, zero_to, mask } => {
            let (at, end) = (usize::from(at), usize::from(at + bytes));
            let mut value = cpu.vector(register);
            match mask {
                None => bus.read(offset, &mut value[at..end]),
                Some(mask) => {
                    if mask.zeroes {
                        value[at..end].fill(0);
                    }
                    for place in enabled(mask, cpu.mask(mask.register), end - at, offset) {
                        bus.read(place.offset, &mut value[at..end][place.start..place.end]);
                    }
                }
            }
            value[end..usize::from(zero_to).max(end)].fill(0);
            cpu.set_vector(register, &value);
        }
    }
    cpu.advance(instruction.length);
}

const RAX: u8 = 0;
const RCX: u8 = 1;
const RSI: u8 = 6;
const RDI: u8 = 7;

/// The next pointer of a string operation.
fn step(cpu: &impl Cpu, pointer: u64, bytes: u8) -> u64 {
    const DIRECTION: u64 = 1 << 10;
    if cpu.flags() & DIRECTION == 0 {
        pointer.wrapping_add(u64::from(bytes))
    } else {
        pointer.wrapping_sub(u64::from(bytes))
    }
}

/// Decrements the repeat count; `true` while repetitions are left, which repeat the same
/// instruction.
fn count_down(cpu: &mut impl Cpu) -> bool {
    let left = cpu.general(RCX).wrapping_sub(1);
    cpu.set_general(RCX, left);
    left != 0
}

/// A run of enabled elements: bytes `start..end` of the operand, at `offset` of the page.
struct Run {
    start: usize,
    end: usize,
    offset: usize,
}

/// The runs of enabled elements. Disabled ones do not fault: `offset`, from the fault, is that of
/// the first enabled one.
fn enabled(mask: Mask, bits: u64, bytes: usize, offset: usize) -> impl Iterator<Item = Run> {
    let element = usize::from(mask.element);
    let count = bytes / element;
    let is_enabled = move |at: &usize| *at < count && bits >> at & 1 != 0;
    let first = (0..count).find(is_enabled).unwrap_or(0);
    let mut from = first;
    std::iter::from_fn(move || {
        let start = (from..count).find(is_enabled)?;
        from = (start..=count).find(|at| !is_enabled(at))?;
        Some(Run {
            start: start * element,
            end: from * element,
            offset: offset + (start - first) * element,
        })
    })
}

fn register(cpu: &impl Cpu, register: Register, bytes: u8) -> u64 {
    let value = cpu.general(register.number);
    truncate(if register.high_byte { value >> 8 } else { value }, bytes)
}

fn source(cpu: &impl Cpu, from: Source, bytes: u8) -> u64 {
    match from {
        Source::Register(from) => register(cpu, from, bytes),
        Source::Immediate(value) => truncate(value, bytes),
    }
}

/// A write of four bytes clears the upper half; narrower ones leave the rest unchanged.
fn set_register(cpu: &mut impl Cpu, to: Register, bytes: u8, value: u64) {
    let value = truncate(value, bytes);
    let old = cpu.general(to.number);
    let merged = match (bytes, to.high_byte) {
        (1, true) => old & !0xff00 | value << 8,
        (1, false) => old & !0xff | value,
        (2, _) => old & !0xffff | value,
        _ => value,
    };
    cpu.set_general(to.number, merged);
}

const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ADJUST: u64 = 1 << 4;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;
const ARITHMETIC_FLAGS: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW;

/// Computes result and flags.
fn calculate(kind: Arithmetic, a: u64, b: u64, bytes: u8) -> (u64, u64) {
    let sign = 1 << (8 * u32::from(bytes) - 1);
    let flag = |set: bool, flag: u64| if set { flag } else { 0 };
    let (result, mut flags) = match kind {
        Arithmetic::Add => {
            let sum = truncate(a.wrapping_add(b), bytes);
            (sum, flag(sum < a, CARRY) | flag((a ^ sum) & (b ^ sum) & sign != 0, OVERFLOW))
        }
        Arithmetic::Sub | Arithmetic::Compare => {
            let difference = truncate(a.wrapping_sub(b), bytes);
            let overflow = (a ^ b) & (a ^ difference) & sign != 0;
            (difference, flag(a < b, CARRY) | flag(overflow, OVERFLOW))
        }
        Arithmetic::And | Arithmetic::Test => (a & b, 0),
        Arithmetic::Or => (a | b, 0),
        Arithmetic::Xor => (a ^ b, 0),
    };
    if matches!(kind, Arithmetic::Add | Arithmetic::Sub | Arithmetic::Compare) {
        flags |= (a ^ b ^ result) & ADJUST;
    }
    flags |= flag(result == 0, ZERO) | flag(result & sign != 0, SIGN);
    flags |= flag((result as u8).count_ones().is_multiple_of(2), PARITY);
    (result, flags)
}
