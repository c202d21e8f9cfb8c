//! Host unit: routes methods to engines, and executes its own methods.
//!
//! Source: `dev_pbdma` of GA100's manual; the driver's handling of each interrupt is from nvgpu
//! r36.4 (`hal/fifo/pbdma`).

use super::access::{Core, Failure};
use super::channel::{Acquire, Channel, Engine, Flow, Stop, Wait, userd};
use super::dependencies::Kind;
use super::pbdma::{Method, Step};
use super::semaphore::{Condition, Reduction, Width, Write};
use crate::class;
use crate::class::host::SEM_EXECUTE::{
    OPERATION, OPERATION_REDUCTION, OPERATION_RELEASE, PAYLOAD_SIZE, REDUCTION, REDUCTION_FORMAT,
    RELEASE_TIMESTAMP, RELEASE_WFI,
};
use crate::class::host::{self as methods, MEM_OP_D as mem_op, METHODS, METHODS_END};
use crate::config::Occasion;
use crate::finding::{Rule, notifier};
use crate::trace::Event;

fn pbdma_error(rule: Rule, interrupt: u32, what: &str) -> Failure {
    let message = format!("pbdma_intr_0({:#010x}): {what}", 1u32 << interrupt);
    Failure::new(rule, notifier::PBDMA_ERROR, message)
}

/// Bits of `NV_PPBDMA_INTR_0`.
const PBENTRY: u32 = 18;
const METHOD: u32 = 21;
const DEVICE: u32 = 23;

impl Channel {
    /// Executes one word of the stream, or the method that waited.
    pub(crate) fn advance(&mut self, core: &mut Core) -> Result<(), Failure> {
        let method = match self.method.take() {
            Some(method) => method,
            None => match self.next_method(core)? {
                Some(method) => method,
                None => return Ok(()),
            },
        };
        let waited = self.wait.take().is_some();
        if !waited {
            self.remember(method);
            let (time, channel) = (core.clock.now(), self.id);
            let Method { subchannel, address, data } = method;
            let text = || self.text(method);
            core.trace.record(time, || Event::Method {
                channel,
                subchannel,
                address,
                data,
                text: text(),
            });
        }
        match self.execute(core, method) {
            Ok(()) => {
                self.chained = 0;
                Ok(())
            }
            Err(Stop::Fail(failure)) => Err(*failure),
            Err(Stop::Wait(wait)) => {
                self.method = Some(method);
                self.wait = Some(wait);
                Ok(())
            }
        }
    }

    /// Parses words until one completes a method, or the stream ends.
    fn next_method(&mut self, core: &mut Core) -> Result<Option<Method>, Failure> {
        loop {
            let Some(segment) = &mut self.segment else {
                self.fetch(core)?;
                return Ok(None);
            };
            let Some(word) = segment.words.get(segment.at).copied() else {
                self.segment = None;
                return Ok(None);
            };
            segment.at += 1;
            match self.parser.take(word) {
                Ok(Step::Nothing) => {}
                Ok(Step::Method(method)) => {
                    core.clock.advance(core.latency.method);
                    return Ok(Some(method));
                }
                Ok(Step::EndSegment) => self.segment = None,
                Err(error) => {
                    let what = format!("PBENTRY: {error}");
                    return Err(pbdma_error(Rule::PbdmaEntry, PBENTRY, &what));
                }
            }
        }
    }

