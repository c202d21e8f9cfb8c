//! Front end of the compute engine: methods, uploads and report semaphores.
//!
//! Source: `clc7c0.h`; the software and firmware methods that the driver accepts are from nvgpu
//! r36.4.

use super::access::{Core, Failure, within_host};
use super::channel::{Channel, Flow, Task};
use super::dependencies::{Agent, Kind};
use super::qmd::BYTES;
use super::registers::Upload;
use super::semaphore::{Reduction, Width, Write};
use crate::class;
pub(super) use crate::class::compute::SEND_SIGNALING_PCAS2_B as pcas2;
use crate::class::compute::{self as methods, METHODS};
use crate::finding::{Rule, notifier};
use crate::trace::Event;

/// `SET_RENDER_ENABLE_C_MODE_TRUE`, and the override value without effect.
const RENDER: u32 = 1;

/// Returns whether a method launches a QMD, judged by the method alone.
pub(crate) fn launches(address: u32, data: u32) -> bool {
    match address {
        methods::SEND_SIGNALING_PCAS2_B => schedules(pcas2::PCAS_ACTION.get(data)),
        methods::SEND_SIGNALING_PCAS_B => methods::SEND_SIGNALING_PCAS_B::SCHEDULE.is_set(data),
        _ => false,
    }
}

/// Returns whether a PCAS action launches a QMD.
pub(super) const fn schedules(number: u32) -> bool {
    matches!(
        number,
        pcas2::PCAS_ACTION_SCHEDULE
            | pcas2::PCAS_ACTION_INVALIDATE_COPY_SCHEDULE
            | pcas2::PCAS_ACTION_PREFETCH_SCHEDULE
            | pcas2::PCAS_ACTION_INVALIDATE_PREFETCH_COPY_SCHEDULE
    )
}

impl Channel {
    pub(crate) fn compute_method(&mut self, core: &mut Core, address: u32, data: u32) -> Flow {
        let Some(known) = class::find(METHODS, address) else {
            let what = format!("illegal method {address:#x} of class 0xc7c0, data {data:#x}");
            return Err(Failure::new(Rule::IllegalMethod, notifier::ILLEGAL_NOTIFY, what).into());
        };
        known.check(data).map_err(|error| {
            let what = format!("class error: {error}");
            Failure::new(Rule::ReservedBits, notifier::GR_EXCEPTION, what)
        })?;
        if self.compute.upload.is_some() && address != methods::LOAD_INLINE_DATA {
            let what = format!("class error: {} within an upload's data", known.name);
            return Err(Failure::new(Rule::IllegalMethod, notifier::GR_EXCEPTION, what).into());
        }
        if self.compute.set(address, data) {
            return Ok(());
        }
        let not_modelled = |channel: &Self, core: &mut Core| {
            channel.find(core, Rule::NotModelled, known.decode(data).to_string());
            Ok(())
        };
        match address {
            methods::WAIT_FOR_IDLE | methods::PM_TRIGGER_WFI => self.wait_for_idle(core)?,
            methods::INVALIDATE_SHADER_CACHES => {
                self.wait_for_idle(core)?;
                invalidate(core, data);
            }
            methods::INVALIDATE_SHADER_CACHES_NO_WFI => invalidate(core, data),
            methods::SEND_SIGNALING_PCAS2_B => {
                return self.pcas(core, self.compute.qmd, pcas2::PCAS_ACTION.get(data));
            }
            methods::SEND_SIGNALING_PCAS_B => {
                let qmd = self.compute.qmd;
                if methods::SEND_SIGNALING_PCAS_B::INVALIDATE.is_set(data) {
                    self.pcas(core, qmd, pcas2::PCAS_ACTION_INVALIDATE)?;
                }
                if methods::SEND_SIGNALING_PCAS_B::SCHEDULE.is_set(data) {
                    self.pcas(core, qmd, pcas2::PCAS_ACTION_SCHEDULE)?;
                }
            }
            methods::LAUNCH_DMA => return self.begin_upload(core, data),
            methods::LOAD_INLINE_DATA => return self.upload_word(core, data),
            methods::REPORT_SEMAPHORE_EXECUTE => return self.report(core, data),
            methods::SET_REPORT_SEMAPHORE_D => return self.old_report(core, data),
            methods::LOAD_INLINE_QMD_DATA..0x420 => {
                return self.inline_qmd_word(
                    core,
                    (address - methods::LOAD_INLINE_QMD_DATA) / 4,
                    data,
                );
            }
            // Software methods that the driver's handler accepts.
            methods::SET_RESERVED_SW_METHOD00
            | methods::SET_RESERVED_SW_METHOD03
            | methods::SET_RESERVED_SW_METHOD06
            | methods::SET_RESERVED_SW_METHOD07 => {}
            methods::SET_RESERVED_SW_METHOD00..=methods::SET_RESERVED_SW_METHOD15
                if known.name.starts_with("SET_RESERVED_SW_METHOD") =>
            {
                let what = format!("illegal software method {}", known.name);
                return Err(
                    Failure::new(Rule::IllegalMethod, notifier::ILLEGAL_NOTIFY, what).into()
                );
            }
            methods::SET_FALCON00..=methods::SET_FALCON15 => {
                let what = format!("firmware method {}", known.name);
                return Err(Failure::new(Rule::IllegalMethod, notifier::GR_EXCEPTION, what).into());
            }
            methods::SET_RENDER_ENABLE_C | methods::SET_GLOBAL_RENDER_ENABLE_C
                if data == RENDER => {}
            methods::SET_RENDER_ENABLE_C
            | methods::SET_GLOBAL_RENDER_ENABLE_C
            | methods::SET_RENDER_ENABLE_OVERRIDE
            | methods::NOTIFY
            | methods::SEND_PCAS_B
            | methods::SET_QMD_VIRTUALIZATION_CONTROL
            | methods::SET_CWD_REF_COUNTER => return not_modelled(self, core),
            _ if known.name.contains("MME") => return not_modelled(self, core),
            _ => {}
        }
        Ok(())
    }

