//! Two models on the simulated Orin, each with a queue of its own: requests to one do not change answers of the other.

use std::thread;

use orind_testing::daemon::{self, Daemon, MODEL};
use orind_testing::program::preload_library;
use serde_json::json;

const OTHER: &str = "synthetic:tiny-qwen3:q8_0";

#[test]
fn two_models_share_the_gpu_and_answer_as_on_the_cpu() {
    let state = tempfile::tempdir().unwrap();
    let launch = |backend: &str| {
        let mut command = daemon::orind();
        command.env("LD_PRELOAD", preload_library());
        let settings = format!(
            "model = '{MODEL}'\nthreads = 1\ncontext = 64\nslots = 2\nbackend = '{backend}'\nstate_dir = '{}'\n\
             [[resident]]\nmodel = '{OTHER}'\nname = 'other'\nload = 'start'\n",
            state.path().display(),
        );
        let daemon = Daemon::launch_with(command, &settings);
        daemon.until("both models are loaded", |status| {
            status["state"]["name"] == "ready" && status["residents"][0]["model"].is_object()
        });
        daemon
    };
    let ask = |daemon: &Daemon, model: &str, prompt: &str| {
        let body = json!({ "model": model, "prompt": prompt, "max_tokens": 6, "temperature": 0 });
        let answer = daemon.post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.json());
        answer.json()["choices"][0]["text"].clone()
    };
    let asked = [(MODEL, "once upon"), ("other", "once upon"), (MODEL, "a b c"), ("other", "1 2")];
    let cpu = launch("cpu");
    let want = asked.map(|(model, prompt)| ask(&cpu, model, prompt));
    drop(cpu);
    let gpu = launch("nv");
    for one in ["model", "residents"] {
        let status = gpu.get("/orin/v1/status").json();
        let model =
            if one == "model" { &status["model"] } else { &status["residents"][0]["model"] };
        assert_eq!(model["device"]["name"], "nv", "{one}: {status}");
    }
    thread::scope(|scope| {
        let served = asked.map(|(model, prompt)| scope.spawn(|| ask(&gpu, model, prompt)));
        for (served, want) in served.into_iter().zip(want) {
            assert_eq!(served.join().unwrap(), want);
        }
    });
}
