//! GPU faults in the middle of a generation: the engine rebuilds the channel, executes the interrupted step
//! again on the caches as they are, and the tokens are those of a run that nothing disturbed.

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
/// The variable that says how many steps are handed over at once.
const STEPS: &str = "ORIND_TEST_STEPS";
/// The variable that says how many launches the GPU is given at once.
const CHAINS: &str = "ORIND_TEST_CHAINS";
/// The variable that has steps over rings of keys and values that begin anew.
const RINGS: &str = "ORIND_TEST_RINGS";
/// The variable that says how many positions a slot of a generation has.
const CONTEXT: &str = "ORIND_TEST_CONTEXT";
/// The variable that has a generation behind a long prompt in half precision.
const HALF: &str = "ORIND_TEST_HALF";

/// One generation, with the faults that the environment asks for. The parent reads what this prints.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn generation() {
    let context = std::env::var(CONTEXT).map_or(128, |context| context.parse().unwrap());
    // All of the prompt at once where that is to take long.
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
    // Random, so that a repeated step that drew other numbers would show.
    let sampling = Sampling { temperature: 1.5, top_k: 0, top_p: 1.0, seed: 7, ..Sampling::GREEDY };
    let request = Request { sampling, ..engine::request(prompt, TOKENS) };
    let ids = engine::ask(&handle, request).ids;
    println!("tokens {ids:?}");
    println!("rebuilds {}", handle.snapshot().activity.rebuilds);
}

/// The generation with these faults.
fn generation_with(faults: &str) -> Command {
    let mut command = again(module_path!(), "generation");
    command.env("TEGRA_SIM_FAULTS", faults);
    command
}

fn generate(faults: &str) -> (String, usize) {
    let text = said(&mut generation_with(faults));
    (line(&text, "tokens "), line(&text, "rebuilds ").parse().unwrap())
}

/// The tokens of a generation that nothing disturbs; made once for all tests.
static UNDISTURBED: LazyLock<String> = LazyLock::new(|| {
    let (tokens, rebuilds) = generate("");
    assert_eq!((tokens.split(',').count(), rebuilds), (TOKENS as usize, 0));
    tokens
});

fn faults(kind: &str, places: impl IntoIterator<Item = u64>) -> String {
    places.into_iter().map(|at| format!("{kind}@{at}")).collect::<Vec<_>>().join(",")
}

/// What the simulator leaves behind can be looked at on any machine.
#[test]
fn every_fault_leaves_a_bundle_that_replays() {
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
    assert_eq!(generate(&faults("mmu-fault", places(1, 50))), (UNDISTURBED.clone(), 50));
}

/// Three chunks of a prompt, each of which fails once.
#[test]
fn faults_of_a_prompt_in_half_precision_change_no_token() {
    let generate = |faults: &str| {
        let text = said(generation_with(faults).env(HALF, "1"));
        (line(&text, "tokens "), line(&text, "rebuilds "))
    };
    let (undisturbed, _) = generate("");
    let disturbed = generate(&faults("mmu-fault", [1, 3, 5, 30]));
    assert_eq!(disturbed, (undisturbed, "4".to_owned()));
}

/// Nothing reports a hang: the release that a step ends with just does not come, and neither does that of
/// the step ahead. Of one release that is lost the next one makes up for it: it says that both steps are done.
#[test]
fn a_hung_channel_is_rebuilt_and_no_token_is_lost() {
    for (stuck, hangs) in [
        (&[20, 21, 45, 46][..], 2),
        (&[20], 0),
        // The second of three prefill chunks stands still, and with it the third, which is under way.
        (&[3, 4], 1),
    ] {
        let faults = faults("stuck-semaphore", stuck.iter().copied());
        assert_eq!(generate(&faults), (UNDISTURBED.clone(), hangs), "{faults}");
    }
}

