//! Concurrent clients of every dialect, whole and streamed, on two models: each gets the answer that it gets alone.
//! `ORIND_MIXED=CLIENTS:SECONDS` sets their number and the duration.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use orind_testing::daemon::{Answer, Daemon};
use orind_testing::random::Random;
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS};

const OTHER: &str = "synthetic:tiny-qwen3:q8_0";

/// Path and body of a request.
type Asked = (&'static str, Value);

/// Requests of every kind, for both models.
fn catalogue() -> Vec<Asked> {
    let mut all = Vec::new();
    let texts =
        ["once upon a time", "a b c", "1 2 3 4 5 6 7 8 9", "the quick brown fox jumps over it"];
    for (at, text) in texts.into_iter().enumerate() {
        let (seed, warm) = (at as u64, [0.0, 0.8][at % 2]);
        let said = json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": text }]);
        let user = json!([{ "role": "user", "content": text }]);
        let object = json!({ "type": "object", "properties": { "n": { "enum": [1, 2, 3] } }, "required": ["n"] });
        let tool =
            json!({ "type": "function", "function": { "name": "look", "parameters": object } });
        let format =
            json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": object } });
        let options = json!({ "num_predict": 7, "temperature": warm, "seed": seed });
        all.extend([
            (COMPLETIONS, json!({ "prompt": text, "max_tokens": 9, "temperature": warm, "seed": seed })),
            (COMPLETIONS, json!({ "prompt": text, "max_tokens": 6, "seed": seed, "dry_multiplier": 0.8,
                "min_p": 0.05, "n": 2, "logprobs": 1 })),
            (CHAT, json!({ "messages": said, "max_tokens": 8, "temperature": warm, "seed": seed })),
            (CHAT, json!({ "messages": said, "max_tokens": 24, "seed": seed, "response_format": format })),
            (CHAT, json!({ "messages": user, "max_tokens": 40, "seed": seed, "tools": [tool],
                "tool_choice": "required" })),
            ("/v1/responses", json!({ "input": text, "max_output_tokens": 16, "temperature": warm })),
            ("/v1/messages", json!({ "messages": user, "max_tokens": 6, "temperature": 0 })),
            ("/api/generate", json!({ "prompt": text, "options": options })),
            ("/api/chat", json!({ "messages": user, "options": options })),
            ("/tokenize", json!({ "content": text })),
        ]);
    }
    let both = |(path, body): Asked| {
        [None, Some("other")].map(|model: Option<&str>| {
            let mut body = body.clone();
            if let Some(model) = model.or((path != "/tokenize").then_some(super::MODEL)) {
                body["model"] = model.into();
            }
            (path, body)
        })
    };
    let models = all.into_iter().flat_map(both);
    let streamed = |(path, body): Asked| {
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let whole = match path {
            "/api/generate" | "/api/chat" => {
                let mut whole = body;
                whole["stream"] = false.into();
                whole
            }
            _ => body,
        };
        let mut forms = vec![(path, whole)];
        // `/tokenize` has no stream.
        forms.extend((path != "/tokenize").then_some((path, streamed)));
        forms
    };
    models.flat_map(streamed).collect()
}

/// Status and texts of an answer by part, with the finish reason, without ids and times.
fn said(answer: &Answer) -> (u16, BTreeMap<u64, Vec<String>>) {
    let mut words = BTreeMap::new();
    for line in answer.body.lines() {
        let line = line.strip_prefix("data: ").unwrap_or(line);
        if let Ok(value) = serde_json::from_str::<Value>(line) {
            collect(&value, 0, &mut words);
        }
    }
    assert!(!words.is_empty(), "{answer:?}");
    (answer.status, words)
}

/// Collects texts of each part of a stream; the order between parts may vary.
fn collect(value: &Value, part: u64, words: &mut BTreeMap<u64, Vec<String>>) {
    const WORDS: [&str; 12] = [
        "text",
        "content",
        "response",
        "thinking",
        "delta",
        "arguments",
        "partial_json",
        "name",
        "input",
        "finish_reason",
        "stop_reason",
        "done_reason",
    ];
    const NUMBERS: [&str; 2] = ["tokens", "token_logprobs"];
    let part = value["index"].as_u64().unwrap_or(part);
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let nested = value.is_object() || value.is_array();
                if NUMBERS.contains(&key.as_str()) || !nested && WORDS.contains(&key.as_str()) {
                    words.entry(part).or_default().push(format!("{key}={value}"));
                } else {
                    collect(value, part, words);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, part, words)),
        _ => {}
    }
}

#[test]
fn concurrent_clients_of_every_dialect_get_the_answers_of_single_ones() {
    let wanted = std::env::var("ORIND_MIXED").unwrap_or_else(|_| "12:2".into());
    let (clients, seconds) = wanted.split_once(':').unwrap();
    let (clients, seconds): (u64, u64) = (clients.parse().unwrap(), seconds.parse().unwrap());
    let seed = 26;
    println!("{clients} clients for {seconds} s, seed {seed}");
    let daemon = Daemon::start(&format!(
        "slots = 4\ncontext = 512\nprefill_chunk = 16\nqueue_limit = 256\n\
         [[resident]]\nmodel = '{OTHER}'\nname = 'other'\nslots = 3\n"
    ));
    let catalogue = catalogue();
    let ask = |(path, body): &Asked| said(&daemon.post(path, body));
    let alone: Vec<_> = catalogue.iter().map(ask).collect();
    assert!(alone.iter().all(|(status, _)| *status == 200));
    let until = Instant::now() + Duration::from_secs(seconds);
    let asked: usize = thread::scope(|scope| {
        let client = |number: u64| {
            let (catalogue, alone, ask) = (&catalogue, &alone, &ask);
            move || {
                let mut random = Random(seed * 1000 + number);
                let mut asked = 0;
                while Instant::now() < until {
                    let at = random.below(catalogue.len());
                    assert_eq!(
                        ask(&catalogue[at]),
                        alone[at],
                        "client {number}: {:?}",
                        catalogue[at]
                    );
                    asked += 1;
                }
                asked
            }
        };
        let all: Vec<_> = (0..clients).map(|number| scope.spawn(client(number))).collect();
        all.into_iter().map(|client| client.join().unwrap()).sum()
    });
    println!("{asked} requests");
    assert!(asked as u64 >= clients, "{asked} requests");
    let status = daemon.get("/orin/v1/status").json();
    for requests in [&status["requests"], &status["residents"][0]["requests"]] {
        assert_eq!((&requests["failed"], &requests["active"]), (&json!(0), &json!(0)), "{status}");
    }
}
