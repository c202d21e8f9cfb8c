//! The front of the compute engine: its methods, uploads, and launches up to the shader code.
//!
//! Source: `clc7c0.h`; which software and firmware methods the driver accepts is from nvgpu r36.4.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::SmFault;
use super::access::{Core, Failure, Site, SmMemory, within_host};
use super::channel::{Channel, Flow, Task};
use super::copy::injected;
use super::mmu::{Access, Mmu, MmuFault, PAGE, Piece};
use super::order::{Agent, Kind};
use super::qmd::{BYTES, Bank, DependentAction, LocalMemory, Qmd, SkedError, WINDOW, esr};
use super::semaphore::{Reduction, Width, Write};
use super::shadow::Snapshot;
use crate::class::compute::{self as methods, METHODS};
use crate::class::{self, Bits, bits};
use crate::config::Occasion;
use crate::finding::{Rule, notifier};
use crate::trace::Event;

const fn execute(field: &str) -> Bits {
    bits(METHODS, methods::REPORT_SEMAPHORE_EXECUTE, field)
}

const REPORT_OPERATION: Bits = execute("OPERATION");
const REPORT_AWAKEN: Bits = execute("AWAKEN_ENABLE");
const REPORT_SIZE: Bits = execute("STRUCTURE_SIZE");
const REPORT_REDUCTION_ENABLE: Bits = execute("REDUCTION_ENABLE");
const REPORT_REDUCTION_OP: Bits = execute("REDUCTION_OP");
const REPORT_REDUCTION_FORMAT: Bits = execute("REDUCTION_FORMAT");
const REPORT_PAYLOAD64: Bits = execute("PAYLOAD_SIZE64");

const fn report_d(field: &str) -> Bits {
    bits(METHODS, methods::SET_REPORT_SEMAPHORE_D, field)
}

const OLD_OPERATION: Bits = report_d("OPERATION");
const OLD_AWAKEN: Bits = report_d("AWAKEN_ENABLE");
const OLD_SIZE: Bits = report_d("STRUCTURE_SIZE");
const OLD_REDUCTION_ENABLE: Bits = report_d("REDUCTION_ENABLE");
const OLD_REDUCTION_OP: Bits = report_d("REDUCTION_OP");
const OLD_REDUCTION_FORMAT: Bits = report_d("REDUCTION_FORMAT");

const fn upload(field: &str) -> Bits {
    bits(METHODS, methods::LAUNCH_DMA, field)
}

const UPLOAD_LAYOUT: Bits = upload("DST_MEMORY_LAYOUT");
const UPLOAD_COMPLETION: Bits = upload("COMPLETION_TYPE");
const UPLOAD_INTERRUPT: Bits = upload("INTERRUPT_TYPE");
const UPLOAD_SEMAPHORE_SIZE: Bits = upload("SEMAPHORE_STRUCT_SIZE");
const UPLOAD_REDUCTION: Bits = upload("REDUCTION_ENABLE");

const PCAS_ACTION: Bits = bits(METHODS, methods::SEND_SIGNALING_PCAS2_B, "PCAS_ACTION");
const PCAS_INVALIDATE: Bits = bits(METHODS, methods::SEND_SIGNALING_PCAS_B, "INVALIDATE");
const PCAS_SCHEDULE: Bits = bits(METHODS, methods::SEND_SIGNALING_PCAS_B, "SCHEDULE");

/// `SEND_SIGNALING_PCAS2_B_PCAS_ACTION`.
mod action {
    pub(super) const NOP: u32 = 0x0;
    pub(super) const INVALIDATE: u32 = 0x1;
    pub(super) const SCHEDULE: u32 = 0x2;
    pub(super) const INVALIDATE_COPY_SCHEDULE: u32 = 0x3;
    pub(super) const DECREMENT_DEPENDENCE: u32 = 0x7;
    pub(super) const PREFETCH: u32 = 0x8;
    pub(super) const PREFETCH_SCHEDULE: u32 = 0x9;
    pub(super) const INVALIDATE_PREFETCH_COPY_SCHEDULE: u32 = 0xa;
    pub(super) const INCREMENT_DEPENDENCE: u32 = 0xc;
}

