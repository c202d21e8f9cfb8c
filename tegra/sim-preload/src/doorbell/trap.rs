//! The `SIGSEGV` handler: emulates accesses to a doorbell page, and passes all other faults to the
//! program.
//!
//! The handler takes no lock and allocates nothing. Once it is installed, the program's own
//! `sigaction` for this signal is stored here, and applied to the program's own faults.

use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

#[cfg(target_arch = "aarch64")]
use super::aarch64::context::Thread;
use super::pages;
use super::registers::{Gpu, Registers};
#[cfg(target_arch = "x86_64")]
use super::x86_64::context::Thread;
use crate::message;
use crate::real;
use crate::world::{self, World};

impl Gpu for World {
    fn time_ns(&self) -> u64 {
        self.orin.gpu().time_ns()
    }

    fn doorbell(&self, token: u32) {
        self.orin.gpu().doorbell(token);
    }
}

static INSTALLED: AtomicBool = AtomicBool::new(false);
static INSTALL: Once = Once::new();
/// The program's own action; never freed, because a handler may be reading it.
static PROGRAM: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Installs the handler, once.
pub(super) fn install() {
    INSTALL.call_once(|| {
        #[cfg(target_arch = "x86_64")]
        super::x86_64::prepare();
        let mut action = no_action();
        action.sa_sigaction = on_fault as *const () as usize;
        // Any thread's stack is large enough; on the alternate stack a stack overflow can still be
        // reported.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        let mut old = no_action();
        // SAFETY: both point to actions; the handler is fit to run in a signal.
        unsafe { real::sigaction(libc::SIGSEGV, &raw const action, &raw mut old) };
        PROGRAM.store(Box::into_raw(Box::new(old)), Ordering::Release);
        INSTALLED.store(true, Ordering::Release);
    });
}

fn no_action() -> libc::sigaction {
    // SAFETY: all-zero is the default action without flags.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The program's action for `SIGSEGV`; `None` until the handler is installed.
pub(crate) fn program_action() -> Option<libc::sigaction> {
    if !INSTALLED.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: set before INSTALLED, and never freed.
    unsafe { PROGRAM.load(Ordering::Acquire).as_ref() }.copied()
}

/// Sets the program's action for `SIGSEGV`.
pub(crate) fn set_program_action(action: libc::sigaction) {
    PROGRAM.store(Box::into_raw(Box::new(action)), Ordering::Release);
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno = real::errno();
    // SAFETY: the kernel passes both to an `SA_SIGINFO` handler.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Codes above 0 are faults; others were sent by a process.
    let page = (code > 0).then(|| pages::offset_of(address)).flatten();
    match (page, world::current()) {
        (Some(offset), Some(world)) => {
            // SAFETY: the handler's own third argument.
            let mut thread = unsafe { Thread::new(context) };
            if let Err(undecoded) = thread.step(&mut Registers::new(world), offset) {
                let bytes = &undecoded.bytes[..undecoded.length];
                message::abort(format_args!(
                    "the instruction at {:#x} touches offset {offset:#x} of the doorbell page in a \
                     way that is not emulated (bytes {bytes:02x?}); use a plain 32-bit store",
                    undecoded.address
                ));
            }
        }
        _ => pass_on(signal, info, context),
    }
    real::set_errno(errno);
}

/// Applies the program's action to this signal.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(action) = program_action() else { return };
    let handler = action.sa_sigaction;
    // SAFETY: as in `on_fault`.
    let was_sent = unsafe { (*info).si_code } <= 0;
    if handler == libc::SIG_IGN && was_sent {
        return;
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // A fault repeats right after the return, now without a handler.
        let default = no_action();
        // SAFETY: the action is the default one.
        unsafe {
            real::sigaction(signal, &raw const default, ptr::null_mut());
            if was_sent {
                libc::raise(signal);
            }
        }
        return;
    }
    if action.sa_flags & libc::SA_RESETHAND != 0 {
        PROGRAM.store(&raw const DEFAULT as *mut libc::sigaction, Ordering::Release);
    }
    let mut mask = action.sa_mask;
    // SAFETY: the mask is a copy of our own; the return from this handler restores the old one. The
    // handler is the program's, with the arguments that it requested.
    unsafe {
        if action.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&raw mut mask, signal);
        }
        real::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, ptr::null_mut());
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            mem::transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(
                handler,
            )(signal, info, context);
        } else {
            mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal);
        }
    }
}

// SAFETY: all-zero is the default action without flags.
static DEFAULT: libc::sigaction = unsafe { mem::zeroed() };
