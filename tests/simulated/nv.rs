//! The NV device through the engine: tokens and log-probabilities equal the CPU's; submissions, prefixes, drafts and
//! logit edits.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ::engine::{
    Dry, Event, Events, Grammar, Grammars, Handle, LoadSpec, LogitsProcessors, PrefixStore,
    Request, TokenLogprobs,
};
use model::gguf::Gguf;
use model::synthetic;
use model::tokenizer::{Tokenizer, Vocabulary};
use orind_testing::{engine, model_variants};
use plan::sample::{self, Sampling, philox};

const MODEL: &str = "synthetic:tiny-llama:q8_0";

fn spec(model: &str, backend: &str) -> LoadSpec {
    LoadSpec { slots: 8, context: 128, ..engine::spec(model, backend) }
}

fn start(model: &str, backend: &str) -> Handle {
    engine::start(spec(model, backend))
}

fn prompt(seed: u64, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| philox([i, 0, 0, 0], seed)[0] % 256 + 1).collect()
}

fn request(prompt: &[u32], max_tokens: u32) -> Request {
    let request = engine::request(prompt.iter().copied(), max_tokens);
    Request { logprobs: Some(2), ..request }
}

fn begin(handle: &Handle, prompt: &[u32], max_tokens: u32) -> Events {
    handle.generate(request(prompt, max_tokens)).unwrap()
}

/// Tokens, and the difference between each token's log-probability and the next best one's.
fn end(events: Events) -> Vec<(u32, f32)> {
    let ahead = |t: &TokenLogprobs| (t.token.id, t.top[0].logprob - t.top[1].logprob);
    engine::collect(events).unwrap().logprobs.iter().map(ahead).collect()
}

/// Launches for the evaluation of a prompt.
fn launches(nv: &Handle, prompt: &[u32]) -> u64 {
    let before = nv.snapshot().activity.launches;
    end(begin(nv, prompt, 1));
    nv.snapshot().activity.launches - before
}

/// Kernels and shapes are those of `parity::types` and `fingerprint`; here the engine chooses the plans.
#[test]
fn tokens_equal_the_cpu() {
    check_tokens("synthetic:tiny-qwen3:q4_k_m", 0..2);
}

#[test]
#[ignore = "nightly"]
fn nightly_tokens_of_more_prompts_and_types_equal_the_cpu() {
    for family in ["tiny-llama", "tiny-qwen3"] {
        for kind in ["q8_0", "q6_k", "q4_k_m"] {
            check_tokens(&format!("synthetic:{family}:{kind}"), 0..8);
        }
    }
}

fn check_tokens(model: &str, seeds: Range<u64>) {
    const LENGTHS: [usize; 8] = [9, 1, 64, 2, 8, 31, 7, 17];
    let (nv, cpu) = (start(model, "nv"), start(model, "cpu"));
    for (seed, len) in seeds.zip(LENGTHS) {
        let prompt = prompt(seed, len);
        let [ours, theirs] = [&nv, &cpu].map(|h| end(begin(h, &prompt, 6)));
        assert_eq!(ours, theirs, "{model}, seed {seed}, {len} tokens");
    }
    nv.stop(Duration::from_secs(5));
}

#[test]
#[ignore = "nightly"]
fn nightly_other_requests_in_a_batch_change_no_token() {
    let nv = start(MODEL, "nv");
    for seed in 0..4 {
        let prompts: Vec<Vec<u32>> =
            (0..8).map(|i| prompt(100 + 8 * seed + i, 1 + i as usize)).collect();
        let alone: Vec<_> = prompts.iter().map(|p| end(begin(&nv, p, 4))).collect();
        for batch in [4, 8] {
            let together: Vec<_> = prompts[..batch].iter().map(|p| begin(&nv, p, 4)).collect();
            for (i, (events, alone)) in together.into_iter().zip(&alone).enumerate() {
                assert_eq!(end(events), *alone, "seed {seed}: sequence {i} of {batch}");
            }
        }
    }
}

