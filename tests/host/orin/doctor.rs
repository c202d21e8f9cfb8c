//! Findings of `orinctl doctor` on each recorded machine.

use std::path::{Path, PathBuf};
use std::process::Output;

use config::Config;
use device::bring_up::{Begun, Book, FILE, Key, Passed, Record};
use device::first_light::{Mode, Stage};
use device::gpu;
use doctor::{Disk, Facts, Fault, Finding, Need, Node, Socket, Tuned, Verdict, examine, worst};
use orind_testing::program::command;
use tegra_bundle::{Bundle, Directory, Header, Launch};
use telemetry::{User, Users};

use super::tree::Machine;

/// Facts of a recorded machine; everything else is in order.
fn facts(name: &str) -> Facts {
    let machine = Machine::new(name);
    let socket = Socket {
        path: "/run/orind/orind.sock".into(),
        mode: Some(0o660),
        group: Some("orind".into()),
        permitted: true,
    };
    let mut facts = Facts::gather(&machine.probe(), Ok(Config::default()), &socket.path, None);
    facts.users = Users::default();
    facts.disk = Some(Disk { directory: PathBuf::from("/models"), free: 100 << 30 });
    facts.socket = socket;
    facts.light = Ok(Book::default());
    facts.fault = Ok(None);
    facts
}

fn finding(facts: &Facts, check: &str) -> Finding {
    examine(facts).into_iter().find(|finding| finding.check == check).unwrap()
}

/// Failed checks, with their fixes.
fn to_fix(facts: &Facts) -> Vec<(String, Verdict)> {
    let findings = examine(facts);
    for finding in &findings {
        let bad = finding.verdict >= Verdict::Warning;
        assert_eq!(finding.fix.is_some() && finding.why.is_some(), bad, "{finding:?}");
    }
    let bad = findings.into_iter().filter(|finding| finding.verdict >= Verdict::Warning);
    bad.map(|finding| (finding.check, finding.verdict)).collect()
}

fn warnings(checks: &[&str]) -> Vec<(String, Verdict)> {
    checks.iter().map(|check| ((*check).to_owned(), Verdict::Warning)).collect()
}

#[test]
fn a_well_configured_orin_has_nothing_to_fix() {
    let facts = facts("agx64-maxn");
    assert_eq!(to_fix(&facts), []);
    assert_eq!(finding(&facts, "power mode").found, "MAXN (mode 0), 16 of 16 SMs");
}

#[test]
fn the_factory_setting_uses_half_the_gpu() {
    let facts = facts("agx64-30w");
    assert_eq!(to_fix(&facts), warnings(&["power mode", "clocks"]));
    let mode = finding(&facts, "power mode");
    assert_eq!(mode.found, "MODE_30W (mode 2), 8 of 16 SMs");
    assert!(mode.fix.unwrap().starts_with("sudo nvpmodel -m 0"));
    assert!(finding(&facts, "clocks").fix.unwrap().contains("jetson_clocks"));
    assert!(finding(&facts, "not told").found.contains("/sys/kernel/debug"));
}

#[test]
fn heat_and_other_programs_are_reported() {
    let mut facts = facts("agx64-throttling");
    facts.users.processes = vec![User { pid: 700, name: "gnome-shell".into() }];
    assert_eq!(to_fix(&facts), warnings(&["clocks", "throttling", "other GPU users"]));
    assert!(finding(&facts, "other GPU users").found.contains("42 % busy: gnome-shell (700)"));
    // While the daemon has a model, the load is probably its own.
    facts.loaded = Some("llama".into());
    assert_eq!(finding(&facts, "other GPU users").verdict, Verdict::Note);
}

