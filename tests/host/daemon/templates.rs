//! Conversations with published chat templates: long ones, tools for a template that knows none, and prefixes.

use std::time::{Duration, Instant};

use model::gguf::Value as Metadata;
use orind_testing::daemon::{Answer, Daemon};
use orind_testing::model_variants::saying;
use orind_testing::templates::published;
use orind_testing::tiny;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::CHAT;

/// Time for a prompt of 1,000 messages, template and tokens. It allows for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A daemon whose model has another chat template, and a context for long conversations.
fn with_template(source: &str, settings: &str) -> (Daemon, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let more = [
        ("tokenizer.chat_template", Metadata::from(source)),
        ("llama.context_length", Metadata::U32(1 << 18)),
    ];
    let file = saying(&tiny("tiny-llama-Q8_0"), dir.path(), &more);
    let daemon = Daemon::launch(&format!("model = '{file}'\nthreads = 2\nslots = 1\n{settings}"));
    daemon.until("it serves", |status| status["state"]["name"] == "ready");
    (daemon, dir)
}

/// Questions and answers in turns, with a question at the end.
fn talk(questions: usize) -> Vec<Value> {
    let turn = |at: usize| {
        [
            json!({"role": "user", "content": format!("q{at}")}),
            json!({"role": "assistant", "content": format!("a{at}")}),
        ]
    };
    (0..questions).flat_map(turn).take(2 * questions - 1).collect()
}

fn ok(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

#[test]
fn a_thousand_messages_render_in_time() {
    for name in [
        "Qwen-Qwen3-0.6B",
        "Qwen3-Coder",
        "google-gemma-4-31B-it",
        "meta-llama-Llama-3.3-70B-Instruct",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "openai-gpt-oss-120b",
        "deepseek-ai-DeepSeek-V3.1",
        "HuggingFaceTB-SmolLM3-3B",
    ] {
        let (daemon, _dir) = with_template(&published(name), "context = 131072");
        let messages = talk(500);
        let begun = Instant::now();
        let prompt = ok(&daemon.post("/apply-template", &json!({"messages": messages})));
        let prompt = prompt["prompt"].as_str().unwrap();
        assert!(prompt.contains("q0") && prompt.contains("a498"), "{name}");
        let count = json!({"messages": messages});
        let count = ok(&daemon.post("/v1/messages/count_tokens", &count));
        assert!(count["input_tokens"].as_u64().unwrap() > 3000, "{name}: {count}");
        assert!(begun.elapsed() < PATIENCE, "{name}: {:?}", begun.elapsed());
    }
}

/// A template that searches backwards in each turn.
#[test]
fn a_conversation_with_gemma_4_goes_on_after_72_and_300_questions() {
    for name in ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"] {
        let (daemon, _dir) = with_template(&published(name), "context = 16384");
        for questions in [71, 72, 73] {
            let request = json!({"messages": talk(questions), "max_tokens": 1});
            ok(&daemon.post(CHAT, &request));
        }
        let request = json!({"messages": talk(300)});
        let prompt = ok(&daemon.post("/apply-template", &request));
        assert!(prompt["prompt"].as_str().unwrap().contains("q299"));
    }
}

fn weather() -> Value {
    json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
        "additionalProperties": false})
}

const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                     {% if add_generation_prompt %}<assistant>{% endif %}";