    fn begin_upload(&mut self, core: &mut Core, launch: u32) -> Flow {
        let state = &mut self.compute;
        let plain = methods::LAUNCH_DMA::DST_MEMORY_LAYOUT.is_set(launch) && state.line_count == 1;
        if !plain || methods::LAUNCH_DMA::REDUCTION_ENABLE.is_set(launch) {
            let what = format!("upload {launch:#x} of {} lines", state.line_count);
            self.find(core, Rule::NotModelled, what);
            return Ok(());
        }
        let bytes = u64::from(state.line_length);
        let (destination, left) = (state.destination, bytes.next_multiple_of(4));
        if left > 0 {
            state.upload = Some(Upload { launch, destination, left, data: Vec::new() });
        }
        Ok(())
    }

    fn upload_word(&mut self, core: &mut Core, data: u32) -> Flow {
        let Some(upload) = &mut self.compute.upload else {
            let what = "class error: LOAD_INLINE_DATA without LAUNCH_DMA";
            return Err(Failure::new(Rule::IllegalMethod, notifier::GR_EXCEPTION, what).into());
        };
        upload.data.extend_from_slice(&data.to_le_bytes());
        upload.left -= 4;
        if upload.left > 0 {
            return Ok(());
        }
        let Some(Upload { launch, destination, mut data, .. }) = self.compute.upload.take() else {
            return Ok(());
        };
        data.truncate(self.compute.line_length as usize);
        let agent = core.dependencies.issue(self.id, Kind::Immediate);
        let site = self.site(&agent, "upload");
        core.write(site, destination, &data).map_err(|fault| Failure::mmu(fault, "FE"))?;
        let (time, channel, bytes) = (core.clock.advance(2), self.id, data.len() as u64);
        core.trace.record(time, || Event::Upload { channel, destination, bytes });
        if methods::LAUNCH_DMA::COMPLETION_TYPE.get(launch) == 2 {
            let write = Write {
                address: self.compute.upload_semaphore,
                payload: self.compute.upload_payload.into(),
                width: Width::Word,
                timestamp: !methods::LAUNCH_DMA::SEMAPHORE_STRUCT_SIZE.is_set(launch),
                reduction: None,
            };
            core.dependencies.next_epoch(self.id);
            self.release(core, &agent, &write, "upload")?;
        }
        if methods::LAUNCH_DMA::INTERRUPT_TYPE.is_set(launch) {
            core.interrupt(self.id);
        }
        Ok(())
    }

