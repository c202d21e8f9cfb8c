//! What the daemon is told from outside: signals, and the end of the process that started it.

use std::io::{self, IsTerminal};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::unistd::{Pid, getppid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A second signal within this time is the first one once more: `timeout` sends it to the process and then to
/// its group.
const ECHO: Duration = Duration::from_millis(300);

pub(super) enum Told {
    /// Stop; the signal's name.
    Stop(&'static str),
    Reload,
}

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Left alone when whoever started the daemon ignores it (`nohup`).
    hangup: Option<Signal>,
    hangup_reloads: bool,
}

impl Signals {
    /// SIGHUP says that the terminal went away where the log goes to one, or where there is no
    /// configuration to read again; a service is asked to reload by it.
    pub(super) fn new(configured: bool) -> io::Result<Self> {
        // A file that may not grow is an error of whoever writes it.
        // SAFETY: a disposition that runs no code of ours.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let hangup = !ignored(libc::SIGHUP);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: hangup.then(|| signal(SignalKind::hangup())).transpose()?,
            hangup_reloads: configured && !io::stderr().is_terminal(),
        })
    }

    pub(super) async fn next(&mut self) -> Told {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Told::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Told::Stop("SIGINT"),
            _ = hangup => if self.hangup_reloads { Told::Reload } else { Told::Stop("SIGHUP") },
        }
    }

    /// Waits for somebody to lose patience with a stop that has just begun.
    pub(super) async fn again(&mut self) -> &'static str {
        let begun = Instant::now();
        loop {
            match self.next().await {
                Told::Stop(signal) if begun.elapsed() >= ECHO => return signal,
                Told::Stop(_) | Told::Reload => {}
            }
        }
    }
}

/// Whether this process was started with a signal ignored.
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The process that started a private daemon, watched through a pidfd. (`PR_SET_PDEATHSIG` would
/// fire when the starting thread ends, not the process.)
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
        // SAFETY: the call succeeded, so this is a descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        // A parent that died before the call may have left its id to a stranger.
        if getppid() != Pid::from_raw(pid) {
            return Ok(Self::Gone);
        }
        // SAFETY: an `OwnedFd` keeps its descriptor open, and always returns the same one.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(Self::Alive(fd))
    }
}

/// Waits until the parent is gone; for ever when there is none to watch.
pub(super) async fn gone(parent: Option<Parent>) {
    match parent {
        // A pidfd becomes readable when its process ends; an error would mean the same.
        Some(Parent::Alive(fd)) => drop(fd.readable().await),
        Some(Parent::Gone) => {}
        None => std::future::pending().await,
    }
}
