//! `orinctl bench --serve` with a daemon, and with a server that only has OpenAI's routes.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use analysis::serving::Serving;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orind_testing::daemon::{Daemon, orinctl};
use orind_testing::program::outcome;
use serde_json::{Value, json};

const SHORT: [&str; 4] = ["--prompt-lengths", "4-16", "--answer-lengths", "4-12"];

fn serve(home: &Path, args: &[&str]) -> Command {
    let mut command = orinctl(home);
    command.args(["bench", "--serve"]).args(SHORT).args(args);
    command
}

/// Exit code, report, and standard error.
fn report(command: &mut Command) -> (i32, Serving, String) {
    let (code, said, error) = outcome(command.arg("--json"));
    let found = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}{error}"));
    (code.unwrap(), found, error)
}

#[test]
fn answers_are_counted_and_goodput_follows_the_limits() {
    let (daemon, dir) = (Daemon::start(""), tempfile::tempdir().unwrap());
    let socket = daemon.socket();
    let file = dir.path().join("profile_export.jsonl");
    let ask = |args: &[&str]| {
        let mut command = serve(dir.path(), args);
        report(command.arg("--socket").arg(&socket).arg("--aiperf").arg(&file))
    };
    let huge = ["--ttft-limit", "1000s", "--itl-limit", "1000s", "--seconds", "1s"];
    let (code, found, error) = ask(&[&huge[..], &["--clients", "4"]].concat());
    assert_eq!((code, found.failed.len(), found.unfinished), (0, 0, 0), "{error}");
    assert!(found.done >= 4 && found.done == found.requests.len() as u64);
    assert_eq!((found.goodput.share, found.goodput.requests), (1.0, found.done));
    let tokens: u64 = found.requests.iter().map(|request| request.tokens).sum();
    for request in &found.requests {
        // Random ids do not end early, because of `ignore_eos`.
        assert_eq!(request.tokens, u64::from(request.answer_tokens));
        assert!((4..=16).contains(&request.prompt_tokens) && request.queued.is_some());
        assert!(request.sent >= request.planned && request.parts[0] > request.sent);
        assert!(request.parts.is_sorted() && request.end >= *request.parts.last().unwrap());
    }
    assert!((found.output_tokens_per_second * found.elapsed - tokens as f64).abs() < 1e-6);
    assert!(found.total_tokens_per_second > found.output_tokens_per_second);
    let percentiles = found.first_token.zip(found.between).zip(found.queued);
    assert!(percentiles.is_some_and(|((first, _), queued)| first.p50 > queued.p50));
    let status = daemon.get("/orin/v1/status").json();
    assert_eq!(found.model, status["model"]["id"]);

    let lines = std::fs::read_to_string(&file).unwrap();
    let records: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(records.len(), found.requests.len());
    for (record, request) in records.iter().zip(&found.requests) {
        let value = |name: &str| record["metrics"][name]["value"].as_f64().unwrap();
        let first = (request.parts[0] - request.sent) * 1e3;
        assert!((value("time_to_first_token") - first).abs() < 1e-6);
        assert!((value("output_sequence_length") - request.tokens as f64).abs() < 1e-9);
        assert!(value("request_latency") >= first && record["error"].is_null());
        let at = |name: &str| record["metadata"][name].as_u64().unwrap();
        assert!(at("credit_issued_ns") <= at("request_start_ns"));
        assert!(at("request_start_ns") < at("request_end_ns"));
    }

    // Requests are sent at the drawn times.
    let tiny = ["--ttft-limit", "0.001ms", "--itl-limit", "0.001ms", "--seconds", "1s"];
    let (code, found, error) = ask(&[&tiny[..], &["--rate", "20", "--seed", "5"]].concat());
    assert_eq!(
        (code, found.goodput.share, found.goodput.tokens_per_second),
        (0, 0.0, 0.0),
        "{error}"
    );
    let planned: Vec<f64> = found.requests.iter().map(|request| request.planned).collect();
    assert_eq!(found.load.arrivals().unwrap().len(), planned.len());
    for (planned, drawn) in planned.iter().zip(found.load.arrivals().unwrap()) {
        assert!((planned - drawn).abs() < 1e-9);
    }
    assert!(found.done == planned.len() as u64 && found.load.seed == 5);
}

