//! Limits on connections, memory and time that one client, or many of one kind, can use.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use nix::sys::signal::Signal;
use serde_json::json;

use orind_testing::daemon::{Answer, Daemon, MODEL, eventually, head, post};

const COMPLETIONS: &str = "/v1/completions";

/// A request without its body.
fn stalled() -> String {
    head("POST", COMPLETIONS, "content-type: application/json\r\ncontent-length: 9\r\n")
}

fn resident(daemon: &Daemon) -> u64 {
    daemon.get("/orin/v1/status").json()["memory"]["resident"].as_u64().unwrap()
}

fn peak(daemon: &Daemon) -> u64 {
    daemon.get("/orin/v1/status").json()["memory"]["peak_resident"].as_u64().unwrap()
}

/// Waits until the resident set is about what it was before.
fn settles(daemon: &Daemon, before: u64) {
    let mut now = 0;
    eventually(&format!("the resident set is {before} bytes again"), || {
        now = resident(daemon);
        now < before + (16 << 20)
    });
}

#[test]
fn idle_connections_make_room() {
    let daemon = Daemon::launch("max_connections = 8");
    let mut idle: Vec<UnixStream> = Vec::new();
    for i in 0..40 {
        let mut stream = daemon.connect();
        if i % 2 == 0 {
            // An incomplete head counts as idle too.
            stream.write_all(b"GET /health HTTP/1.1\r\n").unwrap();
        }
        idle.push(stream);
        assert_eq!(daemon.get("/health").error(), (503, "no_model".into()));
    }
}

/// A connection replaced before its request was read would get no answer.
#[test]
fn every_connection_with_a_request_is_answered() {
    let daemon = Daemon::launch("max_connections = 2");
    let health = head("GET", "/health", "connection: close\r\n");
    for _ in 0..50 {
        // Connections wait in the socket's queue with their whole requests.
        daemon.signal(Signal::SIGSTOP);
        let mut clients: Vec<UnixStream> = (0..8).map(|_| daemon.connect()).collect();
        for client in &mut clients {
            client.write_all(health.as_bytes()).unwrap();
        }
        daemon.signal(Signal::SIGCONT);
        for client in &mut clients {
            let mut bytes = Vec::new();
            // An answer, perhaps followed by a reset, since a refusal does not read the request.
            let _ = client.read_to_end(&mut bytes);
            let answer = Answer::parse(&bytes);
            assert!(["no_model", "too_many_connections"].contains(&answer.error().1.as_str()));
        }
    }
}

#[test]
fn busy_connections_do_not_make_room() {
    let daemon = Daemon::launch("max_connections = 2");
    let mut busy: Vec<UnixStream> = Vec::new();
    eventually("all places are taken", || {
        let mut stream = daemon.connect();
        // Refused when there is no place.
        let _ = stream.write_all(stalled().as_bytes());
        busy.push(stream);
        daemon.get("/health").error() == (503, "too_many_connections".into())
    });
    drop(busy);
    eventually("there is room again", || daemon.get("/health").error().1 == "no_model");
}

#[test]
fn a_connection_beyond_the_limit_is_refused_whatever_it_sends() {
    let daemon = Daemon::launch("listen = '127.0.0.1:0'\nmax_connections = 1");
    let address = super::tcp::address(&daemon);
    let mut busy = daemon.connect();
    busy.write_all(stalled().as_bytes()).unwrap();
    let health =
        head("GET", "/health", "connection: close\r\n").replace("host: x", "host: localhost");
    eventually("the one place is taken", || {
        let mut stream = TcpStream::connect(&address).unwrap();
        Answer::parse(&Answer::bytes(&mut stream, &health)).error().1 == "too_many_connections"
    });
    let body = "x".repeat(8 << 20);
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&address).unwrap();
        // Sends everything before it reads the answer.
        stream.write_all(post(COMPLETIONS, &body).as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(Answer::parse(&bytes).error(), (503, "too_many_connections".into()));
    }
}

#[test]
fn strangers_do_not_lock_out_the_local_user() {
    let daemon = Daemon::launch("listen = '127.0.0.1:0'\nmax_connections = 16");
    let address = super::tcp::address(&daemon);
    let localhost = |request: String| request.replace("host: x", "host: localhost");
    let mut busy = Vec::new();
    eventually("strangers have taken all that they get", || {
        let mut stream = TcpStream::connect(&address).unwrap();
        // Refused when there is no place.
        let _ = stream.write_all(localhost(stalled()).as_bytes());
        busy.push(stream);
        let health = localhost(head("GET", "/health", "connection: close\r\n"));
        let mut stream = TcpStream::connect(&address).unwrap();
        Answer::parse(&Answer::bytes(&mut stream, &health)).error().1 == "too_many_connections"
    });
    assert_eq!(daemon.get("/health").error(), (503, "no_model".into()));
}

