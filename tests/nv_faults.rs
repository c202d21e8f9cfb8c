//! GPU faults in the middle of a generation: the daemon's engine rebuilds the channel, executes the
//! interrupted step again on the caches as they are, and the stream's tokens are those of a run that
//! nothing disturbed.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::PathBuf;
use std::process::Command;

use device::gpu::nv::Nv;
use device::{Data, Device, Request as DeviceRequest, WeightSource};
use model::{KvLayout, Model, ports};
use orind::engine::{Event, Handle, LoadEvent, LoadSpec, Request, Settings};
use plan::sample::{Sampling, philox};
use plan::{Bucket, Class, fuse};
use tegra_sim::bundle::Bundle;
use tegra_sim::engine::Replay;
use tegra_sim_preload as _;

const TOKENS: u32 = 60;
/// The variable that says how many steps are handed over at once.
const STEPS: &str = "ORIND_TEST_STEPS";
/// The variable that says how many positions a slot of a generation has.
const CONTEXT: &str = "ORIND_TEST_CONTEXT";

struct Source<'a>(&'a Model, &'a str);

impl WeightSource for Source<'_> {
    fn read_at(
        &self,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.read_weight(self.1, offset, buf)?)
    }
}

/// One generation, with the faults that the environment asks the simulator for. The parent reads
/// what this prints.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn generation() {
    let handle = Handle::start(Settings { queue_limit: 4 }).unwrap();
    let context = std::env::var(CONTEXT).map_or(128, |context| context.parse().unwrap());
    let mut events = handle.load(LoadSpec {
        model: "synthetic:tiny-llama:q8_0".into(),
        backend: "nv".into(),
        slots: 2,
        context,
        // All of the prompt at once where that is to take long.
        prefill_chunk: if context > 128 { 32 } else { 8 },
        threads: 1,
        cpu_isa: "auto".into(),
        tuning: orind::engine::tuning::Tuning::default(),
    });
    loop {
        match events.blocking_recv().unwrap() {
            LoadEvent::Progress { .. } => {}
            LoadEvent::Loaded(_) => break,
            LoadEvent::Failed(error) => panic!("{error}"),
        }
    }
    let mut events = handle
        .generate(Request {
            prompt: (1..20).collect(),
            max_tokens: TOKENS,
            // Random, so that a repeated step that drew other numbers would show.
            sampling: Sampling { temperature: 1.5, top_k: 0, top_p: 1.0, seed: 7 },
            stop: vec![],
            ignore_end: true,
            logprobs: None,
            prompt_logprobs: false,
        })
        .unwrap();
    let mut ids = Vec::new();
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Token(token) => ids.push(token.id),
            Event::Failed(error) => panic!("{error}"),
            Event::Prompt(_) | Event::Finished(_) => {}
        }
    }
    println!("tokens {ids:?}");
    println!("rebuilds {}", handle.snapshot().activity.rebuilds);
}

/// Tokens and rebuilds of a generation with these faults.
fn generate(faults: &str) -> (String, usize) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["generation", "--exact", "--ignored", "--nocapture"])
        .env("TEGRA_SIM_FAULTS", faults)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "faults {faults}: {text}\n{error}");
    (line(&text, "tokens "), line(&text, "rebuilds ").parse().unwrap())
}

/// What the simulator leaves behind can be looked at on any machine.
#[test]
fn every_fault_leaves_a_bundle_that_replays() {
    let dir = tempfile::tempdir().unwrap();
    let faults: Vec<String> = places(2, 3).iter().map(|at| format!("mmu-fault@{at}")).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["generation", "--exact", "--ignored", "--nocapture"])
        .env("TEGRA_SIM_FAULTS", faults.join(","))
        .env("TEGRA_SIM_BUNDLES", dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    for file in files {
        let replay = Replay::run(&Bundle::read(&file).unwrap(), None).unwrap();
        assert!(replay.is_same(), "{}: {replay}", file.display());
    }
}

/// `count` places at which something fails, a step apart at least.
fn places(seed: u64, count: u32) -> Vec<u64> {
    let mut at = 5;
    (0..count)
        .map(|i| {
            at += 16 + u64::from(philox([i, 0, 0, 0], seed)[0] % 10);
            at
        })
        .collect()
}

