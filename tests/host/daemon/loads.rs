//! A load delays only the client that requested it, even if reading the file hangs.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use model::synthetic::Spec;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use orind_testing::daemon::{Daemon, MODEL, eventually, head, orinctl, orind};
use orind_testing::program::said;

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
    let unloaded = daemon.raw(&head("DELETE", MODELS, "connection: close\r\n"));
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

/// A synthetic model that takes long to write; its file does not exist yet.
const LARGE: &str = "synthetic:llama-3.2-1b:q8_0";

/// Files in the folder of generated models, and those that a process has open there without a name.
fn files(cache: &Path, pid: i32) -> Vec<String> {
    let folder = cache.join("orind/synthetic");
    let named = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let named = named.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let open = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let nameless = open
        .filter(|file| file.starts_with(&folder) && file.to_string_lossy().ends_with("(deleted)"));
    let nameless = nameless.map(|file| file.display().to_string());
    named.filter(|name| !name.ends_with(".lock")).chain(nameless).collect()
}

#[test]
fn a_load_that_ends_early_stops_writing_and_leaves_no_file() {
    for end in ["unload", "another load", "SIGTERM", "SIGKILL"] {
        let cache = tempfile::tempdir().unwrap();
        let mut command = orind();
        command.env("XDG_CACHE_HOME", cache.path());
        let mut daemon = Daemon::launch_with(command, "threads = 1\ncontext = 256");
        let pid = daemon.pid();
        let mut events = daemon.stream(MODELS, &json!({"model": LARGE}));
        let (name, progress) = events.next().unwrap();
        assert_eq!(name, "progress", "{progress}");
        if end == "unload" {
            let home = cache.path();
            let listed = said(orinctl(home).arg("ps").arg("--socket").arg(daemon.socket()));
            assert!(listed.starts_with(&format!("{LARGE} is being loaded, ")), "{listed}");
        }
        assert!(!files(cache.path(), pid).is_empty(), "{end}");
        match end {
            "unload" => {
                let unloaded = daemon.raw(&head("DELETE", MODELS, "connection: close\r\n"));
                assert_eq!(unloaded.status, 200, "{}", unloaded.body);
            }
            "another load" => {
                let other = daemon.stream(MODELS, &json!({"model": MODEL}));
                assert_eq!(other.last().unwrap().0, "result");
            }
            "SIGTERM" => {
                daemon.signal(Signal::SIGTERM);
                daemon.wait();
            }
            _ => {
                daemon.signal(Signal::SIGKILL);
                daemon.wait();
            }
        }
        // Small models are written for checks of the device.
        eventually("no file is left", || {
            files(cache.path(), pid).iter().all(|name| name.starts_with("tiny-"))
        });
    }
}

/// A model of 61 GB. Larger machines cannot try this.
#[test]
fn a_model_larger_than_the_machine_is_refused_before_it_is_written() {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib = memory.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    if kib > 48 << 20 {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let mut command = orind();
    command.env("XDG_CACHE_HOME", cache.path());
    let daemon = Daemon::launch_with(command, "threads = 1\ncontext = 256");
    let begun = Instant::now();
    let mut events = daemon.stream(MODELS, &json!({"model": "synthetic:qwen3-30b-a3b:f16"}));
    let (name, data) = events.find(|(name, _)| name != "progress").unwrap();
    assert_eq!(name, "error", "{data}");
    let error: Value = serde_json::from_str(&data).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("MiB") || message.contains("GiB"), "{message}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(files(cache.path(), daemon.pid()), Vec::<String>::new());
}
