//! Requests that are built to take time or memory, and files that change: each is answered within the
//! limits of docs/reliability.md.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use orind_testing::daemon::{head, post};
use orind_testing::external::model;
use orind_testing::random::Random;
use serde_json::{Value, json};

use crate::clients;
use crate::judge::Judge;
use crate::request::catalogue;
use crate::subject::{Fate, Subject};

/// Time in which the daemon's health is answered next to hostile requests: a second, on a machine
/// whose two processors are shared with other tests.
const HEALTH: Duration = Duration::from_secs(5);

/// Time in which a request for one token is answered next to hostile requests, and next to those of
/// other clients.
const TOKEN: Duration = Duration::from_secs(10);

/// Request for one token, an index of the catalogue.
const SHORT: usize = 1;

/// Number of kinds.
pub(crate) const KINDS: usize = 6;

/// Error codes with which hostile requests are refused.
pub(crate) const REFUSED: [&str; 6] = [
    "grammar_failed",
    "body_too_large",
    "busy",
    "invalid_value",
    "context_length_exceeded",
    "template_failed",
];

/// Request of a kind, as bytes on the socket.
pub(crate) fn request(kind: usize, seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let chat = |mut body: Value, key: &str, value: Value| {
        body[key] = value;
        post("/v1/chat/completions", &body.to_string()).into_bytes()
    };
    let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3});
    let schema = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    match kind {
        // Patterns whose intersection has exponentially many states.
        0 => {
            let pattern = |i: usize, far: usize| {
                let letter = char::from(b'a' + (i % 26) as u8);
                json!({"type": "string", "pattern": format!(".*{letter}.{{{far}}}x.*")})
            };
            let patterns: Vec<Value> =
                (0..8 + random.below(12)).map(|i| pattern(i, 3 + random.below(90))).collect();
            chat(body, "response_format", schema(json!({"allOf": patterns})))
        }
        // A divisor with as many states.
        1 => {
            let divisor = 1_u64 << random.below(63);
            chat(body, "response_format", schema(json!({"multipleOf": divisor + 1})))
        }
        // Arguments of a tool that are a tree of empty lists.
        2 => {
            let arguments = format!("[{}[]]", "[],".repeat(1 << random.below(21)));
            let call = json!({"id": "a", "type": "function",
                "function": {"name": "f", "arguments": arguments}});
            let messages = json!([{"role": "user", "content": "a"},
                {"role": "assistant", "content": null, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "a", "content": "x"}]);
            chat(body, "messages", messages)
        }
        // A text of many tokens.
        3 => {
            let text = "1".repeat(1 << random.below(22));
            post("/tokenize", &json!({"content": text}).to_string()).into_bytes()
        }
        // Nesting.
        _ => {
            let depth = 1 << random.below(17);
            let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            let body = format!("{{\"messages\": [], \"tools\": {nested}}}");
            post("/v1/chat/completions", &body).into_bytes()
        }
    }
}

/// Checks that others are served while hostile requests are. With `generates`, one token is requested
/// too.
pub(crate) fn others_are_served(subject: &Subject, judge: &Judge, generates: bool) {
    for _ in 0..3 {
        let begin = Instant::now();
        let Some(answer) = subject.try_raw_once(&head("GET", "/health", "connection: close\r\n"))
        else {
            return;
        };
        let took = begin.elapsed();
        assert!(
            took < HEALTH || subject.fate() != Fate::Serves,
            "health takes {took:?}: {answer:?}"
        );
        if generates {
            let begin = Instant::now();
            let answer = clients::ask(subject, &catalogue()[SHORT], false);
            let took = begin.elapsed();
            judge.answer(subject, SHORT, answer.as_ref());
            assert!(took < TOKEN || subject.fate() != Fate::Serves, "a token takes {took:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs a network, replaces its weights by others of the same size, and runs it again. Panics if an
/// answer has the values of another file.
pub(crate) fn swapped_file(subject: &Subject, folder: &Path) {
    let place = [("location", "data")];
    fs::write(folder.join("sum.onnx"), model(&place, &place)).unwrap();
    let x = json!({"shape": [2, 2], "values": [0.0, 0.0, 0.0, 0.0]});
    let body = json!({"model": folder.join("sum.onnx"), "inputs": {"x": x}, "backend": "cpu"});
    for value in [1.0_f32, 3.0] {
        let weights: Vec<u8> = [value; 8].iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut data = fs::File::create(folder.join("data")).unwrap();
        data.write_all(&weights).unwrap();
        drop(data);
        // Another step may end the daemon meanwhile.
        let Some(answer) = subject.try_raw(&post("/orin/v1/run", &body.to_string())) else {
            return;
        };
        if answer.status == 200 {
            let found = answer.json()["outputs"]["y"]["values"][0].as_f64();
            assert_eq!(found, Some(f64::from(2.0 * value)), "{}", answer.json());
        }
    }
}