#[test]
fn fifty_faults_change_no_token() {
    let (undisturbed, rebuilds) = generate("");
    assert_eq!(rebuilds, 0);
    assert_eq!(undisturbed.split(',').count(), TOKENS as usize);
    let faults: Vec<String> =
        places(1, 50).into_iter().map(|at| format!("mmu-fault@{at}")).collect();
    let (disturbed, rebuilds) = generate(&faults.join(","));
    assert_eq!(disturbed, undisturbed);
    assert_eq!(rebuilds, 50);
}

/// Nothing reports a hang: the release that a step ends with just does not come, and neither does that of
/// the step ahead. Of one release that is lost the next one makes up for it: it says that both steps are done.
#[test]
fn a_hung_channel_is_rebuilt_and_no_token_is_lost() {
    let (undisturbed, _) = generate("");
    for (stuck, hangs) in [(&[20, 21, 45, 46][..], 2), (&[20], 0)] {
        let (disturbed, rebuilds) = generate(&stuck_semaphores(stuck));
        assert_eq!(disturbed, undisturbed);
        assert_eq!(rebuilds, hangs);
    }
}

/// The second of three prefill chunks stands still, and with it the third, which is under way: both are
/// executed again.
#[test]
fn a_prefill_that_hangs_is_rebuilt_and_no_token_is_lost() {
    let (undisturbed, _) = generate("");
    let (disturbed, rebuilds) = generate(&stuck_semaphores(&[3, 4]));
    assert_eq!(disturbed, undisturbed);
    assert_eq!(rebuilds, 1);
}

/// Releases that do not come.
fn stuck_semaphores(releases: &[u64]) -> String {
    let faults: Vec<String> = releases.iter().map(|at| format!("stuck-semaphore@{at}")).collect();
    faults.join(",")
}

/// What may be long releases semaphores on the way, what is short has nothing to tell.
#[test]
fn a_long_step_tells_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let generate = |context: u32, faults: &str| {
        let trace = dir.path().join(format!("{context}{faults}"));
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["generation", "--exact", "--ignored", "--nocapture"])
            .env(CONTEXT, context.to_string())
            .env("TEGRA_SIM_FAULTS", faults)
            .env("TEGRA_SIM_TRACE", &trace)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let trace = std::fs::read_to_string(&trace).unwrap();
        let signs = trace.lines().filter(|event| event.contains("\"unit\":\"QMD\"")).count();
        (line(&text, "tokens "), line(&text, "rebuilds "), signs)
    };
    let (_, _, signs) = generate(128, "");
    assert_eq!(signs, 0);
    let (undisturbed, _, signs) = generate(131_072, "");
    assert!(
        (3..20).contains(&signs),
        "{signs} for one chunk of launches that may take two seconds"
    );
    // Its end does not come the first time.
    let (disturbed, rebuilds, twice) = generate(131_072, "stuck-semaphore@2");
    assert_eq!((disturbed, rebuilds.as_str(), twice), (undisturbed, "1", 2 * signs));
}

#[test]
fn a_step_that_never_succeeds_ends_the_request_and_not_the_daemon() {
    let faults: Vec<String> = (40..48).map(|at| format!("mmu-fault@{at}")).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["generation", "--exact", "--ignored", "--nocapture"])
        .env("TEGRA_SIM_FAULTS", faults.join(","))
        .output()
        .unwrap();
    // The request fails with a reason, which is where that test stops.
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("address fault"), "{error}");
    assert!(!output.status.success());
}

