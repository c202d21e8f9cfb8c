//! Processor time of the engine's thread per token on the NV path, without the device's work. The simulated Orin is
//! linked in with shader code that does nothing, so that only the engine uses the caches, as with a real GPU.
//!
//!     cargo bench --bench engine_thread
//!
//! The doorbell and the waits of a simulated Orin cost processor time that those of a real one do not. An empty
//! submission and its wait have the same cost in the same simulator; the difference is the engine's own time. Also
//! counts steps in flight, and how often the engine's thread sleeps per token, on the simulated Orin and on the CPU.
//! Prints one JSON object.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic and reports")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::{Event, Handle, LoadEvent, LoadSpec, LogitsProcessors, Request, Settings};
use plan::sample::Sampling;
use serde_json::json;
use tegra::context::{Context, Options};
use tegra::orin::Orin;
use tegra::pushbuffer::Engine;
use tegra::queue::Wake;
use tegra::space::{AddressSpace, L2};
use tegra_sim::finding::SmFault;
use tegra_sim::gpu::{ComputeEngine, GpuMemory, Launch};
use tegra_sim::trace::Work;

const TOKENS: u32 = 1000;
const REPETITIONS: usize = 9;
const CHUNK: usize = 8;

/// Compute engine whose shaders take no time.
struct Nothing;

impl ComputeEngine for Nothing {
    fn launch(&mut self, _: &Launch, _: &dyn GpuMemory) -> Result<Work, SmFault> {
        Ok(Work::default())
    }
}

fn main() {
    tegra_sim_preload::orin().unwrap().gpu().set_compute_engine(Box::new(Nothing));
    let handle = load("nv");
    generate(&handle, 3, TOKENS);
    let mut tokens: Vec<f64> = Vec::new();
    let mut bare: Vec<f64> = Vec::new();
    for _ in 0..REPETITIONS {
        let before = engine_ns();
        generate(&handle, 3, TOKENS);
        tokens.push((engine_ns() - before) as f64 / f64::from(TOKENS));
        bare.push(submissions());
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2] / 1e3
    };
    let own = tokens.iter().zip(&bare).map(|(token, bare)| token - bare).collect();
    println!(
        "{}",
        json!({
            "thread_us_per_token": median(tokens),
            "bare_submission_us": median(bare),
            "engine_us_per_token": median(own),
            "nv": waits(&handle),
            "cpu": waits(&load("cpu")),
        })
    );
}

/// The engine's waits for a device: most steps in flight in a prompt of four chunks and in decode, sleeps of its
/// thread, and tokens per second.
fn waits(handle: &Handle) -> serde_json::Value {
    let peak = || {
        let peak = handle.exclusive("peak", engine::ModelRunner::take_most_in_flight);
        peak.blocking_recv().unwrap().unwrap()
    };
    peak();
    generate(handle, 4 * CHUNK, 1);
    let prompt = peak();
    let slept = |handle: &Handle| (engine_sleeps(), handle.snapshot().activity.sleeps);
    let (before, begin) = (slept(handle), Instant::now());
    generate(handle, 3, TOKENS);
    let (after, took) = (slept(handle), begin.elapsed());
    let per_token = |sleeps: u64| sleeps as f64 / f64::from(TOKENS);
    let value = json!({
        "most_under_way": { "prompt_of_4_chunks": prompt, "decode": peak() },
        "thread_sleeps_per_token": per_token(after.0 - before.0),
        "device_sleeps_per_token": per_token(after.1 - before.1),
        "tokens_per_s": f64::from(TOKENS) / took.as_secs_f64(),
    });
    handle.stop(Duration::from_secs(5));
    value
}

fn load(backend: &str) -> Handle {
    let handle = Handle::start(Settings { queue_limit: 4 }).unwrap();
    let mut events = handle.load(LoadSpec {
        model: "synthetic:tiny-llama:q6_k".into(),
        backend: backend.parse().unwrap(),
        context: TOKENS as usize + 8,
        prefill_chunk: CHUNK,
        ..LoadSpec::default()
    });
    loop {
        match events.blocking_recv().unwrap() {
            LoadEvent::Progress { .. } | LoadEvent::Unloading { .. } => {}
            LoadEvent::Loaded(_) => return handle,
            LoadEvent::Failed(error) => panic!("{error}"),
        }
    }
}

fn generate(handle: &Handle, prompt: usize, max_tokens: u32) {
    let request = Request {
        prompt: (1..=prompt as u32).collect(),
        max_tokens,
        sampling: Sampling::GREEDY,
        processors: LogitsProcessors::NONE,
        constraint: None,
        shown: vec![],
        stop: vec![],
        ignore_end: true,
        logprobs: None,
        prompt_logprobs: false,
        adapters: engine::Scales::NONE,
        embed: false,
    };
    let mut events = handle.generate(request).unwrap();
    let mut received = 0;
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Token(_) => received += 1,
            Event::Failed(error) => panic!("{error}"),
            Event::Prompt(_) | Event::Embedding(_) | Event::Finished(_) => {}
        }
    }
    assert_eq!(received, max_tokens);
}

/// Processor time that the engine's thread has used.
fn engine_ns() -> u64 {
    processor_ns(&engine())
}

/// Number of voluntary context switches of the engine's thread.
fn engine_sleeps() -> u64 {
    let status = std::fs::read_to_string(engine().join("status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// The directory of the engine's thread in `/proc`.
fn engine() -> PathBuf {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        if std::fs::read_to_string(task.join("comm")).unwrap().trim() == "engine" {
            return task;
        }
    }
    panic!("no engine thread");
}

/// Processor time of a thread, by its directory in `/proc`.
fn processor_ns(task: &Path) -> u64 {
    let stat = std::fs::read_to_string(task.join("schedstat")).unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

/// Processor time of one empty submission and of waiting for it, in nanoseconds.
fn submissions() -> f64 {
    let space = AddressSpace::new(&Orin::open().unwrap(), L2::Volatile).unwrap();
    let options = Options { spin: Duration::ZERO, ..Options::default() };
    let mut context = Context::new(&space, options).unwrap();
    let queue = context.add_queue(Engine::Compute, 256).unwrap();
    context.open().unwrap();
    let now = || processor_ns(Path::new("/proc/thread-self"));
    let before = now();
    for _ in 0..TOKENS {
        let ticket = context.submit(queue, &[], Wake::Interrupt).unwrap();
        context.wait(ticket, Duration::from_secs(60)).unwrap();
    }
    (now() - before) as f64 / f64::from(TOKENS)
}
