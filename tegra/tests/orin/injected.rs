//! Failures that the simulator injects. They are chosen when a process starts, so each test runs
//! one scenario in a child process: this program again, with [`child`] alone.

use std::time::Duration;

use nix::errno::Errno;
use tegra::Error;
use tegra::abi::channel::ErrorCode;
use tegra::buffer::{Mailbox, Scratch};
use tegra::context::{Context, Options};
use tegra::pushbuffer::Engine;
use tegra::queue::Wake;

use orind_testing::program::again;

use crate::support::{Copies, LONG, alone, complete, space};

const SCENARIO: &str = "TEGRA_TEST_SCENARIO";

/// The scenarios by name. Each leaves no object behind.
const SCENARIOS: &[(&str, fn())] = &[
    ("goes well", goes_well),
    ("a step fails", a_step_fails),
    ("a buffer fails", a_buffer_fails),
    ("memory ends", memory_ends),
    ("never woken", never_woken),
    ("address fault", || faults(ErrorCode::MmuFault)),
    ("time limit", || faults(ErrorCode::IdleTimeout)),
    ("stuck", stuck),
    ("ten steps", || steps(10)),
    ("thousand steps", || steps(1000)),
];

/// Runs a scenario with failures; returns the simulator's trace if `trace`.
fn run(scenario: &str, failures: &str, trace: bool) -> Option<String> {
    let file = std::env::temp_dir().join(format!("tegra-{}-{scenario}.jsonl", std::process::id()));
    let mut command = again(module_path!(), "child");
    command.env(SCENARIO, scenario).env("TEGRA_SIM_FAULTS", failures);
    if trace {
        command.env("TEGRA_SIM_TRACE", &file);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario} with {failures}:\n{text}");
    assert!(text.contains("1 passed"), "{text}");
    trace.then(|| {
        let recorded = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        recorded
    })
}

#[test]
#[ignore = "run by the others, in a process of its own"]
fn child() {
    let name = std::env::var(SCENARIO).unwrap_or_else(|_| "goes well".into());
    let (_, scenario) = SCENARIOS.iter().find(|(known, _)| *known == name).unwrap();
    alone(scenario);
}

fn goes_well() {
    let mut copies = Copies::new();
    let (from, to) = (copies.mailbox(4096), copies.mailbox(4096));
    for value in 1..20 {
        from.store_u64(0, value).unwrap();
        copies.copy(from.address(), to.address(), 8);
        assert_eq!(to.load_u64(0).unwrap(), value);
    }
    copies.context.close().unwrap();
    copies.copy(from.address(), to.address(), 8);
}

#[test]
fn interrupted_requests_are_repeated() {
    run("goes well", "ioctl:*:EINTR@1/3", false);
}

#[test]
fn requests_with_eagain_are_repeated() {
    run("goes well", "ioctl:*:EAGAIN@1/5", false);
}

fn a_step_fails() {
    let space = space();
    let mut context = Context::new(&space, Options::default()).unwrap();
    let first = context.add_queue(Engine::Compute, 16).unwrap();
    let second = context.add_queue(Engine::Copy, 16).unwrap();
    let error = context.submit(second, &[], Wake::Quiet).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENODEV), "{error}");
    assert!(!context.is_open(), "all or nothing");
    for queue in [first, second] {
        complete(&mut context, queue, Wake::Interrupt);
    }
}

#[test]
fn a_failed_bring_up_can_be_retried_at_any_step() {
    for step in [
        "OPEN_TSG@1",
        "CREATE_SUBCONTEXT@1",
        "EVENT_ID_CTRL@1",
        "OPEN_CHANNEL@2",
        "BIND_CHANNEL@1",
        "BIND_CHANNEL_EX@2",
        "WDT@1",
        "SETUP_BIND@2",
        "ALLOC_OBJ_CTX@1",
        "SET_ERROR_NOTIFIER@2",
    ] {
        let (request, when) = step.split_once('@').unwrap();
        run("a step fails", &format!("ioctl:{request}:ENODEV@{when}"), false);
    }
}

