//! Answers compared with those recorded from an earlier build: HTTP requests in order
//! (`tests/data/recorded/http.jsonl`), and commands with TOML files (`toml.jsonl`); one exchange per line.
//! A new exchange is a line without `answer`. `ORIND_RECORD=path/to/orinctl cargo test --test host recorded`
//! records the answers of that program. `ORIND_PROGRAM`, a command line, compares those of another program, such as a
//! build for another processor under emulation. The device is the CPU with its best instruction set; all sets give the
//! same texts. Values that vary are normalised on both sides:
//!
//! - *by type*: a value that depends on a clock, a process, a build or the machine ([`BY_TYPE`]) is replaced by
//!   the name of its type, and so is the machine's state;
//! - *logarithm*: log-probabilities may differ by [`LOGARITHM`], since the machine's library computes them;
//! - *progress*: progress events are reduced to their kinds, each once;
//! - *report*: a bench's report is reduced to names and types, without [`OF_THE_MACHINE`];
//! - *metrics*: names and labels, sorted, without values and without metrics of the machine;
//! - *folder*: the test's folder is replaced by `<dir>`.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use orind_testing::daemon::{Answer, Daemon, head};
use orind_testing::program::words;
use serde_json::{Map, Value, json};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Rule *by type*.
const BY_TYPE: [&str; 18] = [
    "activations",
    "available",
    "created",
    "description",
    "device",
    "file",
    "first_token_ms",
    "load_s",
    "path",
    "peak_resident",
    "pid",
    "queued_ms",
    "resident",
    "steps",
    "system_fingerprint",
    "total_ms",
    "uptime_s",
    "version",
];

/// Rule *logarithm*.
const LOGARITHM: f64 = 1e-4;

/// Settings of the daemon.
const SETTINGS: &str = "\
backend = 'cpu'
threads = 1
slots = 2
context = 256
prefill_chunk = 16
max_body_bytes = 4096
ioctl_filter = 'off'
";

/// Command line of the program under test, and true if its answers are recorded.
pub(super) fn program() -> (Vec<OsString>, bool) {
    if let Some(path) = env::var_os("ORIND_RECORD") {
        return (words(Path::new(ROOT).join(path)), true);
    }
    let other = env::var("ORIND_PROGRAM").ok();
    let other = other.map(|line| line.split_whitespace().map(OsString::from).collect());
    (other.unwrap_or_else(|| words(env!("CARGO_BIN_EXE_orinctl"))), false)
}

fn command(program: &[OsString]) -> Command {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    command
}

/// Repeats the exchanges of a file, and compares or records the answers.
fn replay(file: &str, mut ask: impl FnMut(&[OsString], &Value) -> Value) {
    let (program, record) = program();
    let path = Path::new(ROOT).join("tests/data/recorded").join(file);
    let mut differences = String::new();
    let mut recorded = String::new();
    for line in fs::read_to_string(&path).unwrap().lines() {
        let mut exchange: Map<String, Value> = serde_json::from_str(line).unwrap();
        let answer = ask(&program, &exchange["request"]);
        if record {
            exchange.insert("answer".into(), answer);
            writeln!(recorded, "{}", Value::Object(exchange)).unwrap();
        } else {
            let before = exchange.get("answer").unwrap_or(&Value::Null);
            if let Some(difference) = difference("answer", before, &answer) {
                writeln!(differences, "{}: {difference}", exchange["name"]).unwrap();
            }
        }
    }
    if record {
        fs::write(&path, recorded).unwrap();
    }
    assert_eq!(differences, "", "{file} holds other answers");
}

/// First difference between two answers.
fn difference(at: &str, before: &Value, now: &Value) -> Option<String> {
    let different = || Some(format!("{at} was {before} and is {now}"));
    match (before, now) {
        (Value::Object(a), Value::Object(b)) => {
            let (a_keys, b_keys): (Vec<_>, Vec<_>) = (a.keys().collect(), b.keys().collect());
            if a_keys != b_keys {
                return Some(format!("{at} had {a_keys:?} and has {b_keys:?}"));
            }
            a.iter().find_map(|(key, a)| difference(&format!("{at}.{key}"), a, &b[key]))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs.into_iter().find_map(|(i, (a, b))| difference(&format!("{at}[{i}]"), a, b))
        }
        (Value::Number(a), Value::Number(b)) if at.contains("logprob") => {
            let apart = (a.as_f64().unwrap() - b.as_f64().unwrap()).abs();
            if apart <= LOGARITHM { None } else { different() }
        }
        _ if before == now => None,
        _ => different(),
    }
}

fn type_of(value: &Value) -> Value {
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("<{name}>").into()
}

/// Applies the rules *by type* and *folder* to an answer.
fn lasting(value: &mut Value, dir: &str) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let of_an_answer =
                    key == "id" && value.as_str().is_some_and(|id| id.contains("cmpl-"));
                let single = !value.is_array() && !value.is_object();
                let by_type = single && (of_an_answer || BY_TYPE.contains(&key.as_str()));
                if by_type || key == "machine" {
                    *value = type_of(value);
                } else {
                    lasting(value, dir);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| lasting(value, dir)),
        Value::String(text) => *text = text.replace(dir, "<dir>"),
        _ => {}
    }
}

/// Fields of a report that depend on the machine or the build.
const OF_THE_MACHINE: [&str; 6] =
    ["commit", "conditions", "invalid", "joules_per_token", "machine", "provenance"];

