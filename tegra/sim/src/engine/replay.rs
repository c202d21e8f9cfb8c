//! Replay of a fault bundle: runs its launches in order until one fails.

use std::fmt;
use std::io;

use sass::program::Program;
use tegra_bundle::{Bundle, Header, Mapping, Simulated};

use super::code;
use super::{MachineCode, Stopped};
use crate::config::Checks;
use crate::finding::SmFault;
use crate::finding::notifier;
use crate::gpu::{
    Access, GpuMemory, Launch, MapAccess, MapFlags, Mmu, MmuFault, MmuFaultKind, Piece,
};
use crate::memory::DmaBuf;

/// Limits of a bundle: number of mappings, and their bytes.
const MAPPINGS: usize = 1 << 16;
const MAPPED: u64 = 1 << 40;
/// Number of instructions printed before and after the failing one.
const AROUND: usize = 6;
/// Registers printed per line.
const LINE: usize = 8;
/// Exceptions that hardware does not raise: it hangs instead.
const HANGS: [&str; 3] = ["endless-kernel", "divergent-barrier", "barrier-deadlock"];

/// Error of replaying a bundle.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The bundle has too many mappings.
    #[error(
        "the bundle has {count} mappings of {bytes:#x} bytes, limits {MAPPINGS} and {MAPPED:#x}"
    )]
    Mappings {
        count: usize,
        /// Size of all mappings.
        bytes: u64,
    },
    /// A mapping is invalid.
    #[error("the bundle's mapping at {va:#x}: {why}")]
    Mapping { va: u64, why: String },
    /// Memory for a mapping cannot be allocated.
    #[error("no memory for the bundle's mapping at {va:#x}: {source}")]
    Memory { va: u64, source: io::Error },
    /// Contents of the bundle are outside its mappings.
    #[error("the bundle's memory at {va:#x} is not mapped")]
    Contents { va: u64 },
    /// The bundle has no launch.
    #[error("the bundle names no launch")]
    Nothing,
    /// The QMD is incomplete.
    #[error("the bundle has {words} words of a QMD, which has 64")]
    Qmd { words: usize },
    /// The level of checks does not exist.
    #[error("the bundle's launch was checked for {name:?}, which is unknown: choose with --checks")]
    Checks { name: String },
}

/// Result of replaying a bundle.
#[derive(Debug)]
pub struct Replay {
    header: Header,
    /// Launches in order; only the last one may have failed.
    runs: Vec<Run>,
}

#[derive(Debug)]
struct Run {
    name: String,
    qmd: u64,
    /// The launch, or the message of the scheduler's check that failed.
    launch: Result<Launch, String>,
    /// Fault that ended the launch; none if it succeeded or was not run.
    stopped: Option<Stopped>,
    program: Option<Program>,
}

impl Run {
    fn has_failed(&self) -> bool {
        self.launch.is_err() || self.stopped.is_some()
    }
}

/// Address space of a bundle.
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

    fn next_mapped(&self, va: u64, bytes: u64) -> Option<u64> {
        self.0.first_mapped(va, bytes)
    }

    fn touched(&self, _va: u64, _bytes: u64, _access: Access) {}
}

fn lost(va: u64, access: Access) -> MmuFault {
    MmuFault { va, access, kind: MmuFaultKind::InvalidPte }
}