    fn execute(&mut self, core: &mut Core, method: Method) -> Flow {
        let Method { subchannel, address, data } = method;
        if address != methods::SET_OBJECT && address < METHODS_END {
            return self.host_method(core, address, data);
        }
        if subchannel >= 5 {
            let what = format!("DEVICE: method {address:#x} on software subchannel {subchannel}");
            return Err(pbdma_error(Rule::PbdmaDevice, DEVICE, &what).into());
        }
        let engine = if subchannel == 4 { Engine::Copy } else { Engine::Compute };
        if self.engine.is_some_and(|last| last != engine) {
            // The host unit waits and flushes between the graphics engine and the copy engine.
            self.wait_for_idle(core)?;
            self.copy.flushed();
        }
        self.engine = Some(engine);
        if address == methods::SET_OBJECT {
            return self.bind(subchannel, data);
        }
        let Some(class) = self.bound[subchannel as usize] else {
            let what =
                format!("method {address:#x} on subchannel {subchannel}, which has no class");
            return Err(illegal_class(subchannel, &what).into());
        };
        match class {
            class::COMPUTE => self.compute_method(core, address, data),
            class::COPY => self.copy_method(core, address, data),
            _ => {
                let what = format!("method {address:#x} of class {class:#x}");
                self.find(core, Rule::NotModelled, what);
                Ok(())
            }
        }
    }

    fn bind(&mut self, subchannel: u32, data: u32) -> Flow {
        let class = methods::SET_OBJECT::NVCLASS.get(data);
        let expected = match subchannel {
            0 => class::GRAPHICS,
            1 => class::COMPUTE,
            2 => class::INLINE_TO_MEMORY,
            3 => class::TWOD,
            _ => class::COPY,
        };
        if data != class || class != expected {
            let what = format!("SET_OBJECT {data:#x} on subchannel {subchannel}");
            return Err(illegal_class(subchannel, &what).into());
        }
        // For the copy class, ALLOC_OBJ_CTX only performs checks, so hardware works without it.
        // Source: nvgpu common/gr/gr_setup.c:nvgpu_gr_setup_alloc_obj_ctx.
        if class != class::COPY && !self.classes.contains(&class) {
            let what = format!("class {class:#x} has no object context (ALLOC_OBJ_CTX)");
            return Err(illegal_class(subchannel, &what).into());
        }
        self.bound[subchannel as usize] = Some(class);
        Ok(())
    }

    fn host_method(&mut self, core: &mut Core, address: u32, data: u32) -> Flow {
        let illegal = |what: &str| {
            let what = format!("METHOD: host method {address:#x} = {data:#x} {what}");
            Err(pbdma_error(Rule::PbdmaMethod, METHOD, &what).into())
        };
        let Some(known) = class::find(METHODS, address) else { return illegal("does not exist") };
        if let Err(error) = known.check(data)
            && !matches!(address, methods::SEM_ADDR_LO | methods::MEM_OP_D)
        {
            return Err(pbdma_error(Rule::ReservedBits, METHOD, &error.to_string()).into());
        }
        match address {
            methods::NOP | methods::YIELD | methods::MEM_OP_A | methods::MEM_OP_B => {}
            methods::NON_STALL_INTERRUPT => core.interrupt(self.id),
            methods::MEM_OP_C => self.host.mem_op_c = data,
            methods::MEM_OP_D => return self.memory_operation(core, data),
            methods::SET_REFERENCE => {
                self.wait_for_idle(core)?;
                self.copy.flushed();
                // The size of USERD was checked when the channel was opened.
                let _ = self.userd.store_u32(userd::REFERENCE, data);
            }
            methods::SEM_ADDR_LO => self.host.address_low = data,
            methods::SEM_ADDR_HI => self.host.address_high = data,
            methods::SEM_PAYLOAD_LO => self.host.payload_low = data,
            methods::SEM_PAYLOAD_HI => self.host.payload_high = data,
            methods::SEM_EXECUTE => return self.semaphore(core, data),
            methods::WFI => {
                self.wait_for_idle(core)?;
                self.copy.flushed();
            }
            methods::ILLEGAL => return illegal("raises an error on purpose"),
            methods::CLEAR_FAULTED => return illegal("is for the driver"),
            _ => return illegal("is not in the manual of this generation"),
        }
        Ok(())
    }

