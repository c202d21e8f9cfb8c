//! Linked mode: the symbols are defined in this very executable.
#![expect(clippy::unwrap_used, reason = "integration tests")]

mod common;

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use common::{Buffer, Channel, PAGE, close, ioctl, map, open, refused, unmap};
use parking_lot::{Mutex, MutexGuard};
use tegra_sim::driver::Live;
use tegra_sim_preload as _;

const CTRL: &std::ffi::CStr = c"/dev/nvgpu/igpu0/ctrl";
/// ZCULL_GET_CTX_SIZE, which needs no objects and returns a number seen on a device.
const CONTEXT_SIZE: u32 = 0x8004_4701;

/// One test at a time: each checks that no object is alive at its end.
struct Alone {
    _one: MutexGuard<'static, ()>,
}

fn alone() -> Alone {
    static ONE: Mutex<()> = Mutex::new(());
    Alone { _one: ONE.lock() }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(tegra_sim_preload::orin().unwrap().live(), Live::default());
            assert_eq!(tegra_sim_preload::open_files(), Vec::<c_int>::new());
        }
    }
}

fn is_ctrl(fd: c_int) -> bool {
    ioctl(fd, CONTEXT_SIZE, [0]) == [164_352]
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap()
}

#[test]
fn work_runs_only_after_its_doorbell() {
    let _alone = alone();
    let mut channel = Channel::new();
    let first = channel.submit();
    tegra_sim_preload::orin().unwrap().gpu().drain();
    assert_eq!(channel.value(), 0, "no doorbell, no work");
    channel.ring();
    channel.wait(first);
}

#[test]
fn the_copy_class_needs_no_object_context() {
    let _alone = alone();
    // A stream seen on a device: both classes bound, ALLOC_OBJ_CTX called for compute alone.
    let mut channel = Channel::new();
    let number = channel.submit_behind(&[0x2001_2000, 0xc7c0, 0x2001_8000, 0xc7b5]);
    channel.ring();
    channel.wait(number);
}

#[test]
fn every_kind_of_store_rings() {
    let _alone = alone();
    let mut channel = Channel::new();
    let token = channel.token;
    // SAFETY: the page has this register.
    let register = unsafe { channel.page.add(0x24) };
    // SAFETY: each store is one to the token's register, or a wider one that covers it.
    let stores: [&dyn Fn(); 6] = unsafe {
        [
            &|| register.write_volatile(token),
            &|| AtomicU32::from_ptr(register).store(token, Ordering::Release),
            &|| AtomicU32::from_ptr(register).store(token, Ordering::SeqCst),
            &|| register.cast::<u64>().write_volatile(token.into()),
            &|| register.cast::<[u32; 4]>().write_volatile([token, 0, 0, 0]),
            &|| {
                libc::memcpy(register.cast(), (&raw const token).cast(), 4);
            },
        ]
    };
    for store in stores {
        let number = channel.submit();
        store();
        channel.wait(number);
    }
}

#[test]
fn the_page_reads_class_and_time() {
    let _alone = alone();
    let ctrl = open(CTRL);
    let page = map(ctrl, PAGE);
    // SAFETY: registers of the page.
    unsafe {
        assert_eq!(page.read_volatile(), 0xc461);
        let time = || page.add(0x20).cast::<u64>().read_volatile();
        let (before, after) = (time(), time());
        assert!(before <= after && before % 32 == 0 && after % 32 == 0, "{before} {after}");
        assert_eq!(page.add(0x24).read_volatile(), 0, "the doorbell reads 0");
        let mut copy = [1_u8; 256];
        libc::memcpy(copy.as_mut_ptr().cast(), page.cast(), copy.len());
        assert_eq!((copy[0], copy[1], copy[0x90]), (0x61, 0xc4, 0));
    }
    unmap(page, PAGE);
    close(ctrl);
}

