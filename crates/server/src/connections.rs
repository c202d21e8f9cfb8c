//! Connections: admission, serving and shutdown. When all places are taken, a new connection
//! replaces the one that has been idle longest. Some places are reserved for the unix socket, and
//! of these some for the daemon's own user and root, so that other clients cannot lock them out.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use axum::middleware;
use axum::response::Response;
use axum::{Extension, Router};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use super::body::Door;
use super::disconnect::DisconnectWatch;
use super::error::Error;
use super::tcp::{self, Port};
use super::{App, dialect, graceful_close, host, origin, router};

/// Maximum size of a request's head in bytes; hyper answers 431 above it.
const MAX_HEAD: usize = 64 << 10;

/// Time limit for writing a rejection.
const REJECTION_WRITE: Duration = Duration::from_secs(1);

/// Time limit for reading from a rejected connection until its client closes it. Closing a socket
/// with unread bytes makes the kernel send a reset, and the client would lose the rejection.
const REJECTION_DRAIN: Duration = Duration::from_millis(200);

/// Grace period of a connection that is being closed to free its place. A request that arrives
/// within it is answered.
const EVICTION_GRACE: Duration = Duration::from_millis(10);

/// Time until the next attempt to accept a connection if none could be closed.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Minimum time between two log lines about connections that could not be accepted.
const REPORTS: Duration = Duration::from_secs(60);

/// One of this many places is reserved at each level of [`Peer`].
const RESERVED_SHARE: usize = 8;

#[derive(Debug)]
pub struct Connections(JoinSet<()>);

impl Connections {
    /// Waits at most `limit` for the answers in progress, then closes all connections.
    pub async fn drain(mut self, limit: Duration) {
        let all = async { while self.0.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(limit, all).await;
    }
}

/// Stop signal of a server.
#[derive(Clone, Default)]
pub struct Stop {
    draining: CancellationToken,
    closed: CancellationToken,
}

impl Stop {
    /// Closes idle connections now and busy ones after their answer. New clients still get one
    /// answer, so that health checks see that the daemon is stopping.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Stops accepting connections.
    pub fn close(&self) {
        self.closed.cancel();
    }
}

pub struct Listeners {
    pub unix: UnixListener,
    pub tcp: Option<Port>,
}

/// Serves until `stop` is closed.
pub async fn serve(listeners: Listeners, app: Arc<App>, stop: Stop) -> Connections {
    let Listeners { unix, tcp } = listeners;
    let open = router(Arc::clone(&app));
    let drain_body =
        middleware::map_request_with_state(Arc::clone(&app), graceful_close::drain_body);
    let token = tcp.as_ref().and_then(Port::token);
    let guarded = open.clone().layer(middleware::from_fn_with_state(token, tcp::guard));
    let origins = middleware::from_fn_with_state(Arc::clone(&app), origin::check);
    let [open, guarded] = [(open, Door::Socket), (guarded, Door::Port)].map(|(routes, door)| {
        routes
            .layer(origins.clone())
            .layer(middleware::from_fn(host::check))
            .layer(middleware::from_fn(dialect::shape_errors))
            .layer(Extension(door))
            .layer(drain_body.clone())
    });
    let (connections, admitted) = (JoinSet::new(), HashMap::new());
    let mut server = Server { app, connections, admitted, stop, reported: None };
    loop {
        let accept_tcp = async {
            match &tcp {
                Some(port) => port.accept().await,
                None => std::future::pending().await,
            }
        };
        let accepted = tokio::select! {
            biased;
            () = server.stop.closed.cancelled() => return Connections(server.connections),
            Some(ended) = server.connections.join_next_with_id() => {
                let id = match ended {
                    Ok((id, ())) => id,
                    Err(error) => {
                        tracing::error!(%error, "a connection's task panicked");
                        error.id()
                    }
                };
                server.admitted.remove(&id);
                continue;
            }
            accepted = unix.accept() => accepted.map(|(stream, _)| {
                let peer = Peer::of(&stream);
                let disconnect = DisconnectWatch::watch(&stream).inspect_err(|error| {
                    tracing::warn!(%error, "a client that shuts down its sending side counts as disconnected");
                });
                server.admit(stream, peer, disconnect.ok(), &open);
            }),
            accepted = accept_tcp => accepted.map(|(stream, peer)| {
                tracing::debug!(%peer, "connected");
                server.admit(stream, Peer::Network, None, &guarded);
            }),
        };
        if let Err(error) = accepted {
            server.make_room(&error).await;
        }
    }
}

/// Tracks whether a connection's client waits for an answer.
#[derive(Clone)]
struct Activity(Arc<Mutex<ActivityState>>);

struct ActivityState {
    /// Number of requests without a complete answer.
    busy: usize,
    /// Time of the last change of `busy`.
    since: Instant,
}

impl Activity {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(ActivityState { busy: 0, since: Instant::now() })))
    }

    fn begin(&self) -> Busy {
        let mut state = self.0.lock();
        *state = ActivityState { busy: state.busy + 1, since: Instant::now() };
        Busy(self.clone())
    }

    /// Returns the time since which the connection has been idle, if it is idle.
    fn idle(&self) -> Option<Instant> {
        let state = self.0.lock();
        (state.busy == 0).then_some(state.since)
    }
}

