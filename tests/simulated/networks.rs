//! ONNX networks through the daemon's socket, on a simulated Orin that also serves a model.

use nn::files::{Array, read_npy, write_npy};
use orind_testing::control_loop::example;
use orind_testing::daemon::{self, Answer, Daemon, MODEL, orinctl};
use orind_testing::data;
use orind_testing::program::{preload_library, said};
use serde_json::{Value, json};
use tempfile::TempDir;

fn launch(state: &TempDir, settings: &str) -> Daemon {
    let mut command = daemon::orind();
    command.env("LD_PRELOAD", preload_library());
    let dir = state.path().display();
    Daemon::launch_with(command, &format!("threads = 1\nstate_dir = '{dir}'\n{settings}"))
}

/// The daemon's answer for the 12-128-128-4 policy, on a backend or on the default one.
fn policy(daemon: &Daemon, backend: Option<&str>) -> Answer {
    let (observation, _) = example();
    let file = data("lanes/policy.onnx");
    let mut body = json!({
        "model": file, "inputs": {"observation": {"shape": [1, 12], "values": observation}},
    });
    if let Some(backend) = backend {
        body["backend"] = backend.into();
    }
    daemon.post("/orin/v1/run", &body)
}

fn action(answer: &Value) -> Vec<f64> {
    let values = answer["outputs"]["action"]["values"].as_array();
    values.unwrap_or_else(|| panic!("{answer}")).iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn a_network_runs_on_the_models_gpu() {
    let state = tempfile::tempdir().unwrap();
    let daemon = launch(&state, &format!("model = '{MODEL}'\ncontext = 128\nbackend = 'nv'\n"));
    // The model is still being loaded, perhaps after first light.
    let first = policy(&daemon, None).json();
    assert!(first["device"].as_str().unwrap().contains("SMs"), "{first}");
    let (_, numpy) = example();
    for (have, want) in action(&first).iter().zip(&numpy) {
        assert!((have - want).abs() < 1e-5, "{have}, not {want}");
    }
    let cpu = policy(&daemon, Some("cpu")).json();
    assert!(!cpu["device"].as_str().unwrap().contains("SMs"), "{cpu}");
    assert_eq!(action(&first), action(&cpu), "the CPU and the GPU give the same bits");
    daemon.until("the model is loaded", |status| status["state"]["name"] == "ready");
    let named = policy(&daemon, Some("nv")).json();
    assert_eq!(named["device"], first["device"]);
    let body = json!({ "prompt": "once upon a time", "max_tokens": 12 });
    std::thread::scope(|scope| {
        let served = scope.spawn(|| daemon.post("/v1/completions", &body).status);
        while !served.is_finished() {
            let answer = policy(&daemon, Some("nv")).json();
            assert_eq!((&answer["prepared"], action(&answer)), (&json!(true), action(&first)));
        }
        assert_eq!(served.join().unwrap(), 200);
    });
    let [observation, answers] = ["observation.npy", "answers"].map(|name| state.path().join(name));
    let (values, _) = example();
    write_npy(&observation, &Array { shape: vec![1, 12], values: values.to_vec() }).unwrap();
    let mut command = orinctl(state.path());
    command.arg("run").arg(data("lanes/policy.onnx")).args(["--daemon", "--repeat", "2", "--json"]);
    command.arg("--input").arg(format!("observation={}", observation.display()));
    command.arg("--output").arg(&answers).env("ORIND_SOCKET", daemon.socket());
    let ran: Value = serde_json::from_str(&said(&mut command)).unwrap();
    assert_eq!((&ran["device"], &ran["runs"]), (&first["device"], &json!(2)), "{ran}");
    let written = read_npy(&answers.join("action.npy")).unwrap().values;
    assert_eq!(written.iter().map(|v| f64::from(*v)).collect::<Vec<_>>(), action(&first));
    for (backend, word) in [("tpu", "auto, nv, cuda, cpu, reference"), ("cuda", "cuda")] {
        let answer = policy(&daemon, Some(backend));
        assert_eq!(answer.error(), (400, "invalid_value".into()));
        let error = &answer.json()["error"];
        assert_eq!(error["param"], "backend");
        assert!(error["message"].as_str().unwrap().contains(word), "{error}");
    }
}

/// The reserve applies to GPU memory. CPU memory can be swapped, so `auto` falls back to the CPU.
#[test]
fn a_network_respects_the_memory_reserve() {
    let state = tempfile::tempdir().unwrap();
    let daemon = launch(&state, "backend = 'auto'\nmemory_reserve_mib = 65536\n");
    let refused = policy(&daemon, Some("nv"));
    assert_eq!(refused.error(), (507, "out_of_memory".into()));
    let message = refused.json()["error"]["message"].to_string();
    assert!(
        message.contains("memory_reserve_mib = 65536") && message.contains("weights"),
        "{message}"
    );
    let answer = policy(&daemon, None).json();
    assert!(!answer["device"].as_str().unwrap().contains("SMs"), "{answer}");
}
