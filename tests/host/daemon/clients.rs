//! How clients use their side of a connection: who stops sending, who goes, who says too much or too little.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use orind_testing::daemon::{Answer, Daemon, post};
use serde_json::json;

use super::tcp::address;
use super::{COMPLETIONS, LONG, SMALL, endless};

#[test]
fn a_client_that_has_said_all_still_gets_its_answer() {
    let daemon = Daemon::start(SMALL);
    for stream in [false, true] {
        let request =
            json!({"prompt": "a", "max_tokens": 40, "ignore_eos": true, "stream": stream});
        // Without `connection: close`: the daemon closes since nothing more can come.
        let request = post(COMPLETIONS, &request.to_string()).replace("connection: close\r\n", "");
        let mut client = daemon.connect();
        client.write_all(request.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        let answer = Answer::parse(&answer);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.contains("\"finish_reason\":\"length\""), "{answer:?}");
    }
}

#[test]
fn a_client_that_has_said_all_and_goes_frees_its_slot() {
    let daemon = Daemon::start(LONG);
    for stream in [false, true] {
        let mut client = daemon.connect();
        client.write_all(post(COMPLETIONS, &endless(stream).to_string()).as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        daemon.until("it is served", |s| s["requests"]["active"] == 1);
        drop(client);
        daemon.until("the slot is free", |s| s["requests"]["active"] == 0);
    }
}

/// TCP tells nobody that a client which stops sending still reads.
#[test]
fn on_tcp_the_end_of_what_a_client_sends_frees_its_slot() {
    let daemon = Daemon::start(&format!("{LONG}\nlisten = '127.0.0.1:0'"));
    let mut client = TcpStream::connect(address(&daemon)).unwrap();
    let request = post(COMPLETIONS, &endless(false).to_string());
    client.write_all(request.replace("host: x", "host: localhost").as_bytes()).unwrap();
    daemon.until("it is served", |s| s["requests"]["active"] == 1);
    client.shutdown(Shutdown::Write).unwrap();
    daemon.until("the slot is free", |s| s["requests"]["active"] == 0);
}

/// On the socket and on a port alike; RFC 9112, 3.2.
#[test]
fn a_request_has_one_host() {
    let daemon = Daemon::launch("listen = '127.0.0.1:0'");
    let tcp = address(&daemon);
    let ask = |version: &str, hosts: &str| {
        let request =
            format!("GET /orin/v1/status HTTP/{version}\r\nconnection: close\r\n{hosts}\r\n");
        let unix = daemon.raw(&request);
        let tcp = Answer::parse(&Answer::bytes(&mut TcpStream::connect(&tcp).unwrap(), &request));
        [unix, tcp]
    };
    for refused in ["", "host: localhost\r\nHost: localhost\r\n", "host: local host\r\n"] {
        for answer in ask("1.1", refused) {
            assert_eq!(answer.error(), (400, "bad_host".into()), "{refused}");
        }
    }
    assert!(ask("1.1", "host: localhost\r\n").iter().all(|answer| answer.status == 200));
    // HTTP/1.0 had none; a port without a token still wants to hear of this machine.
    assert_eq!(ask("1.0", "").map(|answer| answer.status), [200, 403]);
}
