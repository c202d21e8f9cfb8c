//! Limits of grammars: hostile ones are refused in bounded time and memory, and each answer's process
//! ends with it.

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orind_testing::daemon::{Daemon, eventually, post};
use orind_testing::random::Random;
use serde_json::{Map, Value, json};

const CHAT: &str = "/v1/chat/completions";
const SETTINGS: &str = "slots = 4";

fn ask(format: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 24});
    for (key, value) in format.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn schema(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
}

/// Processes of grammars below a daemon: the worker and those of answers.
fn processes(daemon: &Daemon) -> Vec<i32> {
    let parent = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let all = fs::read_dir("/proc").unwrap();
    let all: Vec<i32> =
        all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    let children = |of: i32| all.iter().copied().filter(move |pid| parent(*pid) == Some(of));
    let workers: Vec<i32> = children(daemon.pid()).collect();
    workers.iter().flat_map(|worker| std::iter::once(*worker).chain(children(*worker))).collect()
}

/// Resident memory of a process in MiB.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Schemas and grammars that took minutes or gigabytes, or made llguidance panic.
fn hostile() -> Vec<Value> {
    let pattern = |i: u8| format!(".*{}.{{{}}}x.*", char::from(b'a' + i), i * 7 + 3);
    let patterns: Vec<Value> =
        (0..20).map(|i| json!({"type": "string", "pattern": pattern(i)})).collect();
    let primes = [7919, 7907, 7901, 7883].map(|prime| json!({"multipleOf": prime}));
    let later = json!({"anyOf": [{"type": "string", "maxLength": 3}, {"allOf": patterns}]});
    let mut deep = json!({"type": "string"});
    for _ in 0..200 {
        deep = json!({"items": deep});
    }
    let joined: Vec<String> = (0..12).map(|i| format!("/{}/", pattern(i))).collect();
    vec![
        schema(&json!({"allOf": patterns})),
        schema(&json!({"type": "object", "properties": {"a": {"type": "string"}, "b": later},
            "required": ["a", "b"]})),
        schema(&json!({"type": "integer", "allOf": primes})),
        schema(&json!({"type": "number", "multipleOf": 1_000_000_007})),
        schema(&json!({"type": "number", "multipleOf": 0.000_000_000_7})),
        schema(&json!({"type": "integer", "multipleOf": 4_294_967_291_u64})),
        schema(&deep),
        json!({"grammar": format!("start: {}", joined.join(" & "))}),
        json!({"grammar": format!("start: A\nA: {}", joined.join(" & "))}),
    ]
}

#[test]
fn hostile_grammars_fail_within_their_limits() {
    let daemon = Daemon::start(SETTINGS);
    let fine = schema(&json!({"type": "object", "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"], "additionalProperties": false}));
    assert_eq!(daemon.post(CHAT, &ask(&fine)).status, 200);
    let before = resident(daemon.pid());
    for format in hostile() {
        let begin = Instant::now();
        let answer = daemon.post(CHAT, &ask(&format));
        let shown: String = format.to_string().chars().take(100).collect();
        assert_eq!(answer.error(), (400, "grammar_failed".into()), "{shown}");
        // The limit is 1 s of processor time; this machine may be busy.
        assert!(begin.elapsed() < Duration::from_secs(20), "{shown}: {:?}", begin.elapsed());
    }
    assert!(resident(daemon.pid()) < before + 32, "the daemon grew by more than 32 MiB");
    eventually("the processes of failed grammars end", || processes(&daemon).len() == 1);
    let answer = daemon.post(CHAT, &ask(&fine)).json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    assert!([json!({"a": 1}), json!({"a": 2})].contains(&value), "{value}");
}

#[test]
fn a_client_that_leaves_ends_the_process_of_its_grammar() {
    let daemon = Daemon::start(SETTINGS);
    let format = json!({"grammar": "start: /[a-z]{1,100000}/"});
    let mut body = ask(&format);
    body["max_tokens"] = json!(100_000);
    body["stream"] = json!(true);
    let mut stream = daemon.connect();
    stream.write_all(post(CHAT, &body.to_string()).as_bytes()).unwrap();
    eventually("the answer has a process", || processes(&daemon).len() == 2);
    drop(stream);
    eventually("it ends with its client", || processes(&daemon).len() == 1);
}

