//! A load delays only the client that requested it, even if reading the file hangs.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use model::synthetic::Spec;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use orind_testing::daemon::{Daemon, MODEL, orind};

const MODELS: &str = "/orin/v1/models";

/// A model that is not served; its file does not exist yet.
const OTHER: &str = "synthetic:tiny-llama:q6_k";

/// A daemon whose loads of [`OTHER`] hang while the returned file is locked, as if another process were creating the
/// same model.
fn daemon(cache: &Path) -> (Daemon, File) {
    let mut command = orind();
    command.env("XDG_CACHE_HOME", cache);
    let settings = format!("model = '{MODEL}'\nthreads = 1\ncontext = 256\nprefill_chunk = 16");
    let daemon = Daemon::launch_with(command, &settings);
    daemon.until("it serves", |status| status["state"]["name"] == "ready");
    let name = Spec::parse(OTHER).unwrap().file_name();
    let lock = File::create(cache.join(format!("orind/synthetic/.{name}.lock"))).unwrap();
    lock.lock().unwrap();
    (daemon, lock)
}

fn ask(daemon: &Daemon) -> u16 {
    daemon.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 3})).status
}

/// Code of the error that ends a hanging load.
fn end(mut events: impl Iterator<Item = (String, String)>) -> String {
    let (name, data) = events.find(|(name, _)| name != "progress").unwrap();
    assert_eq!(name, "error", "{data}");
    let error: Value = serde_json::from_str(&data).unwrap();
    error["error"]["code"].as_str().unwrap().to_owned()
}

#[test]
fn a_load_that_hangs_delays_no_other_client() {
    let cache = tempfile::tempdir().unwrap();
    let (mut daemon, lock) = daemon(cache.path());
    let load = |model: &str| daemon.stream(MODELS, &json!({"model": model}));

    // The loaded model is still served.
    let hangs = load(OTHER);
    let status = daemon.until("it loads", |status| status["loading"]["model"] == OTHER);
    assert_eq!(status["state"]["name"], "ready", "{status}");
    assert_eq!((daemon.get("/health").status, ask(&daemon)), (200, 200));

    // Another load replaces it.
    assert_eq!(load(MODEL).last().unwrap().0, "result");
    assert_eq!(end(hangs), "load_given_up");
    assert_eq!(ask(&daemon), 200);

    // An unload replaces it.
    let hangs = load(OTHER);
    daemon.until("it loads", |status| status["loading"]["model"] == OTHER);
    let unloaded =
        daemon.raw(&orind_testing::daemon::head("DELETE", MODELS, "connection: close\r\n"));
    assert_eq!(unloaded.json()["unloaded"], true);
    assert_eq!(end(hangs), "load_given_up");
    let now = daemon.get("/orin/v1/status").json();
    assert!(now["state"]["name"] == "empty" && now["loading"].is_null(), "{now}");

    // SIGTERM ends it.
    let hangs = load(OTHER);
    daemon.until("it loads", |status| status["state"]["name"] == "loading");
    let asked = Instant::now();
    daemon.signal(Signal::SIGTERM);
    assert_eq!(end(hangs), "stopping");
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    // No request is in flight, so the deadline of 30 s does not apply.
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    drop(lock);
}

#[test]
fn a_bench_requested_during_a_load_measures_the_new_model() {
    let cache = tempfile::tempdir().unwrap();
    let (daemon, lock) = daemon(cache.path());
    let load = daemon.stream(MODELS, &json!({"model": OTHER}));
    daemon.until("it loads", |status| status["loading"]["model"] == OTHER);
    let spec = json!({"prompts": [4], "generate": [2], "repetitions": 1});
    // The answer is a stream unless the bench fails at once.
    let bench = daemon.stream("/orin/v1/bench", &spec);
    drop(lock);
    assert_eq!(load.last().unwrap().0, "result");
    let (name, report) = bench.last().unwrap();
    assert!(name == "result" && report.contains(OTHER), "{name}: {report}");
}
