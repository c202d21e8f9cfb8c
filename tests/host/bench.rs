//! A benchmark of a tiny model, through the engine's public interface.
use std::ops::ControlFlow;
use std::sync::Arc;

use ::engine::LoadSpec;
use bench::{Error, Kind, Progress, Report, Spec, Test};
use model::gguf::Gguf;
use orind_testing::{engine, tiny};
use telemetry::{Probe, Root};

const MODEL: &str = "tiny-llama-Q8_0";
const SLOTS: usize = 2;
const CONTEXT: usize = 64;

/// Runs a bench on the engine thread; returns the progress and the outcome.
fn bench(spec: &Spec, last: usize) -> (Vec<Progress>, Result<Report, Error>) {
    let load = LoadSpec { slots: SLOTS, context: CONTEXT, ..engine::spec(tiny(MODEL), "auto") };
    let engine = engine::start(load);
    let spec = spec.clone();
    let outcome = engine.exclusive("bench", move |core| {
        let mut events = Vec::new();
        let probe = Arc::new(Probe::new(Root::system()));
        let result = bench::run(core, &probe, &spec, &mut |progress| {
            events.push(progress);
            if events.len() < last { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        (events, result)
    });
    outcome.blocking_recv().unwrap().unwrap()
}

fn small() -> Spec {
    Spec {
        prompts: Some(vec![20]),
        generate: Some(vec![4]),
        depths: vec![0, 9],
        batches: vec![1, 2],
        repetitions: Some(2),
        warmup: 1,
        ..Spec::default()
    }
}

#[test]
fn rows_follow_from_the_plan_and_the_clock() {
    let (events, report) = bench(&small(), usize::MAX);
    let report = report.unwrap();
    let names: Vec<&str> = report.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["pp20", "tg4", "tg4 x2", "pp20 @ d9", "tg4 @ d9", "tg4 x2 @ d9"]);

    // A token reads every weight once, and its row of the embedding, which is also the output
    // matrix.
    let gguf = Gguf::open(tiny(MODEL)).unwrap();
    let embedding = gguf.tensor("token_embd.weight").unwrap();
    assert!(gguf.tensor("output.weight").is_none(), "the arithmetic below is for a tied output");
    let all: u64 = gguf.tensors().iter().map(|t| t.bytes).sum();
    let row = embedding.bytes / embedding.shape[0] as u64;
    let once = all + row;
    let meta = gguf.metadata();
    let kv_heads = u64::from(meta.u32("llama.attention.head_count_kv").unwrap());
    let heads = u64::from(meta.u32("llama.attention.head_count").unwrap());
    let width = u64::from(meta.u32("llama.embedding_length").unwrap());
    let layers = u64::from(meta.u32("llama.block_count").unwrap());
    // Keys and values of one position, F16.
    let position = 2 * 2 * layers * kv_heads * (width / heads);

    for row in &report.rows {
        let speed = &row.tokens_per_second;
        assert_eq!(speed.samples.len(), 2, "{}", row.name);
        assert!(speed.min > 0.0 && speed.min <= speed.median && speed.median <= speed.max);
        let bytes = row.weight_bytes_per_token + row.kv_bytes_per_token;
        assert!((row.bytes_per_second / (speed.median * bytes) - 1.0).abs() < 1e-9);
        let fraction = row.bytes_per_second / report.roof.bytes_per_second;
        assert!((row.fraction_of_roof / fraction - 1.0).abs() < 1e-9);
    }
    let tg4 = &report.rows[1];
    assert!((tg4.weight_bytes_per_token - once as f64).abs() <= 0.001 * once as f64);
    let (two, deep, prompt) = (&report.rows[2], &report.rows[4], &report.rows[0]);
    // Two sequences share one read of the weights; each has its own cache.
    assert!((two.weight_bytes_per_token / tg4.weight_bytes_per_token - 0.5).abs() < 0.01);
    assert_eq!(two.kv_bytes_per_token, tg4.kv_bytes_per_token);
    assert!((two.tokens_per_second_per_sequence * 2.0 - two.tokens_per_second.median).abs() < 1e-9);
    // Depth 9, compared with a generation that begins with one token.
    // (The reference interpreter has no attention step and reads the whole context.)
    let reference = report.manifest.device == "reference";
    assert!(reference || deep.kv_bytes_per_token - tg4.kv_bytes_per_token == (8 * position) as f64);
    // 20 tokens in chunks of 8. The last chunk reads all weights; the two before it compute no logits
    // and read only the key and value matrices of the last layer.
    let last_layer = format!("blk.{}.", layers - 1);
    let unneeded = |t: &&model::gguf::TensorInfo| {
        let of_layer = t.name.strip_prefix(&last_layer);
        of_layer.is_some_and(|name| {
            !["attn_norm", "attn_k", "attn_v"].iter().any(|n| name.starts_with(n))
        })
    };
    let unneeded: u64 = gguf.tensors().iter().filter(unneeded).map(|t| t.bytes).sum();
    let three = once + 2 * (once - embedding.bytes - unneeded);
    let read = prompt.weight_bytes_per_token * 20.0;
    assert!((read / three as f64 - 1.0).abs() < 0.02, "{read} {three}");

    assert!(report.roof.bytes_per_second > 0.0 && report.roof.measurements == 4);
    assert!(report.memory.weights > 0 && report.memory.kv > 0 && report.memory.peak > 0);
    assert_eq!(report.manifest.repetitions, 2);
    assert!(!report.manifest.model.synthetic);
    assert_eq!(
        report.manifest.model.parameters,
        gguf.tensors().iter().map(model::gguf::TensorInfo::elements).sum::<u64>()
    );

    assert_eq!(events[0], Progress::Probe);
    let dones: Vec<u32> = events
        .iter()
        .filter_map(|p| match p {
            Progress::Test { done, total, .. } => {
                assert_eq!(*total, 18);
                Some(*done)
            }
            _ => None,
        })
        .collect();
    assert!(dones.is_sorted() && dones.first() == Some(&0) && dones.last() == Some(&17));
}

#[test]
fn a_bench_that_does_not_fit_is_refused_with_the_numbers() {
    let long = Spec { prompts: Some(vec![56]), ..small() };
    let test = Test { kind: Kind::Prefill, tokens: 56, depth: 9, batch: 1 };
    assert_eq!(
        bench(&long, usize::MAX).1,
        Err(Error::TooLong { field: "prompts", test, need: 65, context: CONTEXT })
    );
    let wide = Spec { batches: vec![3], ..small() };
    assert_eq!(
        bench(&wide, usize::MAX).1,
        Err(Error::TooManySequences { field: "batches", batch: 3, slots: SLOTS })
    );
}

#[test]
fn a_cancelled_bench_ends_early() {
    let (events, result) = bench(&small(), 5);
    assert_eq!((events.len(), result), (5, Err(Error::Cancelled)));
}
