//! Decodes a stream into the operations that it was built from.
//!
//! For debugging and tests: it accepts everything that [`Operation::encode`] writes, whatever the
//! headers' forms, and reports the first word that it does not. Each operation must include all its
//! operands; state that the hardware would remember from earlier operations does not count.

use std::collections::BTreeMap;

use super::header::{Header, HeaderError};
use super::operation::{
    Acquire, CacheInvalidate, Condition, Engine, Fill, L2Operation, Operation, OperationError,
    Payload, Release, Shape, Signal, Transfer, Upload, Windows, launch,
};
use crate::address::{AddressError, GpuAddress, QmdAddress};
use crate::class::copy::{Interrupt, SemaphoreType, Transfer as TransferType};
use crate::class::host::{MemOp, SemOperation, mem_op_c, mem_op_d, sem_execute, set_object, wfi};
use crate::class::{Class, Compute, Copy, Host, Method, compute, copy, host};
use crate::local_memory::LocalMemory;

/// Error of a stream that [`Operation::encode`] cannot have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A word at a header's position is not a header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The stream ends before a header's data.
    #[error("the stream ends {missing} words short of its last header")]
    Truncated {
        /// Words that are missing.
        missing: usize,
    },
    /// A method that this crate does not name.
    #[error("no method {address:#x} on subchannel {subchannel}")]
    UnknownMethod {
        /// Subchannel.
        subchannel: u32,
        /// Byte address.
        address: u32,
    },
    /// A method with data that no operation writes.
    #[error("{method} with {word:#010x} is not written by any operation")]
    Word {
        /// The method.
        method: &'static str,
        /// Its data.
        word: u32,
    },
    /// An operation without one of its operands.
    #[error("{method} is not preceded by {operand}")]
    Missing {
        /// The method that starts the operation.
        method: &'static str,
        /// The missing operand.
        operand: &'static str,
    },
    /// An operand that no operation used.
    #[error("{operand} is not used by any operation")]
    Unused {
        /// The operand.
        operand: &'static str,
    },
    /// Operands that no operation allows.
    #[error(transparent)]
    Operation(#[from] OperationError),
}

impl From<AddressError> for DecodeError {
    fn from(error: AddressError) -> Self {
        OperationError::from(error).into()
    }
}

/// Returns the operations of a stream, or an error for the first word that [`Operation::encode`]
/// would not have written.
pub fn decode(stream: &[u32]) -> Result<Vec<Operation>, DecodeError> {
    let mut decoder = Decoder::default();
    let mut rest = stream;
    while let [word, after @ ..] = rest {
        rest = after;
        match Header::decode(*word)? {
            Header::Nop => {}
            Header::EndSegment => break,
            Header::Immediate { subchannel, address, data } => {
                decoder.method(subchannel, address, data)?;
            }
            Header::Methods { opcode, subchannel, address, count } => {
                let count = count as usize;
                let Some((data, after)) = rest.split_at_checked(count) else {
                    return Err(DecodeError::Truncated { missing: count - rest.len() });
                };
                rest = after;
                for (index, word) in (0..).zip(data) {
                    decoder.method(subchannel, opcode.address(address, index), *word)?;
                }
            }
        }
    }
    decoder.finish()
}

/// An inline upload that is not complete yet.
struct PendingUpload {
    destination: GpuAddress,
    expected: usize,
    words: Vec<u32>,
}

/// Collects operands until a method starts an operation.
#[derive(Default)]
struct Decoder {
    /// Unused operands, by subchannel and address; the subchannel of host methods is 0.
    operands: BTreeMap<(u32, u32), (&'static str, u32)>,
    upload: Option<PendingUpload>,
    operations: Vec<Operation>,
}

impl Decoder {
    fn finish(self) -> Result<Vec<Operation>, DecodeError> {
        if self.upload.is_some() {
            let (method, operand) = (compute::LAUNCH_DMA.name(), compute::LOAD_INLINE_DATA.name());
            return Err(DecodeError::Missing { method, operand });
        }
        match self.operands.into_values().next() {
            Some((operand, _)) => Err(DecodeError::Unused { operand }),
            None => Ok(self.operations),
        }
    }

