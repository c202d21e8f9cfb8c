//! Catalogue of requests for all seeds, so that each request's undisturbed answer is computed only once.

use std::fmt::Write as _;
use std::sync::LazyLock;

use orind_testing::daemon::head;
use serde_json::{Value, json};

use crate::plan::Device;

/// Context length of every load, in tokens per slot.
pub(crate) const CONTEXT: usize = 192;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A valid or invalid request.
pub(crate) struct Request {
    path: &'static str,
    method: &'static str,
    content_type: &'static str,
    body: Body,
}

enum Body {
    Json(Value),
    /// Sent unchanged; may be invalid JSON.
    Raw(Vec<u8>),
}

impl Request {
    pub(crate) fn is_chat(&self) -> bool {
        self.path == CHAT
    }

    /// Number of generations that it starts.
    pub(crate) fn places(&self) -> usize {
        let Body::Json(body) = &self.body else { return 1 };
        let several = |prompts: &&Vec<Value>| prompts.iter().any(|one| !one.is_number());
        let prompts = body["prompt"].as_array().filter(several).map_or(1, Vec::len);
        prompts * body["n"].as_u64().map_or(1, |n| n as usize)
    }

    /// Bytes on the socket. `connection` is `close` or `keep-alive`. Raw bodies ignore `stream`.
    pub(crate) fn bytes(&self, stream: bool, connection: &str) -> Vec<u8> {
        let body = match &self.body {
            Body::Json(body) if stream => {
                let mut body = body.clone();
                body["stream"] = true.into();
                body["stream_options"] = json!({"include_usage": true});
                body.to_string().into_bytes()
            }
            Body::Json(body) => body.to_string().into_bytes(),
            Body::Raw(bytes) => bytes.clone(),
        };
        let mut headers = format!("connection: {connection}\r\n");
        write!(headers, "content-type: {}\r\n", self.content_type).unwrap();
        write!(headers, "content-length: {}\r\n", body.len()).unwrap();
        [head(self.method, self.path, &headers).into_bytes(), body].concat()
    }
}

/// All requests, which plans name by index. Those for the simulated Orin come first.
pub(crate) fn catalogue() -> &'static [Request] {
    static ALL: LazyLock<Vec<Request>> = LazyLock::new(|| {
        let post = |path| move |body| post(path, body);
        let light = light().into_iter().map(post(COMPLETIONS)).chain(bad());
        let chats = chats().into_iter().map(post(CHAT));
        light.chain(heavy().into_iter().map(post(COMPLETIONS))).chain(chats).collect()
    });
    &ALL
}

/// Number of requests, from the start of the catalogue, that a device receives. A token takes the simulated Orin a
/// hundred times as long.
pub(crate) fn known(device: Device) -> usize {
    match device {
        Device::Cpu => catalogue().len(),
        Device::Nv | Device::Auto => catalogue().len() - heavy().len() - chats().len(),
    }
}

fn post(path: &'static str, body: Value) -> Request {
    Request { path, method: "POST", content_type: "application/json", body: Body::Json(body) }
}

/// `count` token ids that are in every vocabulary.
fn ids(count: u32) -> Vec<u32> {
    (0..count).map(|i| 3 + i * 7 % 900).collect()
}

fn light() -> Vec<Value> {
    vec![
        json!({"prompt": "Once upon", "max_tokens": 3, "temperature": 0, "ignore_eos": true}),
        json!({"prompt": ids(1), "max_tokens": 1, "temperature": 0}),
        json!({"prompt": "a b", "max_tokens": 2, "temperature": 0, "echo": true, "logprobs": 2,
               "ignore_eos": true}),
        json!({"prompt": "Random", "max_tokens": 4, "temperature": 1.5, "top_k": 0, "seed": -7,
               "ignore_eos": true}),
        json!({"prompt": ["One", "Two", "One"], "max_tokens": 2, "temperature": 0, "ignore_eos": true}),
        json!({"prompt": ids(20), "max_tokens": 2, "seed": 8, "ignore_eos": true}),
        json!({"prompt": "Stop", "max_tokens": 4, "temperature": 0, "stop": ["e", "zzz"],
               "ignore_eos": true}),
    ]
}

