//! A port of this machine that leads to the daemon's socket, for clients that speak TCP only. Like
//! the daemon's own port without a token, it serves local clients, but no web page under another
//! host's name: a connection must begin with a request whose `Host` is this port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Maximum number of open connections; more wait.
const CONNECTIONS: usize = 128;
/// Maximum length of the first request's head.
const HEAD_LIMIT: usize = 64 << 10;
/// Time limit for the first request's head. Clients open connections in advance.
const HEAD_WAIT: Duration = Duration::from_secs(60);
/// Pause after a failed accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

const FOREIGN: &[u8] = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

pub(super) struct Forwarder {
    listener: TcpListener,
    address: SocketAddr,
    socket: Arc<PathBuf>,
}

impl Forwarder {
    /// Opens a port that leads to `socket`.
    pub(super) async fn bind(socket: PathBuf) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, socket: Arc::new(socket) })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Forwards connections until it is dropped.
    pub(super) async fn serve(&self) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let Ok((client, _)) = self.listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            while connections.try_join_next().is_some() {}
            let (socket, port) = (Arc::clone(&self.socket), self.address.port());
            connections.spawn(async move {
                // A broken connection concerns its client only.
                let _ = forward(client, &socket, port).await;
                drop(permit);
            });
        }
    }
}

/// Forwards one connection until either side closes it, so that the daemon cancels the requests of
/// a client that disconnects.
async fn forward(mut client: TcpStream, socket: &PathBuf, port: u16) -> io::Result<()> {
    let head = tokio::time::timeout(HEAD_WAIT, head(&mut client)).await??;
    if !is_local(&head, port) {
        return client.write_all(FOREIGN).await;
    }
    let mut daemon = UnixStream::connect(socket).await?;
    daemon.write_all(&head).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_daemon, mut to_daemon) = daemon.split();
    tokio::select! {
        sent = tokio::io::copy(&mut from_client, &mut to_daemon) => sent?,
        received = tokio::io::copy(&mut from_daemon, &mut to_client) => received?,
    };
    Ok(())
}

/// Reads until the end of the first head, with what the client has sent after it.
async fn head(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while !bytes.windows(4).rev().any(|end| end == b"\r\n\r\n") {
        let read = client.read_buf(&mut bytes).await?;
        if read == 0 || bytes.len() > HEAD_LIMIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(bytes)
}

/// Returns whether the only `Host` of a head is this port.
fn is_local(head: &[u8], port: u16) -> bool {
    let end = head.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(head.len());
    let text = String::from_utf8_lossy(&head[..end]);
    let hosts: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.eq_ignore_ascii_case("host"))
        .map(|(_, host)| host.trim())
        .collect();
    let own = ["127.0.0.1", "localhost"].map(|host| format!("{host}:{port}"));
    matches!(hosts[..], [host] if own.iter().any(|own| own == host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_begins_with_a_request_to_this_port() {
        let local = |hosts: &str| {
            is_local(format!("POST / HTTP/1.1\r\n{hosts}\r\n\r\nhost: x").as_bytes(), 80)
        };
        assert!(local("Host: 127.0.0.1:80") && local("a: b\r\nhost:localhost:80"));
        for hosts in
            ["a: b", "host: evil.example:80", "host: 127.0.0.1", "host: localhost:80\r\nhost: x"]
        {
            assert!(!local(hosts), "{hosts}");
        }
    }

    #[tokio::test]
    async fn bytes_pass_in_both_directions_until_a_side_closes() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let daemon = tokio::net::UnixListener::bind(&socket).unwrap();
        let forwarder = Forwarder::bind(socket).await.unwrap();
        let host = forwarder.address;
        let work = async {
            let mut client = TcpStream::connect(host).await.unwrap();
            let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            let (mut served, _) = daemon.accept().await.unwrap();
            let mut read = vec![0; request.len()];
            served.read_exact(&mut read).await.unwrap();
            assert_eq!(read, request.as_bytes());
            served.write_all(b"answer").await.unwrap();
            let mut answer = [0; 6];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"answer");
            drop(client);
            assert_eq!(served.read(&mut read).await.unwrap(), 0);

            let mut foreign = TcpStream::connect(host).await.unwrap();
            foreign.write_all(b"GET / HTTP/1.1\r\nhost: evil.example\r\n\r\n").await.unwrap();
            let mut refused = Vec::new();
            foreign.read_to_end(&mut refused).await.unwrap();
            assert_eq!(refused, FOREIGN);
        };
        tokio::select! {
            () = work => {}
            () = forwarder.serve() => panic!("it ended"),
        }
    }
}
