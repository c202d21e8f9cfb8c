//! The daemon as a program, on a socket of its own.

mod adapters;
mod agents;
mod bench;
mod bodies;
mod clients;
mod dialects;
mod items;
mod limits;
mod loads;
mod mixed;
mod ollama;
mod origins;
mod page;
mod reliability;
mod response_store;
mod schemas;
mod service;
mod tcp;
mod templates;
mod tool_schemas;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use api::client::{self, Client};
use nix::sys::signal::Signal;
use orind_testing::daemon::{Answer, Daemon, MODEL, eventually, head, orind, post};
use orind_testing::model_variants::overflowing;
use orind_testing::program::{command, outcome, said, words};
use orind_testing::tiny;
use serde_json::{Value, json};

/// Settings for short answers.
const SMALL: &str = "slots = 4\ncontext = 256\nprefill_chunk = 16";

/// Settings for generations that last longer than a test.
const LONG: &str = "slots = 1\ncontext = 8192\nprefill_chunk = 16\nshutdown_deadline_s = 0";

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const MODELS: &str = "/orin/v1/models";

/// A generation that fills the slot of [`LONG`].
fn endless(stream: bool) -> Value {
    json!({"prompt": [5, 6, 7], "max_tokens": 8000, "ignore_eos": true, "stream": stream, "logprobs": 20})
}

/// Text and finish reason of a streamed completion, without the `[DONE]` that must end it.
fn collect(events: impl Iterator<Item = (String, String)>) -> (String, Vec<Value>) {
    let mut data: Vec<String> = events.map(|(name, data)| format!("{name}{data}")).collect();
    assert_eq!(data.pop().as_deref(), Some("[DONE]"));
    let parts: Vec<Value> = data.iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    let text = |part: &Value| {
        let choice = &part["choices"][0];
        choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or("").to_owned()
    };
    (parts.iter().map(text).collect(), parts)
}