/// A request with tools, for a template that knows none, is answered with text or a call in every dialect, whole and
/// as a stream; a forced call is a call.
#[test]
fn tools_work_with_a_template_that_knows_none() {
    let (daemon, _dir) = with_template(PLAIN, "context = 1024\nprefill_chunk = 64");
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let function = json!({"name": "weather", "description": "d", "parameters": weather()});
    let chat = json!([{"type": "function", "function": function}]);
    let flat = json!([{"type": "function", "name": "weather", "parameters": weather()}]);
    let anthropic = json!([{"name": "weather", "input_schema": weather()}]);
    for forced in [false, true] {
        for stream in [false, true] {
            let openai = if forced { "required" } else { "auto" };
            let kind = json!({"type": if forced { "any" } else { "auto" }});
            let limit = if forced { 200 } else { 8 };
            let mut requests = vec![
                (
                    CHAT,
                    json!({"messages": hi, "tools": chat, "tool_choice": openai, "max_tokens": limit}),
                ),
                (
                    "/v1/responses",
                    json!({"input": "Hi", "tools": flat, "tool_choice": openai, "max_output_tokens": limit}),
                ),
                (
                    "/v1/messages",
                    json!({"messages": hi, "tools": anthropic, "tool_choice": kind, "max_tokens": limit}),
                ),
            ];
            if !forced {
                requests.push((
                    "/api/chat",
                    json!({"messages": hi, "tools": chat, "options": {"num_predict": 8}}),
                ));
            }
            for (route, mut request) in requests {
                request["stream"] = stream.into();
                let answer = daemon.post(route, &request);
                assert_eq!(answer.status, 200, "{route}: {}", answer.body);
                let header = "x-orind-tool-format: generic\r\n";
                assert!(answer.headers.contains(header), "{route}: {}", answer.headers);
                if forced {
                    // A stream has the arguments in pieces.
                    let called =
                        stream || ["Rome", "Oslo"].iter().any(|city| answer.body.contains(city));
                    assert!(called && answer.body.contains("weather"), "{route}: {}", answer.body);
                }
            }
        }
    }
    // A result goes back, and the answer may be text again.
    let call = json!({"id": "abcdefghi", "type": "function",
        "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}});
    let history = json!([hi[0], {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "20"}]);
    ok(&daemon.post(CHAT, &json!({"messages": history, "tools": chat, "max_tokens": 4})));
    let prompt = ok(&daemon.post("/apply-template", &json!({"messages": history, "tools": chat})));
    let prompt = prompt["prompt"].as_str().unwrap();
    for part in ["\"name\": \"weather\"", "Rome", "<tool_response>\n20\n</tool_response>"] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
}

/// A reminder that differs in each turn costs the tokens from it on, and `usage` and the log show where.
#[test]
fn usage_and_the_log_show_where_a_prompt_diverged() {
    let alternating = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
        {{ raise_exception('System message must be at the beginning.') }}{% endif %}\
        <{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
    let (daemon, _dir) = with_template(alternating, "context = 4096\nlog = 'debug'");
    let long = "The quick brown fox jumps over the lazy dog. ".repeat(10);
    let ask = |reminder: &str, route: &str| {
        let messages = json!([{"role": "user", "content": long},
            {"role": "assistant", "content": long},
            {"role": "user", "content": "Go on"}, {"role": "system", "content": reminder}]);
        let request = json!({"messages": messages, "system": "Be kind", "max_tokens": 1});
        let mut usage = ok(&daemon.post(route, &request))["usage"].take();
        if route == CHAT {
            usage = json!({"input_tokens": usage["prompt_tokens"],
                "cache_read_input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
                "diverged_at": usage["prompt_tokens_details"]["diverged_at"]});
        }
        usage
    };
    let first = ask("100 tokens left", CHAT);
    assert_eq!(first["diverged_at"], Value::Null, "{first}");
    let same = ask("100 tokens left", CHAT);
    assert_eq!(same["diverged_at"], Value::Null, "{same}");
    let second = ask("90 tokens left", CHAT);
    let (at, whole) =
        (second["diverged_at"].as_u64().unwrap(), second["input_tokens"].as_u64().unwrap());
    let cached = second["cache_read_input_tokens"].as_u64().unwrap();
    assert!(at < whole && whole - at < 40 && cached <= at && at - cached < 40, "{second}");
    let log = daemon.log();
    let line = log.lines().rfind(|line| line.contains("prefix diverged")).unwrap();
    assert!(line.contains(&format!("token={at}")) && line.contains("tokens left"), "{line}");
    let anthropic = ask("80 tokens left", "/v1/messages");
    assert!(anthropic["diverged_at"].is_u64(), "{anthropic}");
}