#[test]
fn one_doorbell_page_per_file_which_it_keeps_open() {
    let _alone = alone();
    let ctrl = open(CTRL);
    let page = map(ctrl, PAGE);
    let again = |fd| {
        // SAFETY: a mapping that is refused.
        let second = unsafe {
            libc::mmap64(ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        };
        (second == libc::MAP_FAILED).then(errno)
    };
    assert_eq!(again(ctrl), Some(libc::EBUSY));
    close(ctrl);
    assert_eq!(tegra_sim_preload::orin().unwrap().live().files, 1);
    // SAFETY: the page is still mapped.
    assert_eq!(unsafe { page.read_volatile() }, 0xc461);
    unmap(page, PAGE);
    let nvmap = open(c"/dev/nvmap");
    assert_eq!(again(nvmap), Some(libc::EPERM));
    close(nvmap);
}

#[test]
fn nodes_open_through_every_variant_of_open() {
    unsafe extern "C" {
        fn __open_2(path: *const libc::c_char, flags: c_int) -> c_int;
        fn __open64_2(path: *const libc::c_char, flags: c_int) -> c_int;
        fn __openat_2(dir: c_int, path: *const libc::c_char, flags: c_int) -> c_int;
        fn __openat64_2(dir: c_int, path: *const libc::c_char, flags: c_int) -> c_int;
    }
    let _alone = alone();
    let (path, flags, here) = (CTRL.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, libc::AT_FDCWD);
    // SAFETY: C strings.
    let fds = unsafe {
        [
            libc::open(path, flags),
            libc::open64(path, flags),
            libc::openat(here, path, flags),
            libc::openat64(here, path, flags),
            __open_2(path, flags),
            __open64_2(path, flags),
            __openat_2(here, path, flags),
            __openat64_2(here, path, flags),
        ]
    };
    for fd in fds {
        assert!(is_ctrl(fd));
        // SAFETY: a number of the test's own.
        unsafe {
            assert_eq!(libc::fcntl(fd, libc::F_GETFD), libc::FD_CLOEXEC);
            assert_eq!(libc::fcntl(fd, libc::F_GETFL) & libc::O_ACCMODE, libc::O_RDWR);
        }
        close(fd);
    }
    // SAFETY: C strings.
    unsafe {
        assert_eq!(libc::open(c"/dev/nvgpu/igpu0/prof".as_ptr(), flags), -1);
        assert_eq!(errno(), libc::EACCES);
        assert_eq!(libc::open(c"/dev/nvgpu/igpu0/as".as_ptr(), flags), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(libc::open(c"/dev/nvgpu/igpu1/ctrl".as_ptr(), flags), -1);
        assert_eq!(errno(), libc::ENOENT);
        assert_eq!(libc::open(ptr::null(), flags), -1);
        assert_eq!(errno(), libc::EFAULT);
    }
}

#[test]
fn duplicated_fds_share_a_file_until_the_last_close() {
    let _alone = alone();
    let first = open(CTRL);
    // SAFETY: numbers of the test's own; 700 and 701 are free.
    let copies = unsafe {
        [
            libc::dup(first),
            libc::dup2(first, 700),
            libc::dup3(first, 701, libc::O_CLOEXEC),
            libc::fcntl(first, libc::F_DUPFD, 600),
            libc::fcntl(first, libc::F_DUPFD_CLOEXEC, 600),
            fcntl64(first, libc::F_DUPFD, 600),
        ]
    };
    close(first);
    for copy in copies {
        assert!(is_ctrl(copy));
        assert_eq!(tegra_sim_preload::orin().unwrap().live().files, 1);
        close(copy);
    }
}

unsafe extern "C" {
    fn fcntl64(fd: c_int, command: c_int, ...) -> c_int;
}

#[test]
fn a_number_reused_for_another_file_is_not_a_node() {
    let _alone = alone();
    let (ctrl, other) = (open(CTRL), open(c"/dev/null"));
    // SAFETY: numbers of the test's own.
    unsafe { libc::syscall(libc::SYS_dup3, other, ctrl, libc::O_CLOEXEC) };
    // User-mode emulators return ENOSYS for an unknown request.
    assert!([libc::ENOTTY, libc::ENOSYS].contains(&refused(ctrl, CONTEXT_SIZE, [0])));
    let unseen = open(CTRL);
    // SAFETY: as above.
    let copy = unsafe { libc::syscall(libc::SYS_dup, unseen) } as c_int;
    assert!(is_ctrl(copy), "a copy made by a raw call is known by its inode");
    close(unseen);
    assert!(is_ctrl(copy));
    for fd in [copy, ctrl, other] {
        close(fd);
    }
}

#[test]
fn close_range_closes_nodes() {
    let _alone = alone();
    let ctrl = open(CTRL);
    // SAFETY: 800 and 801 are free, and so is the rest between 799 and 802.
    unsafe {
        libc::dup2(ctrl, 800);
        libc::dup2(ctrl, 801);
        close(ctrl);
        assert_eq!(libc::close_range(799, 800, 0), 0);
        assert!(is_ctrl(801));
        assert_eq!(libc::close_range(801, 802, 0), 0);
    }
}

#[test]
fn nodes_have_the_status_of_the_device() {
    unsafe extern "C" {
        fn __fxstat(version: c_int, fd: c_int, into: *mut libc::stat) -> c_int;
    }
    let _alone = alone();
    let ctrl = open(CTRL);
    let path = CTRL.as_ptr();
    let look = |call: &dyn Fn(*mut libc::stat) -> c_int| {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        assert_eq!(call(stat.as_mut_ptr()), 0);
        // SAFETY: all-zero is a valid value.
        let stat = unsafe { stat.assume_init() };
        (stat.st_mode, stat.st_rdev, stat.st_ino)
    };
    // SAFETY: C strings, a number of the test's own, room for a structure.
    unsafe {
        let seen = look(&|into| libc::stat(path, into));
        assert_eq!(seen.0, libc::S_IFCHR | 0o660);
        assert_eq!(look(&|into| libc::lstat(path, into)), seen);
        assert_eq!(look(&|into| libc::fstat(ctrl, into)), seen);
        assert_eq!(look(&|into| libc::stat64(path, into.cast())), seen);
        assert_eq!(look(&|into| libc::lstat64(path, into.cast())), seen);
        assert_eq!(look(&|into| libc::fstat64(ctrl, into.cast())), seen);
        assert_eq!(look(&|into| __fxstat(1, ctrl, into)), seen);
        assert_eq!(look(&|into| libc::fstatat(libc::AT_FDCWD, path, into, 0)), seen);
        let (empty, flag) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
        assert_eq!(look(&|into| libc::fstatat64(ctrl, empty, into.cast(), flag)), seen);
        let mut statx = MaybeUninit::<libc::statx>::zeroed();
        assert_eq!(libc::statx(libc::AT_FDCWD, path, 0, libc::STATX_ALL, statx.as_mut_ptr()), 0);
        assert_eq!(u32::from(statx.assume_init().stx_mode), seen.0);
        assert_eq!(libc::access(path, libc::R_OK | libc::W_OK), 0);
        assert_eq!(libc::access(path, libc::X_OK), -1);
        assert_eq!(errno(), libc::EACCES);
        assert_eq!(libc::faccessat(libc::AT_FDCWD, path, libc::F_OK, 0), 0);
        assert_eq!(libc::access(c"/dev/nvgpu/igpu0/prof".as_ptr(), libc::R_OK), -1);
    }
    close(ctrl);
}

#[test]
fn only_the_power_node_can_be_read_and_written() {
    let _alone = alone();
    let (power, ctrl) = (open(c"/dev/nvgpu/igpu0/power"), open(CTRL));
    let mut text = [9_u8; 4];
    // SAFETY: the buffers have the passed lengths.
    unsafe {
        assert_eq!(libc::write(power, c"1\n".as_ptr().cast(), 2), 2);
        assert_eq!(libc::read(power, text.as_mut_ptr().cast(), 4), 2);
        assert_eq!(text, [b'2', 0, 9, 9]);
        assert_eq!(libc::read(power, text.as_mut_ptr().cast(), 4), 0);
        for (what, bytes) in [(c"2", 1), (c"x", 1), (c"100", 3), (c"", 0)] {
            assert_eq!(libc::write(power, what.as_ptr().cast(), bytes), -1, "{what:?}");
            assert_eq!(errno(), libc::EINVAL);
        }
        assert_eq!(libc::write(power, 8 as *const _, 1), -1);
        assert_eq!(errno(), libc::EFAULT);
        assert_eq!(libc::read(ctrl, text.as_mut_ptr().cast(), 4), -1);
        assert_eq!(errno(), libc::EINVAL);
    }
    close(power);
    close(ctrl);
}

#[test]
fn a_dma_buf_is_mapped_within_its_size() {
    let _alone = alone();
    let nvmap = open(c"/dev/nvmap");
    let buffer = Buffer::new(nvmap, 8192, 2);
    // SAFETY: mappings that are refused.
    unsafe {
        let (shared, read) = (libc::MAP_SHARED, libc::PROT_READ);
        let beyond = libc::mmap(ptr::null_mut(), 8192, read, shared, buffer.fd, 4096);
        assert_eq!((beyond, errno()), (libc::MAP_FAILED, libc::EINVAL));
    }
    let twice = map(buffer.fd, 8192);
    buffer.store(7, 0x1234_5678);
    // SAFETY: the mapping has this word.
    assert_eq!(unsafe { twice.add(7).read_volatile() }, 0x1234_5678);
    unmap(twice, 8192);
    drop(buffer);
    close(nvmap);
}

static CAUGHT: AtomicI32 = AtomicI32::new(0);

extern "C" fn catch(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    CAUGHT.store(signal, Ordering::SeqCst);
    // The handler makes the test's page accessible, and the store is repeated. SAFETY: the
    // arguments of a handler; the address is in that page.
    unsafe {
        assert!(!context.is_null());
        let page = (*info).si_addr() as usize & !0xfff;
        libc::mprotect(page as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE);
    }
}

#[test]
fn the_programs_own_faults_reach_its_handler() {
    let _alone = alone();
    let mut channel = Channel::new();
    // SAFETY: a handler for this test's own page; the old one is restored. The mask lacks nothing
    // that the test needs.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = catch as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let mut old: libc::sigaction = MaybeUninit::zeroed().assume_init();
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut old), 0);
        let mut seen: libc::sigaction = MaybeUninit::zeroed().assume_init();
        libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut seen);
        assert_eq!(seen.sa_sigaction, action.sa_sigaction, "the program sees what it has set");

        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0).cast::<u32>();
        page.write_volatile(7);
        assert_eq!((page.read_volatile(), CAUGHT.load(Ordering::SeqCst)), (7, libc::SIGSEGV));
        unmap(page, 4096);

        CAUGHT.store(0, Ordering::SeqCst);
        let mut all: libc::sigset_t = MaybeUninit::zeroed().assume_init();
        let mut before = all;
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let number = channel.submit();
        channel.ring();
        libc::sigprocmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        channel.wait(number);
        assert_eq!(CAUGHT.load(Ordering::SeqCst), 0, "a doorbell is not a fault of the program");

        libc::sigaction(libc::SIGSEGV, &raw const old, ptr::null_mut());
        let previous = libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        assert_eq!(previous, old.sa_sigaction);
        libc::sigaction(libc::SIGSEGV, &raw const old, ptr::null_mut());
    }
}