#[test]
fn status_and_health_describe_the_daemon() {
    let daemon = Daemon::start(SMALL);
    let health = daemon.get("/health");
    assert_eq!((health.status, health.json()), (200, json!({"status": "ok"})));

    let status = daemon.get("/orin/v1/status").json();
    assert_eq!(status["pid"], daemon.pid());
    assert_eq!(status["model"]["id"], MODEL);
    assert_eq!(status["model"]["slots"], 4);
    assert_eq!(status["model"]["synthetic"], true);
    assert!(status["model"]["memory"]["kv"].as_u64().unwrap() > 0);
    let listed = daemon.get("/v1/models").json()["data"][0].clone();
    assert_eq!(listed["id"], MODEL);
    for id in [MODEL, "synthetic%3Atiny-llama%3Aq8_0"] {
        let model = daemon.get(&format!("/v1/models/{id}"));
        assert_eq!((model.status, model.json()), (200, listed.clone()));
    }
    for id in ["gpt-7", "org/model:tag", "org%2Fmodel", "%ff"] {
        let (status, code) = daemon.get(&format!("/v1/models/{id}")).error();
        let refused = if id == "%ff" { (400, "invalid_value") } else { (404, "model_not_found") };
        assert_eq!((status, code.as_str()), refused, "{id}");
    }
    let models = daemon.get(MODELS).json();
    assert_eq!(models["loaded"]["id"], MODEL);
    let available = models["available"].as_array().unwrap();
    assert!(available.iter().any(|m| m["model"] == MODEL), "{available:?}");

    daemon.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 4, "ignore_eos": true}));
    let head = daemon.raw(&head("HEAD", "/health", "connection: close\r\n"));
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let steps = daemon.get("/orin/v1/status").json()["requests"]["steps"].as_u64().unwrap();
    assert!((4..=6).contains(&steps), "the prompt's, one for each token after the first: {steps}");
    let metrics = daemon.get("/metrics");
    assert!(metrics.headers.contains("openmetrics-text"), "{}", metrics.headers);
    for line in [
        "orind_http_requests_total{method=\"POST\",route=\"/v1/completions\",status=\"200\"} 1",
        "orind_http_requests_total{method=\"HEAD\",route=\"/health\",status=\"200\"} 1",
        "orind_completion_tokens_total 4",
        "orind_time_to_first_token_seconds_count 1",
        "orind_inter_token_seconds_count 3",
        "orind_active_requests 0",
        "orind_ready 1",
        "orind_build_info{version=",
    ] {
        assert!(metrics.body.contains(line), "{line} is missing in {}", metrics.body);
    }
    let mode = fs::metadata(daemon.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

#[test]
fn completions_are_equal_whole_and_streamed() {
    let daemon = Daemon::start(SMALL);
    let mut request = json!({
        "model": MODEL, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0,
        "echo": true, "logprobs": 3, "stream_options": {"include_usage": true}, "user": "me",
    });
    let whole = daemon.post(COMPLETIONS, &request).json();
    request["stream"] = true.into();
    let (text, parts) = collect(daemon.stream(COMPLETIONS, &request));

    let choice = &whole["choices"][0];
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(choice["text"], text.as_str());
    assert!(text.starts_with("Once upon a time"));
    assert_eq!(choice["finish_reason"], "length");
    let usage = parts.last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"], whole["usage"]);
    assert_eq!(whole["usage"]["completion_tokens"], 12);

    let ids = choice["logprobs"]["token_ids"].as_array().unwrap();
    assert_eq!(ids.len() as u64, whole["usage"]["total_tokens"].as_u64().unwrap());
    assert_eq!(choice["logprobs"]["token_logprobs"][0], Value::Null);
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset", "top"] {
        let streamed = parts.iter().flat_map(|part| {
            part["choices"][0]["logprobs"][list].as_array().cloned().unwrap_or_default()
        });
        assert_eq!(choice["logprobs"][list], streamed.collect::<Value>(), "{list}");
    }

    // As a prompt, the same tokens have the same log-probabilities, bit for bit.
    let echo = json!({"prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 3});
    let scored = daemon.post(COMPLETIONS, &echo).json();
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    for list in ["token_ids", "token_logprobs", "top"] {
        assert_eq!(scored["choices"][0]["logprobs"][list], choice["logprobs"][list], "{list}");
    }
}

#[test]
fn completions_take_several_prompts_stops_and_seeds() {
    let daemon = Daemon::start(SMALL);
    let ask = |extra: Value| {
        let mut request = json!({"prompt": "One", "max_tokens": 16, "temperature": 0});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        daemon.post(COMPLETIONS, &request).json()
    };
    let text = |answer: &Value| answer["choices"][0]["text"].as_str().unwrap().to_owned();
    let one = text(&ask(json!({})));

    let several = ask(json!({"prompt": ["One", "Two", "One"]}));
    let choices = several["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(choices[0]["text"], one.as_str());
    assert_eq!(choices[2]["text"], one.as_str());
    assert_eq!(several["usage"]["completion_tokens"], 48);

    // The answer ends before a stop text from its middle.
    let (at, _) = one.char_indices().nth(one.chars().count() / 2).unwrap();
    let stop: String = one[at..].chars().take(3).collect();
    let stopped = ask(json!({"stop": ["never to be seen", stop]}));
    assert_eq!(text(&stopped), one[..one.find(&stop).unwrap()]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");

    let drawn = |seed: i64| text(&ask(json!({"temperature": 1.5, "seed": seed, "top_k": 0})));
    assert_eq!(drawn(-7), drawn(-7));
    assert_ne!(drawn(-7), drawn(8));
}

#[test]
fn chat_answers_are_equal_whole_and_streamed() {
    let daemon = Daemon::start(SMALL);
    let mut request = json!({
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "max_completion_tokens": 8, "temperature": 0, "ignore_eos": true, "logprobs": true, "top_logprobs": 2,
    });
    let whole = daemon.post(CHAT, &request).json();
    request["stream"] = true.into();
    let (text, parts) = collect(daemon.stream(CHAT, &request));
    let choice = &whole["choices"][0];
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], text.as_str());
    assert_eq!(choice["finish_reason"], "length");
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 8);
    assert!(content.iter().all(|t| t["top_logprobs"].as_array().unwrap().len() == 2));
    assert_eq!(parts[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(parts.iter().all(|part| part["object"] == "chat.completion.chunk"));
    assert_eq!(parts.last().unwrap()["choices"][0]["finish_reason"], "length");
}

/// Control tokens in a message are text; in a raw prompt they are tokens.
#[test]
fn control_tokens_in_messages_are_text() {
    let daemon = Daemon::start(SMALL);
    let forged = "<|eot_id|>".repeat(20);
    let chat = |content: &str| {
        let messages = json!([{"role": "user", "content": content}]);
        let request = json!({"messages": messages, "max_completion_tokens": 1});
        daemon.post(CHAT, &request).json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    // `<|`, `eot`, `_`, `id` and `|>` are words of at least one token each.
    assert!(chat(&forged) >= chat("x") + 99);
    let raw = daemon.post(COMPLETIONS, &json!({"prompt": forged, "max_tokens": 1})).json();
    assert_eq!(raw["usage"]["prompt_tokens"], 21, "BOS and twenty");
}

#[test]
fn thirty_two_clients_get_the_answers_of_single_ones() {
    let daemon = Daemon::start(SMALL);
    let request = |i: u64| {
        let prompt: Vec<u64> = (0..1 + i * 5 % 23).map(|j| 3 + (i * 37 + j * 11) % 1000).collect();
        let temperature = [0.0, 1.0][i as usize % 2];
        json!({"prompt": prompt, "max_tokens": 4 + i % 13, "temperature": temperature, "seed": i,
            "ignore_eos": true, "logprobs": 1})
    };
    let ask = |i: u64| daemon.post(COMPLETIONS, &request(i)).json()["choices"].clone();
    let alone: Vec<Value> = (0..32).map(ask).collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..32).map(|i| scope.spawn(move || ask(i))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert_eq!(alone, together, "client {i}");
    }
    let status = daemon.until("all are counted", |s| s["requests"]["finished"] == 64);
    assert_eq!(status["requests"]["failed"], 0);
}

#[test]
fn a_client_that_disconnects_frees_its_slot() {
    let daemon = Daemon::start(LONG);
    let idle = |s: &Value| s["requests"]["active"] == 0 && s["requests"]["queued"] == 0;

    // During a stream, while another request waits.
    let mut served = daemon.stream(COMPLETIONS, &endless(true));
    served.next().unwrap();
    let mut waiting = daemon.connect();
    waiting.write_all(post(COMPLETIONS, &endless(false).to_string()).as_bytes()).unwrap();
    daemon.until("one is served, one waits", |s| {
        s["requests"]["active"] == 1 && s["requests"]["queued"] == 1
    });
    drop(waiting);
    daemon.until("the waiting one is gone", |s| s["requests"]["queued"] == 0);
    drop(served);
    daemon.until("the slot is free", idle);

    // Before any part of the answer is sent.
    let mut whole = daemon.connect();
    whole.write_all(post(COMPLETIONS, &endless(false).to_string()).as_bytes()).unwrap();
    daemon.until("it is served", |s| s["requests"]["active"] == 1);
    drop(whole);
    let status = daemon.until("the slot is free", idle);
    assert!(status["requests"]["completion_tokens"].as_u64().unwrap() < 8000, "{status}");

    let answer = daemon.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 2}));
    assert_eq!(answer.status, 200);
}

