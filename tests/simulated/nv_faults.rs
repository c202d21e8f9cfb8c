//! GPU faults during a generation: the device rebuilds the channel and repeats the interrupted step on the caches as
//! they are. The tokens equal those of a run without faults.

use std::process::Command;
use std::sync::LazyLock;

use ::engine::{LoadSpec, Request, State};
use device::first_light::{Chains, Mode};
use device::gpu::nv::Nv;
use device::{Data, Device};
use model::{KvLayout, Model, ports};
use orind_testing::program::{again, said, stderr};
use orind_testing::session::Session;
use orind_testing::{data, engine, tiny};
use plan::sample::{Sampling, philox};
use plan::{Bucket, Precision};
use tegra_bundle::Bundle;
use tegra_sim::engine::Replay;

const TOKENS: u32 = 60;
/// Tokens of each answer of [`on_any_device`].
const ANSWER: u32 = 30;
/// Environment variable with the number of steps in a submission.
const STEPS: &str = "ORIND_TEST_STEPS";
/// Environment variable with the mode of chains.
const CHAINS: &str = "ORIND_TEST_CHAINS";
/// Environment variable that selects a model with ring caches, at a position where they wrap around.
const RINGS: &str = "ORIND_TEST_RINGS";
/// Environment variable with the context of a generation.
const CONTEXT: &str = "ORIND_TEST_CONTEXT";
/// Environment variable that selects a long prompt in half precision.
const HALF: &str = "ORIND_TEST_HALF";

/// Generates with the faults of the environment; the parent reads the output.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn generation() {
    let context = std::env::var(CONTEXT).map_or(128, |context| context.parse().unwrap());
    // With a long context, one chunk holds the whole prompt.
    let prefill_chunk = if context > 128 { 32 } else { 8 };
    let spec = engine::spec("synthetic:tiny-llama:q8_0", "nv");
    let spec = LoadSpec { slots: 2, context, prefill_chunk, ..spec };
    let (spec, prompt) = if std::env::var_os(HALF).is_some() {
        let (model, precision) = ("synthetic:tiny-llama:f16".into(), Precision::Half);
        (LoadSpec { model, precision, context: 256, prefill_chunk: 64, ..spec }, 1..180)
    } else {
        (spec, 1..20)
    };
    let handle = engine::start(spec);
    // Sampled, to detect a repeated step that draws other numbers.
    let sampling = Sampling { temperature: 1.5, top_k: 0, top_p: 1.0, seed: 7, ..Sampling::GREEDY };
    let request = Request { sampling, ..engine::request(prompt, TOKENS) };
    let ids = engine::ask(&handle, request).ids;
    println!("tokens {ids:?}");
    println!("rebuilds {}", handle.snapshot().activity.rebuilds);
}

/// Command that generates with these faults.
fn generation_with(faults: &str) -> Command {
    let mut command = again(module_path!(), "generation");
    command.env("TEGRA_SIM_FAULTS", faults);
    command
}

fn generate(faults: &str) -> (String, usize) {
    let text = said(&mut generation_with(faults));
    (line(&text, "tokens "), line(&text, "rebuilds ").parse().unwrap())
}

/// Tokens of a generation without faults, computed once for all tests.
static UNDISTURBED: LazyLock<String> = LazyLock::new(|| {
    let (tokens, rebuilds) = generate("");
    assert_eq!((tokens.split(',').count(), rebuilds), (TOKENS as usize, 0));
    tokens
});

fn faults(kind: &str, places: impl IntoIterator<Item = u64>) -> String {
    places.into_iter().map(|at| format!("{kind}@{at}")).collect::<Vec<_>>().join(",")
}

/// Bundles that the simulator writes.
#[test]
#[ignore = "nightly"]
fn nightly_every_fault_writes_a_bundle_that_replays() {
    let dir = tempfile::tempdir().unwrap();
    said(generation_with(&faults("mmu-fault", places(2, 3))).env("TEGRA_SIM_BUNDLES", dir.path()));
    let files: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    for file in files {
        let replay = Replay::run(&Bundle::read(&file).unwrap(), None).unwrap();
        assert!(replay.is_same(), "{}: {replay}", file.display());
    }
}

/// `count` launches that fail, at least a step apart.
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
fn five_faults_change_no_token() {
    assert_eq!(generate(&faults("mmu-fault", places(1, 5))), (UNDISTURBED.clone(), 5));
}

#[test]
#[ignore = "nightly"]
fn nightly_fifty_faults_change_no_token() {
    assert_eq!(generate(&faults("mmu-fault", places(1, 50))), (UNDISTURBED.clone(), 50));
}

