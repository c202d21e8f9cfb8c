//! Prefix cache: prompts with a cached prefix are not evaluated again, and no answer changes.

use std::time::Duration;

use ::engine::{Handle, LoadSpec, PrefixStore, Request};
use model::gguf::Value;
use orind_testing::engine::{self, Answer, ask, collect};
use orind_testing::model_variants;
use orind_testing::random::Random;
use orind_testing::tiny;
use plan::sample::Sampling;

const SLOTS: usize = 3;

fn start(model: &str, slots: usize) -> Handle {
    start_in("f16", model, slots)
}

/// Starts an engine with this cache type.
fn start_in(kv_type: &str, model: &str, slots: usize) -> Handle {
    let spec = engine::spec(model, "cpu");
    let kv_type = kv_type.parse().unwrap();
    engine::start(LoadSpec { slots, prefill_chunk: 16, draft: 7, threads: 2, kv_type, ..spec })
}

fn cached(answer: &Answer) -> u32 {
    answer.finished.as_ref().unwrap().cached_tokens
}

/// The answer to a request without a cached prefix.
fn ask_alone(handle: &Handle, request: &Request) -> Answer {
    // Log-probabilities of the prompt need all of it evaluated.
    let answer = ask(handle, Request { prompt_logprobs: true, ..request.clone() });
    assert_eq!(cached(&answer), 0);
    answer
}

/// Conversations that grow, fork and continue, several at a time, with a seed for each answer. The last model has a
/// window of 20 positions and ring caches of 64, which are soon overwritten.
#[test]
fn cached_prefixes_change_no_answer_of_forking_conversations() {
    check_conversations(|seed| [2, 4].contains(&seed));
}

#[test]
#[ignore = "nightly"]
fn nightly_cached_prefixes_change_no_answer_of_more_conversations() {
    check_conversations(|seed| [1, 3].contains(&seed));
}

/// Runs the models whose seed is selected.
fn check_conversations(selected: impl Fn(u64) -> bool) {
    let dir = tempfile::tempdir().unwrap();
    let window = [("llama.attention.sliding_window", Value::U32(20))];
    let near = model_variants::saying(&tiny("tiny-llama-Q8_0"), dir.path(), &window);
    let models = [
        ("f16", tiny("tiny-llama-Q8_0")),
        ("f16", tiny("tiny-qwen3-Q4_K_M")),
        ("q8_0", tiny("tiny-qwen3-Q8_0")),
        ("f16", near),
    ];
    for (seed, (kv_type, model)) in (1..).zip(&models).filter(|(seed, _)| selected(*seed)) {
        println!("{model}: seed {seed}");
        let (handle, other) = (start_in(kv_type, model, SLOTS), start_in(kv_type, model, 1));
        let mut random = Random(seed);
        let mut from_cache = 0;
        // Tokens of every answered request.
        let mut said: Vec<Vec<u32>> = vec![vec![1]];
        for _ in 0..12 {
            let requests: Vec<Request> = (0..1 + random.below(2 * SLOTS))
                .map(|_| {
                    let before = &said[random.below(said.len())];
                    // A fork may begin at any token.
                    let kept = if random.below(3) == 0 {
                        1 + random.below(before.len())
                    } else {
                        before.len()
                    };
                    let mut prompt = before[..kept].to_vec();
                    prompt.truncate(150);
                    let more = 1 + random.below(40);
                    prompt.extend((0..more).map(|_| 2 + random.below(200) as u32));
                    let temperature = random.pick(&[0.0, 1.0]);
                    let sampling = Sampling {
                        temperature,
                        top_k: 40,
                        top_p: 0.95,
                        seed: random.bits(),
                        ..Sampling::GREEDY
                    };
                    let logprobs = (random.below(2) == 0).then_some(1);
                    let answer = 1 + random.below(12) as u32;
                    Request { sampling, logprobs, ..engine::request(prompt, answer) }
                })
                .collect();
            let streams: Vec<_> =
                requests.iter().map(|request| handle.generate(request.clone()).unwrap()).collect();
            for (request, events) in requests.iter().zip(streams) {
                let answer = collect(events).unwrap();
                let alone = ask_alone(&other, request);
                assert_eq!((&answer.ids, &answer.text), (&alone.ids, &alone.text), "seed {seed}");
                assert_eq!(answer.logprobs, alone.logprobs, "equal to the bit, seed {seed}");
                assert!((cached(&answer) as usize) < request.prompt.len());
                from_cache += cached(&answer);
                said.push([&request.prompt[..], &answer.ids].concat());
            }
        }
        let now = handle.snapshot();
        assert_eq!(now.cached_tokens, u64::from(from_cache));
        assert!(from_cache > 50, "{from_cache} cached tokens");
    }
}