    fn method(&mut self, subchannel: u32, address: u32, word: u32) -> Result<(), DecodeError> {
        let unknown = DecodeError::UnknownMethod { subchannel, address };
        let operation = if address == host::SET_OBJECT.address() {
            Some(bind(subchannel, word)?)
        } else if address < host::METHODS_END {
            self.host(find::<Host>(address).ok_or(unknown)?, word)?
        } else if subchannel == Compute::SUBCHANNEL {
            self.compute(find::<Compute>(address).ok_or(unknown)?, word)?
        } else if subchannel == Copy::SUBCHANNEL {
            self.copy(find::<Copy>(address).ok_or(unknown)?, word)?
        } else {
            return Err(unknown);
        };
        self.operations.extend(operation);
        Ok(())
    }

    /// Stores an operand; a second one before the first was used is an error.
    fn keep<C: Class>(&mut self, method: Method<C>, word: u32) -> Result<(), DecodeError> {
        let key = (C::SUBCHANNEL, method.address());
        match self.operands.insert(key, (method.name(), word)) {
            None => Ok(()),
            Some((operand, _)) => Err(DecodeError::Unused { operand }),
        }
    }

    fn take<C: Class>(&mut self, operand: Method<C>) -> Option<u32> {
        self.operands.remove(&(C::SUBCHANNEL, operand.address())).map(|(_, word)| word)
    }

    fn need<C: Class>(&mut self, by: Method<C>, operand: Method<C>) -> Result<u32, DecodeError> {
        let missing = DecodeError::Missing { method: by.name(), operand: operand.name() };
        self.take(operand).ok_or(missing)
    }

    fn need_address<C: Class>(
        &mut self,
        by: Method<C>,
        upper: Method<C>,
        lower: Method<C>,
    ) -> Result<GpuAddress, DecodeError> {
        let (upper, lower) = (self.need(by, upper)?, self.need(by, lower)?);
        Ok(GpuAddress::from_words(upper, lower)?)
    }

    fn host(&mut self, method: Method<Host>, word: u32) -> Result<Option<Operation>, DecodeError> {
        let other = DecodeError::Word { method: method.name(), word };
        Ok(Some(match method {
            host::NON_STALL_INTERRUPT if word == 0 => Operation::NonStallInterrupt,
            host::WFI => {
                let scope = wfi::SCOPE.get(word).filter(|scope| wfi::SCOPE.put(*scope) == word);
                Operation::WaitForIdle(scope.ok_or(other)?)
            }
            host::SET_REFERENCE => Operation::SetReference(word),
            host::SEM_EXECUTE => self.semaphore(word)?,
            host::MEM_OP_D => self.memory_operation(word)?,
            host::SEM_ADDR_LO
            | host::SEM_ADDR_HI
            | host::SEM_PAYLOAD_LO
            | host::SEM_PAYLOAD_HI
            | host::MEM_OP_A
            | host::MEM_OP_B
            | host::MEM_OP_C => {
                self.keep(method, word)?;
                return Ok(None);
            }
            _ => return Err(other),
        }))
    }

