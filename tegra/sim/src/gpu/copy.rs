//! Copy engine: pitch-linear copies and fills between virtual addresses, semaphores, interrupts.
//!
//! Source: `clc7b5.h`. Block-linear layouts, legal on hardware, are not modelled.

use super::access::{Core, Failure, Site};
use super::channel::{Channel, Flow, Task};
use super::dependencies::{Agent, Kind};
use super::transfer::{CopyJob, Remap, Transfer};
use crate::class;
use crate::class::copy::LAUNCH_DMA::{
    DATA_TRANSFER_TYPE, DST_MEMORY_LAYOUT, DST_TYPE, FLUSH_ENABLE, FLUSH_TYPE, INTERRUPT_TYPE,
    SEMAPHORE_TYPE, SRC_MEMORY_LAYOUT, SRC_TYPE, VPRMODE,
};
use crate::class::copy::{self as methods, METHODS};
use crate::config::Occasion;
use crate::finding::{Rule, notifier};
use crate::mmu::MmuFault;
use crate::trace::Event;

/// `SET_RENDER_ENABLE_C_MODE_TRUE`.
const RENDER: u32 = 1;
/// Bytes copied at a time.
const CHUNK: u64 = 1 << 20;

fn hce_error(rule: Rule, what: impl std::fmt::Display) -> Failure {
    Failure::new(rule, notifier::PBDMA_ERROR, format!("pbdma_intr_1(0x00000001): {what}"))
}

impl Channel {
    pub(crate) fn copy_method(&mut self, core: &mut Core, address: u32, data: u32) -> Flow {
        let Some(known) = class::find(METHODS, address) else {
            let what = format!("HCE_ILLEGAL_MTHD: copy method {address:#x} = {data:#x}");
            return Err(hce_error(Rule::CopyMethod, what).into());
        };
        known.check(data).map_err(|error| hce_error(Rule::ReservedBits, error))?;
        if self.copy.set(address, data) {
            return Ok(());
        }
        match address {
            methods::LAUNCH_DMA => return self.launch_dma(core, data),
            methods::SET_SRC_PHYS_MODE | methods::SET_DST_PHYS_MODE => {
                let what = format!("HCE_PRIV: {}", known.name);
                return Err(hce_error(Rule::CopyPrivileged, what).into());
            }
            methods::SET_RENDER_ENABLE_C if data != RENDER => {
                self.find(core, Rule::NotModelled, known.decode(data).to_string());
            }
            _ => {}
        }
        Ok(())
    }

    fn launch_dma(&mut self, core: &mut Core, data: u32) -> Flow {
        let physical = SRC_TYPE.is_set(data) || DST_TYPE.is_set(data);
        if physical || VPRMODE.is_set(data) {
            let what = format!("HCE_PRIV: LAUNCH_DMA {data:#x} by physical address or of VPR");
            return Err(hce_error(Rule::CopyPrivileged, what).into());
        }
        let transfer = self.copy.transfer(data);
        let mut missing = Vec::new();
        if transfer.is_some() && !SRC_MEMORY_LAYOUT.is_set(data) {
            missing.push("a block-linear source");
        }
        if transfer.is_some() && !DST_MEMORY_LAYOUT.is_set(data) {
            missing.push("a block-linear destination");
        }
        if SEMAPHORE_TYPE.get(data) == 3 {
            missing.push("a conditional interrupt");
        }
        for what in &missing {
            self.find(core, Rule::NotModelled, format!("LAUNCH_DMA {data:#x}: {what}"));
        }
        let pipelined = DATA_TRANSFER_TYPE.get(data) == 1;
        let write = self.copy.write(data).unwrap_or_else(|what| {
            self.find(core, Rule::SemaphoreMisuse, format!("LAUNCH_DMA {data:#x}: {what}"));
            None
        });
        let job = CopyJob {
            transfer: transfer.filter(|_| missing.is_empty()),
            pipelined,
            flush: FLUSH_ENABLE.is_set(data) && !FLUSH_TYPE.is_set(data),
            write,
            interrupt: INTERRUPT_TYPE.get(data) == 2,
        };
        let kind = if job.is_pipelined() { Kind::Overlapping } else { Kind::Serial };
        self.issue(core, Task::Copy(job), kind);
        Ok(())
    }

