//! The copy engine: pitch-linear copies and fills between virtual addresses, semaphores,
//! interrupts.
//!
//! Source: `clc7b5.h`. Block-linear layouts are legal on hardware and not done here.

use super::access::{Core, Failure, Site};
use super::channel::{Channel, Flow, Task};
use super::dependencies::{Agent, Kind};
use super::mmu::MmuFault;
use super::semaphore::{Reduction, Width, Write};
use crate::class::copy::LAUNCH_DMA::{
    DATA_TRANSFER_TYPE, DST_MEMORY_LAYOUT, DST_TYPE, FLUSH_ENABLE, FLUSH_TYPE, INTERRUPT_TYPE,
    MULTI_LINE_ENABLE, REMAP_ENABLE, SEMAPHORE_PAYLOAD_SIZE, SEMAPHORE_REDUCTION,
    SEMAPHORE_REDUCTION_ENABLE, SEMAPHORE_REDUCTION_SIGN, SEMAPHORE_TYPE, SRC_MEMORY_LAYOUT,
    SRC_TYPE, VPRMODE,
};
use crate::class::copy::SET_REMAP_COMPONENTS::{
    COMPONENT_SIZE, DST_W, DST_X, DST_Y, DST_Z, NUM_DST_COMPONENTS, NUM_SRC_COMPONENTS,
};
use crate::class::copy::{self as methods, METHODS};
use crate::class::{self, Field};
use crate::config::Occasion;
use crate::finding::{Rule, notifier};
use crate::trace::Event;

const COMPONENTS: [Field; 4] = [DST_X, DST_Y, DST_Z, DST_W];

/// `SET_RENDER_ENABLE_C_MODE_TRUE`.
const RENDER: u32 = 1;
/// Bytes moved at a time.
const CHUNK: u64 = 1 << 20;

/// Registers of the copy engine that belong to the channel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyState {
    semaphore: u64,
    payload: u64,
    source: u64,
    destination: u64,
    pitch_in: u32,
    pitch_out: u32,
    line_length: u32,
    line_count: u32,
    constants: [u32; 2],
    components: u32,
    /// Bytes were written that no flush followed.
    unflushed: bool,
}

fn set_low(register: &mut u64, data: u32) {
    *register = *register & !u64::from(u32::MAX) | u64::from(data);
}

fn set_high(register: &mut u64, data: u32) {
    *register = *register & u64::from(u32::MAX) | u64::from(data) << 32;
}

impl CopyState {
    /// Sets the register of a method that has one.
    pub(crate) fn set(&mut self, address: u32, data: u32) -> bool {
        match address {
            methods::SET_SEMAPHORE_A => set_high(&mut self.semaphore, data),
            methods::SET_SEMAPHORE_B => set_low(&mut self.semaphore, data),
            methods::SET_SEMAPHORE_PAYLOAD => set_low(&mut self.payload, data),
            methods::SET_SEMAPHORE_PAYLOAD_UPPER => set_high(&mut self.payload, data),
            methods::OFFSET_IN_UPPER => set_high(&mut self.source, data),
            methods::OFFSET_IN_LOWER => set_low(&mut self.source, data),
            methods::OFFSET_OUT_UPPER => set_high(&mut self.destination, data),
            methods::OFFSET_OUT_LOWER => set_low(&mut self.destination, data),
            methods::PITCH_IN => self.pitch_in = data,
            methods::PITCH_OUT => self.pitch_out = data,
            methods::LINE_LENGTH_IN => self.line_length = data,
            methods::LINE_COUNT => self.line_count = data,
            methods::SET_REMAP_CONST_A => self.constants[0] = data,
            methods::SET_REMAP_CONST_B => self.constants[1] = data,
            methods::SET_REMAP_COMPONENTS => self.components = data,
            _ => return false,
        }
        true
    }

    /// Everything written so far has reached memory.
    pub(crate) fn flushed(&mut self) {
        self.unflushed = false;
    }

    /// What a launch with `data` reads: address and bytes.
    pub(crate) fn source(&self, data: u32) -> Option<(u64, u64)> {
        let transfer = self.transfer(data)?;
        let bytes = transfer.span(transfer.source_line, transfer.source_pitch);
        (transfer.source_line > 0 && bytes > 0).then_some((transfer.source, bytes))
    }

    /// The transfer that a launch with `data` does.
    fn transfer(&self, data: u32) -> Option<Transfer> {
        if DATA_TRANSFER_TYPE.get(data) == 0 {
            return None;
        }
        let remap = REMAP_ENABLE.is_set(data).then(|| Remap::new(self.components, self.constants));
        let (source_element, destination_element) =
            remap.as_ref().map_or((1, 1), |remap| (remap.source_bytes(), remap.bytes()));
        let multi_line = MULTI_LINE_ENABLE.is_set(data);
        Some(Transfer {
            source: self.source,
            destination: self.destination,
            lines: if multi_line { self.line_count.into() } else { 1 },
            elements: self.line_length.into(),
            source_line: u64::from(self.line_length) * source_element,
            destination_line: u64::from(self.line_length) * destination_element,
            source_pitch: self.pitch_in.into(),
            destination_pitch: self.pitch_out.into(),
            remap,
        })
    }