/// A step of several chains releases a semaphore behind each; one of a single chain has nothing to tell.
#[test]
fn a_long_step_tells_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let generate = |context: u32, faults: &str| {
        let trace = dir.path().join(format!("{context}{faults}"));
        let mut command = generation_with(faults);
        let text = said(command.env(CONTEXT, context.to_string()).env("TEGRA_SIM_TRACE", &trace));
        let trace = std::fs::read_to_string(&trace).unwrap();
        assert!(!trace.contains("\"unit\":\"QMD\""), "a launch releases nothing by itself");
        let count = |what: &str| trace.lines().filter(|event| event.contains(what)).count();
        // Each submission ends with a release of its own; what gets stuck is none.
        let chains = count("\"unit\":\"host\"") + count("stuck-semaphore") - count("\"doorbell\"");
        (line(&text, "tokens "), line(&text, "rebuilds "), chains)
    };
    let (_, _, chains) = generate(128, "");
    assert_eq!(chains, 0);
    let (undisturbed, _, chains) = generate(131_072, "");
    assert!((3..20).contains(&chains), "{chains} for a third of a second by the estimate");
    // Its end does not come the first time: behind the new channel's own release, and the chains'.
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

/// Steps handed over at once, sixteen if the environment does not say, through the seam; prints how waiting
/// for them went.
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
        // Greedy, this model would repeat itself.
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

/// What that process printed.
fn so_many_steps_with(steps: u32, faults: &str) -> String {
    let mut command = again(module_path!(), "many_steps_at_once");
    said(command.env("TEGRA_SIM_FAULTS", faults).env(STEPS, steps.to_string()))
}

/// What it printed behind `name`.
fn line(text: &str, name: &str) -> String {
    text.lines().find_map(|l| Some(l.split_once(name)?.1.to_owned())).unwrap_or_default()
}

/// What sixteen steps print.
fn steps_with(faults: &str) -> String {
    so_many_steps_with(16, faults)
}

/// The tokens of sixteen steps that nothing disturbs; made once for all tests.
static UNDISTURBED_STEPS: LazyLock<String> = LazyLock::new(|| {
    let tokens = line(&steps_with(""), "tokens ");
    assert_eq!(tokens.split(',').count(), 16);
    tokens
});