    /// Executes a copy.
    pub(crate) fn run_copy(
        &mut self,
        core: &mut Core,
        agent: &Agent,
        job: &CopyJob,
    ) -> Result<(), Failure> {
        if let Some(transfer) = &job.transfer {
            if core.injection.fires(&Occasion::MmuFault) {
                return Err(injected(transfer.destination, "CE"));
            }
            if self.may_transfer(core, transfer) {
                let site = self.site(agent, "copy engine");
                match transfer_lines(core, site, transfer) {
                    // The driver makes such an entry valid and resumes the engine.
                    Err(fault) if self.mmu.has_unmapped_pte(fault.va) => {}
                    result => result.map_err(|fault| Failure::mmu(fault, "CE"))?,
                }
            }
            self.copy.unflushed = true;
            let (channel, bytes) =
                (self.id, transfer.destination_line.saturating_mul(transfer.lines));
            let time = core
                .clock
                .advance(core.latency.copy_start + bytes / core.latency.copy_bytes.max(1));
            core.trace.record(time, || Event::Copy {
                channel,
                source: (transfer.source_line > 0).then_some(transfer.source),
                destination: transfer.destination,
                bytes,
            });
        }
        if job.flush {
            self.copy.flushed();
        }
        if let Some(write) = &job.write {
            if self.copy.unflushed {
                let message = format!("semaphore {:#x} = {:#x}", write.address, write.payload);
                self.find(core, Rule::ReleaseWithoutFlush, message);
            }
            self.release(core, agent, write, "copy engine")?;
        }
        if job.interrupt {
            core.interrupt(self.id);
        }
        Ok(())
    }

    /// Reports overlapping lines; returns whether the copy can be executed.
    fn may_transfer(&self, core: &mut Core, transfer: &Transfer) -> bool {
        let Transfer { source, destination, lines, .. } = *transfer;
        let read = transfer.span(transfer.source_line, transfer.source_pitch);
        let written = transfer.span(transfer.destination_line, transfer.destination_pitch);
        let own = lines > 1 && transfer.destination_pitch < transfer.destination_line;
        let both = transfer.source_line > 0
            && source < destination.saturating_add(written)
            && destination < source.saturating_add(read);
        if own || both {
            let message = format!(
                "{read:#x} bytes from {source:#x} and {written:#x} at {destination:#x} on, {lines} lines"
            );
            self.find(core, Rule::CopyOverlap, message);
        }
        // Overlapping lines of the destination could take for ever and have no use.
        !own
    }
}

/// Builds an injected fault.
pub(crate) fn injected(va: u64, client: &str) -> Failure {
    let access = crate::mmu::Access::Write;
    let kind = crate::mmu::MmuFaultKind::InvalidPte;
    let mut failure = Failure::mmu(MmuFault { va, access, kind }, client);
    failure.message.push_str(", made to happen");
    failure.injected = true;
    failure
}

fn transfer_lines(core: &mut Core, site: Site<'_>, transfer: &Transfer) -> Result<(), MmuFault> {
    let element = transfer.remap.as_ref().map_or(1, Remap::bytes);
    let source_element = transfer.remap.as_ref().map_or(1, Remap::source_bytes);
    if transfer.elements == 0 {
        return Ok(());
    }
    let step = CHUNK / element;
    let mut input = vec![0; (step.min(transfer.elements) * source_element) as usize];
    let mut output = vec![0; (step.min(transfer.elements) * element) as usize];
    for line in 0..transfer.lines {
        let source = transfer.source.saturating_add(line.saturating_mul(transfer.source_pitch));
        let destination =
            transfer.destination.saturating_add(line.saturating_mul(transfer.destination_pitch));
        let mut done = 0;
        while done < transfer.elements {
            let count = step.min(transfer.elements - done);
            let from = source.saturating_add(done * source_element);
            let to = destination.saturating_add(done * element);
            let input = &mut input[..(count * source_element) as usize];
            core.read(site, from, input)?;
            match &transfer.remap {
                None => core.write(site, to, input)?,
                Some(remap) => {
                    let output = &mut output[..(count * element) as usize];
                    if remap.keeps() {
                        core.read(site, to, output)?;
                    }
                    remap.apply(input, output);
                    core.write(site, to, output)?;
                }
            }
            done += count;
        }
    }
    Ok(())
}
