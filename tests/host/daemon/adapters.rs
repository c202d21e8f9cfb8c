//! Adapters through the daemon: configured, named after the model in every dialect, or listed with scales.

use orind_testing::adapters::Noise;
use orind_testing::daemon::{Daemon, orind};
use orind_testing::tiny;
use serde_json::{Value, json};

const MODEL: &str = "tiny-llama-Q8_0";

/// A daemon with two adapters; the second is the default.
fn start(dir: &std::path::Path) -> Daemon {
    let model = tiny(MODEL);
    let [first, second] = [(1, "tools"), (2, "style")].map(|(seed, name)| {
        let noise = Noise { alpha: Some(64.0), ..Noise::new(seed, 8) };
        noise.write(&model, &dir.join(format!("{name}.gguf")))
    });
    let mut command = orind();
    command.args(["--lora", &format!("{first}=0"), "--lora", &second]);
    let daemon =
        Daemon::launch_with(command, &format!("model = '{model}'\nthreads = 2\ncontext = 256"));
    daemon.until("the model is loaded", |status| status["state"]["name"] == "ready");
    daemon
}

fn said(daemon: &Daemon, more: &Value) -> String {
    let mut body = json!({"prompt": "once upon", "max_tokens": 12, "temperature": 0});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    let answer = daemon.post("/v1/completions", &body).json();
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn an_adapter_is_named_after_the_model_or_listed_with_a_scale() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let models = daemon.get("/v1/models").json();
    let of = |at: usize, key: &str| models["data"][at][key].clone();
    assert_eq!((of(0, "id"), of(0, "parent")), (json!(MODEL), Value::Null));
    assert_eq!((of(1, "id"), of(1, "parent")), (json!(format!("{MODEL}:tools")), json!(MODEL)));
    assert_eq!(of(2, "id"), json!(format!("{MODEL}:style")));
    let one = daemon.get(&format!("/v1/models/{MODEL}:style")).json();
    assert_eq!(one["parent"], MODEL);
    let status = daemon.get("/orin/v1/status").json();
    let adapters = &status["model"]["adapters"];
    assert_eq!((&adapters[0]["name"], &adapters[0]["scale"]), (&json!("tools"), &json!(0.0)));
    assert_eq!((&adapters[1]["name"], &adapters[1]["scale"]), (&json!("style"), &json!(1.0)));

    let listed = |list: Value| said(&daemon, &json!({"lora": list}));
    let base = listed(json!([]));
    let tools = said(&daemon, &json!({"model": format!("{MODEL}:tools")}));
    let style = said(&daemon, &json!({"model": format!("{MODEL}:style")}));
    assert!(base != tools && base != style && tools != style, "{base} {tools} {style}");
    assert_eq!(listed(json!([{"id": 0, "scale": 1.0}])), tools);
    assert_eq!(listed(json!([{"id": 1, "scale": 1}])), style);
    // Without a choice, the configured adapter applies.
    assert_eq!(said(&daemon, &json!({})), style);
    assert_eq!(said(&daemon, &json!({"model": MODEL})), style);
    assert_ne!(listed(json!([{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.5}])), base);
}

#[test]
fn every_dialect_accepts_the_name_of_an_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let name = format!("{MODEL}:tools");
    let messages = json!([{"role": "user", "content": "once upon"}]);
    let chat = |model: &str| {
        let body =
            json!({"model": model, "messages": messages, "max_tokens": 12, "temperature": 0});
        daemon.post("/v1/chat/completions", &body).json()["choices"][0]["message"]["content"]
            .clone()
    };
    let expected = chat(&name);
    assert!(expected.is_string() && expected != chat(MODEL), "{expected}");
    let body = json!({"model": name, "messages": messages, "max_tokens": 12, "temperature": 0});
    assert_eq!(daemon.post("/v1/messages", &body).json()["content"][0]["text"], expected);
    let options = json!({"temperature": 0, "num_predict": 12});
    let body = json!({"model": format!("{name}:latest"), "messages": messages, "stream": false,
                      "options": options});
    assert_eq!(daemon.post("/api/chat", &body).json()["message"]["content"], expected);
    let body = json!({"model": name, "input": "once upon", "max_output_tokens": 12,
                      "temperature": 0});
    let answer = daemon.post("/v1/responses", &body).json();
    assert_eq!(answer["output"][0]["content"][0]["text"], expected, "{answer}");
}

#[test]
fn an_unknown_adapter_is_refused_with_the_known_names() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let refused = |path: &str, body: Value| {
        let answer = daemon.post(path, &body);
        let error = answer.json()["error"].clone();
        (answer.status, error["param"].clone(), error["message"].as_str().unwrap().to_owned())
    };
    let name = format!("{MODEL}:nobody");
    let (status, param, message) =
        refused("/v1/completions", json!({"model": name, "prompt": "a"}));
    assert_eq!((status, param), (404, json!("model")));
    let others = format!("`{MODEL}`, `{MODEL}:tools`, `{MODEL}:style` is");
    assert_eq!(message, format!("the model `{name}` is not loaded; {others}"));
    for (lora, model, param, expected) in [
        (json!([{"id": 2, "scale": 1}]), MODEL, "lora[0].id", "is 2; the adapters are 0 to 1"),
        (
            json!([{"id": 1, "scale": 1}, {"id": 1, "scale": 2}]),
            MODEL,
            "lora[1].id",
            "1 is listed twice",
        ),
        (json!([{"id": 0, "scale": 1e9}]), MODEL, "lora.scale", "-100 to 100 are allowed"),
        (json!([]), "tiny-llama-Q8_0:tools", "lora", "`model` names an adapter already"),
    ] {
        let body = json!({"model": model, "prompt": "a", "max_tokens": 1, "lora": lora});
        let (status, at, message) = refused("/v1/completions", body);
        assert_eq!((status, &at), (400, &json!(param)), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let body = json!({"model": MODEL, "max_tokens": 1, "lora": [{"id": 0, "scale": 1}],
                      "messages": [{"role": "user", "content": "a"}]});
    let (status, param, message) = refused("/v1/messages", body);
    assert_eq!((status, param), (400, json!("lora")), "{message}");
}
