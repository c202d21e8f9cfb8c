//! Seccomp filter of the ioctl requests that the daemon may make.
//!
//! Permission to open a device node is permission for all ioctls of its driver. After start-up, a
//! seccomp filter allows only the requests in `tegra::abi` and a few of the runtime. Every other
//! ioctl fails with `EPERM`, on every thread, permanently. System calls that bypass the filter are
//! denied too: io_uring, and on x86-64 the x32 interface. Other system calls are restricted by the
//! service unit. The requests of the CUDA driver are unknown, so the filter excludes CUDA.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

use config::{Backend, Config, IoctlFilter};

/// Requests that Rust's and the C library's runtime makes: is it a terminal, its width,
/// non-blocking mode, readable bytes, close-on-exec. None of them changes a device.
const RUNTIME: [u32; 6] = [
    libc::TCGETS as u32,
    TCGETS2,
    libc::TIOCGWINSZ as u32,
    libc::FIONBIO as u32,
    libc::FIONREAD as u32,
    libc::FIOCLEX as u32,
];

/// `TCGETS2`, `_IOR('T', 0x2a, struct termios2)` of `asm-generic/ioctls.h`; newer C libraries use
/// it for `isatty`.
const TCGETS2: u32 = 0x802c_542a;

/// Index of ioctl's argument that contains the request.
const REQUEST: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("filters cannot be made for {ARCH}; `ioctl_filter = \"off\"` starts without one")]
    Architecture,
    #[error("cannot make the ioctl filter: {0}")]
    Compile(seccompiler::BackendError),
    #[error(
        "cannot install the ioctl filter: {0}; does the kernel have CONFIG_SECCOMP_FILTER? \
         `ioctl_filter = \"off\"` starts without one"
    )]
    Install(#[from] seccompiler::Error),
}

pub fn requests() -> impl Iterator<Item = u32> {
    tegra::abi::requests().map(|(_, number)| number).chain(RUNTIME)
}

/// Builds the filter as classic BPF.
pub fn program() -> Result<BpfProgram, Error> {
    let architecture = TargetArch::try_from(ARCH).map_err(|_| Error::Architecture)?;
    let is_not = |request: u32| {
        let (width, operator) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Ne);
        SeccompCondition::new(REQUEST, width, operator, request.into())
    };
    let unknown = requests()
        .map(is_not)
        .collect::<Result<Vec<_>, _>>()
        .and_then(SeccompRule::new)
        .map_err(Error::Compile)?;
    let mut refused = BTreeMap::from([(libc::SYS_ioctl, vec![unknown])]);
    // An empty list of rules matches the call whatever its arguments.
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register] {
        refused.insert(call, Vec::new());
    }
    #[cfg(target_arch = "x86_64")]
    for call in [X32 + libc::SYS_ioctl, X32 + 514] {
        refused.insert(call, Vec::new());
    }
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    SeccompFilter::new(refused, SeccompAction::Allow, refuse, architecture)
        .and_then(TryInto::try_into)
        .map_err(Error::Compile)
}

/// `__X32_SYSCALL_BIT`; ioctl has number 514 in the x32 interface.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

/// Installs the filter for all current and future threads. After an error nothing is filtered.
pub fn install() -> Result<(), Error> {
    Ok(apply_filter_all_threads(&program()?)?)
}

/// Device nodes of the kernel drivers that CUDA uses without an Orin: NVIDIA's own, and that of the
/// Windows Subsystem for Linux.
const CUDA_NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/dxg"];

/// Returns whether `config` requests the filter on this machine. `auto` disables it if models run
/// on CUDA: by name, or because there is an NVIDIA GPU and no Orin.
pub(super) fn wanted(config: &Config) -> bool {
    match (config.ioctl_filter, config.backend) {
        (IoctlFilter::On, _) => true,
        (IoctlFilter::Off, _) | (IoctlFilter::Auto, Backend::Cuda) => false,
        (IoctlFilter::Auto, Backend::Auto) => {
            let orin = tegra::error::Node::Ctrl.path().is_some_and(exists);
            orin || !CUDA_NODES.into_iter().any(exists)
        }
        (IoctlFilter::Auto, _) => true,
    }
}

/// Returns whether a node exists; one that may not be inspected does.
fn exists(node: &str) -> bool {
    !matches!(std::fs::metadata(node), Err(error) if error.kind() == io::ErrorKind::NotFound)
}
