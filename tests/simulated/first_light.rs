//! First light on simulated Orins with defects: the engine selects a device that works, reports why, and never
//! crashes a machine twice.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use ::engine::{Light, LoadSpec, State};
use device::bring_up::{self, FILE};
use orind_testing::daemon::{self, Daemon, eventually};
use orind_testing::engine;
use orind_testing::program::{again, preload_library, said};

/// Environment variable with the path of the state directory.
const STATE: &str = "ORIND_TEST_STATE";

/// Starts an engine with a model, and prints one answer, the device and the reason.
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

/// Command for a start on a machine with the defects that `machine` names.
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

/// True if the state file records a step under way.
fn is_in_a_step(state: &Path) -> bool {
    let book = bring_up::read(state).unwrap_or_default();
    book.devices.get("nv").is_some_and(|record| record.under_way.is_some())
}

#[test]
fn passed_steps_are_remembered_and_wrong_results_select_the_cpu() {
    let state = tempfile::tempdir().unwrap();
    let good = said(&mut on("", state.path()));
    assert_eq!(line(&good, "device "), "nv");
    let written = fs::read_to_string(state.path().join(FILE)).unwrap();
    // The second start repeats no step and writes nothing.
    assert_eq!(said(&mut on("", state.path())).lines().count(), good.lines().count());
    assert_eq!(fs::read_to_string(state.path().join(FILE)).unwrap(), written);

    let wrong = tempfile::tempdir().unwrap();
    let text = said(&mut on("nan=mufu", wrong.path()));
    assert_eq!(line(&text, "device "), "cpu", "{text}");
    assert_eq!(line(&text, "tokens "), line(&good, "tokens "));
    assert!(line(&text, "reason ").contains("not nv (first light, stage "), "{text}");
    assert!(line(&text, "disabled ").contains("first light, stage "), "{text}");
}

/// Status and metrics of the daemon.
#[test]
fn the_mode_is_reported() {
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
fn a_machine_freezes_at_most_twice_and_never_again_after_a_crash() {
    let state = tempfile::tempdir().unwrap();
    let freeze = || {
        let mut command = on("freeze=launch", state.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let before = fs::read_to_string(state.path().join(FILE)).ok();
        let mut child = command.spawn().unwrap();
        eventually("a step is under way", || {
            let now = fs::read_to_string(state.path().join(FILE)).ok();
            now != before && is_in_a_step(state.path())
        });
        child.kill().unwrap();
        child.wait().unwrap();
    };
    freeze();
    let once = fs::read_to_string(state.path().join(FILE)).unwrap();
    // After the end of a process the step is tried once more, and then never.
    freeze();
    let text = said(&mut on("freeze=launch", state.path()));
    assert_eq!(line(&text, "device "), "cpu", "{text}");
    assert!(line(&text, "reason ").contains("not nv (orind ended in stage `"), "{text}");

    // The machine was restarted during the first try.
    let mut book: serde_json::Value = serde_json::from_str(&once).unwrap();
    book["devices"]["nv"]["key"]["boot"] = "before".into();
    fs::write(state.path().join(FILE), book.to_string()).unwrap();
    let text = said(&mut on("freeze=launch", state.path()));
    assert_eq!(line(&text, "device "), "cpu", "{text}");
    let message = line(&text, "disabled ");
    assert!(message.contains("went down in stage `") && message.contains("--retry-gpu"), "{text}");

    bring_up::forget(state.path()).unwrap();
    let text = said(&mut on("", state.path()));
    assert_eq!(line(&text, "device "), "nv", "{text}");
}

/// Serves a model on each machine: on the GPU if it works, else on the CPU, with the reason.
fn check_machines(machines: &[(&str, &str, &str)]) {
    let good = {
        let state = tempfile::tempdir().unwrap();
        said(&mut on("", state.path()))
    };
    for &(machine, device, why) in machines {
        let state = tempfile::tempdir().unwrap();
        let text = said(&mut on(machine, state.path()));
        assert_eq!(line(&text, "tokens "), line(&good, "tokens "), "{machine}: {text}");
        assert_eq!(line(&text, "device "), device, "{machine}: {text}");
        assert!(line(&text, "reason ").contains(why), "{machine}: {text}");
    }
}

/// `nv_modes` checks the mode that each defect leads to.
#[test]
fn machines_with_defects_serve_the_right_tokens() {
    check_machines(&[
        ("lost-atomics", "cpu", "stage atomics"),
        ("no-event,chain-cut=8,stale-handover,no-heap-query", "nv", ""),
    ]);
}

#[test]
#[ignore = "nightly"]
fn nightly_machines_with_each_defect_serve_the_right_tokens() {
    check_machines(&[
        ("no-event", "nv", ""),
        ("no-qmd-release", "nv", ""),
        ("chain-cut=64", "nv", ""),
        ("chain-cut=8", "nv", ""),
        ("local-memory-refused", "nv", ""),
        ("read-only-maps-fault", "nv", ""),
        ("no-heap-query", "nv", ""),
        ("stale-handover", "nv", ""),
        ("short-range-refused", "nv", ""),
        ("nan=shfl", "cpu", "stage launch"),
        ("nan=hmma", "nv", ""),
    ]);
}

/// Output of a start with the drivers of a release.
fn on_release(release: &str) -> String {
    let state = tempfile::tempdir().unwrap();
    said(on("", state.path()).env("TEGRA_SIM_RELEASE", release))
}

/// The oldest release lacks requests that the NV device needs; the newest has different ones.
#[test]
fn drivers_of_other_releases_serve_the_right_tokens() {
    let tokens = line(&on_release("r36.4"), "tokens ");
    for (release, device) in [("r35.4", "cpu"), ("r39", "nv")] {
        let text = on_release(release);
        assert_eq!(line(&text, "tokens "), tokens, "{release}: {text}");
        assert_eq!(line(&text, "device "), device, "{release}: {text}");
    }
}

/// Drivers that lack one of the requests that a start makes.
#[test]
#[ignore = "nightly"]
fn nightly_drivers_without_a_request_serve_the_right_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let good = on_release("r36.4");
    let tokens = line(&good, "tokens ");
    assert_eq!(line(&on_release("r36.2"), "device "), "nv");
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
        let text = on_release(&format!("r39:{request}"));
        assert_eq!(line(&text, "tokens "), tokens, "{request}: {text}");
        match line(&text, "device ").as_str() {
            "nv" => without.push(request.as_str()),
            device => {
                assert_eq!(device, "cpu", "{request}: {text}");
                assert!(line(&text, "reason ").contains("not nv ("), "{request}: {text}");
            }
        }
    }
    println!("the GPU works without {without:?} of {requests:?}");
}
