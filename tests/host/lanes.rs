//! Control loops of the daemon: clients, deadlines, refused configurations, status and metrics.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use orind_testing::control_loop::{Client, door, example, lane, ready};
use orind_testing::daemon::{Daemon, MODEL, eventually};
use orind_testing::program::said;
use orind_testing::repository;
use serde_json::json;

#[test]
fn a_client_steps_a_network_through_shared_memory() {
    let daemon =
        Daemon::launch(&lane("policy", "rate_hz = 500\ndeadline_us = 60000000\nspin_us = 2000"));
    ready(&daemon);
    let mut client = Client::open(&daemon, "policy").unwrap();
    let about = &client.about;
    assert_eq!((&about["lane"], &about["rate_hz"]), (&json!("policy"), &json!(500)));
    assert_eq!(about["inputs"][0]["shape"], json!([1, 12]));
    assert_eq!(about["bytes"], json!(client.memory.len()));
    let (observation, action) = example();
    for round in 1..=20u64 {
        let got = client.step(&observation);
        for (got, want) in got.iter().zip(&action) {
            assert!((f64::from(*got) - want).abs() < 1e-5, "{got}, not {want}");
        }
        assert_eq!(client.memory[8..16], round.to_le_bytes(), "steps answered");
        assert_ne!(client.memory[16..24], [0; 8], "when");
    }
    // Another observation gives another action.
    assert_ne!(client.step(&[0.0; 12]), client.step(&observation));
    let status = daemon.get("/orin/v1/status").json();
    let lane = &status["lanes"][0];
    assert_eq!(
        (&lane["met"], &lane["missed"], &lane["failed"]),
        (&json!(22), &json!(0), &json!(0))
    );
    assert_eq!(lane["held_by"], json!(std::process::id()));
    let [p50, p999, worst] =
        ["p50_s", "p999_s", "worst_s"].map(|time| lane[time].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p999 && p999 <= worst, "{lane}");
    let metrics = daemon.get("/metrics").body;
    assert!(metrics.contains("orind_lane_deadlines_met_total{lane=\"policy\"} 22"), "{metrics}");
    assert!(metrics.contains("orind_lane_latency_worst_seconds{lane=\"policy\"}"), "{metrics}");
    let shown = said(
        orind_testing::daemon::orinctl(daemon.socket().parent().unwrap())
            .args(["status", "--socket"])
            .arg(daemon.socket()),
    );
    assert!(shown.contains("policy on cpu serves process"), "{shown}");
    assert!(shown.contains("22 in time, 0 late"), "{shown}");
}

/// A broken sensor: NaN reaches the action, which is reported and replaced.
#[test]
fn outputs_that_are_not_finite_are_reported_and_replaced() {
    let daemon =
        Daemon::launch(&lane("policy", "deadline_us = 60000000\nsafe = { action = 0.25 }"));
    ready(&daemon);
    let mut client = Client::open(&daemon, "policy").unwrap();
    let (observation, action) = example();
    let mut broken = observation.clone();
    broken[5] = f32::NAN;
    assert_eq!(client.attempt(&broken), (2, vec![0.25; 4]));
    let got = client.step(&observation);
    assert!(got.iter().zip(&action).all(|(got, want)| (f64::from(*got) - want).abs() < 1e-5));
    let status = daemon.get("/orin/v1/status").json();
    let counts = &status["lanes"][0];
    assert_eq!((&counts["failed"], &counts["met"]), (&json!(1), &json!(1)));
    drop(daemon);
    let daemon = Daemon::launch(&lane("policy", "safe = { brake = 0.0 }"));
    daemon.until("the lane has failed", |status| status["lanes"][0]["state"] == "failed");
    let status = daemon.get("/orin/v1/status").json();
    assert!(status["lanes"][0]["notes"][0].as_str().unwrap().contains("`brake`"), "{status}");
}

