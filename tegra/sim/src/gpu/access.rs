//! Memory accesses of GPU units through page tables and caches, with all checks.
//!
//! [`Core`] is the state that all channels share. Every access of every unit goes through it, so
//! that all checks are in one place.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::clock::{Clock, Random};
use super::dependencies::{Agent, Dependencies, Stamp};
use super::interface::{ComputeEngine, ConstantReads, GpuMemory};
use super::latency::Latency;
use super::semaphore::{Width, Write};
use super::shadow::Shadow;
use super::switch::Switches;
use crate::config::{Checks, Injection};
use crate::finding::SmFault;
use crate::finding::{Finding, Rule, notifier};
use crate::mmu::{Access, Mmu, MmuFault, MmuFaultKind, PAGE, Piece};
use crate::quirks::Quirks;
use crate::trace::{Event, Trace};

/// Unit name of accesses by shaders.
pub(crate) const SHADER: &str = "shader";
/// First address out of reach of the host unit, semaphores and QMD pointers.
pub(crate) const HOST_END: u64 = 1 << 40;

/// Failure that stops a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rule: Rule,
    pub(crate) code: u32,
    pub(crate) message: String,
    /// Address that the MMU refused.
    pub(crate) va: Option<u64>,
    pub(crate) sm: Option<SmFault>,
    /// The failure was injected.
    pub(crate) injected: bool,
}

impl Failure {
    pub(crate) fn new(rule: Rule, code: u32, message: impl Into<String>) -> Self {
        Self { rule, code, message: message.into(), va: None, sm: None, injected: false }
    }

    pub(crate) fn mmu(fault: MmuFault, client: &str) -> Self {
        let message = format!("mmu fault id={}, client {client}: {fault}", fault.kind as u32);
        Self { va: Some(fault.va), ..Self::new(Rule::MmuFault, notifier::MMU_FAULT, message) }
    }
}

/// Origin of a memory access.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) mmu: &'a Arc<Mmu>,
    pub(crate) channel: u16,
    /// Work that performs the access, with its dependencies.
    pub(crate) agent: &'a Agent,
    pub(crate) unit: &'static str,
}

/// State shared by all channels.
pub(crate) struct Core {
    pub(crate) clock: Arc<Clock>,
    pub(crate) random: Random,
    pub(crate) trace: Trace,
    pub(crate) injection: Arc<Injection>,
    pub(crate) shadow: Shadow,
    pub(crate) dependencies: Dependencies,
    pub(crate) engine: Option<Box<dyn ComputeEngine>>,
    /// Directory for bundles of failed launches.
    pub(crate) bundles: Option<PathBuf>,
    /// Checks of shader code.
    pub(crate) checks: Checks,
    /// Times of the virtual clock.
    pub(crate) latency: Latency,
    pub(crate) sms: u32,
    pub(crate) switches: Switches,
    /// Defects of the machine.
    pub(crate) quirks: Quirks,
    /// Findings of the current step, without listings.
    pub(crate) findings: Vec<Finding>,
    /// Interrupts of the current step that wake waiters.
    pub(crate) interrupts: u32,
}

impl Core {
    /// Records a finding.
    pub(crate) fn find(&mut self, rule: Rule, channel: Option<u16>, message: String) {
        let time = self.clock.now();
        self.trace.record(time, || Event::Finding {
            channel,
            rule: Cow::Borrowed(rule.name()),
            message: message.clone(),
        });
        self.findings.push(Finding { rule, channel, time, message, listing: Vec::new() });
    }

    /// Raises an interrupt that wakes waiters.
    pub(crate) fn interrupt(&mut self, channel: u16) {
        let time = self.clock.now();
        self.trace.record(time, || Event::Interrupt { channel });
        if self.injection.fires(&crate::config::Occasion::LostEvent) || self.quirks.no_event {
            self.trace.record(time, || Event::Injected { what: "lost-event".into() });
        } else {
            self.interrupts += 1;
        }
    }

    /// Invalidates L1, at the start of a launch or by a method.
    pub(crate) fn invalidate_data(&mut self, by_launch: bool) {
        self.shadow.data.invalidate();
        if let Some(stale) = &mut self.shadow.stale
            && (by_launch || self.random.one_in(2))
        {
            stale.invalidate();
        }
    }

    /// Reads memory.
    pub(crate) fn read(&mut self, site: Site<'_>, va: u64, out: &mut [u8]) -> Result<(), MmuFault> {
        let pieces = site.mmu.resolve(va, out.len() as u64, Access::Read)?;
        read_pieces(&pieces, va, out, |at, piece| self.before_read(site, at, piece))
    }

    /// Writes memory.
    pub(crate) fn write(&mut self, site: Site<'_>, va: u64, data: &[u8]) -> Result<(), MmuFault> {
        let pieces = site.mmu.resolve(va, data.len() as u64, Access::Write)?;
        write_pieces(&pieces, va, data, |at, piece| self.after_write(site, at, piece))
    }