/// A request without a complete answer.
struct Busy(Activity);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        *state = ActivityState { busy: state.busy - 1, since: Instant::now() };
    }
}

/// Body of an answer. The connection is busy until it ends.
struct Answer {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Kind of client. Each kind has reserved places that earlier kinds cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Peer {
    /// A TCP client.
    Network,
    /// A client that the unix socket's permissions admit.
    Socket,
    /// The daemon's own user or root, on the unix socket.
    Own,
}

impl Peer {
    /// Identifies a unix socket's client by its kernel credentials.
    fn of(stream: &UnixStream) -> Self {
        match stream.peer_cred() {
            Ok(peer) => {
                tracing::debug!(pid = peer.pid(), uid = peer.uid(), gid = peer.gid(), "connected");
                let own = [0, nix::unistd::geteuid().as_raw()].contains(&peer.uid());
                if own { Self::Own } else { Self::Socket }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot identify the client of a connection");
                Self::Socket
            }
        }
    }

    /// Number of places, of `limit`, that this kind and earlier kinds may use.
    const fn share_of(self, limit: usize) -> usize {
        match self {
            Self::Network => limit - 2 * (limit / RESERVED_SHARE),
            Self::Socket => limit - limit / RESERVED_SHARE,
            Self::Own => limit,
        }
    }
}

/// An admitted connection.
struct Admitted {
    peer: Peer,
    activity: Activity,
    /// Cancelled to make the connection close.
    evict: CancellationToken,
}

struct Server {
    app: Arc<App>,
    connections: JoinSet<()>,
    admitted: HashMap<Id, Admitted>,
    stop: Stop,
    /// Time at which a failed accept was logged.
    reported: Option<Instant>,
}

impl Server {
    /// Serves a connection, or rejects it if there is no place.
    fn admit<S>(
        &mut self,
        stream: S,
        peer: Peer,
        disconnect: Option<DisconnectWatch>,
        router: &Router,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let config = self.app.config();
        let limit = config.max_connections;
        if !self.has_place(limit, peer) {
            self.connections.spawn(refuse(stream, peer.share_of(limit)));
            return;
        }
        let admitted =
            Admitted { peer, activity: Activity::new(), evict: CancellationToken::new() };
        let context = ConnectionContext {
            router: router.clone(),
            activity: admitted.activity.clone(),
            evict: admitted.evict.clone(),
            stop: self.stop.clone(),
            timeout: config.request_timeout(),
        };
        let task = self.connections.spawn(connection(stream, disconnect, context));
        self.admitted.insert(task.id(), admitted);
    }

    /// Returns true if a place is free. May evict the connection that has been idle longest.
    fn has_place(&mut self, limit: usize, peer: Peer) -> bool {
        let remaining =
            || self.admitted.values().filter(|connection| !connection.evict.is_cancelled());
        let like = remaining().filter(|connection| connection.peer <= peer).count();
        if remaining().count() < limit && like < peer.share_of(limit) {
            return true;
        }
        // Evicted connections end soon, unless they send a request after all.
        if self.admitted.len() >= 2 * limit && peer != Peer::Own {
            return false;
        }
        self.evict_idle(peer)
    }