#[test]
fn a_step_is_one_submit_and_one_doorbell() {
    let nv = start("synthetic:tiny-llama:q6_k", "nv");
    let layers = 2;
    end(begin(&nv, &[1, 2, 3], 2));
    let before = nv.snapshot().activity;
    let answer = end(begin(&nv, &[4], 11));
    let after = nv.snapshot().activity;
    assert_eq!(answer.len(), 11);
    let steps = after.submits - before.submits;
    assert_eq!(after.doorbells - before.doorbells, steps);
    assert_eq!((steps, after.rebuilds), (11, 0), "a prompt of one token and ten more steps");
    assert!(after.launches - before.launches <= steps * (5 * layers + 12));
}

/// Without log-probabilities, decode runs a step ahead; the tokens stay the same.
#[test]
fn chunks_of_a_prompt_are_submitted_together_and_decode_runs_ahead() {
    let nv = start(MODEL, "nv");
    let peak = || {
        let peak = nv.exclusive("peak", ::engine::ModelRunner::take_most_in_flight);
        peak.blocking_recv().unwrap().unwrap()
    };
    let ids = |logprobs, prompt: &[u32], max_tokens| -> Vec<u32> {
        let request = Request { logprobs, ..request(prompt, max_tokens) };
        let mut events = nv.generate(request).unwrap();
        std::iter::from_fn(|| events.blocking_recv())
            .filter_map(|event| if let Event::Token(token) = event { Some(token.id) } else { None })
            .collect()
    };
    let prompt = prompt(11, 32);
    let expected = ids(Some(2), &prompt, 12);
    assert_eq!((expected.len(), peak()), (12, 4), "four chunks, and then one step at a time");
    let before = nv.snapshot().activity;
    assert_eq!(ids(None, &prompt[..1], 12).len(), 12);
    let after = nv.snapshot().activity;
    assert_eq!(peak(), 2);
    assert_eq!(after.submits - before.submits, 12, "no step after the last token");
    assert!(after.sleeps - before.sleeps <= 12, "{before:?} {after:?}");
    assert_eq!(ids(None, &prompt, 12), expected);
    // The engine stops while steps are under way.
    let running = nv.generate(Request { logprobs: None, ..request(&prompt, 90) }).unwrap();
    nv.stop(Duration::ZERO);
    drop(running);
}

#[test]
fn a_short_prompt_takes_fewer_launches() {
    let nv = engine::start(LoadSpec { prefill_chunk: 64, ..spec(MODEL, "nv") });
    // Prompts without a common prefix, which would be cached.
    let [of_3, of_8, of_9, of_64] =
        [3, 8, 9, 64].map(|len| launches(&nv, &prompt(700 + len as u64, len)));
    assert_eq!(of_3, of_8);
    // The number of launches of tile kernels does not depend on rows.
    assert!(of_8 < of_9 && of_9 == of_64, "{of_8}, {of_9}, {of_64}");
}

/// Over 131,072 positions, attention takes eight launches for 64 rows and one for 8. The tokens are equal.
#[test]
fn attention_in_several_launches_changes_no_token() {
    let long =
        |prefill_chunk| LoadSpec { slots: 1, context: 131_072, prefill_chunk, ..spec(MODEL, "nv") };
    let (wide, narrow) = (engine::start(long(64)), engine::start(long(8)));
    let prompt = prompt(9, 64);
    let answers = [&wide, &narrow].map(|nv| end(begin(nv, &prompt, 3)));
    assert_eq!(answers[0], answers[1]);
    let short = engine::start(LoadSpec { prefill_chunk: 64, ..spec(MODEL, "nv") });
    let another = self::prompt(10, 64);
    let more = launches(&wide, &another) - launches(&short, &another);
    assert_eq!(more, 7 + 7, "two layers");
}

/// Prefixes in a slot, copied from another slot, and read from an earlier engine's files.
#[test]
fn cached_prefixes_change_no_token() {
    check_prefixes(tempfile::tempdir().unwrap().path(), "q8_0");
}