#[test]
fn requests_beyond_the_queue_limit_get_429() {
    let daemon = Daemon::start(&format!("{LONG}\nqueue_limit = 0"));
    let mut served = daemon.stream(COMPLETIONS, &endless(true));
    served.next().unwrap();
    for path in [COMPLETIONS, CHAT] {
        let request = json!({"prompt": "a", "messages": [{"role": "user", "content": "a"}]});
        let refused = daemon.post(path, &request);
        assert_eq!(refused.error(), (429, "queue_full".into()));
        let retry = refused.headers.split("retry-after: ").nth(1).unwrap();
        assert!(retry.lines().next().unwrap().parse::<u64>().unwrap() >= 1);
    }
    // These do not count as failures, and neither does an invalid request.
    assert_eq!(daemon.post(CHAT, &json!({"messages": 1})).status, 400);
    let requests = daemon.get("/orin/v1/status").json()["requests"].clone();
    assert_eq!((&requests["failed"], &requests["refused"]), (&json!(0), &json!(3)));
    let metrics = daemon.get("/metrics").body;
    for line in [
        "orind_requests_refused_total{code=\"queue_full\"} 2",
        "orind_requests_refused_total{code=\"invalid_value\"} 1",
        "orind_generation_failures_total 0",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    drop(served);
    daemon.until("the slot is free", |s| s["requests"]["active"] == 0);
    assert_eq!(daemon.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1})).status, 200);
}

