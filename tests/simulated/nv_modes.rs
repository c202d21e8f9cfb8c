//! Modes of the NV device: tokens are equal in each, and the machine's defects decide which mode is used.

use std::sync::Arc;

use device::Device;
use device::first_light::{Chains, Maps, Mode, Note, Range, WakeBy};
use device::gpu::nv::Nv;
use model::{KvLayout, Model};
use orind_testing::program::{again, said};
use orind_testing::session::Session;
use orind_testing::tiny;
use plan::Bucket;

const STEPS: u32 = 16;
/// Environment variable with the mode of chains.
const CHAINS: &str = "ORIND_TEST_CHAINS";
const FULL: Mode = Mode {
    chains: Chains::Full,
    longest: 2048,
    wake: WakeBy::Event,
    maps: Maps::ReadWrite,
    range: Range::Short,
};

fn in_mode(mode: Mode) -> Arc<dyn Device> {
    Nv::detect().unwrap().first_light().unwrap().in_mode(mode)
}

/// Tokens of [`STEPS`] steps.
fn tokens(device: &dyn Device) -> Vec<i32> {
    let (layout, bucket) = (KvLayout { slots: 1, context: 64, ring: None }, Bucket::decode(1, 64));
    let model = Model::open(tiny("tiny-llama-Q8_0")).unwrap();
    let mut session = Session::new(device, &model, layout, &[bucket]);
    session.load(0, &[(5, 0, 0)]);
    let Session { instance, plans, .. } = &mut session;
    let ticket = instance.submit(plans[0].1, STEPS).unwrap();
    instance.wait(ticket).unwrap();
    let mut tokens = vec![[0]; STEPS as usize];
    for (step, token) in tokens.iter_mut().enumerate() {
        instance.tokens(ticket, step as u32, token).unwrap();
    }
    let activity = instance.activity();
    assert_eq!((activity.submits, activity.rebuilds), (u64::from(STEPS), 0));
    tokens.concat()
}

#[test]
fn tokens_are_the_same_in_every_mode() {
    let expected = tokens(&*in_mode(FULL));
    let split = Mode { chains: Chains::Split, ..FULL };
    for mode in [
        split,
        Mode { longest: 5, ..FULL },
        Mode { longest: 1, ..split },
        Mode { chains: Chains::Serial, ..FULL },
        Mode { wake: WakeBy::Poll, ..split },
        Mode { maps: Maps::ReadOnly, ..split },
        Mode { range: Range::Proven, ..split },
    ] {
        assert_eq!(tokens(&*in_mode(mode)), expected, "{mode}");
    }
}

/// Prints the tokens in the mode of the environment.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn traced() {
    let chains = match std::env::var(CHAINS).unwrap().as_str() {
        "full" => Chains::Full,
        "serial" => Chains::Serial,
        other => panic!("{other}"),
    };
    println!("tokens {:?}", tokens(&*in_mode(Mode { chains, ..FULL })));
}

/// Host methods of a step: two for each chain, and five more for its release if there are several chains. The numbers
/// of ring entries and doorbells do not change.
#[test]
fn chains_cost_methods_but_no_doorbells() {
    const LAUNCHES: usize = 14;
    let dir = tempfile::tempdir().unwrap();
    let count = |chains: &str| {
        let trace = dir.path().join(chains);
        let mut child = again(module_path!(), "traced");
        said(child.env(CHAINS, chains).env("TEGRA_SIM_TRACE", &trace));
        let trace = std::fs::read_to_string(&trace).unwrap();
        ["method", "entry", "doorbell", "launch"].map(|event| {
            let event = format!("\"event\":\"{event}\"");
            trace.lines().filter(|line| line.contains(&event)).count()
        })
    };
    let (full, serial) = (count("full"), count("serial"));
    println!("methods, entries, doorbells, launches: full {full:?}, serial {serial:?}");
    assert_eq!(full[3], STEPS as usize * LAUNCHES);
    assert_eq!((serial[1], serial[2], serial[3]), (full[1], full[2], full[3]));
    let more = (LAUNCHES - 1) * 2 + LAUNCHES * 5;
    assert_eq!(serial[0] - full[0], STEPS as usize * more);
}

/// First light on the machine of the environment, then a generation in the mode that passed.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn machine() {
    let nv = Nv::detect().unwrap();
    let mut stage = None;
    let started = std::time::Instant::now();
    let proven = nv.first_light().unwrap().prove(FULL, &mut |note| {
        match note {
            Note::Begins(begun) => stage = Some(begun),
            Note::Passed(_) => {}
            Note::Degraded(stage, why) => println!("degraded {stage}: {why}"),
        }
        Ok(())
    });
    println!("first light {:?}", started.elapsed());
    match proven {
        Ok(mode) => {
            println!("mode {}", mode.unwrap());
            println!("tokens {:?}", tokens(&*in_mode(mode.unwrap())));
        }
        Err(error) => println!("failed {}: {error}", stage.unwrap()),
    }
}

#[test]
fn a_defect_of_the_machine_decides_the_mode() {
    check_machines(&[
        ("chain-cut=64", "mode full, wake event, maps rw, range short, chains to 32"),
        ("stale-handover", "mode split, wake event, maps rw, range short, chains to 2048"),
        ("short-range-refused", "mode full, wake event, maps rw, range proven, chains to 2048"),
        ("lost-atomics", "failed atomics: "),
        ("no-event,chain-cut=8,stale-handover", "mode serial, wake poll, maps rw, range short"),
    ]);
}

#[test]
#[ignore = "nightly"]
fn nightly_each_defect_of_a_machine_decides_the_mode() {
    check_machines(&[
        ("", "mode full, wake event, maps rw, range short, chains to 2048"),
        ("no-event", "mode full, wake poll, maps rw, range short, chains to 2048"),
        ("no-qmd-release", "mode full, wake event, maps rw, range short, chains to 2048"),
        ("chain-cut=8", "mode serial, wake event, maps rw, range short"),
        ("local-memory-refused", "mode full, wake event, maps rw, range short, chains to 2048"),
        ("read-only-maps-fault", "mode full, wake event, maps rw, range short, chains to 2048"),
        ("no-heap-query", "mode full, wake event, maps rw, range short, chains to 2048"),
        ("nan=dp4a", "failed launch: "),
    ]);
}

/// Runs first light on each machine, and compares the mode or the failed step.
fn check_machines(machines: &[(&str, &str)]) {
    let expected = format!("tokens {:?}", tokens(&*in_mode(Mode::default())));
    for &(machine, outcome) in machines {
        let said = said(again(module_path!(), "machine").env("TEGRA_SIM_MACHINE", machine));
        assert!(said.contains(outcome), "{machine}: {said}");
        let serves = outcome.starts_with("mode");
        assert_eq!(said.contains(&expected), serves, "{machine}: {said}");
    }
}