/// A bench of a minute, after its first answers.
fn long(daemon: &Daemon, home: &Path) -> Child {
    let mut command = serve(home, &["--seconds", "60s", "--json"]);
    command.arg("--socket").arg(daemon.socket());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    daemon.until("requests are answered", |status| status["state"]["name"] == "ready");
    std::thread::sleep(Duration::from_secs(2));
    child
}

#[test]
fn a_lost_server_is_reported_and_ctrl_c_keeps_measurements() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start("");
    let child = long(&daemon, dir.path());
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let found: Serving = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found.done > 0 && found.failed.is_empty() && found.elapsed < 60.0);

    let child = long(&daemon, dir.path());
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && error.contains("the server closed its socket after"),
        "{error}"
    );
    let found: Serving = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found.done > 0 && found.failed.contains_key("nobody listens"), "{:?}", found.failed);
    // The requests in flight of four clients failed, and each client stopped soon.
    assert!(found.failed.values().sum::<u64>() <= 8, "{:?}", found.failed);
}

/// Answers one request; refuses every other completion with a text that is not JSON.
fn answer(mut stream: TcpStream, refuse: &mut bool) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut head, mut length) = (String::new(), 0);
    while reader.read_line(&mut head).unwrap() > 2 {
        let line = head.lines().last().unwrap().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let (status, body) = if head.starts_with("GET /v1/models") {
        ("200 OK", json!({ "data": [{ "id": "other" }] }).to_string())
    } else {
        let asked: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(asked["model"], "other");
        assert!(asked["ignore_eos"].is_null(), "a field that OpenAI's API does not have: {asked}");
        *refuse = !*refuse;
        if *refuse {
            ("503 Service Unavailable", "busy".to_owned())
        } else {
            let part = json!({ "choices": [{ "text": "a", "finish_reason": null }] });
            ("200 OK", format!("data: {part}\n\ndata: {part}\n\ndata: [DONE]\n\n"))
        }
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all((head + &body).as_bytes()).unwrap();
}

#[test]
fn refusals_of_another_server_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut refuse = false;
        for stream in listener.incoming() {
            answer(stream.unwrap(), &mut refuse);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let args = ["--server", &address, "--rate", "30", "--seconds", "1s", "--vocabulary", "100"];
    let (code, found, error) = report(&mut serve(dir.path(), &args));
    let refused = found.failed.get("503").copied().unwrap_or_default();
    assert!(code == 0 && found.done > 0 && refused > 0, "{error}");
    assert_eq!(found.done + refused, found.requests.len() as u64);
    assert!((found.done as i64 - refused as i64).abs() <= 1);
    assert!(found.requests.iter().all(|r| r.failure.is_some() || r.tokens == 2));
    assert!(found.goodput.share <= 0.52 && found.queued.is_none());
}

#[test]
fn conflicting_flags_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["--clients", "2"][..], "--serve"),
        (&["--serve", "-p", "8"], "--prompt-tokens"),
        (&["--serve", "--csv"], "--csv"),
        (&["--serve", "--rate", "0"], "a number from 0.001"),
        (&["--serve", "--lengths", "9-3"], "such as 64 or 32-512"),
        (&["--serve", "--ttft-limit", "2h"], "such as 500ms"),
        (&["--serve", "--server", "x:1", "--private"], "--private"),
        (&["--serve", "--server", "x:1", "--tcp", "y:1"], "give one of them"),
        (&["--serve", "--server-token-file", "x"], "--server"),
    ] {
        let (code, _, error) = outcome(orinctl(dir.path()).arg("bench").args(args));
        assert!(code == Some(2) && error.contains(words), "{args:?}: {error}");
    }
    let args = ["bench", "--serve", "--server", "127.0.0.1:1"];
    let (code, _, error) = outcome(orinctl(dir.path()).args(args));
    assert!(code == Some(1) && error.contains("127.0.0.1:1"), "{error}");
}