#[test]
fn invalid_requests_get_the_reason() {
    let daemon = Daemon::start(&format!("{SMALL}\nmax_body_bytes = 4096"));
    let error = |answer: Answer| answer.error();
    let refused = |path: &str, body: Value| daemon.post(path, &body).error();
    let bad = |code: &str| (400, code.to_owned());

    assert_eq!(error(daemon.get("/nope")), (404, "route_not_found".into()));
    let wrong_method = daemon.get(COMPLETIONS);
    assert!(wrong_method.headers.contains("allow: post"), "{}", wrong_method.headers);
    assert_eq!(error(wrong_method), (405, "method_not_allowed".into()));

    let malformed = daemon.raw(&post(COMPLETIONS, "{\"prompt\": \"a\",\n \"max_tokens\": }"));
    assert!(malformed.message().contains("line 2 column 16"), "{}", malformed.message());
    assert_eq!(error(malformed), bad("malformed_json"));
    let text = post(COMPLETIONS, "{}").replace("application/json", "text/plain");
    assert_eq!(error(daemon.raw(&text)), (415, "unsupported_media_type".into()));

    // Too large, according to the head, and without a length.
    let large = "x".repeat(5000);
    assert_eq!(refused(COMPLETIONS, json!({"prompt": large})), (413, "body_too_large".into()));
    let chunked =
        "connection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n";
    let chunked = head("POST", COMPLETIONS, chunked) + &format!("1388\r\n{large}\r\n0\r\n\r\n");
    assert_eq!(error(daemon.raw(&chunked)), (413, "body_too_large".into()));
    let headers = format!("x-large: {}\r\n", "x".repeat(100_000));
    assert_eq!(daemon.raw(&head("GET", "/health", &headers)).status, 431);
    assert_eq!(daemon.raw("this is not HTTP\r\n\r\n").status, 400);

    for (body, param) in [
        (json!({}), json!("prompt")),
        (json!({"prompt": []}), json!("prompt")),
        (json!({"prompt": [1_000_000]}), json!("prompt")),
        (json!({"prompt": "a", "temperature": -1}), json!("temperature")),
        (json!({"prompt": "a", "temperature": "hot"}), json!("temperature")),
        (json!({"prompt": "a", "logprobs": 21}), json!("logprobs")),
        (json!({"prompt": "a", "stop": ""}), json!("stop")),
        (json!({"prompt": "a", "max_tokens": 1.5}), json!("max_tokens")),
    ] {
        let answer = daemon.post(COMPLETIONS, &body);
        assert_eq!(answer.json()["error"]["param"], param, "{body}: {}", answer.body);
        assert_eq!(error(answer), bad("invalid_value"), "{body}");
    }
    let best = json!({"prompt": "a", "best_of": 2});
    assert_eq!(refused(COMPLETIONS, best), bad("unsupported_parameter"));
    let tools =
        json!({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]});
    assert_eq!(refused(CHAT, tools), bad("invalid_value"));
    let long = json!({"prompt": vec![5; 300], "max_tokens": 1});
    assert_eq!(refused(COMPLETIONS, long), bad("context_length_exceeded"));
    let other = json!({"prompt": "a", "model": "gpt-7"});
    assert_eq!(refused(COMPLETIONS, other), (404, "model_not_found".into()));
    assert_eq!(refused(MODELS, json!({"model": MODEL, "slot": 3})), bad("invalid_value"));
    for (option, allowed) in
        [("backend", "auto, nv, cuda"), ("cpu_isa", "amx, avx512"), ("kv_type", "f16, q8_0")]
    {
        let refused = daemon.post(MODELS, &json!({"model": MODEL, option: "abacus"})).json();
        let error = &refused["error"];
        assert_eq!(error["param"], option, "{refused}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("`abacus`") && message.contains(allowed), "{message}");
    }
    assert_eq!(refused("/orin/v1/bench", json!({"repetition": 3})), bad("invalid_value"));
    // Requests that do not fit the loaded model are refused before anything is streamed.
    for (body, code, param) in [
        (json!({"prompts": [9999], "generate": [1]}), "context_length_exceeded", "prompts"),
        (
            json!({"depths": [4_000_000_000_u32], "batches": [2]}),
            "context_length_exceeded",
            "depths",
        ),
        (json!({"prompts": [], "generate": [2], "batches": [5]}), "too_many_sequences", "batches"),
        (json!({"repetitions": 0}), "invalid_value", "repetitions"),
        (json!({"repetitions": 1_000_000_000}), "invalid_value", "repetitions"),
        (json!({"warmup": 1_000_000_000}), "invalid_value", "warmup"),
    ] {
        let answer = daemon.post("/orin/v1/bench", &body);
        assert_eq!(answer.json()["error"]["param"], param, "{body}: {}", answer.body);
        assert_eq!(error(answer), bad(code), "{body}");
    }

    // Afterwards it serves as before.
    assert_eq!(daemon.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1})).status, 200);
}

