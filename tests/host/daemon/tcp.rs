//! The daemon on TCP: access and limits.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use orind_testing::daemon::{self, Answer, Daemon, eventually, head, orind};
use orind_testing::program::{command, outcome};

const TOKEN: &str = "correct-horse-battery-staple";

/// The TCP address of a daemon that listens on any port. The unix socket is ready first, so the log line may be missing
/// or incomplete at first.
pub(super) fn address(daemon: &Daemon) -> String {
    let mut address = None;
    eventually("the log tells the port", || {
        let log = daemon.log();
        let told = log.split_once("address=").and_then(|(_, rest)| rest.split_once(' '));
        address = told.map(|(address, _)| address.to_owned());
        address.is_some()
    });
    address.unwrap()
}

/// A daemon on every interface, its address on loopback, and the file in `dir` with its token.
fn off_loopback(dir: &Path) -> (Daemon, String, PathBuf) {
    let token = dir.join("token");
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let settings = format!("listen = '0.0.0.0:0'\ntoken_file = '{}'", token.display());
    let daemon = Daemon::start(&format!("{settings}\nslots = 1\ncontext = 256"));
    let address = address(&daemon).replace("0.0.0.0", "127.0.0.1");
    (daemon, address, token)
}

fn ask(address: &str, request: &str) -> Answer {
    Answer::parse(&Answer::bytes(&mut TcpStream::connect(address).unwrap(), request))
}

fn status(headers: &str) -> String {
    head("GET", "/orin/v1/status", &format!("connection: close\r\n{headers}"))
}

#[test]
fn a_port_off_loopback_requires_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let (daemon, address, _) = off_loopback(dir.path());

    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    assert_eq!(ask(&address, &status(&bearer)).json()["pid"], daemon.pid());
    for headers in ["", "authorization: Bearer correct-horse-battery-stapler\r\n"] {
        let refused = ask(&address, &status(headers));
        assert!(refused.headers.contains("www-authenticate: bearer"), "{}", refused.headers);
        assert_eq!(refused.error(), (401, "unauthorized".into()));
    }
    // The token is checked before route and body.
    let body =
        daemon::post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}).to_string());
    assert_eq!(ask(&address, &body).error().0, 401);
    assert_eq!(ask(&address, &head("GET", "/nope", "connection: close\r\n")).error().0, 401);
    let body = body.replacen("\r\n", &format!("\r\n{bearer}"), 1);
    assert_eq!(ask(&address, &body).status, 200);
    // The unix socket has file permissions instead.
    assert_eq!(daemon.get("/health").status, 200);
    assert!(!daemon.log().contains(TOKEN));
}

#[test]
fn loopback_refuses_web_pages_and_applies_limits() {
    let settings = "listen = '127.0.0.1:0'\nmax_connections = 2\nmax_body_bytes = 4096\nrequest_timeout_s = 1\nlog = 'debug'";
    let daemon = Daemon::launch(settings);
    let address = address(&daemon);
    let local =
        |name: &str| ask(&address, &status("").replace("host: x", &format!("host: {name}")));
    assert_eq!(local("localhost:8080").status, 200);
    assert_eq!(local(&address).status, 200);
    assert_eq!(local("evil.example").error(), (403, "foreign_host".into()));

    let large =
        daemon::post("/v1/completions", &"x".repeat(5000)).replace("host: x", "host: localhost");
    assert_eq!(ask(&address, &large).error(), (413, "body_too_large".into()));
    // An endless head is refused.
    assert_eq!(
        Answer::bytes(&mut TcpStream::connect(&address).unwrap(), "GET / HTTP/1.1\r\n"),
        b""
    );
    // Connections of both kinds count.
    let stalled = head(
        "POST",
        "/v1/completions",
        "host: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n",
    );
    let stalled = stalled.replacen("host: x\r\n", "", 1);
    let mut busy = Vec::new();
    eventually("all places are taken", || {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(stalled.as_bytes()).unwrap();
        busy.push(stream);
        daemon.get("/health").error().1 == "too_many_connections"
    });

    // The log names the client; on the unix socket by the kernel's credentials.
    let log = daemon.log();
    let me = format!("pid={} uid={}", std::process::id(), nix::unistd::Uid::current());
    assert!(log.contains("peer=127.0.0.1:") && log.contains(&me), "{me} in {log}");
}