/// Each of three chunks of the prompt fails once.
#[test]
#[ignore = "nightly"]
fn nightly_faults_during_a_prompt_in_half_precision_change_no_token() {
    let generate = |faults: &str| {
        let text = said(generation_with(faults).env(HALF, "1"));
        (line(&text, "tokens "), line(&text, "rebuilds "))
    };
    let (undisturbed, _) = generate("");
    let disturbed = generate(&faults("mmu-fault", [1, 3, 5, 30]));
    assert_eq!(disturbed, (undisturbed, "4".to_owned()));
}

/// Nothing reports a hang: the semaphore release at the end of a step never happens, nor that of the step ahead. If
/// only one release is lost, the next one shows that both steps are done.
#[test]
fn a_hung_channel_is_rebuilt_and_no_token_is_lost() {
    // The second of three prefill chunks hangs, and with it the third, which is under way.
    check_hangs(&[(&[20], 0), (&[3, 4], 1)]);
}

#[test]
#[ignore = "nightly"]
fn nightly_two_hangs_lose_no_token() {
    check_hangs(&[(&[20, 21, 45, 46], 2)]);
}

/// Stuck releases, and the number of hangs that they cause.
fn check_hangs(hangs: &[(&[u64], usize)]) {
    for &(stuck, hangs) in hangs {
        let faults = faults("stuck-semaphore", stuck.iter().copied());
        assert_eq!(generate(&faults), (UNDISTURBED.clone(), hangs), "{faults}");
    }
}

/// A step of several chains releases a semaphore after each; a step of one chain releases none.
#[test]
#[ignore = "nightly"]
fn nightly_a_long_step_reports_its_progress() {
    let dir = tempfile::tempdir().unwrap();
    let generate = |context: u32, faults: &str| {
        let trace = dir.path().join(format!("{context}{faults}"));
        let mut command = generation_with(faults);
        let text = said(command.env(CONTEXT, context.to_string()).env("TEGRA_SIM_TRACE", &trace));
        let trace = std::fs::read_to_string(&trace).unwrap();
        assert!(!trace.contains("\"unit\":\"QMD\""), "a launch releases nothing by itself");
        let count = |what: &str| trace.lines().filter(|event| event.contains(what)).count();
        // Each submission ends with a release of its own; a stuck release is not traced.
        let chains = count("\"unit\":\"host\"") + count("stuck-semaphore") - count("\"doorbell\"");
        (line(&text, "tokens "), line(&text, "rebuilds "), chains)
    };
    let (_, _, chains) = generate(128, "");
    assert_eq!(chains, 0);
    let (undisturbed, _, chains) = generate(131_072, "");
    assert!((3..20).contains(&chains), "{chains} chains for an estimated third of a second");
    // The release of its end is stuck; those of the new channel and of the chains come before it.
    let (disturbed, rebuilds, twice) =
        generate(131_072, &format!("stuck-semaphore@{}", chains + 2));
    assert_eq!((disturbed, rebuilds.as_str(), twice), (undisturbed, "1", 2 * chains));
}

#[test]
fn a_step_that_never_succeeds_ends_the_request_and_not_the_daemon() {
    let output = generation_with(&faults("mmu-fault", 40..48)).output().unwrap();
    // The request fails with a reason, which is where that test stops.
    let error = stderr(&output);
    assert!(error.contains("address fault"), "{error}");
    assert!(!output.status.success());
}

/// Submits steps at once, sixteen by default, directly to the device; prints the outcome.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn many_steps_at_once() {
    let (file, context, ring, before) = match std::env::var(RINGS) {
        Ok(_) => (data("architectures/gemma3.gguf"), 96, Some(1), 56),
        Err(_) => (tiny("tiny-llama-Q8_0").into(), 64, None, 0),
    };
    let (layout, bucket) = (KvLayout { slots: 1, context, ring }, Bucket::decode(1, context));
    let model = Model::open(file).unwrap();
    assert_eq!(ring.map(|_| (3, 64)).unwrap_or_default(), model.rings(layout));
    let chains = match std::env::var(CHAINS).as_deref() {
        Ok("full") => Chains::Full,
        Ok("serial") => Chains::Serial,
        _ => Chains::Split,
    };
    let mode = Mode { chains, ..Mode::default() };
    let nv = Nv::detect().unwrap().first_light().unwrap().in_mode(mode);
    let mut session = Session::new(&*nv, &model, layout, &[bucket]);
    session.load(0, &[(5, 0, 0)]);
    if before > 0 {
        // With greedy sampling this model repeats itself.
        let all = f32::NEG_INFINITY;
        for (port, value) in [(ports::TEMPERATURE, 30.0), (ports::TOP_P, 1.0), (ports::MIN_P, all)]
        {
            session.write(0, port, Data::F32(&[value]));
        }
        session.run(0, before);
    }
    let Session { instance, plans, .. } = &mut session;
    let steps = std::env::var(STEPS).map_or(16, |steps| steps.parse().unwrap());
    let ticket = instance.submit(plans[0].1, steps).unwrap();
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
    println!("mode {}", instance.mode().unwrap());
}

