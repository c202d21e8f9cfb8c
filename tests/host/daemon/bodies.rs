//! Bodies as other programs write them: compressed, with a mark, as a form, nested deeply, with single surrogates.

use std::io::{Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use orind_testing::daemon::{Answer, Daemon};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS};

const ROOM: &str = "slots = 1\ncontext = 1024\nprefill_chunk = 64\nmax_body_bytes = 65536";

/// `{"prompt": [5, 6], "max_tokens": 1}`, compressed, and with 64 KiB of spaces after it.
const GZIP: &str = "H4sIAAAAAAACA6tWKijKzy0oUbJSiDbVUTCL1VFQyk2siC/Jz07NKwaKGtYCAKiOzSkjAAAA";
const ZLIB: &str = "eJyrViooys8tKFGyUog21VEwi9VRUMpNrIgvyc9OzSsGihrWAgDHggr8";
const ZSTD: &str = "KLUv/SAjGQEAeyJwcm9tcHQiOiBbNSwgNl0sICJtYXhfdG9rZW5zIjogMX0=";
const LARGE_GZIP: &str = "H4sIAAAAAAACA+3IMQ5AMAAAwK80nS0GBl8REYNJqg0dJOLv+pC78d5YrpxKjVOYhy6MSxdi2p615mM/77b9FwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAKD5ARfGn5cjAAEA";
const LARGE_ZSTD: &str =
    "KLUv/WAj/20BAEQCeyJwcm9tcHQiOiBbNSwgNl0sICJtYXhfdG9rZW5zIjogMX0gAQDk/+vgCQ==";

/// Posts bytes with headers of their own.
fn post(daemon: &Daemon, path: &str, headers: &str, body: &[u8]) -> Answer {
    let mut stream = daemon.connect();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    Answer::parse(&answer)
}

fn coded(daemon: &Daemon, coding: &str, body: &[u8]) -> Answer {
    let headers = format!("content-type: application/json\r\ncontent-encoding: {coding}\r\n");
    post(daemon, COMPLETIONS, &headers, body)
}

#[test]
fn compressed_bodies_are_decoded_within_the_limit() {
    let daemon = Daemon::start(ROOM);
    let bytes = |text: &str| STANDARD.decode(text).unwrap();
    let plain: &[u8] = br#"{"prompt": [5, 6], "max_tokens": 1}"#;
    for (coding, body) in [
        ("gzip", bytes(GZIP)),
        ("x-gzip", bytes(GZIP)),
        ("deflate", bytes(ZLIB)),
        ("zstd", bytes(ZSTD)),
        ("identity", plain.to_vec()),
    ] {
        let answer = coded(&daemon, coding, &body);
        assert_eq!(answer.status, 200, "{coding}: {}", answer.body);
    }
    for (coding, body) in [("gzip", LARGE_GZIP), ("zstd", LARGE_ZSTD)] {
        assert_eq!(coded(&daemon, coding, &bytes(body)).error(), (413, "body_too_large".into()));
    }
    let window = [b"\x28\xb5\x2f\xfd\x00\xf8".as_slice(), plain].concat();
    for (coding, body) in [
        ("br", plain.to_vec()),
        ("gzip, gzip", plain.to_vec()),
        ("gzip", plain.to_vec()),
        ("deflate", bytes(GZIP)),
        ("gzip", bytes(GZIP)[..40].to_vec()),
        ("zstd", plain.to_vec()),
        ("zstd", bytes(ZSTD)[..20].to_vec()),
        ("zstd", window),
    ] {
        let answer = coded(&daemon, coding, &body);
        assert_eq!(answer.status, 415, "{coding}: {}", answer.body);
        assert!(
            answer.headers.contains("accept-encoding: gzip, deflate, zstd"),
            "{}",
            answer.headers
        );
    }
}