/// Builds the address space of a bundle with its contents.
fn memory(bundle: &Bundle) -> Result<Memory, ReplayError> {
    let Header { mappings, contents, .. } = &bundle.header;
    let bytes = mappings.iter().fold(0u64, |sum, mapping| sum.saturating_add(mapping.bytes));
    if mappings.len() > MAPPINGS || bytes > MAPPED {
        return Err(ReplayError::Mappings { count: mappings.len(), bytes });
    }
    let mmu = Mmu::new();
    for Mapping { va, bytes, writable, cacheable, valid, .. } in mappings {
        let (va, bytes) = (*va, *bytes);
        let flags = MapFlags {
            cacheable: *cacheable,
            access: if *writable { MapAccess::ReadWrite } else { MapAccess::ReadOnly },
            unmapped_pte: !valid,
        };
        let buffer = DmaBuf::new(bytes).map_err(|source| ReplayError::Memory { va, source })?;
        let wrong =
            |error: crate::gpu::MapError| ReplayError::Mapping { va, why: error.to_string() };
        mmu.map(va, buffer, 0, bytes, flags).map_err(wrong)?;
    }
    let memory = Memory(mmu);
    for (range, data) in contents.iter().zip(&bundle.memory) {
        // Bypasses `write`, because read-only mappings have contents too.
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
    /// Runs the launches of a bundle until one fails, with their original checks or with `checks`.
    /// [`ReplayError`] if they cannot be run.
    pub fn run(bundle: &Bundle, checks: Option<Checks>) -> Result<Self, ReplayError> {
        let header = bundle.header.clone();
        let checks = match (checks, &header.simulated) {
            (Some(checks), _) => checks,
            // Bundle of real hardware: only the checks of an SM.
            (None, None) => Checks::Fast,
            (None, Some(Simulated { checks: name, .. })) => {
                Checks::named(name).ok_or_else(|| ReplayError::Checks { name: name.clone() })?
            }
        };
        let memory = memory(bundle)?;
        let mut engine = MachineCode::new(checks).halting();
        let mut runs: Vec<Run> = Vec::new();
        for tegra_bundle::Launch { name, qmd, words } in &header.launches {
            if runs.last().is_some_and(Run::has_failed) {
                break;
            }
            let words = <[u32; 64]>::try_from(words.as_slice())
                .map_err(|_| ReplayError::Qmd { words: words.len() })?;
            let launch = Launch::of_bundle(&header, *qmd, words);
            let (mut stopped, mut program) = (None, None);
            if let Ok(launch) = &launch {
                stopped = engine.run(launch, &memory).err();
                let code = code::read(&memory, launch.program).unwrap_or_default();
                program = Program::new(&code).ok();
            }
            runs.push(Run { name: name.clone(), qmd: *qmd, launch, stopped, program });
        }
        if runs.is_empty() {
            return Err(ReplayError::Nothing);
        }
        Ok(Self { header, runs })
    }

    /// Returns whether the launch failed as before; for an injected failure, whether none failed by
    /// itself. Blocks run in parallel, so another bad address may be reported first.
    pub fn is_same(&self) -> bool {
        let Some(last) = self.runs.last() else { return false };
        match (&self.header.simulated, last.has_failed()) {
            (Some(simulated), false) => simulated.injected,
            (None, false) => false,
            (Some(_), true) => self.is_as_told(last),
            (None, true) => self.is_as_an_orin_tells(last),
        }
    }

    /// Compares with the messages of the simulator.
    fn is_as_told(&self, run: &Run) -> bool {
        let message = &self.header.message;
        match (&run.launch, run.stopped.as_ref().map(|stopped| &stopped.fault)) {
            (Err(refusal), _) => message.contains(refusal.as_str()),
            (Ok(_), Some(SmFault::Mmu(MmuFault { access, kind, .. }))) => {
                message.contains(&format!("{kind:?} at"))
                    && message.contains(&format!("({access:?})"))
            }
            (Ok(_), Some(SmFault::Exception { name, warp_pc, .. })) => {
                let here = format!("pc {warp_pc:#x}: ");
                // Hardware would not have noticed, so the driver received no name.
                let unnoticed = self.header.rule == *name && message.contains(&here);
                unnoticed || message.contains(&format!("{here}{name}"))
            }
            (Ok(_), None) => false,
        }
    }

    /// Compares with what an Orin's driver reports: the notifier code and the location of stopped
    /// SMs. Nothing is reported about a hang.
    fn is_as_an_orin_tells(&self, run: &Run) -> bool {
        let Header { notifier, stopped_at, .. } = &self.header;
        match (&run.launch, run.stopped.as_ref().map(|stopped| &stopped.fault)) {
            (Err(_), _) => *notifier == Some(notifier::GR_EXCEPTION),
            (Ok(_), Some(SmFault::Mmu(_))) => *notifier == Some(notifier::MMU_FAULT),
            (Ok(_), Some(SmFault::Exception { name, warp_pc, .. })) => match notifier {
                None => HANGS.contains(name),
                Some(code) => {
                    *code == notifier::GR_EXCEPTION
                        && (stopped_at.is_empty() || stopped_at.contains(warp_pc))
                }
            },
            (Ok(_), None) => false,
        }
    }

    fn recorded(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header { writer, at, device, channel, rule, notifier, message, .. } = &self.header;
        write!(f, "written by {writer}")?;
        if let Some(at) = at {
            write!(f, " on {at}")?;
        }
        write!(f, ", of {device}\nrecorded: {rule} on channel {channel}")?;
        if let Some(code) = notifier {
            write!(f, ", notifier {code}")?;
        }
        writeln!(f, ": {message}")?;
        self.header.stream.iter().try_for_each(|line| writeln!(f, "    {line}"))?;
        for part in &self.header.left_out {
            writeln!(f, "left out: {:#x} bytes at {:#x}, zeros here", part.bytes, part.va)?;
        }
        if let [first, .., last] = &self.header.launches[..] {
            let count = self.header.launches.len();
            writeln!(f, "under way: {count} launches, from {} to {}", first.name, last.name)?;
        }
        Ok(())
    }
}

impl Run {
    fn head(&self, f: &mut fmt::Formatter<'_>, launch: &Launch) -> fmt::Result {
        if !self.name.is_empty() {
            write!(f, "{}: ", self.name)?;
        }
        let Launch { program, grid, block, registers, shared_bytes, .. } = launch;
        writeln!(
            f,
            "kernel {program:#x}, QMD {:#x}, grid {grid:?}, block {block:?}, {registers} registers, \
             {shared_bytes} bytes of shared memory",
            self.qmd
        )
    }

    fn outcome(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let launch = match &self.launch {
            Ok(launch) => launch,
            Err(refusal) => {
                return writeln!(f, "replayed: QMD {:#x} is refused: {refusal}", self.qmd);
            }
        };
        self.head(f, launch)?;
        for (index, bank) in launch.constants.iter().enumerate() {
            if let Some(bank) = bank {
                writeln!(f, "bank {index} at {:#x}, {:#x} bytes", bank.address, bank.bytes)?;
            }
        }
        let Some(stopped) = &self.stopped else { return Ok(()) };
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
        self.recorded(f)?;
        let Some((last, before)) = self.runs.split_last() else { return Ok(()) };
        for run in before {
            if let Ok(launch) = &run.launch {
                f.write_str("ran to its end: ")?;
                run.head(f, launch)?;
            }
        }
        last.outcome(f)?;
        match self.runs.len() {
            _ if last.has_failed() => Ok(()),
            1 => writeln!(f, "replayed: the launch runs to its end"),
            n => writeln!(f, "replayed: each of the {n} launches runs to its end"),
        }
    }
}
