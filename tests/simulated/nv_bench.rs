//! A benchmark on the simulated Orin: decode is compared with the bandwidth of the GPU's own reads. Times are
//! meaningless; the tests check which memory is read, and that everything is freed.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::engine::{GpuBandwidth, LoadSpec};
use bench::{Report, Spec};
use device::gpu::nv::Nv;
use device::{Data, Device, Request};
use model::gguf::Gguf;
use orind_testing::program::{again, said};
use orind_testing::{engine, tiny};
use plan::graph::Graph;
use plan::{Bucket, Buffer, Class, DType, Outputs, fuse};
use telemetry::{Probe, Root};

/// Rows of a prompt, which is one chunk.
const PROMPT: u32 = 20;

fn report() -> Report {
    let spec = engine::spec(tiny("tiny-llama-Q8_0"), "nv");
    let load = LoadSpec { context: 64, prefill_chunk: PROMPT as usize, ..spec };
    let engine = engine::start(load);
    let spec = Spec {
        prompts: Some(vec![PROMPT]),
        generate: Some(vec![4]),
        repetitions: Some(2),
        warmup: 0,
        ..Spec::default()
    };
    let report = engine.exclusive("bench", move |core| {
        let probe = Arc::new(Probe::new(Root::system()));
        bench::run(core, &probe, &spec, &mut |_| ControlFlow::Continue(()))
    });
    report.blocking_recv().unwrap().unwrap().unwrap()
}

/// Objects of the simulated Orin after all work has finished.
fn live() -> impl PartialEq + std::fmt::Debug {
    let orin = tegra_sim_preload::orin().unwrap();
    orin.gpu().drain();
    orin.live()
}

#[test]
fn the_roof_is_read_by_the_gpu_and_gpu_memory_is_reported() {
    said(&mut again(module_path!(), "roof"));
}

#[test]
#[ignore = "run by the other test, in a process that has the Orin to itself"]
fn roof() {
    let nv = Nv::detect().unwrap();
    let (before, alive) = (live(), AtomicUsize::new(0));
    let count = || {
        alive.fetch_add(1, Ordering::Relaxed);
    };
    let mut bandwidth = GpuBandwidth::open(&nv, &count).unwrap();
    assert!(bandwidth.measure().unwrap() > 0.0);
    assert_ne!(live(), before);
    drop(bandwidth);
    assert_eq!(live(), before);
    assert!(alive.into_inner() >= 3);
    run_several_steps_without_tokens(&nv);
    assert_eq!(live(), before);
    drop(nv);

    let report = report();
    // Code of the kernels that its plans launch.
    let code = report.memory.code.unwrap();
    assert!(report.memory.gpu && (64 << 10..4 << 20).contains(&code), "{:?}", report.memory);
    let roof = &report.roof;
    assert_eq!((roof.threads, roof.measurements, roof.limit.as_deref()), (0, 3, None), "{roof:#?}");
    let matrix = format!("read by the GPU: F16 matrix of {} MiB", roof.bytes >> 20);
    assert_eq!((roof.stream.as_str(), roof.streams.len()), (matrix.as_str(), 1));
    assert!(roof.bytes >= 4 << 20 && roof.bytes_per_second >= roof.lowest && roof.lowest > 0.0);
    for row in &report.rows {
        let fraction = row.bytes_per_second / roof.bytes_per_second;
        assert!((row.fraction_of_roof / fraction - 1.0).abs() < 1e-9);
    }
    check_weight_bytes(&report);
    assert!(report.memory.gpu);
    let text = analysis::table(&report);
    assert!(!text.contains("threads,") && !text.contains("0 threads"), "{text}");
    assert!(text.contains(&matrix) && text.contains("GPU memory"), "{text}");
}

/// The rows of a prompt share one read of each matrix.
fn check_weight_bytes(report: &Report) {
    let gguf = Gguf::open(tiny("tiny-llama-Q8_0")).unwrap();
    let once: u64 = gguf.tensors().iter().map(|tensor| tensor.bytes).sum();
    let prefill = report.rows.iter().find(|row| row.name == "pp20").unwrap();
    let read = prefill.weight_bytes_per_token * f64::from(PROMPT);
    let expected = once as f64;
    // The difference is the embedding's rows.
    assert!((read / expected - 1.0).abs() < 0.01, "{read} {expected}");
}

/// The bandwidth test submits several steps at once only to fast GPUs, so not to the simulated one.
fn run_several_steps_without_tokens(nv: &Nv) {
    let mut g = Graph::new();
    let x = g.source(Class::Mailbox, "x", DType::F32, &[1, 256]).unwrap();
    let w = g.source(Class::Weight, "w", DType::F16, &[64, 256]).unwrap();
    let y = g.matmul(x, w).unwrap();
    g.output("y", y);
    let bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };
    let plan = fuse(&g.lower(bucket).unwrap(), nv.fusions());
    let of_weights = plan.buffers.iter().filter(|b| b.class == Class::Weight);
    let weights: Vec<Buffer> = of_weights.cloned().collect();
    let plans = std::slice::from_ref(&plan);
    let request = Request { weights: &weights, states: &[], plans, choices: None };
    let mut instance = nv.open(&request).unwrap();
    let ones = |_: u64, bytes: &mut [u8]| {
        bytes.as_chunks_mut::<2>().0.fill([0, 0x3c]);
        Ok(())
    };
    instance.upload("w", &ones, &|_| {}).unwrap();
    let prepared = instance.prepare(&plan).unwrap();
    let x = plan.find(Class::Mailbox, "x").unwrap();
    instance.write(prepared, x, 0, Data::F32(&[1.0; 256])).unwrap();
    for steps in [16, 1, 16] {
        let ticket = instance.submit(prepared, steps).unwrap();
        instance.wait(ticket).unwrap();
    }
    let mut y = [0.0; 64];
    instance.read(prepared, plan.find(Class::Output, "y").unwrap(), 0, &mut y).unwrap();
    assert_eq!(y, [256.0; 64]);
}
