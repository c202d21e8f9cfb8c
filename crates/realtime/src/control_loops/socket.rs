//! Socket of the control loops, next to the daemon's own. A client sends a loop's name and a line
//! feed. The answer is a line of JSON with three descriptors: shared memory, start counter, socket
//! that signals answers. The client owns the loop until it closes the connection. An error is a line
//! `{"error": ...}` without descriptors.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg};
use parking_lot::Mutex;

use super::memory::{Client, Disconnection, error_line};
use super::{ControlLoops, State};
use errors::invalid::excerpt;

/// Maximum number of connections. The oldest one that has not named a loop makes room for another.
const MAX_CONNECTIONS: usize = 64;

/// Maximum length of a name with its line feed, in bytes.
const MAX_NAME: usize = 256;

/// Time limit for a client to send the loop's name and to receive the answer.
const GREETING: Duration = Duration::from_secs(5);

/// Pause after a client could not be accepted, and so the minimum time between two log lines.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients of the control loops.
pub struct ControlLoopServer {
    loops: Arc<ControlLoops>,
    connections: AtomicUsize,
    /// Connections that have not named a loop, oldest first, by their number.
    greeting: Mutex<VecDeque<(u64, UnixStream)>>,
    /// Number of the next connection.
    next: AtomicU64,
}

impl ControlLoopServer {
    /// Serves `listener` on a thread that ends with the daemon.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn open(loops: Arc<ControlLoops>, listener: UnixListener) -> io::Result<()> {
        listener.set_nonblocking(false)?;
        let server = Arc::new(Self {
            loops,
            connections: AtomicUsize::new(0),
            greeting: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let body = move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => server.admit(stream),
                    Err(error) => {
                        tracing::warn!(%error, "a client of a control loop was not accepted");
                        // Probably out of file descriptors.
                        thread::sleep(PAUSE);
                    }
                }
            }
        };
        thread::Builder::new().name("lanes".into()).spawn(body).map(drop)
    }

    fn admit(self: &Arc<Self>, mut stream: UnixStream) {
        let is_full = self.connections.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS;
        if is_full && !self.make_room() {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            refuse(&mut stream, &format!("{MAX_CONNECTIONS} connections are open; close some"));
            return;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Without another descriptor it cannot be closed early, but has a deadline as well.
        let greeting = stream.try_clone().ok().map(|stream| (number, stream));
        self.greeting.lock().extend(greeting);
        let server = Arc::clone(self);
        let body = move || {
            server.serve(stream, number);
            server.connections.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = thread::Builder::new().name("lane client".into()).spawn(body) {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            self.greeted(number);
            tracing::warn!(%error, "a client of a control loop was not accepted");
            thread::sleep(PAUSE);
        }
    }

    /// Closes the oldest connection that has not named a loop. Returns false if there is none.
    fn make_room(&self) -> bool {
        let oldest = self.greeting.lock().pop_front();
        // Its thread ends, because it reads the end of the stream.
        oldest.is_some_and(|(_, stream)| stream.shutdown(Shutdown::Both).is_ok())
    }

    /// Forgets a connection that has named a loop, or has ended.
    fn greeted(&self, number: u64) {
        self.greeting.lock().retain(|(other, _)| *other != number);
    }

    fn serve(&self, mut stream: UnixStream, number: u64) {
        let connected = self.connect(&mut stream, number);
        self.greeted(number);
        match connected {
            Ok(ownership) => ownership.wait_until_closed(stream),
            Err(why) => refuse(&mut stream, &why),
        }
    }

    /// Connects a client to the loop that it names.
    fn connect(&self, stream: &mut UnixStream, number: u64) -> Result<Ownership, String> {
        let deadline = Instant::now() + GREETING;
        let name = read_name(stream, deadline)?;
        self.greeted(number);
        let control_loop = self.loops.find(&excerpt(&name))?;
        let peer = getsockopt(&*stream, PeerCredentials).map_or(0, |peer| peer.pid());
        let (client, descriptors, layout) = {
            let mut state = control_loop.state.lock();
            let (layout, clients, held_by) = match &mut *state {
                State::Preparing => {
                    return Err(format!("control loop `{name}` is being prepared; try again"));
                }
                State::Failed(why) => {
                    return Err(format!("control loop `{name}` cannot be used: {why}"));
                }
                State::Ready { layout, clients, held_by, .. } => (layout, clients, held_by),
            };
            if let Some(holder) = held_by {
                return Err(format!("control loop `{name}` is in use by process {holder}"));
            }
            let (client, descriptors) =
                Client::new(layout, stream).map_err(|error| error.to_string())?;
            let ownership = Ownership(Arc::clone(&client.disconnection));
            clients
                .try_send(client)
                .map_err(|_| format!("control loop `{name}` is being released; try again"))?;
            *held_by = Some(peer);
            (ownership, descriptors, Arc::clone(layout))
        };
        let text = serde_json::to_string(&*layout).map_err(|error| error.to_string())?;
        let sent = send(stream, &format!("{text}\n"), &descriptors, deadline);
        match sent {
            Ok(()) => Ok(client),
            Err(error) => {
                client.0.report();
                Err(format!("cannot send the shared memory: {error}"))
            }
        }
    }
}

/// Reads the loop's name, of which each byte may arrive late, but all by the deadline.
fn read_name(stream: &mut UnixStream, deadline: Instant) -> Result<String, String> {
    let failed =
        |why: &dyn std::fmt::Display| format!("cannot read the control loop's name: {why}");
    let mut bytes = [0; MAX_NAME];
    let mut count = 0;
    loop {
        if let Some(end) = bytes[..count].iter().position(|byte| *byte == b'\n') {
            let name = std::str::from_utf8(&bytes[..end]);
            return name.map(str::to_owned).map_err(|error| failed(&error));
        }
        stream.set_read_timeout(Some(until(deadline)?)).map_err(|error| failed(&error))?;
        match stream.read(&mut bytes[count..]) {
            Ok(0) => return Err("a control loop's name and a line feed are expected".into()),
            Ok(more) => count += more,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                _ => return Err(failed(&error)),
            },
        }
    }
}

