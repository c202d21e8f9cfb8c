//! A load keeps nobody waiting who has not asked for it, whatever its file does.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use model::synthetic::Spec;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use orind_testing::daemon::{Daemon, MODEL, orind};

const MODELS: &str = "/orin/v1/models";

/// Another model than the one that is served; its file is still to be made.
const OTHER: &str = "synthetic:tiny-llama:q6_k";

/// A daemon whose loads of [`OTHER`] hang as long as the file given back is there: it is locked, as by another
/// process that makes the same model and does not come to an end.
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

/// The code of the error that ends a load which has been going on for a while.
fn end(mut events: impl Iterator<Item = (String, String)>) -> String {
    let (name, data) = events.find(|(name, _)| name != "progress").unwrap();
    assert_eq!(name, "error", "{data}");
    let error: Value = serde_json::from_str(&data).unwrap();
    error["error"]["code"].as_str().unwrap().to_owned()
}

#[test]
fn a_load_that_hangs_keeps_nobody_waiting() {
    let cache = tempfile::tempdir().unwrap();
    let (mut daemon, lock) = daemon(cache.path());
    let load = |model: &str| daemon.stream(MODELS, &json!({"model": model}));

    // What is served goes on.
    let hangs = load(OTHER);
    let status = daemon.until("it loads", |status| status["loading"]["model"] == OTHER);
    assert_eq!(status["state"]["name"], "ready", "{status}");
    assert_eq!((daemon.get("/health").status, ask(&daemon)), (200, 200));

    // Another load takes its place.
    assert_eq!(load(MODEL).last().unwrap().0, "result");
    assert_eq!(end(hangs), "load_given_up");
    assert_eq!(ask(&daemon), 200);

    // So does the wish to have nothing loaded.
    let hangs = load(OTHER);
    daemon.until("it loads", |status| status["loading"]["model"] == OTHER);
    let unloaded =
        daemon.raw(&orind_testing::daemon::head("DELETE", MODELS, "connection: close\r\n"));
    assert_eq!(unloaded.json()["unloaded"], true);
    assert_eq!(end(hangs), "load_given_up");
    let now = daemon.get("/orin/v1/status").json();
    assert!(now["state"]["name"] == "empty" && now["loading"].is_null(), "{now}");

    // And whoever stops the daemon.
    let hangs = load(OTHER);
    daemon.until("it loads", |status| status["state"]["name"] == "loading");
    let asked = Instant::now();
    daemon.signal(Signal::SIGTERM);
    assert_eq!(end(hangs), "stopping");
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    // The deadline for requests in flight is 30 s, and there are none.
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    drop(lock);
}

#[test]
fn a_bench_that_is_asked_for_during_a_load_measures_the_new_model() {
    let cache = tempfile::tempdir().unwrap();
    let (daemon, lock) = daemon(cache.path());
    let load = daemon.stream(MODELS, &json!({"model": OTHER}));
    daemon.until("it loads", |status| status["loading"]["model"] == OTHER);
    let spec = json!({"prompts": [4], "generate": [2], "repetitions": 1});
    // Answered with events when it has not failed at once.
    let bench = daemon.stream("/orin/v1/bench", &spec);
    drop(lock);
    assert_eq!(load.last().unwrap().0, "result");
    let (name, report) = bench.last().unwrap();
    assert!(name == "result" && report.contains(OTHER), "{name}: {report}");
}