fn heavy() -> Vec<Value> {
    vec![
        json!({"prompt": ids(40), "max_tokens": 40, "temperature": 0, "ignore_eos": true}),
        json!({"prompt": "The quick brown fox", "max_tokens": 15, "temperature": 0, "logprobs": 5,
               "ignore_eos": true}),
        json!({"prompt": ids(12), "max_tokens": 0, "echo": true, "logprobs": 0}),
        json!({"prompt": [ids(3), ids(9)], "max_tokens": 30, "temperature": 0, "ignore_eos": true}),
        json!({"prompt": "Random", "max_tokens": 60, "seed": 8}),
        json!({"prompt": "\u{1f600} \u{e9}\u{4e2d}", "max_tokens": 12, "temperature": 0,
               "ignore_eos": true}),
        // Generates until the slot is full.
        json!({"prompt": ids(CONTEXT as u32 - 30), "temperature": 0, "ignore_eos": true}),
        json!({"prompt": ids(3), "temperature": 0, "ignore_eos": true}),
        // The limit is cut to the slot.
        json!({"prompt": "a", "max_tokens": 100_000, "temperature": 0, "ignore_eos": true}),
    ]
}

fn chats() -> Vec<Value> {
    let hello =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
    vec![
        json!({"messages": hello, "max_tokens": 5, "temperature": 0, "ignore_eos": true}),
        json!({"messages": hello, "max_completion_tokens": 4, "seed": 3, "temperature": 1.2,
               "logprobs": true, "top_logprobs": 2, "ignore_eos": true}),
    ]
}

/// Requests that must be refused, each for a different reason.
fn bad() -> Vec<Request> {
    let raw = |method, path, content_type, body: &[u8]| Request {
        path,
        method,
        content_type,
        body: Body::Raw(body.to_vec()),
    };
    const JSON: &str = "application/json";
    vec![
        post(COMPLETIONS, json!({"prompt": ids(5000)})),
        post(COMPLETIONS, json!({"prompt": [1_000_000]})),
        post(COMPLETIONS, json!({"prompt": [-1]})),
        post(COMPLETIONS, json!({"prompt": []})),
        post(COMPLETIONS, json!({"prompt": "a", "temperature": 9})),
        post(COMPLETIONS, json!({"prompt": "a", "n": 0})),
        post(COMPLETIONS, json!({"prompt": "a", "model": "another"})),
        post(COMPLETIONS, json!({"max_tokens": 1})),
        post(CHAT, json!({"messages": []})),
        post(CHAT, json!({"messages": [{"role": "nobody", "content": "x"}]})),
        raw("POST", COMPLETIONS, JSON, b"{\"prompt\": "),
        raw("POST", COMPLETIONS, JSON, &b"[".repeat(2000)),
        raw("POST", COMPLETIONS, JSON, b"{\"prompt\": \"\\ud8\"}"),
        raw("POST", COMPLETIONS, JSON, &[b'"', 0xff, 0xfe, b'"']),
        raw("POST", COMPLETIONS, "text/plain", b"hello"),
        raw("POST", COMPLETIONS, JSON, &b" ".repeat(100_000)),
        raw("PUT", COMPLETIONS, JSON, b"{}"),
        raw("POST", "/v2/completions", JSON, b"{}"),
    ]
}

/// Request with a long answer, for a client that does not read.
pub(crate) fn loud() -> Vec<u8> {
    let most = CONTEXT as u32 - 20;
    let body = json!({"prompt": ids(most), "max_tokens": 10, "echo": true, "logprobs": 20,
                      "ignore_eos": true});
    post(COMPLETIONS, body).bytes(true, "close")
}