/// A store with files of several cache types.
#[test]
#[ignore = "nightly"]
fn nightly_cached_prefixes_of_every_type_change_no_token() {
    let dir = tempfile::tempdir().unwrap();
    for kv_type in ["f16", "q8_0", "q4_0"] {
        check_prefixes(dir.path(), kv_type);
    }
}

fn check_prefixes(dir: &Path, kv_type: &str) {
    let store = PrefixStore { dir: dir.into(), limit: 1 << 30 };
    let start = |backend| {
        let prefixes = (backend == "nv").then(|| store.clone());
        let spec = LoadSpec {
            kv_type: kv_type.parse().unwrap(),
            ..spec("synthetic:tiny-qwen3:q4_k_m", backend)
        };
        engine::start(LoadSpec { slots: 2, context: 256, prefill_chunk: 32, prefixes, ..spec })
    };
    let beginning = prompt(1, 170);
    let with = |more: &[u32]| [&beginning[..], more].concat();
    let prompts = [with(&[7]), with(&[7, 8, 9]), with(&[5, 6]), with(&[3])];
    let cpu = start("cpu");
    let expected = prompts.each_ref().map(|prompt| end(begin(&cpu, prompt, 3)));
    for (round, cached) in [(0, [0, 171, 170, 170]), (1, [128, 171, 170, 170])] {
        let nv = start("nv");
        for ((prompt, expected), cached) in prompts.iter().zip(&expected).zip(cached) {
            let before = nv.snapshot().cached_tokens;
            assert_eq!(end(begin(&nv, prompt, 3)), *expected, "round {round}");
            assert_eq!(nv.snapshot().cached_tokens - before, cached, "round {round}");
        }
        nv.stop(Duration::from_secs(20));
        let counts = nv.snapshot().prefixes;
        assert_eq!((counts.read, counts.written), [(0, 1), (1, 0)][round]);
    }
}

/// Recurrent states and ring caches, written after one step; the device contract and `tests/host/prefixes.rs` cover
/// them in the gate.
#[test]
#[ignore = "nightly"]
fn nightly_recurrent_states_and_rings_from_disk_change_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let rings = model_variants::speaking("gemma3", dir.path());
    for model in ["synthetic:tiny-qwen35:q8_0", &rings] {
        let store = PrefixStore { dir: dir.path().into(), limit: 1 << 30 };
        let start = |backend| {
            let prefixes = (backend == "nv").then(|| store.clone());
            let spec = spec(model, backend);
            engine::start(LoadSpec { slots: 1, context: 640, prefill_chunk: 512, prefixes, ..spec })
        };
        let beginning: Vec<u32> = prompt(1, 530).iter().map(|token| token % 120).collect();
        let with = |more: &[u32]| [&beginning[..], more].concat();
        let prompts = [with(&[7]), with(&[5, 6])];
        let cpu = start("cpu");
        let expected = prompts.each_ref().map(|prompt| end(begin(&cpu, prompt, 3)));
        for ((round, prompt), expected) in (0..).zip(&prompts).zip(&expected) {
            let nv = start("nv");
            assert_eq!(end(begin(&nv, prompt, 3)), *expected, "{model}, round {round}");
            nv.stop(Duration::from_secs(60));
            let now = nv.snapshot();
            let counts = (now.prefixes.read, now.prefixes.written, now.cached_tokens);
            // Four blocks and a recurrent snapshot.
            assert_eq!(counts, [(0, 5, 0), (5, 0, 512)][round], "{model}");
        }
    }
}