#[test]
fn allocation_limits_low_memory_and_swap_on_flash_are_reported() {
    let mut facts = facts("nano8-limit");
    assert_eq!(to_fix(&facts), warnings(&["allocation limit", "swap"]));
    // 2.6 GiB are available.
    let Ok(config) = &mut facts.config else { panic!("the default is valid") };
    config.memory_reserve_mib = 0;
    facts.need = Some(Ok(Need { weights: 2 << 30, kv: 300 << 20 }));
    assert_eq!(finding(&facts, "memory").verdict, Verdict::Ok);
    facts.config = Ok(Config::default());
    let reserved = finding(&facts, "memory");
    assert!(reserved.found.contains("1.4 GiB are available"), "{}", reserved.found);
    facts.config = Ok(Config { memory_reserve_mib: 0, ..Config::default() });
    // Free CMA memory is not available for buffers.
    facts.need = Some(Ok(Need { weights: 2 << 30, kv: 450 << 20 }));
    let memory = finding(&facts, "memory");
    assert_eq!(memory.verdict, Verdict::Failure);
    assert!(memory.found.contains("need 2.4 GiB, 2.4 GiB are available"), "{}", memory.found);
    // A loaded model already has its memory.
    facts.loaded = Some("model".into());
    assert_eq!(finding(&facts, "memory").verdict, Verdict::Ok);
}

#[test]
fn failed_first_light_is_reported_with_its_fix() {
    let here = Key::here("a GPU".into());
    let record = Record { key: here, wanted: Some(Mode::default()), ..Record::default() };
    let passed = Some(Passed { mode: Some(Mode::default()) });
    let told = |record: Record| {
        let mut facts = facts("agx64-maxn");
        let mut book = Book::default();
        book.devices.insert("nv".into(), record);
        facts.light = Ok(book);
        let bad = to_fix(&facts);
        let found = finding(&facts, "first light");
        (bad.len(), found.verdict, format!("{} {}", found.found, found.fix.unwrap_or_default()))
    };
    let (bad, verdict, text) = told(Record { passed, ..record.clone() });
    assert_eq!(
        (bad, verdict, text.trim()),
        (0, Verdict::Ok, "nv: split, wake event, maps rw, range short, chains to 32")
    );
    let notes = vec!["event: not woken within 20 ms".into()];
    let (bad, verdict, text) = told(Record { passed, notes, ..record.clone() });
    assert!((bad, verdict) == (0, Verdict::Note) && text.contains("not woken"), "{text}");
    let failed = Some("stage `atomics`: 63 of 64".into());
    let (bad, verdict, text) = told(Record { failed, ..record.clone() });
    assert!((bad, verdict) == (1, Verdict::Warning) && text.contains("63 of 64"), "{text}");
    let under_way = Some(Begun::now(Stage::Order));
    let key = Key { boot: "before".into(), ..record.key.clone() };
    let (bad, verdict, text) = told(Record { under_way, key, ..record });
    assert!((bad, verdict) == (1, Verdict::Failure), "{text}");
    assert!(
        text.contains("went down in stage `order`") && text.contains("doctor --retry-gpu"),
        "{text}"
    );

    let mut facts = facts("agx64-maxn");
    assert_eq!(finding(&facts, "first light").verdict, Verdict::Note, "it has not been run");
    facts.left = vec![("nv".into(), "lost 2 times".into())];
    assert_eq!(to_fix(&facts), warnings(&["first light"]));
    facts.light = Err("first-light.json is damaged".into());
    assert_eq!(finding(&facts, "first light").verdict, Verdict::Failure);
}

#[test]
fn an_older_release_is_reported_as_unsupported() {
    let facts = facts("agx32-r35");
    assert_eq!(finding(&facts, "release").verdict, Verdict::Failure);
    assert_eq!(finding(&facts, "CUDA").verdict, Verdict::Warning);
    assert_eq!(worst(&examine(&facts)), Verdict::Failure);
}

