//! A stopped x86-64 thread, in the layout that Linux passes to a signal handler.
//!
//! Vector registers are in the XSAVE area at `fpregs`: `xmm` in the legacy part, the rest at
//! offsets that CPUID leaf 0xD reports. Sources: Linux `arch/x86/include/uapi/asm/sigcontext.h`,
//! Intel SDM volume 1, chapter 13.

use std::arch::x86_64::__cpuid_count;
use std::ffi::c_void;
use std::ptr;

use super::super::bus::{Bus, Undecoded};
use super::decode::{LONGEST, Refused, decode};
use super::execute::Cpu;

/// The smallest page.
const PAGE: usize = 4096;

/// Offset of the frame's own words after the legacy area.
const SOFTWARE_RESERVED: usize = 464;
/// `FP_XSTATE_MAGIC1`: an XSAVE area follows.
const XSTATE_MAGIC: u32 = 0x4650_5853;
/// Offset of XSTATE_BV, the components that are not in their initial state.
const XSTATE_BV: usize = 512;
/// Offset of `xmm0`.
const XMM: usize = 160;

/// Index in `gregs` of each general register, by its number in an encoding.
const ORDER: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// The components of the XSAVE area with parts of vector registers.
#[derive(Clone, Copy)]
enum Component {
    Sse = 1,
    /// Bits 255:128 of registers 0 to 15.
    YmmHigh = 2,
    /// `k0` to `k7`.
    Mask = 5,
    /// Bits 511:256 of registers 0 to 15.
    ZmmHigh = 6,
    /// Registers 16 to 31.
    Zmm16 = 7,
}

/// The thread that a signal stopped.
pub(crate) struct Thread {
    context: *mut libc::ucontext_t,
}

impl Thread {
    /// # Safety
    /// `context` is the third argument of a running `SA_SIGINFO` handler.
    pub(crate) unsafe fn new(context: *mut c_void) -> Self {
        Self { context: context.cast() }
    }

    /// Decodes and executes the instruction at which the thread stopped; `at` is the offset of its
    /// memory operand. The error has the bytes that could not be decoded.
    pub(crate) fn step(&mut self, bus: &mut impl Bus, at: usize) -> Result<(), Undecoded> {
        let address = self.register(libc::REG_RIP) as usize;
        let mut bytes = [0; LONGEST];
        // The next page may be unmapped: it is read only if the instruction reaches into it.
        let mut length = LONGEST.min(PAGE - address % PAGE);
        let instruction = loop {
            for (index, byte) in bytes[..length].iter_mut().enumerate() {
                // SAFETY: the processor has just fetched this instruction, and pages are readable
                // as a whole.
                *byte = unsafe { (address as *const u8).add(index).read_volatile() };
            }
            match decode(&bytes[..length]) {
                Ok(instruction) => break instruction,
                Err(Refused::Cut) if length < LONGEST => length = LONGEST,
                Err(_) => return Err(Undecoded { bytes, length, address }),
            }
        };
        super::execute(&instruction, self, bus, at);
        Ok(())
    }

    fn register(&self, index: i32) -> u64 {
        // SAFETY: `new` was given a live context; the index is one of libc's constants.
        unsafe { (*self.context).uc_mcontext.gregs[index as usize] as u64 }
    }

    fn set_register(&mut self, index: i32, value: u64) {
        // SAFETY: as in `register`.
        unsafe { (*self.context).uc_mcontext.gregs[index as usize] = value as i64 }
    }

