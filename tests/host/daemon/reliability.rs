//! Promises of docs/reliability.md about the daemon. `ORIND_SOAK=SECONDS` sets the length of the soak test.

use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use plan::sample::philox;
use serde_json::json;

use orind_testing::daemon::{self, Daemon, MODEL, eventually, head, post};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Seed of random numbers.
const SEED: u64 = 20;

fn random(i: u32, below: u32) -> u32 {
    philox([i, 0, 0, 0], SEED)[0] % below
}

/// A malformed request; each `i` gives another one.
fn malformed(i: u32) -> Vec<u8> {
    let json = |body: &str| post(COMPLETIONS, body).into_bytes();
    let noise = |n: u32| (0..n).map(|j| random(1000 * i + j, 256) as u8).collect::<Vec<u8>>();
    match i % 10 {
        0 => noise(1 + random(i, 2000)),
        1 => json(&"[".repeat(2000)),
        2 => json("{\"prompt\": \"\\ud800\", \"max_tokens\": 1e99}"),
        3 => json(&json!({"prompt": [i64::MIN], "top_p": "x", "stop": [[]]}).to_string()),
        4 => {
            // Truncated in the middle of the body.
            let whole = json(&json!({"prompt": "a", "max_tokens": 1}).to_string());
            whole[..whole.len() - 5].to_vec()
        }
        5 => head("POST", CHAT, "content-type: application/json\r\ncontent-length: -5\r\n").into(),
        6 => {
            let chunked = "content-type: application/json\r\ntransfer-encoding: chunked\r\n";
            (head("POST", CHAT, chunked) + "zzzz\r\n").into()
        }
        7 => [b"POST ", noise(40).as_slice(), b" HTTP/1.1\r\n\r\n"].concat(),
        8 => [json("{\"prompt\": \""), noise(30)].concat(),
        _ => head("GET", &format!("/{}", "%00".repeat(200)), "host: y\r\nhost: z\r\n").into(),
    }
}

/// Sends bytes, closes the sending side of the connection, and reads the answer, if any.
fn throw(daemon: &Daemon, bytes: &[u8]) {
    let mut stream = daemon.connect();
    // The daemon may answer and close before all bytes are written.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn malformed_requests_affect_only_themselves() {
    let daemon = Daemon::start("slots = 2\ncontext = 512\nprefill_chunk = 16");
    let good = json!({"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": true, "temperature": 0});
    let alone = daemon.post(COMPLETIONS, &good).json()["choices"][0].clone();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| daemon.post(COMPLETIONS, &good).json()["choices"][0].clone());
        (0..100).for_each(|i| throw(&daemon, &malformed(i)));
        assert_eq!(client.join().unwrap(), alone);
    });
    let status = daemon.until("nothing is left of them", |s| {
        s["requests"]["active"] == 0 && s["requests"]["queued"] == 0
    });
    assert_eq!(status["pid"], daemon.pid());
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    assert_eq!(daemon.post(COMPLETIONS, &good).json()["choices"][0], alone);
}

