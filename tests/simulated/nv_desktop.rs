//! A GPU shared with a desktop: the driver adds up the desktop's waiting times over a channel's life, and closes the
//! channel when the sum is too large.
//!
//! The model has half the width, eleven layers and a quarter of the vocabulary of an 8B model, and the simulated memory
//! a sixteenth of the speed, so that a step takes as long as 32 layers do on an Orin. Each kernel is executed once, and
//! only timed afterwards; tokens are meaningless.

use std::time::Duration;

use device::Device;
use device::first_light::{Chains, Mode};
use device::gpu::nv::Nv;
use model::KvLayout;
use orind_testing::program::{again, said};
use orind_testing::session::Session;
use orind_testing::shapes::{Shapes, Sizes};
use plan::{Bucket, DType, Outputs};
use tegra_profile::facts::READ_RATE;
use tegra_profile::{Experiment, Machine, Profile, Value, Verdict};

/// Eleven layers of Llama-3.1-8B in Q4_K, with half the width.
const SIZES: Sizes = Sizes {
    architecture: "llama",
    dtype: DType::Q4_K,
    layers: 11,
    width: 2048,
    feed_forward: 7168,
    heads: 16,
    kv_heads: 4,
    head_size: 128,
    vocabulary: 32_064,
};
/// GB/s: a sixteenth of the highest rate measured for kernels on an Orin.
const RATE: f64 = 45.0 / 16.0;
const CONTEXT: usize = 1024;
const CHUNK: usize = 256;
/// Environment variable with the mode of chains.
const CHAINS: &str = "ORIND_TEST_CHAINS";
/// Environment variable with the minutes of GPU time that decode takes.
const MINUTES: &str = "ORIND_TEST_MINUTES";

/// Runs chunks of a prompt, then decode for the given time; prints the number of rebuilt channels.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn long_decode() {
    let chains = match std::env::var(CHAINS).unwrap().as_str() {
        "full" => Chains::Full,
        "split" => Chains::Split,
        other => panic!("{other}"),
    };
    let minutes: u32 = std::env::var(MINUTES).unwrap().parse().unwrap();
    let shapes = Shapes::new(&SIZES);
    let layout = KvLayout { slots: 1, context: CONTEXT, ring: None };
    let buckets = [Bucket::decode(1, CONTEXT), Bucket::prefill(CHUNK, CONTEXT, Outputs::Last)];
    let mode = Mode { chains, longest: 2048, ..Mode::default() };
    let nv = Nv::detect().unwrap().first_light().unwrap().in_mode(mode);
    let mut session = Session::new(&*nv, &shapes.model, layout, &buckets);
    let rows: Vec<_> = (0..CHUNK as i32).map(|at| (at % 100, at, 0)).collect();
    session.load(0, &rows[..1]);
    session.load(1, &rows);
    let Session { instance, plans, .. } = &mut session;
    let [decode, chunk] = [plans[0].1, plans[1].1];
    // The second profile has the times of kernels that have been executed.
    instance.profile(chunk).unwrap();
    instance.profile(decode).unwrap();
    let [of_chunk, of_step] = [chunk, decode].map(|plan| instance.profile(plan).unwrap().whole);
    println!("chunk {of_chunk:?}, step {of_step:?}");
    for _ in 0..30 {
        let ticket = instance.submit(chunk, 1).unwrap();
        instance.wait(ticket).unwrap();
    }
    println!("rebuilds after prompts {}", instance.activity().rebuilds);
    let mut left = Duration::from_secs(60) * minutes;
    while !left.is_zero() {
        let ticket = instance.submit(decode, 32).unwrap();
        instance.wait(ticket).unwrap();
        left = left.saturating_sub(32 * of_step);
    }
    println!("rebuilds {}", instance.activity().rebuilds);
}

#[test]
#[ignore = "nightly"]
fn nightly_chains_of_a_timeslice_survive_a_desktop() {
    let dir = tempfile::tempdir().unwrap();
    let slow = dir.path().join("slow.json");
    let mut profile = Profile::new("test", 0, Machine { simulated: true, ..Machine::default() });
    let mut rate = Experiment::new(READ_RATE.experiment, "?", "-", Verdict::Measured);
    rate.facts.insert(READ_RATE.name.into(), Value::Number(RATE));
    profile.experiments.push(rate);
    profile.create(&slow).unwrap();
    let day = |chains: &str, minutes: u32| {
        let mut child = again(module_path!(), "long_decode");
        let child = child
            .env(CHAINS, chains)
            .env(MINUTES, minutes.to_string())
            .env("TEGRA_SIM_DESKTOP", "1")
            .env("TEGRA_SIM_CHECKS", "timing")
            .env("TEGRA_SIM_PROFILE", &slow);
        let text = said(child);
        println!("{chains}, {minutes} minutes of decode: {text}");
        let rebuilds = |name: &str| -> u64 {
            text.lines().find_map(|l| l.split_once(name)?.1.trim().parse().ok()).unwrap()
        };
        (rebuilds("rebuilds after prompts "), rebuilds("rebuilds "))
    };
    assert_eq!(day("split", 10), (0, 0), "no channel ends");
    let (prompts, all) = day("full", 4);
    assert!(all > prompts, "steps longer than a tenth of a second block the desktop");
}