    fn write(&self, data: u32) -> Result<Option<Write>, &'static str> {
        if !matches!(SEMAPHORE_TYPE.get(data), 1 | 2) {
            return Ok(None);
        }
        let reduction = if SEMAPHORE_REDUCTION_ENABLE.is_set(data) {
            let unsigned = SEMAPHORE_REDUCTION_SIGN.is_set(data);
            let number = SEMAPHORE_REDUCTION.get(data);
            Some(Reduction::of_host(number, unsigned).ok_or("no integer reduction")?)
        } else {
            None
        };
        let long = SEMAPHORE_PAYLOAD_SIZE.is_set(data);
        Ok(Some(Write {
            address: self.semaphore,
            payload: self.payload,
            width: if long { Width::Long } else { Width::Word },
            timestamp: SEMAPHORE_TYPE.get(data) == 2,
            reduction,
        }))
    }
}

/// What a launch does, from the registers as they were.
#[derive(Clone, Debug)]
pub(crate) struct CopyJob {
    transfer: Option<Transfer>,
    pipelined: bool,
    flush: bool,
    write: Option<Write>,
    interrupt: bool,
}

impl CopyJob {
    /// Whether it may overlap the work before it.
    pub(crate) const fn is_pipelined(&self) -> bool {
        self.pipelined && self.transfer.is_some()
    }

    /// Whether it releases a semaphore.
    pub(crate) const fn releases(&self) -> bool {
        self.write.is_some()
    }
}

/// A copy or fill. Lengths in bytes.
#[derive(Clone, Debug)]
struct Transfer {
    source: u64,
    destination: u64,
    lines: u64,
    elements: u64,
    source_line: u64,
    destination_line: u64,
    source_pitch: u64,
    destination_pitch: u64,
    remap: Option<Remap>,
}

impl Transfer {
    /// Bytes from the first to behind the last of all lines.
    fn span(&self, line: u64, pitch: u64) -> u64 {
        match self.lines {
            0 => 0,
            lines => (lines - 1).saturating_mul(pitch).saturating_add(line),
        }
    }
}

/// How elements are made of components.
#[derive(Clone, Debug)]
struct Remap {
    /// By component written: what it is.
    picks: [u32; 4],
    count: usize,
    source_count: usize,
    /// Bytes of a component.
    size: usize,
    constants: [[u8; 4]; 2],
}

impl Remap {
    fn new(components: u32, constants: [u32; 2]) -> Self {
        Self {
            picks: COMPONENTS.map(|bits| bits.get(components)),
            count: NUM_DST_COMPONENTS.get(components) as usize + 1,
            source_count: NUM_SRC_COMPONENTS.get(components) as usize + 1,
            size: COMPONENT_SIZE.get(components) as usize + 1,
            constants: constants.map(u32::to_le_bytes),
        }
    }

    fn used(&self) -> &[u32] {
        &self.picks[..self.count]
    }

    fn bytes(&self) -> u64 {
        (self.count * self.size) as u64
    }

    /// Bytes read of an element; none when only constants are written.
    fn source_bytes(&self) -> u64 {
        let reads = self.used().iter().any(|pick| *pick < 4);
        if reads { (self.source_count * self.size) as u64 } else { 0 }
    }

    /// Whether parts of an element keep what they were.
    fn keeps(&self) -> bool {
        self.used().contains(&6)
    }

    /// Makes elements of `source` over what `out` holds.
    fn apply(&self, source: &[u8], out: &mut [u8]) {
        let stride = self.source_bytes() as usize;
        for (index, element) in out.chunks_exact_mut(self.count * self.size).enumerate() {
            let from = source.get(index * stride..).unwrap_or_default();
            for (pick, component) in self.used().iter().zip(element.chunks_exact_mut(self.size)) {
                let bytes = match pick {
                    4 | 5 => self.constants.get(*pick as usize - 4).map(<[u8; 4]>::as_slice),
                    6 => None,
                    pick => from.get(*pick as usize * self.size..),
                };
                // A component beyond those read is zero.
                let zero = [0; 4];
                let bytes = match (bytes, pick) {
                    (_, 6) => continue,
                    (Some(bytes), pick) if *pick >= 4 || (*pick as usize) < self.source_count => {
                        bytes
                    }
                    _ => &zero,
                };
                if let Some(bytes) = bytes.get(..self.size) {
                    component.copy_from_slice(bytes);
                }
            }
        }
    }
}

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

    /// Does a launch.
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
                    // The driver makes such an entry valid and lets the engine go on.
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

    /// Whether the lines are such that the result is defined.
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
        // Lines over each other would run for ever for no use.
        !own
    }
}

/// A fault that was asked for.
pub(crate) fn injected(va: u64, client: &str) -> Failure {
    let access = super::Access::Write;
    let kind = super::MmuFaultKind::InvalidPte;
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
