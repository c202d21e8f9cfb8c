//! Clients that close their sending side, disconnect, or send too much or too little.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use api::LoadRequest;
use api::client::{Client, Error};
use orind_testing::daemon::{Answer, Daemon, eventually, head, post};
use orind_testing::program::{command, stderr};
use serde_json::json;

use super::tcp::address;
use super::{CHAT, COMPLETIONS, LONG, MODELS, SMALL, endless};

#[test]
fn a_client_that_closes_its_sending_side_gets_its_answer() {
    let daemon = Daemon::start(SMALL);
    for stream in [false, true] {
        let request =
            json!({"prompt": "a", "max_tokens": 40, "ignore_eos": true, "stream": stream});
        // Without `connection: close`, the daemon closes because the client can send nothing more.
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
fn a_client_that_disconnects_after_its_request_frees_its_slot() {
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

/// On TCP the daemon cannot tell whether a client that stops sending still reads.
#[test]
fn on_tcp_the_end_of_sending_frees_the_slot() {
    let daemon = Daemon::start(&format!("{LONG}\nlisten = '127.0.0.1:0'"));
    let mut client = TcpStream::connect(address(&daemon)).unwrap();
    let request = post(COMPLETIONS, &endless(false).to_string());
    client.write_all(request.replace("host: x", "host: localhost").as_bytes()).unwrap();
    daemon.until("it is served", |s| s["requests"]["active"] == 1);
    client.shutdown(Shutdown::Write).unwrap();
    daemon.until("the slot is free", |s| s["requests"]["active"] == 0);
}

/// On the unix socket and on TCP; RFC 9112, 3.2.
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
    // HTTP/1.0 has no `host`; a port without a token still requires one that names this machine.
    assert_eq!(ask("1.0", "").map(|answer| answer.status), [200, 403]);
}

/// The body is larger than all buffers, and the client reads only after it has sent everything.
#[test]
fn a_refusal_reaches_a_client_that_is_still_sending() {
    let daemon = Daemon::launch("listen = '127.0.0.1:0'\nmax_body_bytes = 1024");
    let body = post(COMPLETIONS, &"x".repeat(32 << 20)).replace("host: x", "host: localhost");
    let refused = Answer::bytes(&mut daemon.connect(), &body);
    assert_eq!(Answer::parse(&refused).error(), (413, "body_too_large".into()));
    let mut tcp = TcpStream::connect(address(&daemon)).unwrap();
    let refused = Answer::parse(&Answer::bytes(&mut tcp, &body));
    assert_eq!(refused.error(), (413, "body_too_large".into()));
    // Another refusal.
    let body = body.replacen("application/json", "text/plain", 1);
    let refused = Answer::parse(&Answer::bytes(&mut daemon.connect(), &body));
    assert_eq!(refused.error(), (415, "unsupported_media_type".into()));
}

/// A server answers after the head and closes; `orinctl` reports this answer.
#[tokio::test]
async fn the_client_reads_the_answer_when_its_request_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        let body = r#"{"error":{"code":"body_too_large","message":"too large","type":"x"}}"#;
        let length = body.len();
        let head =
            format!("HTTP/1.1 413 \r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
        stream.write_all((head + body).as_bytes()).unwrap();
    });
    let request = LoadRequest { model: "x".repeat(32 << 20), ..LoadRequest::default() };
    let error = Client::new(&socket).load(&request, |_| {}).await.unwrap_err();
    server.join().unwrap();
    assert!(matches!(error, Error::Api { status: 413, .. }), "{error:?}");
}

/// Any user can create the folder in /tmp first. Skipped without the right to change the user.
#[test]
fn no_other_user_can_listen_in_the_daemons_place() {
    let user = 64_000 + std::process::id() % 1000;
    let folder = PathBuf::from(format!("/tmp/orind-{user}"));
    let run = |program: &mut Command| program.env_clear().uid(user).gid(user).output();
    let orinctl = || command(env!("CARGO_BIN_EXE_orinctl"));
    let orind = || command(env!("CARGO_BIN_EXE_orind"));
    let Ok(nobody) = run(orinctl().arg("status")) else {
        println!("skipped: this user cannot run orinctl as another");
        return;
    };
    assert!(stderr(&nobody).contains("no daemon is listening"), "{}", stderr(&nobody));

    // Another user's folder, with a listening socket.
    std::fs::create_dir(&folder).unwrap();
    let listener = UnixListener::bind(folder.join("orind.sock")).unwrap();
    let refused = |why: &str| {
        for program in [orinctl().arg("status"), orinctl().args(["generate", "a"]), &mut orind()] {
            let output = run(program).unwrap();
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains(&format!("{} {why}", folder.display())), "{said}");
            assert!(said.contains("XDG_RUNTIME_DIR"), "{said}");
        }
    };
    chown(&folder, Some(user + 1), None).unwrap();
    refused(&format!("belongs to user {}", user + 1));
    chown(&folder, Some(user), None).unwrap();
    let mode = |mode| std::fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
    mode(0o777);
    let said = stderr(&run(orinctl().arg("status")).unwrap());
    assert!(said.contains(&format!("other users may write to {}", folder.display())), "{said}");
    // The folder is the user's own, the socket another user's.
    mode(0o700);
    chown(folder.join("orind.sock"), Some(user + 1), None).unwrap();
    let said = stderr(&run(orinctl().arg("status")).unwrap());
    assert!(said.contains("orind.sock belongs to user"), "{said}");
    drop(listener);
    std::fs::remove_dir_all(&folder).unwrap();

    // The user's own daemon creates the folder for this user only.
    let mut daemon = orind().env_clear().uid(user).gid(user).stderr(Stdio::null()).spawn().unwrap();
    eventually("it listens", || run(orinctl().arg("status")).unwrap().status.success());
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Errors repeat only the beginning of a long value, in the answer and in the log.
#[test]
fn a_long_value_is_not_repeated() {
    let daemon = Daemon::start("context = 64\nslots = 1");
    let long = "x".repeat(1 << 20);
    for (path, body) in [
        (COMPLETIONS, json!({"prompt": "a", "max_tokens": long})),
        (COMPLETIONS, json!({"prompt": "a", "model": long})),
        (COMPLETIONS, json!({"prompt": "a", "tools": [long]})),
        (CHAT, json!({"messages": [{"role": long, "content": "a"}]})),
        (CHAT, json!({"messages": [{"role": "user", "content": [{"type": long}]}]})),
        (MODELS, json!({"model": long})),
        (MODELS, json!({"model": "a", "backend": long})),
        (MODELS, json!({"model": "a", "cpu_isa": long})),
        (MODELS, json!({"model": "a", long.as_str(): 1})),
        (MODELS, json!({"model": "a", "tune": long})),
        (MODELS, json!({"model": "a", "force": {long.as_str(): "a"}})),
        ("/orin/v1/bench", json!({"prompts": [long]})),
        ("/orin/v1/tune", json!({"kernel": [long]})),
    ] {
        let answer = daemon.post(path, &body);
        assert!((400..500).contains(&answer.status), "{answer:?}");
        assert!(answer.body.len() < 1000, "{path}: {} bytes", answer.body.len());
    }
    let far = daemon.raw(&head("GET", &format!("/{}", &long[..60_000]), "connection: close\r\n"));
    assert!(far.status == 404 && far.body.len() < 1000, "{far:?}");
    assert!(daemon.log().len() < 10_000, "{}", daemon.log().len());
}