#[test]
fn several_choices_and_a_killed_worker_are_served() {
    let daemon = Daemon::start(SETTINGS);
    let mut body = ask(&schema(&json!({"type": "integer", "minimum": 10, "maximum": 99})));
    (body["n"], body["temperature"]) = (json!(3), json!(1));
    for _ in 0..2 {
        let answer = daemon.post(CHAT, &body).json();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 3);
        for choice in choices {
            let text = choice["message"]["content"].as_str().unwrap();
            assert!((10..=99).contains(&text.trim().parse::<i32>().unwrap()), "{text}");
        }
        eventually("only the worker is left", || processes(&daemon).len() == 1);
        kill(Pid::from_raw(processes(&daemon)[0]), Signal::SIGKILL).unwrap();
    }
}

/// A schema that combines keywords and sizes at random, valid or not.
fn random_schema(random: &mut Random, depth: usize) -> Value {
    let size =
        |random: &mut Random| json!(random.pick(&[0, 1, 2, 7, 100, 1 << 16, 1 << 31, u64::MAX]));
    let inner = |random: &mut Random| match depth {
        0 => {
            [json!(true), json!({"$ref": "#"}), json!({"type": "integer"})][random.below(3)].clone()
        }
        _ => random_schema(random, depth - 1),
    };
    let list = |random: &mut Random| {
        let count = 1 + random.below(4);
        Value::from_iter((0..count).map(|_| inner(random)))
    };
    let patterns = ["a", "^a*$", ".*b.{40}c", "(a|b)*a(a|b){99}", "(x{99}){99}", "(", "\\p{L}+"];
    let mut map = Map::new();
    for _ in 0..1 + random.below(3) {
        let (key, value) = match random.below(20) {
            0 => ("type", json!(random.pick(&["string", "integer", "number", "object", "array"]))),
            1 => ("type", json!(["string", "null", "array"])),
            2 => ("pattern", json!(random.pick(&patterns))),
            3 => ("multipleOf", json!(random.pick(&[0.1, 3.0, 7919.0, 1e9, 1e-9, 0.0, -1.0]))),
            4 => ("minimum", json!(random.pick(&[-1e18, -0.5, 0.0, 1e18]))),
            5 => ("maximum", json!(random.pick(&[-1e18, 0.5, 99.0, 1e300]))),
            6 => (random.pick(&["minLength", "maxLength"]), size(random)),
            7 => (random.pick(&["minItems", "maxItems"]), size(random)),
            8 => (random.pick(&["minProperties", "maxProperties"]), size(random)),
            9 => (random.pick(&["allOf", "anyOf", "oneOf"]), list(random)),
            10 => ("items", inner(random)),
            11 => ("prefixItems", list(random)),
            12 => ("properties", json!({"a": inner(random), "b": inner(random)})),
            13 => ("patternProperties", json!({random.pick(&patterns): inner(random)})),
            14 => ("additionalProperties", inner(random)),
            15 => ("required", json!(["a", "c"])),
            16 => ("enum", json!([1, "a", null, [1, [2]], {"a": 1.5}])),
            17 => ("format", json!(random.pick(&["date-time", "email", "uri", "uuid", "ipv4"]))),
            18 => ("$ref", json!(random.pick(&["#", "#/properties/a", "#/x", "http://x/y"]))),
            _ => ("const", json!({"a": [1, 2]})),
        };
        map.insert(key.into(), value);
    }
    Value::Object(map)
}

/// Each schema constrains an answer or is refused, in bounded time, and leaves no memory behind.
fn random_schemas(count: usize) {
    let daemon = Daemon::start(SETTINGS);
    let mut random = Random(48);
    let (mut before, mut served) = (0, 0);
    for at in 0..count {
        let depth = random.below(5);
        let shape = random_schema(&mut random, depth);
        let begin = Instant::now();
        let mut body = ask(&schema(&shape));
        body["max_tokens"] = json!(8);
        let answer = daemon.post(CHAT, &body);
        served += usize::from(answer.status == 200);
        assert!(
            answer.status == 200
                || [(400, "grammar_failed".into()), (400, "invalid_value".into())]
                    .contains(&answer.error()),
            "{shape}: {answer:?}"
        );
        assert!(begin.elapsed() < Duration::from_secs(20), "{shape}: {:?}", begin.elapsed());
        if at == count / 10 {
            before = resident(daemon.pid());
        }
    }
    assert!(served > count / 10, "{served} of {count} schemas are supported");
    assert!(resident(daemon.pid()) < before + 64, "the daemon grew by more than 64 MiB");
    eventually("the processes of all answers end", || processes(&daemon).len() <= 1);
}

#[test]
fn random_schemas_are_served_or_refused() {
    random_schemas(60);
}

#[test]
#[ignore = "nightly"]
fn nightly_random_schemas_are_served_or_refused() {
    random_schemas(20_000);
}