/// Output of [`many_steps_at_once`].
fn n_steps_with(steps: u32, faults: &str) -> String {
    let mut command = again(module_path!(), "many_steps_at_once");
    said(command.env("TEGRA_SIM_FAULTS", faults).env(STEPS, steps.to_string()))
}

/// The rest of the line of the output that contains `name`.
fn line(text: &str, name: &str) -> String {
    text.lines().find_map(|l| Some(l.split_once(name)?.1.to_owned())).unwrap_or_default()
}

/// Output of sixteen steps.
fn steps_with(faults: &str) -> String {
    n_steps_with(16, faults)
}

/// Tokens of sixteen steps without faults, computed once for all tests.
static UNDISTURBED_STEPS: LazyLock<String> = LazyLock::new(|| {
    let tokens = line(&steps_with(""), "tokens ");
    assert_eq!(tokens.split(',').count(), 16);
    tokens
});

/// Time is counted in sleeps of a tenth of a second, which end when the GPU is idle, so a slow host does not matter.
#[test]
fn a_hang_is_noticed_within_two_seconds_in_the_first_execution_too() {
    // Stuck releases: of the first step (after the new channel's own release), of the last of sixteen, and of the first
    // and its repetition, which has twice the time.
    let one = line(&n_steps_with(1, ""), "tokens ");
    for (steps, faults, undisturbed, hangs, longest) in [
        (1, "stuck-semaphore@2", &one, 1, 20),
        (16, "stuck-semaphore@17", &*UNDISTURBED_STEPS, 1, 20),
        (1, "stuck-semaphore@2,stuck-semaphore@4", &one, 2, 20 + 35),
    ] {
        let disturbed = n_steps_with(steps, faults);
        assert_eq!(line(&disturbed, "tokens "), *undisturbed);
        assert_eq!(line(&disturbed, "rebuilds "), hangs.to_string());
        let sleeps: u32 = line(&disturbed, "sleeps ").parse().unwrap();
        assert!((15 * hangs..=longest).contains(&sleeps), "{faults}: {sleeps} sleeps");
    }
}

#[test]
fn faults_among_many_steps_change_no_token() {
    let disturbed = steps_with("mmu-fault@3,mmu-fault@50,mmu-fault@140");
    assert_eq!(line(&disturbed, "tokens "), *UNDISTURBED_STEPS);
}

/// Repeated steps overwrite older keys and values a second time.
#[test]
#[ignore = "nightly"]
fn nightly_faults_where_ring_caches_wrap_around_change_no_token() {
    let steps = |faults: &str| {
        let mut command = again(module_path!(), "many_steps_at_once");
        said(command.env("TEGRA_SIM_FAULTS", faults).env(RINGS, "1"))
    };
    let undisturbed = line(&steps(""), "tokens ");
    assert_eq!(undisturbed.split(',').count(), 16);
    // Faults from about position 48 on; the caches wrap around at position 64, in the eighth step.
    let disturbed = steps(&faults("mmu-fault", (22..42).map(|i| 100 * i)));
    assert_eq!(line(&disturbed, "tokens "), undisturbed);
    let rebuilds: u32 = line(&disturbed, "rebuilds ").parse().unwrap();
    assert!((10..20).contains(&rebuilds), "{rebuilds} rebuilds");
}

/// After two faults in one step, this step and later ones are submitted launch by launch.
#[test]
fn two_faults_in_a_step_lower_the_mode() {
    for (faults, mode) in [
        ("mmu-fault@3", "split, wake event, maps rw, range short, chains to 32"),
        ("mmu-fault@3,mmu-fault@6", "serial, wake event, maps rw, range short"),
        ("mmu-fault@3,mmu-fault@6,mmu-fault@9", "serial, wake event, maps rw, range short"),
    ] {
        let text = steps_with(faults);
        assert_eq!(line(&text, "tokens "), *UNDISTURBED_STEPS, "{faults}");
        assert_eq!(line(&text, "mode "), mode, "{faults}");
    }
}

