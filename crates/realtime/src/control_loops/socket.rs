//! Socket of the control loops, next to the daemon's own. A client sends a loop's name and a line
//! feed. The answer is a line of JSON with three descriptors: shared memory, start counter, answer
//! counter. The client owns the loop until it closes the connection. An error is a line `{"error":
//! ...}` without descriptors.

use std::io::{self, BufRead as _, BufReader, IoSlice, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg};
use serde_json::json;

use super::memory::Client;
use super::{ControlLoops, State};
use errors::invalid::excerpt;

/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 64;

/// Maximum length of a name with its line feed, in bytes.
const MAX_NAME: u64 = 256;

/// Time limit for a client to send the loop's name.
const NAME_TIMEOUT: Duration = Duration::from_secs(5);

/// Accepts clients of the control loops.
pub struct ControlLoopServer {
    loops: Arc<ControlLoops>,
    connections: AtomicUsize,
}

impl ControlLoopServer {
    /// Serves `listener` on a thread that ends with the daemon.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn open(loops: Arc<ControlLoops>, listener: UnixListener) -> io::Result<()> {
        listener.set_nonblocking(false)?;
        let server = Arc::new(Self { loops, connections: AtomicUsize::new(0) });
        let body = move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => server.admit(stream),
                    Err(error) => {
                        tracing::warn!(%error, "a client of a control loop was not accepted");
                        // Probably out of file descriptors.
                        thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        };
        thread::Builder::new().name("lanes".into()).spawn(body).map(drop)
    }

    fn admit(self: &Arc<Self>, mut stream: UnixStream) {
        if self.connections.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            refuse(&mut stream, &format!("{MAX_CONNECTIONS} connections are open; close some"));
            return;
        }
        let server = Arc::clone(self);
        let body = move || {
            server.serve(stream);
            server.connections.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = thread::Builder::new().name("lane client".into()).spawn(body) {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%error, "a client of a control loop was not accepted");
        }
    }

    fn serve(&self, mut stream: UnixStream) {
        match self.connect(&mut stream) {
            Ok(ownership) => ownership.wait_until_closed(stream),
            Err(why) => refuse(&mut stream, &why),
        }
    }

    /// Connects a client to the loop that it names.
    fn connect(&self, stream: &mut UnixStream) -> Result<Ownership, String> {
        let system = |what: &'static str| move |error: io::Error| format!("cannot {what}: {error}");
        stream.set_read_timeout(Some(NAME_TIMEOUT)).map_err(system("set a time limit"))?;
        let mut name = String::new();
        let mut lines = BufReader::new((&*stream).take(MAX_NAME));
        lines.read_line(&mut name).map_err(system("read the control loop's name"))?;
        let name =
            name.strip_suffix('\n').ok_or("a control loop's name and a line feed are expected")?;
        let control_loop = self.loops.find(&excerpt(name))?;
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
            let ownership = Ownership {
                start: Arc::clone(&client.start),
                answer: Arc::clone(&client.answer),
                disconnected: Arc::clone(&client.disconnected),
            };
            clients
                .try_send(client)
                .map_err(|_| format!("control loop `{name}` is being released; try again"))?;
            *held_by = Some(peer);
            (ownership, descriptors, Arc::clone(layout))
        };
        let text = serde_json::to_string(&*layout).map_err(|error| error.to_string())?;
        let sent = send(stream, &format!("{text}\n"), &descriptors);
        match sent {
            Ok(()) => Ok(client),
            Err(error) => {
                client.release();
                Err(format!("cannot send the shared memory: {error}"))
            }
        }
    }
}

/// The client's ownership of a loop.
struct Ownership {
    start: Arc<EventFd>,
    answer: Arc<EventFd>,
    disconnected: Arc<AtomicBool>,
}

impl Ownership {
    fn wait_until_closed(self, mut stream: UnixStream) {
        let _ = stream.set_read_timeout(None);
        // Further input is ignored.
        let _ = io::copy(&mut stream, &mut io::sink());
        self.release();
    }

    fn release(self) {
        self.disconnected.store(true, Ordering::Release);
        // If the client filled the answer counter, the loop's thread is blocked on it.
        let _ = fcntl(&*self.answer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        let _ = self.answer.read();
        // Wakes the thread. A full counter wakes it too.
        let _ = self.start.write(1);
    }
}

fn send(stream: &UnixStream, text: &str, descriptors: &[OwnedFd; 3]) -> io::Result<()> {
    let fds: [RawFd; 3] = descriptors.each_ref().map(OwnedFd::as_raw_fd);
    let rights = [ControlMessage::ScmRights(&fds)];
    let parts = [IoSlice::new(text.as_bytes())];
    let sent = sendmsg::<()>(stream.as_raw_fd(), &parts, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    // The descriptors are sent with the first byte.
    (&*stream).write_all(&text.as_bytes()[sent..])
}

fn refuse(stream: &mut UnixStream, why: &str) {
    let text = json!({ "error": { "message": why } });
    // The client may have disconnected.
    let _ = writeln!(stream, "{text}");
}