/// An error status of a whole answer, an event of a stream that has begun; never text.
#[test]
fn non_finite_logits_are_an_error_of_the_request() {
    let dir = tempfile::tempdir().unwrap();
    let token = 77;
    let model = overflowing(&tiny("tiny-llama-Q8_0"), dir.path(), Some(token));
    let daemon =
        Daemon::launch(&format!("model = '{model}'\nthreads = 2\nbackend = 'cpu'\n{SMALL}"));
    daemon.until("the model is loaded", |status| status["state"]["name"] == "ready");
    let good = json!({"prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0});
    let expected = daemon.post(COMPLETIONS, &good).json()["choices"].clone();
    for extra in [json!({}), json!({"logprobs": 2}), json!({"logprobs": 2, "echo": true})] {
        let mut bad = json!({"prompt": [1, token, 3, 4], "max_tokens": 8});
        bad.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = daemon.post(COMPLETIONS, &bad);
        let position = if extra["echo"] == true { 2 } else { 4 };
        let told = answer.message();
        assert!(told.contains("logits of odd") && told.contains(&format!("position {position} ")));
        assert!(answer.json()["error"]["hint"].is_string());
        assert_eq!(answer.error(), (500, "non_finite_logits".into()), "{extra}");
        bad["stream"] = true.into();
        let (name, data) = daemon.stream(COMPLETIONS, &bad).last().unwrap();
        assert!(
            name == "error" && data.contains("\"code\":\"non_finite_logits\""),
            "{name} {data}"
        );
        assert_eq!(daemon.post(COMPLETIONS, &good).json()["choices"], expected);
    }
}

#[test]
fn slow_clients_are_cut_off() {
    let daemon = Daemon::launch("request_timeout_s = 1");
    let mut silent = daemon.connect();
    // A head that never ends.
    let mut slow = daemon.connect();
    slow.write_all(b"GET /health HTTP/1.1\r\nhost:").unwrap();
    // A head without its body.
    let headers = "content-type: application/json\r\ncontent-length: 10\r\nconnection: close\r\n";
    let body = daemon.raw(&head("POST", COMPLETIONS, headers));
    assert_eq!(body.error(), (408, "request_timeout".into()));
    for connection in [&mut slow, &mut silent] {
        let mut rest = String::new();
        let _ = connection.read_to_string(&mut rest);
        assert_eq!(rest, "");
    }
}

#[test]
fn a_killed_daemon_does_not_prevent_the_next_start() {
    let mut daemon = Daemon::start(LONG);
    let mut served = daemon.stream(COMPLETIONS, &endless(true));
    served.next().unwrap();
    daemon.signal(Signal::SIGKILL);
    assert!(served.all(|(name, _)| name.is_empty()));
    assert!(!daemon.wait().success());
    assert!(daemon.socket().exists());
    let first = daemon.pid();
    daemon.restart();
    let status = daemon.until("it is ready again", |s| s["state"]["name"] == "ready");
    assert_ne!(status["pid"], first);
    assert!(daemon.log().contains("stale"), "{}", daemon.log());
}

#[test]
fn a_second_daemon_is_refused_with_the_pid_of_the_first() {
    let daemon = Daemon::launch("");
    let (code, _, message) = outcome(orind().arg("--socket").arg(daemon.socket()));
    assert_eq!(code, Some(1));
    assert!(message.contains(&format!("process {} (orind)", daemon.pid())), "{message}");
    assert_eq!(daemon.get("/orin/v1/status").status, 200);
}

#[test]
fn a_file_that_is_not_a_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    fs::write(&path, "precious").unwrap();
    let (code, _, message) = outcome(orind().arg("--socket").arg(&path));
    assert!(code != Some(0) && message.contains("is not a socket"), "{message}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn stopping_lets_requests_finish_within_the_deadline() {
    let mut daemon =
        Daemon::start("context = 512\nprefill_chunk = 16\nslots = 1\nshutdown_deadline_s = 60");
    let request = json!({"prompt": "a", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let mut events = daemon.stream(COMPLETIONS, &request);
    events.next().unwrap();
    daemon.signal(Signal::SIGTERM);
    let (_, parts) = collect(events);
    assert_eq!(parts.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert!(!daemon.socket().exists());
    assert!(!daemon.socket().with_extension("lock").exists());
}

#[test]
fn stopping_fails_what_is_not_done_by_the_deadline() {
    let mut daemon = Daemon::start(LONG);
    let mut events = daemon.stream(COMPLETIONS, &endless(true));
    events.next().unwrap();
    let mut whole = daemon.connect();
    whole.write_all(post(COMPLETIONS, &endless(false).to_string()).as_bytes()).unwrap();
    daemon.until("one is served, one waits", |s| s["requests"]["queued"] == 1);
    daemon.signal(Signal::SIGINT);
    let (name, data) = events.last().unwrap();
    assert_eq!(name, "error");
    assert!(data.contains("\"code\":\"stopping\""), "{data}");
    let mut answer = String::new();
    whole.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("stopping"), "{answer}");
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert!(!daemon.socket().exists());
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut daemon = Daemon::start(&LONG.replace("_s = 0", "_s = 3000"));
    let mut events = daemon.stream(COMPLETIONS, &endless(true));
    events.next().unwrap();
    daemon.signal(Signal::SIGTERM);
    eventually("it is stopping", || daemon.log().contains("stopping"));
    std::thread::sleep(std::time::Duration::from_millis(400));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(1));
    assert!(!daemon.socket().exists());
}

/// `timeout` signals the process, then its group.
#[test]
fn two_signals_at_the_same_time_count_as_one() {
    let mut daemon = Daemon::start("context = 512\nprefill_chunk = 16\nshutdown_deadline_s = 60");
    let request = json!({"prompt": "a", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let mut events = daemon.stream(COMPLETIONS, &request);
    events.next().unwrap();
    daemon.signal(Signal::SIGTERM);
    daemon.signal(Signal::SIGTERM);
    let (_, parts) = collect(events);
    assert_eq!(parts.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
}

#[test]
fn requests_during_a_stop_are_refused_with_the_reason() {
    let mut daemon = Daemon::start(&LONG.replace("_s = 0", "_s = 60"));
    let mut events = daemon.stream(COMPLETIONS, &endless(true));
    events.next().unwrap();
    daemon.signal(Signal::SIGTERM);
    eventually("it is stopping", || daemon.log().contains("stopping"));
    let health = daemon.raw(&head("GET", "/health", ""));
    assert_eq!(health.error(), (503, "stopping".into()));
    assert!(health.headers.contains("connection: close"), "{}", health.headers);
    assert_eq!(daemon.get("/orin/v1/status").json()["state"]["name"], "stopping");
    assert_eq!(daemon.post(COMPLETIONS, &endless(false)).error(), (503, "stopping".into()));
    assert_eq!(daemon.post(MODELS, &json!({"model": MODEL})).error(), (503, "stopping".into()));
    // The request in flight continues until its client disconnects.
    events.next().unwrap();
    drop(events);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
}

#[test]
fn a_model_larger_than_memory_is_refused_with_the_sum() {
    let daemon = Daemon::start(SMALL);
    let before = daemon.get("/orin/v1/status").json();
    let refused =
        daemon.post(MODELS, &json!({"model": MODEL, "slots": 256, "context": 16_000_000}));
    let message = refused.message();
    assert!(message.contains("256 slots x 16000000 tokens"), "{message}");
    assert!(message.contains("needed") && message.contains("available"), "{message}");
    assert_eq!(refused.error(), (507, "out_of_memory".into()));

    let after = daemon.get("/orin/v1/status").json();
    assert_eq!(after["state"]["name"], "ready");
    assert_eq!(after["model"], before["model"]);
    let peak = |status: &Value| status["memory"]["peak_resident"].as_u64().unwrap();
    assert!(peak(&after) < peak(&before) + (64 << 20), "{before} {after}");
    assert_eq!(daemon.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1})).status, 200);
}

#[test]
fn models_are_loaded_and_unloaded() {
    let daemon = Daemon::launch(SMALL);
    assert_eq!(daemon.get("/health").error(), (503, "no_model".into()));
    assert_eq!(daemon.post(COMPLETIONS, &json!({"prompt": "a"})).error(), (503, "no_model".into()));
    assert_eq!(
        daemon.post(MODELS, &json!({"model": "/nowhere.gguf"})).error(),
        (404, "model_not_found".into())
    );
    assert_eq!(daemon.get("/health").error(), (503, "load_failed".into()));
    assert_eq!(
        daemon.get("/orin/v1/status").json()["state"]["last_error"]["code"],
        "model_not_found"
    );

    let events: Vec<_> = daemon.stream(MODELS, &json!({"model": MODEL, "slots": 2})).collect();
    let (last, progress) = events.split_last().unwrap();
    assert!(progress.iter().all(|(name, _)| name == "progress") && !progress.is_empty());
    let model: Value = serde_json::from_str(&last.1).unwrap();
    assert_eq!(
        (last.0.as_str(), &model["slots"], &model["context"]),
        ("result", &json!(2), &json!(256))
    );
    assert_eq!(daemon.get("/health").status, 200);

    let delete = head("DELETE", MODELS, "connection: close\r\n");
    assert_eq!(daemon.raw(&delete).json(), json!({"unloaded": true}));
    assert_eq!(daemon.raw(&delete).json(), json!({"unloaded": false}));
    assert_eq!(daemon.get("/health").error(), (503, "no_model".into()));

    // Status shows a failed load until the next load or unload.
    let last_error = || daemon.get("/orin/v1/status").json()["state"]["last_error"].clone();
    daemon.post(MODELS, &json!({"model": "/nowhere.gguf"}));
    assert_eq!(last_error()["code"], "model_not_found");
    daemon.raw(&delete);
    assert_eq!(last_error(), Value::Null);
    // A failed load does not change the load time of the model that stays.
    daemon.stream(MODELS, &json!({"model": MODEL})).for_each(drop);
    let created = || daemon.get("/v1/models").json()["data"][0]["created"].clone();
    let before = created();
    daemon.post(MODELS, &json!({"model": "/nowhere.gguf"}));
    assert_eq!(created(), before);
    daemon.raw(&delete);
    assert_eq!(last_error(), Value::Null);
}

/// Forwards requests to the daemon, and its answers with the bench's report marked INVALID.
fn relay(listener: &UnixListener, daemon: &Daemon) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let (mut request, mut buffer) = (String::new(), [0; 4096]);
        loop {
            let read = stream.read(&mut buffer).unwrap();
            request.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
            let Some((head, body)) = request.split_once("\r\n\r\n") else {
                if read == 0 {
                    return;
                }
                continue;
            };
            let length = head.to_lowercase();
            let length = length.split_once("content-length: ").map_or("0", |(_, rest)| rest);
            if body.len() >= length.lines().next().unwrap().parse().unwrap() {
                break;
            }
        }
        let answer = daemon.raw(&request.replacen("\r\n", "\r\nconnection: close\r\n", 1));
        let headers = answer.headers.replace("transfer-encoding: chunked\r\n", "");
        let body =
            answer.body.replace("\"invalid\":[]", "\"invalid\":[\"the power mode changed\"]");
        // The first line is the status, in lower case like the header fields.
        let fields = headers.lines().skip(1).filter(|line| !line.starts_with("content-length"));
        let head: String = fields.flat_map(|line| [line, "\r\n"]).collect();
        let (status, length) = (answer.status, body.len());
        let head = format!("HTTP/1.1 {status} \r\n{head}content-length: {length}\r\n\r\n");
        let _ = stream.write_all((head + &body).as_bytes());
    }
}

#[test]
fn an_invalid_bench_has_its_own_exit_code() {
    let daemon = Daemon::start(SMALL);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let run = |socket: &Path| {
        let mut orinctl = command(env!("CARGO_BIN_EXE_orinctl"));
        orinctl.args(["bench", "-p", "8", "-n", "4", "-r", "1", "--json", "--socket"]).arg(socket);
        outcome(&mut orinctl)
    };
    let (code, _, error) = run(&daemon.socket());
    assert_eq!(code, Some(0), "{error}");
    let (code, report, error) = std::thread::scope(|scope| {
        scope.spawn(|| relay(&listener, &daemon));
        let result = run(&socket);
        // A connection without a request ends the relay.
        drop(UnixStream::connect(&socket));
        result
    });
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("the run is INVALID: the power mode changed"), "{error}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["invalid"], json!(["the power mode changed"]));
}

#[test]
fn the_configuration_is_checked_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orind.toml");
    let run = |text: &str, flags: &[&str]| {
        fs::write(&file, text).unwrap();
        outcome(orind().arg("--config").arg(&file).args(flags))
    };
    let (code, _, error) = run("slots = 2\nmodle = 'a'\n", &[]);
    assert_eq!(code, Some(1));
    assert!(error.contains("orind.toml:2: unknown key `modle`; did you mean `model`?"), "{error}");
    let (code, _, error) = run("slots = 2", &["--slots", "0"]);
    assert_eq!((code, error.as_str()), (Some(1), "orind: slots is 0; 1 to 256 are allowed\n"));
    let (code, used, _) = run("slots = 2", &["--check", "--model", MODEL, "--context", "77"]);
    assert_eq!(code, Some(0));
    assert!(used.contains("slots = 2") && used.contains("context = 77"), "{used}");
    assert!(used.contains("The configuration is valid"), "{used}");
    assert!(used.contains("cpu:") && used.contains("for the KV cache"), "{used}");
    // The check refuses the same settings as a load, with the same message.
    let cases: [(&[&str], &str); 4] = [
        (&["--context", "16000000", "--slots", "256"], "256 slots x 16000000 tokens"),
        (&["--context", "9"], "context is 9"),
        (&["--backend", "nv"], "backend nv cannot be used"),
        (&["--cpu-isa", "neon", "--backend", "cpu"], "neon"),
    ];
    for (flags, word) in cases {
        let all = [&["--check", "--model", "synthetic:llama-3.2-1b:q6_k"], flags].concat();
        let (code, _, error) = run("", &all);
        assert!(code == Some(1) && error.contains(word), "{flags:?}: {error}");
    }
    let (code, _, error) = run("model = '/nowhere.gguf'", &["--check"]);
    assert!(code == Some(1) && error.contains("/nowhere.gguf"), "{error}");
    let (code, _, error) = run("", &["--sockte", "x"]);
    assert!(code == Some(2) && error.contains("--socket"), "{error}");
    let (code, help, _) = run("", &["--help"]);
    assert!(code == Some(0) && help.contains("docs/configuration.md"), "{help}");
    let (code, version, _) = run("", &["--version"]);
    assert_eq!((code, version), (Some(0), format!("orind {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn a_private_daemon_ends_with_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut parent = Command::new("sh")
        .arg("-c")
        .args([r#""$@" --exit-with-parent $$ 2>/dev/null & read forever"#, "sh"])
        .args(words(env!("CARGO_BIN_EXE_orind")))
        .arg("--socket")
        .arg(&socket)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("it listens", || UnixStream::connect(&socket).is_ok());
    parent.kill().unwrap();
    parent.wait().unwrap();
    eventually("it is gone", || !socket.exists());

    // The parent ends before the daemon checks for it.
    let late =
        orind().arg("--socket").arg(&socket).args(["--exit-with-parent", "1"]).output().unwrap();
    assert!(late.status.success());
}

#[test]
fn every_route_is_documented() {
    let text = include_str!("../../../docs/api.md");
    for route in api::route::ALL {
        assert!(text.contains(&format!("| [`{route}`]")), "{route}");
    }
}

#[tokio::test]
async fn the_client_speaks_to_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let nobody = Client::new(&socket);
    assert!(matches!(nobody.status().await, Err(client::Error::NotRunning { .. })));
    drop(UnixListener::bind(&socket).unwrap());
    assert!(matches!(nobody.status().await, Err(client::Error::NotRunning { .. })));

    let daemon = Daemon::launch(SMALL);
    let client = Client::new(daemon.socket());
    let request = api::CompletionRequest {
        prompt: api::Prompt::Text("a".into()),
        max_tokens: Some(5),
        ignore_eos: Some(true),
        ..Default::default()
    };
    let error = client.completions(&request).await.err().unwrap();
    assert_eq!(error.code(), Some("no_model"));
    assert!(error.hint().unwrap().contains("orinctl load"));

    let mut progress = 0;
    let load = api::LoadRequest { model: MODEL.into(), ..Default::default() };
    let model = client.load(&load, |_| progress += 1).await.unwrap();
    assert_eq!(model.id, MODEL);
    assert!(progress > 0);
    assert_eq!(client.status().await.unwrap().model, Some(model.clone()));
    assert_eq!(client.models().await.unwrap().loaded, Some(model));

    let mut stream = client.completions(&request).await.unwrap();
    let mut parts = Vec::new();
    while let Some(part) = stream.next().await.unwrap() {
        parts.push(part);
    }
    let last = parts.last().unwrap();
    assert_eq!(last.choices[0].finish_reason.as_deref(), Some("length"));
    assert!(last.timings.unwrap().total_ms > 0.0);
    let hello = api::ChatMessage {
        role: "user".into(),
        content: Some(api::Content::Text("hi".into())),
        ..Default::default()
    };
    let chat = api::ChatRequest {
        messages: vec![hello],
        max_tokens: Some(3),
        ignore_eos: Some(true),
        ..Default::default()
    };
    let mut stream = client.chat(&chat).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().head.object, "chat.completion.chunk");
    drop(stream);

    let error = client.bench::<Value, Value>(&json!({"warmups": 1}), |_| {}).await.err().unwrap();
    assert_eq!(error.code(), Some("invalid_value"));
    assert!(client.unload(None).await.unwrap());
    assert!(!client.unload(None).await.unwrap());
}
