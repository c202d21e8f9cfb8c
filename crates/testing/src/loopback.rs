//! A web server on the loopback interface that sends exactly the bytes of a test, correct or not,
//! and then closes the connection.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// First line and headers of a request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Path with its query string.
    pub path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// An answer, as the bytes to send.
pub struct Reply(Vec<u8>);

impl Reply {
    /// A status line without headers or body.
    pub fn new(status: u16) -> Self {
        Self(format!("HTTP/1.1 {status} As It Is\r\n").into_bytes())
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.0.extend(format!("{name}: {value}\r\n").bytes());
        self
    }

    /// Ends the headers and appends a body, without a length header.
    #[must_use]
    pub fn raw(mut self, body: &[u8]) -> Self {
        self.0.extend(b"\r\n");
        self.0.extend(body);
        self
    }

    /// Appends a body and its length header.
    #[must_use]
    pub fn body(self, body: &[u8]) -> Self {
        self.header("Content-Length", &body.len().to_string()).raw(body)
    }

    /// Cuts off the last bytes.
    #[must_use]
    pub fn cut(mut self, bytes: usize) -> Self {
        self.0.truncate(self.0.len().saturating_sub(bytes));
        self
    }

    /// A file as a server with `Range` and `If-Range` support sends it.
    pub fn file(request: &Request, bytes: &[u8], tag: &str) -> Self {
        let range = request.header("Range").and_then(|range| {
            let from = range.strip_prefix("bytes=")?.strip_suffix('-')?;
            (request.header("If-Range").is_none_or(|wanted| wanted == tag)).then_some(from)
        });
        let Some(from) = range else { return Self::new(200).header("ETag", tag).body(bytes) };
        let (from, total): (usize, usize) = (from.parse().unwrap(), bytes.len());
        if from >= total {
            return Self::new(416).header("Content-Range", &format!("bytes */{total}")).body(&[]);
        }
        let range = format!("bytes {from}-{}/{total}", total - 1);
        Self::new(206).header("ETag", tag).header("Content-Range", &range).body(&bytes[from..])
    }
}

/// A connection, plain or encrypted.
pub trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// Serves until the test program exits.
pub struct Server {
    address: SocketAddr,
    arriving: Receiver<Request>,
    requests: RefCell<Vec<Request>>,
}

impl Server {
    pub fn start(answer: impl FnMut(&Request) -> Reply + Send + 'static) -> Self {
        Self::wrapped(answer, |stream| Box::new(stream))
    }

    /// Like `start`, with a wrapper around each connection.
    pub fn wrapped(
        mut answer: impl FnMut(&Request) -> Reply + Send + 'static,
        wrap: impl Fn(TcpStream) -> Box<dyn Stream> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, arriving) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut stream = BufReader::new(wrap(stream));
                let Some(request) = read(&mut stream) else { continue };
                let _ = seen.send(request.clone());
                // The client may have closed the connection.
                let _ = stream.get_mut().write_all(&answer(&request).0);
                let _ = stream.get_mut().flush();
            }
        });
        Self { address, arriving, requests: RefCell::default() }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub const fn port(&self) -> u16 {
        self.address.port()
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.borrow_mut().extend(self.arriving.try_iter());
        self.requests.borrow().clone()
    }
}

fn read(stream: &mut impl BufRead) -> Option<Request> {
    let mut lines = stream.lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let header = |line: String| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    Some(Request { path, headers: lines.filter_map(header).collect() })
}