#[test]
fn a_continued_conversation_is_evaluated_once() {
    let handle = start(&tiny("tiny-llama-Q8_0"), 2);
    let mut said: Vec<u32> = (1..60).collect();
    let mut held = 0;
    for turn in 0..4 {
        let answer = ask(&handle, engine::request(said.clone(), 5));
        // The last token of the previous answer has not been evaluated.
        assert_eq!(cached(&answer), held, "turn {turn}");
        said.extend(&answer.ids);
        held = said.len() as u32 - 1;
        said.extend([7, 8, 9]);
    }
    // Log-probabilities of the prompt need all of it evaluated.
    let asked = Request { prompt_logprobs: true, ..engine::request(said.clone(), 1) };
    let answer = ask(&handle, asked);
    assert_eq!((cached(&answer), answer.prompt.unwrap().len()), (0, said.len()));
}

/// Thirty-two concurrent conversations with one system prompt, in eight slots.
#[test]
fn a_common_prefix_of_concurrent_requests_is_evaluated_once() {
    let handle = start(&tiny("tiny-llama-Q8_0"), 8);
    let system: Vec<u32> = (1..129).collect();
    let requests = (0..32u32).map(|i| [&system[..], &[300 + i, 400, 401 + i]].concat());
    let streams: Vec<_> =
        requests.map(|prompt| handle.generate(engine::request(prompt, 3)).unwrap()).collect();
    let cached: Vec<u32> =
        streams.into_iter().map(|events| cached(&collect(events).unwrap())).collect();
    assert_eq!(cached[0], 0);
    assert!(cached[1..].iter().all(|cached| *cached == 128), "{cached:?}");
    assert_eq!(handle.snapshot().prompt_tokens, 131 + 31 * 3);
}

/// Thirty-two conversations one after the other, in eight slots of six blocks. Without sharing they would need four
/// times the cache.
#[test]
fn prefix_blocks_are_shared_between_slots() {
    let spec = engine::spec(tiny("tiny-llama-Q8_0"), "cpu");
    let handle = engine::start(LoadSpec { slots: 8, context: 768, threads: 2, ..spec });
    let system: Vec<u32> = (1..641).map(|i| 1 + i % 250).collect();
    let said = |i: u32| [&system[..], &[300 + i, 400, 401 + i, 9, 8, 7, 6, 5, 4, 3]].concat();
    let first = (0..32).map(|i| cached(&ask(&handle, engine::request(said(i), 1))));
    assert_eq!(first.collect::<Vec<_>>(), [&[0][..], &[640; 31]].concat());
    for i in 0..32 {
        let answer = ask(&handle, engine::request([said(i), vec![7, 8]].concat(), 1));
        assert_eq!(cached(&answer), 650, "conversation {i}");
    }
}

/// Recurrent snapshots and rings belong to the end of a sequence. The second request shows where it diverges from the
/// first, so a snapshot is stored there, and later requests continue from it.
#[test]
fn a_common_prefix_of_a_model_with_states_or_rings_is_evaluated_twice() {
    let dir = tempfile::tempdir().unwrap();
    let window = [("llama.attention.sliding_window", Value::U32(20))];
    let near = model_variants::saying(&tiny("tiny-llama-Q8_0"), dir.path(), &window);
    for model in [model_variants::speaking("qwen35", dir.path()), near] {
        let start = |slots| {
            let spec = engine::spec(&model, "cpu");
            engine::start(LoadSpec { slots, context: 2048, prefill_chunk: 96, ..spec })
        };
        let (handle, other) = (start(3), start(1));
        let system: Vec<u32> = (0..700).map(|i| 2 + i * i % 113).collect();
        for (who, expected) in [(1, 0), (2, 0), (3, 640), (4, 640)] {
            let prompt = system.iter().copied().chain((0..400).map(|i| 2 + (i * i + who) % 109));
            let asked = Request { logprobs: Some(1), ..engine::request(prompt, 6) };
            let (answer, alone) = (ask(&handle, asked.clone()), ask_alone(&other, &asked));
            assert_eq!((&answer.ids, &answer.logprobs), (&alone.ids, &alone.logprobs));
            assert_eq!(cached(&answer), expected, "{model}: {who}");
        }
    }
}

