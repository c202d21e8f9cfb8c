//! The stages on simulated Orins, which are linked into this program: on one that does all right each passes,
//! and on one that fails the stage that is meant to notice does. What a machine fails at is chosen when a
//! process starts, so those run in processes of their own: this program again.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use tegra_sim_preload as _;

use std::time::Instant;

use orind_testing::program::{again, said};
use parking_lot::Mutex;
use tegra::orin::Orin;
use tegra::space::Range;
use tegra_first_light::{Failure, LENGTHS, PATIENCE, Trial};

static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test alone in this process, then checks that no handle, mapping, channel or fd is left.
fn alone(test: impl FnOnce(Trial)) {
    let _alone = ALONE.lock();
    test(Trial::open(&Orin::open().unwrap(), Range::Short).unwrap());
    let device = tegra_sim_preload::orin().unwrap();
    assert_eq!(device.live(), Default::default(), "left behind");
    let files = tegra_sim_preload::open_files();
    assert!(files.is_empty(), "fds left open: {files:?}");
}

fn all_passes(mut trial: Trial) {
    trial.release().unwrap();
    assert!(trial.event().unwrap());
    trial.launch().unwrap();
    assert_eq!(trial.order(&LENGTHS).unwrap(), 2048);
    assert!(trial.stopped().is_none());
    trial.atomics().unwrap();
    trial.handover().unwrap();
}

#[test]
fn every_stage_passes() {
    alone(all_passes);
}

#[test]
fn stages_may_be_asked_for_again_and_in_any_order() {
    alone(|mut trial| {
        for _ in 0..2 {
            trial.atomics().unwrap();
            trial.launch().unwrap();
            // Ascending, whatever the order.
            assert_eq!(trial.order(&[40, 1, 8]).unwrap(), 40);
            assert_eq!(trial.order(&[]).unwrap(), 0);
            assert!(trial.event().unwrap());
            trial.release().unwrap();
        }
    });
}

const SCENARIO: &str = "TEGRA_TEST_SCENARIO";

type Scenario = fn(Trial);

/// What the machines of other tests are put through, by name.
const SCENARIOS: &[(&str, Scenario)] = &[
    ("a fault in a long chain", a_fault_in_a_long_chain),
    ("a release that is not done", a_release_that_is_not_done),
    ("all passes", all_passes),
    ("no event", no_event),
    ("dot products", |trial| wrong_part(trial, "dot products")),
    ("exchange", |trial| wrong_part(trial, "exchange between lanes")),
    ("static shared memory", |trial| wrong_part(trial, "static shared memory and barrier")),
    ("stack", |trial| wrong_part(trial, "the stack in local memory")),
    ("cut chains", cut_chains),
    ("lost atomics", lost_atomics),
    ("stale L1", stale_l1),
];

#[test]
#[ignore = "run by the others, in a process of its own"]
fn child() {
    let name = std::env::var(SCENARIO).unwrap();
    let (_, scenario) = SCENARIOS.iter().find(|(known, _)| *known == name).unwrap();
    alone(scenario);
}

/// Runs a scenario on a machine that a variable of the simulator describes.
fn on(variable: &str, value: &str, scenario: &str) {
    let text = said(again(module_path!(), "child").env(SCENARIO, scenario).env(variable, value));
    assert!(text.contains("1 passed"), "{text}");
}

fn a_fault_in_a_long_chain(mut trial: Trial) {
    assert_eq!(trial.order(&LENGTHS).unwrap(), 256);
    let Some(Failure::Stopped { done, launches, cause: Some(_) }) = trial.stopped() else {
        panic!("{:?}", trial.stopped());
    };
    // Two chains of each length were longer; the launch that faults may have written its word.
    assert_eq!(*launches, 2048);
    assert!((423..=424).contains(done), "{done}");
    let text = trial.stopped().unwrap().to_string();
    assert!(text.contains("of 2048 launches: the GPU faulted: address fault (31)"), "{text}");
    // The channel is another, and what comes next passes.
    trial.launch().unwrap();
    assert_eq!(trial.order(&[32]).unwrap(), 32);
    assert!(trial.stopped().is_none());
}