fn a_buffer_fails() {
    let space = space();
    let error = Mailbox::new(&space, 4096).unwrap_err();
    // Memory is free, so the error has the request and its errno instead of a size.
    assert_eq!(error.errno(), Some(Errno::ENOMEM), "{error}");
    assert!(error.to_string().contains(": ENOMEM: "), "{error}");
    assert_eq!(space.usage(), Default::default());
    let buffer = Mailbox::new(&space, 4096).unwrap();
    buffer.store_u32(0, 1).unwrap();
}

#[test]
fn a_failed_buffer_leaks_nothing_at_any_step() {
    for request in ["CREATE_64", "ALLOC", "MAP_BUFFER_EX"] {
        run("a buffer fails", &format!("ioctl:{request}:ENOMEM@1"), false);
    }
}

fn memory_ends() {
    let space = space();
    let first = Scratch::new(&space, 40 << 20).unwrap();
    let error = Scratch::new(&space, 40 << 20).unwrap_err();
    let Error::OutOfMemory { need, have } = error else { panic!("{error}") };
    assert_eq!(need, 40 << 20);
    assert!(have < need, "{have}");
    drop(first);
    Scratch::new(&space, 40 << 20).unwrap();
}

#[test]
fn out_of_memory_reports_sizes() {
    run("memory ends", "memory-full=64M", false);
}

fn never_woken() {
    let mut copies = Copies::with(Options { spin: Duration::ZERO, ..Options::default() });
    let context = &mut copies.context;
    for _ in 0..5 {
        complete(context, copies.queue, Wake::Interrupt);
    }
}

#[test]
fn a_lost_event_only_costs_time() {
    run("never woken", "lost-event@1/1", false);
}

fn faults(code: ErrorCode) {
    let mut copies = Copies::new();
    let (from, to) = (copies.mailbox(4096), copies.mailbox(4096));
    from.store_u64(0, 5).unwrap();
    let Copies { context, copier, .. } = &mut copies;
    let ticket = copier.copy(context, from.address(), to.address(), 8).unwrap();
    let Error::Fault(fault) = context.wait(ticket, LONG).unwrap_err() else { panic!("no fault") };
    assert_eq!(fault.code, Some(code), "{fault}");
    assert!(fault.time.is_some_and(|time| time > 0));
    context.rebuild().unwrap();
    assert_eq!(context.statistics().rebuilds, 1);
    copies.copy(from.address(), to.address(), 8);
    assert_eq!(to.load_u64(0).unwrap(), 5);
}

#[test]
fn injected_faults_are_reported_with_their_code() {
    run("address fault", "mmu-fault@1", false);
}

#[test]
fn an_expired_switch_limit_is_a_fault() {
    // The first entry configures the channel.
    run("time limit", "channel-timeout@2", false);
}

fn stuck() {
    let mut copies = Copies::new();
    let (queue, context) = (copies.queue, &mut copies.context);
    let ticket = context.submit(queue, &[], Wake::Interrupt).unwrap();
    let error = context.wait(ticket, Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, Error::Stalled { .. }) && error.can_rebuild(), "{error}");
    context.rebuild().unwrap();
    assert!(matches!(context.wait(ticket, LONG), Err(Error::Lost { .. })));
    complete(context, queue, Wake::Interrupt);
}

#[test]
fn a_missing_release_is_reported_as_stalled() {
    run("stuck", "stuck-semaphore@2", false);
}

fn steps(count: u64) {
    // Work here is done long before a wait would sleep.
    let mut copies = Copies::with(Options { spin: LONG, ..Options::default() });
    let (queue, context) = (copies.queue, &mut copies.context);
    for _ in 0..count {
        complete(context, queue, Wake::Interrupt);
    }
    let statistics = context.statistics();
    assert_eq!((statistics.submissions, statistics.sleeps), (count, 0));
}

/// A thousand steps make exactly as many requests of the driver as ten do.
#[test]
fn a_repeated_step_makes_no_request() {
    let requests = |scenario: &str| {
        let trace = run(scenario, "", true).unwrap();
        trace.lines().filter(|line| line.contains("\"ioctl\"")).count()
    };
    let few = requests("ten steps");
    assert!(few > 20, "the bring-up is recorded");
    assert_eq!(few, requests("thousand steps"));
}