#[test]
fn the_prefix_of_a_cancelled_request_is_cached() {
    let handle = start(&tiny("tiny-llama-Q8_0"), 1);
    let said: Vec<u32> = (1..100).collect();
    let mut events = handle.generate(engine::request(said.clone(), 100)).unwrap();
    events.blocking_recv().unwrap();
    drop(events);
    let answer = ask(&handle, engine::request([&said[..], &[5, 6]].concat(), 2));
    assert_eq!(cached(&answer), 99);
}

/// Conversations with a restarted engine, whose prefixes are in files.
#[test]
fn prefixes_from_disk_change_no_answer() {
    let models = [
        ("f16", tiny("tiny-llama-Q8_0")),
        ("q8_0", tiny("tiny-qwen3-Q8_0")),
        ("q4_0", tiny("tiny-qwen3-Q4_K_M")),
    ];
    for (seed, (kv_type, model)) in (1..).zip(models) {
        println!("{model}: seed {seed}");
        let (written, read) = check_restarts(seed, kv_type, &model, 150);
        assert!(written > 3 && read > 0, "{written} written, {read} read");
    }
}

/// Ring caches of 64 positions, and a model with recurrent and attention layers.
#[test]
fn a_restarted_engine_reads_rings_and_recurrent_states() {
    check_restarts_with_states(|seed| [1, 3].contains(&seed));
}

/// Windows, short convolutions, and a model without attention.
#[test]
#[ignore = "nightly"]
fn nightly_a_restarted_engine_reads_states_of_more_models() {
    check_restarts_with_states(|seed| ![1, 3].contains(&seed));
}

/// Runs the models whose seed is selected.
fn check_restarts_with_states(selected: impl Fn(u64) -> bool) {
    let dir = tempfile::tempdir().unwrap();
    let window = [("llama.attention.sliding_window", Value::U32(20))];
    let near = model_variants::saying(&tiny("tiny-llama-Q8_0"), dir.path(), &window);
    let drawn = ["gemma3", "qwen35", "lfm2", "rwkv7"]
        .map(|name| model_variants::speaking(name, dir.path()));
    let models = (1..).zip(std::iter::once(near).chain(drawn));
    for (seed, model) in models.filter(|(seed, _)| selected(*seed)) {
        println!("{model}: seed {seed}");
        let (written, read) = check_restarts(seed, "f16", &model, 520);
        assert!(written > 3 && read > 0, "{model}: {written} written, {read} read");
    }
}

/// Restarts an engine between prompts that add `more` tokens to a conversation. Returns the numbers of files written
/// and read.
fn check_restarts(seed: u64, kv_type: &str, model: &str, more: usize) -> (u64, u64) {
    let dir = tempfile::tempdir().unwrap();
    let store = PrefixStore { dir: dir.path().into(), limit: 1 << 30 };
    let start = |slots, prefixes| {
        let (kv_type, spec) = (kv_type.parse().unwrap(), engine::spec(model, "cpu"));
        let spec = LoadSpec { slots, context: 4 * more, prefill_chunk: 32, kv_type, ..spec };
        engine::start(LoadSpec { draft: 7, threads: 2, prefixes, ..spec })
    };
    let other = start(1, None);
    let mut random = Random(seed);
    let mut said: Vec<Vec<u32>> = vec![vec![1]];
    let (mut written, mut read) = (0, 0);
    for _ in 0..3 {
        let handle = start(2, Some(store.clone()));
        for _ in 0..3 {
            let before = &said[random.below(said.len())];
            let forks = random.below(3) == 0;
            let kept = if forks { 1 + random.below(before.len()) } else { before.len() };
            let mut prompt = before[..kept].to_vec();
            prompt.truncate(2 * more);
            prompt.extend((0..more).map(|_| 2 + random.below(120) as u32));
            let temperature = random.pick(&[0.0, 1.0]);
            let sampling = Sampling {
                temperature,
                top_k: 40,
                top_p: 0.95,
                seed: random.bits(),
                ..Sampling::GREEDY
            };
            let request = Request { sampling, logprobs: Some(1), ..engine::request(prompt, 10) };
            let (answer, alone) = (ask(&handle, request.clone()), ask_alone(&other, &request));
            assert_eq!((&answer.ids, &answer.text), (&alone.ids, &alone.text), "seed {seed}");
            assert_eq!(answer.logprobs, alone.logprobs, "equal to the bit, seed {seed}");
            said.push([&request.prompt[..], &answer.ids].concat());
        }
        handle.stop(Duration::from_secs(20));
        let now = handle.snapshot();
        (written, read) = (written + now.prefixes.written, read + now.prefixes.read);
        assert_eq!((now.prefixes.refused, now.prefixes.failed), (0, 0));
    }
    (written, read)
}

