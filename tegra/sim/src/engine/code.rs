//! Finds the end of programs, and caches decoded ones.
//!
//! A QMD states where code begins but not its length. Code ends after the first unconditional exit
//! that no earlier branch jumps beyond. Code in memory may change between launches, so a cached
//! program is reused only while its bytes are unchanged.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;

use rustc_hash::FxHasher;
use sass::decode::{INSTRUCTION_BYTES, decode};
use sass::isa::{Guard, Immediate, Instruction, Opcode, Operand, PT};
use sass::program::Program;

use super::space::mapped;
use crate::gpu::{Access, GpuMemory, MmuFault, MmuFaultKind, PAGE};

/// Largest size of a program in bytes.
const LONGEST: usize = 16 << 20;
/// Largest number of cached programs.
const KEPT: usize = 1024;

/// A decoded program.
#[derive(Debug)]
pub(super) struct Code {
    bytes: Vec<u8>,
    /// Hash of the bytes.
    pub(super) hash: u64,
    pub(super) program: Program,
    /// Number of barriers used: the highest plus one.
    pub(super) barriers: u32,
}

/// Cached programs by address.
#[derive(Debug, Default)]
pub(super) struct Programs(HashMap<u64, Arc<Code>>);

impl Programs {
    /// Returns the program at an address as it is in memory now, with the results of opcode `wrong`
    /// spoiled, if given.
    pub(super) fn at(
        &mut self,
        memory: &dyn GpuMemory,
        address: u64,
        wrong: Option<Opcode>,
    ) -> Result<Arc<Code>, MmuFault> {
        if let Some(code) = self.0.get(&address)
            && mapped(memory, address, code.bytes.len() as u64) == code.bytes
        {
            return Ok(Arc::clone(code));
        }
        let bytes = read(memory, address)?;
        // `read` returns whole instructions, so decoding cannot fail.
        let kind = MmuFaultKind::InvalidPte;
        let unreadable = |_| MmuFault { va: address, access: Access::Read, kind };
        let mut program = Program::new(&bytes).map_err(unreadable)?;
        wrong.inspect(|wrong| program.spoil(*wrong));
        let barriers = program.instructions().iter().flatten().map(barriers).max().unwrap_or(0);
        let mut hasher = FxHasher::default();
        hasher.write(&bytes);
        let code = Arc::new(Code { hash: hasher.finish(), bytes, program, barriers });
        if self.0.len() >= KEPT {
            self.0.clear();
        }
        self.0.insert(address, Arc::clone(&code));
        Ok(code)
    }
}

/// Reads the bytes of a program, in whole instructions.
pub(super) fn read(memory: &dyn GpuMemory, address: u64) -> Result<Vec<u8>, MmuFault> {
    memory.resolve(address, INSTRUCTION_BYTES as u64, Access::Read)?;
    let mut bytes = Vec::new();
    let mut extent = Extent::default();
    while bytes.len() < LONGEST {
        let at = address + bytes.len() as u64;
        let more = mapped(memory, at, PAGE - at % PAGE);
        if more.is_empty() {
            break;
        }
        bytes.extend(more);
        if let Some(end) = extent.look(&bytes) {
            bytes.truncate(end);
            break;
        }
    }
    bytes.truncate(bytes.len() / INSTRUCTION_BYTES * INSTRUCTION_BYTES);
    Ok(bytes)
}

/// State of the search for the end of a program.
#[derive(Debug, Default)]
struct Extent {
    at: usize,
    /// Furthest branch target.
    furthest: usize,
    /// True after an indirect branch: only a branch to itself ends such a program.
    indirect: bool,
}

impl Extent {
    /// Scans new bytes; returns the end of the program if it is among them.
    fn look(&mut self, bytes: &[u8]) -> Option<usize> {
        let (words, _) = bytes.as_chunks::<INSTRUCTION_BYTES>();
        for word in &words[self.at / INSTRUCTION_BYTES..] {
            let at = self.at;
            self.at += INSTRUCTION_BYTES;
            let Ok(instruction) = decode(u128::from_le_bytes(*word), at) else {
                if at >= self.furthest && !self.indirect {
                    return Some(self.at);
                }
                continue;
            };
            let targets = instruction.operands.iter().filter_map(|operand| match operand {
                Operand::Target(target) => usize::try_from(*target).ok(),
                _ => None,
            });
            self.furthest = targets.fold(self.furthest, usize::max);
            self.indirect |= matches!(instruction.opcode, Opcode::Brx | Opcode::Jmx);
            let ends = leaves(&instruction) && at >= self.furthest;
            let itself = instruction.opcode == Opcode::Bra
                && instruction.operands.contains(&Operand::Target(at as i64));
            if ends && (itself || !self.indirect) {
                return Some(self.at);
            }
        }
        None
    }
}

/// Returns whether no lane continues after the instruction.
fn leaves(instruction: &Instruction) -> bool {
    let always = Guard { index: PT, not: false, uniform: false };
    let ends = matches!(
        instruction.opcode,
        Opcode::Exit | Opcode::Bra | Opcode::Brx | Opcode::Jmp | Opcode::Jmx | Opcode::Ret
    );
    // Branches may have a second condition.
    ends && Guard { uniform: false, ..instruction.guard } == always
        && instruction.operands.iter().all(|operand| match operand {
            Operand::Predicate { index, not } | Operand::UniformPredicate { index, not } => {
                *index == PT && !not
            }
            _ => true,
        })
}

/// Number of barriers that an instruction requires: its barrier number plus one.
fn barriers(instruction: &Instruction) -> u32 {
    if instruction.opcode != Opcode::Bar {
        return 0;
    }
    match instruction.operands.first() {
        Some(Operand::Immediate(Immediate::Bits(number))) => number.saturating_add(1),
        Some(Operand::Immediate(Immediate::Signed(number))) => {
            u32::try_from(*number).unwrap_or(0).saturating_add(1)
        }
        _ => 0,
    }
}