    /// Checks a read of a piece at `va`.
    pub(crate) fn before_read(&mut self, site: Site<'_>, va: u64, piece: &Piece) {
        let Site { channel, unit, .. } = site;
        // The writes of launches that were not executed are unknown.
        if !(self.checks == Checks::Timing && unit == SHADER)
            && let Some(at) = unwritten(piece)
        {
            let message = format!("{unit} reads GPU address {:#x}", va + (at - piece.offset));
            self.find(Rule::UninitialisedRead, Some(channel), message);
        }
        if piece.cacheable
            && let Some(at) = self.shadow.l2.read(piece)
        {
            let at = va + (at - piece.offset);
            let message = format!("{unit} reads GPU address {at:#x}, which L2 holds otherwise");
            self.find(Rule::StaleL2, Some(channel), message);
        }
        if let Some(other) = self.dependencies.read(site.agent, piece) {
            self.unordered(site, va, piece, "reads", other);
        }
    }

    /// Records a write of a piece at `va`, and checks its order.
    pub(crate) fn after_write(&mut self, site: Site<'_>, va: u64, piece: &Piece) {
        self.shadow.wrote(piece);
        if piece.cacheable {
            self.shadow.l2.wrote(piece);
        }
        if let Some(stale) = &mut self.shadow.stale {
            stale.wrote(piece);
        }
        if let Some(other) = self.dependencies.write(site.agent, piece) {
            self.unordered(site, va, piece, "writes", other);
        }
    }

    fn unordered(&mut self, site: Site<'_>, va: u64, piece: &Piece, does: &str, other: Stamp) {
        let message = format!(
            "{} {does} {} bytes at GPU address {va:#x}, which {other} touches without order",
            site.unit, piece.bytes
        );
        self.find(Rule::UnorderedAccess, Some(site.channel), message);
    }

    /// Writes a semaphore; the caller has checked the alignment.
    pub(crate) fn release(&mut self, site: Site<'_>, write: &Write) -> Result<(), MmuFault> {
        let Write { address, payload, width, timestamp, reduction } = *write;
        let bytes = if timestamp { 16 } else { width.bytes() };
        let access = if reduction.is_some() { Access::Atomic } else { Access::Write };
        let lost = |_| fault(address, access, MmuFaultKind::InvalidPte);
        let pieces = site.mmu.resolve(address, bytes, access)?;
        // The address is aligned, so the write is within one page.
        let Some(piece) = pieces.first() else { return Ok(()) };
        let (buffer, offset) = (&piece.buffer, piece.offset);
        let time = self.clock.advance(self.latency.release);
        self.shadow.wrote(piece);
        self.dependencies.release(site.agent, piece);
        if timestamp {
            buffer.store_u64(offset + 8, time).map_err(lost)?;
        }
        let written = match (reduction, width) {
            (Some(reduction), Width::Word) => {
                let new = |v| reduction.apply(width, u64::from(v), payload) as u32;
                let old = buffer.update_u32(offset, new).map_err(lost)?;
                u64::from(new(old))
            }
            (Some(reduction), Width::Long) => {
                let new = |v| reduction.apply(width, v, payload);
                new(buffer.update_u64(offset, new).map_err(lost)?)
            }
            (None, Width::Word) if !timestamp => {
                buffer.store_u32(offset, payload as u32).map_err(lost)?;
                payload & u64::from(u32::MAX)
            }
            (None, _) => {
                let payload =
                    if width == Width::Word { payload & u64::from(u32::MAX) } else { payload };
                buffer.store_u64(offset, payload).map_err(lost)?;
                payload
            }
        };
        if piece.cacheable {
            self.shadow.l2.wrote(piece);
        }
        let (channel, unit) = (site.channel, site.unit);
        self.trace.record(time, || Event::Release {
            channel,
            address,
            payload: written,
            unit: Cow::Borrowed(unit),
        });
        Ok(())
    }
}

/// Loads a semaphore atomically. Unwritten memory is no finding here, because it is zero and
/// polled.
pub(crate) fn load(mmu: &Mmu, va: u64, width: Width) -> Result<u64, MmuFault> {
    let pieces = mmu.resolve(va, width.bytes(), Access::Read)?;
    let Some(piece) = pieces.first() else { return Ok(0) };
    let loaded = match width {
        Width::Word => piece.buffer.load_u32(piece.offset).map(u64::from),
        Width::Long => piece.buffer.load_u64(piece.offset),
    };
    loaded.map_err(|_| fault(va, Access::Read, MmuFaultKind::InvalidPte))
}

/// Checks that a range is in reach of the host unit, semaphores and QMD pointers.
pub(crate) fn within_host(va: u64, bytes: u64) -> Result<(), MmuFault> {
    match va.checked_add(bytes) {
        Some(end) if end <= HOST_END => Ok(()),
        _ => Err(fault(va, Access::Read, MmuFaultKind::LimitViolation)),
    }
}

