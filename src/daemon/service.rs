//! systemd integration: the notification protocol (`sd_notify(3)`) and socket activation
//! (`sd_listen_fds(3)`). Without a service manager, messages are dropped and there is no watchdog.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockType, SockaddrLike, SockaddrStorage};
use nix::sys::socket::{getsockname, getsockopt, sockopt};
use sd_notify::NotifyState;

use engine::{Handle, Loading, Snapshot, State};
use errors::printable;
use server::App;

/// Interval between checks of status and engines; shorter if the watchdog needs it.
const TICK: Duration = Duration::from_secs(1);

/// Extension of the start timeout for each progress step of the load at start.
const START: Duration = Duration::from_secs(60);

/// Time beyond its deadline that a stop may take: one step of the engine and the last answers.
const STOP: Duration = Duration::from_secs(10);

/// Returns whether a service manager started this process and expects notifications.
pub(super) fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// State of the notifications to the service manager.
pub(super) struct Service {
    watchdog: Option<Duration>,
    app: Arc<App>,
    /// Last heartbeat of each engine's thread, and of all loads together.
    heartbeats: Vec<u64>,
    load_beats: u64,
    /// True if the model of the configuration is not loaded yet.
    starting: bool,
    ready: bool,
    status: String,
}

#[derive(Debug)]
pub(super) struct EngineGone;

impl Service {
    /// Creates the service; with `starting`, its start ends at [`Self::started`].
    pub(super) fn new(app: Arc<App>, starting: bool) -> Self {
        let watchdog = sd_notify::watchdog_enabled();
        let (heartbeats, load_beats, ready, status) = (Vec::new(), 0, false, String::new());
        Self { watchdog, app, heartbeats, load_beats, starting, ready, status }
    }

    /// Interval between calls of [`Self::tick`].
    pub(super) fn interval(&self) -> Duration {
        // Several checks per watchdog period, because an engine answers only between steps.
        self.watchdog.map_or(TICK, |limit| TICK.min(limit / 8)).max(Duration::from_millis(10))
    }

    /// Ends the start, whether the load succeeded or not: a daemon without a model can load another
    /// one.
    pub(super) fn started(&mut self) -> Result<(), EngineGone> {
        self.starting = false;
        self.tick()
    }

    /// Sends the status, and pings the watchdog if every engine thread has made progress since the
    /// last call.
    pub(super) fn tick(&mut self) -> Result<(), EngineGone> {
        let engines = self.app.engines();
        let beats = self.app.heartbeats().ok_or(EngineGone)?;
        let before = std::mem::replace(&mut self.heartbeats, beats);
        // An engine added since the last call counts from the next call on.
        let alive = self.heartbeats.iter().zip(&before).all(|(now, before)| now != before);
        let load_beats = engines.iter().map(Handle::load_beats).sum();
        let loads = load_beats != std::mem::replace(&mut self.load_beats, load_beats);
        let states: Vec<Snapshot> = engines.iter().map(Handle::snapshot).collect();
        let mut message = Vec::new();
        if !self.ready && !self.starting {
            self.ready = true;
            message.push(NotifyState::Ready);
        }
        if loads && !self.ready {
            message.push(NotifyState::ExtendTimeoutUsec(micros(START)));
        }
        if alive && self.watchdog.is_some() {
            message.push(NotifyState::Watchdog);
        }
        // A line feed would begin another message to the service manager.
        let status = printable::line(&describe(&states));
        if status != self.status {
            self.status = status;
            message.push(NotifyState::Status(&self.status));
        }
        send(&message);
        Ok(())
    }

    /// Reloads the configuration, between the two messages that systemd expects.
    pub(super) fn reload(&mut self, reload: impl FnOnce()) {
        if !self.ready {
            return reload();
        }
        match NotifyState::monotonic_usec_now() {
            Ok(now) => send(&[NotifyState::Reloading, now]),
            Err(_) => send(&[NotifyState::Reloading]),
        }
        reload();
        send(&[NotifyState::Ready]);
    }

    /// Announces the stop; `deadline` is the time limit of running requests.
    pub(super) fn stopping(&self, deadline: Duration) {
        let extend = NotifyState::ExtendTimeoutUsec(micros(deadline + STOP));
        send(&[NotifyState::Stopping, extend, NotifyState::Status("stopping: finishing requests")]);
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn send(message: &[NotifyState<'_>]) {
    if message.is_empty() {
        return;
    }
    if let Err(error) = sd_notify::notify(message) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

/// Status line for `systemctl status`: the first engine, and the number of additional models.
fn describe(states: &[Snapshot]) -> String {
    let Some((first, beside)) = states.split_first() else {
        unreachable!("the first engine is always there");
    };
    let is_there = |now: &&Snapshot| matches!(now.state, State::Ready(_) | State::Exclusive { .. });
    match beside.iter().filter(is_there).count() {
        0 => describe_one(first),
        more => format!("{}; {more} more models", describe_one(first)),
    }
}

fn describe_one(now: &Snapshot) -> String {
    match &now.state {
        State::Empty => "no model is loaded".into(),
        State::Loading(Loading { model, progress }) => {
            format!("loading {model}: {:.0} %", 100.0 * progress)
        }
        State::Ready(model) => format!(
            "{} on {}, {} of {} slots busy, {} waiting",
            model.id, model.device.name, now.active, model.slots, now.queued
        ),
        State::Exclusive { what, model } => {
            format!("{what} of {} on {}", model.id, model.device.name)
        }
        State::Stopping => "stopping: finishing requests".into(),
    }
}

/// Returns the listening unix socket passed by the service manager, if any. Any other descriptor is
/// an error.
pub(super) fn inherited() -> io::Result<Option<UnixListener>> {
    let mut found = None;
    for fd in sd_notify::listen_fds()? {
        // SAFETY: the service manager opened this descriptor for us, and nothing else in this
        // process uses it; each one is converted once, at start.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        check(&fd)?;
        if found.replace(UnixListener::from(fd)).is_some() {
            return Err(io::Error::other(
                "the service manager passed two sockets; only one is supported",
            ));
        }
    }
    if let Some(listener) = &found {
        listener.set_nonblocking(true)?;
    }
    Ok(found)
}

/// Checks that the descriptor is a listening unix stream socket.
fn check(fd: &impl AsFd) -> io::Result<()> {
    let refused = |what: &str| {
        let text = format!(
            "the service manager passed a {what}; a listening unix stream socket is needed"
        );
        Err(io::Error::other(text))
    };
    let raw = std::os::fd::AsRawFd::as_raw_fd(&fd.as_fd());
    let Ok(name) = getsockname::<SockaddrStorage>(raw) else { return refused("file") };
    if name.family() != Some(AddressFamily::Unix) {
        return refused("socket of another family");
    }
    if getsockopt(fd, sockopt::SockType) != Ok(SockType::Stream) {
        return refused("unix socket of another type");
    }
    if getsockopt(fd, sockopt::AcceptConn) != Ok(true) {
        return refused("socket that does not listen");
    }
    Ok(())
}