/// Time is counted in sleeps of a tenth of a second, which end when the GPU comes to rest: the host may be
/// as slow as it likes.
#[test]
fn a_hang_is_noticed_within_two_seconds_in_the_first_execution_too() {
    // The release of the very first step (the one before it is the new channel's own), of the last of
    // sixteen, and of the first when it is repeated, which is given twice the time.
    let one = line(&so_many_steps_with(1, ""), "tokens ");
    for (steps, faults, undisturbed, hangs, longest) in [
        (1, "stuck-semaphore@2", &one, 1, 20),
        (16, "stuck-semaphore@17", &*UNDISTURBED_STEPS, 1, 20),
        (1, "stuck-semaphore@2,stuck-semaphore@4", &one, 2, 20 + 35),
    ] {
        let disturbed = so_many_steps_with(steps, faults);
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

/// Keys and values that take the place of older ones do so once more.
#[test]
fn faults_where_rings_begin_anew_change_no_token() {
    let steps = |faults: &str| {
        let mut command = again(module_path!(), "many_steps_at_once");
        said(command.env("TEGRA_SIM_FAULTS", faults).env(RINGS, "1"))
    };
    let undisturbed = line(&steps(""), "tokens ");
    assert_eq!(undisturbed.split(',').count(), 16);
    // From position 48 or so on; 64, where they do, is that of the eighth step.
    let disturbed = steps(&faults("mmu-fault", (22..42).map(|i| 100 * i)));
    assert_eq!(line(&disturbed, "tokens "), undisturbed);
    let rebuilds: u32 = line(&disturbed, "rebuilds ").parse().unwrap();
    assert!((10..20).contains(&rebuilds), "{rebuilds}: to the end and no further");
}

/// Two faults of one step: it is repeated launch by launch, and so are those after it.
#[test]
fn two_faults_of_a_step_go_one_rung_down() {
    for (faults, mode) in [
        ("", "split, wake event, maps rw, range short, chains to 32"),
        ("mmu-fault@3", "split, wake event, maps rw, range short, chains to 32"),
        ("mmu-fault@3,mmu-fault@6", "serial, wake event, maps rw, range short"),
        ("mmu-fault@3,mmu-fault@6,mmu-fault@9", "serial, wake event, maps rw, range short"),
    ] {
        let text = steps_with(faults);
        assert_eq!(line(&text, "tokens "), *UNDISTURBED_STEPS, "{faults}");
        assert_eq!(line(&text, "mode "), mode, "{faults}");
    }
}

/// Faults, and a hang of the last step, in the other modes.
#[test]
fn in_every_mode_a_fault_or_a_hang_changes_no_token() {
    const LAUNCHES: u64 = 14;
    // Releases of the host unit: the new channel's own, the steps', and of launches by themselves theirs.
    for (chains, last) in [("full", 1 + 16), ("serial", 1 + 16 * (LAUNCHES + 1))] {
        let with = |faults: &str| {
            let mut command = again(module_path!(), "many_steps_at_once");
            command.env("TEGRA_SIM_FAULTS", faults).env(STEPS, "16").env(CHAINS, chains);
            said(&mut command)
        };
        for (faults, rebuilds) in [
            (String::new(), "0"),
            ("mmu-fault@3,mmu-fault@50,mmu-fault@140".into(), "3"),
            (format!("stuck-semaphore@{last}"), "1"),
        ] {
            let text = with(&faults);
            assert_eq!(line(&text, "tokens "), *UNDISTURBED_STEPS, "{chains} {faults}: {text}");
            assert_eq!(line(&text, "rebuilds "), rebuilds, "{chains} {faults}: {text}");
            assert!(line(&text, "mode ").starts_with(chains), "{text}");
        }
    }
}

/// The last launch writes the next step's inputs: a fault in it may find them written or not.
#[test]
fn faults_in_the_launch_that_advances_change_no_token() {
    const LAUNCHES: u64 = 14;
    // Each step fails once, in its last launch, and is executed again.
    let faults = faults("mmu-fault", (0..16).map(|step| 2 * LAUNCHES * step + LAUNCHES));
    let text = steps_with(&faults);
    assert_eq!(line(&text, "rebuilds "), "16");
    assert_eq!(line(&text, "tokens "), *UNDISTURBED_STEPS);
}

#[test]
fn a_step_that_fails_again_and_again_is_given_up_and_stays_failed() {
    // The same step each time, with steps before it that are done.
    let faults = faults("mmu-fault", 100..130);
    let text = steps_with(&faults);
    assert!(line(&text, "first ").contains("address fault"));
    assert_eq!(line(&text, "again "), "true");
    assert!(line(&text, "rebuilds ").parse::<u32>().unwrap() <= 6);
}

/// A greedy generation on whatever `auto` takes; prints what became of it.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn on_any_device() {
    let spec = engine::spec("synthetic:tiny-llama:q8_0", "auto");
    let handle = engine::start(LoadSpec { slots: 2, context: 128, ..spec });
    let running = [20, 30].map(|end| handle.generate(engine::request(1..end, TOKENS)).unwrap());
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

/// A step that fails twice in each mode from `split` down is lost, and the instance with it.
#[test]
fn a_lost_instance_is_opened_again_and_a_device_lost_twice_is_left() {
    let [one, two, device, _, health] = on_any_device_with("");
    assert!(device == "nv" && health.contains("losses: 0, disabled: None"), "{device} {health}");
    assert_eq!(one.split(',').count(), TOKENS as usize);
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

/// In `open`, while weights are moved, and while plans are prepared.
#[test]
fn wherever_a_load_fails_the_next_device_takes_the_model() {
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