/// A router sets the id.
#[test]
fn the_id_of_a_request_is_logged_and_returned() {
    let daemon = Daemon::launch("log = 'debug'");
    let request = head("GET", "/health", "connection: close\r\nx-request-id: trace-42\r\n");
    let answer = daemon.raw(&request);
    assert_eq!(answer.status, 503);
    for header in ["\r\nx-request-id: trace-42", "\r\nrequest-id: trace-42"] {
        assert!(answer.headers.contains(header), "{}", answer.headers);
    }
    eventually("the log has it", || daemon.log().contains("id=\"trace-42\""));
    let made = daemon.get("/health");
    assert!(made.headers.contains("x-request-id: req_"), "{}", made.headers);
}

/// The token comes from a file or the environment, never from the command line.
#[test]
fn orinctl_uses_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, address, token) = off_loopback(dir.path());
    let orinctl = |args: &[&str], secret: &str| {
        let mut command = command(env!("CARGO_BIN_EXE_orinctl"));
        // No local daemon is available.
        command.env("ORIND_SOCKET", dir.path().join("none")).env("ORIND_TOKEN", secret);
        let (code, said, error) = outcome(command.args(args).args(["--tcp", &address]));
        (code.unwrap(), said, error)
    };
    let (code, said, error) = orinctl(&["status"], TOKEN);
    assert!(code == 0 && said.contains(&format!("on tcp://{address}")), "{said}{error}");
    let file = token.to_str().unwrap();
    assert_eq!(orinctl(&["health"], TOKEN), (0, "ok\n".into(), String::new()));
    let args = ["generate", "-n", "4", "--token-file", file, "once upon"];
    let (code, said, error) = orinctl(&args, "");
    assert!(code == 0 && !said.trim().is_empty(), "{said}{error}");
    let (code, said, _) = orinctl(&["bench", "-p", "0", "-n", "4", "-r", "1", "--json"], TOKEN);
    assert!(code == 0 && said.contains("tokens_per_second"), "{said}");

    // Paths belong to the daemon's machine, so relative ones stay relative, even if such a file exists here.
    let (code, _, error) = orinctl(&["load", "tests/data/none.gguf"], TOKEN);
    let here = env!("CARGO_MANIFEST_DIR");
    assert!(code != 0 && error.contains("tests/data/none.gguf"), "{error}");
    assert!(!error.contains(here), "{error}");

    for (secret, words) in
        [("", "needs the token"), ("correct-horse-battery-stapler", "needs the token")]
    {
        let (code, _, error) = orinctl(&["status"], secret);
        assert!(code == 1 && error.contains(words) && !error.contains("horse"), "{error}");
    }
    let (code, _, error) = orinctl(&["status"], "two words");
    assert!(code == 2 && error.contains("$ORIND_TOKEN must contain the token on one line"), "{error}");
    // If the remote daemon is unreachable, no private one is started.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = command(env!("CARGO_BIN_EXE_orinctl"));
    let (code, _, error) = outcome(command.args(["generate", "a", "--tcp", &gone.to_string()]));
    assert_eq!(code, Some(1));
    assert!(error.contains(&format!("no daemon is listening on tcp://{gone}")), "{error}");
}

#[test]
fn a_port_without_a_needed_token_is_refused() {
    let run = |flags: &str| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("orind.toml");
        fs::write(&file, flags).unwrap();
        let socket = dir.path().join("s");
        let (code, _, error) =
            outcome(orind().arg("--config").arg(&file).arg("--socket").arg(socket));
        assert_eq!(code, Some(1));
        error
    };
    assert!(run("listen = '0.0.0.0:0'").contains("token_file is needed"));
    let nowhere = run("listen = '127.0.0.1:0'\ntoken_file = '/nowhere'");
    assert!(nowhere.contains("cannot read the token in /nowhere"), "{nowhere}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let message = run(&format!("listen = '{address}'"));
    assert!(message.contains(&format!("cannot listen on {address}")), "{message}");
}