/// `SET_RENDER_ENABLE_C_MODE_TRUE`, and of the override the value that does nothing.
const RENDER: u32 = 1;
/// Release operation of report semaphores.
const RELEASE: u32 = 0;
/// Launches that one watched chain is followed for.
const CHAIN: usize = 4096;
/// Ticks of a launch: about 5 microseconds.
const LAUNCH_TICKS: u64 = 160;
/// The instructions that any program has.
const LEAST_CODE: u64 = 16;

/// Registers of the compute engine that belong to the channel, and launches that wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct ComputeState {
    pub(crate) shared_window: u64,
    pub(crate) local_window: u64,
    pub(crate) local_memory: LocalMemory,
    /// QMD that the next action is about.
    pub(crate) qmd: u64,
    inline_qmd: u64,
    report: u64,
    report_payload: u64,
    line_length: u32,
    line_count: u32,
    destination: u64,
    upload_semaphore: u64,
    upload_payload: u32,
    upload: Option<Upload>,
    /// By QMD: launches that wait to be counted down.
    dependents: BTreeMap<u64, Dependence>,
}

#[derive(Clone, Copy, Debug)]
struct Dependence {
    left: u32,
    scheduled: bool,
}

/// An upload whose words come.
#[derive(Clone, Debug)]
struct Upload {
    launch: u32,
    destination: u64,
    left: u64,
    data: Vec<u8>,
}

/// A launch that waits for its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchJob {
    pub(crate) qmd: u64,
}

fn set_low(register: &mut u64, data: u32) {
    *register = *register & !u64::from(u32::MAX) | u64::from(data);
}

fn set_high(register: &mut u64, data: u32) {
    *register = *register & u64::from(u32::MAX) | u64::from(data) << 32;
}

