//! ollama's routes about models, requests that only load, and models that stay loaded for a limited time.

use model::gguf::Value as Metadata;
use orind_testing::daemon::{Answer, Daemon, MODEL, head};
use orind_testing::model_variants::saying;
use orind_testing::tiny;
use serde_json::{Value, json};

const ROOM: &str = "slots = 1\ncontext = 512\nprefill_chunk = 64";

fn ok(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn delete(daemon: &Daemon, name: &str) -> Answer {
    let body = json!({"model": name}).to_string();
    let headers = format!(
        "connection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    daemon.raw(&(head("DELETE", "/api/delete", &headers) + &body))
}

/// A daemon with an embedding model that has infill tokens.
fn embedding(dir: &std::path::Path) -> Daemon {
    let marks =
        ["fim_pre", "fim_suf", "fim_mid"].map(|name| format!("tokenizer.ggml.{name}_token_id"));
    let mut keys: Vec<(&str, Metadata)> = vec![("qwen3.pooling_type", Metadata::U32(3))];
    keys.extend(marks.iter().zip(5..).map(|(key, id)| (key.as_str(), Metadata::U32(id))));
    let file = saying(&tiny("tiny-qwen3-Q8_0"), dir, &keys);
    let daemon = Daemon::launch(&format!("model = '{file}'\nthreads = 1\n{ROOM}"));
    daemon.until("it serves", |status| status["state"]["name"] == "ready");
    daemon
}

#[test]
fn models_are_described() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = embedding(dir.path());
    let model = ok(&daemon.get("/api/ps"))["models"][0].clone();
    let name = model["model"].as_str().unwrap().to_owned();
    for field in ["name", "digest", "expires_at"] {
        assert!(!model[field].as_str().unwrap().is_empty(), "{field}: {model}");
    }
    assert_eq!((&model["size_vram"], &model["context_length"]), (&json!(0), &json!(512)));
    let tagged = ok(&daemon.get("/api/tags"))["models"][0].clone();
    assert_eq!(
        (&tagged["digest"], tagged["digest"].as_str().unwrap().len()),
        (&model["digest"], 64)
    );
    let shown =
        ok(&daemon.post("/api/show", &json!({"model": format!("{name}:latest"), "verbose": true})));
    let capabilities = shown["capabilities"].as_array().unwrap();
    for capability in ["completion", "embedding", "tools", "insert"] {
        assert!(capabilities.contains(&json!(capability)), "{capability}: {capabilities:?}");
    }
    for field in ["modelfile", "parameters", "template"] {
        assert!(!shown[field].as_str().unwrap().is_empty(), "{field}: {shown}");
    }
    for field in ["family", "parameter_size", "quantization_level", "format"] {
        assert!(!shown["details"][field].as_str().unwrap().is_empty(), "{field}: {shown}");
    }
    assert!(shown["model_info"]["qwen3.context_length"].is_number(), "{shown}");

    let one = ok(&daemon.post("/api/embeddings", &json!({"model": name, "prompt": "x"})));
    let many = ok(&daemon.post("/api/embed", &json!({"model": name, "input": ["x"]})));
    assert_eq!(one["embedding"], many["embeddings"][0]);
}

#[test]
fn names_have_a_system_prompt_and_options() {
    let daemon = Daemon::start(ROOM);
    let create = json!({"model": "poet", "from": MODEL, "system": "Rhyme.",
        "parameters": {"num_predict": 3, "temperature": 0, "stop": ["zq"]}, "stream": false});
    assert_eq!(ok(&daemon.post("/api/create", &create))["status"], "success");
    let ask = |model: &str, system: Option<&str>| {
        let system = system.map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> =
            system.into_iter().chain([json!({"role": "user", "content": "Hi"})]).collect();
        ok(&daemon.post(
            "/api/chat",
            &json!({"model": model, "messages": messages, "stream": false,
            "options": {"num_predict": 3}}),
        ))
    };
    let (poet, plain) = (ask("poet", None), ask(MODEL, None));
    let rhymed = ask(MODEL, Some("Rhyme."));
    assert_eq!(poet["model"], "poet");
    assert_eq!(poet["prompt_eval_count"], rhymed["prompt_eval_count"]);
    assert_ne!(poet["prompt_eval_count"], plain["prompt_eval_count"]);
    let generated =
        ok(&daemon
            .post("/api/generate", &json!({"model": "poet", "prompt": "Hi", "stream": false})));
    assert_eq!(generated["eval_count"], 3, "{generated}");
    assert_eq!(generated["prompt_eval_count"], rhymed["prompt_eval_count"]);
    let shown = ok(&daemon.post("/api/show", &json!({"model": "poet:latest"})));
    assert_eq!(shown["system"], "Rhyme.");
    for line in ["temperature 0", "stop \"zq\"", "num_predict 3"] {
        assert!(
            shown["parameters"].as_str().unwrap().lines().any(|l| l == line),
            "{line}: {shown}"
        );
    }
    assert_eq!(
        daemon.post("/api/copy", &json!({"source": "poet", "destination": "bard"})).status,
        200
    );
    let tags = ok(&daemon.get("/api/tags"));
    let names: Vec<&str> =
        tags["models"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, [MODEL, "bard", "poet"]);
    assert_eq!(delete(&daemon, "poet").status, 200);
    assert_eq!(delete(&daemon, "poet").status, 404);
    assert_eq!(ask("bard", None)["prompt_eval_count"], rhymed["prompt_eval_count"]);

    // Unsupported operations are refused with the reason.
    assert_eq!(delete(&daemon, MODEL).status, 400);
    for (path, body, status) in [
        ("/api/pull", json!({"model": "qwen3:8b"}), 400),
        ("/api/pull", json!({"model": MODEL, "stream": false}), 200),
        ("/api/push", json!({"model": MODEL}), 400),
        ("/api/copy", json!({"source": "nobody", "destination": "x"}), 404),
        ("/api/copy", json!({"source": MODEL, "destination": MODEL}), 400),
        ("/api/create", json!({"model": "x", "from": "nobody"}), 404),
        ("/api/create", json!({"model": "x", "from": MODEL, "template": "{{ x }}"}), 400),
        ("/api/create", json!({"model": "x", "from": MODEL, "files": {"a": "b"}}), 400),
        ("/api/create", json!({"model": "a b", "from": MODEL}), 400),
    ] {
        let answer = daemon.post(path, &body);
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
        assert!(status == 200 || answer.json()["error"].is_string(), "{}", answer.body);
    }
}

#[test]
fn requests_without_a_prompt_load_and_unload() {
    let daemon = Daemon::start(ROOM);
    for (path, body) in [
        ("/api/generate", json!({})),
        ("/api/generate", json!({"prompt": ""})),
        ("/api/chat", json!({"messages": []})),
        ("/api/chat", json!({"keep_alive": "5m"})),
    ] {
        let loaded = ok(&daemon.post(path, &body));
        assert_eq!(
            (&loaded["done"], &loaded["done_reason"]),
            (&json!(true), &json!("load")),
            "{loaded}"
        );
    }
    let until = ok(&daemon.get("/api/ps"))["models"][0]["expires_at"].as_str().unwrap().to_owned();
    assert!(!until.starts_with("9999"), "{until}");
    let unloaded =
        ok(&daemon.post("/api/chat", &json!({"model": MODEL, "messages": [], "keep_alive": 0})));
    assert_eq!((&unloaded["done_reason"], &unloaded["model"]), (&json!("unload"), &json!(MODEL)));
    assert_eq!(ok(&daemon.get("/api/ps"))["models"], json!([]));
    assert_eq!(ok(&daemon.get("/api/tags"))["models"][0]["name"], MODEL);
    assert_eq!(daemon.get("/health").status, 200);

    // The next request loads it again, in every dialect, for all that wait.
    let chat =
        json!({"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| daemon.post("/v1/chat/completions", &chat).status))
            .collect();
        clients.into_iter().for_each(|client| assert_eq!(client.join().unwrap(), 200));
    });
    assert_eq!(daemon.post("/api/chat", &json!({"model": "nobody", "keep_alive": 0})).status, 404);
    let wrong = daemon.post("/api/chat", &json!({"messages": [], "keep_alive": "soon"}));
    assert_eq!((wrong.status, &wrong.json()["param"]), (400, &json!("keep_alive")));

    // After an answer, and after a time without requests.
    let generate = |keep_alive: Value| {
        let request = json!({"prompt": "x", "stream": false, "options": {"num_predict": 1}, "keep_alive": keep_alive});
        ok(&daemon.post("/api/generate", &request));
    };
    generate(json!(0));
    daemon.until("it is unloaded", |status| status["state"]["name"] == "empty");
    generate(json!("300ms"));
    daemon.until("it is unloaded again", |status| status["state"]["name"] == "empty");
    generate(json!(0.2));
    generate(json!(-1));
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!(daemon.get("/orin/v1/status").json()["state"]["name"], "ready");

    // A model that was unloaded by hand stays so.
    generate(json!(0));
    daemon.until("it is unloaded", |status| status["state"]["name"] == "empty");
    daemon.raw(&head("DELETE", "/orin/v1/models", "connection: close\r\n"));
    assert_eq!(daemon.post("/v1/chat/completions", &chat).status, 503);
}

#[test]
fn raw_prompts_and_gaps_are_completed() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = embedding(dir.path());
    let options = json!({"num_predict": 4, "temperature": 0});
    let generate = |more: Value| {
        let mut request = json!({"prompt": "fn f(", "stream": false, "options": options});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ok(&daemon.post("/api/generate", &request))["response"].clone()
    };
    let complete = |more: Value| {
        let mut request = json!({"prompt": "fn f(", "max_tokens": 4, "temperature": 0});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ok(&daemon.post("/v1/completions", &request))["choices"][0]["text"].clone()
    };
    assert_eq!(generate(json!({"raw": true})), complete(json!({})));
    let gap = complete(json!({"suffix": ") {}"}));
    assert_eq!(generate(json!({"suffix": ") {}"})), gap);

    // llama.cpp's route for the same.
    let mut infill = json!({"input_prefix": "fn ", "prompt": "f(", "input_suffix": ") {}", "n_predict": 4,
        "temperature": 0, "cache_prompt": true, "samplers": ["top_k"], "t_max_predict_ms": 500});
    let whole = ok(&daemon.post("/infill", &infill));
    assert_eq!((&whole["content"], &whole["stop"]), (&gap, &json!(true)));
    assert_eq!((&whole["stop_type"], &whole["tokens_predicted"]), (&json!("limit"), &json!(4)));
    infill["stream"] = true.into();
    let parts: Vec<Value> = daemon
        .stream("/infill", &infill)
        .map(|(_, data)| serde_json::from_str(&data).unwrap())
        .collect();
    let text: String = parts.iter().map(|part| part["content"].as_str().unwrap()).collect();
    assert_eq!(json!(text), gap);
    infill["stream"] = false.into();
    infill["input_extra"] =
        json!([{"filename": "a.rs", "text": "fn g() {}"}, {"text": "x".repeat(1 << 20)}]);
    let alone = ok(&daemon.post("/infill", &infill));
    assert_eq!(alone["tokens_evaluated"], whole["tokens_evaluated"], "the last file does not fit");
    infill["input_extra"] =
        json!([{"text": "x".repeat(1 << 20)}, {"filename": "a.rs", "text": "fn g() {}"}]);
    let with_file = ok(&daemon.post("/infill", &infill))["tokens_evaluated"].as_u64();
    assert!(with_file > whole["tokens_evaluated"].as_u64());
}

#[test]
fn routes_of_llama_cpp_describe_the_model() {
    let daemon = Daemon::start("slots = 2\ncontext = 256\nprefill_chunk = 16");
    let props = ok(&daemon.get("/props"));
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(2), &json!(MODEL)));
    assert_eq!(props["default_generation_settings"]["n_ctx"], 256);
    assert!(!props["chat_template"].as_str().unwrap().is_empty());
    let slots = ok(&daemon.get("/slots"));
    assert_eq!((slots.as_array().unwrap().len(), &slots[1]["n_ctx"]), (2, &json!(256)));
    assert_eq!(ok(&daemon.get("/lora-adapters")), json!([]));
    let scale = daemon.post("/lora-adapters", &json!([{"id": 0, "scale": 1}]));
    assert_eq!(scale.error(), (400, "unsupported_operation".into()));
    for path in api::route::RERANK {
        let refused = daemon.post(path, &json!({"query": "a", "documents": ["b"]}));
        assert_eq!(refused.error(), (400, "unsupported_operation".into()), "{path}");
    }
    let infill = daemon.post("/infill", &json!({"input_prefix": "a", "input_suffix": "b"}));
    assert_eq!(infill.json()["error"]["param"], "suffix");
}
