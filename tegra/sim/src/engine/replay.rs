//! A fault bundle, run again.

use std::fmt;
use std::io;

use sass::program::Program;

use super::code;
use super::{MachineCode, Stopped};
use crate::bundle::{Bundle, Header};
use crate::config::Checks;
use crate::gpu::{
    Access, GpuMemory, Launch, MapAccess, MapFlags, Mmu, MmuFault, MmuFaultKind, Piece, SmFault,
};
use crate::memory::DmaBuf;

/// Most mappings of a bundle, and most bytes of all of them.
const MAPPINGS: usize = 1 << 16;
const MAPPED: u64 = 1 << 40;
/// Instructions shown before and behind the one that failed.
const AROUND: usize = 6;
/// Registers in a line.
const LINE: usize = 8;

/// Why a bundle cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// More mappings than an address space has.
    #[error(
        "the bundle has {count} mappings of {bytes:#x} bytes, limits {MAPPINGS} and {MAPPED:#x}"
    )]
    Mappings {
        count: usize,
        /// Bytes of all of them.
        bytes: u64,
    },
    /// A mapping that there cannot be.
    #[error("the bundle's mapping at {va:#x}: {why}")]
    Mapping { va: u64, why: String },
    /// No memory for a mapping.
    #[error("no memory for the bundle's mapping at {va:#x}: {source}")]
    Memory { va: u64, source: io::Error },
    /// Memory that is not mapped.
    #[error("the bundle's memory at {va:#x} is not mapped")]
    Contents { va: u64 },
    /// The QMD is not there.
    #[error("the bundle has {words} words of a QMD, which has 64")]
    Qmd { words: usize },
}

/// What came of running a bundle.
#[derive(Debug)]
pub struct Replay {
    header: Header,
    /// The launch; the scheduler's refusal when there is none.
    launch: Result<Launch, String>,
    /// How it ended; none when it was not run, or ended well.
    stopped: Option<Stopped>,
    program: Option<Program>,
}

/// Memory of a bundle.
struct Memory(Mmu);

impl GpuMemory for Memory {
    fn read(&self, va: u64, out: &mut [u8]) -> Result<(), MmuFault> {
        let mut rest = out;
        for piece in self.0.resolve(va, rest.len() as u64, Access::Read)? {
            let (part, tail) = rest.split_at_mut(piece.bytes as usize);
            piece.buffer.read(piece.offset, part).map_err(|_| lost(va, Access::Read))?;
            rest = tail;
        }
        Ok(())
    }

    fn write(&self, va: u64, data: &[u8]) -> Result<(), MmuFault> {
        let mut rest = data;
        for piece in self.0.resolve(va, rest.len() as u64, Access::Write)? {
            let (part, tail) = rest.split_at(piece.bytes as usize);
            piece.buffer.write(piece.offset, part).map_err(|_| lost(va, Access::Write))?;
            rest = tail;
        }
        Ok(())
    }

    fn resolve(&self, va: u64, bytes: u64, access: Access) -> Result<Vec<Piece>, MmuFault> {
        self.0.resolve(va, bytes, access)
    }

    fn touched(&self, _va: u64, _bytes: u64, _access: Access) {}
}

fn lost(va: u64, access: Access) -> MmuFault {
    MmuFault { va, access, kind: MmuFaultKind::InvalidPte }
}

/// The address space of a bundle, with its contents.
fn memory(bundle: &Bundle) -> Result<Memory, ReplayError> {
    let Header { mappings, contents, .. } = &bundle.header;
    let bytes = mappings.iter().fold(0u64, |sum, mapping| sum.saturating_add(mapping.bytes));
    if mappings.len() > MAPPINGS || bytes > MAPPED {
        return Err(ReplayError::Mappings { count: mappings.len(), bytes });
    }
    let mmu = Mmu::new();
    for mapping in mappings {
        let va = mapping.va;
        let flags = |writable: bool| MapFlags {
            cacheable: mapping.cacheable,
            access: if writable { MapAccess::ReadWrite } else { MapAccess::ReadOnly },
            unmapped_pte: !mapping.valid,
        };
        let buffer =
            DmaBuf::new(mapping.bytes).map_err(|source| ReplayError::Memory { va, source })?;
        let wrong =
            |error: crate::gpu::MapError| ReplayError::Mapping { va, why: error.to_string() };
        mmu.map(va, buffer, 0, mapping.bytes, flags(mapping.writable)).map_err(wrong)?;
    }
    let memory = Memory(mmu);
    for (range, data) in contents.iter().zip(&bundle.memory) {
        // Read-only mappings have contents too, so not through `write`.
        let unmapped = |_| ReplayError::Contents { va: range.va };
        let mut rest = data.as_slice();
        for piece in memory.resolve(range.va, range.bytes, Access::Read).map_err(unmapped)? {
            let (part, tail) = rest.split_at((piece.bytes as usize).min(rest.len()));
            piece
                .buffer
                .write(piece.offset, part)
                .map_err(|_| unmapped(lost(range.va, Access::Write)))?;
            rest = tail;
        }
    }
    Ok(memory)
}

