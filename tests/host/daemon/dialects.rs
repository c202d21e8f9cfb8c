//! Chat dialects: the official clients, if they are installed, and the events of each stream.

use std::process::Command;

use model::gguf::Value as Metadata;
use orind_testing::daemon::{Answer, Daemon};
use orind_testing::model_variants::saying;
use orind_testing::tiny;
use serde_json::{Value, json};

use super::tcp::address;
use super::{CHAT, COMPLETIONS, MODEL, said};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// A context with room for tools.
const ROOM: &str = "slots = 4\ncontext = 512\nprefill_chunk = 16";

/// Runs the script of a client, over the socket and over TCP, or prints why it is skipped. `ORIND_TEST_PYTHON` names
/// the interpreter.
#[expect(clippy::print_stdout, reason = "a test says that it is skipped")]
fn client(name: &str, modules: &str, over_socket: bool) {
    let python = std::env::var("ORIND_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", &format!("import {modules}")]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        println!("skipped: {python} has not all of {modules}; ORIND_TEST_PYTHON names another");
        return;
    }
    let daemon = Daemon::start(&format!("{ROOM}\nlisten = '127.0.0.1:0'"));
    let script = format!("{}/tests/host/daemon/python/{name}.py", env!("CARGO_MANIFEST_DIR"));
    let url = format!("http://{}", address(&daemon));
    let socket = daemon.socket().to_str().unwrap().to_owned();
    for place in over_socket.then_some(socket).into_iter().chain([url]) {
        let mut run = Command::new(&python);
        assert_eq!(said(run.arg(&script).arg(place).arg(MODEL)), "ok\n");
    }
}

#[test]
fn the_openai_python_client_works() {
    client("openai_client", "httpx, openai", true);
}

#[test]
fn the_anthropic_python_client_works() {
    client("anthropic_client", "httpx, anthropic", true);
}

#[test]
fn the_ollama_python_client_works() {
    client("ollama_client", "httpx, ollama", true);
}

#[test]
fn litellm_works() {
    client("litellm_client", "litellm", false);
}

/// `ORIND_TEST_NODE` names a folder with `node_modules`, from `npm install openai @anthropic-ai/sdk ollama`.
#[test]
fn the_npm_clients_work() {
    let Some(folder) = std::env::var_os("ORIND_TEST_NODE") else {
        println!("skipped: ORIND_TEST_NODE names no folder with node_modules");
        return;
    };
    let daemon = Daemon::start(&format!("{ROOM}\nlisten = '127.0.0.1:0'"));
    let script = format!("{}/tests/host/daemon/node/clients.mjs", env!("CARGO_MANIFEST_DIR"));
    let url = format!("http://{}", address(&daemon));
    let mut run = Command::new("node");
    assert_eq!(said(run.arg(script).arg(folder).arg(url).arg(MODEL)), "ok\n");
}

/// The schema of an object with one of two cities.
fn place() -> Value {
    json!({"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}},
        "required": ["city"], "additionalProperties": false})
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "parameters": place()}}])
}

/// A required tool call.
fn required() -> Value {
    json!({"messages": user("The weather?"), "max_tokens": 60, "temperature": 0, "tools": tools(),
        "tool_choice": "required"})
}

