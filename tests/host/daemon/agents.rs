//! First requests of agents and SDKs with their default settings: hints, tools that cannot run here, limits, prefixes.

use orind_testing::daemon::{Answer, Daemon};
use serde_json::{Value, json};

use super::CHAT;

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const ROOM: &str = "slots = 1\ncontext = 1024\nprefill_chunk = 64";

fn hi() -> Value {
    json!([{"role": "user", "content": "Hi"}])
}

fn with(mut request: Value, more: &Value) -> Value {
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn ok(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

/// A request as Claude Code sends it, with a billing header that differs each time.
fn claude_code(billing: &str) -> Value {
    let function = |name: &str| {
        json!({"name": name, "description": "d", "eager_input_streaming": true,
            "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}})
    };
    json!({
        "model": "", "max_tokens": 32000, "temperature": 0, "stream": true,
        "system": [
            {"type": "text", "text": format!("x-anthropic-billing-header: cc_version=2.1; cch={billing};")},
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>r</system-reminder>"},
            {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}],
        "tools": [function("Read"), {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "u"}, "betas": ["context-management-2025-06-27"],
    })
}

#[test]
fn claude_code_is_answered_and_finds_its_prefix() {
    let daemon = Daemon::start(ROOM);
    let ask = |billing: &str| {
        let answer = daemon.post("/v1/messages?beta=true", &claude_code(billing));
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.headers.contains("x-orind-skipped-tools: web_search"), "{}", answer.headers);
        let last = answer.body.lines().rev().find(|line| line.contains("\"message_delta\""));
        let data: Value = serde_json::from_str(&last.unwrap()["data: ".len()..]).unwrap();
        assert!(data["delta"]["stop_reason"].is_string(), "{data}");
        data["usage"].clone()
    };
    ask("aaaaa");
    let usage = ask("bbbbb");
    assert!(usage["input_tokens"].as_u64().unwrap() <= 1, "all but the last token: {usage}");
    assert!(usage["cache_read_input_tokens"].as_u64().unwrap() > 20, "{usage}");

    let count = |settings: &str| {
        let daemon = Daemon::start(&format!("{ROOM}\n{settings}"));
        let mut request = claude_code("x");
        request["tools"] = json!([]);
        ok(&daemon.post("/v1/messages/count_tokens", &request))["input_tokens"].as_u64().unwrap()
    };
    assert!(count("billing_header = 'keep'") > count("") + 10);
}

/// A request as Codex sends it.
#[test]
fn codex_is_answered() {
    let daemon = Daemon::start(ROOM);
    let function = |name: &str| {
        json!({"type": "function", "name": name, "description": "d", "strict": false,
            "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}})
    };
    let message = |role: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]});
    let request = json!({
        "model": "", "instructions": "You are Codex.", "stream": true, "store": false,
        "input": [message("developer", "permissions"), message("user", "context"), message("user", "Hi"),
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
            {"type": "reasoning", "summary": [], "encrypted_content": "AAAA"}],
        "tools": [function("exec_command"), {"type": "web_search", "external_web_access": false},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}, {"type": "local_shell"},
            {"type": "namespace", "name": "mcp__weather", "description": "d", "tools": [function("lookup")]}],
        "tool_choice": {"type": "function", "name": "lookup"}, "parallel_tool_calls": true,
        "reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k", "text": {"verbosity": "low"}, "service_tier": "auto",
        "client_metadata": {"a": "b"}, "max_output_tokens": 100_000,
    });
    let answer = daemon.post(RESPONSES, &request);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let skipped = "x-orind-skipped-tools: web_search, apply_patch, local_shell";
    assert!(answer.headers.contains(skipped), "{}", answer.headers);
    let last = answer.body.lines().rfind(|line| line.starts_with("data: ")).unwrap();
    let last: Value = serde_json::from_str(&last["data: ".len()..]).unwrap();
    assert_eq!(last["type"], "response.completed");
    let output = last["response"]["output"].as_array().unwrap();
    assert_eq!(output.len(), 1, "a named choice makes one call: {last}");
    assert_eq!(
        (&output[0]["name"], &output[0]["namespace"]),
        (&json!("lookup"), &json!("mcp__weather"))
    );
    assert!(daemon.log().contains("skipped tools that cannot run here"));
}

/// Fields without influence on the answer are accepted by every dialect.
#[test]
fn hints_are_ignored() {
    let daemon = Daemon::start(ROOM);
    let chat = json!({"messages": hi(), "max_tokens": 1});
    let messages = json!({"messages": hi(), "max_tokens": 1});
    let responses = json!({"input": "Hi", "max_output_tokens": 1});
    let ollama = json!({"messages": hi(), "stream": false, "options": {"num_predict": 1}});
    for (route, base, hint) in [
        (CHAT, &chat, json!({"reasoning_effort": "high"})),
        (CHAT, &chat, json!({"stream_options": {"include_usage": null}})),
        (
            CHAT,
            &chat,
            json!({"verbosity": "low", "prediction": {"type": "content", "content": "x"}}),
        ),
        (CHAT, &chat, json!({"metadata": {"a": "b"}, "store": true, "user": "u", "n": null})),
        (
            CHAT,
            &chat,
            json!({"presence_penalty": 0, "top_logprobs": null, "function_call": "none"}),
        ),
        (RESPONSES, &responses, json!({"reasoning": {"effort": "medium", "summary": "auto"}})),
        (RESPONSES, &responses, json!({"context_management": [{"type": "compaction"}]})),
        (MESSAGES, &messages, json!({"thinking": {"type": "adaptive"}})),
        (MESSAGES, &messages, json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})),
        (MESSAGES, &messages, json!({"thinking": {"type": "disabled"}})),
        (MESSAGES, &messages, json!({"context_management": {"edits": [1]}, "speed": "fast"})),
        ("/api/chat", &ollama, json!({"think": true})),
        ("/api/chat", &ollama, json!({"think": false})),
        ("/api/chat", &ollama, json!({"think": "high"})),
    ] {
        let answer = daemon.post(route, &with(base.clone(), &hint));
        assert_eq!(answer.status, 200, "{route} {hint}: {}", answer.body);
    }
}

