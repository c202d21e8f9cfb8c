//! The ioctl filter: its program evaluated for recorded calls and for every request of the drivers' headers, the
//! kernel's verdict in a child process, and a generation on the simulated Orin under the filter.

use std::collections::{BTreeMap, BTreeSet};

use ::engine::LoadSpec;
use daemon::filter;
use orind_testing::engine;
use orind_testing::program::{again, said};
use seccompiler::sock_filter;

/// `AUDIT_ARCH_*` of `linux/audit.h`.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// The program's verdict on a system call: classic BPF, as `seccomp(2)` defines it for a
/// `struct seccomp_data`.
fn verdict(program: &[sock_filter], architecture: u32, call: i64, arguments: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend((call as u32).to_ne_bytes());
    data.extend(architecture.to_ne_bytes());
    data.extend(0_u64.to_ne_bytes());
    data.extend(arguments.iter().flat_map(|a| a.to_ne_bytes()));
    let (mut at, mut a) = (0, 0_u32);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let mut branch = |taken: bool| at += usize::from(if taken { jt } else { jf });
        match u32::from(code) {
            // LD W ABS, JA, JEQ, JGT, JGE, JSET, AND, RET, all with a constant.
            0x20 => a = u32::from_ne_bytes(data[k as usize..][..4].try_into().unwrap()),
            0x05 => at += k as usize,
            0x15 => branch(a == k),
            0x25 => branch(a > k),
            0x35 => branch(a >= k),
            0x45 => branch(a & k != 0),
            0x54 => a &= k,
            0x06 => return k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

fn ioctl(request: u64) -> u32 {
    let program = filter::program().unwrap();
    verdict(&program, ARCHITECTURE, libc::SYS_ioctl, [3, request, 0, 0, 0, 0])
}

/// Requests of the drivers' headers by name, computed by a C compiler.
fn headers() -> BTreeMap<&'static str, u64> {
    include_str!("../../tegra/tests/data/ioctls.csv")
        .lines()
        .filter(|line| line.starts_with("r36.4.3,"))
        .map(|line| {
            let columns: Vec<&str> = line.split(',').collect();
            (columns[2], u64::from_str_radix(&columns[3][2..], 16).unwrap())
        })
        .collect()
}

#[test]
fn only_requests_that_the_daemon_makes_pass() {
    let known: BTreeMap<&str, u64> =
        tegra::abi::requests().map(|(name, number)| (name, number.into())).collect();
    let headers = headers();
    let mut refused = 0;
    for (name, number) in &headers {
        let expected = if known.contains_key(name) { ALLOW } else { REFUSE };
        assert_eq!(ioctl(*number), expected, "{name}");
        refused += usize::from(expected == REFUSE);
    }
    assert!(known.keys().all(|name| headers.contains_key(name)));
    assert!(refused > 50, "{refused} of {}", headers.len());
    // The size is part of the request number. The kernel ignores the upper half of the argument.
    let open = headers["NVGPU_GPU_IOCTL_OPEN_TSG"];
    assert_eq!(ioctl(open ^ (8 << 16)), REFUSE);
    assert_eq!(ioctl(open | 1 << 40), ALLOW);
}

#[test]
fn recorded_traces_pass_and_dangerous_requests_do_not() {
    // Device, name and number of each request: recorded by `strace -f -e trace=ioctl` on a CPU, and by the simulator
    // while a model was loaded, served and unloaded.
    let trace = include_str!("../data/ioctls.csv");
    let mut seen = BTreeMap::<&str, usize>::new();
    for line in trace.lines().skip(1) {
        let columns: Vec<&str> = line.split(',').collect();
        let [who, name, number] = columns[..] else { panic!("{line}") };
        let number = u64::from_str_radix(&number[2..], 16).unwrap();
        assert_eq!(ioctl(number), ALLOW, "{who}: {name}");
        *seen.entry(who).or_default() += 1;
    }
    assert!(seen["cpu"] >= 1 && seen["nv"] >= 15, "{seen:?}");
    for (name, number) in [
        ("TIOCSTI", 0x5412),
        ("TIOCLINUX", 0x541c),
        ("TIOCSETD", 0x5423),
        ("FS_IOC_SETFLAGS", 0x4008_6602),
        ("BLKDISCARD", 0x1277),
        ("DRM_IOCTL_VERSION", 0xc040_6400),
        ("USERFAULTFD_API", 0xc018_aa3f),
        ("nothing", 0),
    ] {
        assert_eq!(ioctl(number), REFUSE, "{name}");
    }
}

#[test]
fn other_system_calls_pass_except_ways_around_the_filter() {
    let program = filter::program().unwrap();
    let call = |number| verdict(&program, ARCHITECTURE, number, [0; 6]);
    for number in [libc::SYS_read, libc::SYS_mmap, libc::SYS_openat, libc::SYS_futex] {
        assert_eq!(call(number), ALLOW);
    }
    assert_eq!(call(libc::SYS_io_uring_setup), REFUSE);
    #[cfg(target_arch = "x86_64")]
    assert_eq!(call(0x4000_0000 + 514), REFUSE);
    // System calls of 32-bit code have other numbers, so they end the process.
    let foreign = verdict(&program, 0x4000_0003, libc::SYS_read, [0; 6]);
    assert_eq!(foreign, libc::SECCOMP_RET_KILL_PROCESS);
}

/// Prints the kernel's answers under the filter, also on a thread that is older than the filter.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn probe() {
    let (start, started) = std::sync::mpsc::channel::<()>();
    let raw = |request: u64| {
        // SAFETY: there is no descriptor -1, so no driver sees the request; no memory is passed.
        let result = unsafe { libc::syscall(libc::SYS_ioctl, -1, request, 0) };
        assert_eq!(result, -1);
        std::io::Error::last_os_error().raw_os_error().unwrap()
    };
    let older = std::thread::spawn(move || {
        started.recv().unwrap();
        raw(0x5412)
    });
    filter::install().unwrap();
    start.send(()).unwrap();
    println!("older {}", older.join().unwrap());
    println!("younger {}", std::thread::spawn(move || raw(0x5412)).join().unwrap());
    for (name, number) in headers() {
        println!("{name} {}", raw(number));
    }
    // SAFETY: takes a number and a null pointer, which it refuses.
    let uring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) };
    assert_eq!(uring, -1);
    println!("uring {}", std::io::Error::last_os_error().raw_os_error().unwrap());
}

