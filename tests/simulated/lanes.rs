//! A control loop on the simulated Orin, in a TSG of its own, while a model uses the GPU.

use std::collections::BTreeMap;

use device::first_light::Chains;
use device::gpu::nv::Nv;
use model::{KvLayout, Model};
use onnx::Network;
use orind_testing::control_loop::{Client, example, lane, ready};
use orind_testing::daemon::{self, Daemon};
use orind_testing::program::{again, preload_library, said};
use orind_testing::session::Session;
use orind_testing::{data, tiny};
use plan::{Bucket, Outputs};
use serde_json::json;
use tegra_sim::gpu::{Latency, TICK, TIMESLICE_US};
use tegra_sim::trace::{Event, Record};

const CONTEXT: usize = 256;
/// Tokens in a chunk of a prompt.
const CHUNK: usize = 64;
/// Steps of the control loop during decode, and as many during prompts.
const ROUNDS: usize = 4;

#[test]
fn a_control_loop_and_a_model_share_a_gpu() {
    let state = tempfile::tempdir().unwrap();
    let mut command = daemon::orind();
    command.env("LD_PRELOAD", preload_library());
    let settings = format!(
        "model = '{}'\nthreads = 1\ncontext = 128\nbackend = 'nv'\nstate_dir = '{}'\n{}{}",
        daemon::MODEL,
        state.path().display(),
        lane("policy", "backend = 'nv'\ndeadline_us = 60000000"),
        lane("same", "backend = 'cpu'"),
    );
    let daemon = Daemon::launch_with(command, &settings);
    ready(&daemon);
    let mut client = Client::open(&daemon, "policy").unwrap();
    let (observation, action) = example();
    let want = client.step(&observation);
    for (got, want) in want.iter().zip(&action) {
        assert!((f64::from(*got) - want).abs() < 1e-5, "{got}, not {want}");
    }
    let same = Client::open(&daemon, "same").unwrap().step(&observation);
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&want), bits(&same), "the CPU and the GPU give the same bits");
    // Steps go on during first light, the load and an answer.
    while daemon.get("/orin/v1/status").json()["state"]["name"] != "ready" {
        assert_eq!(client.step(&observation), want);
    }
    let body = json!({ "prompt": "once upon a time", "max_tokens": 12 });
    std::thread::scope(|scope| {
        let served = scope.spawn(|| daemon.post("/v1/completions", &body).status);
        while !served.is_finished() {
            assert_eq!(client.step(&observation), want);
        }
        assert_eq!(served.join().unwrap(), 200);
    });
    let lane = daemon.get("/orin/v1/status").json()["lanes"][0].clone();
    assert_eq!((&lane["missed"], &lane["failed"]), (&json!(0), &json!(0)), "{lane}");
    let behind = device::behind("nv", Chains::Split, 0).unwrap().as_secs_f64();
    assert_eq!(lane["behind_s"], json!(behind));
}

/// Runs steps of a policy while a model has a long queue of work: decode steps, then chunks of a prompt.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn steps_during_queued_work() {
    let policy = onnx::Model::read(&data("lanes/policy.onnx")).unwrap();
    let shapes = BTreeMap::from([("observation".to_owned(), vec![1, 12])]);
    let of_loops = device::open_realtime("nv").unwrap();
    let mut network = Network::new(&policy, &*of_loops, &shapes, &BTreeMap::new()).unwrap();
    let observation = example().0;
    let mut step = || {
        let mut action = [0.0; 4];
        network.write("observation", &observation).unwrap();
        network.step().unwrap();
        network.read("action", &mut action).unwrap();
        action.map(f32::to_bits)
    };
    let alone = step();
    let model = Model::open(tiny("tiny-llama-Q8_0")).unwrap();
    let layout = KvLayout { slots: 1, context: CONTEXT, ring: None };
    let buckets = [Bucket::decode(1, CONTEXT), Bucket::prefill(CHUNK, CONTEXT, Outputs::Last)];
    let mut session = Session::new(&Nv::detect().unwrap(), &model, layout, &buckets);
    let prompt: Vec<_> = (0..CHUNK as i32).map(|at| (5 + at % 7, at, 0)).collect();
    for (plan, rows, steps) in [(0, &prompt[..1], 8), (1, &prompt[..], 1)] {
        for _ in 0..ROUNDS {
            let before = session.instance.activity().launches;
            session.load(plan, rows);
            let prepared = session.plans[plan].1;
            let tickets = [(); 4].map(|()| session.instance.submit(prepared, steps).unwrap());
            assert_eq!(step(), alone, "a queue of work changes bits");
            tickets.into_iter().for_each(|ticket| session.instance.wait(ticket).unwrap());
            println!("launches {}", session.instance.activity().launches - before);
        }
    }
}