/// Faults, and a hang of the last step, in the modes `full` and `serial`; `nv_modes` covers runs without faults.
#[test]
fn faults_and_hangs_change_no_token_in_any_mode() {
    const LAUNCHES: u64 = 14;
    // Releases of the host unit: the new channel's own, those of the steps, and in `serial` those of the launches.
    for (chains, last) in [("full", 1 + 16), ("serial", 1 + 16 * (LAUNCHES + 1))] {
        let with = |faults: &str| {
            let mut command = again(module_path!(), "many_steps_at_once");
            command.env("TEGRA_SIM_FAULTS", faults).env(STEPS, "16").env(CHAINS, chains);
            said(&mut command)
        };
        for (faults, rebuilds) in [
            ("mmu-fault@3,mmu-fault@50,mmu-fault@140".to_owned(), "3"),
            (format!("stuck-semaphore@{last}"), "1"),
        ] {
            let text = with(&faults);
            assert_eq!(line(&text, "tokens "), *UNDISTURBED_STEPS, "{chains} {faults}: {text}");
            assert_eq!(line(&text, "rebuilds "), rebuilds, "{chains} {faults}: {text}");
            assert!(line(&text, "mode ").starts_with(chains), "{text}");
        }
    }
}

/// The last launch of a step writes the next step's inputs, so a fault in it may come before or after the write.
#[test]
fn faults_in_the_last_launch_of_a_step_change_no_token() {
    const LAUNCHES: u64 = 14;
    // Each step fails once, in its last launch, and is repeated.
    let faults = faults("mmu-fault", (0..16).map(|step| 2 * LAUNCHES * step + LAUNCHES));
    let text = steps_with(&faults);
    assert_eq!(line(&text, "rebuilds "), "16");
    assert_eq!(line(&text, "tokens "), *UNDISTURBED_STEPS);
}

#[test]
fn a_step_that_fails_repeatedly_is_given_up_and_stays_failed() {
    // The same step fails each time, after steps that are done.
    let faults = faults("mmu-fault", 100..130);
    let text = steps_with(&faults);
    assert!(line(&text, "first ").contains("address fault"));
    assert_eq!(line(&text, "again "), "true");
    assert!(line(&text, "rebuilds ").parse::<u32>().unwrap() <= 6);
}

/// Generates greedily on the device that `auto` selects; prints the tokens and the state of the devices.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn on_any_device() {
    let spec = engine::spec("synthetic:tiny-llama:q8_0", "auto");
    let handle = engine::start(LoadSpec { slots: 2, context: 128, ..spec });
    let running = [20, 30].map(|end| handle.generate(engine::request(1..end, ANSWER)).unwrap());
    for (events, name) in running.into_iter().zip(["first ", "second "]) {
        println!("{name}{:?}", engine::collect(events).unwrap().ids);
    }
    let now = handle.snapshot();
    let State::Ready(model) = now.state else { panic!("{:?}", now.state) };
    println!("device {}", model.device.name);
    println!("reason {}", model.device.reason);
    println!("health {:?}", now.devices);
}

fn on_any_device_with(faults: &str) -> [String; 5] {
    let mut command = again(module_path!(), "on_any_device");
    let text = said(command.env("TEGRA_SIM_FAULTS", faults));
    ["first ", "second ", "device ", "reason ", "health "].map(|name| line(&text, name))
}

/// The instance is lost if a step fails twice in each mode from `split` down.
#[test]
fn a_lost_instance_is_reopened_and_a_device_lost_twice_is_disabled() {
    let [one, two, device, _, health] = on_any_device_with("");
    assert!(device == "nv" && health.contains("losses: 0, disabled: None"), "{device} {health}");
    assert_eq!(one.split(',').count(), ANSWER as usize);
    let lost = |count: u64| on_any_device_with(&faults("mmu-fault", 200..200 + count));
    let [once, twice] = [lost(4), lost(8)];
    for (what, [first, second, ..]) in [("once", &once), ("twice", &twice)] {
        assert_eq!((first, second), (&one, &two), "lost {what}");
    }
    let [_, _, device, _, health] = once;
    assert!(device == "nv" && health.contains("losses: 1, disabled: None"), "{device} {health}");
    let [_, _, device, reason, health] = twice;
    assert!(device == "cpu" && health.contains("losses: 2"), "{device} {health}");
    assert!(
        reason.contains("not nv (lost 2 times") && reason.contains("address fault"),
        "{reason}"
    );
}

/// Failures in `open`, during the upload of weights, and in `prepare`.
#[test]
fn the_next_device_loads_the_model_after_any_failure() {
    let undisturbed = on_any_device_with("");
    let mut failed = 0;
    for at in (1..).step_by(3) {
        let now = on_any_device_with(&format!("ioctl:MAP_BUFFER_EX:ENOMEM@{at}"));
        assert_eq!(now[..2], undisturbed[..2], "{at}");
        if now[2] == "nv" {
            break;
        }
        let why = now[3].contains("not nv (") && now[3].contains("MAP_BUFFER_EX: ENOMEM");
        assert!(now[2] == "cpu" && why, "{at}: {now:?}");
        failed += 1;
    }
    assert!(failed > 3, "{failed}");
}