/// An answer ends where the slot does, whatever the limit is.
#[test]
fn limits_beyond_the_slot_are_upper_bounds() {
    let daemon = Daemon::start("slots = 1\ncontext = 256\nprefill_chunk = 16");
    let end = json!({"ignore_eos": true, "temperature": 0});
    for (route, base, field) in [
        (CHAT, json!({"messages": hi()}), "max_tokens"),
        (CHAT, json!({"messages": hi()}), "max_completion_tokens"),
        ("/v1/completions", json!({"prompt": [5, 6]}), "max_tokens"),
    ] {
        for limit in [json!(100_000), json!(-1), json!(1e6), json!(u64::MAX)] {
            let limited = json!({field: limit});
            let body = ok(&daemon.post(route, &with(with(base.clone(), &end), &limited)));
            assert_eq!(body["usage"]["total_tokens"], 256, "{route} {limited}");
            assert_eq!(body["choices"][0]["finish_reason"], "length");
        }
    }
    let many = json!({"input": "Hi", "max_output_tokens": 1_000_000});
    ok(&daemon.post(RESPONSES, &many));
    let logprobs =
        json!({"messages": hi(), "max_tokens": 1_000_000, "logprobs": true, "top_logprobs": 20});
    ok(&daemon.post(CHAT, &logprobs));
}

#[test]
fn tools_that_cannot_run_here_are_skipped_in_every_dialect() {
    let daemon = Daemon::start(ROOM);
    let function = json!({"name": "f", "parameters": {"type": "object", "properties": {}}});
    let chat = json!({"messages": hi(), "max_tokens": 1, "tools": [
        {"type": "custom", "custom": {"name": "x"}}, {"type": "web_search"},
        {"type": "function", "function": function}]});
    let messages = json!({"messages": hi(), "max_tokens": 1, "tools": [
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "mcp_toolset", "mcp_server_name": "s"}, {"name": "f", "input_schema": {}}],
        "mcp_servers": [{"type": "url", "url": "https://s.example", "name": "s"}]});
    let responses = json!({"input": "Hi", "max_output_tokens": 1, "tools": [
        {"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "file_search", "vector_store_ids": []}]});
    let ollama = json!({"messages": hi(), "stream": false, "tools": [{"type": "browser"}],
        "options": {"num_predict": 1}});
    for (route, request, skipped) in [
        (CHAT, &chat, "custom, web_search"),
        (MESSAGES, &messages, "mcp_servers, code_execution, mcp_toolset"),
        (RESPONSES, &responses, "code_interpreter, file_search"),
        ("/api/chat", &ollama, "browser"),
    ] {
        let answer = daemon.post(route, request);
        assert_eq!(answer.status, 200, "{route}: {}", answer.body);
        let header = format!("x-orind-skipped-tools: {skipped}\r\n");
        assert!(answer.headers.contains(&header), "{route}: {}", answer.headers);
    }
    // A choice of a skipped tool cannot be met.
    let forced = json!({"tool_choice": {"type": "custom", "custom": {"name": "x"}}});
    let refused = daemon.post(CHAT, &with(chat, &forced));
    assert_eq!(refused.json()["error"]["param"], "tool_choice");
}

/// A function without parameters is called with an empty object, a named one once.
#[test]
fn forced_calls_take_only_what_the_function_has() {
    let daemon = Daemon::start(ROOM);
    for function in [
        json!({"name": "now"}),
        json!({"name": "now", "parameters": null}),
        json!({"name": "now", "parameters": {}}),
    ] {
        for choice in [json!("required"), json!({"type": "function", "function": {"name": "now"}})]
        {
            for seed in 0..3 {
                let request = json!({"messages": hi(), "max_tokens": 80, "temperature": 1.5, "seed": seed,
                    "tools": [{"type": "function", "function": function}], "tool_choice": choice,
                    "parallel_tool_calls": choice != "required"});
                let body = ok(&daemon.post(CHAT, &request));
                let calls = body["choices"][0]["message"]["tool_calls"].as_array().unwrap();
                assert_eq!(calls.len(), 1, "{body}");
                assert_eq!(calls[0]["function"]["arguments"], "{}", "{body}");
            }
        }
    }
}

/// Errors have the shape of their dialect, before and in a stream.
#[test]
fn errors_have_the_shape_of_their_dialect() {
    let daemon = Daemon::start(ROOM);
    let missing = json!({"model": "nobody", "messages": hi(), "max_tokens": 1});
    let answer = daemon.post(MESSAGES, &missing);
    let body = answer.json();
    assert_eq!((answer.status, &body["type"]), (404, &json!("error")), "{body}");
    assert_eq!(body["error"]["type"], "not_found_error");
    assert_eq!(body["error"]["code"], "model_not_found");
    let answer = daemon.post("/api/chat", &missing);
    assert!(answer.status == 404 && answer.json()["error"].is_string(), "{}", answer.body);
    for path in ["/api/nothing", "/api/generate"] {
        assert!(daemon.get(path).json()["error"].is_string(), "{path}");
    }
    assert_eq!(daemon.get("/v1/messages/nothing").json()["error"]["type"], "not_found_error");
    assert_eq!(daemon.post(MESSAGES, &json!([])).json()["error"]["type"], "invalid_request_error");
    assert_eq!(daemon.post(CHAT, &missing).json()["error"]["type"], "invalid_request_error");
}
