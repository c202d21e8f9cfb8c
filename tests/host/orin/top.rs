//! `orinctl top` as a program, with and without a terminal.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orind_testing::daemon::{Daemon, orind};
use orind_testing::program::{command, outcome, said};
use orind_testing::terminal::Terminal;
use serde_json::{Value, json};

use super::tree::Machine;

fn start(machine: &Machine) -> Daemon {
    let mut command = orind();
    command.env("ORIND_SYSROOT", machine.path("/"));
    Daemon::launch_with(command, "")
}

fn orinctl(daemon: &Daemon, args: &[&str]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_orinctl"));
    command.args(args).arg("--socket").arg(daemon.socket());
    command
}

#[test]
fn without_a_terminal_top_prints_one_page() {
    let machine = Machine::new("agx64-30w");
    let daemon = start(&machine);
    let text = said(&mut orinctl(&daemon, &["status"]));
    for part in ["L4T R36.4.3", "MODE_30W (mode 2), 8 of 16 SMs", "limit 612", "tj 52 °C"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let text = said(orinctl(&daemon, &["top"]).stdin(Stdio::null()));
    assert!(text.contains("no model is loaded"), "{text}");
    assert!(text.contains("MODE_30W") && !text.contains('\x1b'), "{text}");

    let metrics = daemon.get("/metrics").body;
    for line in [
        "orind_power_mode 2.0",
        "orind_gpu_multiprocessors 8.0",
        "orind_gpu_clock_hertz 306000000.0",
        "orind_temperature_celsius{zone=\"tj\"} 52.3",
        "orind_rail_watts{rail=\"VDD_CPU_CV\"} 1.574",
        "orind_alarm_active{alarm=\"gpu-throttle-alert\"} 0.0",
        "orind_cpu_clock_hertz{cpus=\"4 5 6 7\"} 1190400000.0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    let mut none = command(env!("CARGO_BIN_EXE_orinctl"));
    let (code, _, error) = outcome(none.args(["top", "--socket", "/nowhere/orind.sock"]));
    assert!(code == Some(1) && error.contains("no daemon is listening"), "{error}");
}

#[test]
fn on_a_terminal_top_survives_a_restart_of_the_daemon_and_q_quits() {
    let machine = Machine::new("agx64-maxn");
    let mut daemon = start(&machine);
    let mut top = Terminal::start(orinctl(&daemon, &["top"]));
    top.wait_for("MAXN");
    daemon.signal(Signal::SIGKILL);
    top.wait_for("waiting");
    let mut command = orind();
    command.env("ORIND_SYSROOT", machine.path("/"));
    daemon.restart_with(command);
    top.wait_for("loaded");
    top.press("q");
    assert_eq!(top.wait().code(), Some(0));
}

#[test]
fn json_output_has_one_line_per_sample() {
    let machine = Machine::new("agx64-30w");
    let mut daemon = start(&machine);
    let text = said(&mut orinctl(&daemon, &["top", "--json", "-n", "2"]));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["state"]["name"], &lines[0]["model"]), (&json!("empty"), &Value::Null));
    assert_eq!(lines[1]["decode_tokens_per_second"], 0.0);
    assert_eq!(lines[1]["machine"]["gpu_clock"]["now_hz"], 306_000_000);
    assert!(lines[1]["watts"].as_f64().unwrap() > 0.0 && lines[0]["time"] != lines[1]["time"]);

    // Runs until it is interrupted, even if the daemon ends.
    let mut top = orinctl(&daemon, &["top", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines().map(|line| {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        line
    });
    assert_eq!(lines.next().unwrap()["requests"]["active"], 0);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let gone = lines.find(|line| line.get("error").is_some()).unwrap();
    assert!(gone["error"].as_str().unwrap().contains("no daemon is listening"), "{gone}");
    assert!(gone.get("state").is_none(), "{gone}");
    kill(Pid::from_raw(top.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(top.wait().unwrap().code(), Some(130));
}