impl ComputeState {
    /// Sets the register of a method that has one.
    pub(crate) fn set(&mut self, address: u32, data: u32) -> bool {
        match address {
            methods::SET_SHADER_SHARED_MEMORY_WINDOW_A => set_high(&mut self.shared_window, data),
            methods::SET_SHADER_SHARED_MEMORY_WINDOW_B => set_low(&mut self.shared_window, data),
            methods::SET_SHADER_LOCAL_MEMORY_WINDOW_A => set_high(&mut self.local_window, data),
            methods::SET_SHADER_LOCAL_MEMORY_WINDOW_B => set_low(&mut self.local_window, data),
            methods::SET_SHADER_LOCAL_MEMORY_A => set_high(&mut self.local_memory.base, data),
            methods::SET_SHADER_LOCAL_MEMORY_B => set_low(&mut self.local_memory.base, data),
            methods::SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A => {
                set_high(&mut self.local_memory.bytes_per_tpc, data);
            }
            methods::SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B => {
                set_low(&mut self.local_memory.bytes_per_tpc, data);
            }
            methods::SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C => self.local_memory.max_sms = data,
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

    /// Whether a launch waits to be counted down.
    pub(crate) fn has_dependent(&self) -> bool {
        self.dependents.values().any(|dependence| dependence.scheduled)
    }

    /// Drops launches that wait.
    pub(crate) fn forget(&mut self) {
        self.dependents.clear();
        self.upload = None;
    }
}

/// Whether the method makes a QMD run, as far as it alone says.
pub(crate) fn launches(address: u32, data: u32) -> bool {
    match address {
        methods::SEND_SIGNALING_PCAS2_B => schedules(PCAS_ACTION.get(data)),
        methods::SEND_SIGNALING_PCAS_B => PCAS_SCHEDULE.is_set(data),
        _ => false,
    }
}

const fn schedules(number: u32) -> bool {
    matches!(
        number,
        action::SCHEDULE
            | action::INVALIDATE_COPY_SCHEDULE
            | action::PREFETCH_SCHEDULE
            | action::INVALIDATE_PREFETCH_COPY_SCHEDULE
    )
}

fn sked(error: &SkedError, qmd: u64) -> Failure {
    let message =
        format!("sked exception: esr {:#010x}, QMD {qmd:#x}: {}", 1u32 << error.bit, error.message);
    Failure::new(Rule::SkedException, notifier::GR_EXCEPTION, message)
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
                return self.pcas(core, self.compute.qmd, PCAS_ACTION.get(data));
            }
            methods::SEND_SIGNALING_PCAS_B => {
                let qmd = self.compute.qmd;
                if PCAS_INVALIDATE.is_set(data) {
                    self.pcas(core, qmd, action::INVALIDATE)?;
                }
                if PCAS_SCHEDULE.is_set(data) {
                    self.pcas(core, qmd, action::SCHEDULE)?;
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
            // Those that the driver's software method handler accepts.
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
        let plain = UPLOAD_LAYOUT.is_set(launch) && state.line_count == 1;
        if !plain || UPLOAD_REDUCTION.is_set(launch) {
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
        let agent = core.order.issue(self.id, Kind::Immediate);
        let site = self.site(&agent, "upload");
        core.write(site, destination, &data).map_err(|fault| Failure::mmu(fault, "FE"))?;
        let (time, channel, bytes) = (core.clock.advance(2), self.id, data.len() as u64);
        core.trace.record(time, || Event::Upload { channel, destination, bytes });
        if UPLOAD_COMPLETION.get(launch) == 2 {
            let write = Write {
                address: self.compute.upload_semaphore,
                payload: self.compute.upload_payload.into(),
                width: Width::Word,
                timestamp: !UPLOAD_SEMAPHORE_SIZE.is_set(launch),
                reduction: None,
            };
            core.order.next_epoch(self.id);
            self.release(core, &agent, &write, "upload")?;
        }
        if UPLOAD_INTERRUPT.is_set(launch) {
            core.interrupt(self.id);
        }
        Ok(())
    }

    fn report(&mut self, core: &mut Core, data: u32) -> Flow {
        let width = if REPORT_PAYLOAD64.is_set(data) { Width::Long } else { Width::Word };
        let timestamp = REPORT_SIZE.get(data) == 0;
        let fits = timestamp || REPORT_SIZE.get(data) == if width == Width::Long { 2 } else { 1 };
        if REPORT_OPERATION.get(data) != RELEASE || !fits {
            self.find(core, Rule::NotModelled, format!("REPORT_SEMAPHORE_EXECUTE {data:#x}"));
            return Ok(());
        }
        let unsigned = REPORT_REDUCTION_FORMAT.get(data) == 0;
        let op = REPORT_REDUCTION_OP.get(data);
        let reduction = REPORT_REDUCTION_ENABLE.is_set(data);
        let write = Write {
            address: self.compute.report,
            payload: self.compute.report_payload,
            width,
            timestamp,
            reduction: reduction.then(|| Reduction::of_engine(op, unsigned)),
        };
        self.issue(core, Task::Report(write, REPORT_AWAKEN.is_set(data)), Kind::Serial);
        Ok(())
    }

    fn old_report(&mut self, core: &mut Core, data: u32) -> Flow {
        if OLD_OPERATION.get(data) != RELEASE {
            self.find(core, Rule::NotModelled, format!("SET_REPORT_SEMAPHORE_D {data:#x}"));
            return Ok(());
        }
        let unsigned = OLD_REDUCTION_FORMAT.get(data) == 0;
        let op = OLD_REDUCTION_OP.get(data);
        let write = Write {
            address: self.compute.report,
            payload: self.compute.report_payload & u64::from(u32::MAX),
            width: Width::Word,
            timestamp: !OLD_SIZE.is_set(data),
            reduction: OLD_REDUCTION_ENABLE
                .is_set(data)
                .then(|| Reduction::of_engine(op, unsigned)),
        };
        self.issue(core, Task::Report(write, OLD_AWAKEN.is_set(data)), Kind::Serial);
        Ok(())
    }

    fn inline_qmd_word(&mut self, core: &mut Core, index: u32, data: u32) -> Flow {
        let qmd = self.compute.inline_qmd;
        let at = qmd + u64::from(index) * 4;
        let agent = core.order.issue(self.id, Kind::Immediate);
        let site = self.site(&agent, "inline QMD");
        within_host(at, 4)
            .and_then(|()| core.write(site, at, &data.to_le_bytes()))
            .map_err(|fault| Failure::mmu(fault, "FE"))?;
        if index as usize == BYTES / 4 - 1 {
            return self.pcas(core, qmd, action::SCHEDULE);
        }
        Ok(())
    }

    /// Does something with a QMD.
    fn pcas(&mut self, core: &mut Core, qmd: u64, number: u32) -> Flow {
        match number {
            action::NOP => {}
            action::INVALIDATE => self.invalidate_qmd(qmd)?,
            action::PREFETCH => {
                self.read_qmd(core, qmd)?;
            }
            action::DECREMENT_DEPENDENCE => {
                let agent = core.order.issue(self.id, Kind::Overlapping);
                self.count_down(core, qmd, &agent)?;
            }
            action::INCREMENT_DEPENDENCE => {
                let counter = self.read_qmd(core, qmd)?.dependence_counter();
                let entry = self.compute.dependents.entry(qmd);
                entry.or_insert(Dependence { left: counter, scheduled: false }).left += 1;
            }
            number if schedules(number) => {
                if number != action::SCHEDULE && number != action::PREFETCH_SCHEDULE {
                    self.invalidate_qmd(qmd)?;
                }
                let counter = self.read_qmd(core, qmd)?.dependence_counter();
                let entry = self.compute.dependents.entry(qmd);
                let dependence = entry.or_insert(Dependence { left: counter, scheduled: false });
                dependence.scheduled = true;
                if dependence.left == 0 {
                    self.compute.dependents.remove(&qmd);
                    self.issue(core, Task::Launch(LaunchJob { qmd }), Kind::Overlapping);
                }
            }
            number => {
                self.find(core, Rule::NotModelled, format!("PCAS action {number:#x}"));
            }
        }
        Ok(())
    }

    fn invalidate_qmd(&mut self, qmd: u64) -> Result<(), Failure> {
        let active = |task: &Task| matches!(task, Task::Launch(job) if job.qmd == qmd);
        if self.work.iter().any(|work| active(&work.task)) {
            let message = "it is active".to_owned();
            return Err(sked(&SkedError { bit: esr::INVALIDATE_ACTIVE_QMD, message }, qmd));
        }
        self.compute.dependents.remove(&qmd);
        Ok(())
    }

    fn count_down(&mut self, core: &mut Core, qmd: u64, by: &Agent) -> Result<(), Failure> {
        let dependence = match self.compute.dependents.get(&qmd) {
            Some(dependence) => *dependence,
            None => {
                let left = self.read_qmd(core, qmd)?.dependence_counter();
                Dependence { left, scheduled: false }
            }
        };
        let Some(left) = dependence.left.checked_sub(1) else {
            let message = "its dependence counter is 0".to_owned();
            return Err(sked(&SkedError { bit: esr::DEPENDENCE_COUNTER_UNDERFLOW, message }, qmd));
        };
        if left == 0 && dependence.scheduled {
            self.compute.dependents.remove(&qmd);
            self.start_dependent(core, qmd, by, true);
        } else {
            self.compute.dependents.insert(qmd, Dependence { left, ..dependence });
        }
        Ok(())
    }

    /// A launch that another one's completion starts.
    fn start_dependent(&mut self, core: &mut Core, qmd: u64, by: &Agent, joins: bool) {
        let agent = by.follower(core.order.next_serial(self.id), joins);
        let task = Task::Launch(LaunchJob { qmd });
        self.work.push_front(super::channel::Work { agent, task, watched: Vec::new() });
    }

    fn read_qmd(&self, core: &mut Core, qmd: u64) -> Result<Qmd, Failure> {
        let agent = core.order.issue(self.id, Kind::Immediate);
        self.read_qmd_as(core, qmd, &agent)
    }

    fn read_qmd_as(&self, core: &mut Core, qmd: u64, agent: &Agent) -> Result<Qmd, Failure> {
        let mut bytes = [0; BYTES];
        let site = self.site(agent, "SKED");
        within_host(qmd, BYTES as u64)
            .and_then(|()| core.read(site, qmd, &mut bytes))
            .map_err(|fault| Failure::mmu(fault, "SKED"))?;
        Ok(Qmd::from_bytes(&bytes))
    }

    /// Keeps an eye on a launch's QMD, constants and those of its dependents.
    pub(crate) fn watch_launch(&self, core: &Core, qmd: u64, watched: &mut Vec<(Rule, Snapshot)>) {
        let mut next = Some(qmd);
        for _ in 0..CHAIN {
            let Some(at) = next.take() else { return };
            let snapshot = Snapshot::take(&self.mmu, &core.shadow, at, BYTES as u64);
            watched.push((Rule::QmdRewritten, snapshot));
            let Some(qmd) = peek_qmd(&self.mmu, at) else { return };
            watch_constants(&self.mmu, core, &qmd, watched);
            next = qmd.dependent().ok().flatten().map(|dependent| dependent.qmd);
            if watched.iter().any(|(_, seen)| Some(seen.va()) == next) {
                return;
            }
        }
    }

    /// Does a launch.
    pub(crate) fn run_launch(
        &mut self,
        core: &mut Core,
        agent: &Agent,
        job: LaunchJob,
    ) -> Result<(), Failure> {
        let LaunchJob { qmd: at } = job;
        if core.injection.fires(&Occasion::MmuFault) {
            return Err(injected(at, "SM"));
        }
        let qmd = self.read_qmd_as(core, at, agent)?;
        let (major, minor) = qmd.version();
        if (major, minor) != (3, 0) {
            let what = format!("class error: QMD {at:#x} has version {major}.{minor}, not 3.0");
            return Err(Failure::new(Rule::SkedException, notifier::GR_EXCEPTION, what));
        }
        if let Some(name) = qmd.reserved() {
            self.find(core, Rule::QmdReserved, format!("QMD {at:#x}: {name}"));
        }
        let dependent = qmd.dependent().unwrap_or_else(|what| {
            self.find(core, Rule::NotModelled, format!("QMD {at:#x}: {what}"));
            None
        });
        if qmd.is_queue() {
            self.find(core, Rule::NotModelled, format!("QMD {at:#x} is a queue"));
            return Ok(());
        }
        let seed = core.random.next();
        let launch = qmd.launch(self.id, at, &self.compute, seed);
        let launch = launch.map_err(|error| sked(&error, at))?;
        for (name, window) in [("local", launch.local_window), ("shared", launch.shared_window)] {
            if let Some(mapped) = self.mmu.first_mapped(window, WINDOW) {
                let message = format!("{mapped:#x} lies in the {name} window at {window:#x}");
                self.find(core, Rule::MappingInWindow, message);
            }
        }
        self.fill_caches(core, agent, &qmd)?;
        let mut watched =
            vec![(Rule::QmdRewritten, Snapshot::take(&self.mmu, &core.shadow, at, BYTES as u64))];
        watch_constants(&self.mmu, core, &qmd, &mut watched);

        let result = match core.engine.take() {
            Some(mut engine) => {
                let site = Site { mmu: &self.mmu, channel: self.id, agent, unit: "shader" };
                let memory = SmMemory { site, core: Mutex::new(core) };
                let result = engine.launch(&launch, &memory);
                core.engine = Some(engine);
                result
            }
            None => Ok(()),
        };
        let (time, channel) = (core.clock.advance(LAUNCH_TICKS), self.id);
        core.trace.record(time, || Event::Launch {
            channel,
            qmd: at,
            program: launch.program,
            grid: launch.grid,
            block: launch.block,
        });
        result.map_err(sm_failure)?;
        self.check_watched(core, &watched, "while the launch ran");

        match qmd.releases() {
            Ok(releases) => {
                for write in &releases {
                    self.release(core, agent, write, "QMD")?;
                }
            }
            Err(what) => self.find(core, Rule::SemaphoreMisuse, format!("QMD {at:#x}: {what}")),
        }
        match dependent.map(|dependent| (dependent.action, dependent.qmd)) {
            None => {}
            Some((DependentAction::Schedule, next)) => {
                let counter = self.read_qmd_as(core, next, agent)?.dependence_counter();
                let entry = self.compute.dependents.entry(next);
                let dependence = entry.or_insert(Dependence { left: counter, scheduled: false });
                dependence.scheduled = true;
                if dependence.left == 0 {
                    self.compute.dependents.remove(&next);
                    self.start_dependent(core, next, agent, false);
                }
            }
            Some((DependentAction::DecrementDependence, next)) => {
                self.count_down(core, next, agent)?;
            }
            Some((DependentAction::Queue, next)) => {
                self.find(core, Rule::NotModelled, format!("QMD {at:#x} acts on queue {next:#x}"));
            }
        }
        Ok(())
    }

    /// Reads constants and code through their caches, as the launch does at its start.
    fn fill_caches(&self, core: &mut Core, agent: &Agent, qmd: &Qmd) -> Result<(), Failure> {
        if qmd.invalidates_constants() {
            core.shadow.constants.invalidate();
        }
        if qmd.invalidates_instructions() {
            core.shadow.instructions.invalidate();
        }
        if qmd.invalidates_data() {
            core.shadow.data.invalidate();
        }
        for (index, bank) in qmd.constants().into_iter().enumerate() {
            let Some(Bank { address, bytes, invalidate }) = bank else { continue };
            let mut first = [0; 16];
            let site = self.site(agent, "constant cache");
            core.read(site, address, &mut first[..bytes.min(16) as usize])
                .map_err(|fault| Failure::mmu(fault, "constant cache"))?;
            for piece in reachable(&self.mmu, address, bytes.into()) {
                if invalidate {
                    core.shadow.constants.invalidate_range(&piece);
                }
                if core.shadow.constants.read(&piece).is_some() {
                    let message = format!("bank {index} at {address:#x}");
                    self.find(core, Rule::StaleConstantCache, message);
                }
            }
        }
        let program = qmd.program();
        let mut first = [0; LEAST_CODE as usize];
        core.read(self.site(agent, "instruction cache"), program, &mut first)
            .map_err(|fault| Failure::mmu(fault, "instruction cache"))?;
        let (ahead, bytes) = qmd.prefetch();
        for (va, bytes) in [(program, LEAST_CODE), (ahead, bytes)] {
            for piece in reachable(&self.mmu, va, bytes) {
                if core.shadow.instructions.read(&piece).is_some() {
                    self.find(core, Rule::StaleInstructionCache, format!("program {program:#x}"));
                }
            }
        }
        Ok(())
    }

    /// Does a report semaphore.
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
    // Both methods have these fields at the same places.
    const INSTRUCTION: Bits = bits(METHODS, methods::INVALIDATE_SHADER_CACHES, "INSTRUCTION");
    const DATA: Bits = bits(METHODS, methods::INVALIDATE_SHADER_CACHES, "DATA");
    const CONSTANT: Bits = bits(METHODS, methods::INVALIDATE_SHADER_CACHES, "CONSTANT");
    if INSTRUCTION.is_set(data) {
        core.shadow.instructions.invalidate();
    }
    if DATA.is_set(data) {
        core.shadow.data.invalidate();
    }
    if CONSTANT.is_set(data) {
        core.shadow.constants.invalidate();
    }
}

fn watch_constants(mmu: &Mmu, core: &Core, qmd: &Qmd, watched: &mut Vec<(Rule, Snapshot)>) {
    for Bank { address, bytes, .. } in qmd.constants().into_iter().flatten() {
        let snapshot = Snapshot::take(mmu, &core.shadow, address, bytes.into());
        watched.push((Rule::ConstantsRewritten, snapshot));
    }
}

/// A QMD as it is now, without any effect.
fn peek_qmd(mmu: &Mmu, at: u64) -> Option<Qmd> {
    let piece = mmu.resolve(at, BYTES as u64, Access::Read).ok()?.pop()?;
    let mut bytes = [0; BYTES];
    piece.buffer.read(piece.offset, &mut bytes).ok()?;
    Some(Qmd::from_bytes(&bytes))
}

/// The pieces of a range as far as it is mapped without a gap: a bank may claim more than it has.
fn reachable(mmu: &Mmu, va: u64, bytes: u64) -> Vec<Piece> {
    let end = va.saturating_add(bytes);
    let mut pieces = Vec::new();
    let mut at = va;
    while at < end {
        let until = end.min((at / PAGE + 1).saturating_mul(PAGE));
        let Ok(found) = mmu.resolve(at, until - at, Access::Read) else { break };
        pieces.extend(found);
        at = until;
    }
    pieces
}

fn sm_failure(fault: SmFault) -> Failure {
    let mut failure = match &fault {
        SmFault::Mmu(fault) => Failure::mmu(MmuFault { ..*fault }, "SM"),
        SmFault::Exception { name, sm, global_esr, warp_esr, warp_pc, message } => {
            let message = format!(
                "sm machine check err. gpc_id({}), tpc_id({}); sm hww global {global_esr:#010x} \
                 warp {warp_esr:#010x}, pc {warp_pc:#x}: {name}: {message}",
                sm / 8,
                sm / 2 % 4,
            );
            Failure::new(Rule::SmException, notifier::GR_EXCEPTION, message)
        }
    };
    failure.sm = Some(fault);
    failure
}
