//! On the CPU an answer does not depend on the prefill chunk, the number of threads or other requests in the batch:
//! log-probabilities are compared bit for bit.

use std::time::Duration;

use ::engine::tuning::Tuning;
use ::engine::{Events, Handle, LoadSpec, Request, State, TokenLogprobs};
use orind_testing::engine::{self, collect};
use orind_testing::tiny;
use plan::sample::Sampling;

fn start(model: &str, threads: usize, prefill_chunk: usize, slots: usize) -> Handle {
    start_tuned(model, threads, prefill_chunk, slots, Tuning::default())
}

fn start_tuned(
    model: &str,
    threads: usize,
    prefill_chunk: usize,
    slots: usize,
    tuning: Tuning,
) -> Handle {
    engine::start(LoadSpec {
        slots,
        context: 1024,
        prefill_chunk,
        threads,
        tuning,
        ..engine::spec(tiny(model), "cpu")
    })
}

/// A request with a prompt of `len` tokens for 12 sampled ones with their log-probabilities.
fn request(seed: u32, len: u32) -> Request {
    Request {
        sampling: Sampling {
            temperature: 0.8,
            top_k: 0,
            top_p: 0.9,
            seed: u64::from(seed),
            ..Sampling::GREEDY
        },
        logprobs: Some(20),
        ..engine::request((0..len).map(|i| (i * 37 + seed * 101) % 1000), 12)
    }
}

fn end(events: Events) -> Vec<TokenLogprobs> {
    let answer = collect(events).unwrap();
    assert_eq!(answer.logprobs.len(), 12);
    answer.logprobs
}

/// Answers to prompts of 1 to 700 tokens, one after the other or all at once.
fn answers(handle: &Handle, together: bool) -> Vec<Vec<TokenLogprobs>> {
    let requests: Vec<Request> =
        [1, 2, 15, 100, 700].iter().zip(1..).map(|(len, i)| request(i, *len)).collect();
    if together {
        let running: Vec<_> =
            requests.iter().map(|r| handle.generate(r.clone()).unwrap()).collect();
        running.into_iter().map(end).collect()
    } else {
        requests.iter().map(|r| end(handle.generate(r.clone()).unwrap())).collect()
    }
}

#[test]
fn chunk_size_threads_and_batch_change_no_bit() {
    check_invariance(&["tiny-llama-Q4_K_M"]);
}

#[test]
#[ignore = "nightly"]
fn nightly_chunk_size_threads_and_batch_change_no_bit_in_other_types() {
    check_invariance(&["tiny-llama-f16", "tiny-qwen3-Q8_0"]);
}

fn check_invariance(models: &[&str]) {
    for model in models {
        let handle = start(model, 1, 128, 1);
        let expected = answers(&handle, false);
        handle.stop(Duration::from_secs(5));
        for (threads, chunk, slots) in [(2, 128, 5), (3, 33, 2), (2, 2, 5), (5, 512, 3)] {
            let handle = start(model, threads, chunk, slots);
            for together in [false, true] {
                let got = answers(&handle, together);
                assert!(
                    got == expected,
                    "{model}: {threads} threads, chunks of {chunk}, {slots} slots, together: {together}"
                );
            }
            handle.stop(Duration::from_secs(5));
        }
    }
}

/// Tuning changes the speed of an answer, and no bit of it.
#[test]
fn kernel_parameters_change_no_bit() {
    let model = "tiny-llama-Q4_K_M";
    let handle = start(model, 1, 128, 1);
    let expected = answers(&handle, false);
    handle.stop(Duration::from_secs(5));
    for force in [
        &[("rows_per_task", 16), ("prefetch_bytes", 1024), ("tile_rows", 16)][..],
        &[("rows_per_task", 64), ("tile_rows", 32)],
        &[("rows_per_task", 32), ("prefetch_bytes", 32768)],
        &[("rows_per_task", 16), ("packing", 32)],
    ] {
        let force = force.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let tuning = Tuning { force, ..Tuning::default() };
        let handle = start_tuned(model, 2, 128, 5, tuning.clone());
        let State::Ready(info) = handle.snapshot().state else { panic!("not ready") };
        assert!(info.tuning.forced > 0, "{:?}", info.tuning);
        for together in [false, true] {
            assert!(answers(&handle, together) == expected, "{tuning:?}, together: {together}");
        }
        handle.stop(Duration::from_secs(5));
    }
}