    /// The address of `register`'s part in a component, and `true` if the component is live.
    fn part(&self, component: Component, register: u8) -> Option<(*mut u8, bool)> {
        // SAFETY: as in `register`.
        let area: *mut u8 = unsafe { (*self.context).uc_mcontext.fpregs }.cast();
        if area.is_null() {
            return None;
        }
        let register = usize::from(register);
        if matches!(component, Component::Sse) && register < 16 {
            // SAFETY: the legacy area has 512 bytes.
            return Some((unsafe { area.add(XMM + 16 * register) }, true));
        }
        // SAFETY: the words are inside the legacy area; the fields are magic (4 bytes), extended
        // size (4) and features (8).
        let (magic, features) = unsafe {
            let words = area.add(SOFTWARE_RESERVED);
            (words.cast::<u32>().read_unaligned(), words.add(8).cast::<u64>().read_unaligned())
        };
        let bit = 1_u64 << component as u32;
        if magic != XSTATE_MAGIC || features & bit == 0 {
            return None;
        }
        let offset = __cpuid_count(0xd, component as u32).ebx as usize;
        let (first, size) = match component {
            Component::Zmm16 => (16, 64),
            Component::ZmmHigh => (0, 32),
            Component::Mask => (0, 8),
            Component::YmmHigh | Component::Sse => (0, 16),
        };
        // SAFETY: the frame has every component of `features`, in the layout that CPUID reports.
        let live = unsafe { area.add(XSTATE_BV).cast::<u64>().read_unaligned() } & bit != 0;
        // SAFETY: as above.
        Some((unsafe { area.add(offset + size * (register - first)) }, live))
    }

    fn read_part(&self, component: Component, register: u8, into: &mut [u8]) {
        if let Some((from, true)) = self.part(component, register) {
            // SAFETY: `part` has `into.len()` bytes of this register, and does not overlap `into`.
            unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
        }
    }

    /// Writes a part. A component in its initial state stays there if only zeros are written.
    /// Otherwise it becomes live, and its other registers are zero, which is what initial means.
    fn write_part(&mut self, component: Component, register: u8, from: &[u8]) {
        let Some((to, live)) = self.part(component, register) else { return };
        if !live {
            if from.iter().all(|byte| *byte == 0) {
                return;
            }
            let size = from.len();
            let first = if matches!(component, Component::Zmm16) { 16 } else { 0 };
            // SAFETY: the component has sixteen registers of `size` bytes, `to` is one of them.
            unsafe {
                let start = to.sub(size * (usize::from(register) - first));
                ptr::write_bytes(start, 0, 16 * size);
                let area: *mut u8 = (*self.context).uc_mcontext.fpregs.cast();
                let live = area.add(XSTATE_BV).cast::<u64>();
                live.write_unaligned(live.read_unaligned() | 1 << component as u32);
            }
        }
        // SAFETY: as in `read_part`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }
}

impl Cpu for Thread {
    fn general(&self, number: u8) -> u64 {
        self.register(ORDER[usize::from(number & 15)])
    }

    fn set_general(&mut self, number: u8, value: u64) {
        self.set_register(ORDER[usize::from(number & 15)], value);
    }

    fn flags(&self) -> u64 {
        self.register(libc::REG_EFL)
    }

    fn set_flags(&mut self, flags: u64) {
        self.set_register(libc::REG_EFL, flags);
    }

    fn vector(&self, number: u8) -> [u8; 64] {
        let mut value = [0; 64];
        if number < 16 {
            self.read_part(Component::Sse, number, &mut value[..16]);
            self.read_part(Component::YmmHigh, number, &mut value[16..32]);
            self.read_part(Component::ZmmHigh, number, &mut value[32..]);
        } else {
            self.read_part(Component::Zmm16, number, &mut value);
        }
        value
    }

    fn set_vector(&mut self, number: u8, value: &[u8; 64]) {
        if number < 16 {
            self.write_part(Component::Sse, number, &value[..16]);
            self.write_part(Component::YmmHigh, number, &value[16..32]);
            self.write_part(Component::ZmmHigh, number, &value[32..]);
        } else {
            self.write_part(Component::Zmm16, number, value);
        }
    }

    fn mask(&self, number: u8) -> u64 {
        let mut value = [0; 8];
        self.read_part(Component::Mask, number & 7, &mut value);
        u64::from_le_bytes(value)
    }

    fn fault(&self) -> u64 {
        self.register(libc::REG_CR2)
    }

    fn copy_from(&self, address: u64, into: &mut [u8]) {
        // SAFETY: the thread is about to read these bytes itself; an invalid address faults as its
        // own access would.
        unsafe { ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) }
    }

    fn copy_to(&mut self, address: u64, bytes: &[u8]) {
        // SAFETY: as in `copy_from`, for a write.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
    }

    fn advance(&mut self, bytes: u8) {
        self.set_register(libc::REG_RIP, self.register(libc::REG_RIP) + u64::from(bytes));
    }
}