    fn report(&mut self, core: &mut Core, data: u32) -> Flow {
        use methods::REPORT_SEMAPHORE_EXECUTE as report;
        let width = if report::PAYLOAD_SIZE64.is_set(data) { Width::Long } else { Width::Word };
        let timestamp = report::STRUCTURE_SIZE.get(data) == 0;
        let fits = timestamp
            || report::STRUCTURE_SIZE.get(data) == if width == Width::Long { 2 } else { 1 };
        if report::OPERATION.get(data) != report::OPERATION_RELEASE || !fits {
            self.find(core, Rule::NotModelled, format!("REPORT_SEMAPHORE_EXECUTE {data:#x}"));
            return Ok(());
        }
        let unsigned = report::REDUCTION_FORMAT.get(data) == 0;
        let op = report::REDUCTION_OP.get(data);
        let reduction = report::REDUCTION_ENABLE.is_set(data);
        let write = Write {
            address: self.compute.report,
            payload: self.compute.report_payload,
            width,
            timestamp,
            reduction: reduction.then(|| Reduction::of_engine(op, unsigned)),
        };
        self.issue(core, Task::Report(write, report::AWAKEN_ENABLE.is_set(data)), Kind::Serial);
        Ok(())
    }

    fn old_report(&mut self, core: &mut Core, data: u32) -> Flow {
        use methods::SET_REPORT_SEMAPHORE_D as report_d;
        if report_d::OPERATION.get(data) != report_d::OPERATION_RELEASE {
            self.find(core, Rule::NotModelled, format!("SET_REPORT_SEMAPHORE_D {data:#x}"));
            return Ok(());
        }
        let unsigned = report_d::REDUCTION_FORMAT.get(data) == 0;
        let op = report_d::REDUCTION_OP.get(data);
        let write = Write {
            address: self.compute.report,
            payload: self.compute.report_payload & u64::from(u32::MAX),
            width: Width::Word,
            timestamp: !report_d::STRUCTURE_SIZE.is_set(data),
            reduction: report_d::REDUCTION_ENABLE
                .is_set(data)
                .then(|| Reduction::of_engine(op, unsigned)),
        };
        self.issue(core, Task::Report(write, report_d::AWAKEN_ENABLE.is_set(data)), Kind::Serial);
        Ok(())
    }

    fn inline_qmd_word(&mut self, core: &mut Core, index: u32, data: u32) -> Flow {
        let qmd = self.compute.inline_qmd;
        let at = qmd + u64::from(index) * 4;
        let agent = core.dependencies.issue(self.id, Kind::Immediate);
        let site = self.site(&agent, "inline QMD");
        within_host(at, 4)
            .and_then(|()| core.write(site, at, &data.to_le_bytes()))
            .map_err(|fault| Failure::mmu(fault, "FE"))?;
        if index as usize == BYTES / 4 - 1 {
            return self.pcas(core, qmd, pcas2::PCAS_ACTION_SCHEDULE);
        }
        Ok(())
    }

    /// Executes a report semaphore.
    pub(crate) fn run_report(
        &mut self,
        core: &mut Core,
        agent: &Agent,
        write: &Write,
        awaken: bool,
    ) -> Result<(), Failure> {
        self.release(core, agent, write, "compute")?;
        if awaken {
            core.interrupt(self.id);
        }
        Ok(())
    }
}

fn invalidate(core: &mut Core, data: u32) {
    // Both methods have these fields at the same bits.
    use methods::INVALIDATE_SHADER_CACHES::{CONSTANT, DATA, INSTRUCTION};
    if INSTRUCTION.is_set(data) {
        core.shadow.instructions.invalidate();
    }
    if DATA.is_set(data) {
        core.invalidate_data(false);
    }
    if CONSTANT.is_set(data) {
        core.shadow.constants.invalidate();
    }
}
