//! Where clients get a lane: a unix socket beside the daemon's. A client sends the lane's name and a line feed; it gets one
//! line of JSON, and with it three descriptors: the memory, the counter that starts a step, the counter that answers. It
//! has the lane until it closes the connection. An error is a line too, `{"error": ...}`, without descriptors.

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
use super::{Lanes, State};
use errors::invalid::shown;

/// Connections at once.
const MOST: usize = 64;

/// Bytes of a name, with its line feed.
const LONGEST: u64 = 256;

/// How long a client may take to say which lane it wants.
const PATIENCE: Duration = Duration::from_secs(5);

/// The socket, listened on.
pub struct ControlLoopServer {
    lanes: Arc<Lanes>,
    connections: AtomicUsize,
}

impl ControlLoopServer {
    /// Opens it, on a thread of its own that ends with the daemon.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn open(lanes: Arc<Lanes>, listener: UnixListener) -> io::Result<()> {
        listener.set_nonblocking(false)?;
        let door = Arc::new(Self { lanes, connections: AtomicUsize::new(0) });
        let body = move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => door.admit(stream),
                    Err(error) => {
                        tracing::warn!(%error, "a client of a lane was not admitted");
                        // Out of descriptors, most likely.
                        thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        };
        thread::Builder::new().name("lanes".into()).spawn(body).map(drop)
    }

    fn admit(self: &Arc<Self>, mut stream: UnixStream) {
        if self.connections.fetch_add(1, Ordering::AcqRel) >= MOST {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            refuse(&mut stream, &format!("{MOST} connections are open; close some"));
            return;
        }
        let door = Arc::clone(self);
        let body = move || {
            door.talk(stream);
            door.connections.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = thread::Builder::new().name("lane client".into()).spawn(body) {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%error, "a client of a lane was not admitted");
        }
    }

    fn talk(&self, mut stream: UnixStream) {
        match self.hand_over(&mut stream) {
            Ok(held) => held.until_closed(stream),
            Err(why) => refuse(&mut stream, &why),
        }
    }

    /// Gives the client the lane that it asks for.
    fn hand_over(&self, stream: &mut UnixStream) -> Result<Held, String> {
        let system = |what: &'static str| move |error: io::Error| format!("cannot {what}: {error}");
        stream.set_read_timeout(Some(PATIENCE)).map_err(system("set a time limit"))?;
        let mut name = String::new();
        let mut lines = BufReader::new((&*stream).take(LONGEST));
        lines.read_line(&mut name).map_err(system("read the lane's name"))?;
        let name = name.strip_suffix('\n').ok_or("a lane's name and a line feed are expected")?;
        let lane = self.lanes.find(&shown(name))?;
        let peer = getsockopt(&*stream, PeerCredentials).map_or(0, |peer| peer.pid());
        let (client, handed, layout) = {
            let mut state = lane.state.lock();
            let (layout, clients, held_by) = match &mut *state {
                State::Preparing => {
                    return Err(format!("lane `{name}` is being prepared; try again"));
                }
                State::Failed(why) => return Err(format!("lane `{name}` cannot be used: {why}")),
                State::Ready { layout, clients, held_by, .. } => (layout, clients, held_by),
            };
            if let Some(holder) = held_by {
                return Err(format!("process {holder} has lane `{name}`"));
            }
            let (client, handed) =
                Client::new(layout, stream).map_err(|error| error.to_string())?;
            let held = Held {
                start: Arc::clone(&client.start),
                answer: Arc::clone(&client.answer),
                gone: Arc::clone(&client.gone),
            };
            clients.try_send(client).map_err(|_| format!("lane `{name}` is being given back"))?;
            *held_by = Some(peer);
            (held, handed, Arc::clone(layout))
        };
        let text = serde_json::to_string(&*layout).map_err(|error| error.to_string())?;
        let sent = send(stream, &format!("{text}\n"), &handed);
        match sent {
            Ok(()) => Ok(client),
            Err(error) => {
                client.give_back();
                Err(format!("the lane cannot be handed over: {error}"))
            }
        }
    }
}

/// A lane that a client has.
struct Held {
    start: Arc<EventFd>,
    answer: Arc<EventFd>,
    gone: Arc<AtomicBool>,
}

impl Held {
    fn until_closed(self, mut stream: UnixStream) {
        let _ = stream.set_read_timeout(None);
        // What it still says is of no interest.
        let _ = io::copy(&mut stream, &mut io::sink());
        self.give_back();
    }

    fn give_back(self) {
        self.gone.store(true, Ordering::Release);
        // A client may have filled this one, on which the lane's thread waits then.
        let _ = fcntl(&*self.answer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        let _ = self.answer.read();
        // Wakes the thread. A counter that is full wakes it too.
        let _ = self.start.write(1);
    }
}

fn send(stream: &UnixStream, text: &str, handed: &[OwnedFd; 3]) -> io::Result<()> {
    let fds: [RawFd; 3] = handed.each_ref().map(OwnedFd::as_raw_fd);
    let rights = [ControlMessage::ScmRights(&fds)];
    let parts = [IoSlice::new(text.as_bytes())];
    let sent = sendmsg::<()>(stream.as_raw_fd(), &parts, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    // The descriptors went with the first byte.
    (&*stream).write_all(&text.as_bytes()[sent..])
}

fn refuse(stream: &mut UnixStream, why: &str) {
    let text = json!({ "error": { "message": why } });
    // Whoever asked may be gone.
    let _ = writeln!(stream, "{text}");
}
