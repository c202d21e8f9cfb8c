//! First light on simulated Orins that do not do what is relied upon: the daemon's engine ends on a device
//! that works, says why, and does not take the machine down twice.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use ::engine::{Light, LoadSpec, State};
use device::bring_up::{self, FILE};
use orind_testing::daemon::{self, Daemon, eventually};
use orind_testing::engine;
use orind_testing::program::{again, preload_library, said};

/// The variable that says where the state directory is.
const STATE: &str = "ORIND_TEST_STATE";

/// A start of the daemon's engine, with a model and one answer; prints what became of it.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn start() {
    let dir = std::env::var_os(STATE).map(Into::into);
    let light = Light { dir, ..Light::default() };
    let spec = engine::spec("synthetic:tiny-llama:q8_0", "auto");
    let handle = engine::start(LoadSpec { light, ..spec });
    println!("tokens {:?}", engine::ask(&handle, engine::request(1..20, 6)).ids);
    let now = handle.snapshot();
    let State::Ready(model) = now.state else { panic!("{:?}", now.state) };
    println!("device {}", model.device.name);
    println!("reason {}", model.device.reason);
    for health in now.devices {
        println!("disabled {}", health.disabled.unwrap_or_default());
    }
}

/// A start on a machine whose reliances fail as `machine` says.
fn on(machine: &str, state: &Path) -> Command {
    let mut command = again(module_path!(), "start");
    command.env(STATE, state).env("TEGRA_SIM_MACHINE", machine);
    command
}

fn line(text: &str, name: &str) -> String {
    text.lines()
        .find_map(|l| l.split_once(name))
        .map(|(_, rest)| rest.to_owned())
        .unwrap_or_default()
}

/// Whether a process that is stuck in a stage has written that down.
fn is_in_a_stage(state: &Path) -> bool {
    let book = bring_up::read(state).unwrap_or_default();
    book.devices.get("nv").is_some_and(|record| record.under_way.is_some())
}

#[test]
fn what_passed_is_remembered_and_wrong_results_send_the_model_on() {
    let state = tempfile::tempdir().unwrap();
    let good = said(&mut on("", state.path()));
    assert_eq!(line(&good, "device "), "nv");
    let written = fs::read_to_string(state.path().join(FILE)).unwrap();
    // Nothing is proven again, and nothing written.
    assert_eq!(said(&mut on("", state.path())).lines().count(), good.lines().count());
    assert_eq!(fs::read_to_string(state.path().join(FILE)).unwrap(), written);

    let wrong = tempfile::tempdir().unwrap();
    let text = said(&mut on("nan=mufu", wrong.path()));
    assert_eq!(line(&text, "device "), "cpu", "{text}");
    assert_eq!(line(&text, "tokens "), line(&good, "tokens "));
    assert!(line(&text, "reason ").contains("not nv (first light, stage "), "{text}");
    assert!(line(&text, "disabled ").contains("first light, stage "), "{text}");
}

/// Over the daemon's socket.
#[test]
fn the_mode_is_shown() {
    let mut command = daemon::orind();
    command.env("LD_PRELOAD", preload_library());
    let settings =
        format!("model = '{}'\nthreads = 1\ncontext = 64\ngpu_mode = 'serial'\n", daemon::MODEL);
    let daemon = Daemon::launch_with(command, &settings);
    let status = daemon.until("the model is loaded", |s| s["state"]["name"] == "ready");
    assert_eq!(status["model"]["device"]["name"], "nv", "{status}");
    assert_eq!(status["devices"][0]["mode"]["chains"], "serial", "{status}");
    let metrics = daemon.get("/metrics").body;
    let mode = metrics.lines().find(|line| line.starts_with("orind_device_mode_info{")).unwrap();
    assert!(mode.contains("device=\"nv\"") && mode.contains("chains=\"serial\""), "{mode}");
    assert!(metrics.contains("orind_device_mode_changes_total 0"), "{metrics}");
}