#[test]
fn device_nodes_groups_sockets_disks_toolkits_and_configurations_are_checked() {
    let mut facts = facts("agx64-maxn");
    facts.nodes[0] = Node {
        path: "/dev/nvmap".into(),
        exists: true,
        permitted: false,
        group: Some("video".into()),
    };
    facts.nodes[1].exists = false;
    facts.socket.permitted = false;
    facts.disk = Some(Disk { directory: "/models".into(), free: 1 << 30 });
    facts.state.drivers.cuda_toolkit = Some("13.0.48".into());
    facts.config = Err("orind.toml:1: unknown key `modle`".into());
    let bad = to_fix(&facts);
    let names: Vec<&str> = bad.iter().map(|(check, _)| check.as_str()).collect();
    let expected = ["device nodes", "permission", "CUDA", "configuration", "disk", "socket"];
    assert_eq!(names, expected);
    let permission = finding(&facts, "permission");
    assert!(permission.fix.unwrap().contains("usermod -aG video"));
    assert!(finding(&facts, "device nodes").found.contains("/dev/nvgpu/igpu0/ctrl"));
    facts.socket.permitted = true;
    facts.socket.mode = Some(0o666);
    assert_eq!(finding(&facts, "socket").verdict, Verdict::Warning);
    facts.socket.mode = None;
    assert_eq!(finding(&facts, "socket").verdict, Verdict::Note);
}

#[test]
fn missing_or_foreign_tuning_is_reported() {
    let mut facts = facts("agx64-maxn");
    let tuned = |device: &str, entries| Tuned { device: device.into(), entries };
    // Also without access to the GPU, so that its kernels cannot be queried.
    for entries in [None, Some((12, 0))] {
        facts.tuned = vec![tuned("gpu-sm87-16sm-1300mhz", entries)];
        assert_eq!(finding(&facts, "tuning").verdict, Verdict::Ok);
    }
    facts.tuned = vec![tuned("gpu-sm87-16sm-1300mhz", Some((9, 3)))];
    let changed = finding(&facts, "tuning");
    assert_eq!(changed.verdict, Verdict::Warning);
    assert!(changed.found.starts_with("stale: 3 of 12 entries"), "{}", changed.found);
    facts.tuned = vec![tuned("gpu-sm87-8sm-600mhz", None), tuned("cpu-x", Some((4, 0)))];
    let stale = finding(&facts, "tuning");
    assert_eq!(stale.verdict, Verdict::Warning);
    assert!(stale.found.contains("gpu-sm87-8sm-600mhz"), "{}", stale.found);
    facts.tuned.clear();
    assert_eq!(finding(&facts, "tuning").verdict, Verdict::Note);
    // File names depend on the clock of the power mode, not on the driver's data.
    for (name, sms, stem) in
        [("agx64-maxn", 16, "gpu-sm87-16sm-1300mhz"), ("agx64-30w", 8, "gpu-sm87-8sm-600mhz")]
    {
        let key = gpu::key(&Machine::new(name).probe(), 87, sms, 1300);
        assert_eq!(key.stem(), stem);
        let mut facts = self::facts(name);
        facts.tuned = vec![tuned(stem, None)];
        assert_eq!(finding(&facts, "tuning").verdict, Verdict::Ok, "{name}");
    }
    // CPU kernels are tuned too.
    let mut pc = self::facts("pc");
    assert_eq!(finding(&pc, "tuning").verdict, Verdict::Note);
    pc.tuned = vec![tuned("cpu-x", Some((0, 4))), tuned("gpu-sm87-8sm-600mhz", None)];
    assert_eq!(to_fix(&pc), warnings(&["tuning"]));
    pc.tuned[0].entries = Some((4, 0));
    assert_eq!(finding(&pc, "tuning").found, "kernels are tuned for cpu-x");
}

#[test]
fn a_pc_without_an_orin_is_not_an_error() {
    let facts = facts("pc");
    assert_eq!(to_fix(&facts), []);
    assert!(finding(&facts, "board").found.starts_with("no Orin here"));
    let absent: Vec<String> = examine(&facts)
        .into_iter()
        .filter(|finding| finding.verdict == Verdict::NotApplicable)
        .map(|finding| finding.check)
        .collect();
    for check in ["release", "allocation limit", "power mode", "clocks", "device nodes"] {
        assert!(absent.iter().any(|name| name == check), "{check} of {absent:?}");
    }
}

