//! Registers of the host unit and the compute engine, one set for each channel, and the methods
//! that set them.
//!
//! Those of the copy engine are in [`super::transfer`].

use std::collections::BTreeMap;

use super::qmd::LaunchState;
use crate::class::compute as methods;

/// Registers of the host unit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HostState {
    pub(super) address_low: u32,
    pub(super) address_high: u32,
    pub(super) payload_low: u32,
    pub(super) payload_high: u32,
    pub(super) mem_op_c: u32,
}

impl HostState {
    pub(super) fn address(&self) -> u64 {
        u64::from(self.address_high) << 32 | u64::from(self.address_low)
    }

    pub(super) fn payload(&self) -> u64 {
        u64::from(self.payload_high) << 32 | u64::from(self.payload_low)
    }
}

/// Registers of the compute engine, and launches that wait for their dependence counter.
#[derive(Clone, Debug, Default)]
pub(crate) struct ComputeState {
    pub(crate) launch: LaunchState,
    /// QMD of the next action.
    pub(crate) qmd: u64,
    pub(super) inline_qmd: u64,
    pub(super) report: u64,
    pub(super) report_payload: u64,
    pub(super) line_length: u32,
    pub(super) line_count: u32,
    pub(super) destination: u64,
    pub(super) upload_semaphore: u64,
    pub(super) upload_payload: u32,
    pub(super) upload: Option<Upload>,
    /// Launches that wait for their dependence counter, by QMD.
    pub(super) dependents: BTreeMap<u64, Dependence>,
}

/// A launch that waits for its dependence counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dependence {
    pub(super) left: u32,
    pub(super) scheduled: bool,
}

/// An upload in progress.
#[derive(Clone, Debug)]
pub(super) struct Upload {
    pub(super) launch: u32,
    pub(super) destination: u64,
    pub(super) left: u64,
    pub(super) data: Vec<u8>,
}

impl ComputeState {
    /// Sets the register of a method; returns false if it has none.
    pub(crate) fn set(&mut self, address: u32, data: u32) -> bool {
        match address {
            methods::SET_SHADER_SHARED_MEMORY_WINDOW_A => {
                set_high(&mut self.launch.shared_window, data);
            }
            methods::SET_SHADER_SHARED_MEMORY_WINDOW_B => {
                set_low(&mut self.launch.shared_window, data);
            }
            methods::SET_SHADER_LOCAL_MEMORY_WINDOW_A => {
                set_high(&mut self.launch.local_window, data);
            }
            methods::SET_SHADER_LOCAL_MEMORY_WINDOW_B => {
                set_low(&mut self.launch.local_window, data);
            }
            methods::SET_SHADER_LOCAL_MEMORY_A => {
                set_high(&mut self.launch.local_memory.base, data);
            }
            methods::SET_SHADER_LOCAL_MEMORY_B => set_low(&mut self.launch.local_memory.base, data),
            methods::SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A => {
                set_high(&mut self.launch.local_memory.bytes_per_tpc, data);
            }
            methods::SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B => {
                set_low(&mut self.launch.local_memory.bytes_per_tpc, data);
            }
            methods::SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C => {
                self.launch.local_memory.max_sms = data;
            }
            methods::SEND_PCAS_A => self.qmd = u64::from(data) << 8,
            methods::SET_INLINE_QMD_ADDRESS_A => {
                self.inline_qmd = self.inline_qmd & 0xff_ffff_ff00 | u64::from(data) << 40;
            }
            methods::SET_INLINE_QMD_ADDRESS_B => {
                self.inline_qmd = self.inline_qmd & !0xff_ffff_ff00 | u64::from(data) << 8;
            }
            methods::SET_REPORT_SEMAPHORE_ADDRESS_UPPER | methods::SET_REPORT_SEMAPHORE_A => {
                set_high(&mut self.report, data);
            }
            methods::SET_REPORT_SEMAPHORE_ADDRESS_LOWER | methods::SET_REPORT_SEMAPHORE_B => {
                set_low(&mut self.report, data);
            }
            methods::SET_REPORT_SEMAPHORE_PAYLOAD_LOWER | methods::SET_REPORT_SEMAPHORE_C => {
                set_low(&mut self.report_payload, data);
            }
            methods::SET_REPORT_SEMAPHORE_PAYLOAD_UPPER => {
                set_high(&mut self.report_payload, data);
            }
            methods::LINE_LENGTH_IN => self.line_length = data,
            methods::LINE_COUNT => self.line_count = data,
            methods::OFFSET_OUT_UPPER => set_high(&mut self.destination, data),
            methods::OFFSET_OUT => set_low(&mut self.destination, data),
            methods::SET_I2M_SEMAPHORE_A => set_high(&mut self.upload_semaphore, data),
            methods::SET_I2M_SEMAPHORE_B => set_low(&mut self.upload_semaphore, data),
            methods::SET_I2M_SEMAPHORE_C => self.upload_payload = data,
            _ => return false,
        }
        true
    }

    /// Returns whether a launch waits for its dependence counter.
    pub(crate) fn has_dependent(&self) -> bool {
        self.dependents.values().any(|dependence| dependence.scheduled)
    }

    /// Drops waiting launches.
    pub(crate) fn forget(&mut self) {
        self.dependents.clear();
        self.upload = None;
    }
}

/// Replaces the lower word of a register.
pub(super) fn set_low(register: &mut u64, data: u32) {
    *register = *register & !u64::from(u32::MAX) | u64::from(data);
}

/// Replaces the upper word of a register.
pub(super) fn set_high(register: &mut u64, data: u32) {
    *register = *register & u64::from(u32::MAX) | u64::from(data) << 32;
}