#[test]
fn the_kernel_refuses_the_same_requests() {
    let said = said(&mut again(module_path!(), "probe"));
    let answers: BTreeMap<&str, i32> = said
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, errno)| Some((name, errno.parse().ok()?)))
        .collect();
    let known: BTreeSet<&str> = tegra::abi::requests().map(|(name, _)| name).collect();
    for name in headers().keys() {
        // Requests that pass the filter fail because the descriptor does not exist.
        let expected = if known.contains(name) { libc::EBADF } else { libc::EPERM };
        assert_eq!(answers.get(name), Some(&expected), "{name}");
    }
    for name in ["older", "younger", "uring"] {
        assert_eq!(answers.get(name), Some(&libc::EPERM), "{name} in {said}");
    }
}

/// Loads and generates on the simulated Orin, with and without the filter.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn generation() {
    let generate = || {
        let spec = engine::spec("synthetic:tiny-llama:q8_0", "nv");
        let handle = engine::start(LoadSpec { context: 64, ..spec });
        let tokens = engine::ask(&handle, engine::request(1..12, 8)).ids;
        assert_eq!(tokens.len(), 8);
        handle.stop(std::time::Duration::from_secs(5));
        tokens
    };
    let free = generate();
    filter::install().unwrap();
    assert_eq!(generate(), free);
}

/// The simulator replaces system calls in libc and never passes a driver's request to the kernel, so the filter
/// refuses nothing that it needs.
#[test]
fn the_simulated_orin_works_under_the_filter() {
    said(&mut again(module_path!(), "generation"));
}