#[test]
fn a_form_on_the_unix_socket_is_json() {
    let daemon = Daemon::start(ROOM);
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let options = json!({"num_predict": 1});
    for (path, body) in [
        ("/api/generate", json!({"prompt": "x", "stream": false, "options": options})),
        ("/api/show", json!({})),
        (COMPLETIONS, json!({"prompt": "x", "max_tokens": 1})),
    ] {
        let answer = post(&daemon, path, form, body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    assert_eq!(post(&daemon, COMPLETIONS, form, b"a=b").error(), (400, "malformed_json".into()));
    let text = "content-type: text/plain\r\n";
    assert_eq!(post(&daemon, COMPLETIONS, text, b"{}").error().0, 415);
}

#[test]
fn bodies_that_are_no_object_are_refused_on_every_route() {
    let daemon = Daemon::start(ROOM);
    for path in [
        COMPLETIONS,
        CHAT,
        "/v1/messages",
        "/v1/responses",
        "/v1/embeddings",
        "/api/chat",
        "/api/generate",
        "/api/show",
        "/api/embed",
        "/api/embeddings",
        "/api/create",
        "/api/copy",
        "/api/pull",
        "/infill",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/orin/v1/models",
        "/orin/v1/bench",
    ] {
        for body in ["[]", " [1]", "null", "7", "\"x\"", "", "{", "{}}"] {
            let answer = post(&daemon, path, "content-type: application/json\r\n", body.as_bytes());
            assert_eq!(answer.status, 400, "{path} {body:?}: {}", answer.body);
        }
    }
    assert_eq!(daemon.get("/health").status, 200);
}

/// The prompt of a text, as JSON writes it.
fn prompt(daemon: &Daemon, text: &str) -> String {
    let body = format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{text}\"}}]}}");
    let answer =
        post(daemon, "/apply-template", "content-type: application/json\r\n", body.as_bytes());
    assert_eq!(answer.status, 200, "{text}: {}", answer.body);
    answer.json()["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn marks_and_single_surrogates_are_read() {
    let daemon = Daemon::start(ROOM);
    for (text, read) in [
        ("a\\ud83db", "a\u{fffd}b"),
        ("\\ude00\\ud83d", "\u{fffd}\u{fffd}"),
        ("\\ud83d\\ude00", "😀"),
        ("\\\\ud83d", "\\ud83d"),
    ] {
        assert!(prompt(&daemon, text).contains(read), "{text}");
    }
    let marked = [b"\xef\xbb\xbf".as_slice(), br#"{"prompt": "x", "max_tokens": 1}"#].concat();
    let answer = post(&daemon, COMPLETIONS, "content-type: application/json\r\n", &marked);
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn json_is_nested_up_to_a_limit() {
    let daemon = Daemon::start(ROOM);
    let ask = |depth: usize| {
        let mut value = json!(1);
        for _ in 0..depth {
            value = json!([value]);
        }
        let messages = json!([{"role": "user", "content": "x"}]);
        daemon.post(CHAT, &json!({"messages": messages, "max_tokens": 1, "metadata": {"a": value}}))
    };
    for depth in [100, 130, 250] {
        let answer = ask(depth);
        assert_eq!(answer.status, 200, "{depth}: {}", answer.body);
    }
    assert_eq!(ask(300).error(), (400, "invalid_value".into()));
    let deep = "{\"a\":".repeat(9000) + "1" + &"}".repeat(9000);
    let answer = post(&daemon, CHAT, "content-type: application/json\r\n", deep.as_bytes());
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert_eq!(daemon.get("/health").status, 200);
}

/// System messages are accepted anywhere, under either name, by every dialect.
#[test]
fn system_messages_may_be_anywhere() {
    let daemon = Daemon::start(ROOM);
    for role in ["system", "developer"] {
        let messages: Value = json!([{"role": "user", "content": "a"}, {"role": role, "content": "b"},
            {"role": "user", "content": "c"}]);
        for (path, request) in [
            (CHAT, json!({"messages": messages, "max_tokens": 1})),
            ("/v1/messages", json!({"messages": messages, "max_tokens": 1})),
            ("/v1/responses", json!({"input": messages, "max_output_tokens": 1})),
            (
                "/api/chat",
                json!({"messages": messages, "stream": false, "options": {"num_predict": 1}}),
            ),
        ] {
            let answer = daemon.post(path, &request);
            assert_eq!(answer.status, 200, "{path} {role}: {}", answer.body);
        }
    }
}