fn fault(va: u64, access: Access, kind: MmuFaultKind) -> MmuFault {
    MmuFault { va, access, kind }
}

/// Reads pieces that begin at `va`; calls `before` for each.
fn read_pieces(
    pieces: &[Piece],
    mut va: u64,
    mut out: &mut [u8],
    mut before: impl FnMut(u64, &Piece),
) -> Result<(), MmuFault> {
    for piece in pieces {
        before(va, piece);
        let (part, rest) = std::mem::take(&mut out).split_at_mut(piece.bytes as usize);
        // Pages lent with FROM_VA may be unmapped; the real driver pins them.
        let lost = |_| fault(va, Access::Read, MmuFaultKind::InvalidPte);
        piece.buffer.read(piece.offset, part).map_err(lost)?;
        (va, out) = (va + piece.bytes, rest);
    }
    Ok(())
}

/// Writes pieces that begin at `va`; calls `after` for each.
fn write_pieces(
    pieces: &[Piece],
    mut va: u64,
    mut data: &[u8],
    mut after: impl FnMut(u64, &Piece),
) -> Result<(), MmuFault> {
    for piece in pieces {
        let (part, rest) = data.split_at(piece.bytes as usize);
        let lost = |_| fault(va, Access::Write, MmuFaultKind::InvalidPte);
        piece.buffer.write(piece.offset, part).map_err(lost)?;
        after(va, piece);
        (va, data) = (va + piece.bytes, rest);
    }
    Ok(())
}

/// Returns the offset of the first unwritten page of a piece.
fn unwritten(piece: &Piece) -> Option<u64> {
    let end = piece.offset + piece.bytes;
    let mut at = piece.offset;
    while at < end {
        let until = end.min((at / PAGE + 1) * PAGE);
        if !piece.buffer.ever_written(at, until - at) {
            return Some(at);
        }
        at = until;
    }
    None
}

/// Memory as seen by a kernel.
pub(crate) struct SmMemory<'a> {
    pub(crate) site: Site<'a>,
    pub(crate) core: Mutex<&'a mut Core>,
    /// Ranges of constant banks that the code can read, if known.
    pub(crate) constants: Mutex<Option<ConstantReads>>,
}

impl SmMemory<'_> {
    fn note(&self, va: u64, pieces: &[Piece], access: Access) {
        let mut core = self.core.lock();
        let mut at = va;
        for piece in pieces {
            if access != Access::Write {
                core.before_read(self.site, at, piece);
                if let Some(stale) = core.shadow.data.read(piece) {
                    let stale = at + (stale - piece.offset);
                    let message = format!("a shader reads GPU address {stale:#x}");
                    core.find(Rule::StaleDataCache, Some(self.site.channel), message);
                }
                if let Some(stale) = &mut core.shadow.stale {
                    stale.fill(piece);
                }
            }
            if access != Access::Read {
                core.after_write(self.site, at, piece);
                core.shadow.data.wrote(piece);
            }
            at += piece.bytes;
        }
    }
}

impl GpuMemory for SmMemory<'_> {
    fn read(&self, va: u64, out: &mut [u8]) -> Result<(), MmuFault> {
        let pieces = self.site.mmu.resolve(va, out.len() as u64, Access::Read)?;
        self.note(va, &pieces, Access::Read);
        read_pieces(&pieces, va, out, |_, _| {})
    }

    fn write(&self, va: u64, data: &[u8]) -> Result<(), MmuFault> {
        let pieces = self.site.mmu.resolve(va, data.len() as u64, Access::Write)?;
        write_pieces(&pieces, va, data, |_, _| {})?;
        self.note(va, &pieces, Access::Write);
        Ok(())
    }

    fn resolve(&self, va: u64, bytes: u64, access: Access) -> Result<Vec<Piece>, MmuFault> {
        self.site.mmu.resolve(va, bytes, access)
    }

    fn next_mapped(&self, va: u64, bytes: u64) -> Option<u64> {
        self.site.mmu.first_mapped(va, bytes)
    }

    fn stale(&self, piece: &Piece) -> Option<Vec<u8>> {
        self.core.lock().shadow.stale.as_ref()?.differing(piece)
    }

    fn touched(&self, va: u64, bytes: u64, access: Access) {
        // The engine was already informed of an unmapped range when it resolved it.
        if let Ok(pieces) = self.site.mmu.resolve(va, bytes, access) {
            self.note(va, &pieces, access);
        }
    }

    fn reads_constants(&self, reads: ConstantReads) {
        *self.constants.lock() = Some(reads);
    }

    fn found(&self, rule: Rule, message: String) {
        self.core.lock().find(rule, Some(self.site.channel), message);
    }
}