/// Nanoseconds of a channel's longest chain: the longest time between two releases within a turn.
fn longest_chain(records: &[Record], of: u16) -> u64 {
    let (mut longest, mut last) = (0, None);
    for Record { time, event } in records {
        match event {
            Event::Release { channel, .. } if *channel == of => {
                longest = longest.max(last.map_or(0, |last| time - last));
                last = Some(*time);
            }
            Event::Turn { .. } => last = None,
            _ => {}
        }
    }
    longest
}

#[test]
fn a_control_loop_gets_its_turn_during_a_models_work() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let said =
        said(again(module_path!(), "steps_during_queued_work").env("TEGRA_SIM_TRACE", &trace));
    let queued: Vec<usize> =
        said.lines().filter_map(|line| line.split_once("launches ")?.1.parse().ok()).collect();
    assert_eq!(queued.len(), 2 * ROUNDS, "{said}");
    let trace = std::fs::read_to_string(&trace).unwrap();
    let records: Vec<Record> =
        trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let launches = records.iter().filter_map(|record| match record.event {
        Event::Launch { channel, .. } => Some(channel),
        _ => None,
    });
    let launches: Vec<u16> = launches.collect();
    let lane = launches[0];
    let model = *launches.iter().find(|channel| **channel != lane).unwrap();
    // For each step of the control loop, the number of the model's launches before it.
    let (mut before, mut steps) = (0, Vec::new());
    for channel in launches {
        if channel != lane {
            before += 1;
        } else if steps.last() != Some(&before) {
            steps.push(before);
        }
    }
    assert_eq!(steps.remove(0), 0, "the first step runs alone");
    assert_eq!((steps.len(), before), (2 * ROUNDS, queued.iter().sum()), "{steps:?}");
    let (mut begun, mut within) = (0, 0);
    for (round, (queued, step)) in queued.iter().zip(&steps).enumerate() {
        assert!(*step < begun + queued, "round {round}: the model's work had ended, {steps:?}");
        within += usize::from(*step > begun);
        begun += queued;
    }
    assert!(within > ROUNDS, "{within} of {} in the middle: {steps:?}", 2 * ROUNDS);

    let waits = records.iter().filter_map(|record| match record.event {
        Event::Turn { channel, waited, .. } if channel == lane => waited,
        _ => None,
    });
    let waits: Vec<u64> = waits.collect();
    // The rest of a timeslice, the chain that began in it, and the switch; a tick or two for the doorbell.
    let chain = longest_chain(&records, model);
    let switch = (Latency::default().switch + 100) * TICK;
    let bound = u64::from(TIMESLICE_US) * 1000 + chain + switch;
    let worst = waits.iter().max().unwrap();
    println!(
        "{} turns, {worst} ns after the doorbell at most, of {bound}; chain {chain}",
        waits.len()
    );
    assert!(waits.len() >= within, "{} turns of {within}", waits.len());
    assert!(*worst <= bound, "{waits:?} ns, at most {bound}");
    let printed = device::behind("nv", Chains::Split, 0).unwrap().as_nanos();
    assert!(u128::from(bound) <= printed, "{bound} ns, printed are {printed}");
}
