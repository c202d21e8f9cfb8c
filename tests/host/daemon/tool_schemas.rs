//! Schemas of tools and answers with keywords that a grammar cannot enforce.

use orind_testing::daemon::Daemon;
use serde_json::{Value, json};

use super::CHAT;

const ROOM: &str = "slots = 1\ncontext = 1024\nprefill_chunk = 64";

fn hi() -> Value {
    json!([{"role": "user", "content": "Hi"}])
}

/// Parameters as pydantic and zod write them for sets and conditions, each with the keyword that
/// cannot be enforced.
fn parameters() -> Vec<(Value, &'static str)> {
    let object = |of: Value| {
        json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}, "x": of},
            "required": ["n"], "additionalProperties": false})
    };
    let text = json!({"type": "string"});
    vec![
        (object(json!({"type": "array", "items": text, "uniqueItems": true})), "uniqueItems"),
        (object(json!({"not": {"type": "null"}})), "not"),
        (object(json!({"type": "string", "pattern": "^(?!x)"})), "pattern"),
        (object(json!({"$ref": "https://example.org/s.json"})), "$ref"),
        (object(json!({"type": "array", "contains": text, "maxContains": 2})), "contains"),
        (object(json!({"type": "string", "if": {"pattern": "a"}, "then": {"minLength": 9}})), "if"),
        (object(json!({"type": "nothing"})), ""),
        (object(json!({"type": "string", "minLength": 3, "maxLength": 2})), ""),
    ]
}

/// A keyword that cannot be enforced fails no request with tools, and is named; the rest is
/// enforced.
#[test]
fn tools_with_any_schema_can_be_called() {
    let daemon = Daemon::start(ROOM);
    for (schema, keyword) in parameters() {
        let chat = json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
        let named = json!({"type": "function", "function": {"name": "f"}});
        let request = |choice: &Value| json!({"messages": hi(), "tools": chat, "tool_choice": choice, "max_tokens": 200, "seed": 3});
        let answer = daemon.post(CHAT, &request(&json!("auto")));
        assert_eq!(answer.status, 200, "{schema}: {}", answer.body);
        for choice in [json!("required"), named] {
            let answer = daemon.post(CHAT, &request(&choice));
            assert_eq!(answer.status, 200, "{schema}: {}", answer.body);
            let choice = &answer.json()["choices"][0];
            if choice["finish_reason"] == "tool_calls" {
                let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
                let arguments: Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
                let relaxed = answer.headers.contains("(all)");
                assert!(
                    relaxed || (1..=9).contains(&arguments["n"].as_i64().unwrap()),
                    "{arguments}"
                );
            }
            if !keyword.is_empty() {
                let header = "x-orind-relaxed-tools: f (";
                let (_, rest) = answer
                    .headers
                    .split_once(header)
                    .unwrap_or_else(|| panic!("{schema}: {}", answer.headers));
                assert!(rest.lines().next().unwrap().contains(&keyword.to_lowercase()), "{rest}");
            }
        }
    }
    assert!(daemon.log().contains("schemas of tools are not enforced in full"));
    // Other dialects have other places for the schema.
    let (schema, _) = parameters().remove(0);
    for (route, request) in [
        (
            "/v1/messages",
            json!({"messages": hi(), "max_tokens": 200, "tool_choice": {"type": "any"},
                "tools": [{"name": "f", "input_schema": schema}]}),
        ),
        (
            "/v1/responses",
            json!({"input": "Hi", "max_output_tokens": 200, "tool_choice": "required", "stream": true,
                "tools": [{"type": "function", "name": "f", "parameters": schema}]}),
        ),
    ] {
        let answer = daemon.post(route, &request);
        assert_eq!(answer.status, 200, "{route}: {}", answer.body);
        let header = "x-orind-relaxed-tools: f (uniqueitems)";
        assert!(answer.headers.contains(header), "{route}: {}", answer.headers);
    }
}

/// Strict tools and formats of answers are enforced or refused.
#[test]
fn strict_schemas_are_enforced_or_refused() {
    let daemon = Daemon::start(ROOM);
    for (schema, keyword) in parameters() {
        let strict = json!([{"type": "function",
            "function": {"name": "f", "parameters": schema, "strict": true}}]);
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        for request in [
            json!({"messages": hi(), "tools": strict, "tool_choice": "required", "max_tokens": 9}),
            json!({"messages": hi(), "response_format": format, "max_tokens": 9}),
        ] {
            let refused = daemon.post(CHAT, &request);
            // An optional property whose schema allows no value is only left out.
            let enforced = keyword.is_empty() && refused.status == 200;
            assert!(
                enforced || refused.error() == (400, "grammar_failed".into()),
                "{schema}: {}",
                refused.body
            );
            assert!(
                enforced || keyword == "pattern" || refused.body.contains(keyword),
                "{schema}: {}",
                refused.body
            );
        }
    }
    for (schema, values) in [
        (
            json!({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true, "minItems": 2}),
            2..=3,
        ),
        (
            json!({"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}, "maxItems": 3}),
            1..=3,
        ),
    ] {
        for seed in 0..4 {
            let format =
                json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
            let request = json!({"messages": hi(), "response_format": format, "max_tokens": 60, "seed": seed,
                "temperature": 1.5});
            let answer = daemon.post(CHAT, &request);
            assert_eq!(answer.status, 200, "{schema}: {}", answer.body);
            let text = answer.json()["choices"][0]["message"]["content"].clone();
            let list: Vec<Value> = serde_json::from_str(text.as_str().unwrap()).unwrap();
            let distinct = list.iter().enumerate().all(|(at, one)| !list[..at].contains(one));
            assert!(values.contains(&list.len()), "{text}");
            assert!(schema.get("uniqueItems").is_none() || distinct, "{text}");
        }
    }
}