/// Names and types of a report's fields; lists have those of their first entry.
fn outline(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !OF_THE_MACHINE.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), outline(value)))
            .collect(),
        Value::Array(values) => values.iter().take(1).map(outline).collect(),
        _ => type_of(value),
    }
}

/// Events of a stream: name and data.
fn events(body: &str, path: &str, dir: &str) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    for event in body.split("\n\n").filter(|event| !event.is_empty()) {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        let Some(data) = field("data: ") else { continue };
        let mut data = serde_json::from_str(data).unwrap_or_else(|_| json!(data));
        let name = field("event: ").unwrap_or_default();
        lasting(&mut data, dir);
        if name == "progress" {
            // The first use of a synthetic model creates it.
            if data["phase"] == "synthesise" {
                continue;
            }
            data = json!({"phase": data["phase"], "fields": outline(&data)});
        } else if name == "result" && path == "/orin/v1/bench" {
            data = outline(&data);
        }
        let event = json!([name, data]);
        if name != "progress" || !events.contains(&event) {
            events.push(event);
        }
    }
    // Answers to several prompts are interleaved in any order.
    events.sort_by_key(|event| event[1]["choices"][0]["index"].as_u64().unwrap_or(u64::MAX));
    events
}

fn metrics(body: &str) -> Vec<Value> {
    let of_the_machine = |line: &&str| !line.contains("orind_machine_");
    let lines = body.lines().filter(of_the_machine).map(|line| match line.strip_prefix('#') {
        Some(_) => line,
        None if line.starts_with("orind_build_info") => "orind_build_info",
        None => line.rsplit_once(' ').unwrap().0,
    });
    let mut lines: Vec<&str> = lines.collect();
    // Metric families have a fixed order, their labels do not.
    lines.sort_unstable();
    lines.into_iter().map(Value::from).collect()
}

fn bytes(request: &Value) -> String {
    let text = |name: &str| request[name].as_str();
    if let Some(raw) = text("raw") {
        return raw.into();
    }
    let mut headers = "connection: close\r\n".to_owned();
    let body = match (&request["body"], text("text")) {
        (Value::Null, None) => String::new(),
        (Value::Null, Some(text)) => text.into(),
        (body, _) => body.to_string(),
    };
    if !body.is_empty() {
        let kind = text("type").unwrap_or("application/json");
        write!(headers, "content-type: {kind}\r\ncontent-length: {}\r\n", body.len()).unwrap();
    }
    head(text("method").unwrap(), text("path").unwrap(), &headers) + &body
}

fn answer(request: &Value, answer: &Answer, dir: &str) -> Value {
    let path = request["path"].as_str().unwrap_or_default();
    let header = |name: &str| {
        let line = answer.headers.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.map(Value::from)
    };
    let mut headers = Map::new();
    for name in ["content-type", "cache-control", "allow"] {
        headers.extend(header(name).map(|value| (name.to_owned(), value)));
    }
    let kind = headers.get("content-type").and_then(Value::as_str).unwrap_or_default();
    let body = if kind.starts_with("text/event-stream") {
        events(&answer.body, path, dir).into()
    } else if kind.starts_with("application/openmetrics-text") {
        metrics(&answer.body).into()
    } else {
        let mut body = serde_json::from_str(&answer.body).unwrap_or_else(|_| json!(answer.body));
        lasting(&mut body, dir);
        body
    };
    json!({"status": answer.status, "headers": headers, "body": body})
}

#[test]
fn http_answers_match_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("models");
    fs::create_dir(&models).unwrap();
    let model = Path::new(ROOT).join("tests/data/models/tiny-llama-Q8_0.gguf");
    symlink(model, models.join("tiny-llama-Q8_0.gguf")).unwrap();
    let (models, tune) = (models.display(), dir.path().join("tune"));
    let settings = format!("{SETTINGS}models_dir = '{models}'\ntune_dir = '{}'\n", tune.display());
    let mut daemon = None;
    replay("http.jsonl", |program, request| {
        let daemon = daemon.get_or_insert_with(|| {
            let mut command = command(program);
            let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache");
            command.arg("daemon").env("XDG_CACHE_HOME", cache);
            Daemon::launch_with(command, &settings)
        });
        answer(request, &daemon.raw(&bytes(request)), &dir.path().display().to_string())
    });
}

#[test]
fn toml_answers_match_the_record() {
    replay("toml.jsonl", |program, request| {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().display().to_string();
        for (name, text) in request["files"].as_object().unwrap() {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file(text.as_str().unwrap())).unwrap();
        }
        let arguments = request["arguments"].as_array().unwrap().iter();
        let arguments = arguments.map(|a| a.as_str().unwrap().replace("<dir>", &folder));
        let mut command = command(program);
        command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG");
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(&folder, "<dir>");
        json!({
            "code": output.status.code(),
            "stdout": text(output.stdout),
            "stderr": text(output.stderr),
        })
    });
}

/// Content of a file: the text in the request, or after `@` a file of this repository, after `@#` that file with all
/// keys uncommented.
fn file(text: &str) -> String {
    let read = |path| fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
    match (text.strip_prefix("@#"), text.strip_prefix('@')) {
        (Some(path), _) => {
            let lines = read(path);
            let keys = lines
                .lines()
                .map(|line| line.strip_prefix('#').filter(|key| !key.starts_with(' ')));
            keys.zip(lines.lines())
                .map(|(key, line)| key.unwrap_or(line).to_owned() + "\n")
                .collect()
        }
        (None, Some(path)) => read(path),
        (None, None) => text.into(),
    }
}
