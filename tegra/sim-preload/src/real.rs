//! The interposed functions, as the next object in the lookup order defines them.
//!
//! Each is looked up once by `dlsym(RTLD_NEXT)`: in a preloaded library and in an executable that
//! has this crate linked in, that is libc or another interposer.
//!
//! `open`, `openat`, `fcntl` and `ioctl` are variadic in C. Stable Rust cannot define such
//! functions, so they are defined and called here with their last word as an ordinary parameter. On
//! Linux for x86-64 and aarch64 a variadic call passes its first integer words in the same
//! registers as an ordinary one; a caller that passes no such word leaves a meaningless register,
//! which is passed on unchanged.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::mem;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, mode_t, nfds_t, pollfd, sigaction as sigaction_t, sighandler_t, sigset_t,
    size_t, ssize_t, timespec, timeval,
};

/// The address of the next definition of `name`; null when there is none.
fn next(name: &CStr, place: &AtomicPtr<c_void>) -> *mut c_void {
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    place.store(found, Ordering::Release);
    found
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: libc returns the address of a word of this thread.
    unsafe { *libc::__errno_location() = errno }
}

/// Sets `errno` and returns -1, like a failed call.
pub(crate) fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}

macro_rules! real {
    ($( fn $name:ident($($arg:ident: $kind:ty),* $(,)?) -> $result:ty; )+) => {
        $(
            /// The next definition of the function of this name; `ENOSYS` when there is none.
            ///
            /// # Safety
            /// As of the C function.
            pub(crate) unsafe fn $name($($arg: $kind),*) -> $result {
                static PLACE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                const NAME: &CStr = match CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("a name holds no zero byte"),
                };
                let address = next(NAME, &PLACE);
                if address.is_null() {
                    set_errno(libc::ENOSYS);
                    return -1_i32 as $result;
                }
                // SAFETY: the dynamic linker found the C function of this name, whose signature is
                // this one; the caller fulfils the function's own contract.
                unsafe {
                    mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $result>(
                        address,
                    )($($arg),*)
                }
            }
        )+
    };
}

real! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn msync(address: *mut c_void, bytes: size_t, flags: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(from: c_int, to: c_int) -> c_int;
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn read(fd: c_int, into: *mut c_void, bytes: size_t) -> ssize_t;
    fn write(fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int;
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int;
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int;
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(
        epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int;
    fn stat(path: *const c_char, into: *mut libc::stat) -> c_int;
    fn lstat(path: *const c_char, into: *mut libc::stat) -> c_int;
    fn fstat(fd: c_int, into: *mut libc::stat) -> c_int;
    fn fstatat(dir: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int;
    fn statx(
        dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx,
    ) -> c_int;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;
    fn sigaction(signal: c_int, new: *const sigaction_t, old: *mut sigaction_t) -> c_int;
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int;
    fn pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int;
}

/// Maps memory with a direct system call: allocators call this before the linker is ready.
///
/// # Safety
/// As for `mmap`.
pub(crate) unsafe fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller fulfils the contract of `mmap`.
    unsafe {
        libc::syscall(libc::SYS_mmap, address, bytes, protection, flags, fd, offset) as *mut c_void
    }
}

/// Unmaps memory with a direct system call.
///
/// # Safety
/// As for `munmap`.
pub(crate) unsafe fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    // SAFETY: the caller fulfils the contract of `munmap`.
    unsafe { libc::syscall(libc::SYS_munmap, address, bytes) as c_int }
}

/// A system call with plain words as arguments, which is not interposed.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn system_call(number: c_long, arguments: [usize; 4]) -> isize {
    let [a, b, c, d] = arguments;
    // SAFETY: the caller fulfils the contract of the call.
    unsafe { libc::syscall(number, a, b, c, d) as isize }
}
