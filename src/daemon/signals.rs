//! Signals to the daemon, and the end of its parent process.

use std::io::{self, IsTerminal};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::unistd::{Pid, getppid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Within this time, a second signal is treated as a repetition of the first: `timeout` signals the
/// process and then its group.
const REPEAT: Duration = Duration::from_millis(300);

pub(super) enum SignalEvent {
    /// Stop; the signal's name.
    Stop(&'static str),
    Reload,
}

/// Makes exceeding the limit of file sizes an error of the write call instead of a signal that ends
/// the process.
pub fn ignore_file_size_limit() {
    // SAFETY: SIG_IGN is a disposition that runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None` if SIGHUP was ignored at start (`nohup`).
    hangup: Option<Signal>,
    hangup_reloads: bool,
}

impl Signals {
    /// SIGHUP means that the terminal was closed if the log is written to a terminal or there is no
    /// configuration to reload. Otherwise it means reload.
    pub(super) fn new(configured: bool) -> io::Result<Self> {
        ignore_file_size_limit();
        let hangup = !ignored(libc::SIGHUP);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: hangup.then(|| signal(SignalKind::hangup())).transpose()?,
            hangup_reloads: configured && !io::stderr().is_terminal(),
        })
    }

    pub(super) async fn next(&mut self) -> SignalEvent {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => SignalEvent::Stop("SIGTERM"),
            _ = self.interrupt.recv() => SignalEvent::Stop("SIGINT"),
            _ = hangup => if self.hangup_reloads { SignalEvent::Reload } else { SignalEvent::Stop("SIGHUP") },
        }
    }

    /// Waits for a second signal after a stop has begun.
    pub(super) async fn second_stop(&mut self) -> &'static str {
        let begun = Instant::now();
        loop {
            match self.next().await {
                SignalEvent::Stop(signal) if begun.elapsed() >= REPEAT => return signal,
                SignalEvent::Stop(_) | SignalEvent::Reload => {}
            }
        }
    }
}

/// Returns whether this process was started with a signal ignored.
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Parent of a private daemon, watched through a pidfd. (`PR_SET_PDEATHSIG` would fire when the
/// starting thread ends, not the process.)
pub(super) enum Parent {
    Alive(AsyncFd<OwnedFd>),
    Gone,
}

impl Parent {
    pub(super) fn watch(pid: i32) -> io::Result<Self> {
        // SAFETY: takes two integers and returns a new descriptor or -1; touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ESRCH) {
                Ok(Self::Gone)
            } else {
                Err(error)
            };
        }
        // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        // If the parent died before the call, its id may belong to another process.
        if getppid() != Pid::from_raw(pid) {
            return Ok(Self::Gone);
        }
        // SAFETY: an `OwnedFd` keeps its descriptor open, and always returns the same one.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(Self::Alive(fd))
    }
}

/// Waits until the parent has ended; forever if there is none to watch.
pub(super) async fn parent_ended(parent: Option<Parent>) {
    match parent {
        // A pidfd becomes readable when its process ends; an error means the same.
        Some(Parent::Alive(fd)) => drop(fd.readable().await),
        Some(Parent::Gone) => {}
        None => std::future::pending().await,
    }
}