#[test]
fn a_tool_call_is_equal_whole_and_streamed() {
    let daemon = Daemon::start(ROOM);
    let mut request = required();
    let whole = daemon.post(CHAT, &request).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "weather");
    let arguments = function["arguments"].as_str().unwrap();
    let city: Value = serde_json::from_str(arguments).unwrap();
    assert!(["Bern", "Rome"].contains(&city["city"].as_str().unwrap()), "{city}");

    request["stream"] = true.into();
    let parts: Vec<Value> = daemon
        .stream(CHAT, &request)
        .filter(|(_, data)| data != "[DONE]")
        .map(|(_, data)| serde_json::from_str(&data).unwrap())
        .collect();
    let deltas: Vec<&Value> =
        parts.iter().filter_map(|part| part["choices"][0]["delta"]["tool_calls"].get(0)).collect();
    assert_eq!(deltas[0]["function"]["name"], "weather");
    assert_eq!(deltas[0]["type"], "function");
    assert!(deltas[1..].iter().all(|delta| delta.get("id").is_none()));
    let joined: String =
        deltas.iter().map(|delta| delta["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(joined, arguments);
    assert_eq!(parts.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn invalid_tools_are_refused_with_the_reason() {
    let daemon = Daemon::start(ROOM);
    let param = |changes: Value| {
        let mut request = required();
        request.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let answer = daemon.post(CHAT, &request);
        assert_eq!(answer.status, 400, "{}", answer.body);
        answer.json()["error"]["param"].as_str().map(str::to_owned)
    };
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let tool = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    for (changes, expected) in [
        (json!({"tools": []}), "tool_choice"),
        (json!({"tool_choice": named("nobody")}), "tool_choice"),
        (json!({"tool_choice": "perhaps"}), "tool_choice"),
        (tool(json!({"name": "a b"})), "tools[0].function.name"),
        (tool(json!({"name": "a", "parameters": 7})), "tools[0].function.parameters"),
        (json!({"tools": [tools()[0].clone(), tools()[0].clone()]}), "tools"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": [{"type": "custom", "function": {"name": "a"}}]}), "tool_choice"),
        (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias.x"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"mirostat": 1}), "mirostat"),
        (json!({"n": 0}), "n"),
    ] {
        assert_eq!(param(changes.clone()).as_deref(), Some(expected), "{changes}");
    }
}

/// The prompt consists of the tokens of both texts and the infill tokens.
#[test]
fn infill_answers_between_two_texts() {
    let dir = tempfile::tempdir().unwrap();
    let marks = [("fim_pre", 5), ("fim_suf", 6), ("fim_mid", 7)]
        .map(|(name, id)| (format!("tokenizer.ggml.{name}_token_id"), Metadata::U32(id)));
    let marks: Vec<_> = marks.iter().map(|(key, id)| (key.as_str(), id.clone())).collect();
    let file = saying(&tiny("tiny-llama-Q8_0"), dir.path(), &marks);
    let daemon = Daemon::launch(&format!("model = '{file}'\nthreads = 1\n{ROOM}"));
    daemon.until("it serves", |status| status["state"]["name"] == "ready");
    let ids = |text: &str, special: bool| {
        let asked = json!({"content": text, "add_special": special, "parse_special": false});
        serde_json::from_value::<Vec<u32>>(
            daemon.post("/tokenize", &asked).json()["tokens"].clone(),
        )
        .unwrap()
    };
    let (before, behind) = ("fn f(", ") {}\n<|x|>");
    let begin = ids("", true);
    let whole = [&begin[..], &[5], &ids(before, false), &[6], &ids(behind, false), &[7]].concat();
    let ask = |prompt: Value, suffix: Option<&str>| {
        let request =
            json!({"prompt": prompt, "suffix": suffix, "max_tokens": 5, "temperature": 0});
        daemon.post(COMPLETIONS, &request).json()
    };
    let between = ask(before.into(), Some(behind));
    let alone = ask(whole.into(), None);
    assert_eq!(between["choices"][0]["text"], alone["choices"][0]["text"]);
    assert_eq!(between["usage"]["prompt_tokens"], alone["usage"]["prompt_tokens"]);
    assert_eq!(ask(json!([1, 2]), Some("x"))["error"]["param"], "prompt");
    let other = Daemon::start(ROOM);
    let refused = other.post(COMPLETIONS, &json!({"prompt": "a", "suffix": "b"}));
    assert_eq!(refused.json()["error"]["param"], "suffix");
}

/// No field that would change an answer is ignored.
#[test]
fn unsupported_fields_are_refused_by_name() {
    let daemon = Daemon::start(ROOM);
    let chat = || json!({"messages": user("Hi"), "max_tokens": 1});
    let responses = || json!({"input": "Hi", "max_output_tokens": 1});
    for (route, base, field, value, neutral) in [
        (CHAT, chat(), "guided_json", place(), Value::Null),
        (CHAT, chat(), "structured_outputs", json!({"regex": "a"}), json!({})),
        (CHAT, chat(), "bad_words", json!(["no"]), json!([])),
        (CHAT, chat(), "chat_template", json!("{{ x }}"), json!("")),
        (CHAT, chat(), "add_generation_prompt", json!(false), json!(true)),
        (CHAT, chat(), "length_penalty", json!(0.5), json!(1.0)),
        (COMPLETIONS, json!({"prompt": "a", "max_tokens": 1}), "top_a", json!(0.5), json!(0)),
        (RESPONSES, responses(), "lora", json!([{"id": 0, "scale": 1}]), json!([])),
        (RESPONSES, responses(), "truncation", json!("auto"), json!("disabled")),
        (MESSAGES, chat(), "thread", json!({"type": "create"}), Value::Null),
        ("/api/chat", chat(), "logprobs", json!(true), json!(false)),
        ("/api/generate", json!({"prompt": "a"}), "template", json!("{{ x }}"), json!("")),
    ] {
        let ask = |value: Value| {
            let mut request = base.clone();
            request[field] = value;
            daemon.post(route, &request)
        };
        let refused = ask(value);
        let body = refused.json();
        // ollama's errors have code and field next to the text.
        let error = if route.starts_with("/api/") { &body } else { &body["error"] };
        assert_eq!(
            (refused.status, &error["code"]),
            (400, &json!("unsupported_parameter")),
            "{body}"
        );
        assert_eq!(error["param"], field);
        assert_eq!(ask(neutral).status, 200, "{field}");
    }
}

#[test]
fn answers_follow_their_schema_and_grammar() {
    let daemon = Daemon::start(ROOM);
    let shape = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": place()}});
    for seed in 0..4 {
        let request = json!({"messages": user("Where?"), "max_tokens": 60, "seed": seed,
            "temperature": 1.5, "response_format": shape});
        let answer = daemon.post(CHAT, &request).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        let said: Value =
            serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
        assert!(["Bern", "Rome"].contains(&said["city"].as_str().unwrap()));
    }
    // The schema may be next to the type, as llama.cpp, Together and Fireworks have it.
    for kind in ["json_object", "json_schema"] {
        let request = json!({"messages": user("Where?"), "max_tokens": 60,
            "response_format": {"type": kind, "schema": place()}});
        let answer = daemon.post(CHAT, &request).json();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(text).unwrap()["city"].is_string(), "{answer}");
    }
    let grammar =
        json!({"prompt": "a", "max_tokens": 20, "seed": 1, "grammar": "start: \"yes\" | \"no\"\n"});
    let answer = daemon.post(COMPLETIONS, &grammar).json();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(["yes", "no"].contains(&text), "{answer}");
    let gbnf =
        json!({"prompt": "a", "max_tokens": 20, "seed": 1, "grammar": "root ::= \"yes\" | \"no\""});
    assert_eq!(daemon.post(COMPLETIONS, &gbnf).json()["choices"], answer["choices"]);
    let wrong = daemon.post(COMPLETIONS, &json!({"prompt": "a", "grammar": "start: missing"}));
    assert_eq!(wrong.error(), (400, "grammar_failed".into()), "{}", wrong.body);
}

/// Biases select and ban tokens. A seed gives the same answer for every sampler and batch.
#[test]
fn samplers_change_the_chosen_tokens() {
    let daemon = Daemon::start(ROOM);
    let ask = |changes: Value| {
        let mut request = json!({"prompt": "Once upon", "max_tokens": 8, "temperature": 0,
            "logprobs": 0, "ignore_eos": true});
        request.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let answer = daemon.post(COMPLETIONS, &request);
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_value::<Vec<u32>>(
            answer.json()["choices"][0]["logprobs"]["token_ids"].clone(),
        )
        .unwrap()
    };
    let plain = ask(json!({}));
    assert_eq!(ask(json!({"logit_bias": {"70": 100}})), [70; 8]);
    let banned = ask(json!({"logit_bias": {plain[0].to_string(): -100}}));
    assert!(!banned.contains(&plain[0]) && banned != plain);
    let penalised =
        ask(json!({"logit_bias": {"70": 100}, "frequency_penalty": 2, "presence_penalty": 2}));
    assert_eq!(penalised[0], 70);
    // Neutral values on the host choose as the device does.
    for sampling in [
        json!({"temperature": 1, "seed": 3}),
        json!({"temperature": 1.5, "seed": 9, "top_k": 0, "top_p": 0.9}),
    ] {
        let mut neutral = sampling.clone();
        neutral["logit_bias"] = json!({"1": 0});
        assert_eq!(ask(neutral), ask(sampling));
    }
    // Each field alone, compared with the answer without it. Greedy answers repeat one of two tokens, and sampled
    // ones meet many distributions.
    let greedy = json!({"max_tokens": 48, "logit_bias": {"70": 60, "71": 58}});
    let drawn = json!({"temperature": 2, "top_k": 0, "top_p": 1, "seed": 5, "max_tokens": 48});
    let mut few = drawn.clone();
    few["logit_bias"] = json!({"70": 30, "71": 30, "72": 30, "73": 30});
    for (base, sampler, neutral) in [
        (
            &greedy,
            json!({"repeat_penalty": 1.5, "repeat_last_n": 16}),
            json!({"repeat_penalty": 1}),
        ),
        (&greedy, json!({"frequency_penalty": 2}), json!({"frequency_penalty": 0})),
        // Too small to change a very likely token.
        (&few, json!({"presence_penalty": 2}), json!({"presence_penalty": 0})),
        (
            &greedy,
            json!({"dry_multiplier": 5, "dry_allowed_length": 1}),
            json!({"dry_multiplier": 0, "dry_allowed_length": 1}),
        ),
        (&drawn, json!({"min_p": 0.5}), json!({"min_p": 0})),
        (&drawn, json!({"typical_p": 0.2}), json!({"typical_p": 1})),
        (&drawn, json!({"mirostat": 2, "mirostat_tau": 0.5}), json!({"mirostat": 0})),
        (
            &drawn,
            json!({"xtc_probability": 1, "xtc_threshold": 0.0001}),
            json!({"xtc_probability": 0}),
        ),
        (&drawn, json!({"dynatemp_range": 0.9}), json!({"dynatemp_range": 0})),
        (&drawn, json!({"top_k": 3}), json!({"top_k": 0})),
        (&drawn, json!({"top_p": 0.5}), json!({"top_p": 1})),
    ] {
        let with = |changes: &Value| {
            let mut request = base.clone();
            request.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            ask(request)
        };
        let without = with(&json!({}));
        let chosen = with(&sampler);
        assert_ne!(chosen, without, "{sampler} changes nothing");
        assert_eq!(with(&sampler), chosen, "{sampler} is not the same again");
        assert_eq!(with(&neutral), without, "{neutral} changes something");
    }
}

#[test]
fn a_prompt_may_have_several_answers() {
    let daemon = Daemon::start(ROOM);
    let mut request = json!({"messages": user("Hi"), "n": 3, "max_tokens": 6, "temperature": 2,
        "top_k": 0, "top_p": 1, "seed": 4, "ignore_eos": true});
    let whole = daemon.post(CHAT, &request).json();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    assert!(choices.iter().any(|c| c["message"] != choices[0]["message"]), "{whole}");
    request["stream"] = true.into();
    let mut texts = vec![String::new(); 3];
    for (_, data) in daemon.stream(CHAT, &request).filter(|(_, data)| data != "[DONE]") {
        let part: Value = serde_json::from_str(&data).unwrap();
        let choice = &part["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize]
            .push_str(choice["delta"]["content"].as_str().unwrap_or_default());
    }
    let whole: Vec<_> = choices.iter().map(|c| c["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(texts, whole);
}

/// Names of a stream's events, without repetitions.
fn names(events: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, data) in events {
        let value: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(value["type"], name.as_str());
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    names
}

/// Anthropic's documentation lists them.
#[test]
fn messages_streams_have_the_documented_events() {
    let daemon = Daemon::start(ROOM);
    let mut request =
        json!({"max_tokens": 6, "messages": user("Hi"), "temperature": 0, "stream": true});
    let text = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names(daemon.stream(MESSAGES, &request)), text);
    request["tools"] = json!([{"name": "weather", "input_schema": place()}]);
    request["tool_choice"] = json!({"type": "tool", "name": "weather"});
    request["max_tokens"] = 60.into();
    assert_eq!(names(daemon.stream(MESSAGES, &request)), text);
    request["tools"] = json!([]);
    request["tool_choice"] = Value::Null;
    request["stream"] = false.into();
    for format in ["output_format", "output_config"] {
        let schema = json!({"type": "json_schema", "schema": place()});
        let mut shaped = request.clone();
        shaped[format] = if format == "output_config" { json!({"format": schema}) } else { schema };
        let answer = daemon.post(MESSAGES, &shaped).json();
        let text: Value =
            serde_json::from_str(answer["content"][0]["text"].as_str().unwrap()).unwrap();
        assert!(["Bern", "Rome"].contains(&text["city"].as_str().unwrap()), "{answer}");
    }
    let missing = daemon.post(MESSAGES, &json!({"messages": user("Hi")}));
    assert_eq!(missing.json()["error"]["param"], "max_tokens");
}

/// OpenAI's documentation lists them.
#[test]
fn responses_streams_have_the_documented_events() {
    let daemon = Daemon::start(ROOM);
    let request = json!({"input": "Hi", "max_output_tokens": 6, "temperature": 0, "stream": true});
    let message = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ];
    let mut seen = names(daemon.stream(RESPONSES, &request));
    let last = seen.pop().unwrap();
    assert!(["response.completed", "response.incomplete"].contains(&last.as_str()));
    assert_eq!(seen, message);
    let call = json!({"input": "The weather?", "temperature": 0, "stream": true,
        "tools": [{"type": "function", "name": "weather", "parameters": place()}],
        "tool_choice": "required", "max_output_tokens": 60});
    assert_eq!(
        names(daemon.stream(RESPONSES, &call)),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let unknown = daemon.post(RESPONSES, &json!({"input": "Hi", "previous_response_id": "resp_0"}));
    assert_eq!(unknown.error(), (404, "response_not_found".into()));
}

#[test]
fn texts_are_tokenized_detokenized_and_rendered() {
    let daemon = Daemon::start(ROOM);
    let ok = |answer: Answer| {
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let ids = ok(daemon.post("/tokenize", &json!({"content": "Hello <|eot_id|>"})));
    let text = ok(daemon.post("/detokenize", &json!({"tokens": ids["tokens"]})));
    assert_eq!(text["content"], "Hello ");
    let pieces =
        json!({"content": "Hello <|eot_id|>", "with_pieces": true, "parse_special": false});
    let pieces = ok(daemon.post("/tokenize", &pieces));
    let joined: String =
        pieces["tokens"].as_array().unwrap().iter().map(|t| t["piece"].as_str().unwrap()).collect();
    assert_eq!(joined, "Hello <|eot_id|>");
    let wrong = daemon.post("/detokenize", &json!({"tokens": [1, 99_999_999]}));
    assert_eq!(wrong.json()["error"]["param"], "tokens[1]");
    let prompt =
        ok(daemon.post("/apply-template", &json!({"messages": user("Hi"), "tools": tools()})));
    let prompt = prompt["prompt"].as_str().unwrap();
    assert!(
        prompt.contains("\"name\": \"weather\"") && prompt.contains("Hi<|eot_id|>"),
        "{prompt}"
    );
    let count = json!({"messages": user("Hi")});
    let count = ok(daemon.post("/v1/messages/count_tokens", &count));
    let whole = ok(daemon.post(CHAT, &json!({"messages": user("Hi"), "max_tokens": 1})));
    assert_eq!(count["input_tokens"], whole["usage"]["prompt_tokens"]);
}

#[test]
fn ollama_routes_describe_the_model_and_stream_lines() {
    let daemon = Daemon::start(ROOM);
    let version = daemon.get("/api/version").json();
    let parts = version["version"].as_str().unwrap().split('.').map(|part| part.parse().unwrap());
    assert!(parts.collect::<Vec<u32>>() >= vec![0, 13, 4], "Codex refuses older ones: {version}");
    assert!(version["orind"].is_string(), "{version}");
    let tags = daemon.get("/api/tags").json();
    assert_eq!(tags["models"][0]["name"], MODEL);
    let shown = daemon.post("/api/show", &json!({"model": format!("{MODEL}:latest")})).json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    let request = json!({"model": MODEL, "messages": user("The weather?"), "tools": tools(),
        "options": {"num_predict": 5, "temperature": 0}});
    let answer = daemon.post("/api/chat", &request);
    assert!(answer.headers.contains("application/x-ndjson"), "{}", answer.headers);
    let lines: Vec<Value> =
        answer.body.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let (last, parts) = lines.split_last().unwrap();
    assert!(
        parts.iter().all(|part| part["done"] == false && part["message"]["role"] == "assistant")
    );
    assert_eq!((&last["done"], &last["eval_count"]), (&json!(true), &json!(5)));
    for path in ["/api/embed", "/v1/embeddings"] {
        let refused = daemon.post(path, &json!({}));
        assert!(
            refused.status == 400 && refused.body.contains("invalid_value"),
            "{path}: no input"
        );
    }
}

/// Schemas as zod, pydantic and OpenAPI write them; answers follow them with every seed.
#[test]
fn schemas_of_generators_are_accepted() {
    let daemon = Daemon::start(ROOM);
    let object = |property: Value| {
        json!({"type": "object", "properties": {"p": property}, "required": ["p"],
            "additionalProperties": false})
    };
    let text = |format: &str| object(json!({"type": "string", "format": format, "maxLength": 3}));
    let score = json!({"type": "object", "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 20}},
        "required": ["score"], "additionalProperties": false, "patternProperties": {"^score$": {"type": "integer"}}});
    let pet = |kind: &str| {
        json!({"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"],
        "additionalProperties": false})
    };
    for schema in [
        object(
            json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"const": 1},
            "maxProperties": 1}),
        ),
        text("password"),
        text("path"),
        object(json!({"type": "integer", "format": "int32", "minimum": 0, "maximum": 9})),
        object(
            json!({"const": 1, "title": "P", "examples": [1], "default": 1, "deprecated": true, "readOnly": true}),
        ),
        object(
            json!({"type": "array", "items": {"const": 1}, "maxItems": 2, "contains": {"const": 1},
            "minContains": 0, "uniqueItems": false}),
        ),
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "$dynamicAnchor": "node", "const": 1}),
        json!({"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "discriminator": {"propertyName": "kind"},
            "$defs": {"Cat": pet("cat"), "Dog": pet("dog")}}),
        score,
    ] {
        for seed in 0..3 {
            let request = json!({"messages": user("JSON"), "max_tokens": 80, "temperature": 1.5, "seed": seed,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
            let answer = daemon.post(CHAT, &request);
            assert_eq!(answer.status, 200, "{schema}: {}", answer.body);
            let choice = answer.json()["choices"][0].clone();
            let said = choice["message"]["content"].as_str().unwrap();
            // A property's name may be so long that the answer ends before it.
            let whole = choice["finish_reason"] == "stop";
            assert!(!whole || serde_json::from_str::<Value>(said).is_ok(), "{schema}: {said}");
        }
    }
    for schema in [
        json!({"not": {"type": "string"}}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"type": "array", "contains": {"const": 1}, "maxContains": 1}),
    ] {
        let request = json!({"messages": user("JSON"), "max_tokens": 80, "json_schema": schema});
        assert_eq!(daemon.post(CHAT, &request).error(), (400, "grammar_failed".into()), "{schema}");
    }
}
