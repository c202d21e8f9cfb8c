//! The bring-up steps on simulated Orins, linked into this program: on a correct machine every step
//! passes, and on a faulty one the step that tests for the fault fails. The fault of a machine is
//! set when a process starts, so each such test starts this program again as a child process.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use tegra_sim_preload as _;

use std::time::Instant;

use orind_testing::program::{again, said};
use parking_lot::Mutex;
use tegra::orin::Orin;
use tegra::space::Range;
use tegra_first_light::{Failure, LENGTHS, TIMEOUT, Trial};

static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test alone in this process, then checks that no handle, mapping, channel or fd leaked.
fn alone(test: impl FnOnce(Trial)) {
    let _alone = ALONE.lock();
    test(Trial::open(&Orin::open().unwrap(), Range::Short).unwrap());
    let device = tegra_sim_preload::orin().unwrap();
    assert_eq!(device.live(), Default::default(), "left behind");
    let files = tegra_sim_preload::open_files();
    assert!(files.is_empty(), "fds left open: {files:?}");
}

fn every_step_passes_on(mut trial: Trial) {
    trial.release().unwrap();
    assert!(trial.event().unwrap());
    trial.launch().unwrap();
    assert_eq!(trial.order(&LENGTHS).unwrap(), 2048);
    assert!(trial.stopped().is_none());
    trial.atomics().unwrap();
    trial.handover().unwrap();
}

#[test]
fn every_step_passes() {
    alone(every_step_passes_on);
}

#[test]
fn steps_run_repeatedly_and_in_any_order() {
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

/// Scenarios by name, for child processes with faulty machines.
const SCENARIOS: &[(&str, Scenario)] = &[
    ("a fault in a long chain", a_fault_in_a_long_chain),
    ("a stuck release", a_stuck_release),
    ("all passes", every_step_passes_on),
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

/// Runs a scenario on a machine that a variable of the simulator configures.
fn on(variable: &str, value: &str, scenario: &str) {
    let text = said(again(module_path!(), "child").env(SCENARIO, scenario).env(variable, value));
    assert!(text.contains("1 passed"), "{text}");
}

fn a_fault_in_a_long_chain(mut trial: Trial) {
    assert_eq!(trial.order(&LENGTHS).unwrap(), 256);
    let Some(Failure::Stopped { done, launches, cause: Some(_) }) = trial.stopped() else {
        panic!("{:?}", trial.stopped());
    };
    // Two chains of each length were longer; the faulting launch may have written its word.
    assert_eq!(*launches, 2048);
    assert!((423..=424).contains(done), "{done}");
    let text = trial.stopped().unwrap().to_string();
    assert!(text.contains("of 2048 launches: the GPU faulted: address fault (31)"), "{text}");
    // The channel was rebuilt, and the next steps pass.
    trial.launch().unwrap();
    assert_eq!(trial.order(&[32]).unwrap(), 32);
    assert!(trial.stopped().is_none());
}

#[test]
fn shorter_chains_pass_after_a_fault_in_a_long_one() {
    on("TEGRA_SIM_FAULTS", "mmu-fault@1000", "a fault in a long chain");
}

fn a_stuck_release(mut trial: Trial) {
    let started = Instant::now();
    let failure = trial.release().unwrap_err();
    assert!(matches!(failure, Failure::Gpu(tegra::Error::Stalled { .. })), "{failure}");
    assert!(started.elapsed() >= TIMEOUT);
    trial.release().unwrap();
}

#[test]
fn waits_for_a_stuck_release_end_after_a_second() {
    // The first release is that of the configuration stream; the step's own and its tail follow.
    on("TEGRA_SIM_FAULTS", "stuck-semaphore@3", "a stuck release");
}

/// The machine lacks every feature that no step relies on: QMD releases, read-only maps, and more
/// stack memory than the programs used that were seen to run.
#[test]
fn no_step_needs_qmd_releases_or_read_only_maps() {
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
fn a_machine_without_interrupts_fails_only_the_event_step() {
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
fn the_failure_names_the_wrong_instruction_class() {
    on("TEGRA_SIM_MACHINE", "nan=dp4a", "dot products");
    on("TEGRA_SIM_MACHINE", "nan=shfl", "exchange");
    on("TEGRA_SIM_MACHINE", "nan=lds", "static shared memory");
    on("TEGRA_SIM_MACHINE", "nan=ldl", "stack");
}

fn cut_chains(mut trial: Trial) {
    assert_eq!(trial.order(&LENGTHS).unwrap(), 32);
    let text = trial.stopped().unwrap().to_string();
    assert!(text.contains("stopped after 64 of 256 launches: the GPU reported the rest"), "{text}");
    assert_eq!(trial.order(&[64]).unwrap(), 64);
    assert_eq!(trial.order(&[65]).unwrap(), 0);
    trial.handover().unwrap();
}

#[test]
fn a_chain_that_ends_early_is_detected_by_unwritten_words() {
    on("TEGRA_SIM_MACHINE", "chain-cut=64", "cut chains");
}

fn lost_atomics(mut trial: Trial) {
    trial.launch().unwrap();
    let failure = trial.atomics().unwrap_err();
    assert!(matches!(failure, Failure::Counter { counter: 1.., .. }), "{failure}");
    trial.handover().unwrap();
}

#[test]
fn a_lost_atomic_is_detected_by_the_counter() {
    on("TEGRA_SIM_MACHINE", "lost-atomics", "lost atomics");
}

fn stale_l1(mut trial: Trial) {
    trial.launch().unwrap();
    let failure = trial.handover().unwrap_err();
    let Failure::StreamAlone(why) = &failure else { panic!("{failure}") };
    assert!(matches!(**why, Failure::ForGpu { .. }), "{why}");
    assert!(failure.to_string().contains("the GPU does not see the CPU's writes"), "{failure}");
}

#[test]
fn an_invalidate_that_misses_l1_is_detected() {
    on("TEGRA_SIM_MACHINE", "stale-handover", "stale L1");
}
