//! Translation of machine faults into MMU faults and SM exceptions.
//!
//! Values of `warp_esr` are those of nvgpu r36.4; findings that hardware would not notice have 0.

use sass::fault::{Fault, FaultKind};
use sass::memory::{Access, MemoryFault};

use crate::finding::Rule;
use crate::finding::SmFault;
use crate::gpu::{self, GpuMemory, Launch, MmuFault, MmuFaultKind, SMS};

/// `global_esr` of a breakpoint, which includes traps.
const BREAKPOINT: u32 = 0x10;

/// A launch that was stopped.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// Fault that the driver receives.
    pub fault: SmFault,
    /// Machine fault with its location; none if the launch had not begun.
    pub at: Option<Box<Fault>>,
}

impl Stopped {
    /// A fault of the MMU before the first instruction.
    pub(super) fn before(fault: MmuFault) -> Self {
        Self { fault: SmFault::Mmu(fault), at: None }
    }
}

/// Returns the name and `warp_esr` of an exception.
fn exception(kind: &FaultKind) -> (&'static str, u32) {
    match kind {
        FaultKind::ProgramCounter { pc, .. } if !pc.is_multiple_of(16) => ("misaligned-pc", 0x5),
        FaultKind::ProgramCounter { .. } => ("pc-overflow", 0x6),
        FaultKind::IllegalInstruction { .. } => ("illegal-instruction", 0x9),
        FaultKind::BarrierOperand { .. } => ("barrier-operand", 0xb),
        FaultKind::Registers { .. } => ("register-out-of-range", 0xd),
        FaultKind::Shared { .. } => ("shared-out-of-range", 0xe),
        FaultKind::Local { .. } => ("local-out-of-range", 0xe),
        FaultKind::Misaligned { .. } => ("misaligned-address", 0xf),
        FaultKind::Constant { .. } => ("constant-out-of-range", 0x12),
        FaultKind::Memory(_) => ("mmu-fault", 0x17),
        FaultKind::Trap => ("trap", 0),
        FaultKind::DivergentBarrier { .. } => ("divergent-barrier", 0),
        FaultKind::Deadlock { .. } => ("barrier-deadlock", 0),
        FaultKind::Uninitialised { .. } => ("uninitialised-use", 0),
        FaultKind::Race { .. } => ("shared-race", 0),
        FaultKind::Launch { .. } => ("launch-limits", 0),
        FaultKind::Timeout { .. } => ("endless-kernel", 0),
    }
}

fn report(kind: &FaultKind, pc: u64, block: u64, message: String) -> SmFault {
    let (name, warp_esr) = exception(kind);
    SmFault::Exception {
        name,
        sm: (block % u64::from(SMS)) as u32,
        global_esr: if *kind == FaultKind::Trap { BREAKPOINT } else { 0 },
        warp_esr,
        warp_pc: pc,
        message,
    }
}

/// Returns the finding for a fault that hardware would not notice. The message contains the hash of
/// the code, which identifies the kernel across runs.
pub(super) fn silent(launch: &Launch, code: u64, found: &Fault) -> Option<(Rule, String)> {
    let rule = match found.kind {
        FaultKind::Uninitialised { .. } => Rule::UninitialisedUse,
        FaultKind::Race { .. } => Rule::SharedRace,
        _ => return None,
    };
    let pc = launch.program + found.offset as u64;
    Some((rule, format!("pc {pc:#x}: {found}, code-{code:016x}")))
}

/// The fault of code that uses more barriers than the launch has.
pub(super) fn barriers(launch: &Launch, needed: u32) -> Stopped {
    let kind = FaultKind::BarrierOperand { id: needed - 1, threads: 0 };
    let message = format!(
        "the code at {:#x} names {needed} barriers, the launch gives {}",
        launch.program, launch.barriers
    );
    Stopped { fault: report(&kind, launch.program, 0, message), at: None }
}

/// Translates a machine fault into the fault that the driver receives.
pub(super) fn explain(launch: &Launch, memory: &dyn GpuMemory, fault: Box<Fault>) -> Stopped {
    let unit = |va, access| {
        let kind = MmuFaultKind::InvalidPte;
        memory.resolve(va, 1, access).err().unwrap_or(MmuFault { va, access, kind })
    };
    let found = match &fault.kind {
        FaultKind::Memory(
            MemoryFault::Unmapped { address, access } | MemoryFault::Forbidden { address, access },
        ) => {
            let access = match access {
                Access::Read => gpu::Access::Read,
                Access::Write => gpu::Access::Write,
                Access::Atomic => gpu::Access::Atomic,
            };
            Some(unit(*address, access))
        }
        // A bank may declare more bytes than are mapped.
        FaultKind::Constant { bank, offset, bytes, .. } => {
            launch.constants.get(usize::from(*bank)).copied().flatten().and_then(|bank| {
                let offset = u64::try_from(*offset).ok()?;
                let claimed = offset + u64::from(*bytes) <= bank.bytes.into();
                claimed.then(|| unit(bank.address + offset, gpu::Access::Read))
            })
        }
        // Execution reached unmapped memory.
        FaultKind::ProgramCounter { pc, .. } if pc.is_multiple_of(16) => {
            memory.resolve(launch.program.wrapping_add(*pc), 16, gpu::Access::Read).err()
        }
        _ => None,
    };
    let [x, y, z] = fault.block.map(u64::from);
    let [width, height, _] = launch.grid.map(u64::from);
    let block = x + width * (y + height * z);
    let pc = launch.program + fault.offset as u64;
    let fault_told = match found {
        Some(found) => SmFault::Mmu(found),
        None => report(&fault.kind, pc, block, fault.to_string()),
    };
    Stopped { fault: fault_told, at: Some(fault) }
}