    fn semaphore(&mut self, execute: u32) -> Result<Operation, DecodeError> {
        let by = host::SEM_EXECUTE;
        let at = self.need_address(by, host::SEM_ADDR_HI, host::SEM_ADDR_LO)?;
        let low = self.need(by, host::SEM_PAYLOAD_LO)?;
        let high = self.need(by, host::SEM_PAYLOAD_HI)?;
        let long = sem_execute::PAYLOAD_SIZE.get(execute);
        if !long && high != 0 {
            let method = host::SEM_PAYLOAD_HI.name();
            return Err(DecodeError::Word { method, word: high });
        }
        let payload = Payload::from_words(long, low, high);
        let other = DecodeError::Word { method: by.name(), word: execute };
        let condition = match sem_execute::OPERATION.get(execute) {
            Some(SemOperation::Release) => {
                let mut release = Release::new(at, payload)?;
                if sem_execute::RELEASE_TIMESTAMP.get(execute) {
                    release = release.with_timestamp()?;
                }
                if !sem_execute::RELEASE_WFI.get(execute) {
                    release = release.at_once();
                }
                if release.execute() != execute {
                    return Err(other);
                }
                return Ok(Operation::Release(release));
            }
            Some(SemOperation::Acquire) => Condition::Equal,
            Some(SemOperation::AcquireStrictGeq) => Condition::AtLeast,
            Some(SemOperation::AcquireCircularGeq) => Condition::Reached,
            Some(SemOperation::AcquireAnd) => Condition::AnyBit,
            Some(SemOperation::AcquireNor) => Condition::AnyClear,
            Some(SemOperation::Reduction) | None => return Err(other),
        };
        let mut acquire = Acquire::new(at, payload, condition)?;
        if sem_execute::ACQUIRE_SWITCH_TSG.get(execute) {
            acquire = acquire.switching_tsg();
        }
        if acquire.execute() == execute { Ok(Operation::Acquire(acquire)) } else { Err(other) }
    }

    fn memory_operation(&mut self, d: u32) -> Result<Operation, DecodeError> {
        let by = host::MEM_OP_D;
        for unused in [host::MEM_OP_A, host::MEM_OP_B] {
            let word = self.need(by, unused)?;
            if word != 0 {
                return Err(DecodeError::Word { method: unused.name(), word });
            }
        }
        let c = self.need(by, host::MEM_OP_C)?;
        let other = DecodeError::Word { method: by.name(), word: d };
        let code = mem_op_d::OPERATION.get(d).ok_or(other)?;
        let (operation, expected) = match code {
            MemOp::Membar => {
                let reach = mem_op_c::MEMBAR_TYPE.get(c);
                let reach = reach.ok_or(DecodeError::Word { method: "MEM_OP_C", word: c })?;
                let expected = mem_op_c::MEMBAR_TYPE.put(reach);
                (Operation::MemoryBarrier(reach), expected)
            }
            MemOp::L2SysmemInvalidate => (Operation::L2(L2Operation::InvalidateSysmem), 0),
            MemOp::L2FlushDirty => (Operation::L2(L2Operation::FlushDirty), 0),
        };
        if c != expected {
            return Err(DecodeError::Word { method: host::MEM_OP_C.name(), word: c });
        }
        if d == mem_op_d::OPERATION.put(code) { Ok(operation) } else { Err(other) }
    }

    fn compute(
        &mut self,
        method: Method<Compute>,
        word: u32,
    ) -> Result<Option<Operation>, DecodeError> {
        let other = DecodeError::Word { method: method.name(), word };
        Ok(match method {
            compute::INVALIDATE_SHADER_CACHES => Some(invalidate(word, true).ok_or(other)?),
            compute::INVALIDATE_SHADER_CACHES_NO_WFI => Some(invalidate(word, false).ok_or(other)?),
            compute::SEND_SIGNALING_PCAS2_B => {
                let qmd = QmdAddress::from_shifted(self.need(method, compute::SEND_PCAS_A)?);
                if word != launch() {
                    return Err(other);
                }
                Some(Operation::Launch(qmd))
            }
            compute::SET_SHADER_SHARED_MEMORY_WINDOW_B => {
                let upper = self.need(method, compute::SET_SHADER_SHARED_MEMORY_WINDOW_A)?;
                let shared = GpuAddress::from_words(upper, word)?;
                let local = self.need_address(
                    method,
                    compute::SET_SHADER_LOCAL_MEMORY_WINDOW_A,
                    compute::SET_SHADER_LOCAL_MEMORY_WINDOW_B,
                )?;
                Some(Operation::SetWindows(Windows::new(local, shared)?))
            }
            compute::SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C => {
                let base = self.need_address(
                    method,
                    compute::SET_SHADER_LOCAL_MEMORY_A,
                    compute::SET_SHADER_LOCAL_MEMORY_B,
                )?;
                let upper = self.need(method, compute::SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A)?;
                let lower = self.need(method, compute::SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B)?;
                let per_tpc = u64::from(upper) << 32 | u64::from(lower);
                if word != LocalMemory::MAX_SMS {
                    return Err(other);
                }
                Some(Operation::SetLocalMemory(LocalMemory::new(base, per_tpc)?))
            }
            compute::LAUNCH_DMA => {
                self.start_upload(word)?;
                None
            }
            compute::LOAD_INLINE_DATA => self.upload_word(word)?,
            compute::WAIT_FOR_IDLE => return Err(other),
            _ => {
                self.keep(method, word)?;
                None
            }
        })
    }