/// A daemon whose slots hold long prompts.
fn roomy() -> Daemon {
    Daemon::start("slots = 1\ncontext = 65536\nprefill_chunk = 16\nlog = 'debug'")
}

#[test]
fn prompts_of_clients_that_are_gone_cost_nothing() {
    let daemon = roomy();
    // The longest text that could fit, and longer ones.
    let refused =
        daemon.post(COMPLETIONS, &json!({"prompt": " ".repeat(7 << 20), "max_tokens": 1}));
    assert_eq!(refused.error(), (400, "context_length_exceeded".into()));
    let message = refused.message();
    let most: usize =
        message.split(" at most ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let spaces = json!({"prompt": " ".repeat(most), "max_tokens": 1}).to_string();
    let message = json!({"role": "user", "content": "a".repeat(most)});
    let chat = json!({"messages": [message], "max_tokens": 1}).to_string();
    let requests = [post(COMPLETIONS, &spaces), post("/v1/chat/completions", &chat)];
    let ask = json!({"prompt": "a", "max_tokens": 2, "ignore_eos": true});
    assert_eq!(daemon.post(COMPLETIONS, &ask).status, 200);
    // After the first requests, the cache's pages, the allocator's pools and the program's pages are resident.
    for request in requests.iter().cycle().take(4) {
        assert_eq!(daemon.raw(request).error(), (400, "context_length_exceeded".into()));
    }
    let before = resident(&daemon);
    for request in requests.iter().cycle().take(48) {
        daemon.connect().write_all(request.as_bytes()).unwrap();
    }
    assert_eq!(daemon.post(COMPLETIONS, &ask).status, 200);
    daemon.until("nothing is left of them", |status| {
        status["requests"]["active"] == 0 && status["requests"]["queued"] == 0
    });
    // The bound of docs/reliability.md for two tokenizations at a time, and for bodies in transfer.
    let most = 2 * 40 * most as u64 + (128 << 20);
    let grown = peak(&daemon) - before;
    assert!(grown < most, "{grown} bytes more, {most} are stated");
    settles(&daemon, before);
}

#[test]
fn memory_of_answers_is_limited_in_advance() {
    let daemon = Daemon::start("slots = 1\ncontext = 8192\nprefill_chunk = 64");
    let ask = |prompts: usize, tokens: usize| json!({"prompt": vec![vec![7; tokens]; prompts], "max_tokens": 0, "echo": true, "logprobs": 20});
    let refused = daemon.post(COMPLETIONS, &ask(64, 4000));
    assert_eq!(refused.error(), (400, "invalid_value".into()));
    assert!(refused.message().contains("262144"), "{refused:?}");
    let large = || {
        let answer = daemon.post(COMPLETIONS, &ask(1, 1500)).json();
        assert_eq!(answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 1500);
    };
    // After the first request, the cache's pages and the allocator's pools are resident.
    large();
    let before = resident(&daemon);
    large();
    // 21 log-probabilities for each token, in the engine's types and in JSON.
    let grown = peak(&daemon) - before;
    assert!(grown < 1500 * 21 * 1024, "{grown} bytes more");
    settles(&daemon, before);
    // Without `max_tokens`, the answer ends at the limit.
    let open = json!({"prompt": [1], "logprobs": 20, "ignore_eos": true, "stream": true});
    assert!(daemon.stream(COMPLETIONS, &open).next().is_some());
}

#[test]
fn a_request_that_can_never_be_served_gets_no_retry_after() {
    let daemon = Daemon::start("slots = 1\ncontext = 256\nprefill_chunk = 16\nqueue_limit = 3");
    let many = json!({"prompt": vec!["a"; 5], "max_tokens": 1, "model": MODEL});
    let refused = daemon.post(COMPLETIONS, &many);
    assert_eq!(refused.error(), (400, "invalid_value".into()));
    assert!(refused.message().contains("4 can be served or wait"), "{refused:?}");
}

#[test]
fn idle_connections_make_room_when_descriptors_are_exhausted() {
    use nix::sys::resource::{Resource, rlim_t};
    let daemon = Daemon::start("slots = 1\nmax_connections = 512");
    let limit: rlim_t = 80;
    let limits = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the new limits are a valid structure, and no old ones are asked for.
    let set = unsafe {
        let resource = Resource::RLIMIT_NOFILE as _;
        libc::prlimit(daemon.pid(), resource, &raw const limits, std::ptr::null_mut())
    };
    assert_eq!(set, 0);
    let idle: Vec<_> = (0..100).map(|_| daemon.connect()).collect();
    for _ in 0..5 {
        assert_eq!(daemon.get("/health").status, 200);
    }
    assert!(daemon.log().matches("accepting a connection failed").count() <= 2);
    drop(idle);
}
