//! `orinctl` as a program, without a daemon or model files, with its own cache directory.
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bench::Report;
use device::bring_up::{Begun, Book, FILE, Record};
use device::first_light::Stage;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orind_testing::daemon::{MODEL, eventually, orinctl};
use orind_testing::program::{said, stderr, stdout};
use serde_json::Value;
use tegra_profile::{Experiment, Machine, Profile, Verdict, facts};
use tempfile::TempDir;

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn orinctl(&self, args: &[&str]) -> Command {
        let mut command = orinctl(self.path());
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.orinctl(args).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&said(&mut self.orinctl(args))).unwrap()
    }

    fn leftovers(&self) -> Vec<String> {
        std::fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// Waits for the socket of a private daemon; returns the daemon's process id.
    fn private_daemon(&self) -> Pid {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            for process in std::fs::read_dir("/proc").unwrap().flatten() {
                let Ok(pid) = process.file_name().to_string_lossy().parse::<i32>() else {
                    continue;
                };
                let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).into_owned();
                let ours =
                    line.contains("--socket") && line.contains(&self.path().display().to_string());
                if ours && line.contains("exit-with-parent") && !self.leftovers().is_empty() {
                    return Pid::from_raw(pid);
                }
            }
            assert!(Instant::now() < deadline, "no private daemon appeared");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn wait_until_gone(pid: Pid) {
    eventually("the process is gone", || kill(pid, None).is_err());
}

#[test]
fn bench_needs_no_daemon_and_leaves_nothing_behind() {
    let home = Home::new();
    let args = ["bench", "-m", MODEL, "-p", "8", "-n", "4", "-b", "1,2", "-r", "2", "--json"];
    let output = home.run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Report = serde_json::from_str(&stdout(&output)).unwrap();
    let names: Vec<&str> = report.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["pp8", "tg4", "tg4 x2"]);
    assert!(report.manifest.model.synthetic && report.manifest.model.id == MODEL);
    for row in &report.rows {
        assert_eq!(row.tokens_per_second.samples.len(), 2);
        assert!(row.tokens_per_second.min > 0.0 && row.bytes_per_second > 0.0);
    }
    let cold = report.cold_start.unwrap();
    assert!(0.0 < cold.socket_seconds && cold.socket_seconds < cold.loaded_seconds);
    assert!(cold.loaded_seconds < cold.first_token_seconds);
    assert!(report.first_token.unwrap().seconds.min > 0.0);
    assert!(stderr(&output).contains("starting a private one"), "{}", stderr(&output));
    assert_eq!(home.leftovers(), [""; 0]);
}

#[test]
fn table_and_csv_contain_the_same_tests() {
    let home = Home::new();
    let args = |format: &'static str| {
        let mut args = vec!["bench", "-m", MODEL, "-p", "4", "-n", "2", "-r", "1", "--warmup", "0"];
        args.extend((!format.is_empty()).then_some(format));
        args
    };
    let table = home.run(&args(""));
    assert!(table.status.success(), "{}", stderr(&table));
    let rows: Vec<String> =
        stdout(&table).lines().filter(|l| l.starts_with('|')).map(str::to_owned).collect();
    assert_eq!(rows.len(), 4);
    assert!(rows[0].contains("tok/s") && rows[2].contains("pp4") && rows[3].contains("tg2"));
    assert!(rows.iter().all(|row| row.chars().count() == rows[0].chars().count()), "{rows:#?}");
    assert!(stdout(&table).contains("synthetic: seeded random weights"));
    let csv = home.run(&args("--csv"));
    assert!(stdout(&csv).starts_with("version,") && stdout(&csv).lines().count() == 3);
}

#[test]
fn generate_is_reproducible() {
    let home = Home::new();
    let args = ["generate", "-m", MODEL, "-n", "6", "-q", "Once upon a time"];
    let (first, second) = (home.run(&args), home.run(&args));
    assert!(first.status.success(), "{}", stderr(&first));
    assert!(first.stdout.len() > 1 && first.stdout.ends_with(b"\n"));
    assert_eq!(first.stdout, second.stdout);
    assert_eq!(home.leftovers(), [""; 0]);
}

