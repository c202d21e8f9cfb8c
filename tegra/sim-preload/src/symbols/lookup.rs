//! `dlsym`: a lookup by name in a handle of libc returns the interposed function.
//!
//! An example is Python's `ctypes.CDLL("libc.so.6").ioctl`. All other lookups must look as if made
//! by the caller itself, because `RTLD_NEXT` and name spaces depend on the caller: the entry point
//! is written in assembly and ends in a jump to the real function, not in a call.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{close, duplicate, epoll, ioctl, memory, open, poll, select, signal, stat, transfer};
use crate::message;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The real `dlsym`; set before the entry point jumps there.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Versions of `dlsym` in glibc: since 2.34, and before on x86-64 and aarch64.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];

macro_rules! interposed {
    ($( $module:ident: $($name:ident)+; )+) => {
        fn interposed(name: &CStr) -> Option<*mut c_void> {
            match name.to_str().ok()? {
                $($( stringify!($name) => Some($module::$name as *const () as *mut c_void), )+)+
                _ => None,
            }
        }
    };
}

interposed! {
    close: close close_range;
    duplicate: dup dup2 dup3 fcntl fcntl64;
    epoll: epoll_ctl epoll_wait epoll_pwait;
    ioctl: ioctl;
    memory: mmap mmap64 msync munmap;
    open: open open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2;
    poll: poll ppoll __poll_chk __ppoll_chk;
    select: select pselect;
    signal: sigaction signal sigprocmask pthread_sigmask;
    stat: stat stat64 lstat lstat64 fstat fstat64 fstatat fstatat64 statx access faccessat
        __xstat __xstat64 __lxstat __lxstat64 __fxstat __fxstat64 __fxstatat __fxstatat64;
    transfer: read write;
}

fn real() -> Dlsym {
    let mut found = REAL.load(Ordering::Acquire);
    for version in VERSIONS {
        if found.is_null() {
            // SAFETY: both are C strings.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        }
    }
    if found.is_null() {
        message::abort(format_args!("this C library has no known version of dlsym; use glibc"));
    }
    REAL.store(found, Ordering::Release);
    // SAFETY: the dynamic linker found the function of this name.
    unsafe { mem::transmute::<*mut c_void, Dlsym>(found) }
}

/// Returns the interposed function if the real lookup would return the function that it replaces;
/// otherwise null.
unsafe extern "C" fn instead(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let real = real();
    if handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT || name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller passes a C string and a handle, as for the C function.
    unsafe {
        let Some(ours) = interposed(CStr::from_ptr(name)) else { return ptr::null_mut() };
        let found = real(handle, name);
        let is_libcs = !found.is_null() && found == real(libc::RTLD_NEXT, name);
        if is_libcs { ours } else { ptr::null_mut() }
    }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // The arguments are saved, and the stack is aligned, around the call.
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {instead}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {real}]",
        instead = sym instead,
        real = sym REAL,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // The arguments and the return address are saved around the call.
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {instead}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x16, 2f",
        "mov x0, x16",
        "ret",
        "2:",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        instead = sym instead,
        real = sym REAL,
    )
}
