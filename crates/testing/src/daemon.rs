//! A daemon per test, and a minimal HTTP client, so that tests control every byte on the socket.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{built, command};

/// Small enough for any machine; its greedy answers have clear margins.
pub const MODEL: &str = "synthetic:tiny-llama:q8_0";

/// Long enough for a loaded machine; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `orind`, killed when dropped.
pub struct Daemon {
    child: Child,
    dir: TempDir,
}

/// A program with its cache of synthetic models next to the build.
fn program(name: &str) -> Command {
    let mut command = command(built().join(name));
    command.env("XDG_CACHE_HOME", built().with_file_name("tmp").join("cache"));
    command
}

pub fn orind() -> Command {
    program("orind")
}

/// `orinctl` isolated from the user's environment: its files are below `home`, and its daemon
/// socket is `none.sock` there.
pub fn orinctl(home: &Path) -> Command {
    let mut command = program("orinctl");
    command
        .env("XDG_DATA_HOME", home.join("data"))
        .env("XDG_RUNTIME_DIR", home)
        .env("ORIND_SOCKET", home.join("none.sock"))
        .env_remove("NO_COLOR")
        .stdin(Stdio::null());
    command
}

impl Daemon {
    /// Starts a daemon with [`MODEL`] and waits until it serves. `settings` are lines of
    /// configuration.
    pub fn start(settings: &str) -> Self {
        let daemon = Self::launch(&format!("model = '{MODEL}'\nthreads = 2\n{settings}"));
        let status = daemon.until("the model is loaded", |status| {
            status["state"]["name"] == "ready" || status["state"]["last_error"].is_object()
        });
        assert_eq!(status["state"]["name"], "ready", "{status}");
        daemon
    }

    /// Starts a daemon with `settings` only and waits for its socket.
    pub fn launch(settings: &str) -> Self {
        Self::launch_with(orind(), settings)
    }

    /// Like [`Self::launch`], with a command prepared by the test.
    pub fn launch_with(command: Command, settings: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("orind.toml"), settings).unwrap();
        let child = Self::spawn(command, dir.path());
        let mut daemon = Self { child, dir };
        daemon.wait_for_socket();
        daemon
    }

    pub fn configure(&self, settings: &str) {
        fs::write(self.dir.path().join("orind.toml"), settings).unwrap();
    }

    fn spawn(mut command: Command, dir: &Path) -> Child {
        command
            .arg("--config")
            .arg(dir.join("orind.toml"))
            .arg("--socket")
            .arg(dir.join("s"))
            // Isolates the test from the tuning store of this machine's daemon.
            .env("XDG_DATA_HOME", dir.join("data"))
            .stdin(Stdio::null())
            .stderr(File::create(dir.join("log")).unwrap())
            .spawn()
            .unwrap()
    }

    fn wait_for_socket(&mut self) {
        let start = Instant::now();
        while UnixStream::connect(self.socket()).is_err() {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended: {}", self.log());
            assert!(start.elapsed() < PATIENCE, "no socket: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn restart(&mut self) {
        self.restart_with(orind());
    }

    /// Like `restart`, with a command prepared by the test.
    pub fn restart_with(&mut self, command: Command) {
        self.wait();
        self.child = Self::spawn(command, self.dir.path());
        self.wait_for_socket();
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the daemon ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Waits until the status satisfies `wanted`, and returns it.
    pub fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut status = Value::Null;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            status = self.get("/orin/v1/status").json();
            if wanted(&status) {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("waited for: {what}; status {status}; log {}", self.log());
    }

    /// A connection with a timeout.
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub fn get(&self, path: &str) -> Answer {
        self.raw(&head("GET", path, "connection: close\r\n"))
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.raw(&post(path, &body.to_string()))
    }

    /// Sends bytes and reads until the daemon closes the connection.
    pub fn raw(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        // The daemon may answer and close before everything is written.
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        if let Err(error) = stream.read_to_end(&mut bytes) {
            assert!(!bytes.is_empty(), "no answer: {error}");
        }
        Answer::parse(&bytes)
    }

    /// Posts a request and reads the answer's events as they arrive.
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        let mut stream = self.connect();
        stream.write_all(post(path, &body.to_string()).as_bytes()).unwrap();
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
        Events { lines }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a condition that becomes true soon.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "waited for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends one request to a socket.
pub fn get(socket: &Path, path: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Answer::parse(&Answer::bytes(&mut stream, &head("GET", path, "connection: close\r\n")))
}

pub fn head(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n")
}

/// A complete POST request with a JSON body.
pub fn post(path: &str, body: &str) -> String {
    let mut headers = "connection: close\r\ncontent-type: application/json\r\n".to_owned();
    write!(headers, "content-length: {}\r\n", body.len()).unwrap();
    head("POST", path, &headers) + body
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and headers in lower case.
    pub headers: String,
    /// Body, with chunks joined.
    pub body: String,
}

impl Answer {
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (headers, mut body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let headers = headers.to_lowercase();
        let status =
            headers.get(9..12).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{text}"));
        let mut whole = String::new();
        if headers.contains("transfer-encoding: chunked") {
            while let Some((size, rest)) = body.split_once("\r\n") {
                let size = usize::from_str_radix(size, 16).unwrap();
                whole.push_str(&rest[..size]);
                body = rest[size..].trim_start_matches("\r\n");
            }
        } else {
            whole.push_str(body);
        }
        Self { status, headers, body: whole }
    }

    /// Sends `request` and returns everything until the daemon closes the connection.
    pub fn bytes(stream: &mut (impl Read + Write), request: &str) -> Vec<u8> {
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// Status and error code.
    pub fn error(&self) -> (u16, String) {
        (self.status, self.json()["error"]["code"].as_str().unwrap().to_owned())
    }

    pub fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }
}

/// Events of a streaming answer. Dropping it closes the connection.
pub struct Events {
    lines: BufReader<UnixStream>,
}

impl Iterator for Events {
    /// Name (empty if it has none) and data.
    type Item = (String, String);

    fn next(&mut self) -> Option<Self::Item> {
        let mut name = String::new();
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            // Other lines are headers and chunk sizes.
            if let Some(value) = line.strip_prefix("event: ") {
                name = value.trim_end().to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, data.trim_end().to_owned()));
            }
        }
    }
}