#[test]
fn a_freeze_happens_twice_at_most_and_a_machine_that_went_down_is_not_frozen_again() {
    let state = tempfile::tempdir().unwrap();
    let freeze = || {
        let mut command = on("freeze=launch", state.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let before = fs::read_to_string(state.path().join(FILE)).ok();
        let mut child = command.spawn().unwrap();
        eventually("it is in a stage", || {
            let now = fs::read_to_string(state.path().join(FILE)).ok();
            now != before && is_in_a_stage(state.path())
        });
        child.kill().unwrap();
        child.wait().unwrap();
    };
    freeze();
    let once = fs::read_to_string(state.path().join(FILE)).unwrap();
    // A process that ended gets another chance, and no third.
    freeze();
    let text = said(&mut on("freeze=launch", state.path()));
    assert_eq!(line(&text, "device "), "cpu", "{text}");
    assert!(line(&text, "reason ").contains("not nv (orind ended in stage `"), "{text}");

    // The machine did not come through the first time.
    let mut book: serde_json::Value = serde_json::from_str(&once).unwrap();
    book["devices"]["nv"]["key"]["boot"] = "before".into();
    fs::write(state.path().join(FILE), book.to_string()).unwrap();
    let text = said(&mut on("freeze=launch", state.path()));
    assert_eq!(line(&text, "device "), "cpu", "{text}");
    let told = line(&text, "disabled ");
    assert!(told.contains("went down in stage `") && told.contains("--retry-gpu"), "{text}");

    bring_up::forget(state.path()).unwrap();
    let text = said(&mut on("", state.path()));
    assert_eq!(line(&text, "device "), "nv", "{text}");
}

/// A model is served on every machine, on the GPU where it works, else on the processor, and the reason is
/// told.
#[test]
fn every_machine_serves_with_the_right_tokens() {
    let good = {
        let state = tempfile::tempdir().unwrap();
        said(&mut on("", state.path()))
    };
    for (machine, device, why) in [
        ("no-event", "nv", ""),
        ("no-qmd-release", "nv", ""),
        ("chain-cut=64", "nv", ""),
        ("chain-cut=8", "nv", ""),
        ("local-memory-refused", "nv", ""),
        ("read-only-maps-fault", "nv", ""),
        ("no-heap-query", "nv", ""),
        ("stale-handover", "nv", ""),
        ("short-range-refused", "nv", ""),
        ("lost-atomics", "cpu", "stage atomics"),
        ("nan=shfl", "cpu", "stage launch"),
        ("nan=hmma", "nv", ""),
        ("no-event,chain-cut=8,stale-handover,no-heap-query", "nv", ""),
    ] {
        let state = tempfile::tempdir().unwrap();
        let text = said(&mut on(machine, state.path()));
        assert_eq!(line(&text, "tokens "), line(&good, "tokens "), "{machine}: {text}");
        assert_eq!(line(&text, "device "), device, "{machine}: {text}");
        assert!(line(&text, "reason ").contains(why), "{machine}: {text}");
    }
}

/// Drivers of other releases: whatever they refuse, `auto` serves.
#[test]
fn every_release_serves() {
    let dir = tempfile::tempdir().unwrap();
    let start = |release: &str| {
        let state = tempfile::tempdir().unwrap();
        let mut command = on("", state.path());
        command.env("TEGRA_SIM_RELEASE", release);
        (said(&mut command), state)
    };
    let (good, _) = start("r36.4");
    let tokens = line(&good, "tokens ");
    for (release, device) in [("r35.4", "cpu"), ("r36.2", "nv"), ("r39", "nv")] {
        let (text, _) = start(release);
        assert_eq!(line(&text, "tokens "), tokens, "{release}: {text}");
        assert_eq!(line(&text, "device "), device, "{release}: {text}");
    }

    // Every request that a start makes, missing by itself.
    let trace = dir.path().join("trace");
    said(on("", &dir.path().join("state")).env("TEGRA_SIM_TRACE", &trace));
    let mut requests = std::collections::BTreeSet::new();
    for event in fs::read_to_string(&trace).unwrap().lines() {
        let event: serde_json::Value = serde_json::from_str(event).unwrap();
        if event["event"] == "ioctl" && event["request"].as_str().unwrap() != "OPEN" {
            requests.insert(event["request"].as_str().unwrap().to_owned());
        }
    }
    assert!(requests.len() > 15, "{requests:?}");
    let mut without = Vec::new();
    for request in &requests {
        let (text, _) = start(&format!("r39:{request}"));
        assert_eq!(line(&text, "tokens "), tokens, "{request}: {text}");
        match line(&text, "device ").as_str() {
            "nv" => without.push(request.as_str()),
            device => {
                assert_eq!(device, "cpu", "{request}: {text}");
                assert!(line(&text, "reason ").contains("not nv ("), "{request}: {text}");
            }
        }
    }
    println!("of {requests:?} the GPU can do without {without:?}");
}
