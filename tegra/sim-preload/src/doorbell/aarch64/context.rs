//! A stopped aarch64 thread, in the layout that Linux passes to a signal handler.
//!
//! Vector registers are in the record `fpsimd_context` of the reserved area. Source: Linux
//! `arch/arm64/include/uapi/asm/sigcontext.h`.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

use super::super::bus::{Bus, Undecoded};
use super::execute::Cpu;

/// `FPSIMD_MAGIC`.
const FPSIMD_MAGIC: u32 = 0x4650_8001;
/// Offset of `v0` in its record: magic, size, `fpsr`, `fpcr`.
const VECTORS: usize = 16;

/// `struct sigcontext`.
#[repr(C, align(16))]
struct MachineContext {
    fault_address: u64,
    registers: [u64; 31],
    stack: u64,
    instruction: u64,
    state: u64,
    records: Records,
}

#[repr(C, align(16))]
struct Records([u8; 4096]);

const _: () = assert!(offset_of!(MachineContext, records) == 288);
const _: () = assert!(size_of::<MachineContext>() == size_of::<libc::mcontext_t>());

/// The thread that a signal stopped.
pub(crate) struct Thread {
    context: *mut MachineContext,
}

impl Thread {
    /// # Safety
    /// `context` is the third argument of a running `SA_SIGINFO` handler.
    pub(crate) unsafe fn new(context: *mut c_void) -> Self {
        let context: *mut libc::ucontext_t = context.cast();
        // SAFETY: the caller guarantees the context.
        Self { context: unsafe { &raw mut (*context).uc_mcontext }.cast() }
    }

    /// Decodes and executes the instruction at which the thread stopped; `at` is the offset of its
    /// memory operand. The error has the word that could not be decoded.
    pub(crate) fn step(&mut self, bus: &mut impl Bus, at: usize) -> Result<(), Undecoded> {
        // SAFETY: `new` was given a live context, and the processor has just fetched the word.
        let (address, word) = unsafe {
            let address = (*self.context).instruction;
            (address, (address as *const u32).read_volatile())
        };
        let Some(instruction) = super::decode(word) else {
            let mut bytes = [0; 15];
            bytes[..4].copy_from_slice(&word.to_le_bytes());
            return Err(Undecoded { bytes, length: 4, address: address as usize });
        };
        super::execute(&instruction, self, bus, at);
        Ok(())
    }

    /// Address of a vector register's saved value.
    fn vector_place(&self, number: u8) -> Option<*mut u8> {
        // SAFETY: `new` was given a live context.
        let records: *mut u8 = unsafe { &raw mut (*self.context).records }.cast();
        let mut at = 0;
        while at + 8 <= size_of::<Records>() {
            // SAFETY: within the reserved area.
            let (magic, size) = unsafe {
                let header = records.add(at).cast::<u32>();
                (header.read(), header.add(1).read() as usize)
            };
            if magic == FPSIMD_MAGIC {
                // SAFETY: the record holds 32 registers of 16 bytes.
                return Some(unsafe { records.add(at + VECTORS + 16 * usize::from(number & 31)) });
            }
            if magic == 0 || size < 8 {
                return None;
            }
            at += size;
        }
        None
    }
}

impl Cpu for Thread {
    fn general(&self, number: u8) -> u64 {
        // SAFETY: `new` was given a live context; the index is checked.
        unsafe { (&raw const (*self.context).registers).read()[usize::from(number) % 31] }
    }

    fn set_general(&mut self, number: u8, value: u64) {
        // SAFETY: as above.
        unsafe { (*self.context).registers[usize::from(number) % 31] = value }
    }

    fn stack(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.context).stack }
    }

    fn set_stack(&mut self, value: u64) {
        // SAFETY: as above.
        unsafe { (*self.context).stack = value }
    }

    fn vector(&self, number: u8) -> [u8; 16] {
        let mut value = [0; 16];
        if let Some(from) = self.vector_place(number) {
            // SAFETY: the place has 16 bytes.
            unsafe { ptr::copy_nonoverlapping(from, value.as_mut_ptr(), 16) }
        }
        value
    }

    fn set_vector(&mut self, number: u8, value: &[u8; 16]) {
        if let Some(to) = self.vector_place(number) {
            // SAFETY: the place has 16 bytes.
            unsafe { ptr::copy_nonoverlapping(value.as_ptr(), to, 16) }
        }
    }

    fn advance(&mut self) {
        // SAFETY: as above.
        unsafe { (*self.context).instruction += 4 }
    }
}
