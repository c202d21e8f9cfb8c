//! Randomly changed requests of every dialect: each is answered, or refused with the name of the wrong field.

use orind_testing::daemon::Daemon;
use orind_testing::random::Random;
use serde_json::{Value, json};

/// Changed requests for each route.
const CHANGED: u64 = 40;

/// A valid request for each route, with as many fields as possible.
fn valid() -> Vec<(&'static str, Value)> {
    let schema =
        json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]});
    let function = json!({"name": "f", "description": "d", "parameters": schema});
    let call = json!({"id": "123456789", "type": "function",
        "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let chat = json!({
        "model": "", "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "123456789", "content": "t"}],
        "max_tokens": 2, "temperature": 1, "top_p": 0.9, "top_k": 5, "seed": 1, "stop": ["x"], "n": 1,
        "logprobs": true, "top_logprobs": 1, "logit_bias": {"5": 1}, "presence_penalty": 0.1,
        "frequency_penalty": 0.1, "repeat_penalty": 1.1, "repeat_last_n": 4, "min_p": 0.01,
        "typical_p": 0.9, "mirostat": 2, "mirostat_tau": 5, "mirostat_eta": 0.1,
        "xtc_probability": 0.1, "xtc_threshold": 0.1, "dry_multiplier": 0.5, "dry_base": 1.5,
        "dry_allowed_length": 2, "dry_sequence_breakers": ["\n"], "dynatemp_range": 0.1,
        "dynatemp_exponent": 1, "ignore_eos": true, "stream": false,
        "stream_options": {"include_usage": true}, "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto", "parallel_tool_calls": false, "response_format": {"type": "text"},
        "chat_template_kwargs": {}, "user": "me",
    });
    let options = json!({"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "stop": ["x"],
        "num_predict": 2, "min_p": 0.1, "repeat_penalty": 1.1});
    vec![
        (
            "/v1/completions",
            json!({"prompt": ["a", "b"], "max_tokens": 2, "echo": true,
            "logprobs": 1, "temperature": 0.5, "stop": "x", "n": 1, "grammar": "start: /a+/",
            "logit_bias": {"5": 1}, "suffix": null}),
        ),
        ("/v1/chat/completions", chat.clone()),
        ("/apply-template", chat),
        (
            "/v1/responses",
            json!({"input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
                {"type": "function_call", "call_id": "123456789", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "123456789", "output": "o"}],
            "instructions": "i", "max_output_tokens": 2, "temperature": 0.5, "top_p": 0.9, "store": true,
            "tools": [{"type": "function", "name": "f", "parameters": schema, "strict": true}],
            "tool_choice": "none", "parallel_tool_calls": true, "text": {"format": {"type": "text"}},
            "metadata": {}, "truncation": "disabled"}),
        ),
        (
            "/v1/messages",
            json!({"max_tokens": 2, "system": [{"type": "text", "text": "s"}], "messages": [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "t", "signature": ""},
                    {"type": "tool_use", "id": "123456789", "name": "f", "input": {"a": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "123456789", "content": "r"}]}],
            "tools": [{"name": "f", "description": "d", "input_schema": schema}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
            "stop_sequences": ["x"], "temperature": 0.5, "top_p": 0.9, "top_k": 5,
            "thinking": {"type": "disabled"}}),
        ),
        (
            "/api/chat",
            json!({"model": "", "messages": [{"role": "user", "content": "u"},
                {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
                {"role": "tool", "content": "t", "tool_name": "f"}],
            "tools": [{"type": "function", "function": function}], "format": "", "stream": false,
            "options": options}),
        ),
        (
            "/api/generate",
            json!({"prompt": "p", "system": "s", "format": schema, "stream": false,
            "options": options}),
        ),
        ("/v1/embeddings", json!({"input": ["a"], "encoding_format": "float", "dimensions": 4})),
        (
            "/orin/v1/run",
            json!({"model": "m", "inputs": {"x": {"shape": [1], "values": [0.5]}},
            "encoding_format": "float", "backend": "cpu"}),
        ),
        ("/api/embed", json!({"input": ["a"], "dimensions": 4})),
        (
            "/tokenize",
            json!({"content": "c", "add_special": true, "parse_special": true,
            "with_pieces": true}),
        ),
        ("/detokenize", json!({"tokens": [1, 2]})),
    ]
}

/// An unexpected value.
fn unexpected(random: &mut Random) -> Value {
    let values = [
        Value::Null,
        true.into(),
        false.into(),
        0.into(),
        (-1).into(),
        u64::MAX.into(),
        i64::MIN.into(),
        json!(1e300),
        json!(0.5),
        "".into(),
        "x".into(),
        "\u{0}\u{fdd0}<|eot_id|>\u{202e}".into(),
        "é".repeat(300).into(),
        json!([]),
        json!([null]),
        json!([[[]]]),
        json!({}),
        json!({"type": "function"}),
        json!({"role": "user", "content": "x"}),
        json!({"": {"": [1, "2", {"a": null}]}}),
    ];
    values[random.below(values.len())].clone()
}

/// Changes a random part of a value.
fn change(value: &mut Value, random: &mut Random) {
    let deeper = random.below(3) > 0;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let key = map.keys().nth(random.below(map.len())).unwrap().clone();
            match random.below(8) {
                0 => drop(map.remove(&key)),
                1 => drop(map.insert("nobody knows this".into(), unexpected(random))),
                _ => change(&mut map[&key], random),
            }
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let at = random.below(list.len());
            match random.below(8) {
                0 => drop(list.remove(at)),
                1 => list.push(unexpected(random)),
                _ => change(&mut list[at], random),
            }
        }
        _ => *value = unexpected(random),
    }
}

#[test]
fn changed_requests_are_answered_or_refused_by_field() {
    let daemon = Daemon::start("slots = 2\ncontext = 512\nqueue_limit = 64");
    for (route, valid) in valid() {
        let (mut answered, mut refused) = (0, 0);
        for seed in 0..CHANGED {
            let mut random = Random(seed);
            let mut request = valid.clone();
            for _ in 0..=random.below(2) {
                change(&mut request, &mut random);
            }
            // The context limits the length of the answer.
            let answer = daemon.post(route, &request);
            let what = format!("{route}, seed {seed}: {request}\n{}", answer.body);
            match answer.status {
                200 => answered += 1,
                400 | 404 | 422 => {
                    refused += 1;
                    let body = answer.json();
                    // ollama's errors have code and field next to the text.
                    let (error, text) = match &body["error"] {
                        Value::String(_) => (&body, "error"),
                        error => (error, "message"),
                    };
                    let [code, message] = ["code", text].map(|name| error[name].as_str().unwrap());
                    assert!(message.len() < 2000, "{what}");
                    let of_a_field =
                        ["invalid_value", "unsupported_parameter", "context_length_exceeded"];
                    let of_a_field = of_a_field.contains(&code) && request.is_object();
                    assert!(error["param"].is_string() || !of_a_field, "{what}");
                }
                _ => panic!("{what}"),
            }
        }
        println!("{route}: {answered} answered, {refused} refused");
        assert!(refused > 0, "{route}");
    }
    assert_eq!(daemon.get("/health").status, 200);
    assert!(!daemon.log().contains("ERROR"), "{}", daemon.log());
}