/// Biases, penalties, a grammar and min-p in one batch, without reading logits.
#[test]
fn tokens_with_logit_edits_equal_the_cpu() {
    let (nv, cpu) = (start(MODEL, "nv"), start(MODEL, "cpu"));
    let made = synthetic::locate(MODEL, &mut |_, _| {}).unwrap();
    let vocabulary = Vocabulary::from_metadata(Gguf::open(&made).unwrap().metadata()).unwrap();
    let grammars = Grammars::new(Arc::new(Tokenizer::new(vocabulary).unwrap()));
    static GOES_ON: AtomicBool = AtomicBool::new(false);
    let constraint = Some(grammars.compile(&Grammar::Regex("[a-z]{3,}".into()), &GOES_ON).unwrap());

    let sampling =
        Sampling { temperature: 1.4, min_p: sample::min_p(0.1), seed: 8, ..Sampling::GREEDY };
    let dry = Dry { multiplier: 1.0, base: 1.6, allowed: 1, breakers: vec![] };
    let shapings = [
        LogitsProcessors { bias: vec![(40, 5.0), (90_000, 1.0)], ..LogitsProcessors::NONE },
        LogitsProcessors {
            repetition: 1.3,
            frequency: 0.4,
            dry: Some(dry),
            ..LogitsProcessors::NONE
        },
        LogitsProcessors { presence: -0.5, ..LogitsProcessors::NONE },
    ];
    let requests = shapings.into_iter().enumerate().map(|(i, processors)| {
        let constraint = constraint.clone().filter(|_| i == 2);
        let request = engine::request(prompt(i as u64, 6 + 9 * i), 10);
        Request { processors, sampling, constraint, ..request }
    });
    let requests: Vec<_> = requests.collect();
    let [ours, theirs] = [&nv, &cpu].map(|handle| {
        let begun = requests.iter().map(|request| handle.generate(request.clone()).unwrap());
        let begun: Vec<_> = begun.collect();
        let ids = begun.into_iter().map(|events| engine::collect(events).unwrap().ids);
        ids.collect::<Vec<_>>()
    });
    assert_eq!(ours, theirs);
    nv.stop(Duration::from_secs(5));
}

/// Draft tokens of the model's own nextn layer, on a model with recurrent states. The layer of the first model is
/// random, so that drafts are rejected; that of the second predicts well.
#[test]
fn a_nextn_layer_changes_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let made = synthetic::locate("synthetic:tiny-qwen35:q8_0", &mut |_, _| {}).unwrap();
    let random = made.to_str().unwrap();
    let knowing = model_variants::of_pairs(random, dir.path());
    let request = engine::request(prompt(3, 20), 24);
    let min_p = sample::min_p(0.02);
    let sampling = Sampling { temperature: 0.7, top_k: 20, top_p: 0.95, min_p, seed: 5 };
    let sampled = Request { sampling, ..request.clone() };
    // Drafting may be paused after the first draft: the simulated Orin's times are those of this machine.
    for (model, request, least) in [(random, request, 0), (&*knowing, sampled, 2)] {
        let start = |backend, draft| engine::start(LoadSpec { draft, ..spec(model, backend) });
        let (nv, cpu) = (start("nv", 7), start("cpu", 0));
        let [ours, theirs] = [&nv, &cpu].map(|handle| engine::ask(handle, request.clone()));
        assert_eq!(ours.ids, theirs.ids);
        let finished = ours.finished.unwrap();
        assert!(finished.drafted_tokens > 0 && finished.accepted_tokens >= least, "{finished:?}");
    }
}

/// A draft model on the same GPU saves steps.
#[test]
fn a_draft_model_changes_no_token() {
    let start = |backend, draft_model: Option<&str>| {
        let draft_model = draft_model.map(str::to_owned);
        engine::start(LoadSpec { slots: 2, draft: 7, draft_model, ..spec(MODEL, backend) })
    };
    let (nv, cpu) = (start("nv", Some(MODEL)), start("cpu", None));
    let request = engine::request(prompt(3, 20), 12);
    let [ours, theirs] = [&nv, &cpu].map(|handle| engine::ask(handle, request.clone()));
    assert_eq!(ours.ids, theirs.ids);
    let finished = ours.finished.unwrap();
    assert!(finished.accepted_tokens > 1, "{finished:?}");
    assert!(nv.snapshot().steps < cpu.snapshot().steps);
}