/// One request of each kind, valid and invalid.
fn round(daemon: &Daemon, i: u32) {
    std::thread::scope(|scope| {
        for client in 0..8 {
            scope.spawn(move || {
                let prompt: Vec<u32> =
                    (0..1 + (i + client) % 60).map(|j| 3 + j * 7 % 900).collect();
                let request =
                    json!({"prompt": prompt, "max_tokens": 16, "ignore_eos": true, "logprobs": 5});
                assert_eq!(daemon.post(COMPLETIONS, &request).status, 200);
            });
        }
        scope.spawn(|| {
            let long =
                json!({"prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true});
            // Disconnects during the answer.
            let mut events = daemon.stream(COMPLETIONS, &long);
            events.next().unwrap();
        });
        scope.spawn(|| {
            let messages = json!([{"role": "user", "content": "x".repeat(100)}]);
            let chat = json!({"messages": messages, "max_tokens": 8, "stream": true});
            assert!(daemon.stream(CHAT, &chat).count() > 0);
        });
        scope.spawn(move || (0..10).for_each(|j| throw(daemon, &malformed(10 * i + j))));
    });
    daemon.get("/metrics");
    daemon.get("/orin/v1/models");
}

#[test]
fn memory_does_not_grow() {
    let daemon = Daemon::start("slots = 4\ncontext = 256\nprefill_chunk = 16");
    let soak = std::env::var("ORIND_SOAK").map_or(0, |seconds| seconds.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(soak);
    let resident = || daemon.get("/orin/v1/status").json()["memory"]["resident"].as_u64().unwrap();
    // After a few rounds all threads, allocator pools and lazily created tables exist.
    (0..5).for_each(|i| round(&daemon, i));
    let before = resident();
    let mut i = 5;
    while i < 12 || Instant::now() < until {
        round(&daemon, i);
        let now = resident();
        assert!(now < before + (16 << 20), "round {i}: {before} bytes, then {now}");
        i += 1;
    }
    println!("{i} rounds: {before} bytes at first, {} at the end", resident());
    let status = daemon.until("nothing is left of them", |s| s["requests"]["active"] == 0);
    assert_eq!(status["pid"], daemon.pid());
}

#[test]
fn a_daemon_killed_at_any_moment_starts_again() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let log = dir.path().join("log");
    let start = || {
        let mut command = daemon::orind();
        // With an empty cache, the daemon may be killed while it creates the model.
        command.env("XDG_CACHE_HOME", dir.path()).env("XDG_DATA_HOME", dir.path().join("data"));
        command.args(["--model", MODEL, "--context", "256", "--threads", "2", "--socket"]);
        command.arg(&socket).stderr(fs::File::create(&log).unwrap()).stdin(Stdio::null());
        command.spawn().unwrap()
    };
    println!("seed {SEED}");
    for i in 0..6 {
        let mut daemon = start();
        // From before the creation of the socket to well after the load.
        std::thread::sleep(Duration::from_millis(random(i, 15 + 80 * i).into()));
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }
    let mut last = start();
    eventually("it is ready", || {
        assert!(last.try_wait().unwrap().is_none(), "{}", fs::read_to_string(&log).unwrap());
        socket.exists()
            && std::os::unix::net::UnixStream::connect(&socket).is_ok()
            && daemon::get(&socket, "/health").status == 200
    });
    let pid = nix::unistd::Pid::from_raw(last.id().cast_signed());
    nix::sys::signal::kill(pid, Signal::SIGTERM).unwrap();
    assert!(last.wait().unwrap().success());
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "log" || name == "orind"), "{left:?}");
}

/// The disk of the log is full, so its lines are lost.
#[test]
fn a_log_that_cannot_be_written_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut daemon = daemon::orind()
        .args(["--model", MODEL, "--context", "64", "--threads", "1", "--socket"])
        .arg(&socket)
        .env("XDG_DATA_HOME", dir.path())
        .stderr(fs::File::options().write(true).open("/dev/full").unwrap())
        .spawn()
        .unwrap();
    eventually("it serves", || {
        assert!(daemon.try_wait().unwrap().is_none(), "it has ended");
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
            && daemon::get(&socket, "/health").status == 200
    });
    let pid = nix::unistd::Pid::from_raw(daemon.id().cast_signed());
    nix::sys::signal::kill(pid, Signal::SIGTERM).unwrap();
    assert!(daemon.wait().unwrap().success());
}

/// Every test named in the page exists.
#[test]
fn every_promise_has_its_tests() {
    let page = include_str!("../../../docs/reliability.md");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let mut source = String::new();
        for word in row.split('`').skip(1).step_by(2) {
            if word.contains('/') {
                source = fs::read_to_string(root.join(word)).unwrap();
            } else {
                assert!(source.contains(&format!("fn {word}()")), "{word} in {row}");
                named += 1;
            }
        }
    }
    assert!(named >= 10, "{named}");
}