#[test]
fn a_fault_in_a_long_chain_does_not_spoil_the_shorter_ones() {
    on("TEGRA_SIM_FAULTS", "mmu-fault@1000", "a fault in a long chain");
}

fn a_release_that_is_not_done(mut trial: Trial) {
    let started = Instant::now();
    let failure = trial.release().unwrap_err();
    assert!(matches!(failure, Failure::Gpu(tegra::Error::Stalled { .. })), "{failure}");
    assert!(started.elapsed() >= PATIENCE);
    trial.release().unwrap();
}

#[test]
fn what_never_comes_is_waited_for_a_second() {
    // The first is that of the stream that configures the channel, then come the stage's own and its tail.
    on("TEGRA_SIM_FAULTS", "stuck-semaphore@3", "a release that is not done");
}

/// What stages do not rely on may be missing: releases of launches, maps for reading only, and any memory
/// of stacks but as much as all code had that was seen to run.
#[test]
fn no_stage_fails_for_what_none_relies_on() {
    on(
        "TEGRA_SIM_MACHINE",
        "no-qmd-release,read-only-maps-fault,local-memory-refused",
        "all passes",
    );
}

fn no_event(mut trial: Trial) {
    trial.release().unwrap();
    assert!(!trial.event().unwrap());
    trial.launch().unwrap();
    assert_eq!(trial.order(&[32]).unwrap(), 32);
}

#[test]
fn where_no_interrupt_wakes_the_event_is_not_relied_on() {
    on("TEGRA_SIM_MACHINE", "no-event", "no event");
}

fn wrong_part(mut trial: Trial, expected: &str) {
    trial.release().unwrap();
    let failure = trial.launch().unwrap_err();
    let Failure::Probe { part, wrong, .. } = failure else { panic!("{failure}") };
    assert_eq!(part, expected);
    assert!(wrong > 0);
    assert!(failure.to_string().contains(expected), "{failure}");
}

#[test]
fn a_kind_of_work_that_is_done_wrong_is_named() {
    on("TEGRA_SIM_MACHINE", "nan=dp4a", "dot products");
    on("TEGRA_SIM_MACHINE", "nan=shfl", "exchange");
    on("TEGRA_SIM_MACHINE", "nan=lds", "static shared memory");
    on("TEGRA_SIM_MACHINE", "nan=ldl", "stack");
}

fn cut_chains(mut trial: Trial) {
    assert_eq!(trial.order(&LENGTHS).unwrap(), 32);
    let text = trial.stopped().unwrap().to_string();
    assert!(text.contains("stopped after 64 of 256 launches: the GPU took the rest for"), "{text}");
    assert_eq!(trial.order(&[64]).unwrap(), 64);
    assert_eq!(trial.order(&[65]).unwrap(), 0);
    trial.handover().unwrap();
}

#[test]
fn a_chain_that_ends_early_is_found_out_by_what_it_leaves_undone() {
    on("TEGRA_SIM_MACHINE", "chain-cut=64", "cut chains");
}

fn lost_atomics(mut trial: Trial) {
    trial.launch().unwrap();
    let failure = trial.atomics().unwrap_err();
    assert!(matches!(failure, Failure::Counter { counter: 1.., .. }), "{failure}");
    trial.handover().unwrap();
}

#[test]
fn an_atomic_operation_that_is_lost_leaves_the_counter_short() {
    on("TEGRA_SIM_MACHINE", "lost-atomics", "lost atomics");
}

fn stale_l1(mut trial: Trial) {
    trial.launch().unwrap();
    let failure = trial.handover().unwrap_err();
    let Failure::StreamAlone(why) = &failure else { panic!("{failure}") };
    assert!(matches!(**why, Failure::ForGpu { .. }), "{why}");
    assert!(failure.to_string().contains("the GPU does not see what the CPU wrote"), "{failure}");
}

#[test]
fn an_invalidate_that_does_not_reach_l1_is_noticed() {
    on("TEGRA_SIM_MACHINE", "stale-handover", "stale L1");
}
