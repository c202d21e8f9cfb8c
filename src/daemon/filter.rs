//! Which ioctl requests the daemon may make, by number.
//!
//! Permission to open a node is permission for all of its driver's ioctls. So after start-up the kernel is
//! told to let through the requests that `tegra::abi` knows, and the few that the runtime makes; every other
//! ioctl fails with `EPERM`, on every thread, for good. What would lead around the filter goes too: io_uring,
//! and on x86-64 the numbers of the x32 interface. Other system calls are the service unit's business. The
//! CUDA driver's requests are its own affair, so with the filter there is no CUDA.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

use config::{Config, IoctlFilter};

/// What Rust's and the C library's own code asks of descriptors: is it a terminal and how wide, may it
/// block, how much can be read, is it closed on exec. None of them changes a device.
const RUNTIME: [u32; 6] = [
    libc::TCGETS as u32,
    TCGETS2,
    libc::TIOCGWINSZ as u32,
    libc::FIONBIO as u32,
    libc::FIONREAD as u32,
    libc::FIOCLEX as u32,
];

/// `TCGETS2`, `_IOR('T', 0x2a, struct termios2)` of `asm-generic/ioctls.h`, which newer C libraries use
/// for `isatty`.
const TCGETS2: u32 = 0x802c_542a;

/// The argument of ioctl that holds the request.
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

/// The filter as the kernel's classic BPF.
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
    // An empty list of rules is the call whatever its arguments.
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

/// `__X32_SYSCALL_BIT`; ioctl has number 514 there.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

/// Puts all threads of this process, those to come too, under the filter; after an error nothing is filtered.
pub fn install() -> Result<(), Error> {
    Ok(apply_filter_all_threads(&program()?)?)
}

/// Nodes of the kernel drivers that CUDA runs on where there is no Orin: NVIDIA's own, and the one of
/// Windows' subsystem for Linux.
const CUDA_NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/dxg"];

/// Whether `config` asks for the filter on this machine. `auto` goes without one where CUDA is what
/// models run on: by name, or because there is a GPU for it and none of an Orin.
pub(super) fn wanted(config: &Config) -> bool {
    match (config.ioctl_filter, config.backend.as_str()) {
        (IoctlFilter::On, _) => true,
        (IoctlFilter::Off, _) | (IoctlFilter::Auto, "cuda") => false,
        (IoctlFilter::Auto, "auto") => {
            let orin = tegra::error::Node::Ctrl.path().is_some_and(exists);
            orin || !CUDA_NODES.into_iter().any(exists)
        }
        (IoctlFilter::Auto, _) => true,
    }
}

/// A node that may not be looked at is there all the same.
fn exists(node: &str) -> bool {
    !matches!(std::fs::metadata(node), Err(error) if error.kind() == io::ErrorKind::NotFound)
}