    fn start_upload(&mut self, launch: u32) -> Result<(), DecodeError> {
        let by = compute::LAUNCH_DMA;
        let destination = self.need_address(by, compute::OFFSET_OUT_UPPER, compute::OFFSET_OUT)?;
        let bytes = self.need(by, compute::LINE_LENGTH_IN)?;
        let lines = self.need(by, compute::LINE_COUNT)?;
        for (method, word, wanted) in [
            (by, launch, Upload::launch()),
            (compute::LINE_COUNT, lines, 1),
            (compute::LINE_LENGTH_IN, bytes, bytes.max(4) & !3),
        ] {
            if word != wanted {
                return Err(DecodeError::Word { method: method.name(), word });
            }
        }
        let upload = PendingUpload { destination, expected: bytes as usize / 4, words: Vec::new() };
        match self.upload.replace(upload) {
            None => Ok(()),
            Some(_) => Err(DecodeError::Unused { operand: by.name() }),
        }
    }

    fn upload_word(&mut self, word: u32) -> Result<Option<Operation>, DecodeError> {
        let method = compute::LOAD_INLINE_DATA.name();
        let Some(upload) = &mut self.upload else {
            return Err(DecodeError::Missing { method, operand: compute::LAUNCH_DMA.name() });
        };
        upload.words.push(word);
        if upload.words.len() < upload.expected {
            return Ok(None);
        }
        let (destination, words) = (upload.destination, std::mem::take(&mut upload.words));
        self.upload = None;
        Ok(Some(Operation::Upload(Upload::new(destination, words)?)))
    }

    fn copy(&mut self, method: Method<Copy>, word: u32) -> Result<Option<Operation>, DecodeError> {
        match method {
            copy::LAUNCH_DMA => self.launch_dma(word).map(Some),
            copy::NOP => Err(DecodeError::Word { method: method.name(), word }),
            _ => self.keep(method, word).map(|()| None),
        }
    }

    fn launch_dma(&mut self, launch: u32) -> Result<Operation, DecodeError> {
        let by = copy::LAUNCH_DMA;
        let signal = self.signal(launch)?;
        if copy::launch_dma::REMAP_ENABLE.get(launch) {
            return self.fill(launch);
        }
        let other = DecodeError::Word { method: by.name(), word: launch };
        let order = copy::launch_dma::DATA_TRANSFER_TYPE.get(launch);
        let (operation, expected) = match (order.ok_or(other)?, signal) {
            (TransferType::None, Some(signal)) => (Operation::Signal(signal), signal.launch()),
            (TransferType::None, None) => return Err(other),
            (order, signal) => {
                let mut transfer = self.transfer(launch)?;
                if order == TransferType::Pipelined {
                    transfer = transfer.overlapping_previous();
                }
                if let Some(signal) = signal {
                    transfer = transfer.then(signal);
                }
                (Operation::Transfer(transfer), transfer.launch())
            }
        };
        if launch == expected { Ok(operation) } else { Err(other) }
    }

