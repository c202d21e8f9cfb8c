//! Requests of coding agents, recorded from the programs (`tests/clients/record.py`) and repeated on the daemon: none
//! is refused, and a turn evaluates only what it adds to the conversation.

use std::fs;
use std::path::Path;

use orind_testing::daemon::Daemon;
use orind_testing::model_variants::saying;
use serde_json::{Value, json};

const AGENTS: [&str; 3] = ["claude", "codex", "opencode"];
/// Most tokens that the call of a tool and its result may add, beside the cached ones.
const ADDED: u64 = 300;
/// Templates that write tools or instructions near the end of each prompt, which no cached prefix has.
const LATE_TOOLS: [&str; 2] =
    ["mistralai-Mistral-Nemo-Instruct-2407", "CohereForAI-c4ai-command-r-plus-tool_use"];
/// Template that needs variables of its own instead of `tools`.
const UNUSUAL: [&str; 1] = ["fireworks-ai-llama-3-firefunction-v2"];

/// Requests of an agent, path and body, in the order of a conversation.
fn requests(agent: &str) -> Vec<(String, Value)> {
    let path = orind_testing::data(&format!("agents/{agent}.json"));
    let recorded: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let of = |request: &Value| {
        let mut body = resolved(&request["body"], &recorded["stored"]);
        let limit = if body["input"].is_array() { "max_output_tokens" } else { "max_tokens" };
        body[limit] = json!(2);
        body["model"] = json!("");
        (request["path"].as_str().unwrap().to_owned(), body)
    };
    recorded["requests"].as_array().unwrap().iter().map(of).collect()
}

/// A recorded value with the values that it refers to.
fn resolved(value: &Value, stored: &Value) -> Value {
    match value {
        Value::Object(fields) => match fields.get("stored").and_then(Value::as_u64) {
            Some(at) => stored[at as usize].clone(),
            None => fields.iter().map(|(key, v)| (key.clone(), resolved(v, stored))).collect(),
        },
        Value::Array(values) => values.iter().map(|value| resolved(value, stored)).collect(),
        value => value.clone(),
    }
}

/// The same request with two tools and short texts.
fn shortened(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::Array(tools)) = fields.get_mut("tools") {
                tools.truncate(2);
            }
            fields.values_mut().for_each(shortened);
        }
        Value::Array(values) => values.iter_mut().for_each(shortened),
        Value::String(text) => *text = text.chars().take(160).collect(),
        _ => {}
    }
}

/// Number of tokens that a streamed answer evaluated of its prompt.
fn evaluated(answer: &str) -> u64 {
    let events = answer.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let mut usages = events.flat_map(|event| {
        [&event["usage"], &event["response"]["usage"], &event["message"]["usage"]].map(Value::clone)
    });
    let usage = usages.rfind(Value::is_object).unwrap();
    if usage["cache_read_input_tokens"].is_u64() {
        return usage["input_tokens"].as_u64().unwrap();
    }
    let names = [
        ("prompt_tokens", "/prompt_tokens_details/cached_tokens"),
        ("input_tokens", "/input_tokens_details/cached_tokens"),
    ];
    let count =
        |(all, cached): (&str, &str)| Some(usage[all].as_u64()? - usage.pointer(cached)?.as_u64()?);
    names.into_iter().find_map(count).unwrap()
}

/// Published templates by name.
fn templates() -> Value {
    let packed = fs::read(orind_testing::data("templates/published.z")).unwrap();
    let sources = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).unwrap();
    serde_json::from_slice(&sources).unwrap()
}

/// A daemon with a small model that has this template.
fn daemon(dir: &Path, template: &str) -> Daemon {
    let more =
        [("tokenizer.chat_template", template.into()), ("qwen3.context_length", 32768u32.into())];
    let model = saying(&orind_testing::tiny("tiny-qwen3-Q8_0"), dir, &more);
    let settings = "threads = 2\nslots = 2\ncontext = 24576\nbackend = 'cpu'";
    let daemon = Daemon::launch(&format!("model = '{model}'\n{settings}"));
    daemon.until("the model is loaded", |status| status["state"]["name"] == "ready");
    daemon
}

/// Repeats a conversation. Returns refusals, and the tokens that each request evaluated.
fn conversation(daemon: &Daemon, agent: &str, short: bool) -> Result<Vec<u64>, String> {
    let mut tokens = Vec::new();
    for (at, (path, mut body)) in requests(agent).into_iter().enumerate() {
        if short {
            shortened(&mut body);
        }
        let answer = daemon.post(&path, &body);
        if answer.status != 200 {
            return Err(format!("{agent}, request {at}: {} {}", answer.status, answer.body));
        }
        tokens.push(evaluated(&answer.body));
    }
    Ok(tokens)
}

/// Tokens that the second and the third turn of a conversation evaluated.
fn turns(agent: &str, tokens: &[u64]) -> [u64; 2] {
    // The first request of opencode is for a title.
    let first = usize::from(agent == "opencode");
    [tokens[first + 1], tokens[first + 2]]
}

#[test]
fn whole_requests_are_served_and_turns_evaluate_what_they_add() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path(), templates()["Qwen-Qwen3-0.6B"].as_str().unwrap());
    for agent in AGENTS {
        let tokens = conversation(&daemon, agent, false).unwrap();
        let first = tokens[usize::from(agent == "opencode")];
        assert!(first > 5000, "{agent}: a first prompt of {first} tokens");
        assert!(turns(agent, &tokens).iter().all(|n| *n < ADDED), "{agent}: {tokens:?}");
    }
}

/// Repeats shortened conversations with templates that differ in the roles, orders and tools that they accept.
fn short_requests_are_served(names: &[&str]) {
    let sources = templates();
    let mut wrong = Vec::new();
    for name in names {
        let dir = tempfile::tempdir().unwrap();
        let daemon = daemon(dir.path(), sources[name].as_str().unwrap());
        for agent in AGENTS {
            match conversation(&daemon, agent, true) {
                Ok(_) if LATE_TOOLS.contains(name) => {}
                // The turns of some templates have many control tokens, which the small vocabulary spells out.
                Ok(tokens) if turns(agent, &tokens).iter().all(|n| *n < ADDED + 60) => {}
                other => wrong.push(format!("{name}: {agent}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn short_requests_are_served_by_templates_that_refuse_roles() {
    short_requests_are_served(&[
        "google-gemma-2-2b-it",
        "Mistral-Small-3.2-24B-Instruct-2506",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    ]);
}

#[test]
#[ignore = "nightly"]
fn nightly_short_requests_are_served_by_every_published_template() {
    let sources = templates();
    let names = sources.as_object().unwrap().keys().map(String::as_str);
    short_requests_are_served(&names.filter(|name| !UNUSUAL.contains(name)).collect::<Vec<_>>());
}
