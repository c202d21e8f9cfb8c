//! Copies as the copy engine's registers describe them: lines, pitches, and how elements are composed.
//!
//! Owns the registers ([`CopyState`]) and the decoded launch ([`CopyJob`]); [`super::copy`] executes it.

use super::registers::{set_high, set_low};
use super::semaphore::{Reduction, Width, Write};
use crate::class::Field;
use crate::class::copy as methods;
use crate::class::copy::LAUNCH_DMA::{
    DATA_TRANSFER_TYPE, MULTI_LINE_ENABLE, REMAP_ENABLE, SEMAPHORE_PAYLOAD_SIZE,
    SEMAPHORE_REDUCTION, SEMAPHORE_REDUCTION_ENABLE, SEMAPHORE_REDUCTION_SIGN, SEMAPHORE_TYPE,
};
use crate::class::copy::SET_REMAP_COMPONENTS::{
    COMPONENT_SIZE, DST_W, DST_X, DST_Y, DST_Z, NUM_DST_COMPONENTS, NUM_SRC_COMPONENTS,
};

const COMPONENTS: [Field; 4] = [DST_X, DST_Y, DST_Z, DST_W];

/// Registers of the copy engine.
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
    /// Writes were not followed by a flush.
    pub(super) unflushed: bool,
}

impl CopyState {
    /// Sets the register of a method; returns false if it has none.
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

    /// Records a flush of all writes.
    pub(crate) fn flushed(&mut self) {
        self.unflushed = false;
    }

    /// Returns the address and bytes that a launch with `data` reads.
    pub(crate) fn source(&self, data: u32) -> Option<(u64, u64)> {
        let transfer = self.transfer(data)?;
        let bytes = transfer.span(transfer.source_line, transfer.source_pitch);
        (transfer.source_line > 0 && bytes > 0).then_some((transfer.source, bytes))
    }

    /// Returns the transfer of a launch with `data`.
    pub(super) fn transfer(&self, data: u32) -> Option<Transfer> {
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

    pub(super) fn write(&self, data: u32) -> Result<Option<Write>, &'static str> {
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

/// A launch, decoded from the registers.
#[derive(Clone, Debug)]
pub(crate) struct CopyJob {
    pub(super) transfer: Option<Transfer>,
    pub(super) pipelined: bool,
    pub(super) flush: bool,
    pub(super) write: Option<Write>,
    pub(super) interrupt: bool,
}

impl CopyJob {
    /// Returns whether it may overlap the previous work.
    pub(crate) const fn is_pipelined(&self) -> bool {
        self.pipelined && self.transfer.is_some()
    }

    /// Returns whether it releases a semaphore.
    pub(crate) const fn releases(&self) -> bool {
        self.write.is_some()
    }
}

/// A copy or fill. Lengths in bytes.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    pub(super) source: u64,
    pub(super) destination: u64,
    pub(super) lines: u64,
    pub(super) elements: u64,
    pub(super) source_line: u64,
    pub(super) destination_line: u64,
    pub(super) source_pitch: u64,
    pub(super) destination_pitch: u64,
    pub(super) remap: Option<Remap>,
}

impl Transfer {
    /// Returns the number of bytes from the first line to the end of the last.
    pub(super) fn span(&self, line: u64, pitch: u64) -> u64 {
        match self.lines {
            0 => 0,
            lines => (lines - 1).saturating_mul(pitch).saturating_add(line),
        }
    }
}

/// Composition of elements from components.
#[derive(Clone, Debug)]
pub(super) struct Remap {
    /// Source of each written component.
    picks: [u32; 4],
    count: usize,
    source_count: usize,
    /// Size of a component in bytes.
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

    pub(super) fn bytes(&self) -> u64 {
        (self.count * self.size) as u64
    }

    /// Bytes read for an element; 0 if only constants are written.
    pub(super) fn source_bytes(&self) -> u64 {
        let reads = self.used().iter().any(|pick| *pick < 4);
        if reads { (self.source_count * self.size) as u64 } else { 0 }
    }

    /// Returns whether parts of an element stay unchanged.
    pub(super) fn keeps(&self) -> bool {
        self.used().contains(&6)
    }

    /// Composes elements from `source` into `out`.
    pub(super) fn apply(&self, source: &[u8], out: &mut [u8]) {
        let stride = self.source_bytes() as usize;
        for (index, element) in out.chunks_exact_mut(self.count * self.size).enumerate() {
            let from = source.get(index * stride..).unwrap_or_default();
            for (pick, component) in self.used().iter().zip(element.chunks_exact_mut(self.size)) {
                let bytes = match pick {
                    4 | 5 => self.constants.get(*pick as usize - 4).map(<[u8; 4]>::as_slice),
                    6 => None,
                    pick => from.get(*pick as usize * self.size..),
                };
                // Components that are not read are zero.
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