/// A step is late whether the network or the client's start was late.
#[test]
fn missed_deadlines_and_skipped_starts_are_counted() {
    let daemon = Daemon::launch(&lane("policy", "deadline_us = 1"));
    ready(&daemon);
    let mut client = Client::open(&daemon, "policy").unwrap();
    let (observation, _) = example();
    // A start a second ago, then one in the future, which counts as now.
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    let now = Duration::from(now).as_nanos() as u64;
    client.memory[..8].copy_from_slice(&(now - 1_000_000_000).to_le_bytes());
    client.step(&observation);
    client.memory[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    client.step(&observation);
    client.start.write(3).unwrap();
    client.answer.read().unwrap();
    let lane = daemon.get("/orin/v1/status").json()["lanes"][0].clone();
    assert_eq!(
        (&lane["met"], &lane["missed"], &lane["skipped"]),
        (&json!(0), &json!(3), &json!(2))
    );
    assert!((1.0..60.0).contains(&lane["worst_s"].as_f64().unwrap()), "{lane}");
}

/// Closing the connection frees the control loop, whatever the client did. Its shared memory is not reused.
#[test]
fn a_control_loop_belongs_to_one_client_until_it_closes() {
    let two = format!("{}{}", lane("left", ""), lane("right", ""));
    let daemon = Daemon::launch(&two);
    ready(&daemon);
    let (observation, _) = example();
    let mut first = Client::open(&daemon, "left").unwrap();
    let mut other = Client::open(&daemon, "right").unwrap();
    let refused = Client::open(&daemon, "left").err().unwrap();
    assert_eq!(refused, format!("control loop `left` is in use by process {}", std::process::id()));
    let want = other.step(&observation);
    assert_eq!(first.step(&observation), want);
    assert!(first.file.set_len(0).is_err(), "the memory cannot be taken away under the lane");
    first.memory.fill(0xff);
    for counter in [&first.start, &first.answer] {
        fcntl(counter, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    }
    first.start.write(1).unwrap();
    eventually("garbage is answered", || first.answer.read().is_ok());
    // Numbers that no counter of the loop accepts.
    fcntl(&first.answer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    first.answer.write(u64::MAX - 1).unwrap();
    first.start.write(u64::MAX - 1).unwrap();
    let Client { mut memory, connection, .. } = first;
    drop(connection);
    let mut second = None;
    eventually("the lane is free again", || {
        second = Client::open(&daemon, "left").ok();
        second.is_some()
    });
    let mut second = second.unwrap();
    memory.fill(0x7f);
    assert_eq!(second.step(&observation), want);
    assert_eq!(other.step(&observation), want);
}

/// The log's size after half a second of what a client does.
fn log_after(daemon: &Daemon, mut act: impl FnMut()) -> usize {
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        act();
    }
    daemon.log().len()
}

/// Another process has the client's descriptors, and uses them while the client goes away.
#[test]
fn nothing_that_a_client_shares_blocks_a_control_loop() {
    let daemon = Daemon::launch(&lane("policy", "rate_hz = 500"));
    ready(&daemon);
    let (observation, _) = example();
    let mut want = None;
    for round in 0..4 {
        let mut opened = None;
        eventually("the loop is free again", || {
            opened = Client::open(&daemon, "policy").ok();
            opened.is_some()
        });
        let mut client = opened.unwrap();
        let got = client.step(&observation);
        assert_eq!(*want.get_or_insert_with(|| got.clone()), got);
        let [start, answer] =
            [&client.start, &client.answer].map(|fd| fd.as_fd().try_clone_to_owned().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let left = std::thread::spawn(move || {
            let flags = [OFlag::O_NONBLOCK, OFlag::empty()];
            for turn in 0_usize.. {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                for fd in [&start, &answer] {
                    // Odd rounds leave the answers unread, others take starts away from the loop.
                    let _ = fcntl(fd, FcntlArg::F_SETFL(flags[turn % 2]));
                    let _ = fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
                    let _ = match round % 2 {
                        0 => nix::unistd::read(fd, &mut [0; 8]).map(drop),
                        _ => nix::unistd::write(fd, &(u64::MAX - 1).to_ne_bytes()).map(drop),
                    };
                }
            }
        });
        let log = log_after(&daemon, || {
            let _ = fcntl(&client.start, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
            let _ = client.start.write(u64::MAX - 1);
        });
        assert!(log < 20_000, "{log} bytes of log");
        drop(client);
        let mut again = None;
        eventually("the loop is free while a process of the client acts", || {
            again = Client::open(&daemon, "policy").ok();
            again.is_some()
        });
        assert_eq!(again.unwrap().step(&observation), *want.as_ref().unwrap());
        stop.store(true, Ordering::Relaxed);
        left.join().unwrap();
    }
}

#[test]
fn clients_cannot_spoil_the_figures() {
    let daemon = Daemon::launch(&lane("policy", ""));
    ready(&daemon);
    let mut client = Client::open(&daemon, "policy").unwrap();
    let (observation, _) = example();
    for started in [1, u64::MAX, u64::MAX / 2] {
        client.memory[..8].copy_from_slice(&started.to_le_bytes());
        client.step(&observation);
    }
    for _ in 0..3 {
        client.start.write(u64::MAX - 1).unwrap();
        client.answer.read().unwrap();
    }
    let lane = daemon.get("/orin/v1/status").json()["lanes"][0].clone();
    assert!(lane["skipped"].as_u64().unwrap() <= 3000, "{lane}");
    assert!(lane["worst_s"].as_f64().unwrap() < 10.0, "{lane}");
}

#[test]
fn errors_arrive_whole_and_slow_greetings_end() {
    let daemon = Daemon::launch(&lane("policy", ""));
    ready(&daemon);
    for _ in 0..200 {
        let mut stream = UnixStream::connect(door(&daemon)).unwrap();
        stream.write_all(b"nobody\n").unwrap();
        let mut line = [0; 4096];
        let count = stream.read(&mut line).unwrap();
        assert!(line[..count].ends_with(b"\n"), "{}", String::from_utf8_lossy(&line[..count]));
    }
    // Connections that have not named a loop make room for others.
    let idle: Vec<_> = (0..200).map(|_| UnixStream::connect(door(&daemon)).unwrap()).collect();
    let (observation, _) = example();
    let mut client = Client::open(&daemon, "policy").unwrap();
    drop(idle);
    client.step(&observation);
    let mut slow = UnixStream::connect(door(&daemon)).unwrap();
    let begin = Instant::now();
    while slow.write_all(b"p").is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the greeting has no end");
        std::thread::sleep(Duration::from_millis(200));
    }
    let mut line = String::new();
    let _ = slow.read_to_string(&mut line);
    assert!(line.contains("the greeting took longer than 5 s"), "{line}");
}

#[test]
fn invalid_requests_are_refused_with_the_reason() {
    let missing = "[[lane]]\nname = 'missing'\nnetwork = '/nowhere.onnx'\n";
    let open = lane("open", "").replace("shapes = { observation = [1, 12] }", "");
    let daemon = Daemon::launch(&format!("{missing}{open}{}", lane("policy", "core = 100000")));
    let status = daemon.until("the lanes are ready or failed", |status| {
        status["lanes"].as_array().unwrap().iter().all(|lane| lane["state"] != "preparing")
    });
    let states: Vec<&str> =
        status["lanes"].as_array().unwrap().iter().map(|l| l["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["failed", "failed", "ready"]);
    assert!(status["lanes"][2]["notes"][0].as_str().unwrap().contains("not pinned to core 100000"));
    let refused = |name: &str| Client::open(&daemon, name).err().unwrap();
    assert_eq!(
        refused("else"),
        "there is no control loop `else`; configured: missing, open, policy"
    );
    assert!(refused("missing").contains("/nowhere.onnx"), "{}", refused("missing"));
    let why = refused("open");
    assert!(why.contains("axis 0, `batch`, is open; give its shape"), "{why}");
    assert!(refused("\u{1b}[31m\u{fffd}").contains("there is no control loop"));
    assert!(
        refused(&"x".repeat(5000)).contains("a control loop's name and a line feed are expected")
    );
    // Connections that send nothing or noise do no harm.
    for bytes in [&b""[..], b"pol", b"\xff\xfe\n"] {
        let mut stream = UnixStream::connect(door(&daemon)).unwrap();
        stream.write_all(bytes).unwrap();
    }
    let mut client = Client::open(&daemon, "policy").unwrap();
    client.step(&[0.5; 12]);
}

/// While a language model is loaded, serves and is unloaded.
#[test]
fn a_language_model_changes_no_answer_of_a_control_loop() {
    let daemon = Daemon::start(&lane("policy", ""));
    ready(&daemon);
    let mut client = Client::open(&daemon, "policy").unwrap();
    let (observation, _) = example();
    let want = client.step(&observation);
    let body = json!({ "model": MODEL, "prompt": "x ".repeat(100), "max_tokens": 60 });
    std::thread::scope(|scope| {
        let served = scope.spawn(|| daemon.post("/v1/completions", &body).status);
        while !served.is_finished() {
            assert_eq!(client.step(&observation), want);
        }
        assert_eq!(served.join().unwrap(), 200);
    });
    assert_eq!(client.step(&observation), want);
}

/// The two programs of the documentation.
#[test]
fn the_examples_of_control_loops_work() {
    let daemon = Daemon::launch(&lane("policy", ""));
    ready(&daemon);
    let run = |command: &mut Command| {
        let mut text = None;
        // The end of the previous client frees the control loop.
        eventually("the lane is free", || {
            let out = command.output().unwrap();
            text = out.status.success().then(|| String::from_utf8(out.stdout).unwrap());
            text.is_some()
        });
        text.unwrap()
    };
    let folder = repository("examples/lane");
    let built = tempfile::tempdir().unwrap();
    let program = built.path().join("client");
    let made = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &folder.join("client.c")])
        .status();
    assert!(made.unwrap().success());
    let c = run(Command::new(&program).arg(door(&daemon)).args(["policy", "20"]));
    assert!(c.contains("action ") && c.contains("worst"), "{c}");
    let package = repository("python");
    let new_enough = "import sys; sys.exit(sys.version_info < (3, 8))";
    let python = Command::new("python3").args(["-c", new_enough]).output();
    if !python.is_ok_and(|out| out.status.success()) {
        eprintln!("no Python of 3.8 or later: its client was not run");
        return;
    }
    let python = run(Command::new("python3")
        .arg(folder.join("client.py"))
        .args(["policy", "20"])
        .env("PYTHONPATH", &package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("ORIND_SOCKET", daemon.socket()));
    assert!(python.contains("'action': ["), "{python}");
}