    /// Closes the connection that has been idle longest, of those that a client of this kind may
    /// replace. Returns false if there is none.
    fn evict_idle(&self, peer: Peer) -> bool {
        let remaining =
            self.admitted.values().filter(|connection| !connection.evict.is_cancelled());
        let idle = remaining.filter_map(|connection| {
            let since = connection.activity.idle().filter(|_| connection.peer <= peer)?;
            Some(((connection.peer, since), &connection.evict))
        });
        let Some((_, evict)) = idle.min_by_key(|(rank, _)| *rank) else { return false };
        evict.cancel();
        true
    }

    /// Closes an idle connection after a new one could not be accepted, probably for lack of file
    /// descriptors, and waits for connections to end.
    async fn make_room(&mut self, error: &std::io::Error) {
        let evicted = self.evict_idle(Peer::Own);
        if self.reported.is_none_or(|last| last.elapsed() > REPORTS) {
            self.reported = Some(Instant::now());
            tracing::warn!(%error, evicted, "accepting a connection failed");
        }
        tokio::time::sleep(if evicted { 2 * EVICTION_GRACE } else { ACCEPT_RETRY }).await;
    }
}

/// Shared state of a connection's task.
struct ConnectionContext {
    router: Router,
    activity: Activity,
    evict: CancellationToken,
    stop: Stop,
    timeout: Duration,
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    disconnect: Option<DisconnectWatch>,
    context: ConnectionContext,
) {
    let ConnectionContext { router, activity, evict, stop, timeout } = context;
    let draining = stop.draining.is_cancelled();
    let routes = TowerToHyperService::new(router);
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let busy = activity.begin();
        let answer = routes.call(request);
        async move {
            let answer: Response = answer.await?;
            Ok::<_, Infallible>(answer.map(|body| Answer { body, _busy: busy }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(!draining)
        .header_read_timeout(timeout)
        .max_header_size(MAX_HEAD)
        .max_buf_size(2 * MAX_HEAD)
        .half_close(disconnect.is_some())
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let served = async {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = stop.draining.cancelled(), if !draining => {}
            () = evict.cancelled() => {
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => return ended,
                    () = tokio::time::sleep(EVICTION_GRACE) => {}
                }
                if activity.idle().is_some() {
                    tracing::debug!("closing an idle connection to free its place");
                    return Ok(());
                }
            }
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    tokio::select! {
        biased;
        ended = served => if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        },
        () = DisconnectWatch::wait(disconnect.as_ref()) => tracing::debug!("the client has disconnected"),
    }
}

/// Answers a connection for which there is no place with an error.
async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin, limit: usize) {
    let message = format!("{limit} connections are open, which is the limit");
    let error = Error::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message)
        .hint("close idle connections, or raise max_connections in the configuration");
    // Contains only strings, so it is always valid JSON.
    let body = serde_json::to_string(&error.body()).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let write = async {
        stream.write_all((head + &body).as_bytes()).await?;
        stream.shutdown().await
    };
    if let Ok(Ok(())) = tokio::time::timeout(REJECTION_WRITE, write).await {
        let rest = async { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await };
        let _ = tokio::time::timeout(REJECTION_DRAIN, rest).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_idle_when_all_its_answers_are_complete() {
        let activity = Activity::new();
        let began = activity.idle().unwrap();
        let (one, another) = (activity.begin(), activity.begin());
        drop(one);
        assert!(activity.idle().is_none());
        drop(another);
        assert!(activity.idle().unwrap() >= began);
    }

    #[test]
    fn each_kind_of_client_has_reserved_places() {
        let of = |limit| [Peer::Network, Peer::Socket, Peer::Own].map(|peer| peer.share_of(limit));
        assert_eq!(of(64), [48, 56, 64]);
        assert_eq!(of(9), [7, 8, 9]);
        assert_eq!(of(7), [7, 7, 7], "small limits have no reserved places");
    }
}