    fn signal(&mut self, launch: u32) -> Result<Option<Signal>, DecodeError> {
        let by = copy::LAUNCH_DMA;
        let other = DecodeError::Word { method: by.name(), word: launch };
        let kind = copy::launch_dma::SEMAPHORE_TYPE.get(launch);
        let timestamp = match kind.ok_or(other)? {
            SemaphoreType::None => return Ok(None),
            SemaphoreType::NoTimestamp => false,
            SemaphoreType::WithTimestamp => true,
        };
        let at = self.need_address(by, copy::SET_SEMAPHORE_A, copy::SET_SEMAPHORE_B)?;
        let low = self.need(by, copy::SET_SEMAPHORE_PAYLOAD)?;
        let long = copy::launch_dma::SEMAPHORE_PAYLOAD_SIZE.get(launch);
        let high = if long { self.need(by, copy::SET_SEMAPHORE_PAYLOAD_UPPER)? } else { 0 };
        let signal = Signal::new(at, Payload::from_words(long, low, high), timestamp)?;
        let interrupt = copy::launch_dma::INTERRUPT_TYPE.get(launch);
        Ok(Some(match interrupt.ok_or(other)? {
            Interrupt::NonBlocking => signal.interrupting(),
            Interrupt::None | Interrupt::Blocking => signal,
        }))
    }

    fn transfer(&mut self, launch: u32) -> Result<Transfer, DecodeError> {
        let by = copy::LAUNCH_DMA;
        let source = self.need_address(by, copy::OFFSET_IN_UPPER, copy::OFFSET_IN_LOWER)?;
        let destination = self.need_address(by, copy::OFFSET_OUT_UPPER, copy::OFFSET_OUT_LOWER)?;
        let width = self.need(by, copy::LINE_LENGTH_IN)?;
        let shape = if copy::launch_dma::MULTI_LINE_ENABLE.get(launch) {
            Shape::Lines {
                width,
                count: self.need(by, copy::LINE_COUNT)?,
                source_pitch: self.need(by, copy::PITCH_IN)?,
                destination_pitch: self.need(by, copy::PITCH_OUT)?,
            }
        } else {
            Shape::Linear { bytes: width }
        };
        Ok(Transfer::new(source, destination, shape)?)
    }

    fn fill(&mut self, launch: u32) -> Result<Operation, DecodeError> {
        let by = copy::LAUNCH_DMA;
        let destination = self.need_address(by, copy::OFFSET_OUT_UPPER, copy::OFFSET_OUT_LOWER)?;
        let value = self.need(by, copy::SET_REMAP_CONST_A)?;
        let components = self.need(by, copy::SET_REMAP_COMPONENTS)?;
        let words = self.need(by, copy::LINE_LENGTH_IN)?;
        for (method, word, wanted) in [
            (copy::SET_REMAP_COMPONENTS, components, Fill::components()),
            (by, launch, Fill::launch()),
        ] {
            if word != wanted {
                return Err(DecodeError::Word { method: method.name(), word });
            }
        }
        Ok(Operation::Fill(Fill::new(destination, value, words)?))
    }
}

fn find<C: Class>(address: u32) -> Option<Method<C>> {
    C::METHODS.iter().copied().find(|method| method.address() == address)
}

fn bind(subchannel: u32, word: u32) -> Result<Operation, DecodeError> {
    [Engine::Compute, Engine::Copy]
        .into_iter()
        .find(|engine| {
            engine.subchannel() == subchannel
                && set_object::NVCLASS.put(engine.class() as u32) == word
        })
        .map(Operation::Bind)
        .ok_or(DecodeError::Word { method: host::SET_OBJECT.name(), word })
}

fn invalidate(word: u32, wait: bool) -> Option<Operation> {
    let caches = CacheInvalidate::from_word(word, wait)?;
    Some(Operation::InvalidateShaderCaches(caches))
}