fn texts(value: &serde_json::Value) -> Vec<String> {
    match value {
        serde_json::Value::String(text) => vec![text.clone()],
        serde_json::Value::Array(values) => values.iter().flat_map(texts).collect(),
        serde_json::Value::Object(fields) => fields.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// Runs the program on a recorded machine with planted secrets.
fn doctor(machine: &Machine, home: &Path, args: &[&str]) -> Output {
    // Otherwise it would read the tuning store of this computer's service.
    std::fs::create_dir_all(home.join("data/orind/tune")).unwrap();
    command(env!("CARGO_BIN_EXE_orinctl"))
        .arg("doctor")
        .args(args)
        .env("ORIND_SYSROOT", machine.path("/"))
        .env("ORIND_SOCKET", home.join("none.sock"))
        .env("HOME", home)
        .env("XDG_DATA_HOME", home.join("data"))
        .env("USER", "adalovelace")
        .output()
        .unwrap()
}

#[test]
fn output_exit_code_and_report_contain_no_secrets() {
    let machine = Machine::new("agx64-30w");
    machine.write("/proc/device-tree/serial-number", "1421722012345");
    machine.write("/sys/class/net/eth0/address", "48:b0:2d:12:34:56");
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("orind.toml");
    let model = home.path().join("secret-plans.gguf");
    std::fs::write(&config, format!("model = \"{}\"\n", model.display())).unwrap();
    let report = home.path().join("report.json");
    let output = doctor(
        &machine,
        home.path(),
        &["--config", config.to_str().unwrap(), "--report", report.to_str().unwrap()],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("warning  power mode        MODE_30W (mode 2), 8 of 16 SMs"), "{text}");
    assert!(text.contains("fix               sudo nvpmodel -m 0"), "{text}");
    assert!(!text.contains('\x1b'), "colour only on a terminal");

    let report = std::fs::read_to_string(&report).unwrap();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim();
    let place = home.path().display().to_string();
    for secret in ["1421722012345", "48:b0:2d", "secret-plans", &place, "adalovelace"] {
        assert!(!report.contains(secret), "{secret} is in {report}");
    }
    let value: serde_json::Value = serde_json::from_str(&report).unwrap();
    let words =
        |text: &str| text.split(|c: char| !c.is_alphanumeric() && c != '-').any(|w| w == host);
    assert!(!texts(&value).iter().any(|text| words(text)), "{host} is in {report}");
    let report = value;
    assert_eq!(report["worst"], "warning");
    assert_eq!(report["machine"]["power_mode"]["name"], "MODE_30W");
    assert_eq!(report["settings"]["slots"], 4);

    let json = doctor(&machine, home.path(), &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["findings"].as_array().unwrap().len(), 20);

    std::fs::write(&config, "modle = 1").unwrap();
    let broken = doctor(&machine, home.path(), &["--config", config.to_str().unwrap()]);
    assert_eq!(broken.status.code(), Some(4));
    assert!(String::from_utf8(broken.stdout).unwrap().contains("did you mean `model`"));
    let pc = doctor(&Machine::new("pc"), home.path(), &[]);
    assert_eq!(pc.status.code(), Some(0), "{}", String::from_utf8_lossy(&pc.stdout));
}

#[test]
fn the_newest_fault_bundle_is_named() {
    let launch = |name: &str| Launch { name: name.into(), ..Launch::default() };
    let header = Header {
        at: Some("2026-11-23T14:05:09Z".into()),
        device: "ga10b, 16 SMs".into(),
        rule: "mmu-fault".into(),
        message: "the GPU faulted".into(),
        launches: vec![launch("blk.0.attn_q (project_q8_0)"), launch("output (sample)")],
        ..Header::default()
    };
    let mut facts = facts("agx64-maxn");
    let mut say = |fault| {
        facts.fault = fault;
        assert_eq!(to_fix(&facts), [], "a fault that was survived is nothing to fix");
        let Finding { verdict, found, .. } = finding(&facts, "GPU faults");
        (verdict, found)
    };
    assert_eq!(say(Ok(None)).0, Verdict::Ok);
    let (verdict, found) = say(Err("/var/lib/orind/faults: Permission denied".into()));
    assert!(verdict == Verdict::Note && found.contains("Permission denied"), "{found}");
    let fault = |header| Fault { file: "/s/faults/fault-x-7.bundle".into(), kept: 3, header };
    let (verdict, found) = say(Ok(Some(fault(Ok(Box::new(header.clone()))))));
    assert_eq!(verdict, Verdict::Note);
    for part in [
        "the newest of 3 bundles is fault-x-7.bundle: mmu-fault on 2026-11-23T14:05:09Z, ga10b, 16 SMs",
        "2 launches, blk.0.attn_q (project_q8_0) to output (sample); the GPU faulted",
        "tegra-sim replay /s/faults/fault-x-7.bundle",
    ] {
        assert!(found.contains(part), "no {part:?} in {found}");
    }
    let (_, found) = say(Ok(Some(fault(Err("not a fault bundle of version 2".into())))));
    assert!(found.contains("fault-x-7.bundle: it cannot be read: not a fault bundle"), "{found}");

    // The shared report contains no paths of this machine.
    let home = tempfile::tempdir().unwrap();
    let directory = Directory::of_state(home.path());
    let bundle = Bundle { header, memory: Vec::new() };
    for _ in 0..2 {
        let place = directory.place(directory.next_number(), "20261123T140509Z");
        directory.keep(&place, &bundle).unwrap();
    }
    let config = home.path().join("orind.toml");
    std::fs::write(&config, format!("state_dir = '{}'\n", home.path().display())).unwrap();
    let report = home.path().join("report.json");
    let paths = [&config, &report].map(|path| path.to_str().unwrap());
    let output = doctor(
        &Machine::new("agx64-maxn"),
        home.path(),
        &["--config", paths[0], "--report", paths[1]],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let newest = directory.place(2, "20261123T140509Z").display().to_string();
    assert!(text.contains(&format!("tegra-sim replay {newest}")), "{text}");
    let report = std::fs::read_to_string(&report).unwrap();
    assert!(report.contains("fault-20261123T140509Z-2.bundle: mmu-fault on 2026"), "{report}");
    assert!(!report.contains(&home.path().display().to_string()), "{report}");
}

#[test]
fn a_disabled_gpu_is_reported_with_the_option_that_enables_it() {
    let (machine, home) = (Machine::new("agx64-maxn"), tempfile::tempdir().unwrap());
    let (state, config) = (home.path().join("state"), home.path().join("orind.toml"));
    std::fs::create_dir(&state).unwrap();
    std::fs::write(&config, format!("state_dir = '{}'\n", state.display())).unwrap();
    let mut book = Book::default();
    let under_way = Some(Begun::now(Stage::Launch));
    book.devices.insert("nv".into(), Record { under_way, ..Record::default() });
    std::fs::write(state.join(FILE), serde_json::to_vec(&book).unwrap()).unwrap();
    let ask = |options: &[&str]| {
        let arguments = [&["--config", config.to_str().unwrap()], options].concat();
        let output = doctor(&machine, home.path(), &arguments);
        let [out, err] = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
        let light = out.lines().find(|line| line.contains("first light")).unwrap().to_owned();
        (light, err)
    };
    let (told, _) = ask(&[]);
    assert!(told.contains("FAILURE") && told.contains("went down in stage `launch`"), "{told}");
    let (told, forgotten) = ask(&["--retry-gpu"]);
    assert!(told.starts_with("note") && forgotten.contains("cleared"), "{told} {forgotten}");
    assert!(forgotten.contains(": nv;"), "{forgotten}");
    let (_, nothing) = ask(&["--retry-gpu"]);
    assert!(nothing.contains("no device records"), "{nothing}");
}