/// Time until the deadline, or an error after it.
fn until(deadline: Instant) -> Result<Duration, String> {
    let left = deadline.saturating_duration_since(Instant::now());
    let late = || format!("the greeting took longer than {} s", GREETING.as_secs());
    (!left.is_zero()).then_some(left).ok_or_else(late)
}

/// The client's ownership of a loop.
struct Ownership(Arc<Disconnection>);

impl Ownership {
    fn wait_until_closed(self, mut stream: UnixStream) {
        let _ = stream.set_read_timeout(None);
        // Further input is ignored.
        let _ = io::copy(&mut stream, &mut io::sink());
        self.0.report();
    }
}

/// Sends the answer with its descriptors, which travel with the first byte.
fn send(
    stream: &UnixStream,
    text: &str,
    descriptors: &[OwnedFd; 3],
    deadline: Instant,
) -> io::Result<()> {
    let late = |why: String| io::Error::new(io::ErrorKind::TimedOut, why);
    stream.set_write_timeout(Some(until(deadline).map_err(late)?))?;
    let fds: [RawFd; 3] = descriptors.each_ref().map(OwnedFd::as_raw_fd);
    let rights = [ControlMessage::ScmRights(&fds)];
    let parts = [IoSlice::new(text.as_bytes())];
    let mut sent =
        sendmsg::<()>(stream.as_raw_fd(), &parts, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    while sent < text.len() {
        stream.set_write_timeout(Some(until(deadline).map_err(late)?))?;
        sent += (&*stream).write(&text.as_bytes()[sent..])?;
    }
    Ok(())
}

/// Sends an error, in one piece.
fn refuse(stream: &mut UnixStream, why: &str) {
    // The client may have disconnected, or not read what it was sent.
    let _ = stream.set_write_timeout(Some(PAUSE));
    let _ = stream.write_all(error_line(why).as_bytes());
}
