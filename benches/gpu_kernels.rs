//! Kernels on the CUDA GPU of this machine: correctness of every step, memory bandwidth as `orinctl bench` measures it,
//! time of every kernel of a decoded token, and products by matrix size. Without a GPU it prints `skipped` and exits
//! with 0.
//!
//!     cargo bench --bench gpu_kernels -- [MODEL..]
//!
//! Prints one JSON object per line.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic and reports")]

use std::collections::BTreeMap;
use std::io::Write as _;

use device::gpu::cuda::Cuda;
use device::{Device, Error, Instance, Request, Timing};
use engine::GpuBandwidth;
use model::{KvLayout, Model, synthetic};
use parity::case::{Sketch, noise};
use parity::steps;
use plan::quant;
use plan::{Bucket, Buffer, Class, DType, Outputs, Plan, fuse};
use serde_json::json;

/// Number of timed runs, after the same number of warm-up runs.
const TIMES: usize = 20;

fn main() {
    let device = match Cuda::detect() {
        Ok(device) => device,
        Err(reason) => {
            println!("{}", json!({ "skipped": reason }));
            return;
        }
    };
    println!("{}", json!({ "device": device.info().description }));
    correctness(&device);
    let mut stream = GpuBandwidth::open(&device, &|| {}).unwrap();
    let roof = (0..TIMES).map(|_| stream.measure().unwrap()).fold(0.0, f64::max);
    println!("{}", json!({ "bandwidth_gb_s": roof / 1e9, "read_mb": stream.bytes() as f64 / 1e6 }));
    drop(stream);
    for dtype in steps::TYPES {
        for (n, k) in [(2048, 2048), (8192, 2048), (16_384, 4096), (65_536, 4096)] {
            matrix(&device, roof, dtype, n, k);
        }
    }
    // Cargo adds flags of its own.
    for name in std::env::args().skip(1).filter(|a| !a.starts_with('-')) {
        token(&device, roof, &name);
    }
}

/// Compares every step with the reference.
fn correctness(device: &Cuda) {
    let mut groups: BTreeMap<&str, (usize, usize, f64)> = BTreeMap::new();
    for case in steps::all().unwrap() {
        let group = groups.entry(case.group).or_default();
        match steps::check(&case, device) {
            Ok(outcome) => {
                group.0 += 1;
                group.1 += usize::from(!outcome.passed);
                group.2 = group.2.max(outcome.difference.relative());
            }
            Err(Error::Unsupported { .. }) => {}
            Err(error) => panic!("{} {}: {error}", case.group, case.name),
        }
    }
    for (step, (cases, failed, worst)) in groups {
        println!("{}", json!({ "step": step, "cases": cases, "failed": failed, "worst": worst }));
    }
}

/// Opens a plan, uploads its weights, and returns the median time of each launch.
fn timings(
    device: &Cuda,
    plan: &Plan,
    weights: &[Buffer],
    states: &[Buffer],
    mut fill: impl FnMut(&mut dyn Instance, &Buffer),
) -> Vec<Timing> {
    let request = Request { weights, states, plans: std::slice::from_ref(plan), choices: None };
    let mut instance = device.open(&request).unwrap();
    for weight in weights {
        fill(&mut *instance, weight);
    }
    let prepared = instance.prepare(plan).unwrap();
    let mut all = Vec::new();
    for _ in 0..2 * TIMES {
        all.push(instance.profile(prepared).unwrap().timings);
    }
    let timed = &all[TIMES..];
    let median = |i: usize| {
        let mut times: Vec<u64> = timed.iter().map(|step| step[i].nanoseconds).collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    let one = |(i, t): (usize, &Timing)| Timing { nanoseconds: median(i), ..t.clone() };
    timed[0].iter().enumerate().map(one).collect()
}

/// Times the product of one row of activations with one matrix.
fn matrix(device: &Cuda, roof: f64, dtype: DType, n: usize, k: usize) {
    let mut store = BTreeMap::new();
    let mut sketch = Sketch::new(&mut store);
    let mut bytes = vec![0; n * k / dtype.block_len() * dtype.block_bytes()];
    // A few rows, repeated: the time does not depend on their values.
    let row = k / dtype.block_len() * dtype.block_bytes();
    let some = 16.min(n);
    quant::quantise(dtype, &noise(1, some * k), &mut bytes[..some * row]).unwrap();
    for at in (some * row..bytes.len()).step_by(some * row) {
        let end = (at + some * row).min(bytes.len());
        bytes.copy_within(..end - at, at);
    }
    let x = sketch.floats("x", &[1, k], noise(2, k)).unwrap();
    let w = sketch.weight("w", dtype, &[n, k], Vec::new()).unwrap();
    let y = sketch.g.matmul(x, w).unwrap();
    sketch.g.output("y", y);
    let bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };
    let plan = fuse(&sketch.g.lower(bucket).unwrap(), device.fusions());
    let weights: Vec<Buffer> =
        plan.buffers.iter().filter(|b| b.class == Class::Weight).cloned().collect();
    let timings = timings(device, &plan, &weights, &[], |instance, weight| {
        instance.upload(&weight.name, &bytes, &|_| {}).unwrap();
    });
    let ns: u64 = timings.iter().map(|t| t.nanoseconds).sum();
    let speed = bytes.len() as f64 / ns as f64;
    println!(
        "{}",
        json!({
            "matrix": format!("{n}x{k}"), "type": dtype.name(), "mb": bytes.len() as f64 / 1e6,
            "kernel": timings[0].kernel, "us": ns as f64 / 1e3, "gb_s": speed,
            "percent_of_bandwidth": 100.0 * speed * 1e9 / roof,
        })
    );
}

/// Times every kernel of a decoded token of a model.
fn token(device: &Cuda, roof: f64, name: &str) {
    let path = synthetic::locate(name, &mut |_, _| {}).unwrap();
    let model = Model::open(&path).unwrap();
    let layout = KvLayout { slots: 1, context: 512, ring: None };
    let plan = fuse(&model.plan(layout, Bucket::decode(1, 512)).unwrap(), device.fusions());
    let weights: Vec<Buffer> = model.weights().cloned().collect();
    let mut buffer = Vec::new();
    let timings = timings(device, &plan, &weights, &model.states(layout), |instance, weight| {
        buffer.resize(weight.bytes() as usize, 0);
        model.read_weight(&weight.name, 0, &mut buffer).unwrap();
        instance.upload(&weight.name, &buffer, &|_| {}).unwrap();
    });
    let mut kernels: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for t in &timings {
        let kernel = kernels.entry(&t.kernel).or_default();
        *kernel = (kernel.0 + 1, kernel.1 + t.nanoseconds);
    }
    let ns: u64 = timings.iter().map(|t| t.nanoseconds).sum();
    let speed = plan.cost().weight_bytes as f64 / ns as f64;
    for (kernel, (launches, ns)) in kernels {
        let line =
            json!({ "model": name, "kernel": kernel, "launches": launches, "us": ns as f64 / 1e3 });
        println!("{line}");
    }
    println!(
        "{}",
        json!({
            "model": name, "launches": timings.len(), "us": ns as f64 / 1e3,
            "weights_gb_s": speed, "percent_of_bandwidth": 100.0 * speed * 1e9 / roof,
        })
    );
    std::io::stdout().flush().unwrap();
}