/// The second request shows where the common prefix ends, and the third continues from there. With a damaged file the
/// whole prompt is evaluated, and the file is written again.
#[test]
fn a_long_prefix_of_a_recurrent_model_is_evaluated_twice() {
    let (drawn, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = PrefixStore { dir: dir.path().into(), limit: 1 << 30 };
    let model = model_variants::speaking("qwen35", drawn.path());
    let start = |prefixes| {
        let spec = engine::spec(&model, "cpu");
        engine::start(LoadSpec { slots: 1, context: 2048, prefill_chunk: 96, prefixes, ..spec })
    };
    let system: Vec<u32> = (0..1000).map(|i| 2 + i * i % 113).collect();
    let asked = |who: u32| {
        let prompt = system.iter().copied().chain((0..600).map(|i| 2 + (i * i + who) % 109));
        Request { logprobs: Some(1), ..engine::request(prompt, 6) }
    };
    let other = start(None);
    let answered = |handle: &Handle, who| {
        let (answer, alone) = (ask(handle, asked(who)), ask_alone(&other, &asked(who)));
        assert_eq!((&answer.ids, &answer.logprobs), (&alone.ids, &alone.logprobs));
        cached(&answer)
    };
    for (who, expected) in [(1, 0), (2, 0), (3, 896), (3, 1536)] {
        let handle = start(Some(store.clone()));
        assert_eq!(answered(&handle, who), expected);
        handle.stop(Duration::from_secs(20));
    }
    let largest = || {
        let files = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = files.collect();
        let len = |file: &std::path::PathBuf| std::fs::metadata(file).unwrap().len();
        let most = files.iter().map(len).max();
        files.retain(|file| Some(len(file)) == most);
        files
    };
    let snapshots = largest();
    assert_eq!(snapshots.len(), 4, "at the end of each prompt, and where they diverge");
    for file in snapshots {
        let mut bytes = std::fs::read(&file).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    let handle = start(Some(store.clone()));
    assert_eq!(answered(&handle, 3), 0);
    assert_eq!(handle.snapshot().prefixes.refused, 1);
    // The snapshot at the end of the prompt has been written again.
    handle.stop(Duration::from_secs(20));
    assert_eq!(answered(&start(Some(store)), 3), 1536);
}

/// Both answers stay the same.
#[test]
fn other_requests_decode_while_a_prefix_is_read_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = PrefixStore { dir: dir.path().into(), limit: 1 << 30 };
    let start = || {
        let spec = engine::spec(tiny("tiny-llama-Q8_0"), "cpu");
        let stall = Duration::from_nanos(1);
        let prefixes = Some(store.clone());
        engine::start(LoadSpec {
            slots: 2,
            context: 1024,
            prefill_chunk: 32,
            stall,
            prefixes,
            ..spec
        })
    };
    let long = engine::request((0..700).map(|i| 2 + i % 90), 5);
    let other = engine::request([9, 8, 7], 200);
    let first = start();
    let expected = [ask(&first, long.clone()).ids, ask(&first, other.clone()).ids];
    first.stop(Duration::from_secs(20));
    let again = start();
    let events = [other, long].map(|request| again.generate(request).unwrap());
    let [other, long] = events.map(|events| collect(events).unwrap());
    assert_eq!([&long.ids, &other.ids], [&expected[0], &expected[1]]);
    assert_eq!(cached(&long), 640);
    assert_eq!(again.snapshot().prefixes.read, 5);
}