#[test]
fn a_forked_child_cannot_use_its_parents_orin() {
    let _alone = alone();
    let ctrl = open(CTRL);
    // SAFETY: the child only closes, queries and exits.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::close(ctrl);
            let fd = libc::open(CTRL.as_ptr(), libc::O_RDWR);
            libc::_exit(i32::from(fd != -1 || *libc::__errno_location() != libc::ENODEV));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert_eq!(status, 0);
    assert!(is_ctrl(ctrl));
    close(ctrl);
}

#[test]
fn an_ioctl_on_an_inherited_node_prints_the_remedy() {
    let _alone = alone();
    let ctrl = open(CTRL);
    let mut pipe = [-1; 2];
    // SAFETY: the child only queries, on its own stderr, and exits.
    let told = unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let child = libc::fork();
        if child == 0 {
            libc::dup2(pipe[1], 2);
            let mut words = [0_u32; 2];
            let results = [(); 2].map(|()| libc::ioctl(ctrl, 0xc008_4712, words.as_mut_ptr()));
            libc::_exit(i32::from(results != [-1; 2] || errno() != libc::ENODEV));
        }
        libc::close(pipe[1]);
        let mut told = vec![0; 4096];
        let mut length = 0;
        while let read @ 1.. =
            libc::read(pipe[0], told[length..].as_mut_ptr().cast(), 4096 - length)
        {
            length += read as usize;
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
        told.truncate(length);
        String::from_utf8(told).unwrap()
    };
    close(pipe[0]);
    close(ctrl);
    assert_eq!(told.matches("inherited by fork").count(), 1, "reported once: {told:?}");
    assert!(told.contains(&format!("fd {ctrl}")) && told.contains("spawn"), "{told:?}");
}