#[test]
fn plan_works_without_a_daemon() {
    let home = Home::new();
    let output = home.run(&["plan", MODEL, "--depth", "100"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for part in
        ["Before fusion", "After fusion", "layers 0-1 (2 alike)", "attention", "GPU launches"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let json = home.json(&["plan", MODEL, "--depth", "100", "--json"]);
    let total = |plan: &str, what: &str| json[plan]["total"][what].as_u64().unwrap();
    let steps = |plan: &str| json[plan]["steps"].as_array().unwrap().len();
    assert!(steps("after") * 5 < steps("before"));
    assert_eq!(total("before", "weight_bytes"), total("after", "weight_bytes"));
    assert!(total("after", "other_bytes") < total("before", "other_bytes"));
    assert_eq!(json["context"], 101);
}

/// By a formula that is repeated here.
#[test]
fn plan_estimates_the_speed_of_an_orin_from_its_profile() {
    let home = Home::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("profile.json");
    let mut profile = Profile::new(
        "orinctl",
        0,
        Machine {
            model: Some("NVIDIA Jetson AGX Orin Developer Kit".into()),
            power_mode: Some("MODE_30W (mode 2)".into()),
            sms: Some(8),
            ..Machine::default()
        },
    );
    let measured = [
        (facts::READ_RATE, 40.0),
        (facts::DEPENDENT, 1500.0),
        (facts::LAUNCH, 4000.0),
        (facts::DOORBELL, 900.0),
        (facts::RELEASE, 200.0),
        (facts::ENTRY, 50.0),
    ];
    for (fact, value) in measured {
        let mut found = profile
            .experiment(fact.experiment)
            .cloned()
            .unwrap_or_else(|| Experiment::new(fact.experiment, "what", "so", Verdict::Measured));
        found.facts.insert(fact.name.into(), value.into());
        profile.experiments.retain(|experiment| experiment.name != fact.experiment);
        profile.experiments.push(found);
    }
    profile.write(&file).unwrap();
    let file_name = file.to_str().unwrap();
    let plan = |args: &[&str]| home.run(&[&["plan", MODEL, "--profile", file_name], args].concat());
    let json = plan(&["--depth", "100", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let total = |what: &str| json["after"]["total"][what].as_f64().unwrap();
    let launches = json["launches"].as_array().unwrap().len() as f64;
    let ns = (total("weight_bytes") + total("kv_bytes")) / 40.0
        + (launches - 1.0) * 1500.0
        + (4000.0 + 900.0 + 200.0 + 2.0 * 50.0);
    let estimate = &json["estimate"];
    assert!((estimate["step_ns"].as_f64().unwrap() / ns - 1.0).abs() < 1e-9, "{estimate} {ns}");
    let speed = estimate["tokens_per_second"].as_f64().unwrap();
    assert!((speed * ns / 1e9 - 1.0).abs() < 1e-9);

    let text = stdout(&plan(&["--depth", "100"]));
    for part in [
        "Estimate for NVIDIA Jetson AGX Orin Developer Kit (MODE_30W (mode 2), 8 SMs)",
        "40.0 GB/s",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let prefill = stdout(&plan(&["--prefill", "16"]));
    assert!(prefill.contains("at most "), "{prefill}");

    // Without the kernels' rate it uses the copy engine's and reports that; without either it prints what to do.
    let kernels = facts::READ_RATE.experiment;
    profile.experiments.retain(|experiment| experiment.name != kernels);
    profile.write(&file).unwrap();
    let output = plan(&[]);
    assert_eq!(output.status.code(), Some(2));
    let hint = format!("orinctl first-contact --only {kernels}");
    assert!(stderr(&output).contains(&hint), "{}", stderr(&output));
    let copy = facts::COPY_RATE;
    let mut copies = Experiment::new(copy.experiment, "what", "so", Verdict::Measured);
    copies.facts.insert(copy.name.into(), 20.0.into());
    profile.experiments.push(copies);
    profile.write(&file).unwrap();
    let text = stdout(&plan(&[]));
    assert!(text.contains("the copy engine (reads plus writes); no kernel was timed"), "{text}");
    std::fs::write(&file, "{}").unwrap();
    assert_eq!(plan(&[]).status.code(), Some(1));
}

#[test]
fn profile_works_without_a_daemon() {
    let home = Home::new();
    let output = home.run(&["profile", MODEL, "-n", "3", "--depth", "20", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = json["steps"].as_array().unwrap();
    let sum = |what: &str| steps.iter().map(|step| step[what].as_f64().unwrap()).sum::<f64>();
    let plan = home.json(&["plan", MODEL, "--depth", "23", "--json"]);
    let total = |what: &str| plan["after"]["total"][what].as_f64().unwrap();
    assert!(sum("bytes") >= total("weight_bytes"), "{json}");
    assert_eq!(sum("count") as usize, plan["after"]["steps"].as_array().unwrap().len());
    assert!((sum("of_token") - 1.0).abs() < 1e-6 && json["bandwidth"].as_f64().unwrap() > 0.0);
    let table = home.run(&["profile", MODEL, "-n", "2", "--cpu-isa", "scalar"]);
    assert!(stdout(&table).contains("% of bandwidth"), "{}", stdout(&table));
}

/// The daemon recorded the crash; other devices are unaffected.
#[test]
fn a_device_that_crashed_the_machine_is_not_profiled() {
    let home = Home::new();
    let mut book = Book::default();
    let under_way = Some(Begun::now(Stage::Launch));
    book.devices.insert("nv".into(), Record { under_way, ..Record::default() });
    std::fs::write(home.path().join(FILE), serde_json::to_vec(&book).unwrap()).unwrap();
    let commands = [
        &["profile", MODEL, "-n", "1", "--backend"][..],
        &["parity", "--model", MODEL, "--tokens", "1", "--no-steps", "--devices"],
    ];
    for command in commands {
        let on = |device: &str| {
            let mut orinctl = home.orinctl(&[command, &[device]].concat());
            let output = orinctl.env("STATE_DIRECTORY", home.path()).output().unwrap();
            format!("{}{}", stdout(&output), stderr(&output))
        };
        assert!(on("nv").contains("went down in stage `launch`"), "{command:?}: {}", on("nv"));
        let cpu = on("cpu");
        assert!(!cpu.contains("went down") && !cpu.contains("error:"), "{command:?}: {cpu}");
    }
}

#[test]
fn a_profile_trace_adds_up_to_the_report() {
    let home = Home::new();
    let file = home.path().join("token.json");
    let name = file.to_str().unwrap();
    let report = home.json(&["profile", MODEL, "-n", "1", "--json", "--trace", name]);
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let slices = |category: &str| {
        let events = trace["traceEvents"].as_array().unwrap().iter();
        events.filter(|e| e["cat"] == category).map(|e| e["dur"].as_f64().unwrap()).sum::<f64>()
    };
    let seconds = report["seconds"].as_f64().unwrap();
    assert!(seconds > 0.0 && report["whole_seconds"].as_f64().unwrap() > 0.0);
    for category in ["step", "kernel"] {
        assert!((slices(category) / 1e6 / seconds - 1.0).abs() < 1e-6, "{category}: {trace}");
    }
    let output = home.run(&["profile", MODEL, "-n", "1", "--trace", "/nowhere/token.json"]);
    assert!(stderr(&output).contains("/nowhere/token.json"), "{}", stderr(&output));
}

#[test]
fn a_closed_output_pipe_is_no_error() {
    let home = Home::new();
    let mut child = home.orinctl(&["plan", MODEL, "--full"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
}

#[test]
fn mistakes_print_one_error_and_exit_with_its_code() {
    let home = Home::new();
    for (args, code, words) in [
        (&["bench", "--nope"][..], 2, "--nope"),
        (&["bench", "-b", "0"], 2, "batches"),
        (&["bench", "-p", "0", "-n", "0"], 2, "nothing to measure"),
        (&["plan", MODEL, "--batch", "0"], 2, "--batch"),
        (&["profile", MODEL, "--cpu-isa", "sve9"], 2, "this machine has: "),
        (&["profile", MODEL, "--backend", "nv", "--threads", "2"], 2, "--threads and --cpu-isa"),
        (&["profile", MODEL, "--backend", "nv"], 1, "--backend nv: "),
        (&["plan", "synthetic:tiny-lama:q8_0"], 1, "synthetic:tiny-llama:q8_0"),
        (&["plan", "/nowhere/x.gguf"], 1, "/nowhere/x.gguf"),
        (&["status"], 1, "no daemon is listening"),
        (&["unload"], 1, "no daemon is listening"),
        (&["generate", "-m", "/nowhere/x.gguf", "hello"], 1, "/nowhere/x.gguf"),
    ] {
        let output = home.run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        let text = stderr(&output);
        assert!(text.contains(words) && text.contains("error:"), "{args:?}: {text}");
        assert!(!text.contains('\x1b') && output.stdout.is_empty(), "{args:?}: {text}");
    }
    assert_eq!(home.leftovers(), [""; 0]);
}

#[test]
fn the_socket_path_is_printed_with_and_without_a_daemon() {
    let home = Home::new();
    let own = home.path().join("none.sock").display().to_string() + "\n";
    assert_eq!(said(&mut home.orinctl(&["socket"])), own);
    assert_eq!(said(&mut home.orinctl(&["socket", "--socket", "/x/y"])), "/x/y\n");
    let service = said(home.orinctl(&["socket"]).env_remove("ORIND_SOCKET"));
    let root = nix::unistd::Uid::effective().is_root();
    let users = home.path().join("orind.sock").display().to_string();
    let possible = ["/run/orind/orind.sock", if root { "" } else { &users }];
    assert!(possible.contains(&service.trim_end()), "{service}");
    assert_eq!(home.run(&["socket", "--tcp", "localhost:1"]).status.code(), Some(2));
}

/// Help, tables and lists are wrapped or stacked in 40 columns.
#[test]
fn output_fits_a_narrow_terminal() {
    let home = Home::new();
    for (args, words) in [
        (&["--help"][..], "synthetic:llama-3.2-1b:q6_k"),
        (&["plan", "--help"], "orin-profile.json"),
        (&["bench", "--help"], "a private daemon is started"),
        (&["plan", MODEL], "activations 1.0 KiB"),
        (&["profile", MODEL, "-n", "1"], "op gather"),
        (&["doctor"], "valid; no model"),
        (&["first-contact", "--list"], "RISK none"),
        (&["bench", "-m", MODEL, "-p", "8,9", "-n", "0", "-r", "1"], "test pp9 tok/s "),
    ] {
        let output = home.orinctl(args).env("COLUMNS", "40").output().unwrap();
        let text = stdout(&output);
        let wide = text.lines().find(|line| line.chars().count() > 40);
        assert_eq!(wide, None, "{args:?}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(words), "{args:?}: {text}");
        // Lines break at the edge only.
        let lines: Vec<&str> = text.lines().collect();
        let broken = |at: usize| {
            let (line, next) = (lines[at], lines[at + 1]);
            let word = next.split_whitespace().next().unwrap_or_default();
            let indent = |line: &str| line.len() - line.trim_start().len();
            let goes_on = indent(line) == 0 && indent(next) == 0 && args.contains(&"--help");
            goes_on && !word.is_empty() && line.chars().count() + 1 + word.chars().count() <= 40
        };
        let early = (0..lines.len() - 1).filter(|at| !lines[*at].is_empty() && broken(*at));
        let early: Vec<&str> = early.map(|at| lines[at]).collect();
        let names = |line: &&str| line.ends_with(':');
        assert!(early.iter().all(names), "{args:?}: {early:?}");
    }
}

/// An error names a file once, and no Rust type.
#[test]
fn errors_are_short_and_plain() {
    let home = Home::new();
    let junk = home.path().join("junk.gguf");
    std::fs::write(&junk, "junk").unwrap();
    let (junk, gone) = (junk.to_str().unwrap(), "/nowhere/x.gguf");
    for (args, name) in [
        (&["plan", gone][..], gone),
        (&["plan", junk], junk),
        (&["profile", gone], gone),
        (&["parity", "--devices", "cpu", "-m", junk], junk),
        (&["generate", "-m", gone, "a"], gone),
        (&["bench", "-m", junk], junk),
        (&["tune", "import", gone], gone),
        (&["plan", MODEL, "--profile", gone], gone),
        (&["doctor", "--report", gone], gone),
    ] {
        let said = stderr(&home.run(args));
        let error = said.lines().find(|line| line.starts_with("error:")).unwrap();
        assert_eq!(error.matches(name).count(), 1, "{args:?}: {error}");
        assert!(!error.contains("os error"), "{error}");
    }
    for (args, words) in [
        (&["bench", "-r", "a"][..], "--repetitions <N>: is 'a', a whole number is needed"),
        (&["generate", "--temp", "hot", "a"], "--temp <T>: is 'hot', a number is needed"),
        (&["profile", MODEL, "-n", "9999"], "--tokens <N>: is '9999', 1 to 4096 are allowed"),
    ] {
        let output = home.run(args);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
}

/// A bench of several hours, after its private daemon has started.
fn endless(home: &Home) -> (Child, Pid) {
    let child = home.orinctl(&["bench", "-m", MODEL, "-p", "64", "-r", "1000"]).spawn().unwrap();
    let daemon = home.private_daemon();
    (child, daemon)
}

#[test]
fn ctrl_c_stops_the_private_daemon_too() {
    let home = Home::new();
    let (mut child, daemon) = endless(&home);
    // The tests are running.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("running ")));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(lines.any(|line| line.unwrap() == "error: interrupted"));
    wait_until_gone(daemon);
    assert_eq!(home.leftovers(), [""; 0]);
}

/// Also if the daemon does not answer, or a text never arrives.
#[test]
fn ctrl_c_ends_commands_at_once() {
    let home = Home::new();
    let (mut child, daemon) = endless(&home);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("running ")));
    kill(daemon, Signal::SIGSTOP).unwrap();
    let pressed = Instant::now();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // It takes a sixth of a second; waiting for the daemon would take seconds.
    assert!(pressed.elapsed() < Duration::from_secs(4), "{:?}", pressed.elapsed());
    wait_until_gone(daemon);
    assert_eq!(home.leftovers(), [""; 0]);

    let mut reads = home.orinctl(&["generate", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(reads.id() as i32);
    let is_caught = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() >> (Signal::SIGINT as i32 - 1) & 1 == 1
    };
    eventually("it listens to Ctrl-C", is_caught);
    kill(pid, Signal::SIGINT).unwrap();
    eventually("it ends", || reads.try_wait().unwrap().is_some());
    assert_eq!(reads.wait().unwrap().code(), Some(130));
}

#[test]
fn a_private_daemon_ends_with_its_killed_client() {
    let home = Home::new();
    let (mut child, daemon) = endless(&home);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until_gone(daemon);
}

/// A stopped daemon's socket accepts connections. A daemon that is only slow is waited for.
#[test]
#[ignore = "nightly"]
fn nightly_a_silent_daemon_is_reported_and_a_slow_one_is_not() {
    let home = Home::new();
    let socket = home.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let status = |args: &[&str]| home.orinctl(args).arg("--socket").arg(&socket).output().unwrap();
    for args in [&["status"][..], &["load", "a.gguf"], &["unload"], &["health"]] {
        let begin = Instant::now();
        let output = status(args);
        let error = stderr(&output);
        assert!(
            !output.status.success() && error.contains("has answered nothing for 20 s"),
            "{error}"
        );
        assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
    }
    // Drops the connections of above.
    listener.set_nonblocking(true).unwrap();
    while listener.accept().is_ok() {}
    listener.set_nonblocking(false).unwrap();
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"status\":\"ok\"}";
    let served = std::thread::spawn(move || {
        let (mut slow, _) = listener.accept().unwrap();
        let (mut health, _) = listener.accept().unwrap();
        health.write_all(answer.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_secs(3));
        slow.write_all(answer.as_bytes()).unwrap();
    });
    let output = status(&["health"]);
    assert!(output.status.success(), "{}", stderr(&output));
    served.join().unwrap();
}
