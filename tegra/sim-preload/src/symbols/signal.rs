//! `sigaction`, `signal` and the signal masks for `SIGSEGV`: the doorbell's trap stays installed
//! and unblocked; the program sees the action that it set itself.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{SIGSEGV, sighandler_t, sigset_t};

use crate::doorbell::{program_action, set_program_action};
use crate::real;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let program = if signal == SIGSEGV { program_action() } else { None };
    let Some(program) = program else {
        // SAFETY: the arguments are the caller's.
        return unsafe { real::sigaction(signal, new, old) };
    };
    // SAFETY: the caller passes null or a valid action in each.
    unsafe {
        if let Some(new) = new.as_ref() {
            set_program_action(*new);
        }
        if !old.is_null() {
            old.write(program);
        }
    }
    0
}

/// With BSD semantics, as in glibc.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let program = if signal == SIGSEGV { program_action() } else { None };
    let Some(program) = program else {
        // SAFETY: the arguments are the caller's.
        return unsafe { real::signal(signal, handler) };
    };
    // SAFETY: all-zero is a valid action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    set_program_action(action);
    program.sa_sigaction
}

/// A mask without `SIGSEGV`: if it were blocked, the kernel would end the program at the first
/// doorbell.
///
/// # Safety
/// `new` is null or a valid mask.
unsafe fn unblocked(how: c_int, new: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: the caller guarantees `new`.
    let mut mask = unsafe { new.as_ref() }.copied()?;
    // SAFETY: the mask is a copy of our own.
    unsafe {
        if how == libc::SIG_UNBLOCK || libc::sigismember(&raw const mask, SIGSEGV) != 1 {
            return None;
        }
        libc::sigdelset(&raw mut mask, SIGSEGV);
    }
    Some(mask)
}

macro_rules! interpose {
    ($($name:ident)+) => {
        $(
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                how: c_int,
                new: *const sigset_t,
                old: *mut sigset_t,
            ) -> c_int {
                // SAFETY: the arguments are the caller's.
                let mask = unsafe { unblocked(how, new) };
                // SAFETY: as above.
                unsafe { real::$name(how, mask.as_ref().map_or(new, ptr::from_ref), old) }
            }
        )+
    };
}

interpose! { sigprocmask pthread_sigmask }