/// Like the kernel, whose dma-bufs have no `fsync`: seen on an Orin by `mmap.flush()`.
#[test]
fn msync_of_a_dma_buf_mapping_is_refused() {
    let _alone = alone();
    let nvmap = open(c"/dev/nvmap");
    let buffer = Buffer::new(nvmap, 8192, 2);
    let own = map_anonymous();
    // SAFETY: mappings of the test's own.
    unsafe {
        for (address, flags, expected) in [
            (buffer.cpu, libc::MS_SYNC, (-1, libc::EINVAL)),
            (buffer.cpu.add(1024), libc::MS_SYNC, (-1, libc::EINVAL)),
            (buffer.cpu, libc::MS_ASYNC, (0, 0)),
            (own, libc::MS_SYNC, (0, 0)),
        ] {
            let result = libc::msync(address.cast(), 4096, flags);
            let found = (result, if result == 0 { 0 } else { errno() });
            assert_eq!(found, expected, "{address:?} {flags:#x}");
        }
    }
    unmap(own, 4096);
    drop(buffer);
    close(nvmap);
}

fn map_anonymous() -> *mut u32 {
    let (both, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, wherever the kernel likes.
    let memory = unsafe { libc::mmap(ptr::null_mut(), 4096, both, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.cast()
}

#[test]
fn dlsym_returns_the_interposed_function() {
    let _alone = alone();
    // SAFETY: a handle of libc, one of its names, and that function's type.
    unsafe {
        let libc_so = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW);
        assert!(!libc_so.is_null());
        let open = libc::dlsym(libc_so, c"open".as_ptr());
        let open: extern "C" fn(*const libc::c_char, c_int, c_int) -> c_int =
            std::mem::transmute(open);
        let ctrl = open(CTRL.as_ptr(), libc::O_RDWR, 0);
        assert!(is_ctrl(ctrl));
        close(ctrl);
        assert!(!libc::dlsym(libc_so, c"strlen".as_ptr()).is_null());
        assert!(libc::dlsym(libc_so, c"no_such_function".as_ptr()).is_null());
        libc::dlclose(libc_so);
    }
}