impl Replay {
    /// Runs the launch of a bundle; with other checks than it had, when some are given.
    /// [`ReplayError`] when it cannot be run at all.
    pub fn run(bundle: &Bundle, checks: Option<Checks>) -> Result<Self, ReplayError> {
        let header = bundle.header.clone();
        let memory = memory(bundle)?;
        let words = <[u32; 64]>::try_from(header.words.as_slice())
            .map_err(|_| ReplayError::Qmd { words: header.words.len() })?;
        let launch = Launch::of_bundle(&header, words);
        let mut stopped = None;
        let mut program = None;
        if let Ok(launch) = &launch {
            let mut engine = MachineCode::new(checks.unwrap_or(header.checks));
            stopped = engine.run(launch, &memory).err();
            let code = code::read(&memory, launch.program).unwrap_or_default();
            program = Program::new(&code).ok();
        }
        Ok(Self { header, launch, stopped, program })
    }

    /// Whether the launch failed as it did before; of a failure that was made to happen, whether it
    /// does not fail by itself. Blocks run side by side: of several bad addresses another one may
    /// come first.
    pub fn is_same(&self) -> bool {
        let Header { message, injected, .. } = &self.header;
        match (&self.launch, &self.stopped) {
            (Err(refusal), _) => message.contains(refusal.as_str()),
            (Ok(_), Some(Stopped { fault: SmFault::Mmu(fault), .. })) => {
                let MmuFault { access, kind, .. } = fault;
                message.contains(&format!("{kind:?} at"))
                    && message.contains(&format!("({access:?})"))
            }
            (Ok(_), Some(Stopped { fault: SmFault::Exception { name, warp_pc, .. }, .. })) => {
                message.contains(&format!("pc {warp_pc:#x}: {name}"))
            }
            (Ok(_), None) => *injected,
        }
    }

    fn registers(&self, f: &mut fmt::Formatter<'_>, registers: &[u32]) -> fmt::Result {
        for (row, values) in registers.chunks(LINE).enumerate() {
            write!(f, "  R{:<3}", row * LINE)?;
            values.iter().try_for_each(|value| write!(f, " {value:08x}"))?;
            writeln!(f)?;
        }
        Ok(())
    }

    fn code(&self, f: &mut fmt::Formatter<'_>, offset: usize) -> fmt::Result {
        let Some(program) = &self.program else { return Ok(()) };
        let at = offset / 16;
        let around = at.saturating_sub(AROUND)..at + AROUND + 1;
        for (index, instruction) in program.instructions().iter().enumerate() {
            if !around.contains(&index) {
                continue;
            }
            let mark = if index == at { '>' } else { ' ' };
            match instruction {
                Ok(instruction) => writeln!(f, "{mark} {:#06x}  {instruction}", index * 16)?,
                Err(error) => writeln!(f, "{mark} {:#06x}  {error}", index * 16)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header { channel, rule, notifier, message, stream, qmd, left_out, .. } = &self.header;
        writeln!(f, "recorded: {rule} on channel {channel}, notifier {notifier}: {message}")?;
        stream.iter().try_for_each(|line| writeln!(f, "    {line}"))?;
        for part in left_out {
            writeln!(f, "left out: {:#x} bytes at {:#x}, zeros here", part.bytes, part.va)?;
        }
        let launch = match &self.launch {
            Ok(launch) => launch,
            Err(refusal) => return writeln!(f, "replayed: QMD {qmd:#x} is refused: {refusal}"),
        };
        writeln!(
            f,
            "kernel {:#x}, QMD {qmd:#x}, grid {:?}, block {:?}, {} registers, {} bytes of shared \
             memory",
            launch.program, launch.grid, launch.block, launch.registers, launch.shared_bytes
        )?;
        for (index, bank) in launch.constants.iter().enumerate() {
            if let Some(bank) = bank {
                writeln!(f, "bank {index} at {:#x}, {:#x} bytes", bank.address, bank.bytes)?;
            }
        }
        let Some(stopped) = &self.stopped else {
            return writeln!(f, "replayed: the launch runs to its end");
        };
        match &stopped.fault {
            SmFault::Mmu(fault) => writeln!(f, "replayed: mmu-fault: {fault}")?,
            SmFault::Exception { name, warp_esr, message, .. } => {
                writeln!(f, "replayed: {name}, warp_esr {warp_esr:#x}: {message}")?;
            }
        }
        let Some(at) = &stopped.at else { return Ok(()) };
        writeln!(f, "block {:?}, warp {}, lane {}: {}", at.block, at.warp, at.lane, at.kind)?;
        self.code(f, at.offset)?;
        self.registers(f, &at.registers)
    }
}