/// Steps handed over at once, sixteen if the environment does not say, through the seam; prints how waiting
/// for them went.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn many_steps_at_once() {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/models/tiny-llama-Q8_0.gguf");
    let model = Model::open(path).unwrap();
    let layout = KvLayout { slots: 1, context: 64 };
    let nv = Nv::detect().unwrap();
    let plan = fuse(&model.plan(layout, Bucket::decode(1, 64)).unwrap(), nv.fusions());
    let weights: Vec<_> = model.weights().cloned().collect();
    let states = model.states(layout);
    let plans = std::slice::from_ref(&plan);
    let mut instance = nv
        .open(&DeviceRequest { weights: &weights, states: &states, plans, choices: None })
        .unwrap();
    for weight in &weights {
        instance.upload(&weight.name, &Source(&model, &weight.name), &|_| {}).unwrap();
    }
    let prepared = instance.prepare(&plan).unwrap();
    for (name, value) in [(ports::TOKENS, 5), (ports::POSITIONS, 0), (ports::SLOTS, 0)] {
        let mailbox = plan.find(Class::Mailbox, name).unwrap();
        instance.write(prepared, mailbox, 0, Data::I32(&[value])).unwrap();
    }
    let steps = std::env::var(STEPS).map_or(16, |steps| steps.parse().unwrap());
    let ticket = instance.submit(prepared, steps).unwrap();
    match instance.wait(ticket) {
        Ok(()) => {
            let mut tokens = vec![[0]; steps as usize];
            for (step, token) in tokens.iter_mut().enumerate() {
                instance.tokens(ticket, step as u32, token).unwrap();
            }
            println!("tokens {:?}", tokens.concat());
        }
        Err(error) => {
            println!("first {error}");
            println!("again {}", instance.wait(ticket).is_err());
        }
    }
    println!("rebuilds {}", instance.activity().rebuilds);
    println!("sleeps {}", instance.activity().sleeps);
}

/// What that process printed.
fn so_many_steps_with(steps: u32, faults: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["many_steps_at_once", "--exact", "--ignored", "--nocapture"])
        .env("TEGRA_SIM_FAULTS", faults)
        .env(STEPS, steps.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "faults {faults}: {text}\n{error}");
    text
}

/// What it printed behind `name`.
fn line(text: &str, name: &str) -> String {
    text.lines().find_map(|l| Some(l.split_once(name)?.1.to_owned())).unwrap_or_default()
}

/// What sixteen steps printed behind `name`.
fn steps_with(faults: &str, name: &str) -> String {
    line(&so_many_steps_with(16, faults), name)
}

/// Time is counted in sleeps of a tenth of a second, which end when the GPU comes to rest: the host may be
/// as slow as it likes.
#[test]
fn a_hang_is_noticed_within_two_seconds_in_the_first_execution_too() {
    // The release of the very first step (the one before it is the new channel's own), of the last of
    // sixteen, and of the first when it is repeated, which is given twice the time.
    for (steps, faults, hangs, longest) in [
        (1, "stuck-semaphore@2", 1, 20),
        (16, "stuck-semaphore@17", 1, 20),
        (1, "stuck-semaphore@2,stuck-semaphore@4", 2, 20 + 35),
    ] {
        let [undisturbed, disturbed] = ["", faults].map(|faults| so_many_steps_with(steps, faults));
        assert_eq!(line(&disturbed, "tokens "), line(&undisturbed, "tokens "));
        assert_eq!(line(&disturbed, "rebuilds "), hangs.to_string());
        let sleeps: u32 = line(&disturbed, "sleeps ").parse().unwrap();
        assert!((15 * hangs..=longest).contains(&sleeps), "{faults}: {sleeps} sleeps");
    }
}

#[test]
fn faults_among_many_steps_change_no_token() {
    let undisturbed = steps_with("", "tokens ");
    assert_eq!(undisturbed.split(',').count(), 16);
    assert_eq!(steps_with("mmu-fault@3,mmu-fault@50,mmu-fault@140", "tokens "), undisturbed);
}

/// The last launch writes the next step's inputs: a fault in it may find them written or not.
#[test]
fn faults_in_the_launch_that_advances_change_no_token() {
    const LAUNCHES: u64 = 14;
    // Each step fails once, in its last launch, and is executed again.
    let faults: Vec<String> =
        (0..16).map(|step| format!("mmu-fault@{}", 2 * LAUNCHES * step + LAUNCHES)).collect();
    let faults = faults.join(",");
    assert_eq!(steps_with(&faults, "rebuilds "), "16");
    assert_eq!(steps_with(&faults, "tokens "), steps_with("", "tokens "));
}

#[test]
fn a_step_that_fails_again_and_again_is_given_up_and_stays_failed() {
    // The same step each time, with steps before it that are done.
    let faults: Vec<String> = (100..130).map(|at| format!("mmu-fault@{at}")).collect();
    let faults = faults.join(",");
    assert!(steps_with(&faults, "first ").contains("address fault"));
    assert_eq!(steps_with(&faults, "again "), "true");
    assert!(steps_with(&faults, "rebuilds ").parse::<u32>().unwrap() <= 6);
}
