//! Well-behaved and misbehaving clients. Each runs in a thread of its own, and panics if the daemon breaks a promise.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use orind_testing::daemon::{head, post};
use orind_testing::random::Random;
use serde_json::Value;

use crate::answer::Answer;
use crate::request::{self, Request};
use crate::subject::{PATIENCE, Subject};

/// Time limit for a request's head, and again for its body, in seconds; the same in every configuration here.
pub(crate) const REQUEST_TIMEOUT: u64 = 1;

/// Reads until the daemon closes; ignores connection errors.
fn drain(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            panic!("nothing for {PATIENCE:?}, after {} bytes", bytes.len())
        }
        _ => bytes,
    }
}

/// Sends a request and returns the answer; `None` if the daemon is gone.
pub(crate) fn ask(subject: &Subject, request: &Request, stream: bool) -> Option<Answer> {
    send(subject, &request.bytes(stream, "close"))
}

/// Sends the bytes of a request and returns the answer; `None` if the daemon is gone.
pub(crate) fn send(subject: &Subject, bytes: &[u8]) -> Option<Answer> {
    let mut connection = subject.connect()?;
    // The daemon may answer and close before the request is written completely.
    let _ = connection.write_all(bytes);
    Some(Answer::read(&drain(&mut connection)))
}

/// Sends several requests over one connection, each after the previous answer, until the daemon closes it. The daemon
/// may close an idle connection at any time to make room for others, even while the next request is in transit.
pub(crate) fn converse(subject: &Subject, requests: &[&Request]) -> Option<Vec<Answer>> {
    let mut connection = subject.connect()?;
    let mut answers = Vec::new();
    for request in requests {
        let _ = connection.write_all(&request.bytes(false, "keep-alive"));
        let bytes = one_answer(&mut connection);
        if bytes.is_empty() && !answers.is_empty() {
            break;
        }
        let closes = String::from_utf8_lossy(&bytes).to_lowercase().contains("connection: close");
        answers.push(Answer::read(&bytes));
        if closes || bytes.is_empty() {
            break;
        }
    }
    Some(answers)
}

/// Reads exactly one answer with a content length.
fn one_answer(connection: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            let body = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
            if bytes.len() >= body + length {
                assert_eq!(bytes.len(), body + length, "more than an answer: {text}");
                return bytes;
            }
        }
        match connection.read(&mut buffer) {
            Ok(0) => return bytes,
            Ok(read) => bytes.extend(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing: {text}"),
            Err(_) => return bytes,
        }
    }
}

/// Posts a long-running job and returns the answer with its progress.
pub(crate) fn tell(subject: &Subject, path: &str, body: &Value) -> Answer {
    let Some(mut connection) = subject.connect() else { return Answer::read(b"") };
    let _ = connection.write_all(post(path, &body.to_string()).as_bytes());
    Answer::read(&drain(&mut connection))
}

/// Sends a request and disconnects after a while.
pub(crate) fn leave(subject: &Subject, bytes: &[u8], after: Duration) {
    let Some(mut connection) = subject.connect() else { return };
    let _ = connection.write_all(bytes);
    std::thread::sleep(after);
}

/// Sends a request byte by byte. The daemon answers normally or cuts the connection.
pub(crate) fn drip(subject: &Subject, request: &Request, gap: Duration) -> Option<Answer> {
    let mut connection = subject.connect()?;
    let start = Instant::now();
    for byte in request.bytes(false, "close") {
        if connection.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(gap);
        // The daemon's own limits are much shorter.
        assert!(start.elapsed() < PATIENCE, "a slow client is never cut off");
    }
    Some(Answer::read(&drain(&mut connection)))
}

/// Requests long answers, reads nothing for a while, and disconnects.
pub(crate) fn deaf(subject: &Subject) {
    let Some(mut connection) = subject.connect() else { return };
    let _ = connection.write_all(&request::loud());
    std::thread::sleep(Duration::from_millis(1500));
}

/// Sends invalid or almost valid HTTP.
pub(crate) fn garbage(subject: &Subject, seed: u64) {
    let random = &mut Random(seed);
    let length = 1 + random.below(3000);
    let noise = random.bytes(length);
    let bytes = match random.below(4) {
        0 => noise,
        1 => [b"POST /v1/completions HTTP/1.1\r\n", noise.as_slice(), b"\r\n\r\n"].concat(),
        2 => [head("POST", "/v1/completions", "transfer-encoding: chunked\r\n").as_bytes(), &noise]
            .concat(),
        _ => head("GET", &format!("/{}", "%00".repeat(200)), "content-length: -5\r\n").into(),
    };
    let Some(mut connection) = subject.connect() else { return };
    let _ = connection.write_all(&bytes);
    let _ = connection.shutdown(Shutdown::Write);
    drain(&mut connection);
}

/// Sends a request head of `bytes` bytes. The daemon answers up to its limit and refuses longer ones.
pub(crate) fn long_head(subject: &Subject, bytes: usize) {
    let Some(mut connection) = subject.connect() else { return };
    let long = format!("x: {}\r\nconnection: close\r\n", "x".repeat(bytes));
    let _ = connection.write_all(head("GET", "/health", &long).as_bytes());
    drain(&mut connection);
}

/// Announces a body and sends half of it; the daemon must close the connection.
pub(crate) fn half_open(subject: &Subject) {
    let Some(mut connection) = subject.connect() else { return };
    let bytes = request::catalogue()[0].bytes(false, "close");
    let _ = connection.write_all(&bytes[..bytes.len() - 5]);
    drain(&mut connection);
}

/// Sends nothing; the daemon must close the connection.
pub(crate) fn idle(subject: &Subject) {
    let Some(mut connection) = subject.connect() else { return };
    drain(&mut connection);
}