    fn memory_operation(&mut self, core: &mut Core, data: u32) -> Flow {
        let refuse = |what: &str| {
            let what = format!("METHOD: MEM_OP_D = {data:#x}: {what}");
            Err(pbdma_error(Rule::PbdmaMethod, METHOD, &what).into())
        };
        match mem_op::OPERATION.get(data) {
            mem_op::OPERATION_MEMBAR
                if methods::MEM_OP_C::MEMBAR_TYPE.get(self.host.mem_op_c) > 1 =>
            {
                return refuse("no such membar");
            }
            mem_op::OPERATION_L2_SYSMEM_INVALIDATE => core.shadow.l2.invalidate(),
            mem_op::OPERATION_MEMBAR
            | mem_op::OPERATION_L2_PEERMEM_INVALIDATE
            | mem_op::OPERATION_L2_CLEAN_COMPTAGS
            | mem_op::OPERATION_L2_FLUSH_DIRTY
            | mem_op::OPERATION_L2_WAIT_FOR_SYS_PENDING_READS => {}
            _ => return refuse("privileged or unknown"),
        }
        if data << 5 != 0 {
            return refuse("reserved bits");
        }
        Ok(())
    }

    fn semaphore(&mut self, core: &mut Core, data: u32) -> Flow {
        let width = if PAYLOAD_SIZE.is_set(data) { Width::Long } else { Width::Word };
        let (address, payload) = (self.host.address(), self.host.payload());
        match OPERATION.get(data) {
            operation @ (OPERATION_RELEASE | OPERATION_REDUCTION) => {
                if RELEASE_WFI.is_set(data) {
                    self.wait_for_idle(core)?;
                    self.copy.flushed();
                } else if self.unwaited {
                    let message = format!("semaphore {address:#x} = {payload:#x}");
                    self.find(core, Rule::ReleaseBeforeIdle, message);
                }
                let reduction = (operation == OPERATION_REDUCTION)
                    .then(|| Reduction::of_host(REDUCTION.get(data), REDUCTION_FORMAT.is_set(data)))
                    .flatten();
                let timestamp = RELEASE_TIMESTAMP.is_set(data);
                let write = Write { address, payload, width, timestamp, reduction };
                if core.injection.fires(&Occasion::StuckSemaphore) {
                    let time = core.clock.now();
                    core.trace.record(time, || Event::Injected { what: "stuck-semaphore".into() });
                    return Ok(());
                }
                let agent = core.dependencies.issue(self.id, Kind::Immediate);
                core.dependencies.next_epoch(self.id);
                self.release(core, &agent, &write, "host")?;
                Ok(())
            }
            operation => {
                // The data was checked against the table, which has no other operations.
                let Some(condition) = Condition::of_host(operation) else { return Ok(()) };
                if !address.is_multiple_of(width.bytes()) {
                    let message =
                        format!("pbdma_intr_0(0x02000000): acquire of {width:?} at {address:#x}");
                    self.find(core, Rule::SemaphoreMisuse, message);
                    return Ok(());
                }
                self.acquire(core, Acquire { address, payload, width, condition })
            }
        }
    }

    /// Continues if the condition is true.
    fn acquire(&mut self, core: &mut Core, acquire: Acquire) -> Flow {
        self.waited = true;
        let Acquire { address, payload, width, .. } = acquire;
        if !self.is_met(acquire).map_err(|fault| Failure::mmu(fault, "host"))? {
            return Err(Stop::Wait(Wait::Semaphore(acquire)));
        }
        if let Ok(pieces) = self.mmu.resolve(address, width.bytes(), crate::mmu::Access::Read)
            && let Some(piece) = pieces.first()
        {
            core.dependencies.acquire(self.id, piece);
        }
        let (time, channel) = (core.clock.advance(1), self.id);
        core.trace.record(time, || Event::Acquired { channel, address, payload });
        Ok(())
    }
}

/// The compute engine and the copy engine report a wrong class under different codes.
fn illegal_class(subchannel: u32, what: &str) -> Failure {
    let code = if subchannel == 4 { notifier::PBDMA_ERROR } else { notifier::GR_EXCEPTION };
    Failure::new(Rule::IllegalClass, code, format!("illegal class: {what}"))
}
